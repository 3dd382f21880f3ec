//! The driver of a node that has no thread of its own.

use exoskel_net::fork::Owned;
use exoskel_net::links::LinkDriver;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::{NodeHandle, held};
use crate::fork;
use crate::options::seconds;

/// Drives a node on the thread that made it.
#[pyclass(unsendable, name = "LinkDriver")]
pub(crate) struct LinkDriverHandle(Owned<LinkDriver>);

/// A driver, while its thread doesn't run Python.
struct Driven<'a>(&'a mut LinkDriver);

// SAFETY: `Python::detach` calls what it is given on the thread that calls it; nothing is moved to another.
unsafe impl Send for Driven<'_> {}

impl Driven<'_> {
    fn progress(self, patience: std::time::Duration) -> bool {
        self.0.progress(patience)
    }
}

#[pymethods]
impl LinkDriverHandle {
    /// Takes the driver of a node, once.
    #[new]
    fn new(node: &NodeHandle) -> PyResult<Self> {
        let parts = held(&node.parts)
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("got a node that is driven already"))?;
        Ok(Self(Owned::new(parts.driver())?))
    }

    /// Does what there is to do, after waiting for something for `timeout` seconds at most. Says whether the node goes on.
    fn progress(&mut self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let patience = seconds(timeout)?;
        // In a forked child the error says so.
        let Some(driver) = self.0.get_mut() else {
            return fork::own(py, &self.0).map(|_| false);
        };
        let driven = Driven(driver);
        let goes_on = py.detach(move || driven.progress(patience));
        py.check_signals()?;
        Ok(goes_on)
    }
}
