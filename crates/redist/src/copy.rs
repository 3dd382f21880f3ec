//! Copies of what a message has: between two memories, or through bytes in a row.
//!
//! Bytes in a row have the elements in the order of the target's indices, the last axis fastest, whichever end computed the plan.

use crate::axis_plan::StridedRuns;
use crate::plan::PlannedMessage;

/// One process's memory of an array, to be read.
#[derive(Clone, Copy, Debug)]
pub struct LocalArray<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// From one cell to the next on each axis, in bytes.
    pub strides: &'a [u64],
}

/// One process's memory of an array, to be written.
#[derive(Debug)]
pub struct LocalArrayMut<'a> {
    /// All of it.
    pub bytes: &'a mut [u8],
    /// From one cell to the next on each axis, in bytes.
    pub strides: &'a [u64],
}

/// Runs of one axis as bytes of both ends.
struct CopiedAxis {
    runs: Vec<StridedRuns>,
    source_step: u64,
    target_step: u64,
}

/// Which of two memories has no gaps.
#[derive(Clone, Copy)]
enum PackedSide {
    Neither,
    Source,
    Target,
}

impl CopiedAxis {
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

/// The message's axes in bytes. Where one side is packed, its places are counted by who copies.
fn copied_axes(
    message: PlannedMessage<'_>,
    source: Option<&[u64]>,
    target: Option<&[u64]>,
) -> Vec<CopiedAxis> {
    let axes = message.axes().enumerate();
    let copied = axes.map(|(number, axis)| {
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
            runs: axis.plan.runs_with(axis.partner).map(in_bytes).collect(),
            source_step: axis.plan.source_step * source,
            target_step: axis.plan.target_step * target,
        }
    });
    copied.collect()
}

struct Copying<'a> {
    source: &'a [u8],
    target: &'a mut [u8],
    packed: PackedSide,
    /// How much of the packed side is done.
    done: usize,
    element: usize,
}

impl Copying<'_> {
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
        let element = self.element;
        let (mut source, mut target) = (source as usize, target as usize);
        let (mut source_step, mut target_step) =
            (axis.source_step as usize, axis.target_step as usize);
        let length = length as usize;
        match self.packed {
            PackedSide::Neither => {}
            PackedSide::Source => (source, source_step) = (self.done, element),
            PackedSide::Target => (target, target_step) = (self.done, element),
        }
        self.done += length * element;
        if source_step == element && target_step == element {
            let bytes = length * element;
            self.target[target..target + bytes]
                .copy_from_slice(&self.source[source..source + bytes]);
            return;
        }
        let steps = (source_step, target_step);
        let (from, to) = (&self.source[source..], &mut self.target[target..]);
        match element {
            1 => cells::<1>(from, to, steps, length),
            2 => cells::<2>(from, to, steps, length),
            4 => cells::<4>(from, to, steps, length),
            8 => cells::<8>(from, to, steps, length),
            16 => cells::<16>(from, to, steps, length),
            _ => {
                for number in 0..length {
                    let (at, place) = (number * steps.0, number * steps.1);
                    to[place..place + element].copy_from_slice(&from[at..at + element]);
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

/// Copies a message's elements from the source's memory to the target's.
///
/// # Panics
/// If a memory is smaller than its layout says.
pub fn copy_between(
    message: PlannedMessage<'_>,
    source: LocalArray<'_>,
    target: &mut LocalArrayMut<'_>,
) {
    let axes = copied_axes(message, Some(source.strides), Some(target.strides));
    let mut copying = Copying {
        source: source.bytes,
        target: target.bytes,
        packed: PackedSide::Neither,
        done: 0,
        element: message.element_bytes() as usize,
    };
    copying.axes(&axes, 0, 0);
}

/// Puts a message's elements into bytes in a row.
///
/// # Panics
/// If the memory is smaller than its layout says, or `packed` than [`PlannedMessage::bytes`].
pub fn pack(message: PlannedMessage<'_>, source: LocalArray<'_>, packed: &mut [u8]) {
    let axes = copied_axes(message, Some(source.strides), None);
    let mut copying = Copying {
        source: source.bytes,
        target: packed,
        packed: PackedSide::Target,
        done: 0,
        element: message.element_bytes() as usize,
    };
    copying.axes(&axes, 0, 0);
}

/// Puts bytes in a row to where they belong.
///
/// # Panics
/// If the memory is smaller than its layout says, or `packed` than [`PlannedMessage::bytes`].
pub fn unpack(message: PlannedMessage<'_>, packed: &[u8], target: &mut LocalArrayMut<'_>) {
    let axes = copied_axes(message, None, Some(target.strides));
    let mut copying = Copying {
        source: packed,
        target: target.bytes,
        packed: PackedSide::Source,
        done: 0,
        element: message.element_bytes() as usize,
    };
    copying.axes(&axes, 0, 0);
}
