//! What came out of a run.

use std::time::Duration;

use exoskel_flow::Index;
use thiserror::Error;

/// A run that went to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many events there were.
    pub steps: u64,
    /// Of all events in their order: equal for equal scenarios.
    pub digest: u64,
    /// When the last outcome was taken.
    pub makespan: Duration,
    /// Items with a result.
    pub results: u64,
    /// Items that failed.
    pub failed: Vec<Index>,
    /// How many times a segment was started for an item.
    pub started: u64,
    /// How many of those were not the first time.
    pub started_twice: u64,
    /// Items started at slots that died, without an answer that came in time.
    pub unfinished: u64,
    /// Frames that were sent.
    pub frames: u64,
    /// Items asked back and given back.
    pub recalled: u64,
    /// Time spent in functions, all slots together.
    pub busy: Duration,
    /// The most items between admission and taking.
    pub inside_max: u64,
    /// The most result bytes held, and reserved, at once.
    pub result_bytes_max: u64,
    /// When each item's outcome was there, for items below a few thousand.
    pub finished_at: Vec<Duration>,
}

/// A run that broke a promise. The text says which scenario to run again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("seed {seed}, step {step}, {at:?}: {what}")]
pub struct Violation {
    /// The scenario's seed.
    pub seed: u64,
    /// The event at which it showed.
    pub step: u64,
    /// The virtual time.
    pub at: Duration,
    /// What was promised and did not hold.
    pub what: String,
}
