//! A layout as it is said to others.

use exoskel_redist::{AxisSharing, IndexSets, Layout, LayoutError, MemoryOrder};
use serde::{Deserialize, Serialize};

/// The word for index sets. The sets themselves are said apart from the layout, by each process its own.
pub(crate) const INDICES: &str = "indices";

/// How one axis is shared out: a word, or bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Sharing {
    /// As [`AxisSharing`] reads it, or [`INDICES`].
    Word(String),
    /// Process p has the indices from `bounds[p]` to below `bounds[p + 1]`.
    Bounds(Vec<u64>),
}

/// All that a layout is made of. What comes from others is checked by making the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutDescription {
    /// The whole array's shape.
    pub shape: Vec<u64>,
    /// The elements, in NumPy's words.
    pub element: String,
    /// How each axis is shared out.
    pub sharing: Vec<Sharing>,
    /// Processes in each dimension.
    pub grid: Vec<u32>,
    /// Cells around each process's block.
    pub halo: Vec<u64>,
    /// Whether the first axis is contiguous.
    pub fortran: bool,
}

impl LayoutDescription {
    /// Says a layout.
    #[must_use]
    pub fn of(layout: &Layout) -> Self {
        let sharing = layout.sharing().iter().map(|sharing| match sharing {
            AxisSharing::Bounds(bounds) => Sharing::Bounds(bounds.clone()),
            word => Sharing::Word(word.to_string()),
        });
        Self {
            shape: layout.shape(),
            element: layout.element().to_string(),
            sharing: sharing.collect(),
            grid: layout.grid(),
            halo: layout.halo(),
            fortran: layout.order() == MemoryOrder::Fortran,
        }
    }

    /// Makes the layout. Of index sets it knows none.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn layout(&self) -> Result<Layout, String> {
        let element = self
            .element
            .parse()
            .map_err(|error: exoskel_redist::ElementError| error.to_string())?;
        let of = |sharing: &Sharing| match sharing {
            Sharing::Word(word) if word == INDICES => {
                Ok(AxisSharing::Indices(IndexSets::default()))
            }
            Sharing::Word(word) => word.parse(),
            Sharing::Bounds(bounds) => Ok(AxisSharing::Bounds(bounds.clone())),
        };
        let sharing: Result<Vec<AxisSharing>, LayoutError> = self.sharing.iter().map(of).collect();
        let order = match self.fortran {
            true => MemoryOrder::Fortran,
            false => MemoryOrder::C,
        };
        let made = sharing.and_then(|sharing| {
            Layout::new(&self.shape, element, sharing, &self.grid, &self.halo, order)
        });
        made.map_err(|error| error.to_string())
    }
}
