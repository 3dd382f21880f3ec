//! Traces of other tools, and synthetic ones, in our format.

use std::fmt::Display;

use exoskel_keycache::{OnOff, requests};
use exoskel_trace::{RankCalls, ReplayText, Trace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_calls, module)?)?;
    module.add_function(wrap_pyfunction!(pack_replay_text, module)?)?;
    module.add_function(wrap_pyfunction!(pack_on_off, module)?)?;
    module.add_function(wrap_pyfunction!(pack_requests, module)?)
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

/// Packs synthetic traffic of processes that are silent and send in turn.
#[pyfunction]
#[pyo3(signature = (name, *, ranks, periods, messages, message_bytes, gap_ns, off_ns, seed))]
#[expect(clippy::too_many_arguments, reason = "they are Python's, by name")]
fn pack_on_off<'py>(
    py: Python<'py>,
    name: &str,
    ranks: u32,
    periods: u32,
    messages: u32,
    message_bytes: u32,
    gap_ns: u64,
    off_ns: u64,
    seed: u64,
) -> PyResult<Packed<'py>> {
    let traffic = OnOff {
        ranks,
        periods,
        messages,
        message_bytes,
        gap_ns,
        off_ns,
    };
    packed(py, || {
        traffic.trace(seed).map(|trace| Trace {
            name: name.to_owned(),
            ..trace
        })
    })
}

/// Packs synthetic requests and answers.
#[pyfunction]
#[pyo3(signature = (name, *, ranks, each, seed))]
fn pack_requests<'py>(
    py: Python<'py>,
    name: &str,
    ranks: usize,
    each: usize,
    seed: u64,
) -> PyResult<Packed<'py>> {
    packed(py, || {
        requests(ranks, each, seed).map(|trace| Trace {
            name: name.to_owned(),
            ..trace
        })
    })
}

fn packed<'py, Refusal: Display>(
    py: Python<'py>,
    make: impl FnOnce() -> Result<Trace, Refusal> + Send,
) -> PyResult<Packed<'py>> {
    let (trace, content) = py
        .detach(|| {
            let trace = make().map_err(|error| error.to_string())?;
            let content = trace.write().map_err(|error| error.to_string())?;
            Ok((trace, content))
        })
        .map_err(|error: String| PyValueError::new_err(error))?;
    let records = trace.records();
    Ok((
        PyBytes::new(py, &content),
        trace.ranks.len(),
        records,
        trace.note,
    ))
}
