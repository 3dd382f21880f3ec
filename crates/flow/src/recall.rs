//! Work taken back from a slot that has too much, for one that has nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::answers::lengthen;
use crate::frame::{Frame, RecallState};
use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::slot::{Slot, nanos};
use crate::stream::Stream;
use crate::{Action, FrameId, Index, Lease, SchedulerConfig, SlotId, StreamId};

/// A slot that keeps a lease is stuck when it has been silent for so many times of what is usual.
const LATE: u64 = 4;

/// So many slots are looked at for work to ask back: what isn't worth it of those with the most to do hardly is of others.
const LOOKS_MAX: usize = 32;

/// Slots are looked at no more often than each such part of the recall time, as long as nothing is found.
const LOOK_PART: u32 = 4;

/// Work must be worth twice as much after each time that it was asked back in vain, so often at most.
const DOUBT_MAX: u32 = 6;

impl Scheduler {
    /// The slot gives back `count` items from `first` on, which it has not started; 0 when it has started all it
    /// was asked for. The items are ready again.
    pub fn recalled(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        first: Index,
        count: u32,
        now: Duration,
    ) {
        let Some((row, _)) = self.find(slot, frame) else {
            return;
        };
        let answered = first..first.saturating_add(u64::from(count));
        let late = self.settle_late(row, frame, answered, None, now);
        let Some((row, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(at) = self.slots.get_mut(row) else {
            return;
        };
        let known = &mut at.frames[position];
        let (segment, grant, suspect) = (known.from, known.grant, known.suspect);
        let range = known.clip(first, count);
        let Some(place) = self
            .streams
            .binary_search_by_key(&known.stream, |stream| stream.id)
            .ok()
        else {
            return;
        };
        let stream = &mut self.streams[place];
        let closed = stream.closed;
        let returned = &mut self.tokens;
        returned.clear();
        let (mut items, mut bytes) = (0, 0u64);
        let (mut copies, mut copy_bytes) = (0, 0u64);
        for index in range.clone() {
            if let Some(bytes) = stream.lose_copy(frame, index) {
                copies += 1;
                copy_bytes = copy_bytes.saturating_add(bytes);
            }
        }
        stream.ring.visit(range, |index, item| {
            if item.is_at(frame) && item.state == ItemState::Out {
                items += 1;
                bytes = bytes.saturating_add(item.bytes);
                item.state = if closed {
                    ItemState::Gone
                } else {
                    ItemState::Ready
                };
                lengthen(returned, index);
            }
        });
        let is_unasked = !matches!(known.recall, RecallState::Asked(_));
        let rests = is_unasked && items > 0 && !at.draining && !closed;
        if let RecallState::Asked(asked) = known.recall {
            let left = known.running() - items - copies;
            let items = items + copies + late;
            known.recall = match (items < asked, closed && left > 0) {
                (true, _) => RecallState::Exhausted,
                (false, true) => RecallState::Asked(left),
                (false, false) => RecallState::Idle,
            };
            if let RecallState::Asked(left) = known.recall {
                // Asked for a part before its stream was closed: now nobody wants the rest either.
                self.actions.push_back(recall(slot, frame, left));
            } else {
                at.recalls -= 1;
                let in_vain = asked.saturating_sub(items);
                at.statistics.asked_in_vain += u64::from(in_vain);
                // What comes back shows that asking pays, what doesn't that it may not.
                self.recall_doubt = match in_vain {
                    0 => self.recall_doubt / 2,
                    _ if items > 0 => self.recall_doubt,
                    _ => (self.recall_doubt + 1).min(DOUBT_MAX),
                };
            }
        }
        stream.out -= u64::from(items);
        stream.reserved = stream
            .reserved
            .saturating_sub(grant.saturating_mul(u64::from(items)));
        for range in returned.drain(..).filter(|_| !closed) {
            if suspect {
                range.for_each(|index| stream.make_suspect(segment, index));
            } else {
                stream.make_ready(segment, range);
            }
        }
        if closed {
            stream.ring.trim();
        }
        at.statistics.recalled += u64::from(items);
        let (items, bytes) = (items + copies, bytes.saturating_add(copy_bytes));
        let lease_end = at.settle(position, items, bytes, items);
        if rests {
            self.rest(row, now);
        }
        self.end_lease(lease_end);
        self.drop_if_done(place);
        self.stir(now);
    }

    /// Nothing is ready and slots are idle: asks the busiest slots for about half of what they have not started.
    /// Says nothing as long as the work is not worth a message and its slot seems to move; then sets the time to
    /// look again.
    pub(crate) fn recall_for_idle(&mut self, now: Duration) {
        self.slots.index_changes(&self.config, now);
        let kept = self.reserved_row.and_then(|row| self.slots.get(row));
        let idle = self.slots.idle() - u32::from(kept.is_some_and(Slot::is_idle));
        let asked = self.slots.asked();
        if asked >= idle {
            return;
        }
        // Answers alone don't make anything worth asking back that was not.
        if let Some(until) = self.unworthy_until.filter(|until| now < *until) {
            self.wake_at(until);
            return self.recall_lease(now);
        }
        let mut able: Vec<_> = self
            .slots
            .able()
            .map(|(row, slot)| (Reverse(slot.load(now)), row))
            .collect();
        // There may be thousands, and each answer may come here.
        if able.len() > LOOKS_MAX {
            able.select_nth_unstable(LOOKS_MAX);
            able.truncate(LOOKS_MAX);
        }
        able.sort_unstable();
        let ending: Vec<StreamId> = self.streams.iter().filter_map(Stream::ending).collect();
        let (mut wanted, mut unworthy) = (idle - asked, None::<Duration>);
        for (_, row) in able {
            let Some(slot) = self.slots.get_mut(row) else {
                continue;
            };
            let usual = nanos(self.config.recall_time).max(slot.round_trip(&self.config));
            let look = Look {
                config: &self.config,
                ending: &ending,
                now,
                worth: usual << self.recall_doubt,
                lag: self.lag.nanos(),
            };
            match slot.recall_half(&look, &mut |action| self.actions.push_back(action)) {
                LookResult::Items => wanted -= 1,
                LookResult::Nothing => {}
                LookResult::Later(until) => {
                    unworthy = Some(unworthy.map_or(until, |earlier| earlier.min(until)));
                }
            }
            if wanted == 0 {
                return;
            }
        }
        if let Some(until) = unworthy {
            self.wake_at(until);
        }
        let soon = now.saturating_add(self.look_again());
        self.unworthy_until = Some(unworthy.unwrap_or(soon));
        self.recall_lease(now);
    }

    /// After so long it is worth looking again for what to ask back, when a slot has got more.
    fn look_again(&self) -> Duration {
        self.config.recall_time / LOOK_PART
    }

    /// A slot has got more: there may be something to ask back soon.
    pub(crate) fn expect_recall(&mut self, now: Duration) {
        let soon = now.saturating_add(self.look_again());
        self.unworthy_until = self.unworthy_until.map(|until| until.min(soon));
    }

    /// Asks back everything that keeps a lease at a slot that does not move, so that another one can go on with it.
    fn recall_lease(&mut self, now: Duration) {
        let segments = self.streams.iter().flat_map(|stream| &stream.segments);
        let holders = segments.filter_map(|segment| Some(segment.holder?.row));
        let holders: BTreeSet<usize> = holders.collect();
        let (mut found, mut wake) = (None, None::<Duration>);
        for row in holders {
            let Some(slot) = self.slots.get(row).filter(|slot| slot.recalls == 0) else {
                continue;
            };
            let Some((lease, item_nanos)) = slot.stuck_lease() else {
                continue;
            };
            let round_trip = slot.round_trip(&self.config);
            let usual = nanos(self.config.recall_time).max(round_trip);
            // Its next answer may just be on the way.
            let late = usual.max(item_nanos).saturating_mul(LATE);
            if slot.silence(now) < late {
                let until = slot.progress + Duration::from_nanos(late);
                wake = Some(wake.map_or(until, |earlier| earlier.min(until)));
            } else {
                found = found.or(Some((row, lease)));
            }
        }
        if let Some(wake) = wake {
            self.wake_at(wake);
        }
        if let Some((slot, lease)) =
            found.and_then(|(row, lease)| Some((self.slots.get_mut(row)?, lease)))
        {
            slot.recall_lease(lease, &mut |action| self.actions.push_back(action));
            // Whoever is idle gets it.
            if let Some(place) = self.place(lease.0) {
                self.streams[place].segments[usize::from(lease.1)].home = None;
            }
        }
    }

    /// There may be something to do at `wake`, though nothing happens.
    pub(crate) fn wake_at(&mut self, wake: Duration) {
        self.wake = Some(self.wake.map_or(wake, |earlier| earlier.min(wake)));
    }

    /// The stream in this place was closed: slots are asked for everything of it they have not started, and results
    /// that wait there are forgotten.
    pub(crate) fn recall_closed(&mut self, place: usize) {
        let stream = &mut self.streams[place];
        for (_, slot) in self.slots.iter_mut() {
            for position in (0..slot.frames.len())
                .rev()
                .filter(|at| slot.frames[*at].stream == stream.id)
                .collect::<Vec<_>>()
            {
                let frame = &mut slot.frames[position];
                let executed = frame.executed;
                if frame.running() > 0 && frame.recall == RecallState::Idle {
                    frame.recall = RecallState::Asked(frame.running());
                    slot.statistics.asked += u64::from(frame.running());
                    slot.recalls += 1;
                    self.actions.push_back(Action::Recall {
                        slot: slot.id,
                        frame: frame.id,
                        count: frame.running(),
                    });
                }
                stream.out -= u64::from(executed);
                // Nothing stops running by this, so no lease ends.
                slot.settle(position, 0, 0, executed);
            }
        }
    }
}

impl Slot {
    /// Whether anything could ever be asked back of what is here now. The first item at the slot has surely been started.
    pub(crate) fn is_recallable(&self) -> bool {
        let running = self.frames.iter().position(|frame| frame.running() > 0);
        self.frames.iter().enumerate().any(|(position, frame)| {
            frame.recallable(u32::from(running == Some(position)), true) > 0
        })
    }

    /// A lease that waits behind something else than its own serial function, and the estimated time of the item
    /// that runs.
    fn stuck_lease(&self) -> Option<((StreamId, u16), u64)> {
        let running = self.frames.iter().find(|frame| frame.running() > 0)?;
        let of = |frame: &Frame| (frame.stream, frame.from);
        // With nothing else to do, or over all items first, it is the serial function that runs.
        let serial =
            running.leased && (running.lease == Lease::PassedOn || running.to == running.from);
        let lent = self
            .frames
            .iter()
            .find(|frame| frame.lends() && !(serial && of(frame) == of(running)))?;
        Some((of(lent), running.item_nanos))
    }

    /// Asks for everything not started in the frames that keep this lease, from the last one on.
    fn recall_lease(&mut self, lease: (StreamId, u16), act: &mut impl FnMut(Action)) {
        for position in (0..self.frames.len()).rev() {
            let frame = &self.frames[position];
            if (frame.stream, frame.from) == lease && frame.lends() {
                self.ask_back(position, frame.running(), act);
            }
        }
    }

    /// Frames with the items that may be asked back, last frame first: without those that will have begun when the recall is
    /// there, if the slot works as fast as it is thought to. One that has been silent for longer than that explains has begun one item.
    fn unstarted(&self, look: &Look<'_>) -> Vec<(usize, u32)> {
        let silence = self.silence(look.now);
        let is_late = silence >= self.late_after(look);
        // What its last word says is as old as the way here, and there is the way back.
        let mut passed = match is_late {
            true => 0,
            false => silence.saturating_add(self.round_trip(look.config).max(look.lag)),
        };
        let (mut found, mut is_first) = (Vec::new(), true);
        let running = self.frames.iter().enumerate();
        for (position, frame) in running.filter(|(_, frame)| frame.running() > 0) {
            let item_nanos = frame.item_nanos.max(1);
            let begun = passed / item_nanos + u64::from(is_first || passed > 0);
            let begun = begun.min(frame.running().into()) as u32;
            passed = passed.saturating_sub(item_nanos.saturating_mul(frame.running().into()));
            is_first = false;
            let count = frame.recallable(begun, look.ending.contains(&frame.stream));
            if count > 0 {
                found.push((position, count));
            }
        }
        found.reverse();
        found
    }

    /// For how long the slot may be silent before that shows that it is slower than it is thought to be.
    fn late_after(&self, look: &Look<'_>) -> u64 {
        self.work_nanos().max(look.worth).saturating_add(look.lag)
    }

    /// Asks for half of them, from the end, if they are worth it.
    fn recall_half(&mut self, look: &Look<'_>, act: &mut impl FnMut(Action)) -> LookResult {
        let unstarted = self.unstarted(look);
        let (mut items, mut work) = (0, 0u64);
        for (position, count) in &unstarted {
            items += u64::from(*count);
            let nanos = self.frames[*position].item_nanos;
            work = work.saturating_add(nanos.saturating_mul(u64::from(*count)));
        }
        let is_late = self.silence(look.now) >= self.late_after(look);
        if items == 0 || work < look.worth && !is_late {
            return match is_late {
                true => LookResult::Nothing,
                false => {
                    let after = Duration::from_nanos(self.late_after(look));
                    LookResult::Later(self.progress.saturating_add(after))
                }
            };
        }
        let mut left = items.div_ceil(2);
        for (position, count) in unstarted {
            let count = u64::from(count).min(left) as u32;
            if count == 0 {
                break;
            }
            left -= u64::from(count);
            self.ask_back(position, count, act);
        }
        LookResult::Items
    }

    /// Asks for so many items of a frame.
    fn ask_back(&mut self, position: usize, count: u32, act: &mut impl FnMut(Action)) {
        let frame = &mut self.frames[position];
        frame.recall = RecallState::Asked(count);
        self.recalls += 1;
        self.held_back = true;
        self.statistics.asked += u64::from(count);
        act(recall(self.id, frame.id, count));
    }
}

/// What counts when work is asked back.
struct Look<'a> {
    config: &'a SchedulerConfig,
    /// Streams of which nothing more is to be handed out: what waits halfway in their frames is asked back as well.
    ending: &'a [StreamId],
    now: Duration,
    /// The work, in nanoseconds, that is worth asking for.
    worth: u64,
    /// How late answers are, in nanoseconds.
    lag: u64,
}

/// What came of looking at a slot.
enum LookResult {
    Items,
    /// Nothing is worth it now. It may be at this time.
    Later(Duration),
    Nothing,
}

fn recall(slot: SlotId, frame: FrameId, count: u32) -> Action {
    Action::Recall { slot, frame, count }
}
