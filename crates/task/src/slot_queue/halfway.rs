//! Items that have passed the serial function of a frame: they wait for the segments behind it, or are given back halfway.

use std::time::Duration;

use super::{Kind, Outgoing, PENDING_BYTES_MAX, Pending, SlotQueue, ToldItem};
use crate::message::ToManager;
use crate::payload::RecordWriter;

/// The items of a frame that have passed the serial function: the last of those up to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) frame: u64,
    pub(super) left: u64,
    pub(super) end: u64,
    /// So many of them are asked back, from the last one on. Only whoever runs them has their values.
    pub(super) asked: u32,
}

impl SlotQueue {
    /// Asks for so many items of this frame that have passed its serial function, from the last one on: the answer comes when
    /// the running one is done. Says no if all of them have begun.
    pub(super) fn ask_back(&mut self, frame: u64, count: u32) -> bool {
        match &mut self.rest {
            // One of them runs or is about to.
            Some(rest) if rest.frame == frame && rest.left > 1 && count > 0 => {
                rest.asked = rest.asked.max(count);
                true
            }
            _ => false,
        }
    }

    /// How many of this frame's items that have passed its serial function are asked back, if that isn't answered. They are at
    /// the frame's end, and none of them has begun.
    #[must_use]
    pub fn asked_back(&self, frame: u64) -> Option<u32> {
        let rest = self.rest.filter(|rest| rest.frame == frame);
        rest.map(|rest| rest.asked).filter(|asked| *asked > 0)
    }

    /// Gives back the last items of this frame halfway, as tokens for the segment that they have `reached`: one record each, in the
    /// order of items, of no more bytes than a result of theirs may have without asking. Says what is to be sent; the others run here.
    pub fn give_back_halfway(
        &mut self,
        frame: u64,
        reached: u16,
        records: Vec<RecordWriter>,
        now: Duration,
    ) -> Vec<Outgoing> {
        // What it took to write them is nobody's time.
        let _ = self.elapsed(now);
        let Some(mut rest) = self.rest.filter(|rest| rest.frame == frame) else {
            return Vec::new();
        };
        let given = (records.len() as u64).min(rest.left);
        rest.left -= given;
        rest.end -= given;
        rest.asked = 0;
        self.rest = (rest.left > 0).then_some(rest);
        let mut outgoing = Vec::new();
        if self.rest.is_none() {
            outgoing.extend(self.take_pending().into_outgoing());
        }
        let mut pending = Pending::new(Kind::Outcome, (frame, reached), rest.end);
        for mut record in records {
            let told = ToldItem {
                kind: Kind::Outcome,
                reached,
                has_state: false,
            };
            pending.push(&mut record, told);
            if pending.writer.bytes() >= PENDING_BYTES_MAX {
                let next = Pending::new(Kind::Outcome, (frame, reached), pending.next());
                outgoing.extend(std::mem::replace(&mut pending, next).into_outgoing());
            }
        }
        outgoing.extend(pending.into_outgoing());
        let (first, count) = (0, 0);
        let answer = ToManager::Recalled {
            frame,
            first,
            count,
        };
        outgoing.push(answer.into());
        outgoing
    }
}
