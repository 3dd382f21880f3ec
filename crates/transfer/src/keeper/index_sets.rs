//! Index sets of members' arrays. A member says its own; it is told of the runs of others that meet its own part, and of no more.

use std::collections::BTreeMap;

use exoskel_redist::{AxisShare, IndexSet, IndexSets, Layout, Mapping, PlanSide};

use super::{Keeper, KeeperAction, KeeperMessage, KeeperReport, MemberId, Part};
use crate::attach::{ArrayEnd, bounded};
use crate::coupling::Variable;
use crate::description::LayoutDescription;
use crate::indices::{INDEX_RUNS_OF_KEEPER_MAX, IndexPart};
use crate::{ConnectionTerms, VARIABLES_MAX};

/// A member's own set on each axis of an array that has such.
pub(super) type OwnSets = BTreeMap<usize, IndexSet>;

impl Keeper {
    /// A member says a part of its own index set, before it describes the array.
    pub(super) fn hear_indices(&mut self, id: MemberId, name: String, part: &IndexPart) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        let is_new = !member.said_sets.contains_key(&name);
        let is_over = member.arrays.contains_key(&name)
            || member.asked.contains_key(&name)
            || (is_new && member.said_sets.len() >= VARIABLES_MAX);
        if is_over {
            return self.refuse_and_close(id, "got a message that isn't due".to_owned());
        }
        let said = member.said_sets.entry(name).or_default();
        match said.take(part) {
            Ok(count) => self.index_runs += count,
            Err(error) => return self.refuse_and_close(id, error),
        }
        if self.index_runs > INDEX_RUNS_OF_KEEPER_MAX {
            let reason = format!(
                "got index sets of {} runs for the processes of this host, expected at most {INDEX_RUNS_OF_KEEPER_MAX}",
                self.index_runs
            );
            self.refuse_and_close(id, reason);
        }
    }

    /// Takes the sets that a member has said for the array that it describes now.
    pub(super) fn take_sets(
        &mut self,
        id: MemberId,
        name: &str,
        description: &LayoutDescription,
    ) -> Result<(), String> {
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(());
        };
        let said = member.said_sets.remove(name).unwrap_or_default();
        // What is wrong with the layout itself the coupler says.
        let Ok(layout) = description.layout() else {
            return Ok(());
        };
        let mut said = said.sets()?;
        let coordinates = layout.coordinates(member.rank);
        let mut own = OwnSets::new();
        for (axis, _) in layout.index_sets() {
            let process = coordinates[axis];
            let mut sets = said.remove(&axis).unwrap_or_default();
            let Some(set) = sets.remove(&process) else {
                return Err(format!(
                    "rank {} of {} has not said its indices on axis {axis} of {name:?}",
                    member.rank, member.program
                ));
            };
            own.insert(axis, set);
        }
        with_own_sets(layout, member.rank, &own).map_err(|error| {
            format!(
                "rank {} of {} describes {name:?}: {error}",
                member.rank, member.program
            )
        })?;
        member.sets.insert(name.to_owned(), own);
        Ok(())
    }

    /// Both layouts of a connection with the index sets of all processes, which are all here.
    pub(super) fn with_index_sets(
        &self,
        terms: &ConnectionTerms,
        source: Layout,
        target: Layout,
    ) -> Result<(Layout, Layout, Mapping), String> {
        let both = || format!("{} is {source}, {} is {target}", terms.from, terms.to);
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", both());
        let from = self.with_sets_of(&terms.from, &source);
        let from = from.map_err(|error| wrong(&error))?;
        let to = self.with_sets_of(&terms.to, &target);
        let to = to.map_err(|error| wrong(&error))?;
        let mapping = terms.mapping(&from, &to).map_err(|error| wrong(&error))?;
        let checked = mapping.check_owners(&from, &to);
        checked.map_err(|error| wrong(&error))?;
        Ok((from, to, mapping))
    }

    /// A layout with the sets of all processes that are here.
    pub(super) fn with_sets_of(&self, array: &Variable, layout: &Layout) -> Result<Layout, String> {
        let mut made = layout.clone();
        let axes: Vec<usize> = layout.index_sets().map(|(axis, _)| axis).collect();
        for axis in axes {
            // Processes of one coordinate have one set, which the first of them has said.
            let mut known: BTreeMap<u32, (u32, &IndexSet)> = BTreeMap::new();
            for member in self.members.values() {
                let sets = member.sets.get(&array.name);
                let set = sets.and_then(|sets| sets.get(&axis));
                let Some(set) = set.filter(|_| member.program == array.program) else {
                    continue;
                };
                let process = layout.coordinates(member.rank)[axis];
                let (first, first_set) = *known.entry(process).or_insert((member.rank, set));
                if first_set != set {
                    let (one, other) = (first.min(member.rank), first.max(member.rank));
                    return Err(format!(
                        "rank {one} and rank {other} of {} have the same place on axis {axis} of the grid, and list different indices there",
                        array.program
                    ));
                }
            }
            let sets = known.into_iter();
            let sets = sets.map(|(process, (_, set))| (process, set.clone()));
            made = made
                .with_index_sets(axis, IndexSets::of_some(sets.collect()))
                .map_err(|error| error.to_string())?;
        }
        Ok(made)
    }

    /// A connection can't be, as only who has the index sets can tell.
    pub(super) fn report_unfit(&mut self, connection: u32, reason: String) {
        let reason = bounded(reason);
        let report = KeeperReport::Unfit { connection, reason };
        self.actions.push_back(KeeperAction::Report(report));
    }

    /// Tells a member which runs of the sets at the other end meet its own part.
    pub(super) fn tell_indices(
        &mut self,
        connection: u32,
        part: &Part,
        rank: u32,
        side: PlanSide,
        (source, target, mapping): (&Layout, &Layout, &Mapping),
    ) {
        let own = match side {
            PlanSide::Source => ArrayEnd::Source,
            PlanSide::Target => ArrayEnd::Target,
        };
        let met = mapping.met_sets(source, target, side, rank, AxisShare::WHOLE);
        for said in IndexPart::of(&met) {
            let message = KeeperMessage::Indices {
                connection,
                own,
                part: said,
            };
            self.send(part.member, message, None);
        }
    }
}

/// A layout with one process's own sets.
pub(super) fn with_own_sets(
    mut layout: Layout,
    rank: u32,
    own: &OwnSets,
) -> Result<Layout, exoskel_redist::LayoutError> {
    let coordinates = layout.coordinates(rank);
    for (axis, set) in own {
        let sets = BTreeMap::from([(coordinates[*axis], set.clone())]);
        layout = layout.with_index_sets(*axis, IndexSets::of_some(sets))?;
    }
    Ok(layout)
}
