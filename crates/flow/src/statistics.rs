//! Numbers for people: what slots did, how far a stream is.

use std::time::Duration;

/// What one slot did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotStatistics {
    /// Items whose result (of any segment) came from here and counted.
    pub items: u64,
    /// Frames sent here.
    pub frames: u64,
    /// Results that counted, in bytes.
    pub bytes_received: u64,
    /// Time spent in the user's functions.
    pub busy: Duration,
    /// Time for which it had items, up to its last answer.
    pub occupied: Duration,
    /// Items that the slot was asked to give back, for others or for a lease.
    pub asked: u64,
    /// Those of them that it had begun.
    pub asked_in_vain: u64,
    /// Items given back before they were started.
    pub recalled: u64,
    /// Items that were here when the slot was lost and may have been started; they run once more elsewhere.
    pub put_back: u64,
    /// Items that a second slot got as well, since they ran for too long here.
    pub stragglers: u64,
    /// Items that are here now.
    pub outstanding: u64,
}

/// How far a stream is, in items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamProgress {
    /// Admitted so far.
    pub admitted: u64,
    /// With an outcome so far.
    pub finished: u64,
    /// Outcomes taken by the user (or cancelled) so far.
    pub taken: u64,
    /// Ready to run, but at no slot.
    pub ready: u64,
    /// At slots.
    pub out: u64,
    /// Whether no more items will come.
    pub input_ended: bool,
}
