//! Slots that don't answer in time. A slot ends an item that runs for too long by itself, and then itself; one that can't, or doesn't want to, is told of here.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::frame::Frame;
use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::slot::Slot;
use crate::stream::Stream;
use crate::{Action, FrameId, Index, Lease, SchedulerConfig, SlotId, StreamId};

/// Slots are looked at so many times within the time that an answer may be late.
const LOOK_PART: u32 = 60;

/// An item may begin its time anew once, behind a serial function.
const TIMES_OF_AN_ITEM: u32 = 2;

/// What a slot is to answer next, as it was seen when somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owed {
    /// The oldest item that runs of the first frame here that has any, and whether anybody still needs it. Slots work in this order, so who
    /// answers for later ones, or gives them back, gains no time.
    Front {
        frame: FrameId,
        oldest: Option<Index>,
        is_leased: bool,
        is_closed: bool,
    },
    /// A result that may be sent.
    Granted {
        stream: StreamId,
        frame: FrameId,
        index: Index,
    },
    /// Nothing: it waits for room, as all slots do, which are to end. So much has been done and taken by then.
    Nothing { finished: u64, taken: u64 },
}

/// What slots owe, and for how long at least.
#[derive(Debug, Default)]
pub(crate) struct OwedAnswers {
    known: BTreeMap<(SlotId, Owed), Duration>,
    looked_at: Option<Duration>,
}

impl Scheduler {
    /// Names slots that owe an answer for too long, or wait for too long for room. Only what has a time limit is looked at, what nobody needs any
    /// more, and slots that are to end where no others are.
    pub(crate) fn look_for_overdue(&mut self, now: Duration) {
        if !self.all_end() && !self.streams.iter().any(Stream::is_watched) {
            self.owed_answers.known.clear();
            return;
        }
        let pause = self.config.answer_time / LOOK_PART;
        let next = self.owed_answers.looked_at.map(|last| last + pause);
        if let Some(next) = next.filter(|next| now < *next) {
            return self.wake_at(next);
        }
        let before = self.owed_answers.looked_at.replace(now).unwrap_or(now);
        // Who has stood still has heard nobody meanwhile.
        let passed = now.saturating_sub(before).min(pause * 2);
        let owed = self.owed();
        let known = std::mem::take(&mut self.owed_answers.known);
        let mut overdue = Vec::new();
        for (key, most) in owed {
            let age = known.get(&key).map_or(Duration::ZERO, |age| *age + passed);
            let is_overdue = age > most && overdue.last().is_none_or(|(slot, _)| *slot != key.0);
            if is_overdue {
                overdue.push(key);
            }
            // Who is told of is soon gone.
            let age = if is_overdue { Duration::ZERO } else { age };
            self.owed_answers.known.insert(key, age);
        }
        let overdue = overdue.into_iter().map(|(slot, owed)| match owed {
            Owed::Nothing { .. } => Action::LetGo { slot },
            _ => Action::Overdue { slot },
        });
        self.actions.extend(overdue);
        if !self.owed_answers.known.is_empty() {
            self.wake_at(now.saturating_add(pause));
        }
    }

    /// What slots owe now, and the time that each may take.
    fn owed(&self) -> BTreeMap<(SlotId, Owed), Duration> {
        let mut owed = BTreeMap::new();
        for (_, slot) in self.slots.iter() {
            let Some(frame) = slot.frames.iter().find(|frame| frame.running() > 0) else {
                continue;
            };
            let Some(stream) = self.place(frame.stream).map(|place| &self.streams[place]) else {
                continue;
            };
            let Some(limit) = stream.time_limit_of(frame) else {
                continue;
            };
            let front = Owed::Front {
                frame: frame.id,
                oldest: stream.oldest_running(frame),
                is_leased: frame.leased,
                is_closed: stream.closed,
            };
            let most = limit.saturating_add(slot.answer_time(&self.config));
            owed.insert((slot.id, front), most);
        }
        for stream in self.streams.iter().filter(|stream| stream.is_watched()) {
            for (index, waiting) in stream.waiting.iter().filter(|(_, one)| one.granted) {
                let row = self.slots.row(waiting.slot);
                let Some(slot) = row.and_then(|row| self.slots.get(row)) else {
                    continue;
                };
                let granted = Owed::Granted {
                    stream: stream.id,
                    frame: waiting.frame,
                    index: *index,
                };
                owed.insert((slot.id, granted), slot.answer_time(&self.config));
            }
        }
        if let Some(nothing) = self.waits_for_room() {
            let slots = self.slots.iter().filter(|(_, slot)| slot.owed_items() > 0);
            owed.extend(slots.map(|(_, slot)| ((slot.id, nothing), self.config.answer_time)));
        }
        owed
    }

    /// Whether there are slots, and all of them are to end.
    fn all_end(&self) -> bool {
        self.slots.usable() == 0 && self.slots.iter().next().is_some()
    }

    /// Whether all slots are to end and wait for room for their results, while items wait for slots: other slots would make room by those.
    fn waits_for_room(&self) -> Option<Owed> {
        let mut slots = self.slots.iter();
        let are_done = self.all_end() && slots.all(|(_, slot)| slot.running_items == 0);
        let mut waiting = self
            .streams
            .iter()
            .flat_map(|stream| stream.waiting.values());
        if !are_done || waiting.any(|one| one.granted) {
            return None;
        }
        let (mut ready, mut finished, mut taken) = (0, 0, 0);
        for stream in self.streams.iter().filter(|stream| !stream.closed) {
            let progress = stream.progress();
            ready += progress.ready;
            finished += progress.finished;
            taken += progress.taken;
        }
        // If there are none, only the user makes room, for as long as that takes.
        (ready > 0).then_some(Owed::Nothing { finished, taken })
    }
}

impl Stream {
    /// Whether its items have to be answered for within a time.
    fn is_watched(&self) -> bool {
        self.time_limit.is_some() || self.closed
    }

    /// The first item of a frame for which its slot has said nothing.
    fn oldest_running(&self, frame: &Frame) -> Option<Index> {
        let range = frame.range();
        let first = range.start.max(self.ring.base());
        let mut items = (first..range.end).zip(self.ring.walk(first));
        let oldest = items.find(|(index, item)| {
            item.state == ItemState::Out
                && (item.is_at(frame.id) || self.has_copy(frame.id, *index))
        });
        oldest.map(|(index, _)| index)
    }

    /// How long the slot may run until it has something to say of this frame, if there is a limit.
    fn time_limit_of(&self, frame: &Frame) -> Option<Duration> {
        if self.closed {
            return Some(Duration::ZERO);
        }
        let limit = self.time_limit?.saturating_mul(TIMES_OF_AN_ITEM);
        // All pass the serial function before there is word of any; and results that come with a state come together.
        let carries = self.segments[usize::from(frame.from)].carries;
        let is_together = carries || frame.lease == Lease::PassedOn && frame.leased;
        Some(limit.saturating_mul(if is_together { frame.running() } else { 1 }))
    }
}

impl Slot {
    /// The time that a slot may take until its answer is here, besides what its functions take: with all that may be on the way before it.
    fn answer_time(&self, config: &SchedulerConfig) -> Duration {
        // A slot may announce any length.
        let on_the_way = self.bytes.saturating_add(self.receivable);
        let on_the_way = on_the_way.min(config.result_budget_bytes);
        let seconds = on_the_way / config.answer_rate_min.max(1);
        config
            .answer_time
            .saturating_add(Duration::from_secs(seconds))
    }
}
