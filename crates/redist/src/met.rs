//! What one process has to know of the other program's index sets: the runs that meet its own part.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::axis::{AxisRole, AxisView};
use crate::index_sets::{IndexRun, IndexSet};
use crate::layout::Layout;
use crate::plan::{Mapping, PlanSide};

/// Of each axis with index sets, those of the processes by their coordinates.
pub type SetsOfAxes = BTreeMap<usize, BTreeMap<u32, IndexSet>>;

/// One of so many equal shares of what is selected of each axis: who knows all sets there can look at it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisShare {
    /// Which.
    pub number: u32,
    /// Of how many, at least 1.
    pub of: u32,
}

impl AxisShare {
    /// All of it.
    pub const WHOLE: Self = Self { number: 0, of: 1 };

    /// Its positions, of so many.
    pub(crate) fn positions(self, count: u64) -> Range<u64> {
        let place = |number: u32| {
            let share = u128::from(count) * u128::from(number) / u128::from(self.of.max(1));
            // It is no more than the count.
            share as u64
        };
        place(self.number.min(self.of))..place(self.number.saturating_add(1).min(self.of))
    }
}

impl Mapping {
    /// A layout's index sets as far as they have to do with a share: `side` says which end's they are.
    #[must_use]
    pub fn cut_sets(&self, layout: &Layout, side: PlanSide, share: AxisShare) -> SetsOfAxes {
        let selections = match side {
            PlanSide::Source => self.from.axes(),
            PlanSide::Target => self.to.axes(),
        };
        let axes = layout.index_sets().map(|(axis, sets)| {
            let selection = selections[axis];
            let positions = share.positions(selection.count);
            let indices = match positions.is_empty() {
                true => 0..0,
                false => {
                    let index = |position: u64| selection.start + selection.step * position;
                    index(positions.start)..index(positions.end - 1) + 1
                }
            };
            let cut = sets
                .sets()
                .map(|(process, set)| (process, set.within(&indices)));
            (axis, cut.collect())
        });
        axes.collect()
    }
    /// The parts of the other end's index sets that meet what a process has in a share: of all shares all that its plan needs of them. Costs the process's own
    /// runs, each with a search, and the runs that it meets.
    #[must_use]
    pub fn met_sets(
        &self,
        source: &Layout,
        target: &Layout,
        side: PlanSide,
        rank: u32,
        share: AxisShare,
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
                met.insert(axis, met_sets(own, process, other, share));
            }
        }
        met
    }
}

fn met_sets(
    own: AxisView<'_>,
    process: u32,
    other: AxisView<'_>,
    share: AxisShare,
) -> BTreeMap<u32, IndexSet> {
    let positions = share.positions(own.selection.count);
    let mut runs: BTreeMap<u32, Vec<IndexRun>> = BTreeMap::new();
    own.blocks_of(process, positions, |block| {
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
