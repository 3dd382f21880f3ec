//! Skeleton programs as macro data flow: who runs what next, without I/O.
//!
//! A [`Skeleton`] is compiled to a [`Program`]: a row of segments that one slot runs without giving the token back. A
//! [`Scheduler`] keeps, for every stream of items, who holds which index range, and answers one question:
//! [`Scheduler::poll_action`], what to do next. Everything that happens (items admitted, results, losses) is a method
//! that takes the time as an argument; nothing here reads a clock, opens a socket or knows what a payload looks like.
//!
//! # Layout
//!
//! * `program`: the skeletons and what they compile to
//! * `scheduler`: the public machine: slots and streams in, actions out
//! * `dispatch`: which slot gets which frame, with `frame_size` and `lease`; `recall`: taking work back from a slot that has too much
//! * `answers`: results, leases given back, results that wait for a grant; `grant`: who may send a large result now
//! * `recovery`: what happens to the items of a lost slot
//! * `slot_table`: all slots, and the order in which they choose
//! * `workload`: what is seen of all of it; `contract`: how many slots there should be, by that
//! * `stream`, `item`, `slot`, `frame`, `ranges`: the state of each; `estimate`: how long an item takes
//!
//! # Invariants
//!
//! * Every admitted item gives exactly one outcome, unless it is cancelled or its stream is closed.
//! * A serial function runs on at most one slot at a time, for each stream.
//! * A suspect (an item that was at a lost slot among others) runs alone.
//! * A slot sends no more result bytes than it was granted, or its session ends.
//! * An item holds one ticket from [`Scheduler::admit`] to [`Scheduler::taken`]; the oldest item not
//!   taken may always move, so nothing waits in a circle.

#![forbid(unsafe_code)]

mod action;
mod answers;
mod carried;
mod config;
pub mod contract;
mod dispatch;
mod error;
mod estimate;
mod frame;
mod grant;
mod item;
mod overdue;
mod program;
mod ranges;
mod recall;
mod recovery;
mod scheduler;
mod slot;
mod slot_table;
mod statistics;
mod stragglers;
mod stream;
mod workload;

pub use action::{
    Accepted, Action, Cancel, Departure, Failure, FrameId, Index, Lease, Results, SlotId, StreamId,
};
pub use config::{SchedulerConfig, StreamOptions, Tickets};
pub use error::{Breach, FlowError};
pub use program::{
    CarriedStart, FunctionId, LineRole, PROGRAM_FUNCTIONS_MAX, Program, ProgramError, ProgramLine,
    SKELETON_DEPTH_MAX, Segment, SegmentStep, Skeleton, Then,
};
pub use ranges::RangeSet;
pub use scheduler::Scheduler;
pub use statistics::{SlotStatistics, StreamProgress};
pub use workload::Workload;
