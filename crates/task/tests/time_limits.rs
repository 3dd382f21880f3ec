//! Items that run for too long: told to end, then answered for by a slot that leaves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Lease, SegmentStep};
use exoskel_task::message::{
    Call, EncodedMessage, Execute, GivenState, ItemRules, ReceivedMessage, SegmentFunctions,
    ToManager, ToSlot,
};
use exoskel_task::payload::{Format, RecordReader, RecordWriter};
use exoskel_task::slot_queue::{
    ItemKey, Outgoing, Overdue, SerialPassage, SlotQueue, TimeoutAnswer, Work,
};

const TIMEOUT: Duration = Duration::from_secs(5);
/// From the moment at which an item is told to end.
const GRACE: Duration = Duration::from_secs(1);
const STREAM: u32 = 3;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A slot whose program has a serial function and one after it.
struct Slot {
    queue: SlotQueue,
    passage: SerialPassage,
}

impl Slot {
    fn new(timeout: Option<Duration>) -> Self {
        let mut slot = Self {
            queue: SlotQueue::new(1 << 20),
            passage: SerialPassage::default(),
        };
        slot.hear(&ToSlot::Define {
            stream: STREAM,
            first_stream: STREAM,
            call: Call::Item,
            rules: ItemRules {
                timeout,
                retries_on: None,
            },
            segments: vec![
                SegmentFunctions {
                    serial: true,
                    steps: vec![SegmentStep::Call],
                    functions: vec![[1; 32]],
                    ..SegmentFunctions::default()
                },
                SegmentFunctions {
                    serial: false,
                    steps: vec![SegmentStep::Call],
                    functions: vec![[2; 32]],
                    ..SegmentFunctions::default()
                },
            ],
        });
        let answer = TimeoutAnswer {
            body: Bytes::from_static(b"too long"),
            retriable: false,
        };
        slot.queue.set_timeout_answer(STREAM, answer);
        assert!(matches!(slot.begin(at(0)), Work::Code(_)));
        slot
    }

    fn hear(&mut self, message: &ToSlot) {
        let EncodedMessage { handler, head, .. } = message.with_bulk(Vec::new());
        let received = ReceivedMessage {
            handler,
            head,
            bulk: Vec::new(),
        };
        let heard = self
            .queue
            .receive(message.endpoint(), received, &self.passage);
        assert!(heard.unwrap().is_empty());
    }

    /// A frame of so many items, of nothing.
    fn frame(&mut self, frame: u64, lease: Lease, count: u32) {
        let mut records = RecordWriter::default();
        (0..count).for_each(|_| records.push(Format::Data, false, b"\xf6", &[], []));
        self.hear(&ToSlot::Execute(Execute {
            frame,
            stream: STREAM,
            from: 0,
            to: 1,
            lease,
            grant: 4096,
            first: 0,
            count,
            state: GivenState::Nothing,
            lists: false,
            records: records.take().1,
        }));
    }

    fn begin(&mut self, now: Duration) -> Work {
        self.queue.begin(&self.passage, now)
    }

    fn item(&mut self, now: Duration) -> ItemKey {
        match self.begin(now) {
            Work::Item(item) => item.key,
            other => panic!("got {other:?}, expected an item"),
        }
    }

    fn finish(&mut self, key: ItemKey, now: Duration) -> Vec<Outgoing> {
        let write = |writer: &mut RecordWriter| writer.push(Format::Data, false, b"\xf6", &[], []);
        self.queue.finish(key, now, write).unwrap()
    }
}

/// Aim: what comes next begins with the answer to an item, and its time with it; not where something is sent first. Method: two items that follow each
/// other, the last of which ends its frame.
#[test]
fn the_next_item_begins_with_the_answer_unless_that_is_sent() {
    let mut slot = Slot::new(Some(TIMEOUT));
    slot.frame(1, Lease::None, 2);
    slot.frame(2, Lease::None, 1);
    let write = |writer: &mut RecordWriter| writer.push(Format::Data, false, b"\xf6", &[], []);
    let first = slot.item(at(0));
    let begun = slot
        .queue
        .finish_and_begin(first, &slot.passage, at(1), write);
    let (answers, Work::Item(second)) = begun.unwrap() else {
        panic!("expected an item");
    };
    assert!(answers.is_empty());
    assert_eq!((second.key.frame, second.key.index), (1, 1));
    assert!(slot.queue.look(at(5000)).is_none());
    assert!(matches!(slot.queue.look(at(5001)), Some(Overdue::Tell)));
    let begun = slot
        .queue
        .finish_and_begin(second.key, &slot.passage, at(5002), write);
    let (answers, work) = begun.unwrap();
    assert_eq!(answers.len(), 1);
    assert!(matches!(work, Work::Nothing), "{work:?}");
    assert!(!slot.queue.has_deadline());
    assert_eq!(slot.item(at(5003)).frame, 2);
}

/// The exceptions among the answers: item and body.
fn exceptions(answers: Vec<Outgoing>) -> Vec<(u64, Bytes)> {
    let mut found = Vec::new();
    for EncodedMessage { handler, head, .. } in answers.into_iter().map(|answer| answer.message) {
        let ToManager::Results {
            first,
            count,
            records,
            ..
        } = ToManager::decode(handler, head).unwrap()
        else {
            continue;
        };
        let mut reader = RecordReader::new(records, Vec::new());
        for index in first..first + u64::from(count) {
            let record = reader.next_record().unwrap().unwrap();
            if record.exception {
                found.push((index, record.body));
            }
        }
    }
    found
}

#[test]
fn an_item_is_told_to_end_then_answered_for() {
    let mut slot = Slot::new(Some(TIMEOUT));
    slot.frame(1, Lease::Kept, 3);
    let first = slot.item(at(0));
    slot.finish(first, at(4000));
    let second = slot.item(at(4000));
    assert_eq!(second.index, 1);
    assert!(slot.queue.look(at(8999)).is_none(), "it began at 4000");
    assert_eq!(slot.queue.overdue_after(), None);
    assert!(matches!(slot.queue.look(at(9000)), Some(Overdue::Tell)));
    assert_eq!(slot.queue.overdue_after(), Some(TIMEOUT));
    assert!(slot.queue.look(at(9999)).is_none(), "only once");
    let Some(Overdue::Leave(answers)) = slot.queue.look(at(10_000)) else {
        panic!("it didn't end in time")
    };
    let expected = [(1, Bytes::from_static(b"too long"))];
    assert_eq!(exceptions(answers), expected, "and nothing of the third");
    // What comes of it after all is nobody's any more, and nothing else begins.
    assert!(slot.finish(second, at(10_001)).is_empty());
    assert!(matches!(slot.begin(at(10_002)), Work::Nothing));
}

#[test]
fn an_item_that_ends_in_time_is_left_alone() {
    let mut slot = Slot::new(Some(TIMEOUT));
    slot.frame(1, Lease::Kept, 2);
    let first = slot.item(at(0));
    assert!(matches!(slot.queue.look(at(5000)), Some(Overdue::Tell)));
    slot.finish(first, at(5500));
    assert_eq!(slot.queue.overdue_after(), None, "it has ended");
    let second = slot.item(at(5500));
    assert_eq!(
        slot.queue.overdue_after(),
        None,
        "the next one has not been told"
    );
    assert!(slot.queue.look(at(10_000)).is_none());
    slot.finish(second, at(10_000));
    assert!(slot.queue.look(at(100_000)).is_none(), "nothing runs");
}

#[test]
fn time_of_the_functions_behind_a_serial_one_counts_by_itself() {
    let mut slot = Slot::new(Some(TIMEOUT));
    slot.frame(1, Lease::PassedOn, 2);
    let first = slot.item(at(0));
    let second = slot.item(at(4000));
    assert!(matches!(slot.begin(at(8000)), Work::Rest { frame: 1 }));
    let _ = slot.queue.release(1, at(8000));
    assert!(slot.queue.look(at(12_999)).is_none());
    slot.finish(first, at(12_999));
    assert!(slot.queue.look(at(17_000)).is_none());
    assert!(matches!(slot.queue.look(at(17_999)), Some(Overdue::Tell)));
    let Some(Overdue::Leave(answers)) = slot.queue.look(at(17_999) + GRACE) else {
        panic!("it didn't end in time")
    };
    assert_eq!(
        exceptions(answers),
        [(second.index, Bytes::from_static(b"too long"))]
    );
}

#[test]
fn loading_a_function_is_not_the_time_of_an_item() {
    let mut slot = Slot::new(Some(TIMEOUT));
    slot.frame(1, Lease::Kept, 1);
    let key = slot.item(at(0));
    slot.queue.pause_clock();
    assert!(slot.queue.look(at(60_000)).is_none());
    slot.queue.start_clock(at(60_000));
    assert!(slot.queue.look(at(64_999)).is_none());
    assert!(matches!(slot.queue.look(at(65_000)), Some(Overdue::Tell)));
    slot.finish(key, at(65_001));
}

#[test]
fn nobody_looks_where_nothing_is_limited() {
    let mut slot = Slot::new(None);
    slot.frame(1, Lease::Kept, 1);
    slot.item(at(0));
    assert_eq!(slot.queue.look_at(at(1)), None);
    assert!(slot.queue.look(at(1_000_000)).is_none());

    let mut slot = Slot::new(Some(TIMEOUT));
    assert_eq!(slot.queue.look_at(at(1)), None, "nothing is here");
    slot.frame(1, Lease::Kept, 1);
    let key = slot.item(at(10));
    assert_eq!(slot.queue.look_at(at(11)), Some(at(5010)));
    slot.finish(key, at(20));
    assert_eq!(slot.queue.look_at(at(20)), None);
    slot.hear(&ToSlot::Forget { stream: STREAM });
    slot.frame(2, Lease::Kept, 1);
    assert_eq!(slot.queue.look_at(at(20)), None, "the program is forgotten");
}

/// Aim: a function that never ends doesn't keep its slot when nobody wants its stream any more, whether its time is limited or not.
#[test]
fn the_running_item_of_a_forgotten_program_is_ended() {
    for timeout in [Some(TIMEOUT), None] {
        let mut slot = Slot::new(timeout);
        slot.frame(1, Lease::Kept, 1);
        slot.item(at(0));
        slot.hear(&ToSlot::Forget { stream: STREAM });
        assert!(slot.queue.has_deadline());
        assert_eq!(slot.queue.look_at(at(70)), Some(at(0)));
        assert!(matches!(slot.queue.look(at(70)), Some(Overdue::Tell)));
        assert_eq!(slot.queue.overdue_after(), Some(Duration::ZERO));
        assert_eq!(slot.queue.look_at(at(70)), Some(at(70) + GRACE));
        let Some(Overdue::Leave(answers)) = slot.queue.look(at(70) + GRACE) else {
            panic!("it didn't end in time")
        };
        assert!(exceptions(answers).is_empty(), "nobody wants its outcome");
    }
}

/// Aim: an item that nobody needs is told to end if it runs, and no other one is. Method: an interrupt for each of three items in turn while the
/// second one runs; the last one, which has not begun, goes back.
#[test]
fn an_item_that_nobody_needs_is_told_to_end() {
    let mut slot = Slot::new(None);
    slot.frame(1, Lease::Kept, 3);
    let first = slot.item(at(0));
    slot.finish(first, at(10));
    let second = slot.item(at(10));
    slot.hear(&ToSlot::Interrupt { frame: 1, index: 0 });
    slot.hear(&ToSlot::Interrupt { frame: 2, index: 1 });
    assert!(slot.queue.look(at(20)).is_none(), "that one doesn't run");
    slot.hear(&ToSlot::Interrupt { frame: 1, index: 1 });
    assert!(matches!(slot.queue.look(at(20)), Some(Overdue::Tell)));
    assert_eq!(slot.queue.overdue_after(), Some(Duration::ZERO));
    slot.finish(second, at(30));
    assert!(!slot.queue.has_deadline(), "it has ended");
    assert_eq!(slot.queue.overdue_after(), None);
    let interrupt = ToSlot::Interrupt { frame: 1, index: 2 };
    let EncodedMessage { handler, head, .. } = interrupt.with_bulk(Vec::new());
    let received = ReceivedMessage {
        handler,
        head,
        bulk: Vec::new(),
    };
    let heard = slot
        .queue
        .receive(interrupt.endpoint(), received, &slot.passage);
    let answer = heard.unwrap().remove(0).message;
    let answer = ToManager::decode(answer.handler, answer.head);
    let recalled = ToManager::Recalled {
        frame: 1,
        first: 2,
        count: 1,
    };
    assert_eq!(answer, Ok(recalled));
    assert!(matches!(slot.begin(at(40)), Work::Nothing));
}

/// Aim: the result of an item that nobody needs doesn't wait for a grant that never comes.
#[test]
fn a_large_result_that_nobody_needs_is_dropped() {
    let mut slot = Slot::new(None);
    slot.frame(1, Lease::Kept, 1);
    let key = slot.item(at(0));
    let large = vec![0; 5000];
    let write = |writer: &mut RecordWriter| writer.push(Format::Pickle, false, &large, &[], []);
    slot.queue.finish(key, at(1), write).unwrap();
    assert!(slot.queue.leave(&slot.passage).len() == 1 && !slot.queue.has_left());
    slot.hear(&ToSlot::Interrupt { frame: 1, index: 0 });
    assert!(slot.queue.has_left(), "it still waits");
}
