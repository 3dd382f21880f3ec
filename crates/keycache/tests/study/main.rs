//! The key-cache simulator through its public doors.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "traces are files, and a test may read them"
)]

mod cards;
mod packets;
mod programs;
mod properties;
mod schedulers;
mod traces;
mod workload;
