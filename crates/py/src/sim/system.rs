//! The whole system in virtual time, for Python: seeds on all processors.

use std::num::NonZeroUsize;

use exoskel_sim::Violation;
use exoskel_sim::system::{Report, Scenario, play_twice};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::seeds_in_parallel;

/// What a seed is made of, as text.
#[pyfunction]
pub(super) fn system_scenario(seed: u64) -> String {
    format!("{:#?}", Scenario::from_seed(seed))
}

/// Plays seeds, each twice, from `first` on: `count` of them, those that begin within so many seconds, or whichever is over first.
/// `finished` gets what came of each, as they come.
#[pyfunction]
#[pyo3(signature = (first, count, seconds, threads, finished))]
pub(super) fn system_runs(
    py: Python<'_>,
    first: u64,
    count: Option<u64>,
    seconds: Option<f64>,
    threads: NonZeroUsize,
    finished: Py<PyAny>,
) -> PyResult<()> {
    seeds_in_parallel(
        py,
        first,
        count,
        seconds,
        threads,
        |seed| {
            let scenario = Scenario::from_seed(seed);
            let played = play_twice(&scenario);
            (scenario, played)
        },
        |py, (scenario, played)| finished.call1(py, (row(py, &scenario, played)?,)).map(drop),
    )
}

fn row<'py>(
    py: Python<'py>,
    scenario: &Scenario,
    played: Result<Report, Violation>,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("seed", scenario.seed)?;
    row.set_item("workers", scenario.workers.len())?;
    row.set_item("streams", scenario.streams.len())?;
    let items: u64 = scenario.streams.iter().map(|stream| stream.items).sum();
    row.set_item("items", items)?;
    let broken = played.as_ref().err().map(|violation| &violation.what);
    row.set_item("broken", broken)?;
    let report = match played {
        Ok(report) => report,
        // What is known of a run that broke off is when it did.
        Err(violation) => Report {
            steps: violation.step,
            ended_at: violation.at,
            ..Report::default()
        },
    };
    row.set_item("faults", report.faults)?;
    row.set_item("outcomes", report.outcomes)?;
    row.set_item("cancelled", report.cancelled)?;
    row.set_item("left", report.left)?;
    row.set_item("sessions", report.sessions)?;
    row.set_item("slots_lost", report.slots_lost)?;
    row.set_item("crashes", report.crashes)?;
    row.set_item("restarts", report.restarts)?;
    row.set_item("events", report.steps)?;
    row.set_item("virtual_s", report.ended_at.as_secs_f64())?;
    row.set_item("digest", format!("{:016x}", report.digest))?;
    Ok(row)
}
