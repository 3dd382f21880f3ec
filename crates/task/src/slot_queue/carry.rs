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

    /// How many items were [carried](Self::carry) and not told of.
    #[must_use]
    pub fn carried(&self) -> u32 {
        self.carried.items
    }

    /// Forgets their outcomes: they are answered for in another way.
    pub fn forget_carried(&mut self) {
        self.carried = Pending::default();
    }

    /// Gives back those items, and what has not been started of their frame: they run again, with a state that the manager has to send. Says what is to
    /// be sent. An item between them runs, and has an outcome of its own.
    pub fn give_back_carried(&mut self) -> Vec<Outgoing> {
        let dropped = std::mem::take(&mut self.carried);
        if dropped.items == 0 {
            return Vec::new();
        }
        let recalled = ToManager::Recalled {
            frame: dropped.frame,
            first: dropped.first,
            count: dropped.items,
        };
        let rest = self.give_back_rest(dropped.frame);
        rest.into_iter().chain([recalled.into()]).collect()
    }

    /// Gives back the running item, whose state before it nobody will have: it runs again, as if it had not begun. Says what is to be sent.
    pub fn give_back_running(&mut self, key: ItemKey, now: Duration) -> Option<Outgoing> {
        if self.has_given_up {
            return None;
        }
        // What it took counts for nobody.
        let _ = self.elapsed(now);
        self.complete(key.frame);
        self.expect_rest(key, now);
        let recalled = ToManager::Recalled {
            frame: key.frame,
            first: key.index,
            count: 1,
        };
        Some(recalled.into())
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

#[cfg(test)]
mod tests {
    use exoskel_flow::Lease;

    use super::*;
    use crate::message::{Call, Execute, GivenState, ItemRules, ReceivedMessage, ToSlot};
    use crate::payload::Format;
    use crate::slot_queue::{SerialPassage, StateBefore, Work};

    const NOW: Duration = Duration::from_secs(1);
    const FRAME: u64 = 5;

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

    fn said(outgoing: impl IntoIterator<Item = Outgoing>) -> Vec<ToManager> {
        let read = |answer: Outgoing| {
            ToManager::decode(answer.message.handler, answer.message.head).unwrap()
        };
        outgoing.into_iter().map(read).collect()
    }

    fn recalled(first: u64, count: u32) -> ToManager {
        ToManager::Recalled {
            frame: FRAME,
            first,
            count,
        }
    }

    fn value(bytes: usize) -> impl FnOnce(&mut RecordWriter) {
        move |writer| writer.push(Format::Pickle, false, &vec![7; bytes], &[], [])
    }

    /// A queue with a frame of five items, the first of which is 7, and a state.
    fn begun() -> SlotQueue {
        let mut queue = SlotQueue::new(1 << 20);
        define(&mut queue, 1, None);
        told(&mut queue, &ToSlot::Execute(frame_of_five()));
        queue
    }

    /// Makes a stream known whose items may run for so long.
    fn define(queue: &mut SlotQueue, stream: u32, timeout: Option<Duration>) {
        let define = ToSlot::Define {
            stream,
            first_stream: stream,
            call: Call::Item,
            rules: ItemRules {
                timeout,
                ..ItemRules::default()
            },
            segments: Vec::new(),
        };
        told(queue, &define);
        assert!(matches!(
            queue.begin(&SerialPassage::default(), NOW),
            Work::Code(_)
        ));
    }

    fn frame_of_five() -> Execute {
        let mut records = RecordWriter::default();
        (0..6).for_each(|_| value(4)(&mut records));
        Execute {
            frame: FRAME,
            stream: 1,
            from: 0,
            to: 0,
            lease: Lease::Kept,
            grant: 20,
            first: 7,
            count: 5,
            state: GivenState::Sent,
            lists: false,
            records: records.take().1,
        }
    }

    /// Runs the next item, whose result has so many bytes. Says whether it is time to tell of it.
    fn run(queue: &mut SlotQueue, bytes: usize) -> (ItemKey, bool) {
        let Work::Item(item) = queue.begin(&SerialPassage::default(), NOW) else {
            panic!("nothing runs");
        };
        let is_first = item.key.index == 7;
        assert_eq!(matches!(item.state, StateBefore::Sent(_)), is_first);
        let is_due = queue.carry(item.key, NOW, value(bytes)).unwrap();
        (item.key, is_due)
    }

    fn finished(queue: &mut SlotQueue, key: ItemKey, bytes: usize) -> Vec<ToManager> {
        said(queue.finish_carried(key, value(bytes)).unwrap())
    }

    /// Aim: results wait for the end of their frame, and go with one state, in one message.
    #[test]
    fn a_frame_has_one_state() {
        let mut queue = begun();
        let told: Vec<_> = (0..5).map(|_| run(&mut queue, 1)).collect();
        let is_due: Vec<bool> = told.iter().map(|(_, is_due)| *is_due).collect();
        assert_eq!(is_due, [false, false, false, false, true]);
        assert!(!queue.is_idle());
        let answers = finished(&mut queue, told[4].0, 1);
        let [ToManager::Carried { first, count, .. }] = answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!((first, count), (7, 5));
        assert!(queue.is_idle());
    }

    /// Aim: what is larger than what was granted to all of them waits, and the rest of the frame goes back: it needs that state.
    #[test]
    fn what_waits_for_a_grant_ends_its_frame() {
        let mut queue = begun();
        assert!(!run(&mut queue, 1).1);
        let (key, is_due) = run(&mut queue, 100);
        assert!(is_due, "a large result goes at once");
        let answers = finished(&mut queue, key, 1);
        let [
            ToManager::Announced { index, bytes, .. },
            ToManager::Recalled { first, count, .. },
        ] = answers[..]
        else {
            panic!("{answers:?}");
        };
        assert_eq!((index, first, count), (7, 9, 3));
        assert!(bytes > 102);
        let grant = ToSlot::Grant {
            frame: FRAME,
            index: 7,
        };
        let granted = told(&mut queue, &grant);
        let is_whole = matches!(
            granted[..],
            [ToManager::Carried {
                first: 7,
                count: 2,
                ..
            }]
        );
        assert!(is_whole, "{granted:?}");
    }

    /// Aim: what is over a limit is kept by nobody. Method: a result, and then a state after which all goes back.
    #[test]
    fn states_have_limits() {
        let mut queue = begun();
        let maximum = queue.carried_bytes_max();
        let (key, _) = run(&mut queue, 1);
        run(&mut queue, 1);
        let too_large = queue.carry(key, NOW, value(maximum as usize));
        assert!(too_large.is_err());
        let too_large = queue.finish_carried(key, value(maximum as usize));
        assert!(too_large.is_err_and(|error| error.maximum == maximum));
        assert_eq!(queue.carried(), 2);
        assert_eq!(
            said(queue.give_back_carried()),
            [recalled(9, 3), recalled(7, 2)]
        );
        assert!(queue.is_idle());
    }

    /// Aim: an item that runs is not given back with those before and behind it. Method: two items, and one that raises an exception.
    #[test]
    fn what_runs_is_not_given_back() {
        let mut queue = begun();
        run(&mut queue, 1);
        run(&mut queue, 1);
        let Work::Item(running) = queue.begin(&SerialPassage::default(), NOW) else {
            panic!("nothing runs");
        };
        assert_eq!(
            said(queue.give_back_carried()),
            [recalled(10, 2), recalled(7, 2)]
        );
        let answers = said(queue.finish(running.key, NOW, value(1)).unwrap());
        let [ToManager::Results { first, count, .. }] = answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!((first, count), (9, 1));
        assert!(queue.is_idle());
    }

    /// Aim: an item that raised behind a state that nobody will have goes back as well. Method: two items, and one that is to run again.
    #[test]
    fn what_ran_behind_a_lost_state_is_given_back() {
        let mut queue = begun();
        run(&mut queue, 1);
        run(&mut queue, 1);
        let Work::Item(running) = queue.begin(&SerialPassage::default(), NOW) else {
            panic!("nothing runs");
        };
        let back = queue.give_back_carried();
        let back = back
            .into_iter()
            .chain(queue.give_back_running(running.key, NOW));
        let expected = [recalled(10, 2), recalled(7, 2), recalled(9, 1)];
        assert_eq!(said(back), expected);
        assert!(queue.is_idle());
    }

    /// Aim: what is answered for late leaves the item of the next frame that has begun its time limit, and its name for an interrupt.
    #[test]
    fn a_late_answer_leaves_the_running_item_alone() {
        let mut queue = begun();
        let keys: Vec<ItemKey> = (0..5).map(|_| run(&mut queue, 1).0).collect();
        define(&mut queue, 2, Some(Duration::from_secs(1)));
        let execute = Execute {
            frame: FRAME + 1,
            stream: 2,
            ..frame_of_five()
        };
        told(&mut queue, &ToSlot::Execute(execute));
        assert!(matches!(
            queue.begin(&SerialPassage::default(), NOW),
            Work::Item(item) if item.key.frame == FRAME + 1
        ));
        queue.forget_carried();
        queue.finish(keys[4], NOW, value(1)).unwrap();
        assert!(queue.has_deadline(), "the next item has no time limit");
        assert!(!queue.is_idle());
    }

    /// Aim: when a stream is forgotten, what waits for a grant is answered for.
    #[test]
    fn what_waits_is_answered_for_when_its_stream_is_forgotten() {
        let mut queue = begun();
        run(&mut queue, 1);
        let (key, _) = run(&mut queue, 100);
        finished(&mut queue, key, 1);
        let answers = told(&mut queue, &ToSlot::Forget { stream: 1 });
        let others = ToManager::Recalled {
            frame: FRAME,
            first: 8,
            count: 1,
        };
        assert_eq!(answers, [others]);
    }
}
