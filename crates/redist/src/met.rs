//! What one process has to know of the other program's index sets: the runs that meet its own part.

use std::collections::BTreeMap;

use crate::axis::{AxisRole, AxisView};
use crate::index_sets::{IndexRun, IndexSet};
use crate::layout::Layout;
use crate::plan::{Mapping, PlanSide};

/// Of each axis with index sets, those of the processes by their coordinates.
pub type SetsOfAxes = BTreeMap<usize, BTreeMap<u32, IndexSet>>;

impl Mapping {
    /// The parts of the other end's index sets that meet what a process has: all that its plan needs of them. Costs the process's own
    /// runs, each with a search, and the runs that it meets.
    #[must_use]
    pub fn met_sets(
        &self,
        source: &Layout,
        target: &Layout,
        side: PlanSide,
        rank: u32,
    ) -> SetsOfAxes {
        let mut met = SetsOfAxes::new();
        for (target_axis, source_axis) in self.permutation.iter().copied().enumerate() {
            let from = AxisView {
                axis: &source.axes[source_axis],
                selection: self.from.axes()[source_axis],
                role: AxisRole::Source,
            };
            let to = AxisView {
                axis: &target.axes[target_axis],
                selection: self.to.axes()[target_axis],
                role: AxisRole::Target,
            };
            let (own, process, other, axis) = match side {
                PlanSide::Source => (from, source.coordinates(rank)[source_axis], to, target_axis),
                PlanSide::Target => (to, target.coordinates(rank)[target_axis], from, source_axis),
            };
            if other.axis.index_sets().is_some() {
                met.insert(axis, met_sets(own, process, other));
            }
        }
        met
    }
}

fn met_sets(own: AxisView<'_>, process: u32, other: AxisView<'_>) -> BTreeMap<u32, IndexSet> {
    let mut runs: BTreeMap<u32, Vec<IndexRun>> = BTreeMap::new();
    own.blocks_of(process, 0..own.selection.count, |block| {
        other.each_block(block.start..block.end, |met| {
            let start = other.index(met.start);
            let length = other.index(met.end - 1) + 1 - start;
            let local = met.local;
            let its = runs.entry(met.process).or_default();
            match its.last_mut() {
                Some(last)
                    if (last.start + last.length, last.local + last.length) == (start, local) =>
                {
                    last.length += length;
                }
                _ => its.push(IndexRun {
                    start,
                    length,
                    local,
                }),
            }
        });
    });
    let sets = other.axis.index_sets();
    let runs = runs.into_iter().filter_map(|(process, runs)| {
        let set = sets?.set(process)?;
        Some((process, set.part(runs)))
    });
    runs.collect()
}
