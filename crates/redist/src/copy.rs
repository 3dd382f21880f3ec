//! Copies of what a message has: between two memories, or through bytes in a row.
//!
//! Bytes in a row have the elements in the order of the target's indices, the last axis fastest, and in the source's byte order, whichever
//! end computed the plan.

use std::ops::Range;

use crate::axis_plan::StridedRuns;
use crate::plan::PlannedMessage;

mod blocks;

pub use blocks::PartBlocks;

/// A message's copy, worked out once for as many versions as there are. Running it allocates nothing.
#[derive(Clone, Debug)]
pub struct StridedCopy {
    axes: Vec<CopiedAxis>,
    packed: PackedSide,
    /// Bytes of an element.
    element: usize,
    /// Bytes of what changes its byte order; 1 if nothing does.
    swapped: usize,
}

/// Runs of one axis as bytes of both ends.
#[derive(Clone, Debug)]
struct CopiedAxis {
    /// Which axis of the source's it is.
    source_axis: usize,
    runs: Vec<StridedRuns>,
    source_step: u64,
    target_step: u64,
}

/// Which of two memories has no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackedSide {
    Neither,
    Source,
    Target,
}

impl StridedCopy {
    /// From the source's memory to the target's. The strides go from one cell to the next on each axis, in bytes.
    #[must_use]
    pub fn between(message: PlannedMessage<'_>, source: &[u64], target: &[u64]) -> Self {
        let mut copy = Self::new(message, PackedSide::Neither, Some(source), Some(target));
        // No order is asked for here: what is near in the target's memory comes one after the other.
        copy.axes
            .sort_by_key(|axis| std::cmp::Reverse(axis.target_step));
        copy
    }

    /// From one memory of the target's layout to another one: what has come of a message.
    #[must_use]
    pub fn at_target(message: PlannedMessage<'_>, target: &[u64]) -> Self {
        let mut copy = Self::between(message, &vec![0; target.len()], target);
        for axis in &mut copy.axes {
            axis.source_step = axis.target_step;
            for runs in &mut axis.runs {
                (runs.source, runs.source_stride) = (runs.target, runs.target_stride);
            }
        }
        copy.swapped = 1;
        copy
    }

    /// From the source's memory to bytes in a row.
    #[must_use]
    pub fn packing(message: PlannedMessage<'_>, source: &[u64]) -> Self {
        Self::new(message, PackedSide::Target, Some(source), None)
    }

    /// From bytes in a row to the target's memory.
    #[must_use]
    pub fn unpacking(message: PlannedMessage<'_>, target: &[u64]) -> Self {
        Self::new(message, PackedSide::Source, None, Some(target))
    }

    /// Where one side is packed, its places are counted while it is copied.
    fn new(
        message: PlannedMessage<'_>,
        packed: PackedSide,
        source: Option<&[u64]>,
        target: Option<&[u64]>,
    ) -> Self {
        let axes = message.axes().enumerate();
        let axes = axes.map(|(number, axis)| {
            let source = source.map_or(0, |strides| strides[axis.source_axis]);
            let target = target.map_or(0, |strides| strides[number]);
            let in_bytes = |runs: StridedRuns| StridedRuns {
                source: runs.source * source,
                target: runs.target * target,
                source_stride: runs.source_stride * source,
                target_stride: runs.target_stride * target,
                ..runs
            };
            CopiedAxis {
                source_axis: axis.source_axis,
                runs: axis.plan.runs_with(axis.partner).map(in_bytes).collect(),
                source_step: axis.plan.source_step * source,
                target_step: axis.plan.target_step * target,
            }
        });
        Self {
            axes: axes.collect(),
            packed,
            element: message.element_bytes() as usize,
            swapped: match packed {
                PackedSide::Target => 1,
                PackedSide::Neither | PackedSide::Source => message.swapped_bytes() as usize,
            },
        }
    }

    /// Cuts it into pieces of at most so many bytes, or of one element. The bytes of one piece stand behind those of the one before.
    ///
    /// # Panics
    /// If neither side is bytes in a row.
    #[must_use]
    pub fn cut(self, bytes_max: u64) -> CutCopy {
        assert!(
            self.packed != PackedSide::Neither,
            "pieces of a copy between two memories have no order"
        );
        let mut inner = self.element as u64;
        let mut axis = self.axes.len().saturating_sub(1);
        while axis > 0 && inner * self.axes[axis].len() <= bytes_max {
            inner *= self.axes[axis].len();
            axis -= 1;
        }
        let cells = (bytes_max / inner).max(1);
        let length = self.axes.get(axis).map_or(1, CopiedAxis::len);
        let chunks = length.div_ceil(cells).max(1);
        let before: u64 = self.axes[..axis].iter().map(CopiedAxis::len).product();
        CutCopy {
            copy: self,
            axis,
            cells,
            chunks,
            count: before * chunks,
        }
    }

    /// How many bytes it copies.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let cells: u64 = self.axes.iter().map(CopiedAxis::len).product();
        cells * self.element as u64
    }

    /// The stretches of the source's memory that it makes bytes in a row of, if they are in that order and not changed: who can send from
    /// where they lie needn't run it. Stretches that touch are one. None for a copy of another kind.
    #[must_use]
    pub fn stretches(&self) -> Option<Vec<Range<u64>>> {
        let last = self.axes.last();
        let step = last.map_or(self.element as u64, |axis| axis.source_step);
        if self.packed != PackedSide::Target || self.swapped != 1 || step != self.element as u64 {
            return None;
        }
        let mut stretches = Vec::new();
        add_stretches(&self.axes, self.element as u64, 0, &mut stretches);
        Some(stretches)
    }

    /// Copies from a memory, or bytes in a row, to the other one.
    ///
    /// # Panics
    /// If a memory is smaller than its layout says, or the bytes in a row are fewer than the message has.
    pub fn run(&self, source: &[u8], target: &mut [u8]) {
        self.run_by(source, target, |from, to| to.copy_from_slice(from));
    }

    /// As [`run`](Self::run), where something else copies what lies in a row at both ends: bytes to as many bytes.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_by(&self, source: &[u8], target: &mut [u8], copy_row: impl Fn(&[u8], &mut [u8])) {
        let mut copying = Copying {
            copy: self,
            copy_row,
            source,
            target,
            done: 0,
        };
        copying.axes(&self.axes, 0, 0);
    }
}

fn add_stretches(axes: &[CopiedAxis], element: u64, from: u64, found: &mut Vec<Range<u64>>) {
    match axes {
        [] => add_stretch(from..from + element, found),
        [last] => {
            for runs in &last.runs {
                for number in 0..runs.count {
                    let begin = from + runs.source + number * runs.source_stride;
                    add_stretch(begin..begin + runs.length * element, found);
                }
            }
        }
        [first, rest @ ..] => {
            for (cell, _) in first.cells() {
                add_stretches(rest, element, from + cell, found);
            }
        }
    }
}

fn add_stretch(stretch: Range<u64>, found: &mut Vec<Range<u64>>) {
    match found.last_mut() {
        Some(before) if before.end == stretch.start => before.end = stretch.end,
        _ => found.push(stretch),
    }
}

/// A copy to or from bytes in a row, cut into pieces. Both ends of a message cut it alike.
#[derive(Clone, Debug)]
pub struct CutCopy {
    copy: StridedCopy,
    /// The axis whose cells are shared out; of those before it a piece has one cell.
    axis: usize,
    /// So many of its cells are in each piece but the last ones.
    cells: u64,
    /// Pieces for one cell of each of the axes before.
    chunks: u64,
    count: u64,
}

impl CutCopy {
    /// How many pieces there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The copy of one piece, whose bytes in a row begin at 0.
    ///
    /// # Panics
    /// If there is no such piece.
    #[must_use]
    pub fn piece(&self, number: u64) -> StridedCopy {
        assert!(
            number < self.count,
            "got piece {number} of {}, expected one below",
            self.count
        );
        let mut axes = self.copy.axes.clone();
        if let Some(axis) = axes.get_mut(self.axis) {
            let begin = number % self.chunks * self.cells;
            *axis = axis.part(begin, axis.len().min(begin + self.cells));
        }
        let mut before = number / self.chunks;
        for axis in axes[..self.axis].iter_mut().rev() {
            let cell = before % axis.len();
            before /= axis.len();
            *axis = axis.part(cell, cell + 1);
        }
        StridedCopy {
            axes,
            packed: self.copy.packed,
            element: self.copy.element,
            swapped: self.copy.swapped,
        }
    }
}

impl CopiedAxis {
    /// How many cells it has.
    fn len(&self) -> u64 {
        self.runs.iter().map(|runs| runs.count * runs.length).sum()
    }

    /// Its cells from `begin` to below `end`.
    fn part(&self, begin: u64, end: u64) -> Self {
        let mut part = Vec::new();
        let mut before = 0;
        for runs in &self.runs {
            let cells = runs.count * runs.length;
            let mut from = begin.saturating_sub(before).min(cells);
            let to = end.saturating_sub(before).min(cells);
            while from < to {
                let (run, offset) = (from / runs.length, from % runs.length);
                let (count, length) = match offset {
                    0 if to - from >= runs.length => ((to - from) / runs.length, runs.length),
                    _ => (1, (runs.length - offset).min(to - from)),
                };
                part.push(StridedRuns {
                    source: runs.source + run * runs.source_stride + offset * self.source_step,
                    target: runs.target + run * runs.target_stride + offset * self.target_step,
                    count,
                    length,
                    ..*runs
                });
                from += count * length;
            }
            before += cells;
        }
        Self {
            runs: part,
            ..*self
        }
    }

    /// The beginnings of each of its cells, at the source and at the target.
    fn cells(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().flat_map(move |runs| {
            (0..runs.count).flat_map(move |number| {
                let source = runs.source + number * runs.source_stride;
                let target = runs.target + number * runs.target_stride;
                (0..runs.length).map(move |cell| {
                    (
                        source + cell * self.source_step,
                        target + cell * self.target_step,
                    )
                })
            })
        })
    }
}

struct Copying<'a, CopyRow> {
    copy: &'a StridedCopy,
    copy_row: CopyRow,
    source: &'a [u8],
    target: &'a mut [u8],
    /// How much of the packed side is done.
    done: usize,
}

impl<CopyRow: Fn(&[u8], &mut [u8])> Copying<'_, CopyRow> {
    fn axes(&mut self, axes: &[CopiedAxis], source: u64, target: u64) {
        match axes {
            [] => {}
            [last] => {
                for runs in &last.runs {
                    for number in 0..runs.count {
                        let source = source + runs.source + number * runs.source_stride;
                        let target = target + runs.target + number * runs.target_stride;
                        self.run(source, target, runs.length, last);
                    }
                }
            }
            [first, rest @ ..] => {
                for (source_cell, target_cell) in first.cells() {
                    self.axes(rest, source + source_cell, target + target_cell);
                }
            }
        }
    }

    fn run(&mut self, source: u64, target: u64, length: u64, axis: &CopiedAxis) {
        let element = self.copy.element;
        let (mut source, mut target) = (source as usize, target as usize);
        let (mut source_step, mut target_step) =
            (axis.source_step as usize, axis.target_step as usize);
        let length = length as usize;
        match self.copy.packed {
            PackedSide::Neither => {}
            PackedSide::Source => (source, source_step) = (self.done, element),
            PackedSide::Target => (target, target_step) = (self.done, element),
        }
        self.done += length * element;
        let swapped = self.copy.swapped;
        if source_step == element && target_step == element && swapped == 1 {
            let bytes = length * element;
            let to = &mut self.target[target..target + bytes];
            (self.copy_row)(&self.source[source..source + bytes], to);
            return;
        }
        let steps = (source_step, target_step);
        let (from, to) = (&self.source[source..], &mut self.target[target..]);
        match (element, swapped) {
            (1, _) => cells::<1>(from, to, steps, length),
            (2, 1) => cells::<2>(from, to, steps, length),
            (4, 1) => cells::<4>(from, to, steps, length),
            (8, 1) => cells::<8>(from, to, steps, length),
            (16, 1) => cells::<16>(from, to, steps, length),
            (2, 2) => swapped_cells::<2>(from, to, steps, length),
            (4, 4) => swapped_cells::<4>(from, to, steps, length),
            (8, 8) => swapped_cells::<8>(from, to, steps, length),
            _ => {
                for number in 0..length {
                    let (at, place) = (number * steps.0, number * steps.1);
                    let there = &mut to[place..place + element];
                    there.copy_from_slice(&from[at..at + element]);
                    if swapped > 1 {
                        for part in there.chunks_exact_mut(swapped) {
                            part.reverse();
                        }
                    }
                }
            }
        }
    }
}

/// Copies elements of a size that the compiler knows.
fn cells<const BYTES: usize>(from: &[u8], to: &mut [u8], steps: (usize, usize), length: usize) {
    let (mut at, mut place) = (0, 0);
    for _ in 0..length {
        let element: &[u8; BYTES] = from[at..].first_chunk().expect("the array has this cell");
        let there = to[place..].first_chunk_mut::<BYTES>();
        *there.expect("the array has this cell") = *element;
        (at, place) = (at + steps.0, place + steps.1);
    }
}

/// Copies elements, each with its bytes in the other order.
fn swapped_cells<const BYTES: usize>(
    from: &[u8],
    to: &mut [u8],
    steps: (usize, usize),
    length: usize,
) {
    let (mut at, mut place) = (0, 0);
    for _ in 0..length {
        let element: &[u8; BYTES] = from[at..].first_chunk().expect("the array has this cell");
        let mut element = *element;
        element.reverse();
        let there = to[place..].first_chunk_mut::<BYTES>();
        *there.expect("the array has this cell") = element;
        (at, place) = (at + steps.0, place + steps.1);
    }
}
