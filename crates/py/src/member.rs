//! Members, their arrays and keepers, as Python sees them.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use exoskel_member::{Member, MemberError, OwnMemory, SharedArray};
use exoskel_net::keeper::{KeeperJoinError, KeeperService};
use exoskel_transfer::{ConnectionState, Coupling};
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{ExceptionKind, raise};
use crate::links::{self, NodeHandle, StartpointHandle};
use crate::redistribution::LayoutHandle;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MemberHandle>()?;
    module.add_class::<SharedArrayHandle>()?;
    module.add_class::<KeeperHandle>()?;
    module.add_function(wrap_pyfunction!(keeper_socket, module)?)?;
    module.add_function(wrap_pyfunction!(read_coupling, module)?)
}

fn exception(py: Python<'_>, error: &MemberError) -> PyErr {
    let kind = match error {
        MemberError::NoKeeper { .. }
        | MemberError::KeeperLost(_)
        | MemberError::Keeper(_)
        | MemberError::System { .. } => ExceptionKind::Keeper,
        MemberError::Refused(_) | MemberError::Unfit(_) | MemberError::NotConnected(_) => {
            ExceptionKind::Coupling
        }
        MemberError::Ended { .. } => ExceptionKind::ProgramLeft,
        MemberError::Lost { .. } => ExceptionKind::MemberLost,
        MemberError::Overlap { .. } => return PyValueError::new_err(error.to_string()),
        MemberError::Access(_) | MemberError::Interrupted => {
            return PyRuntimeError::new_err(error.to_string());
        }
    };
    raise(py, kind, error.to_string())
}

/// Runs what may wait without the GIL; a signal's exception ends it.
fn waiting<Done: Send>(
    py: Python<'_>,
    run: impl FnOnce(&dyn Fn() -> bool) -> Result<Done, MemberError> + Send,
) -> PyResult<Done> {
    let raised = Mutex::new(None);
    let interrupted = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(error) => {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            true
        }
    };
    let done = py.detach(|| run(&interrupted));
    let raised = raised.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (done, raised) {
        (Err(MemberError::Interrupted), Some(error)) => Err(error),
        (Err(error), _) => Err(exception(py, &error)),
        (Ok(done), _) => Ok(done),
    }
}

/// A process of a parallel program.
#[pyclass(frozen, name = "Member", module = "exoskel._core")]
struct MemberHandle {
    member: Member,
}

#[pymethods]
impl MemberHandle {
    #[new]
    fn new(py: Python<'_>, keeper: PathBuf, program: &str, rank: u32, size: u32) -> PyResult<Self> {
        let member = waiting(py, |interrupted| {
            Member::attach(&keeper, program, rank, size, interrupted)
        })?;
        Ok(Self { member })
    }

    /// Describes an array, and gets memory for this process's part of it. `own` is a view of the caller's memory if its contents are there.
    #[pyo3(signature = (name, layout, own = None))]
    fn array(
        &self,
        py: Python<'_>,
        name: &str,
        layout: &LayoutHandle,
        own: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SharedArrayHandle> {
        let memory = own.map(own_memory).transpose()?;
        let array = waiting(py, |interrupted| match memory {
            Some(memory) => (self.member).array_in(name, layout.layout(), memory, interrupted),
            None => self.member.array(name, layout.layout(), interrupted),
        })?;
        Ok(SharedArrayHandle {
            array,
            _own: own.map(|own| own.clone().unbind()),
        })
    }

    /// In a forked child: it is the parent that is the member.
    fn forget(&self) {
        self.member.forget();
    }

    /// Goes, in good order or for an error.
    fn leave(&self, py: Python<'_>, error: Option<String>) -> PyResult<()> {
        self.member
            .leave(error)
            .map_err(|error| exception(py, &error))
    }
}

/// One process's part of an array: memory to write, and its versions.
#[pyclass(frozen, name = "SharedArray", module = "exoskel._core")]
struct SharedArrayHandle {
    array: SharedArray,
    /// Keeps the caller's memory exported, as long as the array has it.
    _own: Option<Py<PyAny>>,
}

/// The memory of a contiguous memoryview that was made for this purpose.
fn own_memory(view: &Bound<'_, PyAny>) -> PyResult<OwnMemory> {
    let buffer = pyo3::buffer::PyBuffer::<u8>::get(view)?;
    let (first, bytes) = (buffer.buf_ptr().cast(), buffer.len_bytes());
    // SAFETY: the view keeps it exported, and the array's handle the view. What Python code does with it during a call of the array, from
    // another thread, are values: they are copied as bytes.
    Ok(unsafe { OwnMemory::new(first, bytes, !buffer.readonly()) })
}

#[pymethods]
impl SharedArrayHandle {
    /// Waits until the last version was taken.
    fn begin_write(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, |interrupted| self.array.begin_write(interrupted))
    }

    /// Gives what was written as the next version, and returns its number.
    fn export(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, |interrupted| self.array.export(interrupted))
    }

    /// Ends a write without a version.
    fn abandon(&self) {
        self.array.abandon();
    }

    /// Waits for the next version, copies it, and returns its number.
    fn begin_read(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, |interrupted| self.array.begin_read(interrupted))
    }

    /// Ends a read.
    fn end_read(&self) {
        self.array.end_read();
    }

    /// Whether a connection ends here.
    #[getter]
    fn is_read_into(&self) -> bool {
        self.array.is_read_into()
    }

    /// Versions that were exported, and that were read.
    #[getter]
    fn versions(&self) -> (u64, u64) {
        self.array.versions()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let memory = slf.get().array.memory();
        let length = ffi::Py_ssize_t::try_from(memory.len())
            .map_err(|_| PyBufferError::new_err("got a buffer larger than the address space"))?;
        let first = memory.first_byte().cast();
        // SAFETY: `view` comes from the interpreter; the mapping outlives it because the view holds `slf`, which holds the array.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), first, length, 0, flags) };
        if status == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// A keeper with the coupler of one coupling, for programs on this host.
#[pyclass(frozen, name = "Keeper", module = "exoskel._core")]
struct KeeperHandle {
    /// None when it has ended.
    service: Mutex<Option<KeeperService>>,
}

#[pymethods]
impl KeeperHandle {
    /// At this socket, for what a coupling's file says.
    #[new]
    #[pyo3(signature = (place, coupling, wait = None))]
    fn new(py: Python<'_>, place: PathBuf, coupling: &str, wait: Option<f64>) -> PyResult<Self> {
        let coupling = coupling_to_lead(py, coupling, wait)?;
        let service = KeeperService::start(&place, coupling).map_err(|error| {
            let place = place.display();
            raise(
                py,
                ExceptionKind::Keeper,
                format!("can't wait for members at {place}: {error}"),
            )
        })?;
        Ok(Self {
            service: Mutex::new(Some(service)),
        })
    }

    /// The same, where keepers of other hosts join through a node.
    #[staticmethod]
    #[pyo3(signature = (place, coupling, node, wait = None))]
    fn lead(
        py: Python<'_>,
        place: PathBuf,
        coupling: &str,
        node: &NodeHandle,
        wait: Option<f64>,
    ) -> PyResult<Self> {
        let coupling = coupling_to_lead(py, coupling, wait)?;
        let node = node.shared(py)?;
        Self::of(
            py,
            py.detach(|| KeeperService::lead(&place, coupling, node)),
        )
    }

    /// A keeper of the coupler that this startpoint leads to.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        place: PathBuf,
        node: &NodeHandle,
        coupler: &StartpointHandle,
    ) -> PyResult<Self> {
        let (node, coupler) = (node.shared(py)?, coupler.get().clone());
        Self::of(py, py.detach(|| KeeperService::join(&place, node, coupler)))
    }

    /// Of a keeper that has joined: how many members are here, whether the coupler says that all is over, and why it is gone if it is.
    fn state(&self) -> (usize, bool, Option<String>) {
        let state = self.service().as_ref().map(KeeperService::state);
        state.map_or((0, true, None), |state| {
            (state.members, state.has_ended, state.coupler_lost)
        })
    }

    /// What it has seen: programs, connections, and who was lost first.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = match &*self.service() {
            Some(service) => service.report(),
            None => return Err(PyRuntimeError::new_err("the keeper has ended")),
        };
        let found = PyDict::new(py);
        let programs = report.programs.into_iter();
        let programs = programs.map(|one| (one.name, one.present, one.size, one.gone));
        found.set_item("programs", programs.collect::<Vec<_>>())?;
        let connections = report.connections.into_iter().map(|connection| {
            let row = PyDict::new(py);
            row.set_item("name", connection.name)?;
            let (state, reason) = match connection.state {
                ConnectionState::Waiting => ("waiting", None),
                ConnectionState::Ready => ("ready", None),
                ConnectionState::Failed(reason) => ("failed", Some(reason)),
            };
            row.set_item("state", state)?;
            row.set_item("reason", reason)?;
            row.set_item("versions", connection.versions)?;
            row.set_item("bytes", connection.bytes)?;
            row.set_item("nanoseconds", connection.nanoseconds)?;
            row.set_item("unmoved", connection.unmoved)?;
            row.set_item("between_hosts", connection.is_between_hosts)?;
            row.set_item("missing", connection.missing)?;
            Ok(row)
        });
        found.set_item("connections", connections.collect::<PyResult<Vec<_>>>()?)?;
        let lost = report.first_lost;
        let lost = lost.map(|loss| (loss.program, loss.rank, loss.why));
        found.set_item("first_lost", lost)?;
        found.set_item("refusals", report.refusals)?;
        let waits = report.waits.into_iter().map(|wait| {
            let row = PyDict::new(py);
            row.set_item("program", wait.program)?;
            row.set_item("ranks", wait.ranks)?;
            row.set_item("array", wait.array)?;
            row.set_item("version", wait.version)?;
            row.set_item("text", wait.text)?;
            Ok(row)
        });
        found.set_item("waits", waits.collect::<PyResult<Vec<_>>>()?)?;
        Ok(found)
    }

    /// A program has ended: what it hasn't described won't be.
    fn program_ended(&self, program: &str) {
        if let Some(service) = &*self.service() {
            service.program_ended(program);
        }
    }

    /// Ends it, and gives its memory back.
    fn end(&self, py: Python<'_>) {
        let service = self.service().take();
        py.detach(|| drop(service));
    }
}

impl KeeperHandle {
    fn of(py: Python<'_>, made: Result<KeeperService, KeeperJoinError>) -> PyResult<Self> {
        let service = made.map_err(|error| match error {
            KeeperJoinError::Link(error) => links::raised(py, &error),
            error @ KeeperJoinError::Refused(_) => {
                raise(py, ExceptionKind::Refused, error.to_string())
            }
            error => raise(py, ExceptionKind::Keeper, error.to_string()),
        })?;
        Ok(Self {
            service: Mutex::new(Some(service)),
        })
    }

    fn service(&self) -> MutexGuard<'_, Option<KeeperService>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the account's own keeper waits for members.
#[pyfunction]
fn keeper_socket(runtime_directory: Option<PathBuf>) -> PathBuf {
    exoskel_member::keeper_socket_of_account(runtime_directory.as_deref())
}

fn coupling_of(py: Python<'_>, text: &str) -> PyResult<Coupling> {
    Coupling::parse(text).map_err(|error| raise(py, ExceptionKind::Coupling, error.to_string()))
}

/// The same, where processes that have not attached may be waited for otherwise than the file says.
fn coupling_to_lead(py: Python<'_>, text: &str, wait: Option<f64>) -> PyResult<Coupling> {
    let mut coupling = coupling_of(py, text)?;
    if let Some(seconds) = wait {
        let set = coupling.wait_for(seconds);
        set.map_err(|error| raise(py, ExceptionKind::Coupling, error.to_string()))?;
    }
    Ok(coupling)
}

/// The programs that a coupling's file names, with the commands that start them.
#[pyfunction]
fn read_coupling(py: Python<'_>, text: &str) -> PyResult<Vec<(String, Option<String>)>> {
    let coupling = coupling_of(py, text)?;
    let programs = coupling.programs().iter();
    let programs = programs.map(|(name, terms)| (name.clone(), terms.command.clone()));
    Ok(programs.collect())
}
