//! How one axis of an array is shared out among the processes of one dimension of a grid.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::index_sets::{IndexSet, IndexSets};
use crate::layout::LayoutError;
use crate::selection::AxisSelection;

/// How an axis is shared out. The names are those of HPF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisSharing {
    /// One block for each process, all of the same length but the last ones: `block`.
    Block,
    /// Blocks of this length, one for each process at most: `block(k)`.
    BlockOf(u64),
    /// Blocks of this length, for the processes in turn: `cyclic(k)`; `cyclic` has blocks of one.
    Cyclic(u64),
    /// The process p has the indices from `bounds[p]` to below `bounds[p + 1]`.
    Bounds(Vec<u64>),
    /// One process has all of it: `whole`, or `*`.
    Whole,
    /// Each process has all of it: `replicated`. One of them sends, and all receive.
    Replicated,
    /// Each process has a set of indices, in any order: the cells of an unstructured mesh, for example.
    Indices(IndexSets),
}

impl FromStr for AxisSharing {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let wrong = || LayoutError::Sharing(text.chars().take(64).collect());
        let (name, length) = match text.split_once('(') {
            None => (text, None),
            Some((name, rest)) => {
                let number = rest.strip_suffix(')').ok_or_else(wrong)?;
                let number = number.parse().ok().filter(|number| *number > 0);
                (name, Some(number.ok_or_else(wrong)?))
            }
        };
        match (name, length) {
            ("block", None) => Ok(Self::Block),
            ("block", Some(length)) => Ok(Self::BlockOf(length)),
            ("cyclic", length) => Ok(Self::Cyclic(length.unwrap_or(1))),
            ("whole" | "*", None) => Ok(Self::Whole),
            ("replicated", None) => Ok(Self::Replicated),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for AxisSharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => formatter.write_str("block"),
            Self::BlockOf(length) => write!(formatter, "block({length})"),
            Self::Cyclic(length) => write!(formatter, "cyclic({length})"),
            Self::Bounds(bounds) => write!(formatter, "bounds of {} blocks", bounds.len() - 1),
            Self::Whole => formatter.write_str("whole"),
            Self::Replicated => formatter.write_str("replicated"),
            Self::Indices(_) => formatter.write_str("indices"),
        }
    }
}

/// An axis that is shared out among so many processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) length: u64,
    pub(crate) processes: u32,
    /// Cells on both sides of a process's block that its memory has besides: what its neighbours own, if there are any.
    pub(crate) halo: u64,
    kind: AxisKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AxisKind {
    Cyclic { block: u64 },
    Bounds(Vec<u64>),
    Replicated,
    Indices(IndexSets),
}

/// Whose indices are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AxisRole {
    /// Those that a process owns: it sends them.
    Source,
    /// Those that a process has memory for: it receives them.
    Target,
}

/// Indices one after the other that one process has, as positions of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnedBlock {
    pub(crate) process: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where the first one is in that process's memory of this axis.
    pub(crate) local: u64,
}

impl Axis {
    pub(crate) fn new(
        sharing: &AxisSharing,
        length: u64,
        processes: u32,
        halo: u64,
    ) -> Result<Self, LayoutError> {
        let count = u64::from(processes);
        let cyclic = |block| AxisKind::Cyclic { block };
        let kind = match sharing {
            AxisSharing::Block => cyclic(length.div_ceil(count).max(1)),
            AxisSharing::BlockOf(block) => {
                if u128::from(*block) * u128::from(count) < u128::from(length) {
                    return Err(LayoutError::Holes {
                        block: *block,
                        processes,
                        length,
                    });
                }
                cyclic(*block)
            }
            AxisSharing::Cyclic(block) => cyclic((*block).max(1)),
            AxisSharing::Bounds(bounds) => {
                let is_rising = bounds.windows(2).all(|pair| pair[0] <= pair[1]);
                let is_whole = bounds.first() == Some(&0) && bounds.last() == Some(&length);
                if !is_rising || !is_whole || bounds.len() as u64 != count + 1 {
                    return Err(LayoutError::Bounds {
                        got: bounds.iter().take(16).copied().collect(),
                        processes,
                        length,
                    });
                }
                AxisKind::Bounds(bounds.clone())
            }
            AxisSharing::Whole if processes > 1 => {
                return Err(LayoutError::WholeOfSeveral { processes });
            }
            AxisSharing::Whole => cyclic(length.max(1)),
            AxisSharing::Replicated => AxisKind::Replicated,
            AxisSharing::Indices(sets) => AxisKind::Indices(of_axis(sets, length, processes)?),
        };
        let kind = match kind {
            _ if halo == 0 => kind,
            AxisKind::Cyclic { block }
                if u128::from(block) * u128::from(count) >= u128::from(length) =>
            {
                let bounds = (0..=count).map(|process| process.saturating_mul(block).min(length));
                AxisKind::Bounds(bounds.collect())
            }
            AxisKind::Bounds(bounds) => AxisKind::Bounds(bounds),
            AxisKind::Cyclic { .. } | AxisKind::Replicated | AxisKind::Indices(_) => {
                return Err(LayoutError::Halo(sharing.to_string()));
            }
        };
        Ok(Self {
            length,
            processes,
            halo,
            kind,
        })
    }

    /// How many indices a process owns.
    pub(crate) fn owned(&self, process: u32) -> u64 {
        match &self.kind {
            AxisKind::Cyclic { block } => {
                let period = u128::from(*block) * u128::from(self.processes);
                let (periods, rest) = (
                    u128::from(self.length) / period,
                    u128::from(self.length) % period,
                );
                let before = u128::from(process) * u128::from(*block);
                let rest = rest.saturating_sub(before).min(u128::from(*block));
                // It is no more than the axis has.
                (periods * u128::from(*block) + rest) as u64
            }
            AxisKind::Bounds(bounds) => {
                let process = process as usize;
                bounds[process + 1] - bounds[process]
            }
            AxisKind::Replicated => self.length,
            AxisKind::Indices(sets) => sets.set(process).map_or(0, IndexSet::length),
        }
    }

    /// How many cells a process's memory has.
    pub(crate) fn local_length(&self, process: u32) -> u64 {
        self.owned(process) + 2 * self.halo
    }

    /// The block length, where processes have blocks in turn.
    pub(crate) fn cyclic_block(&self) -> Option<u64> {
        match self.kind {
            AxisKind::Cyclic { block } => Some(block),
            _ => None,
        }
    }

    /// The sets of its processes, if it has such.
    pub(crate) fn index_sets(&self) -> Option<&IndexSets> {
        match &self.kind {
            AxisKind::Indices(sets) => Some(sets),
            _ => None,
        }
    }

    pub(crate) fn is_replicated(&self) -> bool {
        self.kind == AxisKind::Replicated
    }

    /// Whether of two processes this one sends to that one.
    pub(crate) fn sends(&self, source: u32, target: u32) -> bool {
        !self.is_replicated() || target % self.processes == source
    }

    /// The indices that a process owns, one after the other, as [`extents`](crate::Layout::extents) gives them.
    pub(crate) fn owned_ranges(&self, process: u32) -> Vec<Range<u64>> {
        if let Some(sets) = self.index_sets() {
            return sets.set(process).map_or(Vec::new(), IndexSet::ranges);
        }
        let view = AxisView {
            axis: self,
            selection: AxisSelection::all(self.length),
            role: AxisRole::Source,
        };
        let mut ranges = Vec::new();
        view.blocks_of(process, 0..self.length, |block| {
            ranges.push(block.start..block.end)
        });
        ranges
    }
}

/// Sets that fit an axis.
fn of_axis(sets: &IndexSets, length: u64, processes: u32) -> Result<IndexSets, LayoutError> {
    if let Some(got) = sets.processes().filter(|got| *got != processes) {
        return Err(LayoutError::IndexSets { got, processes });
    }
    for (process, set) in sets.sets() {
        if set.end() > length {
            return Err(LayoutError::Index {
                index: set.end() - 1,
                process,
                length,
            });
        }
        if process >= processes {
            return Err(LayoutError::IndexSets {
                got: process.saturating_add(1),
                processes,
            });
        }
    }
    Ok(sets.clone())
}

/// An axis seen through a selection: its positions, not its indices.
#[derive(Clone, Copy)]
pub(crate) struct AxisView<'a> {
    pub(crate) axis: &'a Axis,
    pub(crate) selection: AxisSelection,
    pub(crate) role: AxisRole,
}

impl<'a> AxisView<'a> {
    pub(crate) fn index(&self, position: u64) -> u64 {
        self.selection.start + self.selection.step * position
    }

    /// The first position whose index is not below this one.
    fn position(&self, index: u64) -> u64 {
        let beyond = index.saturating_sub(self.selection.start);
        let position = match self.selection.step {
            1 => beyond,
            step => beyond.div_ceil(step),
        };
        position.min(self.selection.count)
    }

    /// Where a process's block reaches, and where its first index lies in memory.
    fn bounded(&self, bounds: &[u64], process: u32) -> (Range<u64>, u64) {
        let (start, end) = (bounds[process as usize], bounds[process as usize + 1]);
        let own = self.axis.halo;
        let halo = match self.role {
            AxisRole::Target if start < end => own,
            _ => 0,
        };
        let first = start.saturating_sub(halo);
        let indices = first..(end + halo).min(self.axis.length);
        (indices, first + own - start)
    }

    /// The positions whose indices are these, of which the first is at `local` in the process's memory.
    fn block(
        &self,
        process: u32,
        within: &Range<u64>,
        indices: &Range<u64>,
        local: u64,
    ) -> Option<OwnedBlock> {
        let start = self.position(indices.start).max(within.start);
        let end = self.position(indices.end).min(within.end);
        (start < end).then(|| OwnedBlock {
            process,
            start,
            end,
            local: local + (self.index(start) - indices.start),
        })
    }

    /// What a process has of these positions, in ascending order. Calls `take` with one block after the other.
    pub(crate) fn blocks_of(
        self,
        process: u32,
        within: Range<u64>,
        mut take: impl FnMut(OwnedBlock),
    ) {
        if within.is_empty() {
            return;
        }
        let whole = match &self.axis.kind {
            AxisKind::Cyclic { block } => {
                let (block, processes) = (*block, u64::from(self.axis.processes));
                let first = self.index(within.start) / block;
                let last = self.index(within.end - 1) / block;
                let own = u64::from(process);
                if own > last {
                    return;
                }
                let rounds = first.saturating_sub(own).div_ceil(processes);
                for round in rounds..=(last - own) / processes {
                    let start = (round * processes + own) * block;
                    let (indices, local) = (start..start.saturating_add(block), round * block);
                    if let Some(found) = self.block(process, &within, &indices, local) {
                        take(found);
                    }
                }
                return;
            }
            AxisKind::Bounds(bounds) => self.bounded(bounds, process),
            AxisKind::Replicated => (0..self.axis.length, 0),
            AxisKind::Indices(sets) => {
                let (first, last) = (self.index(within.start), self.index(within.end - 1));
                let runs = sets.set(process).map_or(&[][..], IndexSet::runs);
                let begin = runs.partition_point(|run| run.start + run.length <= first);
                let runs = runs[begin..].iter().take_while(|run| run.start <= last);
                for run in runs {
                    let indices = run.start..run.start + run.length;
                    if let Some(found) = self.block(process, &within, &indices, run.local) {
                        take(found);
                    }
                }
                return;
            }
        };
        if let Some(found) = self.block(process, &within, &whole.0, whole.1) {
            take(found);
        }
    }

    /// What all processes have of these positions. Calls `take` with one block after the other.
    pub(crate) fn each_block(self, within: Range<u64>, mut take: impl FnMut(OwnedBlock)) {
        if within.is_empty() {
            return;
        }
        match &self.axis.kind {
            AxisKind::Cyclic { block } => {
                let processes = u64::from(self.axis.processes);
                let mut position = within.start;
                while position < within.end {
                    let number = self.index(position) / block;
                    let (mut round, mut process) = (number / processes, number % processes);
                    let mut start = number * block;
                    // Without steps beyond a block, each one has something: no need to divide for the next ones.
                    while position < within.end {
                        let indices = start..start.saturating_add(*block);
                        // Below the number of processes, of which there are no more than u32 counts.
                        let owner = process as u32;
                        let Some(found) = self.block(owner, &within, &indices, round * block)
                        else {
                            break;
                        };
                        position = found.end;
                        take(found);
                        start = indices.end;
                        process += 1;
                        if process == processes {
                            (round, process) = (round + 1, 0);
                        }
                    }
                }
            }
            AxisKind::Bounds(bounds) => {
                let (first, last) = (self.index(within.start), self.index(within.end - 1));
                let halo = match self.role {
                    AxisRole::Target => self.axis.halo,
                    AxisRole::Source => 0,
                };
                let begin = bounds[1..].partition_point(|end| end + halo <= first);
                for process in begin..bounds.len() - 1 {
                    if bounds[process] > last + halo {
                        break;
                    }
                    let number = process as u32;
                    let (indices, local) = self.bounded(bounds, number);
                    if let Some(found) = self.block(number, &within, &indices, local) {
                        take(found);
                    }
                }
            }
            AxisKind::Replicated => {
                for process in 0..self.axis.processes {
                    let indices = 0..self.axis.length;
                    if let Some(found) = self.block(process, &within, &indices, 0) {
                        take(found);
                    }
                }
            }
            AxisKind::Indices(sets) => {
                let (first, last) = (self.index(within.start), self.index(within.end - 1));
                for run in sets.between(first, last) {
                    let indices = run.start..run.end;
                    if let Some(found) = self.block(run.process, &within, &indices, run.local) {
                        take(found);
                    }
                }
            }
        }
    }

    /// After how many positions the pattern of processes comes again, and how far local indices are then; none if it doesn't.
    pub(crate) fn period(&self) -> Option<(u64, u64)> {
        let block = self.axis.cyclic_block()?;
        let period = block.checked_mul(u64::from(self.axis.processes))?;
        let step = self.selection.step;
        let shared = greatest_common_divisor(period, step);
        Some((period / shared, (step / shared).checked_mul(block)?))
    }

    /// Its blocks in turn as if it had no steps, if its steps fit them.
    pub(crate) fn in_turn(&self) -> Option<BlocksInTurn> {
        let AxisSelection { start, step, .. } = self.selection;
        let block = self.axis.cyclic_block()?;
        (block % step == 0).then(|| BlocksInTurn {
            block: block / step,
            processes: u64::from(self.axis.processes),
            phase: start / step,
            local_block: block,
            step,
            rest: start % step,
        })
    }
}

/// Blocks for processes in turn, of positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlocksInTurn {
    pub(crate) block: u64,
    pub(crate) processes: u64,
    /// The position 0 is that far behind the beginning of the first process's first block.
    phase: u64,
    local_block: u64,
    step: u64,
    rest: u64,
}

/// Runs of one process, one period apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegularRuns {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) count: u64,
    pub(crate) local: u64,
}

impl BlocksInTurn {
    pub(crate) fn period(&self) -> u64 {
        self.block * self.processes
    }

    /// How far local indices are from one run to the next.
    pub(crate) fn local_stride(&self) -> u64 {
        self.local_block
    }

    fn local(&self, position: u64) -> u64 {
        let place = self.phase + position;
        place / self.period() * self.local_block + place % self.block * self.step + self.rest
    }

    /// What a process has of these positions: a first part of a block, whole blocks, a last part.
    pub(crate) fn runs_of(&self, process: u32, within: &Range<u64>) -> [Option<RegularRuns>; 3] {
        let (period, block) = (self.period(), self.block);
        let (from, to) = (self.phase + within.start, self.phase + within.end);
        let first = u64::from(process) * block;
        // The first of its blocks that ends behind the beginning.
        let round = (from + 1).saturating_sub(first + block).div_ceil(period);
        let start = first + round * period;
        let run = |start: u64, end: u64, count: u64| {
            let position = start - self.phase;
            (start < end && count > 0).then(|| RegularRuns {
                start: position,
                length: end - start,
                count,
                local: self.local(position),
            })
        };
        if start >= to {
            return [None; 3];
        }
        let (head, whole) = if start < from {
            (run(from, (start + block).min(to), 1), start + period)
        } else {
            (None, start)
        };
        let count = to.saturating_sub(whole + block - 1).div_ceil(period);
        let behind = whole + count * period;
        [
            head,
            run(whole, whole + block, count),
            run(behind, (behind + block).min(to), 1),
        ]
    }
}

pub(crate) fn greatest_common_divisor(mut first: u64, mut second: u64) -> u64 {
    while second > 0 {
        (first, second) = (second, first % second);
    }
    first
}
