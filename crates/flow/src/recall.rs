//! Work taken back from a slot that has too much, for one that has nothing.

use std::time::Duration;

use crate::frame::RecallState;
use crate::item::State;
use crate::scheduler::Scheduler;
use crate::slot::{Slot, nanos};
use crate::{Action, FrameId, Index, SlotId};

impl Scheduler {
    /// The slot gives back `count` items from `first` on, which it has not started; 0 when it has started all it
    /// was asked for. They are ready again.
    pub fn recalled(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        first: Index,
        count: u32,
        now: Duration,
    ) {
        let Some((seat, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(at) = self.slots.get_mut(seat) else {
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
        let returned = &mut self.accepted;
        returned.clear();
        let (mut items, mut bytes) = (0, 0u64);
        stream.ring.visit(range, |index, item| {
            if item.is_at(frame) && item.state == State::Out {
                items += 1;
                bytes = bytes.saturating_add(item.bytes);
                item.state = if closed { State::Gone } else { State::Ready };
                match returned.last_mut() {
                    Some(range) if range.end == index => range.end += 1,
                    _ => returned.push(index..index + 1),
                }
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
        let idle = self
            .slots
            .iter()
            .filter(|(seat, slot)| slot.is_idle() && self.reserved_seat != Some(*seat))
            .count();
        let asked = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.recalls > 0)
            .count();
        for _ in asked..idle {
            let able = self
                .slots
                .iter()
                .filter(|(_, slot)| slot.recalls == 0 && slot.recallable().0 > 0);
            let Some((seat, slot)) =
                able.max_by_key(|(seat, slot)| (slot.load(now), std::cmp::Reverse(*seat)))
            else {
                return;
            };
            let worth = nanos(self.config.recall_time).max(slot.round_trip(&self.config));
            if slot.recallable().1 < worth && slot.silence(now) < worth {
                let wake = slot.progress + Duration::from_nanos(worth);
                self.wake = Some(self.wake.map_or(wake, |earlier| earlier.min(wake)));
                return;
            }
            if let Some(slot) = self.slots.get_mut(seat) {
                slot.recall_half(&mut |action| self.actions.push_back(action));
            }
        }
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
    fn recallable(&self) -> (u64, u64) {
        self.unstarted()
            .fold((0, 0u64), |(items, work), (_, count, item_nanos)| {
                (
                    items + u64::from(count),
                    work.saturating_add(item_nanos.saturating_mul(u64::from(count))),
                )
            })
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
