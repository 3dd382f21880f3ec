//! Traces of other tools, packed into ours.

use exoskel_sim::keycache::trace::{RankCalls, ReplayText, Trace, TraceError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_calls, module)?)?;
    module.add_function(wrap_pyfunction!(pack_replay_text, module)?)
}

/// A packed trace with its numbers of ranks and records, and its note.
type Packed<'py> = (Bound<'py, PyBytes>, usize, usize, String);

/// Packs what the tracer left: for each rank a file's name, its calls, and the text of its communicators.
#[pyfunction]
fn pack_calls<'py>(
    py: Python<'py>,
    name: &str,
    ranks: Vec<(String, Vec<u8>, String)>,
) -> PyResult<Packed<'py>> {
    packed(py, || {
        let files: Vec<RankCalls<'_>> = ranks
            .iter()
            .map(|(name, calls, communicators)| RankCalls {
                name,
                calls,
                communicators,
            })
            .collect();
        Trace::read_calls(name, &files)
    })
}

/// Packs SimGrid's replay text: names and texts of all files.
#[pyfunction]
fn pack_replay_text<'py>(
    py: Python<'py>,
    name: &str,
    texts: Vec<(String, String)>,
    operations_per_second: f64,
) -> PyResult<Packed<'py>> {
    packed(py, || {
        let texts: Vec<ReplayText<'_>> = texts
            .iter()
            .map(|(name, text)| ReplayText { name, text })
            .collect();
        Trace::read_simgrid(name, &texts, operations_per_second)
    })
}

fn packed<'py>(
    py: Python<'py>,
    read: impl FnOnce() -> Result<Trace, TraceError> + Send,
) -> PyResult<Packed<'py>> {
    let (trace, content) = py
        .detach(|| {
            let trace = read()?;
            let content = trace.write()?;
            Ok((trace, content))
        })
        .map_err(|error: TraceError| PyValueError::new_err(error.to_string()))?;
    let records = trace.records();
    Ok((
        PyBytes::new(py, &content),
        trace.ranks.len(),
        records,
        trace.note,
    ))
}
