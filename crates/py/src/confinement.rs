//! What holds a process of foreign code.

use std::path::PathBuf;

use exoskel_confinement::{Confinement, NetworkAccess};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// What a process may use.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct AllowedUse {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    has_network: bool,
    memory_bytes: Option<u64>,
    processes: Option<u64>,
    file_bytes: Option<u64>,
}

/// Confines this process, which has one thread, for ever. Returns what holds it.
///
/// # Errors
/// ``OSError`` when something of it can't be had; the process must end then.
#[pyfunction]
pub(crate) fn confine(allowed: AllowedUse) -> PyResult<Vec<String>> {
    let confinement = Confinement {
        read: allowed.read,
        write: allowed.write,
        network: match allowed.has_network {
            true => NetworkAccess::Open,
            false => NetworkAccess::Closed,
        },
        memory_bytes_max: allowed.memory_bytes,
        processes_max: allowed.processes,
        file_bytes_max: allowed.file_bytes,
    };
    confinement
        .apply()
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
