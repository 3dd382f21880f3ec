//! A slot is gone: its items are put back, and those that may have ended it are watched.

use std::time::Duration;

use crate::frame::Frame;
use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::slot::Slot;
use crate::{Action, Departure, Failure, SlotId, SlotStatistics};

/// Whether an item that ran at a slot may be why the slot is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The slot left in good order, or its session broke.
    Nobody,
    /// One of several may be: each must now run alone.
    OneOfThem,
    /// The item was the only one.
    It,
}

impl Scheduler {
    /// The slot is gone. Its items are put back. If it is lost, an item that was the only one there is charged with
    /// the loss, and fails when it is charged `retries` times; of several, nobody is charged and each runs alone from
    /// now on. Says what the slot did.
    pub fn remove_slot(
        &mut self,
        slot: SlotId,
        departure: Departure,
        now: Duration,
    ) -> Option<SlotStatistics> {
        let row = self.slots.row(slot)?;
        let mut slot = self.slots.remove(row)?;
        let blame = match (departure, slot.running_items) {
            (Departure::Orderly | Departure::Broken, _) => Blame::Nobody,
            (Departure::Lost, 1) => Blame::It,
            (Departure::Lost, _) => Blame::OneOfThem,
        };
        slot.statistics.put_back = slot.owed_items();
        for frame in std::mem::take(&mut slot.frames) {
            self.put_back(&frame, row, blame);
        }
        if self.reserved_row == Some(row) {
            self.reserved_row = None;
        }
        let segments = self
            .streams
            .iter_mut()
            .flat_map(|stream| &mut stream.segments);
        for segment in segments.filter(|segment| segment.home == Some(row)) {
            segment.home = None;
        }
        self.gone.busy += slot.statistics.busy;
        self.gone.occupied += slot.statistics.occupied;
        self.stir(now);
        Some(slot.totals())
    }

    fn put_back(&mut self, frame: &Frame, row: usize, blame: Blame) {
        let Some(place) = self.place(frame.stream) else {
            return;
        };
        let stream = &mut self.streams[place];
        let segment = frame.from;
        for index in frame.range() {
            // It goes on elsewhere, which will show whether it was the reason.
            if stream.lose_copy_with_slot(frame.id, index, blame) {
                continue;
            }
            let Some(item) = stream
                .ring
                .get_mut(index)
                .filter(|item| item.is_at(frame.id))
            else {
                continue;
            };
            let was = std::mem::replace(
                &mut item.state,
                if stream.closed {
                    ItemState::Gone
                } else {
                    ItemState::Ready
                },
            );
            stream.out -= 1;
            // An item whose result waited has run to its end; it did no harm.
            let blame = if was == ItemState::Out {
                blame
            } else {
                Blame::Nobody
            };
            if blame == Blame::It {
                let charges = 1 + stream.copies.charges_of(index);
                item.charge = item.charge.saturating_add(charges);
            }
            let charge = u32::from(item.charge);
            match stream.waiting.remove(&index) {
                Some(waiting) if waiting.granted => {
                    stream.reserved = stream.reserved.saturating_sub(waiting.reserved)
                }
                Some(_) => {}
                // The result that it was folded into waited.
                None if was != ItemState::Out => {}
                None => stream.reserved = stream.reserved.saturating_sub(frame.grant),
            }
            if stream.closed {
                continue;
            }
            if blame == Blame::It && item.charge >= self.config.charges_max() {
                stream.finish_without_result(index);
                let failure = Failure::WorkersLost { count: charge };
                self.actions.push_back(Action::Failed {
                    stream: stream.id,
                    segment,
                    index,
                    failure,
                });
            } else if blame != Blame::Nobody || frame.suspect && was == ItemState::Out {
                stream.make_suspect(segment, index);
            } else {
                stream.make_ready(segment, index..index + 1);
            }
        }
        if stream.closed {
            stream.ring.trim();
        }
        let holder = &mut stream.segments[usize::from(segment)].holder;
        if holder.is_some_and(|holder| holder.row == row) {
            *holder = None;
        }
        self.drop_if_done(place);
    }
}

impl Slot {
    /// The numbers, with what is here now.
    pub(crate) fn totals(&self) -> SlotStatistics {
        SlotStatistics {
            outstanding: self.owed_items(),
            ..self.statistics
        }
    }
}
