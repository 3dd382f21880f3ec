//! Items of a segment that carries a state: their results wait for the state behind them, and are told of with it.

use std::time::Duration;

use super::fold::FOLD_TIME;
use super::{ItemKey, Kind, Outgoing, PENDING_BYTES_MAX, Pending, SlotQueue, ToldItem, TooLarge};
use crate::message::ToManager;
use crate::payload::RecordWriter;

impl SlotQueue {
    /// Takes the outcome of an item of a segment that carries a state: `write` appends its one record. Says whether it is time to
    /// [tell](Self::finish_carried) of it and those before it, with the state behind it.
    ///
    /// # Errors
    /// When it is over the size limit; nothing of it is kept then.
    pub fn carry(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<bool, TooLarge> {
        if self.has_given_up {
            return Ok(false);
        }
        write(&mut self.scratch);
        let bytes = self.scratch.bytes();
        // The state, and what waits, must have room beside it.
        let maximum = self.carried_bytes_max().saturating_sub(PENDING_BYTES_MAX);
        if bytes > maximum {
            let _ = self.scratch.take();
            return Err(TooLarge {
                got: bytes,
                maximum,
            });
        }
        let busy = self.elapsed(now);
        let complete = self.complete(key.frame);
        self.expect_rest(key, now);
        let told = ToldItem::of(key, Kind::Carried);
        if self.carried.items == 0 {
            self.carried = Pending::new(Kind::Carried, (key.frame, told.reached), key.index);
        }
        self.carried.push(&mut self.scratch, told);
        self.carried.busy += busy;
        let since = *self.carried.since.get_or_insert(now);
        Ok(complete
            || bytes > key.grant
            || self.carried.writer.bytes() >= PENDING_BYTES_MAX
            || now.saturating_sub(since) >= FOLD_TIME)
    }

    /// Tells of items that were [carried](Self::carry), the last of which is `key`'s, with the state behind it, whose one record `write` appends. What
    /// waits for a grant then ends its frame: the rest goes back. Says what is to be sent.
    ///
    /// # Errors
    /// When the state is over its size limit; the results wait on then.
    pub fn finish_carried(
        &mut self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        if self.has_given_up {
            return Ok(Vec::new());
        }
        write(&mut self.scratch);
        let (bytes, maximum) = (self.scratch.bytes(), self.carried_bytes_max());
        if bytes > maximum {
            let _ = self.scratch.take();
            return Err(TooLarge {
                got: bytes,
                maximum,
            });
        }
        let mut results = std::mem::take(&mut self.carried);
        let place = (results.frame, results.reached);
        let mut carried = Pending::new(Kind::Carried, place, results.first);
        carried.writer.append(&mut self.scratch);
        carried.writer.append(&mut results.writer);
        (carried.items, carried.busy) = (results.items, results.busy);
        let earlier = self.take_pending().into_outgoing();
        let mut outgoing: Vec<Outgoing> = earlier.into_iter().collect();
        // They count together, so each may use what was granted to all.
        let all = ItemKey {
            index: carried.first,
            grant: key.grant.saturating_mul(carried.items.into()),
            ..key
        };
        let is_large = carried.writer.bytes() > all.grant;
        outgoing.extend(self.send_or_hold(all, carried));
        if is_large {
            outgoing.extend(self.give_back_rest(key.frame));
        }
        Ok(outgoing)
    }

    /// Forgets the outcomes of items that were [carried](Self::carry) and not told of, which are to be answered for in another way. Says which is the
    /// first one, and how many they are.
    pub fn drop_carried(&mut self) -> (u64, u32) {
        let dropped = std::mem::take(&mut self.carried);
        (dropped.first, dropped.items)
    }

    /// Gives back what has not been started of a frame: it needs a state that the manager has to send. Says what is to be sent.
    pub fn give_back_rest(&mut self, frame: u64) -> Option<Outgoing> {
        let (first, count) = self.give_back(frame, u32::MAX);
        let recalled = ToManager::Recalled {
            frame,
            first,
            count,
        };
        (count > 0).then(|| recalled.into())
    }

    /// What a state may have at most: it travels with results, and with items.
    fn carried_bytes_max(&self) -> u64 {
        self.result_bytes_max / 2
    }
}
