//! Programs with links of their own in virtual time, for Python: seeds on all processors.

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use exoskel_identity::{Expected, PeerVerifier, PrivateAuthority, Role, VerifiedIdentity};
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_sim::peers::{
    BrokenRun, PeersFaultKind, PeersReport, PeersScenario, PeersShape, names, play_twice,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustls_pki_types::UnixTime;

use super::{no_such, seeds_in_parallel, value};

/// Those who take part, and one who doesn't: identities that a throw-away authority of this process has certified. No run depends on
/// their keys.
static PEOPLE: LazyLock<Result<Vec<VerifiedIdentity>, String>> =
    LazyLock::new(|| people().map_err(|error| error.to_string()));

fn people() -> Result<Vec<VerifiedIdentity>, Box<dyn std::error::Error>> {
    let now = UnixTime::now();
    let authority = ThrowAwayAuthority::new(now)?;
    let expected = Expected {
        roles: &Role::ALL,
        name: None,
    };
    let mut people = Vec::new();
    for name in names() {
        let credential = authority.issue(Role::Peer, &name, now)?;
        let verifier = PrivateAuthority::new(credential.trust_anchors(), &[], 1)?;
        people.push(verifier.verify(credential.chain(), now, &expected)?);
    }
    Ok(people)
}

fn shape(asked: &Bound<'_, PyDict>) -> PyResult<PeersShape> {
    let kind = |name: String| {
        PeersFaultKind::from_name(&name).ok_or_else(|| {
            let names = PeersFaultKind::ALL.map(|(name, _)| name).join(", ");
            no_such("faults", &name, &format!("some of {names}"))
        })
    };
    let faults: Option<Vec<String>> = value(asked, "faults")?;
    let faults = faults.map(|names| names.into_iter().map(kind).collect::<PyResult<_>>());
    Ok(PeersShape {
        nodes: value(asked, "nodes")?,
        links: value(asked, "links")?,
        messages: value(asked, "messages")?,
        faults: faults.transpose()?,
    })
}

/// The names of what can go wrong.
#[pyfunction]
pub(super) fn links_fault_names() -> Vec<&'static str> {
    PeersFaultKind::ALL.map(|(name, _)| name).to_vec()
}

/// What a seed is made of, as text.
#[pyfunction]
pub(super) fn links_scenario(seed: u64, shape: &Bound<'_, PyDict>) -> PyResult<String> {
    let shape = self::shape(shape)?;
    Ok(format!("{:#?}", PeersScenario::shaped(seed, &shape)))
}

/// Plays seeds, each twice, from `first` on, as `system_runs` does.
#[pyfunction]
#[pyo3(signature = (first, count, seconds, threads, shape, finished))]
pub(super) fn links_runs(
    py: Python<'_>,
    first: u64,
    count: Option<u64>,
    seconds: Option<f64>,
    threads: NonZeroUsize,
    shape: &Bound<'_, PyDict>,
    finished: Py<PyAny>,
) -> PyResult<()> {
    let shape = self::shape(shape)?;
    let people = PEOPLE
        .as_ref()
        .map_err(|error| PyRuntimeError::new_err(error.clone()))?;
    seeds_in_parallel(
        py,
        first,
        count,
        seconds,
        threads,
        |seed| {
            let scenario = PeersScenario::shaped(seed, &shape);
            let played = play_twice(&scenario, people);
            (scenario, played)
        },
        |py, (scenario, played)| finished.call1(py, (row(py, &scenario, played)?,)).map(drop),
    )
}

fn row<'py>(
    py: Python<'py>,
    scenario: &PeersScenario,
    played: Result<PeersReport, Box<BrokenRun>>,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("seed", scenario.seed)?;
    row.set_item("nodes", scenario.peers.len())?;
    row.set_item("links", scenario.bindings.len())?;
    let (broken, trace, report) = match played {
        Ok(report) => (None, Vec::new(), report),
        // What is known of a run that broke off is when it did.
        Err(broken) => {
            let report = PeersReport {
                steps: broken.violation.step,
                ended_at: broken.violation.at,
                ..PeersReport::default()
            };
            (Some(broken.violation.what), broken.trace, report)
        }
    };
    row.set_item("broken", broken)?;
    row.set_item("trace", trace)?;
    row.set_item("faults", report.faults)?;
    row.set_item("posts", report.posts)?;
    row.set_item("requests", report.requests)?;
    row.set_item("calls", report.calls)?;
    row.set_item("replies", report.replies)?;
    row.set_item("requests_lost", report.lost)?;
    row.set_item("losses", report.losses)?;
    row.set_item("refused", report.refused)?;
    row.set_item("looked_up", report.looked_up)?;
    row.set_item("ended", report.ended)?;
    row.set_item("sessions", report.sessions)?;
    row.set_item("renewed", report.renewed)?;
    row.set_item("surplus", report.surplus)?;
    row.set_item("resumed", report.resumed)?;
    row.set_item("wire_bytes", report.wire_bytes)?;
    row.set_item("events", report.steps)?;
    row.set_item("virtual_s", report.ended_at.as_secs_f64())?;
    row.set_item("digest", format!("{:016x}", report.digest))?;
    Ok(row)
}
