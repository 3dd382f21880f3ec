//! Jobs in virtual time: a creator, the agents of several hosts and the processes that they start, while lines are slow or cut, and
//! processes, agents and creators die.
//!
//! The machines of the creator, of the agents and of slots that are replaced are those that run in programs. Simulated are the lines between
//! creator and agents, what starts processes, and the processes: when they join, ask for siblings, return and end. Sessions between siblings
//! are played in [`peers`](crate::peers). A run checks as it goes:
//!
//! * no two processes of a job have one number, and no host has more of them than it lets be
//! * each future has one outcome, with the reason that is true; none of a living creator stays without one
//! * a group is told once, and once more when others are in the place of some; it names exactly the members that are there
//! * who asks for a sibling learns where it is, and learns of another one in its place
//! * slots that end are replaced, until that is hopeless
//! * nothing runs on a host after its job has ended: within [`GRACE`](exoskel_node::job::GRACE) from when its agent has noticed that
//!
//! # Layout
//!
//! * `scenario`: what is simulated; `generator`: scenarios from seeds
//! * `run`: the run, with `run/creator`: the creator's driver, `run/agent`: that of an agent, `run/processes`: what processes do, `run/faults`:
//!   what goes wrong, `run/settling`: what is looked at when all is quiet; `line`: what is between creator and agent
//! * `ledger`: what is true, and what is checked of it

mod generator;
mod ledger;
mod line;
mod run;
mod scenario;

pub use scenario::{
    JobGroupScenario, JobsEnd, JobsFault, JobsMischief, JobsReport, JobsScenario, PlayedProgram,
};

use crate::twice::twice;
use crate::violation::Violation;

/// Plays a scenario to its end.
///
/// # Errors
/// The first broken promise.
pub fn run(scenario: &JobsScenario) -> Result<JobsReport, Violation> {
    run::JobsRun::new(scenario.clone()).run()
}

/// Plays a scenario twice: both plays must have the same report, and a panic of what is played is a broken promise as any other.
///
/// # Errors
/// The first broken promise.
pub fn play_twice(scenario: &JobsScenario) -> Result<JobsReport, Violation> {
    twice(scenario.seed, || run(scenario), |report| report.digest)
}
