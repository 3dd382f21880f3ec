//! Whether index sets can be redistributed: what a target wants has one owner at the source.

use std::ops::Range;

use crate::axis::{Axis, AxisRole, AxisView};
use crate::layout::Layout;
use crate::met::AxisShare;
use crate::plan::Mapping;

/// Index sets between which nothing can move. Ranks are the lowest that have the set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnersError {
    /// Two processes of a source have one index.
    #[error(
        "rank {first} and rank {second} of the source both list the index {index} on axis {axis}, expected one owner of each index (in a target several may list it)"
    )]
    Twice {
        /// The source's axis.
        axis: usize,
        /// Which.
        index: u64,
        /// Who lists it.
        first: u32,
        /// Who lists it, too.
        second: u32,
    },
    /// Nobody has what the target wants.
    #[error(
        "rank {rank} of the target wants the index {wanted} on its axis {target_axis}, and no process of the source lists the index {index} on axis {axis}"
    )]
    Nobody {
        /// The source's axis.
        axis: usize,
        /// The index there.
        index: u64,
        /// The target's axis.
        target_axis: usize,
        /// The index there.
        wanted: u64,
        /// Who wants it.
        rank: u32,
    },
    /// The set of a process is not known.
    #[error("the index set of rank {rank} of the {side} on axis {axis} is missing")]
    Missing {
        /// Whose axis.
        side: &'static str,
        /// Which axis.
        axis: usize,
        /// Whose set.
        rank: u32,
    },
}

impl Mapping {
    /// Checks index sets, of which all are known: of what is selected each index of the source has one owner at most, and the target wants
    /// none that has no owner. Costs the runs of all sets.
    ///
    /// # Errors
    /// [`OwnersError`].
    pub fn check_owners(&self, source: &Layout, target: &Layout) -> Result<(), OwnersError> {
        for (side, layout) in [("source", source), ("target", target)] {
            for (axis, sets) in layout.index_sets() {
                let missing = (0..layout.axes[axis].processes)
                    .find(|process| sets.set(*process).is_none())
                    .map(|process| rank_of(layout, axis, process));
                if let Some(rank) = missing {
                    return Err(OwnersError::Missing { side, axis, rank });
                }
            }
        }
        self.check_share(source, target, AxisShare::WHOLE)
    }

    /// The same of a share, in which all sets are known.
    ///
    /// # Errors
    /// [`OwnersError`].
    pub fn check_share(
        &self,
        source: &Layout,
        target: &Layout,
        share: AxisShare,
    ) -> Result<(), OwnersError> {
        for (target_axis, axis) in self.permutation.iter().copied().enumerate() {
            let Some(sets) = source.axes[axis].index_sets() else {
                continue;
            };
            let from = AxisView {
                axis: &source.axes[axis],
                selection: self.from.axes()[axis],
                role: AxisRole::Source,
            };
            let positions = share.positions(from.selection.count);
            if positions.is_empty() {
                continue;
            }
            let (first, last) = (from.index(positions.start), from.index(positions.end - 1));
            if let Some((index, first, second)) = sets.doubled(first, last) {
                let [first, second] = [first, second].map(|one| rank_of(source, axis, one));
                return Err(OwnersError::Twice {
                    axis,
                    index,
                    first,
                    second,
                });
            }
            let to = AxisView {
                axis: &target.axes[target_axis],
                selection: self.to.axes()[target_axis],
                role: AxisRole::Target,
            };
            if let Some((position, process)) = wanted_of_nobody(from, to, positions) {
                return Err(OwnersError::Nobody {
                    axis,
                    index: from.index(position),
                    target_axis,
                    wanted: to.index(position),
                    rank: rank_of(target, target_axis, process),
                });
            }
        }
        Ok(())
    }
}

/// The first position that somebody wants and nobody has, and who wants it.
fn wanted_of_nobody(
    from: AxisView<'_>,
    to: AxisView<'_>,
    positions: Range<u64>,
) -> Option<(u64, u32)> {
    let mut gaps = Vec::new();
    let mut reached = positions.start;
    from.each_block(positions.clone(), |block| {
        if block.start > reached {
            gaps.push(reached..block.start);
        }
        reached = block.end;
    });
    gaps.push(reached..positions.end);
    let mut found: Option<(u64, u32)> = None;
    for gap in gaps {
        // Of an axis without index sets each index is somebody's: the first one is enough.
        let gap = match to.axis.index_sets() {
            Some(_) => gap,
            None => gap.start..gap.end.min(gap.start + 1),
        };
        to.each_block(gap, |block| {
            let place = (block.start, block.process);
            found = Some(found.map_or(place, |known| known.min(place)));
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// The lowest rank at a coordinate of an axis.
fn rank_of(layout: &Layout, axis: usize, process: u32) -> u32 {
    let behind = layout.axes[axis + 1..].iter();
    let stride: u32 = behind.map(|axis: &Axis| axis.processes).product();
    process * stride
}
