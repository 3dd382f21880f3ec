//! What a forked child is told.

use std::ffi::CString;

use exoskel_net::fork::{OwnProcess, Owned};
use pyo3::prelude::*;

use crate::error::{ExceptionKind, raise};

/// What this process may use.
///
/// # Errors
/// ``ForkError`` in a forked child of the process that made it.
pub(crate) fn own<'a, T>(py: Python<'_>, owned: &'a Owned<T>) -> PyResult<&'a T> {
    owned.get().ok_or_else(|| refused(py))
}

/// Refuses to go on in any process but this: what has called the user's code may be in a child of its own.
///
/// # Errors
/// As [`own`].
pub(crate) fn check(py: Python<'_>, process: OwnProcess) -> PyResult<()> {
    match process.is_this() {
        true => Ok(()),
        false => Err(refused(py)),
    }
}

/// Ends everything that this process has started, and that came to it when its parent ended: for slots, when they leave.
#[pyfunction]
pub(crate) fn end_descendants(py: Python<'_>) {
    py.detach(exoskel_net::descendants::end_own);
}

/// Ends this process with `parent`, and names it; with `adopts_orphans` it becomes the parent of descendants whose own parent ends. Says
/// whether `parent` is still there.
#[pyfunction]
pub(crate) fn follow_parent(parent: i32, name: &str, adopts_orphans: bool) -> PyResult<bool> {
    if adopts_orphans {
        exoskel_net::descendants::adopt_orphans()?;
    }
    let name = CString::new(name)?;
    Ok(exoskel_net::descendants::follow_parent(parent, &name)?)
}

/// Gives this process a name of up to 15 bytes for those who list processes.
#[pyfunction]
pub(crate) fn name_process(name: &str) -> PyResult<()> {
    Ok(exoskel_net::descendants::name(&CString::new(name)?)?)
}

/// Makes this process the parent of descendants whose own parent ends: for what starts processes of others, and ends them all.
#[pyfunction]
pub(crate) fn adopt_orphans() -> PyResult<()> {
    Ok(exoskel_net::descendants::adopt_orphans()?)
}

/// Has other processes of this account neither read nor trace this one: for those that hold a host's credential and start others' programs.
#[pyfunction]
pub(crate) fn hide_process() -> PyResult<()> {
    Ok(exoskel_net::descendants::hide()?)
}

fn refused(py: Python<'_>) -> PyErr {
    raise(
        py,
        ExceptionKind::Fork,
        "this process was forked from the one that made this Manager, Executor or node, whose links are that one's alone: \
         make another here, or use the multiprocessing start method \"spawn\"",
    )
}
