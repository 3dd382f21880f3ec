//! The study of session-key caches: what traffic asks of one, and how often it has the key.
//!
//! # Layout
//!
//! * `model`: how many keys are in use at once, in closed form
//! * `periods`: when a program computes and when it communicates
//! * `sequence`: how often a cache has the key, where only the order counts; `s3_fifo`: a replacement policy that the runtime doesn't have
//! * `on_off`, `requests`: synthetic traces (real ones come from the crate `exoskel-trace`); `program`: a trace made ready to run; `ranks_per_card`: which ranks share a card
//! * `parameters`: everything that can be set; `study`: parameters and jobs; `outcome`: what came out of a run
//! * `run`: the machine; `agenda` and `event`: what happens when; `time`: whole picoseconds
//! * `network`: between the processes' memories; in it `card`, `switch` and `link`, or, for messages without packets, `flow`; `flight`: messages and packets on their way
//! * `key_source`: where a card has its keys from; in it `key_memory` and `prefetch`, a buffer beside the runtime's own cache; `cipher`: how long AES-GCM takes
//! * `scheduler`: who gets a node's processor

#![forbid(unsafe_code)]

mod agenda;
mod card;
mod cipher;
mod error;
mod event;
mod flight;
mod flow;
mod key_memory;
mod key_source;
mod link;
pub mod model;
mod network;
mod on_off;
mod outcome;
mod parameters;
pub mod periods;
mod prefetch;
mod program;
mod ranks_per_card;
mod requests;
mod run;
mod s3_fifo;
mod scheduler;
pub mod sequence;
mod study;
mod switch;
mod time;

pub use error::KeycacheError;
pub use on_off::OnOff;
pub use outcome::{JobOutcome, KeyMemoryOutcome, Latency, RunOutcome};
pub use parameters::{
    Forwarding, KeySource, Level, LookupUnit, Parameters, SchedulerKind, SwitchKind,
};
pub use prefetch::{PrefetchError, PrefetchSettings, PrefetchingCache, PrefetchingCounters};
pub use program::ReplayProgram;
pub use ranks_per_card::RanksPerCard;
pub use requests::{RequestsError, requests};
pub use run::Run;
pub use s3_fifo::S3Fifo;
pub use study::Study;
