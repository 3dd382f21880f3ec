//! Arrays between parallel programs: how processes share an array out, who of one program sends what to whom of another, and the copies.
//!
//! A [`Layout`] says how an array is shared out: each axis by itself, over one dimension of a grid of processes. A [`RedistributionPlan`]
//! is one process's own part of what has to move between two layouts. It is made for each axis by itself and is their product, so what it
//! costs depends on that process's messages, and not on how many processes or elements there are. Indices have 64 bits.
//!
//! The names come from HPF and `MPI_Type_create_darray`. The plans follow the redistribution of TGrid (Hunold, Rauber, Rünger 2005).

#![forbid(unsafe_code)]

mod axis;
mod axis_plan;
mod copy;
mod element;
mod index_sets;
mod layout;
mod met;
mod owners;
mod plan;
mod selection;

pub use axis::AxisSharing;
pub use axis_plan::{AxisPartner, AxisPlan, StridedRuns};
pub use copy::{CutCopy, PartBlocks, StridedCopy};
pub use element::{ElementError, ElementType};
pub use index_sets::{INDEX_RUNS_MAX, IndexRun, IndexSet, IndexSetError, IndexSets};
pub use layout::{Layout, LayoutError, MemoryOrder};
pub use met::{AxisShare, SetsOfAxes};
pub use owners::OwnersError;
pub use plan::{Mapping, MappingError, PlanSide, PlannedMessage, RedistributionPlan};
pub use selection::{AxisSelection, Selection, SelectionError};

/// Dimensions of an array, at most.
pub const DIMENSIONS_MAX: usize = 8;
