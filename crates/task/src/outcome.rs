//! What items came to, as the user gets it.

use std::sync::Arc;

use crate::payload::RecordReader;

/// Which process some outcomes come from.
#[derive(Debug, PartialEq, Eq)]
pub struct Origin {
    /// The worker's name.
    pub worker: String,
    /// Whether what it sends must be decoded with restrictions: it is outside the trusted domains.
    pub restricted: bool,
}

/// Outcomes of consecutive items.
#[derive(Debug)]
pub struct Outcomes {
    /// The first item.
    pub first: u64,
    /// Number of items.
    pub count: u32,
    /// What they are.
    pub contents: Contents,
}

/// What outcomes are.
#[derive(Debug)]
pub enum Contents {
    /// Values and exceptions from a worker.
    Records(RecordReader, Arc<Origin>),
    /// The item took down so many workers, one after the other, while it ran alone.
    WorkersLost(u32),
}
