//! How the processes of a parallel program share an array out.

use std::fmt;
use std::ops::Range;

use crate::DIMENSIONS_MAX;
use crate::axis::{Axis, AxisSharing};
use crate::element::ElementType;
use crate::index_sets::IndexSets;

/// Which axis of an array is contiguous in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryOrder {
    /// The last one, as in C and NumPy.
    #[default]
    C,
    /// The first one, as in Fortran.
    Fortran,
}

/// An array, and how it is shared out: each axis over one dimension of a grid of processes. Ranks number the grid by rows, as
/// `MPI_Cart_create` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    element: ElementType,
    sharing: Vec<AxisSharing>,
    pub(crate) axes: Vec<Axis>,
    order: MemoryOrder,
}

/// What can't be a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A word that names no way to share an axis out.
    #[error(
        "got {0:?} for an axis, expected block, block(k), cyclic, cyclic(k), whole, replicated, or bounds"
    )]
    Sharing(String),
    /// The number of axes.
    #[error(
        "got a shape of {shape} axes, {sharing} words for axes, a grid of {grid} and {halo} halos, expected the same number of each, 1 to {DIMENSIONS_MAX}"
    )]
    Axes {
        /// Of the shape.
        shape: usize,
        /// Of the words.
        sharing: usize,
        /// Of the grid.
        grid: usize,
        /// Of the halos.
        halo: usize,
    },
    /// More than memory can have.
    #[error(
        "got the shape {shape:?} with the halo {halo:?} of elements of {element} bytes, expected an array of at most 2**63 bytes"
    )]
    TooLarge {
        /// The array's.
        shape: Vec<u64>,
        /// Cells around each process's block.
        halo: Vec<u64>,
        /// Bytes of an element.
        element: u32,
    },
    /// A grid without processes, or of too many.
    #[error(
        "got the grid {0:?}, expected at least 1 process in each dimension, and at most 2**31 in all"
    )]
    Grid(Vec<u32>),
    /// A program without processes.
    #[error("got 0 processes, expected at least 1")]
    NoProcess,
    /// Blocks that don't cover an axis.
    #[error(
        "got block({block}) for {processes} processes and an axis of {length}, expected that all of it is somebody's: take cyclic({block}), or longer blocks"
    )]
    Holes {
        /// The block length.
        block: u64,
        /// Processes of that dimension.
        processes: u32,
        /// The axis.
        length: u64,
    },
    /// Bounds that aren't.
    #[error(
        "got the bounds {got:?} for {processes} processes, expected {processes} + 1 rising numbers from 0 to {length}"
    )]
    Bounds {
        /// The first of them.
        got: Vec<u64>,
        /// Processes of that dimension.
        processes: u32,
        /// The axis.
        length: u64,
    },
    /// More than one process for an axis that isn't shared out.
    #[error("got {processes} processes for an axis that is whole, expected 1 there")]
    WholeOfSeveral {
        /// Processes of that dimension.
        processes: u32,
    },
    /// An index that the axis hasn't got.
    #[error(
        "process {process} lists the index {index}, expected indices from 0 to below {length}: the axis's length"
    )]
    Index {
        /// The largest one.
        index: u64,
        /// Whose set it is.
        process: u32,
        /// The axis.
        length: u64,
    },
    /// Sets of more or fewer processes than there are.
    #[error(
        "got index sets of {got} processes, expected one for each of the {processes} processes of that axis"
    )]
    IndexSets {
        /// As many as there are sets.
        got: u32,
        /// Processes of that dimension.
        processes: u32,
    },
    /// A halo around more than one block.
    #[error(
        "got a halo for an axis that is {0}, expected it only where each process has one block"
    )]
    Halo(String),
    /// No grid fits.
    #[error(
        "{processes} processes can't be put into a grid for these axes: give it (grid=), or share more axes out"
    )]
    NoGrid {
        /// As many as there are.
        processes: u32,
    },
    /// Bounds of more or fewer blocks than there are processes for.
    #[error(
        "got bounds of {blocks} blocks for {processes} processes, expected a block for each process of that axis: one number more than processes"
    )]
    BlocksOfBounds {
        /// As many as the bounds say.
        blocks: usize,
        /// As many as there are in all.
        processes: u32,
    },
}

impl Layout {
    /// An array of this shape, each axis shared out over the processes of one dimension of the grid.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(
        shape: &[u64],
        element: ElementType,
        sharing: Vec<AxisSharing>,
        grid: &[u32],
        halo: &[u64],
        order: MemoryOrder,
    ) -> Result<Self, LayoutError> {
        let count = shape.len();
        let same = sharing.len() == count && grid.len() == count && halo.len() == count;
        if !same || !(1..=DIMENSIONS_MAX).contains(&count) {
            return Err(LayoutError::Axes {
                shape: count,
                sharing: sharing.len(),
                grid: grid.len(),
                halo: halo.len(),
            });
        }
        let processes = grid
            .iter()
            .try_fold(1_u32, |product, count| product.checked_mul(*count))
            .filter(|processes| (1..=1 << 31).contains(processes));
        if processes.is_none() {
            return Err(LayoutError::Grid(grid.to_vec()));
        }
        let bytes = shape
            .iter()
            .zip(halo)
            .map(|(length, halo)| halo.checked_mul(2)?.checked_add((*length).max(1)))
            .try_fold(u64::from(element.bytes()), |product, length| {
                product.checked_mul(length?)
            });
        if bytes.is_none_or(|bytes| bytes > 1 << 63) {
            return Err(LayoutError::TooLarge {
                shape: shape.to_vec(),
                halo: halo.to_vec(),
                element: element.bytes(),
            });
        }
        let axes = sharing.iter().zip(shape).zip(grid.iter().zip(halo));
        let axes = axes.map(|((sharing, length), (processes, halo))| {
            Axis::new(sharing, *length, *processes, *halo)
        });
        Ok(Self {
            element,
            axes: axes.collect::<Result<_, _>>()?,
            sharing,
            order,
        })
    }

    /// A grid for so many processes, as even as it can be: each axis of blocks gets some, and one with bounds or with all index sets as many as
    /// it has.
    /// Replicas come where nothing else is shared out.
    ///
    /// # Errors
    /// [`LayoutError::NoGrid`] and [`LayoutError::BlocksOfBounds`].
    pub fn grid_of(sharing: &[AxisSharing], processes: u32) -> Result<Vec<u32>, LayoutError> {
        if processes == 0 {
            return Err(LayoutError::NoProcess);
        }
        let no_grid = || no_grid_for(sharing, processes);
        let mut grid = vec![1_u32; sharing.len()];
        let mut left = processes;
        for (place, sharing) in grid.iter_mut().zip(sharing) {
            let count = match sharing {
                AxisSharing::Bounds(bounds) => {
                    Some(u32::try_from(bounds.len().saturating_sub(1)).unwrap_or(0))
                }
                AxisSharing::Indices(sets) => sets.processes(),
                _ => None,
            };
            if let Some(count) = count {
                *place = count;
                if *place == 0 || !left.is_multiple_of(*place) {
                    return Err(no_grid());
                }
                left /= *place;
            }
        }
        let is_shared = |sharing: &AxisSharing| match sharing {
            AxisSharing::Block | AxisSharing::BlockOf(_) | AxisSharing::Cyclic(_) => true,
            AxisSharing::Indices(sets) => sets.processes().is_none(),
            AxisSharing::Bounds(_) | AxisSharing::Whole | AxisSharing::Replicated => false,
        };
        let any = sharing.iter().any(is_shared);
        let takes = |sharing: &AxisSharing| match sharing {
            AxisSharing::Replicated => !any,
            other => is_shared(other),
        };
        let taking: Vec<usize> = (0..sharing.len())
            .filter(|axis| takes(&sharing[*axis]))
            .collect();
        for factor in prime_factors(left).into_iter().rev() {
            // The first of the smallest ones, so that earlier axes have no fewer than later ones.
            let smallest = taking.iter().min_by_key(|axis| grid[**axis]);
            let axis = *smallest.ok_or_else(no_grid)?;
            grid[axis] *= factor;
        }
        let mut counts: Vec<u32> = taking.iter().map(|axis| grid[*axis]).collect();
        counts.sort_unstable_by(|first, second| second.cmp(first));
        for (axis, count) in taking.into_iter().zip(counts) {
            grid[axis] = count;
        }
        Ok(grid)
    }

    /// The whole array's shape.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.length).collect()
    }

    /// What its elements are.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// How each axis is shared out.
    #[must_use]
    pub fn sharing(&self) -> &[AxisSharing] {
        &self.sharing
    }

    /// Processes in each dimension.
    #[must_use]
    pub fn grid(&self) -> Vec<u32> {
        self.axes.iter().map(|axis| axis.processes).collect()
    }

    /// Cells around each process's block.
    #[must_use]
    pub fn halo(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.halo).collect()
    }

    /// Which axis is contiguous.
    #[must_use]
    pub fn order(&self) -> MemoryOrder {
        self.order
    }

    /// How many processes share it.
    #[must_use]
    pub fn processes(&self) -> u32 {
        self.axes.iter().map(|axis| axis.processes).product()
    }

    /// Where a process is in the grid.
    #[must_use]
    pub fn coordinates(&self, rank: u32) -> Vec<u32> {
        let mut left = rank;
        let backwards = self.axes.iter().rev().map(|axis| {
            let coordinate = left % axis.processes;
            left /= axis.processes;
            coordinate
        });
        let mut coordinates: Vec<u32> = backwards.collect();
        coordinates.reverse();
        coordinates
    }

    /// The shape of a process's memory, its halo included.
    #[must_use]
    pub fn local_shape(&self, rank: u32) -> Vec<u64> {
        let places = self.axes.iter().zip(self.coordinates(rank));
        places
            .map(|(axis, process)| axis.local_length(process))
            .collect()
    }

    /// From one cell of a process's memory to the next on each axis, in bytes, without gaps.
    #[must_use]
    pub fn local_strides(&self, rank: u32) -> Vec<u64> {
        let shape = self.local_shape(rank);
        let mut strides = vec![0; shape.len()];
        let mut stride = u64::from(self.element.bytes());
        let mut next = |axis: usize| {
            strides[axis] = stride;
            stride *= shape[axis];
        };
        match self.order {
            MemoryOrder::C => (0..shape.len()).rev().for_each(&mut next),
            MemoryOrder::Fortran => (0..shape.len()).for_each(&mut next),
        }
        strides
    }

    /// How many elements a process owns.
    #[must_use]
    pub fn owned(&self, rank: u32) -> u64 {
        let places = self.axes.iter().zip(self.coordinates(rank));
        places.map(|(axis, process)| axis.owned(process)).product()
    }

    /// The same array with other index sets on an axis that has some: with those that are known of more processes, or of fewer.
    ///
    /// # Errors
    /// [`LayoutError`], for sets that don't fit the axis.
    ///
    /// # Panics
    /// If there is no such axis.
    pub fn with_index_sets(&self, axis: usize, sets: IndexSets) -> Result<Self, LayoutError> {
        let mut made = self.clone();
        let old = &self.axes[axis];
        let sharing = AxisSharing::Indices(sets);
        made.axes[axis] = Axis::new(&sharing, old.length, old.processes, old.halo)?;
        made.sharing[axis] = sharing;
        Ok(made)
    }

    /// The index sets of each axis that has some.
    pub fn index_sets(&self) -> impl Iterator<Item = (usize, &IndexSets)> {
        let axes = self.axes.iter().enumerate();
        axes.filter_map(|(number, axis)| Some((number, axis.index_sets()?)))
    }

    /// The indices that a process owns on an axis, as ranges in ascending order.
    #[must_use]
    pub fn extents(&self, rank: u32, axis: usize) -> Vec<Range<u64>> {
        let process = self.coordinates(rank)[axis];
        self.axes[axis].owned_ranges(process)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<_> = self
            .axes
            .iter()
            .map(|axis| axis.length.to_string())
            .collect();
        let sharing: Vec<_> = self.sharing.iter().map(ToString::to_string).collect();
        let grid: Vec<_> = self
            .axes
            .iter()
            .map(|axis| axis.processes.to_string())
            .collect();
        write!(
            formatter,
            "{} of {}, ({}) over {} processes",
            shape.join(" x "),
            self.element,
            sharing.join(", "),
            grid.join(" x ")
        )?;
        if self.axes.iter().any(|axis| axis.halo > 0) {
            let halo: Vec<_> = self.axes.iter().map(|axis| axis.halo.to_string()).collect();
            write!(formatter, ", halo {}", halo.join(", "))?;
        }
        Ok(())
    }
}

/// Why no grid fits: where there are bounds, most likely these.
fn no_grid_for(sharing: &[AxisSharing], processes: u32) -> LayoutError {
    let blocks = sharing.iter().find_map(|sharing| match sharing {
        AxisSharing::Bounds(bounds) => Some(bounds.len().saturating_sub(1)),
        _ => None,
    });
    match blocks {
        Some(blocks) => LayoutError::BlocksOfBounds { blocks, processes },
        None => LayoutError::NoGrid { processes },
    }
}

/// In ascending order.
fn prime_factors(mut number: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    let mut factor = 2;
    while factor * factor <= number {
        while number.is_multiple_of(factor) {
            factors.push(factor);
            number /= factor;
        }
        factor += 1;
    }
    if number > 1 {
        factors.push(number);
    }
    factors
}
