//! What holds a process of foreign code.

use std::path::PathBuf;

use exoskel_confinement::{Confinement, NetworkAccess};
use exoskel_identity::authorization::SandboxUse;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a process may use.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct AllowedUse {
    read: Vec<PathBuf>,
    read_if_there: Vec<PathBuf>,
    write: Vec<PathBuf>,
    has_network: bool,
    memory_bytes: Option<u64>,
    processes: Option<u64>,
    file_bytes: Option<u64>,
}

impl From<AllowedUse> for Confinement {
    fn from(allowed: AllowedUse) -> Self {
        Self {
            read: allowed.read,
            read_if_there: allowed.read_if_there,
            write: allowed.write,
            network: match allowed.has_network {
                true => NetworkAccess::Open,
                false => NetworkAccess::Closed,
            },
            memory_bytes_max: allowed.memory_bytes,
            processes_max: allowed.processes,
            file_bytes_max: allowed.file_bytes,
        }
    }
}

/// Confines this process, which has one thread, for ever. Returns what holds it.
///
/// # Errors
/// ``OSError`` when something of it can't be had; the process must end then.
#[pyfunction]
pub(crate) fn confine(allowed: AllowedUse) -> PyResult<Vec<String>> {
    Confinement::from(allowed)
        .apply()
        .map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Makes what processes need that are forked from this one and confine themselves. Without it each makes its own.
#[pyfunction]
pub(crate) fn prepare_confinement() {
    // A process that confines itself has the same error, and tells it to whom it matters.
    let _ = exoskel_confinement::prepare();
}

/// What a policy says that somebody's code may use, as `Sandbox.told` has it.
pub(crate) fn told_sandbox<'py>(
    py: Python<'py>,
    allowed: &SandboxUse,
) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("read", &allowed.read)?;
    told.set_item("system", allowed.reads_system)?;
    told.set_item("write", &allowed.write)?;
    told.set_item("network", allowed.network.word())?;
    told.set_item("memory", allowed.memory_bytes)?;
    told.set_item("processes", allowed.processes)?;
    told.set_item("file_size", allowed.file_bytes)?;
    told.set_item("total_memory", allowed.total_memory_bytes)?;
    told.set_item("total_processes", allowed.total_processes)?;
    Ok(told)
}
