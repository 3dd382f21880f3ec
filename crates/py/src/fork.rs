//! After a fork the child has the parent's memory and none of its threads: it must not seal a record, or the parent's
//! number would be sealed twice.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::error::{Kind, raise};

static FORKED: AtomicBool = AtomicBool::new(false);

/// Called in every forked child (``os.register_at_fork``).
#[pyfunction]
pub(crate) fn mark_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is a forked child.
pub(crate) fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Refuses to go on in a forked child.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    if is_child() {
        return Err(raise(
            py,
            Kind::Fork,
            "this process was forked from one that has a Manager; its links belong to the parent: \
             make a Manager of your own after the fork, or use the multiprocessing start method \"spawn\"",
        ));
    }
    Ok(())
}
