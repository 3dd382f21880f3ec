//! The distributed directory of index sets, for connections between hosts (a rendezvous, as in Pinar and Hendrickson 2001).
//!
//! Each keeper of a connection has one share of each axis. All tell it what of their members' sets lies there. It looks whether each index
//! that is wanted has one owner, and tells each keeper which runs meet the parts of that keeper's members. So no keeper has all sets, and
//! the coupler none. It hears from each keeper that it knows what it needs, and lets all of them begin together.

use std::collections::{BTreeMap, BTreeSet};

use exoskel_redist::{
    AxisShare, IndexRun, IndexSet, IndexSets, Layout, Mapping, PlanSide, SetsOfAxes,
};
use serde::{Deserialize, Serialize};

use super::{Keeper, KeeperAction, KeeperReport};
use crate::attach::ArrayEnd;
use crate::between_hosts::KeeperId;
use crate::coupler::CoupledEnd;
use crate::coupling::ConnectionTerms;
use crate::indices::{INDEX_RUNS_OF_KEEPER_MAX, IndexPart, IndexParts};

/// What one keeper says to another of the index sets of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaidIndices {
    /// The keeper that says it.
    pub keeper: KeeperId,
    /// The connection.
    pub connection: u32,
    /// What it says.
    pub word: IndexWord,
}

/// What is said of index sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum IndexWord {
    /// Of the sets of the speaker's members, some of what lies in the hearer's share.
    Own {
        /// Whose array.
        end: ArrayEnd,
        /// Some runs.
        part: IndexPart,
    },
    /// All of that has been said.
    AllOwn,
    /// Of the sets in the speaker's share, some of what meets the parts of the hearer's members.
    Met {
        /// Whose array.
        end: ArrayEnd,
        /// Some runs.
        part: IndexPart,
    },
    /// All of that has been said.
    AllMet,
}

/// The directories of all connections that have one.
#[derive(Debug, Default)]
pub(super) struct IndexDirectories {
    open: BTreeMap<u32, IndexDirectory>,
    /// Nothing more is taken for these.
    over: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct IndexDirectory {
    /// None before the coupler has named both ends.
    coupled: Option<Coupled>,
    own: BTreeMap<KeeperId, HeardSets>,
    met: BTreeMap<KeeperId, HeardSets>,
    has_answered: bool,
    /// What the members here need, when all of it is known.
    known: Option<(Layout, Layout)>,
}

#[derive(Debug)]
struct Coupled {
    source: CoupledEnd,
    target: CoupledEnd,
    /// With the sets of the members here.
    from: Layout,
    to: Layout,
    mapping: Mapping,
    /// In the order of their shares.
    keepers: Vec<KeeperId>,
    share: AxisShare,
}

#[derive(Debug, Default)]
struct HeardSets {
    source: IndexParts,
    target: IndexParts,
    is_whole: bool,
    /// As many as count for it.
    runs: usize,
    /// Why it can't be taken, if it can't. Said when it is known that the keeper takes part.
    wrong: Option<String>,
}

/// All that it takes to begin.
pub(super) struct KnownConnection {
    pub(super) source: CoupledEnd,
    pub(super) target: CoupledEnd,
    pub(super) from: Layout,
    pub(super) to: Layout,
    pub(super) mapping: Mapping,
}

impl HeardSets {
    fn take(&mut self, end: ArrayEnd, part: &IndexPart) {
        let taken = match end {
            ArrayEnd::Source => self.source.take(part),
            ArrayEnd::Target => self.target.take(part),
        };
        match taken {
            Ok(count) => self.runs += count,
            Err(reason) => self.refuse(reason),
        }
    }

    fn refuse(&mut self, reason: String) {
        self.wrong.get_or_insert(reason);
    }
}

/// Runs of sets, by axes and processes, with the lengths of the sets.
type RunsOfSets = BTreeMap<(usize, u32), (u64, Vec<IndexRun>)>;

impl IndexDirectory {
    fn heard(&self) -> impl Iterator<Item = &HeardSets> {
        self.own.values().chain(self.met.values())
    }

    fn wrong(&self) -> Option<String> {
        self.heard().find_map(|heard| heard.wrong.clone())
    }
}

impl IndexDirectories {
    /// As many runs as have been said and not been put together.
    fn runs(&self) -> usize {
        let heard = self.open.values().flat_map(IndexDirectory::heard);
        heard.map(|heard| heard.runs).sum()
    }

    /// Whether a directory of which a keeper has a share is open.
    pub(super) fn are_with(&self, keeper: KeeperId) -> bool {
        let mut coupled = self.open.values().filter_map(|open| open.coupled.as_ref());
        coupled.any(|coupled| coupled.keepers.contains(&keeper))
    }

    /// How many connections wait for one.
    pub(super) fn waiting(&self) -> usize {
        let open = self.open.values();
        open.filter(|open| open.coupled.is_some()).count()
    }

    /// Forgets one.
    pub(super) fn close(&mut self, connection: u32) {
        self.open.remove(&connection);
        self.over.insert(connection);
    }

    /// Takes what is known of a connection, when it can be used.
    pub(super) fn take_known(&mut self, connection: u32) -> Option<KnownConnection> {
        let open = self.open.remove(&connection)?;
        self.over.insert(connection);
        let (coupled, (from, to)) = (open.coupled?, open.known?);
        Some(KnownConnection {
            source: coupled.source,
            target: coupled.target,
            from,
            to,
            mapping: coupled.mapping,
        })
    }
}

impl Keeper {
    /// Both ends of a connection are there, with processes on several hosts and index sets: what our members have is said to all others.
    pub(super) fn open_directory(
        &mut self,
        connection: u32,
        terms: &ConnectionTerms,
        ends: (&CoupledEnd, &CoupledEnd),
        layouts: (&Layout, &Layout),
    ) {
        let keepers = ends.0.keepers.iter().chain(&ends.1.keepers);
        let keepers: BTreeSet<KeeperId> = keepers.copied().collect();
        let keepers: Vec<KeeperId> = keepers.into_iter().collect();
        let Some(own) = keepers.iter().position(|keeper| *keeper == self.id) else {
            return;
        };
        let of = keepers.len() as u32;
        let share = |number: usize| AxisShare {
            number: number as u32,
            of,
        };
        let from = self.with_sets_of(&terms.from, layouts.0);
        let to = self.with_sets_of(&terms.to, layouts.1);
        let made = from.and_then(|from| {
            let to = to?;
            let mapping = terms.mapping(&from, &to);
            Ok((from, to, mapping.map_err(|error| error.to_string())?))
        });
        let (from, to, mapping) = match made {
            Ok(made) => made,
            Err(reason) => return self.abandon(connection, &reason),
        };
        for (number, keeper) in keepers.iter().enumerate() {
            for (end, layout, side) in [
                (ArrayEnd::Source, &from, PlanSide::Source),
                (ArrayEnd::Target, &to, PlanSide::Target),
            ] {
                let cut = mapping.cut_sets(layout, side, share(number));
                for part in IndexPart::of(&cut) {
                    self.say_indices(*keeper, connection, IndexWord::Own { end, part });
                }
            }
            self.say_indices(*keeper, connection, IndexWord::AllOwn);
        }
        let coupled = Coupled {
            source: ends.0.clone(),
            target: ends.1.clone(),
            from,
            to,
            mapping,
            keepers,
            share: share(own),
        };
        if !self.directories.over.contains(&connection) {
            let open = self.directories.open.entry(connection).or_default();
            // Others have nothing to say.
            let takes_part = |keeper: &KeeperId| coupled.keepers.contains(keeper);
            open.own.retain(|keeper, _| takes_part(keeper));
            open.met.retain(|keeper, _| takes_part(keeper));
            open.coupled = Some(coupled);
        }
        self.go_on_with(connection);
        self.report_unreachable();
    }

    /// Another keeper says something of index sets.
    pub fn told_indices(&mut self, said: SaidIndices) {
        let SaidIndices {
            keeper,
            connection,
            word,
        } = said;
        let is_known = (connection as usize) < self.coupling.connections().len();
        if !is_known || keeper == self.id {
            return;
        }
        self.take_indices(keeper, connection, word);
        self.go_on_with(connection);
    }

    /// Something that another keeper has said of index sets was not kept.
    pub fn indices_missed(&mut self, connection: u32) {
        if (connection as usize) < self.coupling.connections().len() {
            self.abandon(
                connection,
                "a keeper has said more of its index sets than is kept of one that isn't known yet",
            );
        }
    }

    fn say_indices(&mut self, keeper: KeeperId, connection: u32, word: IndexWord) {
        if keeper == self.id {
            return self.take_indices(keeper, connection, word);
        }
        let said = SaidIndices {
            keeper: self.id,
            connection,
            word,
        };
        self.actions
            .push_back(KeeperAction::Indices { keeper, said });
    }

    fn take_indices(&mut self, keeper: KeeperId, connection: u32, word: IndexWord) {
        if self.directories.over.contains(&connection) {
            return;
        }
        let runs = self.directories.runs();
        let open = self.directories.open.entry(connection).or_default();
        let coupled = open.coupled.as_ref();
        if coupled.is_some_and(|coupled| !coupled.keepers.contains(&keeper)) {
            return;
        }
        let heard = match word {
            IndexWord::Own { .. } | IndexWord::AllOwn => &mut open.own,
            IndexWord::Met { .. } | IndexWord::AllMet => &mut open.met,
        };
        let heard = heard.entry(keeper).or_default();
        match word {
            IndexWord::AllOwn | IndexWord::AllMet => heard.is_whole = true,
            IndexWord::Own { .. } | IndexWord::Met { .. } if runs > INDEX_RUNS_OF_KEEPER_MAX => {
                heard.refuse(format!(
                    "got index sets of {runs} runs from other hosts, expected at most {INDEX_RUNS_OF_KEEPER_MAX}"
                ));
            }
            IndexWord::Own { end, part } | IndexWord::Met { end, part } => heard.take(end, &part),
        }
    }

    /// A connection can't be: the coupler tells all others.
    fn abandon(&mut self, connection: u32, reason: &str) {
        self.directories.close(connection);
        let terms = self.coupling.connections().get(connection as usize);
        let terms = terms.map(ToString::to_string).unwrap_or_default();
        self.report_unfit(connection, format!("{terms}: {reason}"));
    }

    /// Answers when all sets of our share are known, and begins when all that our members need is.
    fn go_on_with(&mut self, connection: u32) {
        let Some(open) = self.directories.open.get_mut(&connection) else {
            return;
        };
        let Some(coupled) = open.coupled.take() else {
            return;
        };
        self.go_on_between(connection, &coupled);
        if let Some(open) = self.directories.open.get_mut(&connection) {
            open.coupled = Some(coupled);
        }
    }

    fn go_on_between(&mut self, connection: u32, coupled: &Coupled) {
        let Some(open) = self.directories.open.get_mut(&connection) else {
            return;
        };
        if let Some(reason) = open.wrong() {
            return self.abandon(connection, &reason);
        }
        let are_whole = |heard: &BTreeMap<KeeperId, HeardSets>| {
            let mut keepers = coupled.keepers.iter();
            keepers.all(|keeper| heard.get(keeper).is_some_and(|heard| heard.is_whole))
        };
        if !open.has_answered && are_whole(&open.own) {
            open.has_answered = true;
            let heard = std::mem::take(&mut open.own);
            match coupled.answers(heard) {
                Ok(answers) => {
                    for (keeper, word) in answers {
                        self.say_indices(keeper, connection, word);
                    }
                }
                Err(reason) => return self.abandon(connection, &reason),
            }
        }
        let Some(open) = self.directories.open.get_mut(&connection) else {
            return;
        };
        // What this keeper has answered to itself counts as well.
        if let Some(reason) = open.wrong() {
            return self.abandon(connection, &reason);
        }
        if open.known.is_none() && are_whole(&open.met) {
            match coupled.known(std::mem::take(&mut open.met)) {
                Ok(known) => {
                    open.known = Some(known);
                    let report = KeeperReport::KnowsIndices { connection };
                    self.actions.push_back(KeeperAction::Report(report));
                }
                Err(reason) => self.abandon(connection, &reason),
            }
        }
    }
}

impl Coupled {
    /// What each keeper is told of the sets in our share.
    fn answers(
        &self,
        heard: BTreeMap<KeeperId, HeardSets>,
    ) -> Result<Vec<(KeeperId, IndexWord)>, String> {
        let (mut sources, mut targets) = (SetsOfAxes::new(), SetsOfAxes::new());
        for heard in heard.into_values() {
            merge(&mut sources, heard.source.sets()?)?;
            merge(&mut targets, heard.target.sets()?)?;
        }
        let from = with_sets(&self.from, sources)?;
        let to = with_sets(&self.to, targets)?;
        let checked = self.mapping.check_share(&from, &to, self.share);
        checked.map_err(|error| error.to_string())?;
        let mut answers = Vec::new();
        for keeper in &self.keepers {
            for (end, side, keepers) in [
                (ArrayEnd::Target, PlanSide::Source, &self.source.keepers),
                (ArrayEnd::Source, PlanSide::Target, &self.target.keepers),
            ] {
                let mut met = RunsOfSets::new();
                let ranks = (0..).zip(keepers).filter(|(_, its)| *its == keeper);
                for (rank, _) in ranks {
                    let its = self.mapping.met_sets(&from, &to, side, rank, self.share);
                    gather(&mut met, &its);
                }
                let parts = IndexPart::of(&joined(met)?).collect::<Vec<_>>();
                let words = parts.into_iter().map(|part| IndexWord::Met { end, part });
                answers.extend(words.map(|word| (*keeper, word)));
            }
            answers.push((*keeper, IndexWord::AllMet));
        }
        Ok(answers)
    }

    /// Both layouts with all that our members need, from the answers of all shares.
    fn known(&self, heard: BTreeMap<KeeperId, HeardSets>) -> Result<(Layout, Layout), String> {
        let (mut sources, mut targets) = (RunsOfSets::new(), RunsOfSets::new());
        for heard in heard.into_values() {
            gather(&mut sources, &heard.source.sets()?);
            gather(&mut targets, &heard.target.sets()?);
        }
        let from = with_sets(&self.from, with_own(&self.from, joined(sources)?))?;
        let to = with_sets(&self.to, with_own(&self.to, joined(targets)?))?;
        Ok((from, to))
    }
}

/// Puts sets together of which each keeper has said the whole.
fn merge(known: &mut SetsOfAxes, more: SetsOfAxes) -> Result<(), String> {
    for (axis, sets) in more {
        let known = known.entry(axis).or_default();
        for (process, set) in sets {
            if known.get(&process).is_some_and(|other| *other != set) {
                return Err(format!(
                    "processes at the place {process} of axis {axis} of the grid list different indices there"
                ));
            }
            known.insert(process, set);
        }
    }
    Ok(())
}

/// Adds runs of sets of which each keeper has said some.
fn gather(known: &mut RunsOfSets, more: &SetsOfAxes) {
    for (axis, sets) in more {
        for (process, set) in sets {
            let place = known.entry((*axis, *process)).or_default();
            place.0 = set.length();
            place.1.extend_from_slice(set.runs());
        }
    }
}

fn joined(runs: RunsOfSets) -> Result<SetsOfAxes, String> {
    let mut made = SetsOfAxes::new();
    for ((axis, process), (length, runs)) in runs {
        let set = IndexSet::joined(length, runs).map_err(|error| error.to_string())?;
        made.entry(axis).or_default().insert(process, set);
    }
    Ok(made)
}

/// The sets of our own members, which are whole, and of others what is known.
fn with_own(layout: &Layout, mut known: SetsOfAxes) -> SetsOfAxes {
    for (axis, sets) in layout.index_sets() {
        let known = known.entry(axis).or_default();
        known.extend(sets.sets().map(|(process, set)| (process, set.clone())));
    }
    known
}

/// A layout with these index sets and no others.
fn with_sets(layout: &Layout, mut sets: SetsOfAxes) -> Result<Layout, String> {
    let mut made = layout.clone();
    for (axis, _) in layout.index_sets() {
        let sets = IndexSets::of_some(sets.remove(&axis).unwrap_or_default());
        let with = made.with_index_sets(axis, sets);
        made = with.map_err(|error| error.to_string())?;
    }
    match sets.keys().next() {
        None => Ok(made),
        Some(axis) => Err(format!("got index sets for axis {axis}, which has none")),
    }
}
