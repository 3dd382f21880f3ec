//! A run that broke a promise.

use std::time::Duration;

use thiserror::Error;

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
