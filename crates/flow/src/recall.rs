//! Work taken back from a slot that has too much, for one that has nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::answers::lengthen;
use crate::frame::{Frame, RecallState};
use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::slot::{Slot, nanos};
use crate::{Action, FrameId, Index, Lease, SlotId, StreamId};

/// A slot that keeps a lease is stuck when it has been silent for so many times of what is usual.
const LATE: u64 = 4;

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
        let Some((row, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(at) = self.slots.get_mut(row) else {
            return;
        };
        let known = &mut at.frames[position];
        let (segment, grant, suspect) = (known.segment, known.grant, known.suspect);
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
        if let RecallState::Asked(asked) = known.recall {
            let left = known.running() - items;
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
        let lease_end = at.settle(position, items, bytes, items);
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
        able.sort_unstable();
        let mut able = able.into_iter();
        for _ in asked..idle {
            let Some((row, slot)) = able
                .next()
                .and_then(|(_, row)| Some((row, self.slots.get(row)?)))
            else {
                return self.recall_lease(now);
            };
            let worth = nanos(self.config.recall_time).max(slot.round_trip(&self.config));
            if slot.recallable().1 < worth && slot.silence(now) < worth {
                let until = slot.progress + Duration::from_nanos(worth);
                self.unworthy_until = Some(until);
                self.wake_at(until);
                return self.recall_lease(now);
            }
            if let Some(slot) = self.slots.get_mut(row) {
                slot.recall_half(&mut |action| self.actions.push_back(action));
            }
        }
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
            let Some((lease, item_nanos)) = slot.stuck_lease(|stream, segment| {
                let stream = self.streams.iter().find(|other| other.id == stream);
                stream.is_some_and(|stream| stream.segments[usize::from(segment)].rest)
            }) else {
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
    fn wake_at(&mut self, wake: Duration) {
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
    /// How many items could be asked back, and their work in nanoseconds. The first one at the slot has surely been
    /// started, and its frame may be further than its answers say.
    pub(crate) fn recallable(&self) -> (u64, u64) {
        self.unstarted()
            .fold((0, 0u64), |(items, work), (_, count, item_nanos)| {
                (
                    items + u64::from(count),
                    work.saturating_add(item_nanos.saturating_mul(u64::from(count))),
                )
            })
    }

    /// A lease that waits behind something else than its own serial function, and the estimated time of the item
    /// that runs. `goes_on` says whether functions of a segment come after the serial one.
    fn stuck_lease(
        &self,
        goes_on: impl Fn(StreamId, u16) -> bool,
    ) -> Option<((StreamId, u16), u64)> {
        let running = self.frames.iter().find(|frame| frame.running() > 0)?;
        let of = |frame: &Frame| (frame.stream, frame.segment);
        // With nothing else to do, or over all items first, it is the serial function that runs.
        let serial = running.leased
            && (running.lease == Lease::PassedOn || !goes_on(running.stream, running.segment));
        let lent = self
            .frames
            .iter()
            .find(|frame| frame.lends() && !(serial && of(frame) == of(running)))?;
        Some((of(lent), running.item_nanos))
    }

    /// Asks for everything not started in the frames that keep this lease, from the last one on.
    fn recall_lease(&mut self, lease: (StreamId, u16), act: &mut impl FnMut(Action)) {
        for frame in self.frames.iter_mut().rev() {
            if (frame.stream, frame.segment) == lease && frame.lends() {
                let count = frame.running();
                frame.recall = RecallState::Asked(count);
                self.recalls += 1;
                self.held_back = true;
                act(recall(self.id, frame.id, count));
            }
        }
    }

    /// Frames with the items that may be asked back, last frame first.
    fn unstarted(&self) -> impl Iterator<Item = (usize, u32, u64)> {
        let running = self.frames.iter().position(|frame| frame.running() > 0);
        let frames = self.frames.iter().enumerate().rev();
        frames.filter_map(move |(position, frame)| {
            let started = u32::from(running == Some(position));
            let count = frame.recallable(started);
            (count > 0).then_some((position, count, frame.item_nanos))
        })
    }

    /// Asks for half of them, from the end.
    fn recall_half(&mut self, act: &mut impl FnMut(Action)) {
        let mut left = self.recallable().0.div_ceil(2);
        let asked: Vec<(usize, u32)> = self
            .unstarted()
            .map_while(|(position, count, _)| {
                let count = u64::from(count).min(left) as u32;
                left -= u64::from(count);
                (count > 0).then_some((position, count))
            })
            .collect();
        for (position, count) in asked {
            let frame = &mut self.frames[position];
            frame.recall = RecallState::Asked(count);
            self.recalls += 1;
            self.held_back = true;
            act(recall(self.id, frame.id, count));
        }
    }
}

fn recall(slot: SlotId, frame: FrameId, count: u32) -> Action {
    Action::Recall { slot, frame, count }
}
