//! The ends of processes, programs and keepers: whose word counts, and who is told.

use std::collections::{BTreeMap, BTreeSet};

use super::{ConnectionState, Coupler, CouplerOrder};
use crate::attach::{GoneMember, Loss, bounded};
use crate::between_hosts::{GivenUp, KeeperId, OWN_KEEPER};
use crate::coupling::Variable;

impl Coupler {
    /// A keeper of another host is gone, and its members with it.
    pub fn keeper_lost(&mut self, keeper: KeeperId, why: &str) {
        let has_joined = (OWN_KEEPER + 1..=self.last_keeper).contains(&keeper);
        if !has_joined || !self.lost_keepers.insert(keeper) {
            return;
        }
        self.doubted.remove(&keeper);
        for doubts in self.doubted.values_mut() {
            // Of two that can't reach each other only one is lost.
            doubts.remove(&keeper);
        }
        let why = bounded(why.to_owned());
        let why_lost = bounded(format!("the keeper of its host was lost: {why}"));
        let programs = self.programs.iter();
        let its = programs.flat_map(|(name, program)| {
            let its = program.present.iter().filter(|(_, its)| **its == keeper);
            its.map(|(rank, _)| (name.clone(), *rank))
        });
        let is_gone = |place: &(String, u32)| self.gone.contains_key(place);
        let (left, lost): (Vec<_>, Vec<_>) = its.partition(is_gone);
        // What has left is lost by the first loss too: that of one that was there, if there is one.
        for (program, rank) in lost.into_iter().chain(left) {
            let loss = Loss {
                program: program.clone(),
                rank,
                why: why_lost.clone(),
            };
            match self.gone.get(&(program.clone(), rank)).cloned() {
                // Whoever still needs something of it is told; for all others it went as it did.
                Some(gone) => {
                    let loss = self.first_lost.clone().unwrap_or(loss);
                    self.tell_gone(gone.without_keeper(loss));
                }
                None => self.lose(GoneMember {
                    program,
                    rank,
                    loss: Some(loss),
                    exported: BTreeMap::new(),
                    lost_since: None,
                }),
            }
        }
        let first_lost = self.first_lost.clone();
        self.given_up
            .push_back((keeper, GivenUp { why, first_lost }));
        self.fail_unsettled(keeper);
        for keepers in self.ended.values_mut() {
            keepers.remove(&keeper);
        }
        for program in self.ended.keys().cloned().collect::<Vec<_>>() {
            self.settle(&program);
        }
    }

    /// Fails the connections whose index sets are not known where they are needed: a keeper that has some of them is gone.
    pub(super) fn fail_unsettled(&mut self, keeper: KeeperId) {
        for number in 0..self.connections.len() {
            if self.connections[number].awaited.is_empty() {
                continue;
            }
            let terms = self.coupling.connections()[number].clone();
            let ends = [&terms.from.program, &terms.to.program].into_iter();
            let lost = ends.filter_map(|name| {
                let program = self.programs.get(name)?;
                let mut present = program.present.iter();
                let (rank, _) = present.find(|(_, its)| **its == keeper)?;
                let gone = self.gone.get(&(name.clone(), *rank)).cloned()?;
                Some(GoneMember {
                    loss: gone.loss.or_else(|| gone.lost_since.clone()),
                    ..gone
                })
            });
            if let Some(gone) = lost.into_iter().next() {
                let reason = format!(
                    "{terms}: the keeper of rank {} of {} was lost before its index sets were known",
                    gone.rank, gone.program
                );
                self.fail(number, reason, Some(gone));
            }
        }
    }

    /// A keeper says that a process is gone. It is believed once, and of its own processes.
    pub(super) fn report_gone(&mut self, keeper: KeeperId, gone: GoneMember) {
        let place = (gone.program.clone(), gone.rank);
        if !self.has(keeper, &place.0, place.1) || self.gone.contains_key(&place) {
            return;
        }
        let mut gone = gone.by_itself();
        if let Some(program) = self.programs.get(&place.0) {
            let is_known = |name: &String| program.variables.contains_key(name);
            gone.exported.retain(|name, _| is_known(name));
        }
        self.lose(gone);
        self.settle(&place.0);
    }

    /// A keeper says that it can't reach another one, with which its own processes have to do.
    pub(super) fn report_unreachable(&mut self, keeper: KeeperId, other: KeeperId, why: &str) {
        let why = bounded(why.to_owned());
        let why = format!("keeper {keeper} can't reach keeper {other}: {why}");
        if other == OWN_KEEPER {
            // Who can't reach this host is the one that is lost to it.
            self.keeper_lost(keeper, &why);
        } else if self.are_connected(keeper, other) && !self.lost_keepers.contains(&other) {
            // It may have ended in good order, and its last reports be under way.
            self.doubted.entry(other).or_default().insert(keeper, why);
            self.orders.push_back((Some(other), CouplerOrder::Doubt));
        }
    }

    /// Whether a connection leads from processes of one of these keepers to processes of the other one.
    fn are_connected(&self, one: KeeperId, other: KeeperId) -> bool {
        let has = |array: &Variable, keeper: KeeperId| {
            let program = self.programs.get(&array.program);
            program.is_some_and(|program| program.present.values().any(|its| *its == keeper))
        };
        let connections = self.coupling.connections().iter().zip(&self.connections);
        let mut ready = connections.filter(|(_, status)| status.state == ConnectionState::Ready);
        ready.any(|(terms, status)| {
            // All that have index sets have something to say to each other.
            let takes_part = |keeper| has(&terms.from, keeper) || has(&terms.to, keeper);
            if !status.awaited.is_empty() && takes_part(one) && takes_part(other) {
                return true;
            }
            let ends = [(one, other), (other, one)];
            ends.iter()
                .any(|(from, to)| has(&terms.from, *from) && has(&terms.to, *to))
        })
    }

    pub(super) fn lose(&mut self, mut gone: GoneMember) {
        gone.loss = gone
            .loss
            .map(|loss| self.first_lost.get_or_insert(loss).clone());
        let rank = gone.rank;
        self.give_up(&gone.program, Some(&gone), |described, name| {
            let is_missing = described.is_none_or(|array| !array.by.contains(&rank));
            is_missing.then(|| format!("rank {rank} of {name} is gone, and has not said"))
        });
        if let Some(program) = self.programs.get_mut(&gone.program) {
            program.gone.insert(rank);
        }
        self.tell_gone(gone);
    }

    fn tell_gone(&mut self, gone: GoneMember) {
        let place = (gone.program.clone(), gone.rank);
        self.gone.insert(place, gone.clone());
        self.tell_all(CouplerOrder::Gone(gone));
    }

    /// The command that started a program has ended: what its processes haven't described won't be. Those of other hosts may have said
    /// more than has come: their keepers are asked first.
    pub fn program_ended(&mut self, program: &str) {
        let joined = OWN_KEEPER + 1..=self.last_keeper;
        let keepers = joined.filter(|keeper| !self.lost_keepers.contains(keeper));
        let keepers: BTreeSet<KeeperId> = keepers.collect();
        for keeper in &keepers {
            let program = program.to_owned();
            let order = CouplerOrder::ProgramEnded { program };
            self.orders.push_back((Some(*keeper), order));
        }
        self.ended.insert(program.to_owned(), keepers);
        self.settle(program);
    }

    /// Gives up what a program that has ended hasn't described, when nothing more can be under way.
    pub(super) fn settle(&mut self, program: &str) {
        let Some(keepers) = self.ended.get(program) else {
            return;
        };
        let known = self.programs.get(program);
        let runs_elsewhere = known.is_some_and(|known| {
            let mut present = known.present.iter();
            present.any(|(rank, keeper)| *keeper != OWN_KEEPER && !known.gone.contains(rank))
        });
        if runs_elsewhere || !keepers.is_empty() {
            return;
        }
        self.ended.remove(program);
        let size = known.map(|program| program.size);
        self.give_up(program, None, |described, name| {
            let by = described.map_or(0, |array| array.by.len() as u32);
            match size {
                None => Some(format!(
                    "{name} has ended without a Member, so nobody has said"
                )),
                Some(size) if by < size => Some(format!(
                    "{name} has ended, and only {by} of its {size} processes have said"
                )),
                Some(_) => None,
            }
        });
    }
}
