//! Layouts and plans of redistributions, as Python sees them.

use std::collections::BTreeMap;

use exoskel_redist::{
    AxisSharing, DIMENSIONS_MAX, ElementType, IndexSet, IndexSets, Layout, Mapping, MemoryOrder,
    PlanSide, PlannedMessage, RedistributionPlan,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check_sharing, module)?)?;
    module.add_class::<IndexSetHandle>()?;
    module.add_class::<LayoutHandle>()?;
    module.add_class::<PlanHandle>()
}

fn wrong(error: &impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The indices of one process, in the order of its memory.
#[pyclass(frozen, name = "IndexSet", module = "exoskel._core")]
struct IndexSetHandle {
    set: IndexSet,
}

#[pymethods]
impl IndexSetHandle {
    /// Of numbers without sign in a row, of 64 bits each.
    #[new]
    fn new(py: Python<'_>, indices: PyBuffer<u64>) -> PyResult<Self> {
        let indices = indices.to_vec(py)?;
        let set = py.detach(|| IndexSet::new(indices));
        Ok(Self {
            set: set.map_err(|error| wrong(&error))?,
        })
    }

    fn __len__(&self) -> usize {
        self.set.length() as usize
    }
}

/// How one axis is shared out: a word, bounds, the indices of one process, or those of all processes.
#[derive(FromPyObject)]
enum AxisArgument {
    Word(String),
    Bounds(Vec<u64>),
    Own(Py<IndexSetHandle>),
    All(Vec<Py<IndexSetHandle>>),
}

impl AxisArgument {
    fn sharing(&self) -> PyResult<AxisSharing> {
        match self {
            Self::Word(word) => word.trim().parse().map_err(|error| wrong(&error)),
            Self::Bounds(bounds) => Ok(AxisSharing::Bounds(bounds.clone())),
            // It gets its place when there is a grid.
            Self::Own(_) => Ok(AxisSharing::Indices(IndexSets::default())),
            Self::All(sets) => {
                let sets = sets.iter().map(|set| set.get().set.clone());
                Ok(AxisSharing::Indices(IndexSets::of_all(sets.collect())))
            }
        }
    }

    /// The sets of an axis that has those of one process only.
    fn own(&self, process: u32) -> Option<IndexSets> {
        match self {
            Self::Own(set) => {
                let sets = BTreeMap::from([(process, set.get().set.clone())]);
                Some(IndexSets::of_some(sets))
            }
            Self::Word(_) | Self::Bounds(_) | Self::All(_) => None,
        }
    }
}

/// Whether these words say how axes are shared out, over whatever processes.
#[pyfunction]
fn check_sharing(axes: usize, words: Vec<AxisArgument>) -> PyResult<()> {
    if !(1..=DIMENSIONS_MAX).contains(&axes) {
        let text = format!("got a shape of {axes} axes, expected 1 to {DIMENSIONS_MAX}");
        return Err(PyValueError::new_err(text));
    }
    if axes != words.len() {
        let text = format!(
            "got a shape of {axes} axes, {} words for axes, expected as many",
            words.len()
        );
        return Err(PyValueError::new_err(text));
    }
    words.iter().try_for_each(|word| word.sharing().map(drop))
}

/// An array that the processes of a grid share.
#[pyclass(frozen, name = "Layout", module = "exoskel._core")]
pub(crate) struct LayoutHandle {
    layout: Layout,
}

#[pymethods]
impl LayoutHandle {
    /// With a grid, or with as many processes as there are. Indices of one process alone are those of `rank`.
    #[new]
    #[pyo3(signature = (shape, element, axes, grid, processes, halo, fortran, rank))]
    #[expect(clippy::too_many_arguments, reason = "Python has them as they are")]
    fn new(
        shape: Vec<u64>,
        element: &str,
        axes: Vec<AxisArgument>,
        grid: Option<Vec<u32>>,
        processes: u32,
        halo: Vec<u64>,
        fortran: bool,
        rank: u32,
    ) -> PyResult<Self> {
        let element: ElementType = element.parse().map_err(|error| wrong(&error))?;
        let sharing: Vec<AxisSharing> = axes
            .iter()
            .map(AxisArgument::sharing)
            .collect::<PyResult<_>>()?;
        let grid = match grid {
            Some(grid) => grid,
            None => Layout::grid_of(&sharing, processes).map_err(|error| wrong(&error))?,
        };
        let order = match fortran {
            true => MemoryOrder::Fortran,
            false => MemoryOrder::C,
        };
        let layout = Layout::new(&shape, element, sharing, &grid, &halo, order);
        let mut layout = layout.map_err(|error| wrong(&error))?;
        let coordinates = layout.coordinates(rank);
        for (axis, (argument, process)) in axes.iter().zip(coordinates).enumerate() {
            if let Some(sets) = argument.own(process) {
                let made = layout.with_index_sets(axis, sets);
                layout = made.map_err(|error| wrong(&error))?;
            }
        }
        Ok(Self { layout })
    }

    #[getter]
    fn grid(&self) -> Vec<u32> {
        self.layout.grid()
    }

    #[getter]
    fn processes(&self) -> u32 {
        self.layout.processes()
    }

    #[getter]
    fn element_bytes(&self) -> u32 {
        self.layout.element().bytes()
    }

    fn coordinates(&self, rank: u32) -> PyResult<Vec<u32>> {
        self.check(rank)?;
        Ok(self.layout.coordinates(rank))
    }

    fn local_shape(&self, rank: u32) -> PyResult<Vec<u64>> {
        self.check(rank)?;
        Ok(self.layout.local_shape(rank))
    }

    /// The indices that a process owns: for each axis, ranges.
    fn extents(&self, rank: u32) -> PyResult<Vec<Vec<(u64, u64)>>> {
        self.check(rank)?;
        let axes = 0..self.layout.grid().len();
        let extents = axes.map(|axis| {
            let ranges = self.layout.extents(rank, axis).into_iter();
            ranges.map(|range| (range.start, range.end)).collect()
        });
        Ok(extents.collect())
    }

    fn __str__(&self) -> String {
        self.layout.to_string()
    }
}

impl LayoutHandle {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn check(&self, rank: u32) -> PyResult<()> {
        let processes = self.layout.processes();
        if rank < processes {
            let coordinates = self.layout.coordinates(rank);
            let mut sets = self.layout.index_sets();
            return match sets.find(|(axis, sets)| sets.set(coordinates[*axis]).is_none()) {
                None => Ok(()),
                Some((axis, _)) => Err(PyValueError::new_err(format!(
                    "the indices of rank {rank} on axis {axis} are not known in this process: it has its own only"
                ))),
            };
        }
        let text = format!(
            "got the rank {rank}, expected one of 0 to {}",
            processes - 1
        );
        Err(PyIndexError::new_err(text))
    }
}

/// What moves from one layout to another.
#[pyclass(frozen, name = "RedistributionPlan", module = "exoskel._core")]
pub(crate) struct PlanHandle {
    source: Layout,
    target: Layout,
    mapping: Mapping,
}

/// The other process's rank, and how many elements.
type MessageRow = (u32, u64);

/// Sums of messages at once, at most: more than any picture has.
const SUMS_MAX: usize = 1 << 24;

/// Of each axis, where its cells are in a process's memory.
type CellIndices = Vec<Vec<u64>>;

#[pymethods]
impl PlanHandle {
    #[new]
    fn new(
        source: &LayoutHandle,
        target: &LayoutHandle,
        select: Option<&str>,
        into: Option<&str>,
        permute: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let (source, target) = (source.layout.clone(), target.layout.clone());
        let mapping = Mapping::new(&source, &target, select, into, permute.as_deref());
        let mapping = mapping.map_err(|error| wrong(&error))?;
        let checked = mapping.check_owners(&source, &target);
        checked.map_err(|error| wrong(&error))?;
        Ok(Self {
            mapping,
            source,
            target,
        })
    }

    /// The target's axis a comes from the source's axis of this number.
    #[getter]
    fn permutation(&self) -> Vec<usize> {
        self.mapping.permutation().to_vec()
    }

    /// To whom a process of the source sends.
    fn sent_by(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<MessageRow>> {
        self.rows(py, PlanSide::Source, rank)
    }

    /// From whom a process of the target receives.
    fn received_by(&self, py: Python<'_>, rank: u32) -> PyResult<Vec<MessageRow>> {
        self.rows(py, PlanSide::Target, rank)
    }

    /// How many messages there are, how many elements they move, and of these the sums of so many processes of the source by so many of
    /// the target at once: a row for those of the source, after the other.
    fn sums(&self, py: Python<'_>, rows: u32, columns: u32) -> PyResult<(u64, u64, Vec<u64>)> {
        let (rows, columns) = (rows.max(1), columns.max(1));
        let width = self.target.processes().div_ceil(columns) as usize;
        let height = self.source.processes().div_ceil(rows) as usize;
        let cells = width.checked_mul(height).filter(|cells| *cells <= SUMS_MAX);
        let Some(cells) = cells else {
            let text = format!("got {width} x {height} sums, expected at most {SUMS_MAX}");
            return Err(PyValueError::new_err(text));
        };
        Ok(py.detach(|| {
            let mut sums = vec![0_u64; cells];
            let (mut messages, mut elements) = (0, 0);
            for rank in 0..self.source.processes() {
                let row = (rank / rows) as usize * width;
                for message in self.plan(PlanSide::Source, rank).messages() {
                    messages += 1;
                    elements += message.elements();
                    sums[row + (message.rank() / columns) as usize] += message.elements();
                }
            }
            (messages, elements, sums)
        }))
    }

    /// What a process of the source sends: to whom, and for each of the target's axes which cells of its memory go to which cells there.
    fn cells_sent_by(
        &self,
        py: Python<'_>,
        rank: u32,
    ) -> PyResult<Vec<(u32, CellIndices, CellIndices)>> {
        self.check(PlanSide::Source, rank)?;
        Ok(py.detach(|| {
            let plan = self.plan(PlanSide::Source, rank);
            let cells = |message: PlannedMessage<'_>| {
                let axes = 0..self.mapping.permutation().len();
                let (here, there) = axes.map(|axis| message.cells(axis)).unzip();
                (message.rank(), here, there)
            };
            plan.messages().map(cells).collect()
        }))
    }
}

impl PlanHandle {
    fn check(&self, side: PlanSide, rank: u32) -> PyResult<()> {
        let (name, layout) = match side {
            PlanSide::Source => ("source", &self.source),
            PlanSide::Target => ("target", &self.target),
        };
        let processes = layout.processes();
        if rank < processes {
            return Ok(());
        }
        let last = processes - 1;
        let text = format!("got the rank {rank} of the {name}, expected one of 0 to {last}");
        Err(PyIndexError::new_err(text))
    }

    fn plan(&self, side: PlanSide, rank: u32) -> RedistributionPlan {
        RedistributionPlan::new(&self.source, &self.target, &self.mapping, side, rank)
    }

    fn rows(&self, py: Python<'_>, side: PlanSide, rank: u32) -> PyResult<Vec<MessageRow>> {
        self.check(side, rank)?;
        Ok(py.detach(|| {
            let plan = self.plan(side, rank);
            let row = |message: PlannedMessage<'_>| (message.rank(), message.elements());
            plan.messages().map(row).collect()
        }))
    }
}
