//! The whole system in virtual time: a manager, its workers and its users, with nothing simulated but what is outside of
//! them.
//!
//! The machines of manager and slots, the sessions, the records and handshake messages, the scheduler, the router and the slot
//! queues are those that run over sockets. Simulated are the wires, the clocks, the processes that run items, the users, and the TLS
//! engine, in whose place a secret is given. A [`Scenario`] says what there is and what goes wrong; [`Scenario::from_seed`] makes one
//! of a number. A run is a function of its scenario, and checks what is promised as it goes:
//!
//! * each item has exactly one outcome, unless its user took it back or closed its stream, and it is the item's own
//! * what slots, users and sessions get is what was sent, once and in order
//! * what must be encrypted is never seen on a wire, and a session has the protections that both policies demand
//! * a session meets an error only if there was a fault that explains it
//! * a serial function runs at one slot at a time
//! * with a journal, each result is in the sink once, whatever has ended the manager's processes
//! * nothing of a manager that crashed counts for the next one
//! * who lacks modules or can't run the initializer, breaks its sessions again and again or is no longer allowed gets no items and is not asked again, nothing of
//!   it counts, and nobody else is treated so
//! * what is inside, held and queued keeps within its limits
//! * once faults stop, everything ends, and nothing stays anywhere
//!
//! `docs/virtual-time.md` has more.
//!
//! # Layout
//!
//! * `scenario`: what is simulated; `generator`: scenarios from seeds; `report`: what came out
//! * `machine`: the run; `faults`: what goes wrong in it; `world`: time, wires, chance and the eye on the wires
//! * `drivers`: carries between sessions and the machines of manager and slots, as `net`'s drivers do
//! * `manager`, `worker`: the processes around them; `at_manager`, `at_worker`: how they meet, and what happens there; `interpreter`: what runs items; `carrying`: with a state
//! * `membership`, `budgets`: what is checked of who takes part, and of limits
//! * `handshake`: what stands in the place of TLS; `line`: a session's end of a wire; `wires`, `clock`: what is between and around
//! * `journals`: runs with a journal on a faulty disk; `journalled`: how users go about them
//! * `streams`: the users and their checks; `program`: what their programs make of items; `content`: what items hold

mod at_manager;
mod at_worker;
mod budgets;
mod carrying;
mod clock;
mod content;
mod drivers;
mod faults;
mod generator;
mod handshake;
mod interpreter;
mod journalled;
mod journals;
mod known_workers;
mod line;
mod machine;
mod manager;
mod membership;
mod program;
mod report;
mod scenario;
mod streams;
mod wires;
mod worker;
mod world;

pub use report::Report;
pub use scenario::{
    InjectedFault, KeyRoom, Node, Scenario, StreamScenario, TakingOrder, WorkerScenario, WriteEnd,
};

use crate::twice::{guarded, twice};
use crate::violation::Violation;
use machine::Machine;

/// Plays a scenario to its end.
///
/// # Errors
/// The first broken promise.
pub fn run(scenario: &Scenario) -> Result<Report, Violation> {
    Machine::new(scenario.clone())?.run()
}

/// Plays a scenario once, for who has many of them.
///
/// # Errors
/// The first broken promise, as [`play_twice`] has it.
pub fn play_once(scenario: &Scenario) -> Result<Report, Violation> {
    guarded(scenario.seed, || run(scenario))
}

/// Plays a scenario twice, as everybody does who looks for what is broken: both plays must have the same report, and
/// a panic of what is played is a broken promise as any other.
///
/// # Errors
/// The first broken promise.
pub fn play_twice(scenario: &Scenario) -> Result<Report, Violation> {
    twice(scenario.seed, || run(scenario), |report| report.digest)
}
