//! What is at a slot, and how busy that keeps it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::estimate::Least;
use crate::frame::{Frame, RecallState};
use crate::slot_table::Queue;
use crate::{FrameId, Index, SchedulerConfig, SlotId, SlotStatistics, StreamId};

/// Frames that hide sending behind computing: one runs, one waits.
pub(crate) const FRAMES_HIDING: u32 = 2;

/// For how long a slot gets nothing that gives back what it gets: from a millisecond to four seconds.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_DOUBLINGS: u32 = 12;

/// One slot. Everything counted here is about items that are running or queued; results that wait for a grant keep
/// nobody busy, and counting them would let a full budget stop the very item that frees it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: SlotId,
    pub(crate) draining: bool,
    /// It may be gone: it gets nothing more until it has shown that it isn't.
    pub(crate) suspended: bool,
    /// By ascending number, the order in which the slot works.
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) running_frames: u32,
    pub(crate) running_items: u64,
    /// Estimated work.
    work_nanos: u64,
    /// Their tokens.
    pub(crate) bytes: u64,
    /// A suspect runs here; nothing may be added.
    pub(crate) exclusive: bool,
    /// Item bytes in one frame at most, unless a single item has more.
    pub(crate) frame_bytes_max: u64,
    /// Result bytes that it may send now.
    pub(crate) receivable: u64,
    /// Granted results that are on the way although their stream was closed, and their bytes.
    pub(crate) owed: BTreeMap<(FrameId, Index), u64>,
    /// Copies of items that others have answered for, and the bytes of their tokens: they keep the slot busy, and no answer of them counts.
    pub(crate) late: BTreeMap<(FrameId, Index), u64>,
    /// Work was asked back, so the slot gets no more until it shows that it moves.
    pub(crate) held_back: bool,
    /// How often in a row it has given back what nobody had asked for, and had done nothing.
    given_back: u32,
    /// It has done so again, and gets nothing more until then.
    pub(crate) rests_until: Option<Duration>,
    /// Frames asked back and not answered.
    pub(crate) recalls: u32,
    /// When it last answered, or got work while it had none.
    pub(crate) progress: Duration,
    /// The time between sending and answer that was not spent in functions.
    round_trip: Least,
    pub(crate) statistics: SlotStatistics,
}

/// A frame has nothing more to run: its lease is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseEnd(pub(crate) StreamId, pub(crate) u16);

impl Slot {
    pub(crate) fn new(id: SlotId, now: Duration) -> Self {
        Self {
            id,
            draining: false,
            suspended: false,
            frames: VecDeque::new(),
            running_frames: 0,
            running_items: 0,
            work_nanos: 0,
            bytes: 0,
            exclusive: false,
            frame_bytes_max: u64::MAX,
            receivable: 0,
            owed: BTreeMap::new(),
            late: BTreeMap::new(),
            held_back: false,
            given_back: 0,
            rests_until: None,
            recalls: 0,
            progress: now,
            round_trip: Least::default(),
            statistics: SlotStatistics::default(),
        }
    }

    /// Nanoseconds until the slot is expected to be idle: the time since its last word went into the frame that runs.
    /// A slot that is silent for longer than that frame should take counts as busy for at least as long again.
    pub(crate) fn load(&self, now: Duration) -> u64 {
        let Some(frame) = self.frames.iter().find(|frame| frame.running() > 0) else {
            return 0;
        };
        let silence = self.silence(now);
        let front = frame.item_nanos.saturating_mul(u64::from(frame.running()));
        let left = self.work_nanos.saturating_sub(front.min(silence));
        if silence > front {
            left.max(silence)
        } else {
            left.max(1)
        }
    }

    /// Estimated work that is here, in nanoseconds.
    pub(crate) fn work_nanos(&self) -> u64 {
        self.work_nanos
    }

    /// Nanoseconds since the slot last showed that it moves.
    pub(crate) fn silence(&self, now: Duration) -> u64 {
        nanos(now.saturating_sub(self.progress))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running_items == 0 && !self.draining && self.rests_until.is_none()
    }

    /// Whether it gets work as soon as it has room.
    pub(crate) fn is_usable(&self) -> bool {
        !self.draining && !self.suspended
    }

    /// Whether it gets work now, if it has room.
    pub(crate) fn may_take(&self) -> bool {
        let is_kept_waiting = self.exclusive || self.held_back || self.rests_until.is_some();
        self.is_usable() && !is_kept_waiting
    }

    /// Where it stands in line for work; nowhere when it may get none, however much time passes.
    pub(crate) fn queue(&self, config: &SchedulerConfig) -> Option<Queue> {
        if !self.may_take() {
            None
        } else if self.running_frames < FRAMES_HIDING {
            Some(Queue::Hungry)
        } else {
            let has_room = self.running_frames < config.window_frames_max
                && self.bytes < config.window_bytes_max;
            has_room.then_some(Queue::Filled)
        }
    }

    /// Whether the window has room for a frame at all.
    pub(crate) fn accepts(&self, config: &SchedulerConfig, now: Duration) -> bool {
        match self.queue(config) {
            None => false,
            Some(Queue::Hungry) => true,
            Some(Queue::Filled) => self.load(now) < self.window(config),
        }
    }

    /// How much work may wait here, in nanoseconds: so much that none is missing while a message and its answer are
    /// on the way.
    pub(crate) fn window(&self, config: &SchedulerConfig) -> u64 {
        nanos(config.window_time).saturating_add(self.round_trip(config))
    }

    /// The measured round trip, as far as it counts.
    pub(crate) fn round_trip(&self, config: &SchedulerConfig) -> u64 {
        self.round_trip.nanos().min(nanos(config.round_trip_max))
    }

    /// The slot shows that it moves.
    pub(crate) fn speaks(&mut self, now: Duration) {
        if self.running_items > 0 {
            self.statistics.occupied += now.saturating_sub(self.progress);
        }
        self.progress = now;
    }

    /// A frame was answered for the first time, after so much time in functions. That shows the round trip: as it is
    /// when the slot had nothing else, else with the time in the queue on top. So what is known is never too short for
    /// long, and what a cold start adds goes with the next short queue.
    /// Says that too, and whether it is an upper bound.
    pub(crate) fn answered(
        &mut self,
        position: usize,
        busy: Duration,
        now: Duration,
    ) -> Option<(u64, bool)> {
        self.speaks(now);
        self.held_back = false;
        self.does_something();
        let (sent, had_others) = self.frames.get_mut(position)?.sent.take()?;
        let seen = nanos(now.saturating_sub(sent).saturating_sub(busy));
        self.round_trip.observe(seen, had_others);
        Some((seen, had_others))
    }

    /// It has answered or announced a result.
    pub(crate) fn does_something(&mut self) {
        self.given_back = 0;
        self.rests_until = None;
    }

    /// It has given back what nobody had asked for. Says until when others come first: for twice as long each time, as it could do so for ever.
    /// Once it may have a reason: a result so large that it waits with it alone.
    pub(crate) fn gives_back(&mut self, now: Duration) -> Option<Duration> {
        self.given_back = self.given_back.saturating_add(1);
        let again = self.given_back.checked_sub(2)?;
        self.rests_until = Some(now.saturating_add(REST_MIN * 2u32.pow(again.min(REST_DOUBLINGS))));
        self.rests_until
    }

    /// Where a frame stands, if this slot has it. Answers mostly concern the first.
    pub(crate) fn position(&self, frame: FrameId) -> Option<usize> {
        match self.frames.front() {
            Some(front) if front.id == frame => Some(0),
            _ => self
                .frames
                .binary_search_by_key(&frame, |frame| frame.id)
                .ok(),
        }
    }

    /// Results of a stream that was closed, if they are that, are here now.
    pub(crate) fn receive_owed(&mut self, frame: FrameId, range: Range<Index>) {
        if self.owed.is_empty() {
            return;
        }
        let here = self.owed.range((frame, range.start)..(frame, range.end));
        for key in here.map(|(key, _)| *key).collect::<Vec<_>>() {
            let bytes = self.owed.remove(&key).unwrap_or(0);
            self.receivable = self.receivable.saturating_sub(bytes);
        }
    }

    pub(crate) fn push(&mut self, mut frame: Frame, bytes: u64, now: Duration) {
        frame.sent = Some((now, self.running_items > 0));
        if self.running_items == 0 {
            self.progress = now;
        }
        self.running_frames += 1;
        self.running_items += u64::from(frame.count);
        let work = frame.item_nanos.saturating_mul(u64::from(frame.count));
        self.work_nanos = self.work_nanos.saturating_add(work);
        self.bytes += bytes;
        self.receivable = self
            .receivable
            .saturating_add(frame.grant.saturating_mul(u64::from(frame.count)));
        self.exclusive = frame.suspect;
        self.statistics.frames += 1;
        self.frames.push_back(frame);
    }

    /// `ran` items of the frame, with `bytes` of tokens, are no longer running or queued here; `answered` items
    /// (those and others) need no answer any more. Says when that frees a lease.
    pub(crate) fn settle(
        &mut self,
        position: usize,
        ran: u32,
        bytes: u64,
        answered: u32,
    ) -> Option<LeaseEnd> {
        let frame = self.frames.get_mut(position)?;
        let was_running = frame.running() > 0;
        frame.executed = (frame.executed + ran) - answered;
        frame.pending -= answered;
        let is_running = frame.running() > 0;
        self.running_items -= u64::from(ran);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.receivable = self
            .receivable
            .saturating_sub(frame.grant.saturating_mul(u64::from(ran)));
        self.work_nanos = self
            .work_nanos
            .saturating_sub(frame.item_nanos.saturating_mul(u64::from(ran)));
        let mut lease_end = None;
        if was_running && !is_running {
            self.running_frames -= 1;
            self.exclusive &= !frame.suspect;
            if std::mem::take(&mut frame.leased) {
                lease_end = Some(LeaseEnd(frame.stream, frame.from));
            }
            if let RecallState::Asked(asked) = frame.recall {
                frame.recall = RecallState::Exhausted;
                self.recalls -= 1;
                self.statistics.asked_in_vain += u64::from(asked);
            }
        }
        if frame.pending == 0 {
            self.frames.remove(position);
        }
        if self.running_items == 0 {
            self.held_back = false;
        }
        lease_end
    }
}

/// A time as whole nanoseconds; more than fit (500 years) count as that many.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
