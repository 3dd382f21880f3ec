//! Items that run for much longer than is usual: a second copy runs at another slot, and the first answer counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::frame::{Frame, RecallState};
use crate::item::{ItemState, attempt};
use crate::recovery::Blame;
use crate::scheduler::Scheduler;
use crate::slot::{Slot, nanos};
use crate::stream::Stream;
use crate::{Action, FrameId, Index, Lease, SlotId, Then};

/// Slots are looked at no more often than each such part of the least time of a straggler.
const LOOK_PART: u32 = 4;

/// While other work is ready, an item must run for so many times what is too long otherwise.
const EARLY: u64 = 2;

/// And for twice as long after each time that a copy was in vain, so often at most.
const DOUBT_MAX: u32 = 10;

/// One of the two copies of an item that is at two slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemCopy {
    slot: SlotId,
    frame: FrameId,
    /// What it may send without asking.
    grant: u64,
    /// Of its token.
    bytes: u64,
}

/// Items that are at two slots. Few are. The item itself remembers the first of the two as its attempt; it is [`ItemState::Out`], and none
/// of the copies has said anything yet.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pairs: BTreeMap<Index, [ItemCopy; 2]>,
    /// Items that have lost one of two copies with its slot, and whether it was the only one there: how often each is to be charged when the
    /// other copy takes its slot down, too. They get no second copy any more.
    bereft: BTreeMap<Index, u8>,
}

impl Stream {
    /// Whether any item is at two slots.
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.pairs.is_empty()
    }

    /// Whether this frame has one of two copies of an item.
    pub(crate) fn has_copy(&self, frame: FrameId, index: Index) -> bool {
        let copies = self.copies.pairs.get(&index);
        copies.is_some_and(|copies| copies.iter().any(|copy| copy.frame == frame))
    }

    /// A frame answers for these items: where it has one of two copies, the item remembers that one.
    pub(crate) fn prefer(&mut self, frame: FrameId, range: Range<Index>) {
        for (index, copies) in self.copies.pairs.range_mut(range) {
            if copies[1].frame == frame {
                copies.swap(0, 1);
                if let Some(item) = self.ring.get_mut(*index) {
                    item.attempt = attempt(frame);
                }
            }
        }
    }

    /// The answer of a frame for these items counts: their other copies, which are late from now on.
    pub(crate) fn decide(&mut self, frame: FrameId, range: Range<Index>) -> Vec<(Index, ItemCopy)> {
        if self.copies.pairs.is_empty() {
            return Vec::new();
        }
        let here = self.copies.pairs.range(range);
        let decided = here.filter(|(_, copies)| copies[0].frame == frame);
        let decided: Vec<_> = decided.map(|(index, [_, late])| (*index, *late)).collect();
        for (index, late) in &decided {
            self.copies.pairs.remove(index);
            self.reserved = self.reserved.saturating_sub(late.grant);
        }
        decided
    }

    /// The copy in this frame will have no answer. Says whether there was another one, with which the item goes on, and the bytes of the token.
    pub(crate) fn lose_copy(&mut self, frame: FrameId, index: Index) -> Option<u64> {
        let copies = self.copies.pairs.get(&index)?;
        let lost = copies.iter().position(|copy| copy.frame == frame)?;
        let (lost, left) = (copies[lost], copies[1 - lost]);
        self.copies.pairs.remove(&index);
        self.reserved = self.reserved.saturating_sub(lost.grant);
        if let Some(item) = self.ring.get_mut(index) {
            item.attempt = attempt(left.frame);
        }
        Some(lost.bytes)
    }

    /// The copy in this frame is lost with its slot. Says whether there is another one, which will show whether the item was the reason.
    pub(crate) fn lose_copy_with_slot(
        &mut self,
        frame: FrameId,
        index: Index,
        blame: Blame,
    ) -> bool {
        let has_other = self.lose_copy(frame, index).is_some();
        if has_other && blame != Blame::Nobody {
            let base = self.ring.base();
            self.copies.bereft.retain(|item, _| *item >= base);
            let charges = self.copies.bereft.entry(index).or_default();
            *charges = charges.saturating_add(u8::from(blame == Blame::It));
        }
        has_other
    }

    /// Nobody wants the stream: its second copies.
    fn give_up_copies(&mut self) -> Vec<(Index, ItemCopy)> {
        let copies = std::mem::take(&mut self.copies.pairs);
        let seconds = copies.into_iter().map(|(index, [_, late])| (index, late));
        seconds.collect()
    }
}

impl Copies {
    /// The last copy of an item has taken its slot down: how often the former ones did.
    pub(crate) fn charges_of(&mut self, index: Index) -> u8 {
        self.bereft.remove(&index).unwrap_or(0)
    }
}

/// An item that has a second copy soon, or now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Straggler {
    /// When it runs for too long.
    due: Duration,
    /// When it does so although other work is ready.
    due_early: Duration,
    /// The row of its slot, and the position of its frame there.
    row: usize,
    position: usize,
    place: usize,
    index: Index,
}

impl Scheduler {
    /// This frame has answered first for items of which these are the other copies.
    pub(crate) fn copies_decided(&mut self, frame: FrameId, late: Vec<(Index, ItemCopy)>) {
        for (_, copy) in &late {
            // The second copy has the later number.
            self.copy_doubt = match copy.frame < frame {
                true => self.copy_doubt / 2,
                false => (self.copy_doubt + 1).min(DOUBT_MAX),
            };
        }
        self.make_late(late);
    }

    /// These copies are late: their slots are told, and stay busy with them until they have answered.
    fn make_late(&mut self, copies: Vec<(Index, ItemCopy)>) {
        for (index, copy) in copies {
            let ItemCopy {
                slot, frame, bytes, ..
            } = copy;
            let row = self.slots.row(slot);
            let Some(known) = row.and_then(|row| self.slots.get_mut(row)) else {
                continue;
            };
            known.late.insert((frame, index), bytes);
            let ended = Action::Interrupt { slot, frame, index };
            self.actions.push_back(ended);
        }
    }

    /// A stream is closed.
    pub(crate) fn end_copies(&mut self, place: usize) {
        let seconds = self.streams[place].give_up_copies();
        self.make_late(seconds);
    }

    /// Whether the slot in this row still has late copies.
    pub(crate) fn has_late(&self, row: usize) -> bool {
        self.slots
            .get(row)
            .is_some_and(|slot| !slot.late.is_empty())
    }

    /// A slot has answered for these items of a frame; `busy` is what it said of the time it took, if it has run them. Says how many of them were
    /// late copies, which are done with.
    pub(crate) fn settle_late(
        &mut self,
        row: usize,
        frame: FrameId,
        range: Range<Index>,
        busy: Option<Duration>,
        now: Duration,
    ) -> u32 {
        if !self.has_late(row) {
            return 0;
        }
        let Some(slot) = self.slots.get_mut(row) else {
            return 0;
        };
        let Some(position) = slot.position(frame) else {
            return 0;
        };
        let known = &slot.frames[position];
        let end = range.end.min(known.range().end).max(range.start);
        let here = slot.late.range((frame, range.start)..(frame, end));
        let keys: Vec<_> = here.map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return 0;
        }
        let busy = busy.map(|busy| known.credible(busy, &self.config, now));
        let bytes = keys.iter().filter_map(|key| slot.late.remove(key)).sum();
        if let Some(busy) = busy {
            let seen = slot.answered(position, busy, now);
            slot.statistics.busy = slot.statistics.busy.saturating_add(busy);
            self.lag.observe(seen);
        }
        // As many as a frame has.
        let count = keys.len() as u32;
        // Only frames without a lease have copies.
        let _ = slot.settle(position, count, bytes, count);
        self.stir(now);
        count
    }

    /// No slot can take anything that is ready: idle ones get second copies of what runs for too long elsewhere. Busy ones do, too, of what runs for
    /// so long that its slot may be worth more than the copy costs.
    pub(crate) fn copy_stragglers(&mut self, now: Duration) {
        if self.config.stragglers == 0 {
            return;
        }
        if let Some(until) = self.copies_until.filter(|until| now < *until) {
            return self.wake_at(until);
        }
        let rows = self.slots.iter().map(|(row, _)| row);
        let mut stragglers: Vec<_> = rows.filter_map(|row| self.straggler(row)).collect();
        stragglers.sort_unstable();
        let mut idle = self.idle_rows();
        let mut next = None::<Duration>;
        for straggler in stragglers {
            let due = match idle.is_empty() {
                true => straggler.due_early,
                false => straggler.due,
            };
            let row = match due <= now {
                true => idle
                    .last()
                    .copied()
                    .or_else(|| self.least_busy(&straggler, now)),
                false => None,
            };
            let is_copied = row.is_some_and(|row| self.copy(straggler, row, now));
            if is_copied {
                idle.pop();
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        let soon = now.saturating_add(self.config.straggler_time / LOOK_PART);
        self.copies_until = Some(soon);
        if let Some(next) = next {
            self.wake_at(next.max(soon));
        }
    }

    /// The slot that will be idle first, of the others.
    fn least_busy(&self, straggler: &Straggler, now: Duration) -> Option<usize> {
        let slots = self.slots.iter().filter(|(row, slot)| {
            slot.may_take() && *row != straggler.row && self.reserved_row != Some(*row)
        });
        let load = slots.map(|(row, slot)| (slot.load(now), row)).min();
        load.map(|(_, row)| row)
    }

    /// Slots that have nothing, the fastest ones last.
    fn idle_rows(&self) -> Vec<usize> {
        let slots = self.slots.iter();
        let idle = slots.filter(|(row, slot)| {
            slot.is_usable() && slot.running_items == 0 && self.reserved_row != Some(*row)
        });
        let mut rows: Vec<usize> = idle.map(|(row, _)| row).collect();
        rows.sort_by_key(|row| {
            Reverse(
                self.slots
                    .get(*row)
                    .map(|slot| slot.round_trip(&self.config)),
            )
        });
        rows
    }

    /// The item that runs at a slot, if it may have a second copy.
    fn straggler(&self, row: usize) -> Option<Straggler> {
        let slot = self.slots.get(row)?;
        let mut frames = slot.frames.iter();
        let position = frames.position(|frame| frame.running() > 0)?;
        let frame = &slot.frames[position];
        if frame.suspect || frame.lease != Lease::None {
            return None;
        }
        let place = self.place(frame.stream)?;
        let stream = &self.streams[place];
        let segment = &stream.segments[usize::from(frame.from)];
        if stream.closed || segment.serial || segment.then == Then::Fold {
            return None;
        }
        let usual = segment.time.settled()?;
        let mut items = (frame.first..).zip(stream.ring.walk(frame.first));
        let mut running = items.by_ref().take(frame.count as usize);
        let (index, _) =
            running.find(|(_, item)| item.is_at(frame.id) && item.state == ItemState::Out)?;
        let copies = &stream.copies;
        if copies.pairs.contains_key(&index) || copies.bereft.contains_key(&index) {
            return None;
        }
        let usual = u128::from(usual) * u128::from(self.config.stragglers) / 100;
        let usual = u64::try_from(usual).unwrap_or(u64::MAX);
        let most = usual.max(nanos(self.config.straggler_time));
        // What was heard last is as old as the way here, and the item may have begun after that.
        let most = most.saturating_add(slot.round_trip(&self.config));
        let after = |nanos| slot.progress.saturating_add(Duration::from_nanos(nanos));
        let early = most
            .saturating_mul(EARLY)
            .saturating_mul(1 << self.copy_doubt);
        Some(Straggler {
            due: after(most),
            due_early: after(early),
            row,
            position,
            place,
            index,
        })
    }

    /// Dispatches a second copy to the slot in this row, if there is room for its result.
    fn copy(&mut self, straggler: Straggler, row: usize, now: Duration) -> bool {
        let Straggler {
            row: first_row,
            position,
            place,
            index,
            ..
        } = straggler;
        let Some(first_slot) = self.slots.get(first_row) else {
            return false;
        };
        let original = &first_slot.frames[position];
        let stream = &mut self.streams[place];
        let items = index..index + 1;
        let grant = stream.grant(&self.config, (original.from, original.to), items);
        let Some(bytes) = stream.ring.get(index).map(|item| item.bytes) else {
            return false;
        };
        if grant > stream.result_room(&self.config) {
            return false;
        }
        let id = FrameId(self.next_frame);
        self.next_frame += 1;
        let frame = original.copy(id, index, grant, now);
        let first = ItemCopy {
            slot: first_slot.id,
            frame: original.id,
            grant: original.grant,
            bytes,
        };
        let (from, to, id_of) = (frame.from, frame.to, stream.id);
        stream.reserved = stream.reserved.saturating_add(grant);
        let Some(slot) = self.slots.get_mut(row) else {
            return false;
        };
        let second = ItemCopy {
            slot: slot.id,
            frame: id,
            grant,
            bytes,
        };
        stream.copies.pairs.insert(index, [first, second]);
        slot.push(frame, bytes, now);
        if let Some(slow) = self.slots.get_mut(first_row) {
            slow.statistics.stragglers += 1;
        }
        self.actions.push_back(Action::Dispatch {
            slot: second.slot,
            frame: id,
            stream: id_of,
            from,
            to,
            first: index,
            count: 1,
            grant,
            lease: Lease::None,
        });
        true
    }
}

impl Frame {
    /// A frame of one of its items, for another slot.
    fn copy(&self, id: FrameId, index: Index, grant: u64, now: Duration) -> Self {
        Self {
            id,
            first: index,
            count: 1,
            pending: 1,
            executed: 0,
            grant,
            recall: RecallState::Idle,
            since: now,
            sent: None,
            ..*self
        }
    }
}

impl Slot {
    /// Items here that need an answer which counts.
    pub(crate) fn owed_items(&self) -> u64 {
        let pending = self.frames.iter().map(|frame| u64::from(frame.pending));
        pending.sum::<u64>().saturating_sub(self.late.len() as u64)
    }
}
