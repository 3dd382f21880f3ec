//! Members, keepers and the coupler that are gone: who is told, and who is believed when there is no coupler any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Keeper, KeeperAction, KeeperMessage, KeeperReport, MemberId};
use crate::attach::{GoneMember, Loss, bounded};
use crate::between_hosts::{GivenUp, KeeperId, OWN_KEEPER, PieceHead};
use crate::{MEMBERS_OF_KEEPER_MAX, Variable};

impl Keeper {
    /// The coupler's process is gone, and the keeper that was in it. Members that need it are told; connections between others go on.
    /// What would be reported from now on is for all other keepers ([`told_gone`](Self::told_gone)).
    pub fn coupler_lost(&mut self, why: &str) {
        let why = bounded(why.to_owned());
        self.go_on_without_coupler(format!("the coupler was lost: {why}"));
    }

    /// The coupler is there, and has given up this host. Members here hear of the same first loss as all others.
    pub fn given_up(&mut self, given_up: GivenUp) {
        if self.coupler_lost.is_some() {
            return;
        }
        let why = bounded(given_up.why);
        let why = format!("the coupler has given this host up: {why}");
        let first = match given_up.first_lost {
            Some(loss) => Some((loss.program, loss.rank)),
            // Who has forgotten this host has taken its processes for the ones that were lost.
            None => {
                let mut places = self.places.keys();
                let first = places.find(|(program, rank)| self.is_here(program, *rank));
                first.cloned()
            }
        };
        self.given_up = first.map(|(program, rank)| Loss {
            program,
            rank,
            why: why.clone(),
        });
        self.go_on_without_coupler(why);
    }

    fn go_on_without_coupler(&mut self, why: String) {
        if self.coupler_lost.is_some() {
            return;
        }
        self.coupler_lost = Some(why.clone());
        self.keeper_lost(OWN_KEEPER, &why);
        let count = self.coupling.connections().len() as u32;
        for connection in 0..count {
            if !self.pairs.is_ready(connection) {
                self.fail(connection, &why, None);
            }
        }
        let waiting = self.members.iter().filter(|(_, member)| {
            !member.is_gone && (!member.is_attached || !member.asked.is_empty())
        });
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.refuse_without_coupler(id, why.clone());
        }
        // Nobody says any more when the others are ready.
        for connection in 0..count {
            self.directories.close(connection);
        }
        // Who knows whether the coupler has told of the last ones.
        for gone in self.own_gone.clone() {
            let report = KeeperReport::Gone(self.as_given(gone));
            self.actions.push_back(KeeperAction::Report(report));
        }
        for (keeper, why) in self.unreachable.clone() {
            self.keeper_lost(keeper, &why);
        }
        self.take_told();
    }

    /// Who is here may go on with what it has; nobody else can come.
    pub(super) fn refuse_without_coupler(&mut self, id: MemberId, why: String) {
        match self.members.get_mut(&id).filter(|known| known.is_attached) {
            Some(known) => {
                known.asked.clear();
                self.refuse(id, why);
            }
            None => self.refuse_and_close(id, why),
        }
    }

    /// The same with what can still be given of it: without a coupler nothing of an array whose connections are not all known.
    pub(super) fn as_given(&self, mut gone: GoneMember) -> GoneMember {
        if self.coupler_lost.is_some() {
            gone.exported.retain(|name, _| {
                let (program, name) = (gone.program.clone(), name.clone());
                let array = Variable { program, name };
                let connections = self.coupling.connections_of(&array);
                let mut sources = connections.filter(|(_, terms)| terms.from == array);
                sources.all(|(number, _)| self.pairs.is_ready(number as u32))
            });
        }
        gone
    }

    /// A keeper says that one of its own members is gone, for want of a coupler. As long as ours is there, its word counts, which names one first
    /// loss for all.
    pub fn told_gone(&mut self, keeper: KeeperId, gone: GoneMember) {
        let place = (gone.program.clone(), gone.rank);
        if !self.coupling.programs().contains_key(&place.0) {
            return;
        }
        let mut gone = gone.by_itself();
        if self.coupler_lost.is_none() {
            let told = self.told.entry(keeper).or_default();
            if told.len() < MEMBERS_OF_KEEPER_MAX {
                told.entry(place).or_insert(gone);
            }
            return;
        }
        if !self.pairs.has(keeper, &place, &self.coupling) {
            return;
        }
        if let Some(known) = self.gone.get(&place).cloned() {
            let mut names = known.exported.keys();
            if names.any(|name| !gone.exported.contains_key(name)) {
                let loss = Loss {
                    program: place.0,
                    rank: place.1,
                    why: "its keeper was not told where its versions go: the coupler was lost"
                        .to_owned(),
                };
                self.lose(known.without_keeper(loss));
            }
            return;
        }
        gone.exported.retain(|name, _| {
            let (program, name) = (place.0.clone(), name.clone());
            let array = Variable { program, name };
            self.coupling.connections_of(&array).next().is_some()
        });
        self.lose(gone);
    }

    /// Takes what was said of processes while the coupler was there.
    fn take_told(&mut self) {
        for (keeper, told) in std::mem::take(&mut self.told) {
            for gone in told.into_values() {
                self.told_gone(keeper, gone);
            }
        }
    }

    /// Nothing goes to a keeper any more. Nobody waits until it has confirmed what is on its way.
    pub fn sends_no_more(&mut self, keeper: KeeperId) {
        for pair in self.pairs.under_way_to(keeper) {
            self.not_departed(pair);
        }
    }

    /// Another keeper can't be reached. Whom that concerns the coupler decides, if it is there.
    pub fn keeper_unreachable(&mut self, keeper: KeeperId, why: &str) {
        let why = bounded(why.to_owned());
        if self.coupler_lost.is_some() {
            self.keeper_lost(keeper, &why);
        }
        self.unreachable.insert(keeper, why);
        self.report_unreachable();
    }

    /// Reports keepers that can't be reached and have to do with members here. Others may stay as they are.
    pub(super) fn report_unreachable(&mut self) {
        if self.coupler_lost.is_some() {
            return;
        }
        for (keeper, why) in &self.unreachable {
            if self.pairs.are_with(*keeper) || self.directories.are_with(*keeper) {
                let report = KeeperReport::Unreachable {
                    keeper: *keeper,
                    why: why.clone(),
                };
                self.actions.push_back(KeeperAction::Report(report));
            }
        }
    }

    /// A keeper is gone, and no coupler says so.
    fn keeper_lost(&mut self, keeper: KeeperId, why: &str) {
        for (program, rank) in self.pairs.processes_of(keeper, &self.coupling) {
            let loss = self.given_up.clone().unwrap_or_else(|| Loss {
                program: program.clone(),
                rank,
                why: why.to_owned(),
            });
            let gone = match self.gone.get(&(program.clone(), rank)) {
                Some(gone) => gone.clone().without_keeper(loss),
                None => GoneMember {
                    program,
                    rank,
                    loss: Some(loss),
                    exported: BTreeMap::new(),
                    lost_since: None,
                },
            };
            self.lose(gone);
        }
    }

    /// A process of the coupling is gone, here or elsewhere.
    pub fn lose(&mut self, mut gone: GoneMember) {
        let place = (gone.program.clone(), gone.rank);
        // The coupler would name the first one for all who follow.
        if let Some(first) = self.given_up.clone() {
            gone.loss = gone.loss.map(|_| first.clone());
            gone.lost_since = gone.lost_since.map(|_| first);
        }
        if self.gone.get(&place) == Some(&gone) {
            return;
        }
        self.tell(&gone, None);
        if gone.loss.is_none() {
            // Who has left takes nothing more. Of who was lost, those who wait are told so.
            let (program, rank) = (&gone.program, gone.rank);
            let is_into = |connection: u32| {
                let terms = self.coupling.connections().get(connection as usize);
                terms.is_some_and(|terms| terms.to.program == *program)
            };
            for (connection, source) in self.pairs.leave(rank, is_into) {
                self.release(connection, source);
            }
        }
        self.gone.insert(place, gone);
    }

    /// Tells those at the other ends of a program's connections, or one of them, that a process is gone.
    pub(super) fn tell(&mut self, gone: &GoneMember, whom: Option<MemberId>) {
        let terms = self.coupling.connections().iter();
        let connected: BTreeSet<String> = terms
            .filter_map(|terms| {
                let (from, to) = (&terms.from.program, &terms.to.program);
                match &gone.program {
                    program if program == from => Some(to.clone()),
                    program if program == to => Some(from.clone()),
                    _ => None,
                }
            })
            .collect();
        let mut members = self.having(|member| connected.contains(&member.program));
        members.retain(|member| whom.is_none_or(|whom| whom == *member));
        for member in members {
            // First what it needs nobody for any more.
            if gone.is_without_keeper() {
                self.say_what_came(member, gone);
            }
            self.send(member, KeeperMessage::Gone(gone.clone()), None);
        }
    }

    /// Tells a member of what it waits for and has whole from a process whose keeper is gone.
    fn say_what_came(&mut self, id: MemberId, gone: &GoneMember) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let (program, rank) = (member.program.clone(), gone.rank);
        for (connection, version) in self.pairs.given_by(rank, member.rank) {
            let terms = self.coupling.connections().get(connection as usize);
            if terms.is_some_and(|terms| {
                terms.from.program == gone.program && terms.to.program == program
            }) {
                let came = KeeperMessage::Came {
                    connection,
                    rank,
                    version,
                };
                self.send(id, came, None);
            }
        }
    }

    /// A process elsewhere has given all that one of ours gets of a version. Its keeper may be known to be gone already.
    pub(super) fn tell_if_last(&mut self, head: &PieceHead) {
        let Some(terms) = self
            .coupling
            .connections()
            .get(head.pair.connection as usize)
        else {
            return;
        };
        let source = (terms.from.program.clone(), head.pair.source);
        let target = (terms.to.program.clone(), head.pair.target);
        let gone = self
            .gone
            .get(&source)
            .filter(|gone| gone.is_without_keeper());
        let given = self.pairs.given_by(head.pair.source, head.pair.target);
        // What is wanted no more is none.
        let gone = gone.filter(|_| given.contains(&(head.pair.connection, head.version)));
        if let (Some(_), Some(id)) = (gone, self.places.get(&target).copied()) {
            let came = KeeperMessage::Came {
                connection: head.pair.connection,
                rank: head.pair.source,
                version: head.version,
            };
            self.send(id, came, None);
        }
    }

    /// How many members are here, or have left something behind that others still want.
    #[must_use]
    pub fn needed_count(&self) -> usize {
        let owing = self.pairs.owing(|pair, next| {
            let connections = self.coupling.connections();
            let Some(terms) = connections.get(pair.connection as usize) else {
                return false;
            };
            let array = self.array_of(&terms.from, pair.source);
            let target = (terms.to.program.clone(), pair.target);
            array.is_some_and(|array| array.exported >= next) && !self.gone.contains_key(&target)
        });
        let sources: BTreeSet<(&str, u32)> = owing
            .filter_map(|pair| {
                let terms = &self.coupling.connections()[pair.connection as usize];
                let program = terms.from.program.as_str();
                (!self.is_here(program, pair.source)).then_some((program, pair.source))
            })
            .collect();
        self.member_count() + sources.len() + self.directories.waiting()
    }
}
