//! Virtual time: the same link and flow machines through a simulated network with faults.
//!
//! A [`Simulation`] runs a [`Scenario`]: the real [`Scheduler`](exoskel_flow::Scheduler), simulated slots that take
//! time, a simulated network between them, a user who admits items and takes outcomes. Nothing here reads a clock; all
//! randomness comes from the scenario's seed, and what happens at the same time happens in the order in which it was
//! planned. So a run is a function of its scenario, its [`Report`] carries a digest of everything that happened, and
//! whatever fails can be seen again by running the scenario that the message prints.
//!
//! A [`Conversation`] does the same for two [`Session`](exoskel_link::Session)s: real records over a wire that is late, cut, silent
//! or altered.
//!
//! In [`system`] both come together, with everything that stands between scheduler and session in a real manager and its slots.
//!
//! # Layout
//!
//! * `random`: the generator; `agenda`: what happens when
//! * `network`: how long a message is on the way
//! * `process`: a slot that runs items in order, flushes, gives back and announces
//! * `conversation`: two sessions and the wire between them
//! * `keycache`: the session-key cache under the traffic of real programs
//! * `farm`: farms and pipelines of thousands of slots, and a manager whose work takes time
//! * `scenario`: what is simulated; `simulation`: the machine that does it and checks it; `report`: what came out

#![forbid(unsafe_code)]

mod agenda;
mod conversation;
mod digest;
mod farm;
pub mod keycache;
mod network;
mod process;
mod random;
mod report;
mod scenario;
mod simulation;
pub mod system;

pub use conversation::{Conversation, ConversationReport, WireFault};
pub use farm::{LargeFarm, LargeFarmReport};
pub use network::LinkModel;
pub use random::SplitMix64;
pub use report::{Report, Violation};
pub use scenario::{Fault, Scenario, Service};
pub use simulation::Simulation;
