//! Blocks of a process's part as it lies in memory, and what a copy takes out of each.
//!
//! A source whose memory nobody else can read hands its part on block by block. Both ends know the blocks by the source's layout.

use super::{CopiedAxis, StridedCopy};
use crate::axis_plan::StridedRuns;
use crate::layout::Layout;

/// Blocks of one process's part: stretches of memory, one behind the other, each of the same length but the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartBlocks {
    /// The axis that is cut: in memory the slowest one that has more than one cell.
    axis: usize,
    block_bytes: u64,
    part_bytes: u64,
}

impl PartBlocks {
    /// Blocks of at most so many bytes, or of one cell of the slowest axis if that is more.
    #[must_use]
    pub fn new(layout: &Layout, rank: u32, bytes_max: u64) -> Self {
        let (shape, strides) = (layout.local_shape(rank), layout.local_strides(rank));
        let part_bytes = shape.iter().product::<u64>() * u64::from(layout.element().bytes());
        let long = (0..shape.len()).filter(|axis| shape[*axis] > 1);
        let slowest = long.max_by_key(|axis| strides[*axis]);
        let block_bytes = slowest.map_or(part_bytes, |axis| {
            let cells = (bytes_max / strides[axis].max(1)).max(1);
            cells.min(shape[axis]) * strides[axis]
        });
        Self {
            axis: slowest.unwrap_or(0),
            block_bytes: block_bytes.max(1),
            part_bytes,
        }
    }

    /// How many there are: at least one.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.part_bytes.div_ceil(self.block_bytes).max(1)
    }

    /// Bytes of each but the last one.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Bytes of one.
    #[must_use]
    pub fn bytes_of(&self, block: u64) -> u64 {
        let begin = block.saturating_mul(self.block_bytes).min(self.part_bytes);
        (self.part_bytes - begin).min(self.block_bytes)
    }
}

impl StridedCopy {
    /// What it copies from each block of the source's part. The source of each copy is the block alone.
    ///
    /// # Panics
    /// If a side is bytes in a row.
    #[must_use]
    pub fn from_blocks(&self, blocks: &PartBlocks) -> Vec<Self> {
        assert!(
            self.packed == super::PackedSide::Neither,
            "bytes in a row have no blocks"
        );
        let from_block = |block: u64| {
            let begin = block * blocks.block_bytes;
            let mut copy = self.clone();
            for axis in &mut copy.axes {
                if axis.source_axis == blocks.axis {
                    axis.keep_source(begin, begin + blocks.block_bytes);
                }
            }
            copy
        };
        (0..blocks.count()).map(from_block).collect()
    }
}

impl CopiedAxis {
    /// Keeps the cells that the source has from one byte to below another, and counts its bytes from the first of these.
    fn keep_source(&mut self, begin: u64, end: u64) {
        let mut kept = Vec::new();
        for runs in &self.runs {
            let last = (runs.length - 1) * self.source_step;
            let stride = runs.source_stride.max(1);
            let before = begin.saturating_sub(runs.source + last).div_ceil(stride);
            let behind = end.saturating_sub(runs.source).div_ceil(stride);
            for number in before.min(runs.count)..behind.min(runs.count) {
                let first = runs.source + number * runs.source_stride;
                let step = self.source_step.max(1);
                let from = begin.saturating_sub(first).div_ceil(step);
                let to = end.saturating_sub(first).div_ceil(step).min(runs.length);
                if from < to {
                    let target = runs.target + number * runs.target_stride;
                    kept.push(StridedRuns {
                        source: first + from * self.source_step - begin,
                        target: target + from * self.target_step,
                        length: to - from,
                        count: 1,
                        ..*runs
                    });
                }
            }
        }
        self.runs = joined(kept);
    }
}

/// The same runs, where those of one length and one distance are one entry.
fn joined(runs: Vec<StridedRuns>) -> Vec<StridedRuns> {
    let mut joined: Vec<StridedRuns> = Vec::new();
    for run in runs {
        if let Some(last) = joined.last_mut() {
            let follows = run.length == last.length
                && run.source == last.source + last.count * last.source_stride
                && run.target == last.target + last.count * last.target_stride;
            if follows {
                last.count += 1;
                continue;
            }
        }
        joined.push(run);
    }
    joined.shrink_to_fit();
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AxisSharing, ElementType, Mapping, MemoryOrder, PlanSide, RedistributionPlan};

    fn layout(shape: &[u64], words: [&str; 2], grid: [u32; 2], order: MemoryOrder) -> Layout {
        let words = words.map(|word| word.parse::<AxisSharing>().unwrap());
        let element: ElementType = "u4".parse().unwrap();
        Layout::new(shape, element, words.to_vec(), &grid, &[0, 0], order).unwrap()
    }

    /// Aim: block by block the same comes as in one copy, also with selections, and what a block has is not taken from another one.
    #[test]
    fn blocks_have_what_the_whole_has() {
        let sharings = [
            ["block", "*"],
            ["*", "block"],
            ["cyclic(3)", "*"],
            ["cyclic", "cyclic(2)"],
        ];
        let (c, fortran) = (MemoryOrder::C, MemoryOrder::Fortran);
        let selections = [(None, None, None), (Some("[1::2, ::3]"), None, None)];
        let permuted = (None, None, Some(&[1_usize, 0][..]));
        for (from, to) in sharings
            .iter()
            .flat_map(|one| sharings.map(|to| (*one, to)))
        {
            for (select, into, permute) in selections.iter().copied().chain([permuted]) {
                for order in [c, fortran] {
                    let grid = |words: [&str; 2]| words.map(|word| 1 + u32::from(word != "*"));
                    let source = layout(&[17, 24], from, grid(from), order);
                    let shape = match (select, permute) {
                        (Some(_), _) => [8, 8],
                        (_, Some(_)) => [24, 17],
                        _ => [17, 24],
                    };
                    let target = layout(&shape, to, grid(to), c);
                    let mapping = Mapping::new(&source, &target, select, into, permute).unwrap();
                    same_by_blocks(&source, &target, &mapping);
                }
            }
        }
    }

    fn same_by_blocks(source: &Layout, target: &Layout, mapping: &Mapping) {
        for rank in 0..target.processes() {
            let plan = RedistributionPlan::new(source, target, mapping, PlanSide::Target, rank);
            for message in plan.messages() {
                let giver = message.rank();
                let cells =
                    |layout: &Layout, rank| layout.local_shape(rank).iter().product::<u64>();
                let part: Vec<u8> = (0..cells(source, giver) * 4)
                    .map(|byte| byte as u8 ^ (byte >> 8) as u8)
                    .collect();
                let (strides, own) = (source.local_strides(giver), target.local_strides(rank));
                let copy = StridedCopy::between(message, &strides, &own);
                let mut whole = vec![0; cells(target, rank) as usize * 4];
                let mut by_blocks = whole.clone();
                copy.run(&part, &mut whole);
                for bytes_max in [1, 64, 200, 1 << 20] {
                    let blocks = PartBlocks::new(source, giver, bytes_max);
                    let copies = copy.from_blocks(&blocks);
                    assert_eq!(copies.len() as u64, blocks.count());
                    let moved: u64 = copies.iter().map(StridedCopy::bytes).sum();
                    assert_eq!(moved, copy.bytes());
                    by_blocks.fill(0);
                    let mut begin = 0;
                    for (block, copy) in copies.iter().enumerate() {
                        let end = begin + blocks.bytes_of(block as u64) as usize;
                        copy.run(&part[begin..end], &mut by_blocks);
                        begin = end;
                    }
                    assert_eq!(begin, part.len());
                    assert_eq!(by_blocks, whole);
                }
            }
        }
    }

    #[test]
    fn a_part_without_cells_is_one_empty_block() {
        let source = layout(&[1, 8], ["block", "*"], [2, 1], MemoryOrder::C);
        let blocks = PartBlocks::new(&source, 1, 64);
        assert_eq!((blocks.count(), blocks.bytes_of(0)), (1, 0));
    }
}
