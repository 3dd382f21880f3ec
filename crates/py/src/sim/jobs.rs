//! Jobs in virtual time, for Python: seeds on all processors.

use std::num::NonZeroUsize;

use exoskel_sim::Violation;
use exoskel_sim::jobs::{JobsReport, JobsScenario, play_twice};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::seeds_in_parallel;

/// What a seed is made of, as text.
#[pyfunction]
pub(super) fn jobs_scenario(seed: u64) -> String {
    format!("{:#?}", JobsScenario::from_seed(seed))
}

/// Plays seeds, each twice, from `first` on, as `system_runs` does.
#[pyfunction]
#[pyo3(signature = (first, count, seconds, threads, finished))]
pub(super) fn jobs_runs(
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
            let scenario = JobsScenario::from_seed(seed);
            let played = play_twice(&scenario);
            (scenario, played)
        },
        |py, (scenario, played)| finished.call1(py, (row(py, &scenario, played)?,)).map(drop),
    )
}

fn row<'py>(
    py: Python<'py>,
    scenario: &JobsScenario,
    played: Result<JobsReport, Violation>,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("seed", scenario.seed)?;
    row.set_item("hosts", scenario.hosts.len())?;
    row.set_item("groups", scenario.groups.len())?;
    let (broken, report) = match played {
        Ok(report) => (None, report),
        // What is known of a run that broke off is when it did.
        Err(violation) => {
            let report = JobsReport {
                steps: violation.step,
                ended_at: violation.at,
                ..JobsReport::default()
            };
            (Some(violation.what), report)
        }
    };
    row.set_item("broken", broken)?;
    row.set_item("faults", report.faults)?;
    row.set_item("processes", report.processes)?;
    row.set_item("there", report.there)?;
    row.set_item("failed", report.failed)?;
    row.set_item("lost", report.lost)?;
    row.set_item("refused", report.refused)?;
    row.set_item("replaced", report.replaced)?;
    row.set_item("told", report.told)?;
    row.set_item("siblings", report.siblings)?;
    row.set_item("met", report.met)?;
    row.set_item("killed", report.killed)?;
    row.set_item("agents_lost", report.agents_lost)?;
    row.set_item("longest_end_s", report.longest_end.as_secs_f64())?;
    row.set_item("events", report.steps)?;
    row.set_item("virtual_s", report.ended_at.as_secs_f64())?;
    row.set_item("digest", format!("{:016x}", report.digest))?;
    Ok(row)
}
