//! Items that are folded: they end without a result of their own, and there is one of many.

use std::time::Duration;

use super::{ItemKey, Kind, Outgoing, Pending, SlotQueue, TooLarge};
use crate::payload::RecordWriter;

/// Who folds tells of it after so long at the latest: what is told of isn't run again when the slot is lost.
pub(super) const FOLD_TIME: Duration = Duration::from_millis(50);

impl SlotQueue {
    /// An item has been folded into those before it. Says whether it is time to tell of that.
    pub fn absorb(&mut self, key: ItemKey, now: Duration) -> bool {
        let busy = self.elapsed(now);
        let complete = self.complete(key.frame);
        self.expect_rest(key, now);
        let (since, spent, count) = &mut self.folded;
        *spent += busy;
        *count += 1;
        let since = *since.get_or_insert(now);
        complete || now.saturating_sub(since) >= FOLD_TIME
    }

    /// Tells of what was folded, `key`'s item first, as `write` appends its one record. Says what is to be sent.
    ///
    /// # Errors
    /// When it is over the size limit; nothing of it is kept then.
    pub fn finish_folded(
        &mut self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        if self.has_given_up {
            return Ok(Vec::new());
        }
        write(&mut self.scratch);
        let bytes = self.scratch.bytes();
        if bytes > self.result_bytes_max {
            let _ = self.scratch.take();
            return Err(TooLarge {
                got: bytes,
                maximum: self.result_bytes_max,
            });
        }
        let (_, busy, items) = std::mem::take(&mut self.folded);
        let reached = key.to.saturating_add(1);
        let mut folded = Pending::new(Kind::Folded, (key.frame, reached), key.index);
        folded.writer.append(&mut self.scratch);
        (folded.items, folded.busy) = (items, busy);
        let earlier = self.take_pending().into_outgoing();
        let mut outgoing: Vec<Outgoing> = earlier.into_iter().collect();
        outgoing.extend(self.send_or_hold(key, folded));
        Ok(outgoing)
    }
}

#[cfg(test)]
mod tests {
    use exoskel_flow::Lease;

    use super::*;
    use crate::message::{
        Call, Execute, GivenState, ItemRules, ReceivedMessage, ToManager, ToSlot,
    };
    use crate::payload::Format;
    use crate::slot_queue::{SerialPassage, Work};

    const NOW: Duration = Duration::from_secs(1);

    fn told(queue: &mut SlotQueue, message: &ToSlot) -> Vec<ToManager> {
        let endpoint = message.endpoint();
        let (handler, head) = message.encode();
        let message = ReceivedMessage {
            handler,
            head,
            bulk: Vec::new(),
        };
        let answers = queue.receive(endpoint, message, &SerialPassage::default());
        said(answers.unwrap())
    }

    fn said(outgoing: Vec<Outgoing>) -> Vec<ToManager> {
        let read = |answer: Outgoing| {
            ToManager::decode(answer.message.handler, answer.message.head).unwrap()
        };
        outgoing.into_iter().map(read).collect()
    }

    /// A queue whose frame of three items has been folded into something larger than its grant.
    fn folded() -> (SlotQueue, Vec<ToManager>) {
        let mut queue = SlotQueue::new(1 << 20);
        let define = ToSlot::Define {
            stream: 1,
            first_stream: 1,
            call: Call::Item,
            rules: ItemRules::default(),
            segments: Vec::new(),
        };
        told(&mut queue, &define);
        let mut records = RecordWriter::default();
        (0..3).for_each(|_| records.push(Format::Pickle, false, b"item", &[], []));
        let execute = Execute {
            frame: 5,
            stream: 1,
            from: 0,
            to: 0,
            lease: Lease::None,
            grant: 10,
            first: 7,
            count: 3,
            state: GivenState::Nothing,
            lists: false,
            records: records.take().1,
        };
        told(&mut queue, &ToSlot::Execute(execute));
        let mut first = None;
        let mut is_due = Vec::new();
        loop {
            match queue.begin(&SerialPassage::default(), NOW) {
                Work::Item(item) => {
                    first.get_or_insert(item.key);
                    is_due.push(queue.absorb(item.key, NOW));
                }
                Work::Code(_) => {}
                _ => break,
            }
        }
        assert_eq!(is_due, [false, false, true]);
        let finished = queue.finish_folded(first.unwrap(), |writer| {
            writer.push(Format::Pickle, false, b"larger than its grant", &[], []);
        });
        (queue, said(finished.unwrap()))
    }

    /// Aim: a folded result is one of all of its items, and waits for its grant if it is large.
    #[test]
    fn a_large_one_waits_for_its_grant() {
        let (mut queue, announced) = folded();
        assert!(matches!(
            announced[..],
            [ToManager::Announced {
                frame: 5,
                index: 7,
                bytes: 23,
                ..
            }]
        ));
        let granted = told(&mut queue, &ToSlot::Grant { frame: 5, index: 7 });
        assert!(
            matches!(
                granted[..],
                [ToManager::Folded {
                    frame: 5,
                    first: 7,
                    count: 3,
                    ..
                }]
            ),
            "{granted:?}"
        );
    }

    /// Aim: when a stream is forgotten, what was folded and waits is answered for: its first item was announced, the others weren't.
    #[test]
    fn what_waits_is_answered_for_when_its_stream_is_forgotten() {
        let (mut queue, _) = folded();
        let answers = told(&mut queue, &ToSlot::Forget { stream: 1 });
        let others = ToManager::Recalled {
            frame: 5,
            first: 8,
            count: 2,
        };
        assert_eq!(answers, [others]);
    }
}
