//! Programs with links of their own in virtual time: nodes that offer endpoints, bind startpoints, post and request, while wires break, hosts
//! stand still and processes die.
//!
//! The machine of a node's links, the sessions, the records and handshake messages are those that run over sockets. Simulated are the wires,
//! the processes' handlers and users, and the TLS engine. A run checks as it goes:
//!
//! * each post and each request reaches its endpoint once, in the order of its link, or the link says that it is lost; and it is lost only if
//!   a process died, a right was taken back, or somebody was away for longer than links wait
//! * each request has one outcome, and a reply is its own
//! * what must be encrypted is never seen on a wire
//! * nobody calls what no startpoint allows him: not who isn't meant, not by a handler that was left out, not after the right was revoked or
//!   has expired; and a looked-up startpoint is given, and is good, exactly as long as rules say so
//! * nobody waits for a process that has left in good order, and what has come from it is handled
//! * policies and certificates that are renewed cost no message
//! * in the end two processes have one session
//!
//! # Layout
//!
//! * `scenario`: what is simulated; `generator`: scenarios from seeds
//! * `run`: the run, with `run/connections`: dialling and sessions, `run/bindings`: what is said, `run/rules`: what time and rules end, and `run/faults`: what goes wrong, `run/tracing`: what a trace says; `peer`: one process; `wire`: what is between two
//! * `ledger`: what was said, and what is checked of it; `trace`: what happened last

mod generator;
mod ledger;
mod peer;
mod run;
mod scenario;
mod trace;
mod wire;

use std::fmt;

use exoskel_identity::VerifiedIdentity;

pub use scenario::{
    BindingScenario, Mischief, NODES_MAX, PeersFault, PeersFaultKind, PeersReport, PeersScenario,
    PeersShape,
};

use crate::twice::{guarded, twice};
use crate::violation::Violation;
use trace::TraceEnd;

/// Whose certificates a run needs, all of the role `peer`: those who may take part, and one who is somebody else.
#[must_use]
pub fn names() -> Vec<String> {
    let own = (0..NODES_MAX).map(|number| format!("peer{number}.example.org"));
    own.chain(["somebody.example.net".to_owned()]).collect()
}

/// A run that broke a promise, and what happened before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRun {
    /// The promise.
    pub violation: Violation,
    /// The last events, the newest last.
    pub trace: Vec<String>,
}

impl fmt::Display for BrokenRun {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.violation)?;
        let mut lines = self.trace.iter();
        lines.try_for_each(|line| write!(formatter, "\n    {line}"))
    }
}

/// Plays a scenario to its end. The peers have these identities, which are those of [`names`].
///
/// # Errors
/// The first broken promise.
pub fn run(
    scenario: &PeersScenario,
    people: &[VerifiedIdentity],
) -> Result<PeersReport, Violation> {
    run::PeersRun::new(scenario.clone(), people.to_vec(), None).run()
}

/// Plays a scenario twice: both plays must have the same report, and a panic of what is played is a broken promise as any other.
///
/// # Errors
/// The first broken promise, with the end of the trace.
pub fn play_twice(
    scenario: &PeersScenario,
    people: &[VerifiedIdentity],
) -> Result<PeersReport, Box<BrokenRun>> {
    let played = twice(
        scenario.seed,
        || run(scenario, people),
        |report| report.digest,
    );
    played.map_err(|violation| {
        // Nobody writes down what happens in a run that holds: the trace is that of another play.
        let trace = TraceEnd::default();
        let _ = guarded(scenario.seed, || {
            run::PeersRun::new(scenario.clone(), people.to_vec(), Some(trace.clone())).run()
        });
        Box::new(BrokenRun {
            violation,
            trace: trace.lines(),
        })
    })
}
