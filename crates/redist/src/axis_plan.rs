//! What one process has to do with the processes of another program, on one axis.
//!
//! Blocks for processes in turn meet in a pattern that comes again after the least common multiple of both periods, so that only one
//! period is looked at. Where one side's blocks are longer than the other side's period, what meets within a block is regular in itself.
//! Whatever way is taken, by whichever end: the cells that move between two processes come in the order of their indices.

use std::ops::Range;

use crate::axis::{
    Axis, AxisRole, AxisView, BlocksInTurn, OwnedBlock, RegularRuns, greatest_common_divisor,
};
use crate::plan::PlanSide;
use crate::selection::AxisSelection;

/// Runs of cells, `count` of them, that lie in both memories one stride after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedRuns {
    /// The first cell of the first run in the source's memory of this axis.
    pub source: u64,
    /// The same in the target's memory.
    pub target: u64,
    /// Cells of each run; they are the plan's steps apart.
    pub length: u64,
    /// How many runs.
    pub count: u64,
    /// From one run to the next at the source.
    pub source_stride: u64,
    /// The same at the target.
    pub target_stride: u64,
}

/// A process of the other program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisPartner {
    /// Its coordinate on this axis.
    pub process: u32,
    /// How many cells move.
    pub elements: u64,
    /// What comes in each period.
    pattern: Range<usize>,
    /// What is left behind the last whole one.
    rest: Range<usize>,
}

/// One process's part, on one axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisPlan {
    partners: Vec<AxisPartner>,
    runs: Vec<StridedRuns>,
    rests: Vec<StridedRuns>,
    repeats: Repeats,
    /// From one cell of a run to the next, at the source.
    pub source_step: u64,
    /// The same at the target.
    pub target_step: u64,
}

/// How often a pattern comes, and how far both memories are from one time to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repeats {
    count: u64,
    source: u64,
    target: u64,
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            count: 1,
            source: 0,
            target: 0,
        }
    }
}

/// A run with whom it is shared, on the way to a plan.
struct FoundRuns {
    process: u32,
    runs: StridedRuns,
}

/// One axis of a mapping: what the source sends of it, and where that goes at the target.
#[derive(Clone, Copy)]
pub(crate) struct MappedAxis<'a> {
    pub(crate) source: &'a Axis,
    pub(crate) from: AxisSelection,
    pub(crate) target: &'a Axis,
    pub(crate) to: AxisSelection,
}

/// Both ends as positions, with one of them being our own.
struct AxisSearch<'a> {
    own: AxisView<'a>,
    other: AxisView<'a>,
    side: PlanSide,
    process: u32,
    positions: u64,
    found: Vec<FoundRuns>,
    rests: Vec<FoundRuns>,
    repeats: Repeats,
}

/// How the runs are found, and what that costs.
#[derive(Clone, Copy)]
enum SearchWay {
    /// One block of our own after the other, up to this position; from there on all comes again.
    Walk(u64),
    /// In each block of our own, the runs of each other process.
    WithinOwn(BlocksInTurn),
    /// In each block of the others, our own runs.
    WithinOther(BlocksInTurn),
}

impl AxisPlan {
    pub(crate) fn new(axis: MappedAxis<'_>, side: PlanSide, process: u32) -> Self {
        let source = AxisView {
            axis: axis.source,
            selection: axis.from,
            role: AxisRole::Source,
        };
        let target = AxisView {
            axis: axis.target,
            selection: axis.to,
            role: AxisRole::Target,
        };
        let (own, other) = match side {
            PlanSide::Source => (source, target),
            PlanSide::Target => (target, source),
        };
        let mut search = AxisSearch {
            own,
            other,
            side,
            process,
            positions: axis.from.count,
            found: Vec::new(),
            rests: Vec::new(),
            repeats: Repeats::default(),
        };
        search.run();
        if axis.source.is_replicated() {
            let is_ours = |one: &FoundRuns| match side {
                PlanSide::Source => axis.source.sends(process, one.process),
                PlanSide::Target => axis.source.sends(one.process, process),
            };
            search.found.retain(is_ours);
        }
        let mut plan = Self {
            partners: Vec::with_capacity(search.found.len()),
            runs: Vec::with_capacity(search.found.len()),
            rests: Vec::with_capacity(search.rests.len()),
            repeats: search.repeats,
            source_step: axis.from.step,
            target_step: axis.to.step,
        };
        by_process(&search.found, |one| plan.add(one));
        plan.add_rests(&search.rests);
        plan
    }

    fn add(&mut self, &FoundRuns { process, runs }: &FoundRuns) {
        let elements = runs.length * runs.count * self.repeats.count;
        let steps = (self.source_step, self.target_step);
        match self.partners.last_mut() {
            Some(last) if last.process == process => {
                last.elements += elements;
                if !join_last(&mut self.runs, &runs, steps) {
                    self.runs.push(runs);
                    last.pattern.end += 1;
                }
            }
            _ => {
                let start = self.runs.len();
                self.runs.push(runs);
                self.partners.push(AxisPartner {
                    process,
                    elements,
                    pattern: start..start + 1,
                    rest: 0..0,
                });
            }
        }
    }

    /// Whoever has something in the rest has something in the pattern.
    fn add_rests(&mut self, rests: &[FoundRuns]) {
        let steps = (self.source_step, self.target_step);
        let mut partners = self.partners.iter_mut().peekable();
        by_process(rests, |&FoundRuns { process, runs }| {
            while partners
                .next_if(|partner| partner.process < process)
                .is_some()
            {}
            let Some(partner) = partners.peek_mut() else {
                return;
            };
            partner.elements += runs.length * runs.count;
            if partner.rest.is_empty() {
                partner.rest = self.rests.len()..self.rests.len();
            } else if join_last(&mut self.rests, &runs, steps) {
                return;
            }
            self.rests.push(runs);
            partner.rest.end += 1;
        });
    }

    /// Whom there is something to do with, in ascending order.
    #[must_use]
    pub fn partners(&self) -> &[AxisPartner] {
        &self.partners
    }

    /// The cells that move between us and a partner, in the order of their indices.
    pub fn runs_with(&self, partner: &AxisPartner) -> impl Iterator<Item = StridedRuns> + Clone {
        let pattern = self.runs.get(partner.pattern.clone()).unwrap_or_default();
        let rest = self.rests.get(partner.rest.clone()).unwrap_or_default();
        let repeats = self.repeats;
        let repeated = (0..repeats.count).flat_map(move |number| {
            pattern.iter().map(move |runs| StridedRuns {
                source: runs.source + number * repeats.source,
                target: runs.target + number * repeats.target,
                ..*runs
            })
        });
        repeated.chain(rest.iter().copied())
    }
}

/// Calls `take` with the runs of one process after the other's, those of each in the order in which they were found.
fn by_process(found: &[FoundRuns], mut take: impl FnMut(&FoundRuns)) {
    if found.is_sorted_by_key(|one| one.process) {
        return found.iter().for_each(take);
    }
    let keys = found.iter().zip(0_u32..);
    let mut keys: Vec<u64> = keys
        .map(|(one, place)| u64::from(one.process) << 32 | u64::from(place))
        .collect();
    keys.sort_unstable();
    for key in keys {
        take(&found[(key & u64::from(u32::MAX)) as usize]);
    }
}

fn join_last(runs: &mut [StridedRuns], next: &StridedRuns, steps: (u64, u64)) -> bool {
    runs.last_mut().is_some_and(|last| last.join(next, steps))
}

impl StridedRuns {
    /// Takes in what goes on where this ends. Says whether that is so.
    fn join(&mut self, next: &Self, (source_step, target_step): (u64, u64)) -> bool {
        if self.count == 1 && next.count == 1 {
            let end = (
                self.source + self.length * source_step,
                self.target + self.length * target_step,
            );
            if end == (next.source, next.target) {
                self.length += next.length;
                return true;
            }
        }
        let is_behind = next.source >= self.source && next.target >= self.target;
        if self.length != next.length || !is_behind {
            return false;
        }
        let strides = if self.count == 1 {
            (next.source - self.source, next.target - self.target)
        } else {
            (self.source_stride, self.target_stride)
        };
        let end = (
            self.source + strides.0 * self.count,
            self.target + strides.1 * self.count,
        );
        let is_next = end == (next.source, next.target)
            && (next.count == 1 || strides == (next.source_stride, next.target_stride));
        if is_next {
            (self.source_stride, self.target_stride) = strides;
            self.count += next.count;
        }
        is_next
    }
}

impl AxisSearch<'_> {
    fn run(&mut self) {
        match self.way() {
            SearchWay::Walk(until) => self.walk(until),
            SearchWay::WithinOwn(other) => self.within_own(other),
            SearchWay::WithinOther(own) => self.within_other(own),
        }
    }

    /// The way with the fewest steps.
    fn way(&self) -> SearchWay {
        let period = self.period().map_or(self.positions, |(period, ..)| period);
        let until = period.min(self.positions);
        let (Some(own), Some(other)) = (self.own.in_turn(), self.other.in_turn()) else {
            return SearchWay::Walk(until);
        };
        let blocks = |positions: u64, period: u64| u128::from(positions / period + 1);
        let in_block = |block: u64, other: u64| u128::from(block / other + 2);
        let walk = blocks(until, own.period()) * in_block(own.block, other.block);
        let mut best = (walk, SearchWay::Walk(until));
        if own.block >= other.period() {
            let cost = blocks(self.positions, own.period()) * u128::from(3 * other.processes);
            if cost < best.0 {
                best = (cost, SearchWay::WithinOwn(other));
            }
        }
        if other.block >= own.period() {
            let cost = blocks(self.positions, other.block) * 3;
            if cost < best.0 {
                best = (cost, SearchWay::WithinOther(own));
            }
        }
        best.1
    }

    /// After how many positions all comes again, and how far both memories are then.
    fn period(&self) -> Option<(u64, u64, u64)> {
        let (own, own_local) = self.own.period()?;
        let (other, other_local) = self.other.period()?;
        let shared = greatest_common_divisor(own, other);
        let period = (own / shared).checked_mul(other)?;
        let own_local = own_local.checked_mul(other / shared)?;
        Some((period, own_local, other_local.checked_mul(own / shared)?))
    }

    fn walk(&mut self, until: u64) {
        let again = self.period().filter(|(period, ..)| *period == until);
        let (mut rest, mut skipped) = (0, (0, 0));
        if let Some((period, own, other)) = again {
            let count = self.positions / period;
            rest = self.positions % period;
            skipped = (count * own, count * other);
            let (source, target) = match self.side {
                PlanSide::Source => (own, other),
                PlanSide::Target => (other, own),
            };
            self.repeats = Repeats {
                count,
                source,
                target,
            };
        }
        let (found, rests, side) = (&mut self.found, &mut self.rests, self.side);
        let (process, step) = (self.process, self.own.selection.step);
        let others = self.other;
        self.own.blocks_of(process, 0..until, |own| {
            others.each_block(own.start..own.end, |other| {
                let here = own.local + (other.start - own.start) * step;
                let runs = oriented(
                    side,
                    (here, 0),
                    (other.local, 0),
                    other.end - other.start,
                    1,
                );
                found.push(FoundRuns {
                    process: other.process,
                    runs,
                });
                if other.start < rest {
                    let (here, there) = (here + skipped.0, other.local + skipped.1);
                    let length = other.end.min(rest) - other.start;
                    let runs = oriented(side, (here, 0), (there, 0), length, 1);
                    rests.push(FoundRuns {
                        process: other.process,
                        runs,
                    });
                }
            });
        });
    }

    fn within_own(&mut self, other: BlocksInTurn) {
        let (side, step, processes) = (
            self.side,
            self.own.selection.step,
            self.other.axis.processes,
        );
        let found = &mut self.found;
        self.own.blocks_of(self.process, 0..self.positions, |own| {
            for process in 0..processes {
                let runs = other.runs_of(process, &(own.start..own.end));
                for run in runs.into_iter().flatten() {
                    let RegularRuns {
                        start,
                        length,
                        count,
                        local,
                    } = run;
                    let here = own.local + (start - own.start) * step;
                    let here = (here, other.period() * step);
                    let there = (local, other.local_stride());
                    let runs = oriented(side, here, there, length, count);
                    found.push(FoundRuns { process, runs });
                }
            }
        });
    }

    fn within_other(&mut self, own: BlocksInTurn) {
        let (side, process, step) = (self.side, self.process, self.other.selection.step);
        let found = &mut self.found;
        let take = |other: OwnedBlock| {
            let runs = own.runs_of(process, &(other.start..other.end));
            for run in runs.into_iter().flatten() {
                let there = other.local + (run.start - other.start) * step;
                let there = (there, own.period() * step);
                let here = (run.local, own.local_stride());
                let runs = oriented(side, here, there, run.length, run.count);
                found.push(FoundRuns {
                    process: other.process,
                    runs,
                });
            }
        };
        self.other.each_block(0..self.positions, take);
    }
}

/// Runs of ours and theirs, each with start and stride, as source and target.
fn oriented(
    side: PlanSide,
    own: (u64, u64),
    other: (u64, u64),
    length: u64,
    count: u64,
) -> StridedRuns {
    let (source, target) = match side {
        PlanSide::Source => (own, other),
        PlanSide::Target => (other, own),
    };
    let is_one = count == 1;
    StridedRuns {
        source: source.0,
        target: target.0,
        length,
        count,
        source_stride: if is_one { 0 } else { source.1 },
        target_stride: if is_one { 0 } else { target.1 },
    }
}
