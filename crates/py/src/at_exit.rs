//! Daemon threads at the interpreter's end: like any thread that waits then, they are left where they are.

use exoskel_net::result_queue::StreamEnd;
use pyo3::intern;
use pyo3::prelude::*;

/// Doesn't come back, with the interpreter's lock released, when the stream has ended because the interpreter ends. The user has left such
/// a thread to itself: an exception of it would stand behind the last words of the program.
///
/// # Errors
/// What Python says when it can't be asked.
pub(crate) fn leave(py: Python<'_>, end: &StreamEnd) -> PyResult<()> {
    if !matches!(end, StreamEnd::Closed) {
        return Ok(());
    }
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?;
    let this = threading.call_method0(intern!(py, "current_thread"))?;
    let runs = main.call_method0(intern!(py, "is_alive"))?.is_truthy()?;
    // For any other thread the interpreter waits.
    if runs || !this.getattr(intern!(py, "daemon"))?.is_truthy()? {
        return Ok(());
    }
    py.detach(|| {
        loop {
            std::thread::park();
        }
    })
}
