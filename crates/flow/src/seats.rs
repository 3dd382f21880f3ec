//! All slots, each on a seat, and the order in which they choose: found without looking at every one, since there may be
//! tens of thousands and each answer asks for the next.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::slot::{Slot, nanos};
use crate::{SchedulerConfig, SlotId};

/// All slots, each on a seat: a small number that tables can be indexed with, used again after a slot is gone.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    seats: Vec<Option<Slot>>,
    by_id: BTreeMap<SlotId, usize>,
    free: BTreeSet<usize>,
    usable: u32,
    /// Seats whose slots may have changed since they were last entered, some twice.
    changed: Vec<usize>,
    /// By seat.
    entries: Vec<Entry>,
    /// Slots that have fewer frames than hide sending, by the time at which they will be idle.
    hungry: BTreeSet<Place>,
    /// Slots whose windows have room besides, in the same order.
    filled: BTreeSet<Place>,
    /// How many usable slots have which round trip.
    round_trips: BTreeMap<u64, u32>,
    round_trip_sum: u64,
    idle: u32,
    empty: u32,
    asked: u32,
    /// Seats of slots from which something could be asked back.
    able: BTreeSet<usize>,
}

/// Where a slot stands in the order: when it will be idle at the earliest (0: it is), how many items it has, its seat.
/// The first may be earlier than it turns out, as a slot that is silent for longer than it should be gets later all the
/// time; it is put right when its turn comes.
type Place = (u64, u64, usize);

/// The queue that a slot stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// It has fewer frames than hide sending.
    Hungry,
    /// Its window may have room.
    Filled,
}

/// What of a slot has been entered, so that it can be taken out again.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    place: Option<(Queue, Place)>,
    round_trip: Option<u64>,
    is_idle: bool,
    is_empty: bool,
    is_asked: bool,
}

/// A slot whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) load: u64,
    items: u64,
    pub(crate) seat: usize,
}

/// How far a walk through a queue is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor(Option<Place>);

impl Slots {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Slots that may get work.
    pub(crate) fn usable(&self) -> u32 {
        self.usable
    }

    pub(crate) fn seat(&self, id: SlotId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn add(&mut self, slot: Slot) -> usize {
        let seat = self.free.pop_first().unwrap_or(self.seats.len());
        self.by_id.insert(slot.id, seat);
        if seat == self.seats.len() {
            self.seats.push(None);
            self.entries.push(Entry::default());
        }
        self.usable += u32::from(!slot.draining);
        self.seats[seat] = Some(slot);
        self.changed.push(seat);
        seat
    }

    pub(crate) fn remove(&mut self, seat: usize) -> Option<Slot> {
        let slot = self.seats.get_mut(seat)?.take()?;
        self.by_id.remove(&slot.id);
        self.free.insert(seat);
        self.usable -= u32::from(!slot.draining);
        self.withdraw(seat);
        Some(slot)
    }

    /// The slot finishes what it has and gets nothing more.
    pub(crate) fn drain(&mut self, seat: usize) {
        if let Some(slot) = self.get_mut(seat)
            && !std::mem::replace(&mut slot.draining, true)
        {
            self.usable -= 1;
        }
    }

    pub(crate) fn get(&self, seat: usize) -> Option<&Slot> {
        self.seats.get(seat)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, seat: usize) -> Option<&mut Slot> {
        let slot = self.seats.get_mut(seat)?.as_mut()?;
        if self.changed.last() != Some(&seat) {
            self.changed.push(seat);
        }
        Some(slot)
    }

    /// The slots with their seats, in seat order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.seats
            .iter()
            .enumerate()
            .filter_map(|(seat, slot)| Some((seat, slot.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.changed.extend(self.by_id.values());
        self.seats
            .iter_mut()
            .enumerate()
            .filter_map(|(seat, slot)| Some((seat, slot.as_mut()?)))
    }

    /// Enters what has changed: the numbers and orders below are right from then on, until something changes again.
    pub(crate) fn enter_changes(&mut self, config: &SchedulerConfig, now: Duration) {
        for seat in std::mem::take(&mut self.changed) {
            self.withdraw(seat);
            let Some(slot) = self.seats[seat].as_ref() else {
                continue;
            };
            // Where nothing more goes doesn't matter.
            let round_trip = (!slot.draining).then(|| slot.round_trip(config));
            let is_able = slot.recalls == 0 && slot.recallable().0 > 0;
            let entry = Entry {
                place: slot
                    .queue(config)
                    .map(|queue| (queue, place(slot, seat, now))),
                round_trip,
                is_idle: slot.is_idle(),
                is_empty: slot.frames.is_empty(),
                is_asked: slot.recalls > 0,
            };
            if let Some((queue, place)) = entry.place {
                self.queue_mut(queue).insert(place);
            }
            if is_able {
                self.able.insert(seat);
            }
            if let Some(round_trip) = round_trip {
                *self.round_trips.entry(round_trip).or_default() += 1;
                self.round_trip_sum += round_trip;
            }
            self.idle += u32::from(entry.is_idle);
            self.empty += u32::from(entry.is_empty);
            self.asked += u32::from(entry.is_asked);
            self.entries[seat] = entry;
        }
    }

    fn withdraw(&mut self, seat: usize) {
        let entry = std::mem::take(&mut self.entries[seat]);
        self.able.remove(&seat);
        if let Some((queue, place)) = entry.place {
            self.queue_mut(queue).remove(&place);
        }
        self.round_trip_sum -= entry.round_trip.unwrap_or(0);
        if let Some(round_trip) = entry.round_trip
            && let Some(count) = self.round_trips.get_mut(&round_trip)
        {
            *count -= 1;
            if *count == 0 {
                self.round_trips.remove(&round_trip);
            }
        }
        self.idle -= u32::from(entry.is_idle);
        self.empty -= u32::from(entry.is_empty);
        self.asked -= u32::from(entry.is_asked);
    }

    /// Slots without anything to run.
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }

    /// Slots that owe no answer at all.
    pub(crate) fn empty(&self) -> u32 {
        self.empty
    }

    /// Slots that were asked for something back.
    pub(crate) fn asked(&self) -> u32 {
        self.asked
    }

    /// Slots from which something could be asked back, with their seats.
    pub(crate) fn able(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let slot = |seat: &usize| Some((*seat, self.get(*seat)?));
        self.able.iter().filter_map(slot)
    }

    /// The shortest round trip that is known, in nanoseconds; 0 if none is.
    pub(crate) fn round_trip_min(&self) -> u64 {
        let known = self.round_trips.range(1..).next();
        known.map_or(0, |(round_trip, _)| *round_trip)
    }

    /// The longest.
    pub(crate) fn round_trip_max(&self) -> u64 {
        let longest = self.round_trips.last_key_value();
        longest.map_or(0, |(round_trip, _)| *round_trip)
    }

    /// Those of all slots together.
    pub(crate) fn round_trip_sum(&self) -> u64 {
        self.round_trip_sum
    }

    /// The slot of a queue that has the least to do, of those behind the cursor.
    pub(crate) fn next(
        &mut self,
        queue: Queue,
        cursor: &mut Cursor,
        now: Duration,
    ) -> Option<Turn> {
        loop {
            let behind = cursor.0.map_or(Bound::Unbounded, Bound::Excluded);
            let places = match queue {
                Queue::Hungry => &self.hungry,
                Queue::Filled => &self.filled,
            };
            let found = *places.range((behind, Bound::Unbounded)).next()?;
            let seat = found.2;
            let slot = self.seats[seat].as_ref()?;
            let right = place(slot, seat, now);
            if right > found {
                // It is later than was thought; its turn is still to come.
                let queued = self.queue_mut(queue);
                queued.remove(&found);
                queued.insert(right);
                self.entries[seat].place = Some((queue, right));
                continue;
            }
            cursor.0 = Some(found);
            return Some(Turn {
                load: slot.load(now),
                items: slot.running_items,
                seat,
            });
        }
    }

    fn queue_mut(&mut self, queue: Queue) -> &mut BTreeSet<Place> {
        match queue {
            Queue::Hungry => &mut self.hungry,
            Queue::Filled => &mut self.filled,
        }
    }
}

fn place(slot: &Slot, seat: usize, now: Duration) -> Place {
    let load = slot.load(now);
    let idle_at = if load == 0 {
        0
    } else {
        nanos(now).saturating_add(load)
    };
    (idle_at, slot.running_items, seat)
}
