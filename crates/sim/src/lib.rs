//! Virtual time: the machines of the runtime through simulated networks with faults.
//!
//! [`system`] plays a manager, its workers and its users with everything that stands between them in the real world but
//! sockets. A [`Conversation`] plays two [`Session`](exoskel_link::Session)s: real records over a wire that is late, cut, silent
//! or altered. A [`LargeFarm`] plays the [`Scheduler`](exoskel_flow::Scheduler) at a size that the whole system can't be played at.
//!
//! Nothing here reads a clock; all randomness comes from the scenario's seed, and what happens at the same time happens in the
//! order in which it was planned. So a run is a function of its scenario, its report carries a digest of everything that
//! happened, and whatever fails can be seen again by running the scenario that the message prints.
//!
//! # Layout
//!
//! * `system`: the whole system; `peers`: programs with links of their own; `jobs`: processes on several hosts that end together
//! * `deliveries`: runs with a journal, crashed at each write
//! * `contracts`: how many slots there are, with work that changes
//! * `conversation`: two sessions and the wire between them
//! * `farm`: farms and pipelines of thousands of slots, and a manager whose work takes time
//! * `faulty_disk`: a disk that loses and tears what was not synced
//! * `agenda`: what happens when; `network`: how long a message is on the way; `service`: how long a function takes; `violation`: a broken promise; `twice`: a run that is played twice

#![forbid(unsafe_code)]

mod agenda;
pub mod contracts;
mod conversation;
pub mod deliveries;
mod farm;
mod faulty_disk;
pub mod jobs;
mod network;
pub mod peers;
mod service;
pub mod system;
mod twice;
mod violation;

pub use conversation::{Conversation, ConversationReport, WireFault};
pub use farm::{LargeFarm, LargeFarmReport, Spread};
pub use network::LinkModel;
pub use service::Service;
pub use violation::Violation;
