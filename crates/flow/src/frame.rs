//! One dispatch of a run of items to one slot, until the slot has answered for all of them.

use std::ops::Range;
use std::time::Duration;

use crate::{FrameId, Index, Lease, SchedulerConfig, StreamId};

/// Whether items of a frame were asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecallState {
    /// Not now.
    Idle,
    /// So many were asked; the slot has not answered.
    Asked(u32),
    /// The slot gave back less than asked: it has started the rest.
    Exhausted,
}

/// What is known of a dispatched frame. Its items know the rest (see [`crate::item::Item`]).
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) id: FrameId,
    pub(crate) stream: StreamId,
    pub(crate) segment: u16,
    pub(crate) first: Index,
    pub(crate) count: u32,
    /// Items without an answer: running, queued, announced or granted.
    pub(crate) pending: u32,
    /// Pending items that have run and whose results wait at the slot or are on the way.
    pub(crate) executed: u32,
    /// Result bytes that each item may send without asking.
    pub(crate) grant: u64,
    /// Estimated time of an item when it was dispatched.
    pub(crate) item_nanos: u64,
    /// A single item that must run alone.
    pub(crate) suspect: bool,
    /// The part that the frame was given in its segment's serial function.
    pub(crate) lease: Lease,
    /// Whether the frame still has its lease.
    pub(crate) leased: bool,
    /// What the serial function took for each of its items, once the slot has said so.
    pub(crate) serial_nanos: u64,
    pub(crate) recall: RecallState,
    /// When the frame was sent.
    pub(crate) since: Duration,
    /// When the frame was sent, and whether the slot had other work then; until its first results.
    pub(crate) sent: Option<(Duration, bool)>,
}

impl Frame {
    pub(crate) fn range(&self) -> Range<Index> {
        self.first..self.first + u64::from(self.count)
    }

    /// Items that are running or queued: what keeps the slot busy, and what may have ended it if it is lost.
    pub(crate) fn running(&self) -> u32 {
        self.pending - self.executed
    }

    /// The time a slot can have spent on this frame, of what it says: not more than there was since it was sent, but
    /// for clocks that differ by less than a short frame takes.
    pub(crate) fn credible(
        &self,
        busy: Duration,
        config: &SchedulerConfig,
        now: Duration,
    ) -> Duration {
        let elapsed = now.saturating_sub(self.since);
        busy.min(elapsed.saturating_add(config.frame_time))
    }

    /// The part of an answer's range that this frame can be answerable for. Takes any numbers.
    pub(crate) fn clip(&self, first: Index, count: u32) -> Range<Index> {
        let own = self.range();
        let end = first.saturating_add(u64::from(count)).min(own.end);
        let start = first.max(own.start);
        start..end.max(start)
    }

    /// How many items could be asked back for themselves, when `started` of them must be taken as started. Those of a
    /// serial function would gain nothing by it as long as their slot has its lease.
    pub(crate) fn recallable(&self, started: u32) -> u32 {
        if self.lease == Lease::None && !self.suspect && self.recall == RecallState::Idle {
            self.running().saturating_sub(started)
        } else {
            0
        }
    }

    /// Whether this frame could be asked back so that the lease can move.
    pub(crate) fn lends(&self) -> bool {
        self.leased && !self.suspect && self.running() > 0 && self.recall == RecallState::Idle
    }
}
