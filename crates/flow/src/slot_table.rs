//! The table of all slots and the order in which they get work: found without looking at every slot, since there may be
//! tens of thousands and each answer asks for the next.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::slot::{Slot, nanos};
use crate::{SchedulerConfig, SlotId};

/// All slots, each in a row of its own. A row is a small number that other tables are indexed with too; it is used again after its slot is gone.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    rows: Vec<Option<Slot>>,
    by_id: BTreeMap<SlotId, usize>,
    free: BTreeSet<usize>,
    usable: u32,
    /// Rows whose slots may have changed since they were last indexed, some twice.
    changed: Vec<usize>,
    /// What the orders and counts below hold of each row's slot.
    indexed: Vec<Indexed>,
    /// Slots that have fewer frames than hide sending, by the time at which they will be idle.
    hungry: BTreeSet<QueueKey>,
    /// Slots whose windows have room besides, in the same order.
    filled: BTreeSet<QueueKey>,
    /// Round trips of the usable slots, in nanoseconds, and how many slots have each.
    round_trips: BTreeMap<u64, u32>,
    /// The sum of the usable slots' round trips, in nanoseconds.
    round_trip_sum: u64,
    idle: u32,
    empty: u32,
    asked: u32,
    /// Rows of slots from which something could be asked back.
    able: BTreeSet<usize>,
}

/// A slot's place in the order: when it will be idle at the earliest (0: it is idle now), how many items it has, its row.
/// The time may be too early, since the expected end of a slot that is silent for too long moves on all the time; it is
/// corrected when the slot's turn comes.
type QueueKey = (u64, u64, usize);

/// The queue that a slot stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The slot has fewer frames than hide sending.
    Hungry,
    /// The slot's window may have room.
    Filled,
}

/// What the table's orders and counts hold of a slot, so that it can be taken out again.
#[derive(Clone, Copy, Debug, Default)]
struct Indexed {
    key: Option<(Queue, QueueKey)>,
    round_trip: Option<u64>,
    is_idle: bool,
    is_empty: bool,
    is_asked: bool,
}

/// A slot whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub(crate) load: u64,
    items: u64,
    pub(crate) row: usize,
}

/// The position of a walk through a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor(Option<QueueKey>);

impl SlotTable {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Slots that may get work.
    pub(crate) fn usable(&self) -> u32 {
        self.usable
    }

    pub(crate) fn row(&self, id: SlotId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn add(&mut self, slot: Slot) -> usize {
        let row = self.free.pop_first().unwrap_or(self.rows.len());
        self.by_id.insert(slot.id, row);
        if row == self.rows.len() {
            self.rows.push(None);
            self.indexed.push(Indexed::default());
        }
        self.usable += u32::from(!slot.draining);
        self.rows[row] = Some(slot);
        self.changed.push(row);
        row
    }

    pub(crate) fn remove(&mut self, row: usize) -> Option<Slot> {
        let slot = self.rows.get_mut(row)?.take()?;
        self.by_id.remove(&slot.id);
        self.free.insert(row);
        self.usable -= u32::from(!slot.draining);
        self.withdraw(row);
        Some(slot)
    }

    /// The slot finishes what it has and gets nothing more.
    pub(crate) fn drain(&mut self, row: usize) {
        if let Some(slot) = self.get_mut(row)
            && !std::mem::replace(&mut slot.draining, true)
        {
            self.usable -= 1;
        }
    }

    /// The slot gets work again.
    pub(crate) fn keep(&mut self, row: usize) {
        if let Some(slot) = self.get_mut(row)
            && std::mem::take(&mut slot.draining)
        {
            self.usable += 1;
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<&Slot> {
        self.rows.get(row)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, row: usize) -> Option<&mut Slot> {
        let slot = self.rows.get_mut(row)?.as_mut()?;
        if self.changed.last() != Some(&row) {
            self.changed.push(row);
        }
        Some(slot)
    }

    /// The slots with their rows, in row order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.rows
            .iter()
            .enumerate()
            .filter_map(|(row, slot)| Some((row, slot.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.changed.extend(self.by_id.values());
        self.rows
            .iter_mut()
            .enumerate()
            .filter_map(|(row, slot)| Some((row, slot.as_mut()?)))
    }

    /// Indexes what has changed: orders and counts are right from then on, until something changes again.
    pub(crate) fn index_changes(&mut self, config: &SchedulerConfig, now: Duration) {
        for row in std::mem::take(&mut self.changed) {
            self.withdraw(row);
            let Some(slot) = self.rows[row].as_ref() else {
                continue;
            };
            // Where nothing more goes doesn't matter.
            let round_trip = (!slot.draining).then(|| slot.round_trip(config));
            let is_able = slot.recalls == 0 && slot.is_recallable();
            let indexed = Indexed {
                key: slot
                    .queue(config)
                    .map(|queue| (queue, queue_key(slot, row, now))),
                round_trip,
                is_idle: slot.is_idle(),
                is_empty: slot.frames.is_empty(),
                is_asked: slot.recalls > 0,
            };
            if let Some((queue, key)) = indexed.key {
                self.queue_mut(queue).insert(key);
            }
            if is_able {
                self.able.insert(row);
            }
            if let Some(round_trip) = round_trip {
                *self.round_trips.entry(round_trip).or_default() += 1;
                self.round_trip_sum += round_trip;
            }
            self.idle += u32::from(indexed.is_idle);
            self.empty += u32::from(indexed.is_empty);
            self.asked += u32::from(indexed.is_asked);
            self.indexed[row] = indexed;
        }
    }

    fn withdraw(&mut self, row: usize) {
        let indexed = std::mem::take(&mut self.indexed[row]);
        self.able.remove(&row);
        if let Some((queue, key)) = indexed.key {
            self.queue_mut(queue).remove(&key);
        }
        self.round_trip_sum -= indexed.round_trip.unwrap_or(0);
        if let Some(round_trip) = indexed.round_trip
            && let Some(count) = self.round_trips.get_mut(&round_trip)
        {
            *count -= 1;
            if *count == 0 {
                self.round_trips.remove(&round_trip);
            }
        }
        self.idle -= u32::from(indexed.is_idle);
        self.empty -= u32::from(indexed.is_empty);
        self.asked -= u32::from(indexed.is_asked);
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

    /// Slots from which something could be asked back, with their rows.
    pub(crate) fn able(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let slot = |row: &usize| Some((*row, self.get(*row)?));
        self.able.iter().filter_map(slot)
    }

    /// The shortest round trip that is known, in nanoseconds; 0 if none is.
    pub(crate) fn round_trip_min(&self) -> u64 {
        let known = self.round_trips.range(1..).next();
        known.map_or(0, |(round_trip, _)| *round_trip)
    }

    /// The longest round trip, in nanoseconds; 0 if none is known.
    pub(crate) fn round_trip_max(&self) -> u64 {
        let longest = self.round_trips.last_key_value();
        longest.map_or(0, |(round_trip, _)| *round_trip)
    }

    /// The sum of the round trips of all usable slots, in nanoseconds.
    pub(crate) fn round_trip_sum(&self) -> u64 {
        self.round_trip_sum
    }

    /// The slot of a queue that has the least to do, of those behind the cursor.
    pub(crate) fn next(
        &mut self,
        queue: Queue,
        cursor: &mut Cursor,
        now: Duration,
    ) -> Option<Candidate> {
        loop {
            let behind = cursor.0.map_or(Bound::Unbounded, Bound::Excluded);
            let keys = match queue {
                Queue::Hungry => &self.hungry,
                Queue::Filled => &self.filled,
            };
            let found = *keys.range((behind, Bound::Unbounded)).next()?;
            let row = found.2;
            let slot = self.rows[row].as_ref()?;
            let right = queue_key(slot, row, now);
            if right > found {
                // The slot will be idle later than was thought: its turn is still to come.
                let queued = self.queue_mut(queue);
                queued.remove(&found);
                queued.insert(right);
                self.indexed[row].key = Some((queue, right));
                continue;
            }
            cursor.0 = Some(found);
            return Some(Candidate {
                load: slot.load(now),
                items: slot.running_items,
                row,
            });
        }
    }

    fn queue_mut(&mut self, queue: Queue) -> &mut BTreeSet<QueueKey> {
        match queue {
            Queue::Hungry => &mut self.hungry,
            Queue::Filled => &mut self.filled,
        }
    }
}

fn queue_key(slot: &Slot, row: usize, now: Duration) -> QueueKey {
    let load = slot.load(now);
    let idle_at = if load == 0 {
        0
    } else {
        nanos(now).saturating_add(load)
    };
    (idle_at, slot.running_items, row)
}
