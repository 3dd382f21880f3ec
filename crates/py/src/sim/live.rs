//! Live runs for Python: real nodes beside what the simulation predicts for them.

use std::sync::{Mutex, PoisonError};

use exoskel_keycache::sequence::predict;
use exoskel_keycache_live::{LiveError, LiveRun, Lookups};
use exoskel_link::keys::Geometry;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{JobFailure, KeyCacheTrace, in_parallel, refused};

/// The lookups of real nodes, and those that the simulation predicts, for caches of that shape: of each `lookups` and `hits`.
#[pyfunction]
pub(super) fn key_cache_live<'py>(
    py: Python<'py>,
    trace: &KeyCacheTrace,
    entries: usize,
    ways: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let geometry = Geometry::set_associative(entries, ways).map_err(refused)?;
    let run = LiveRun::new(&trace.trace, geometry).map_err(refused)?;
    let (run, live) = (Mutex::new(Some(run)), Mutex::new(Lookups::default()));
    in_parallel(
        py,
        1,
        || run.lock().unwrap_or_else(PoisonError::into_inner).take(),
        |run, stop| {
            run.run(stop).map_err(|error| match error {
                LiveError::Stopped => JobFailure::Stopped,
                error => error.into(),
            })
        },
        |_, lookups| {
            *live.lock().unwrap_or_else(PoisonError::into_inner) = lookups;
            Ok(())
        },
    )?;
    let predicted = py.detach(|| predict(&trace.trace, geometry));
    let live = live.into_inner().unwrap_or_else(PoisonError::into_inner);
    let answer = PyDict::new(py);
    for (name, lookups, hits) in [
        ("live", live.lookups, live.hits),
        ("predicted", predicted.lookups, predicted.hits),
    ] {
        let counts = PyDict::new(py);
        counts.set_item("lookups", lookups)?;
        counts.set_item("hits", hits)?;
        answer.set_item(name, counts)?;
    }
    Ok(answer)
}
