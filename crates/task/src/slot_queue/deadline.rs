//! How long an item may run: when it is told to end, and when its slot ends without it.

use std::time::Duration;

use bytes::Bytes;

use super::{BegunItem, ItemKey, Kind, Outgoing, SlotQueue, ToldItem};
use crate::message::ToManager;
use crate::payload::Format;

/// Who was told to end has at least so long to do so.
const GRACE_MIN: Duration = Duration::from_secs(1);

/// The grace is at least this part of the timeout.
const GRACE_PART: u32 = 10;

/// Between two looks at what runs at least.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// How long the items of a program may run, and the answer for one that doesn't end.
#[derive(Debug, Clone)]
pub(super) struct TimeLimit {
    timeout: Duration,
    answer: Option<TimeoutAnswer>,
}

/// The exception of an item that runs for too long and can't be told to end. It is written before any item runs, since
/// whoever sends it can't ask the interpreter.
#[derive(Debug, Clone)]
pub struct TimeoutAnswer {
    /// The body of its record, as plain data.
    pub body: Bytes,
    /// Whether it is one of those that the program wants its items to be run again for.
    pub retriable: bool,
}

/// Until when the running item must have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) key: ItemKey,
    /// Zero if nobody needs the item any more.
    timeout: Duration,
    due: Duration,
    is_told: bool,
}

/// What is to be done about an item that runs for too long.
#[derive(Debug)]
pub enum Overdue {
    /// Raise an exception in it.
    Tell,
    /// It has not ended although it was told to. It has its outcome now, and this slot must say good-bye and end.
    Leave(Vec<Outgoing>),
}

impl TimeLimit {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            answer: None,
        }
    }
}

impl Deadline {
    /// When something has to be done about it.
    fn at(&self) -> Duration {
        let grace = GRACE_MIN.max(self.timeout / GRACE_PART);
        let grace = if self.is_told { grace } else { Duration::ZERO };
        self.due.saturating_add(grace)
    }
}

impl SlotQueue {
    /// Says how an item of this stream is answered for that runs for too long and does not end when it is told to.
    pub fn set_timeout_answer(&mut self, stream: u32, answer: TimeoutAnswer) {
        if let Some(Some(limit)) = self.programs.get_mut(&stream) {
            limit.answer = Some(answer);
        }
    }

    /// When to look at what runs, if it must be looked at: an item that begins meanwhile says nothing of itself.
    #[must_use]
    pub fn look_at(&self, now: Duration) -> Option<Duration> {
        if self.is_idle() {
            return None;
        }
        // What runs must end in time even when its program is forgotten: others wait for the slot.
        let due = self.deadline.as_ref().map(Deadline::at);
        let limits = self.programs.values().flatten();
        let shortest = limits.map(|limit| limit.timeout).min();
        let next = shortest.map(|shortest| now.saturating_add(shortest.max(LOOK_MIN)));
        due.into_iter().chain(next).min()
    }

    /// What the running item needs is loaded, which is not its own time.
    pub fn pause_clock(&mut self) {
        self.paused = self.deadline.take();
    }

    /// It is loaded: the item's time begins now.
    pub fn start_clock(&mut self, now: Duration) {
        let paused = self.paused.take();
        if let Some(deadline) = paused.filter(|_| self.deadline.is_none()) {
            self.deadline = Some(Deadline {
                due: now.saturating_add(deadline.timeout),
                ..deadline
            });
        }
    }

    /// Nobody needs an item any more: it is to end if it runs, to go back if it is the last one of its frame to begin, and its result is dropped
    /// if that waits for a grant. Says what is to be sent.
    pub(super) fn end_item(&mut self, frame: u64, index: u64) -> Vec<Outgoing> {
        if let Some((_, held)) = self.held.remove(&(frame, index)) {
            return held.give_up().into_iter().collect();
        }
        if let Some(BegunItem { key, .. }) = self.running
            && (key.frame, key.index) == (frame, index)
        {
            self.end_running(key);
            return Vec::new();
        }
        let mut jobs = self.jobs.iter();
        let is_last = jobs.any(|job| {
            job.execute.frame == frame && job.next <= index && job.end == index.saturating_add(1)
        });
        if !is_last {
            return Vec::new();
        }
        let (first, count) = self.give_back(frame, 1);
        let recalled = ToManager::Recalled {
            frame,
            first,
            count,
        };
        vec![recalled.into()]
    }

    /// Nobody needs the running item any more.
    pub(super) fn end_running(&mut self, key: ItemKey) {
        // Who is told already has its time.
        if self.deadline.is_none_or(|deadline| !deadline.is_told) {
            self.deadline = Some(Deadline {
                key,
                timeout: Duration::ZERO,
                due: Duration::ZERO,
                is_told: false,
            });
        }
    }

    /// Whether the running item must have ended by some time.
    #[must_use]
    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the items of any program may run for some time only.
    #[must_use]
    pub fn has_time_limits(&self) -> bool {
        self.limited > 0
    }

    /// How long the running item could run, if that is over and it is to end; zero if it is to end since nobody needs it any more.
    #[must_use]
    pub fn overdue_after(&self) -> Option<Duration> {
        let told = self.deadline.as_ref().filter(|deadline| deadline.is_told);
        told.map(|deadline| deadline.timeout)
    }

    /// Looks whether what runs is overdue.
    pub fn look(&mut self, now: Duration) -> Option<Overdue> {
        let deadline = self.deadline.as_mut()?;
        if now < deadline.at() {
            return None;
        }
        let is_unneeded = deadline.timeout.is_zero();
        if !std::mem::replace(&mut deadline.is_told, true) {
            if is_unneeded {
                deadline.due = now;
            }
            return Some(Overdue::Tell);
        }
        let key = deadline.key;
        let limit = self.programs.get(&key.stream).cloned().flatten();
        let limit = limit.filter(|_| !is_unneeded);
        let mut outgoing = Vec::new();
        if let Some(TimeoutAnswer { body, retriable }) = limit.and_then(|limit| limit.answer) {
            let kind = if retriable {
                Kind::Retriable
            } else {
                Kind::Outcome
            };
            // A text of a few words is below every limit.
            if let Ok(answers) = self.finish_as(key, ToldItem::of(key, kind), now, |writer| {
                writer.push(Format::Data, true, &body, &[], []);
            }) {
                outgoing.extend(answers);
            }
        }
        outgoing.extend(self.take_pending().into_outgoing());
        self.deadline = None;
        self.has_given_up = true;
        Some(Overdue::Leave(outgoing))
    }

    /// The item begins.
    pub(super) fn expect(&mut self, key: ItemKey, now: Duration) {
        if !self.has_time_limits() {
            self.deadline = None;
            return;
        }
        let limit = self.programs.get(&key.stream).and_then(Option::as_ref);
        self.deadline = limit.map(|limit| Deadline {
            key,
            timeout: limit.timeout,
            due: now.saturating_add(limit.timeout),
            is_told: false,
        });
    }

    /// An item of this frame has ended its way, or its way to the rest of its functions: the next one that has passed the
    /// serial function begins those.
    pub(super) fn expect_rest(&mut self, key: ItemKey, now: Duration) {
        match self.rest {
            Some(rest) if rest.frame == key.frame => {
                let index = rest.end - rest.left;
                self.expect(ItemKey { index, ..key }, now);
            }
            // What is answered for late has no part in that.
            _ if self.runs_another(key.frame) => {}
            _ => self.deadline = None,
        }
    }
}
