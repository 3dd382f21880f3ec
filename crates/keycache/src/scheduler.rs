//! Who gets a node's processor.
//!
//! The taxonomy is that of Nagar, Banerjee, Sivasubramaniam and Das (JPDC 1999), which the paper builds on: what a process does while it waits for
//! a message (spin; spin for a time, then block), and what a message's arrival does (nothing; the processor for its process; a boost from time to
//! time). Below that lies [`ReadyQueues`], a local scheduler after Linux 2.6, or, for batch and gang, one job's [turn](Turns) on all nodes.

mod ready_queues;
mod turns;

pub(crate) use ready_queues::ReadyQueues;
pub(crate) use turns::Turns;

use crate::parameters::{Parameters, SchedulerKind};
use crate::time::Picoseconds;

/// A scheduler, in the terms above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerRules {
    /// How long a process spins before it blocks; `None`: for as long as it waits.
    pub(crate) spin: Option<Picoseconds>,
    /// Whether a message for a blocked process gives it the processor, and not only a place in the queue.
    pub(crate) arrival_boosts: bool,
    /// How often a process with messages that it hasn't taken gets the processor.
    pub(crate) boost_period: Option<Picoseconds>,
    /// Whether one job has all nodes at a time, and for how long if others wait.
    pub(crate) turns: Option<Slice>,
}

/// How long a job's turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Until it ends.
    Whole,
    /// Until then, if it hasn't ended.
    Of(Picoseconds),
}

impl SchedulerRules {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let time = Picoseconds::from_nanoseconds;
        let local = Self {
            spin: None,
            arrival_boosts: false,
            boost_period: None,
            turns: None,
        };
        match parameters.scheduler {
            SchedulerKind::Batch => Self {
                turns: Some(Slice::Whole),
                ..local
            },
            SchedulerKind::Local => local,
            SchedulerKind::SpinBlock => Self {
                spin: Some(time(parameters.spin_ns)),
                ..local
            },
            SchedulerKind::DynamicCoscheduling => Self {
                spin: Some(time(parameters.spin_ns)),
                arrival_boosts: true,
                ..local
            },
            SchedulerKind::PeriodicBoost => Self {
                boost_period: Some(time(parameters.boost_period_ns)),
                ..local
            },
            SchedulerKind::Gang => Self {
                turns: Some(Slice::Of(time(parameters.gang_slice_ns))),
                ..local
            },
        }
    }
}
