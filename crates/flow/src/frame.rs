//! One dispatch of a run of items to one slot, until the slot has answered for all of them.

use std::ops::Range;
use std::time::Duration;

use crate::{Breach, FrameId, Index, Lease, SchedulerConfig, StreamId, Then};

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
    /// The first segment that its items pass, and the last one.
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// The last one that a slot may run through, which it does where it can't give back what it has.
    pub(crate) furthest: u16,
    /// What becomes of the results of that one.
    pub(crate) then: Then,
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
    /// The part that the frame was given in its first segment, if that is serial.
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

    /// Whether its items can have got so far: they pass the segments in order, and one at least, or have got where the last one leads to. Says
    /// whether it is that.
    pub(crate) fn check_reached(&self, got: u16, is_away: bool) -> Result<bool, Breach> {
        let (least, most) = (self.from + 1, self.furthest + 1);
        let leads_to = match self.then {
            Then::Expand { join, .. } if is_away => join,
            Then::Expand { after, .. } => after,
            Then::Repeat { from, .. } => Some(from).filter(|from| *from < self.furthest),
            Then::Next | Then::Fold => None,
        };
        if leads_to == Some(got) {
            return Ok(true);
        }
        if !is_away && (least..=most).contains(&got) {
            return Ok(false);
        }
        Err(Breach::Reached { got, least, most })
    }

    /// The part of an answer's range that this frame can be answerable for. Takes any numbers.
    pub(crate) fn clip(&self, first: Index, count: u32) -> Range<Index> {
        let own = self.range();
        let end = first.saturating_add(u64::from(count)).min(own.end);
        let start = first.max(own.start);
        start..end.max(start)
    }

    /// How many items could be asked back for themselves, when `started` of them must be taken as started. Those of a
    /// serial function would gain nothing by it as long as their slot has its lease; what has passed it comes back as tokens for the next
    /// segment, which pays when the stream `is_ending`: until then the frame keeps its slot busy while the lease goes round.
    pub(crate) fn recallable(&self, started: u32, is_ending: bool) -> u32 {
        let waits = match self.lease {
            Lease::None => true,
            Lease::Kept => false,
            Lease::PassedOn => is_ending && !self.leased,
        };
        if waits && !self.suspect && self.recall == RecallState::Idle {
            self.running().saturating_sub(started)
        } else {
            0
        }
    }

    /// So many items were given back halfway, before the answer to what asked for them.
    pub(crate) fn given_back(&mut self, items: u32) {
        if let RecallState::Asked(asked) = &mut self.recall {
            *asked = asked.saturating_sub(items);
        }
    }

    /// Whether this frame could be asked back so that the lease can move.
    pub(crate) fn lends(&self) -> bool {
        self.leased && !self.suspect && self.running() > 0 && self.recall == RecallState::Idle
    }
}
