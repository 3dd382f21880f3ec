//! What users share with all slots, as `python/exoskel/shared_contents.py` keeps it: sealed memory here, and pieces of it over there.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use exoskel_net::fork::Owned;
use exoskel_net::message::Digest;
use exoskel_net::shared_table::SharedTable;
use exoskel_net::slot::SlotNode;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::ViewOwner;
use crate::fork;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// The shared contents of this process, of all of its managers.
static TABLE: LazyLock<Arc<SharedTable>> = LazyLock::new(Arc::default);

/// The shared contents of this process.
pub(crate) fn table() -> Arc<SharedTable> {
    TABLE.clone()
}

/// Lets the slots of all managers of this process ask for contents, of which this is a view. Gives what [`unshare`] wants.
#[pyfunction]
fn share(digest: &[u8], contents: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(TABLE.insert(name(digest)?, ViewOwner::share(contents)?))
}

/// Forgets contents; slots that have them keep them.
#[pyfunction]
fn unshare(digest: &[u8], ticket: u64) -> PyResult<()> {
    TABLE.remove(&name(digest)?, ticket);
    Ok(())
}

/// Where a slot gets shared contents from that its host doesn't have: its manager.
#[pyclass(frozen)]
pub(crate) struct SharedSource(Owned<Arc<SlotNode>>);

impl SharedSource {
    pub(crate) fn new(node: Arc<SlotNode>) -> PyResult<Self> {
        Ok(Self(Owned::new(node)?))
    }
}

#[pymethods]
impl SharedSource {
    /// Asks for a piece of at most `size` bytes, which `take` gives.
    fn ask(&self, py: Python<'_>, digest: &[u8], offset: u64, size: u32) -> PyResult<()> {
        let (node, digest) = (fork::own(py, &self.0)?, name(digest)?);
        // When the session is over, `take` says so.
        let _ = py.detach(|| node.fetch(digest, offset, size));
        Ok(())
    }

    /// Waits for a piece; it is empty where the contents aren't at the manager any more, or there is no manager.
    fn take<'py>(
        &self,
        py: Python<'py>,
        digest: &[u8],
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (node, digest) = (fork::own(py, &self.0)?, name(digest)?);
        loop {
            if let Some(piece) = py.detach(|| node.wait_piece(digest, offset, PATIENCE)) {
                let taken = PyBytes::new(py, &piece);
                node.recycle(piece);
                return Ok(taken);
            }
            py.check_signals()?;
        }
    }
}

fn name(digest: &[u8]) -> PyResult<Digest> {
    digest.try_into().map_err(|_| {
        PyValueError::new_err(format!(
            "got a digest of {} bytes, expected 32",
            digest.len()
        ))
    })
}

/// Adds what is here to the extension module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedSource>()?;
    module.add_function(wrap_pyfunction!(share, module)?)?;
    module.add_function(wrap_pyfunction!(unshare, module)?)
}
