//! Who may send how much: results are as large as they like, the memory of the manager is not.

use std::cmp::Ordering;
use std::ops::Range;

use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::stream::Stream;
use crate::{Action, Index, SchedulerConfig};

/// The part of the least grant that a result has whatever its token takes up.
const WORDS_PART: u64 = 8;

impl Stream {
    /// Bytes that each result of a new frame may have without asking: what is usual, as long as the frame does not
    /// take more than half of the room that is left; never less than the least, of which a token that is held for the item until
    /// its result comes has its part already. A part of the least is always left for the next result: an exception of a few words, such as
    /// that of an item that runs for too long, comes from a slot that ends with it and can't wait.
    pub(crate) fn grant(
        &self,
        config: &SchedulerConfig,
        (from, to): (u16, u16),
        items: Range<Index>,
    ) -> u64 {
        let count = items.end.saturating_sub(items.start).max(1);
        let average = self.segments[usize::from(to)].result_bytes.bytes();
        let usual = config.grant_bytes.max(average.saturating_mul(2));
        let roomy = usual.min(self.result_room(config) / (2 * count));
        let least = config.grant_bytes_least();
        let words = least / WORDS_PART;
        // What goes on as a token leaves room for those of the next segment.
        let goes_on = usize::from(to) + 1 < self.segments.len();
        let least = least - if goes_on { words } else { 0 };
        if roomy >= least || from == 0 {
            return roomy.max(least);
        }
        let tokens = self
            .ring
            .walk(items.start)
            .take(usize::try_from(count).unwrap_or(usize::MAX));
        let largest = tokens.map(|item| item.bytes).max().unwrap_or(0);
        roomy.max(least.saturating_sub(largest)).max(words)
    }
}

impl Scheduler {
    /// Looks how much is held of what the items of a line were made into.
    pub(crate) fn look_below(&mut self, place: usize) {
        let Stream { line, lines, .. } = self.streams[place];
        if lines == 1 {
            return;
        }
        let first = place - usize::from(line);
        let group = self.streams[first..first + usize::from(lines)].iter();
        let inner = group.filter(|other| other.is_inner);
        let below = inner.map(|other| match other.line.cmp(&line) {
            Ordering::Less => 0,
            // Its own items may be made of its items, too; its results are counted in any case.
            Ordering::Equal => other.held_input,
            Ordering::Greater => other.held_input.saturating_add(other.held_results),
        });
        self.streams[place].held_below = below.sum();
    }

    /// Grants results that wait, oldest item first, while there is room; the oldest item that the user
    /// has not taken has its grant whatever the room is, since all others may wait for it. It takes no room from the others before it is here:
    /// a slot may say any length, and then send nothing.
    pub(crate) fn grant_waiting(&mut self) {
        for place in 0..self.streams.len() {
            if self.streams[place].waiting.is_empty() || self.streams[place].closed {
                continue;
            }
            self.look_below(place);
            let stream = &mut self.streams[place];
            let oldest = stream.oldest();
            let mut room = stream.result_room(&self.config);
            for (&index, waiting) in stream
                .waiting
                .iter_mut()
                .filter(|(_, waiting)| !waiting.granted)
            {
                if index != oldest {
                    if waiting.bytes > room {
                        break;
                    }
                    waiting.reserved = waiting.bytes;
                }
                room = room.saturating_sub(waiting.reserved);
                waiting.granted = true;
                stream.reserved = stream.reserved.saturating_add(waiting.reserved);
                let row = self.slots.row(waiting.slot);
                if let Some(slot) = row.and_then(|row| self.slots.get_mut(row)) {
                    slot.receivable = slot.receivable.saturating_add(waiting.bytes);
                }
                if let Some(item) = stream.ring.get_mut(index) {
                    item.state = ItemState::Granted;
                }
                self.actions.push_back(Action::Grant {
                    slot: waiting.slot,
                    frame: waiting.frame,
                    index,
                });
            }
        }
    }
}
