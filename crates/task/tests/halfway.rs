//! What has passed the serial function of a frame and waits for the functions behind it, when it is asked back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use exoskel_flow::{Lease, SegmentStep};
use exoskel_task::message::{
    Call, Execute, GivenState, ItemRules, ReceivedMessage, SegmentFunctions, SlotEndpoint,
    ToManager, ToSlot,
};
use exoskel_task::payload::{Format, RecordWriter};
use exoskel_task::slot_queue::{ItemKey, Outgoing, SerialPassage, SlotQueue, Work};

const FRAME: u64 = 5;
const NOW: Duration = Duration::ZERO;

/// A slot that has a frame of items 10 to 15, all of which have passed the serial function.
struct Slot {
    queue: SlotQueue,
    passage: SerialPassage,
    /// What has passed and has not gone on.
    passed: Vec<ItemKey>,
}

impl Slot {
    fn new() -> Self {
        let mut slot = Self {
            queue: SlotQueue::new(1 << 20),
            passage: SerialPassage::default(),
            passed: Vec::new(),
        };
        let segment = |serial, name| SegmentFunctions {
            serial,
            steps: vec![SegmentStep::Call],
            functions: vec![[name; 32]],
            ..SegmentFunctions::default()
        };
        let told = slot.hear(&ToSlot::Define {
            stream: 0,
            first_stream: 0,
            call: Call::Item,
            rules: ItemRules::default(),
            segments: vec![segment(true, 1), segment(false, 2)],
        });
        assert!(told.is_empty());
        let mut records = RecordWriter::default();
        (0..6).for_each(|_| records.push(Format::Data, false, b"\xf6", &[], []));
        let told = slot.hear(&ToSlot::Execute(Execute {
            frame: FRAME,
            stream: 0,
            from: 0,
            to: 1,
            lease: Lease::PassedOn,
            grant: 4096,
            first: 10,
            count: 6,
            state: GivenState::Nothing,
            lists: false,
            records: records.take().1,
        }));
        assert!(told.is_empty());
        loop {
            match slot.queue.begin(&slot.passage, NOW) {
                Work::Code(_) => {}
                Work::Item(item) => slot.passed.push(item.key),
                Work::Rest { frame: FRAME } => break,
                other => panic!("{other:?}"),
            }
        }
        let released = heard(vec![slot.queue.release(FRAME, NOW)]);
        let busy = 0;
        assert_eq!(released, [ToManager::Released { frame: FRAME, busy }]);
        slot
    }

    fn hear(&mut self, message: &ToSlot) -> Vec<Outgoing> {
        let encoded = message.with_bulk(Vec::new());
        let received = ReceivedMessage {
            handler: encoded.handler,
            head: encoded.head,
            bulk: Vec::new(),
        };
        self.queue
            .receive(message.endpoint(), received, &self.passage)
            .unwrap()
    }

    fn recall(&mut self, count: u32) -> Vec<ToManager> {
        let frame = FRAME;
        let recall = ToSlot::Recall { frame, count };
        assert_eq!(recall.endpoint(), SlotEndpoint::Task);
        heard(self.hear(&recall))
    }

    /// The next item runs to its end.
    fn finish(&mut self) -> Vec<ToManager> {
        let write = |writer: &mut RecordWriter| writer.push(Format::Data, false, b"\xf5", &[], []);
        let key = self.passed.remove(0);
        heard(self.queue.finish(key, NOW, write).unwrap())
    }

    /// Gives so many back, and forgets them.
    fn give_back(&mut self, count: usize) -> Vec<ToManager> {
        self.passed.truncate(self.passed.len() - count);
        let record = |_| {
            let mut record = RecordWriter::default();
            record.push(Format::Data, false, b"\xf4", &[], []);
            record
        };
        let records = (0..count).map(record).collect();
        heard(self.queue.give_back_halfway(FRAME, 1, records, NOW))
    }
}

fn heard(answers: Vec<Outgoing>) -> Vec<ToManager> {
    let decode = |answer: Outgoing| {
        let message = answer.message;
        ToManager::decode(message.handler, message.head).unwrap()
    };
    answers.into_iter().map(decode).collect()
}

/// The results among what was said: first item, number of items, the segment reached.
fn results(said: &[ToManager]) -> Vec<(u64, u32, u16)> {
    let result = |message: &ToManager| match message {
        ToManager::Results {
            first,
            count,
            reached,
            ..
        } => Some((*first, *count, *reached)),
        _ => None,
    };
    said.iter().filter_map(result).collect()
}

const NOTHING_MORE: ToManager = ToManager::Recalled {
    frame: FRAME,
    first: 0,
    count: 0,
};

/// Aim: items that wait halfway come back as tokens for the next segment, the others as outcomes, each once.
#[test]
fn what_waits_halfway_is_given_back_as_tokens() {
    let mut slot = Slot::new();
    assert_eq!(slot.queue.asked_back(FRAME), None);
    assert_eq!(slot.recall(3), [], "whoever has the values answers");
    assert_eq!(slot.queue.asked_back(FRAME), Some(3));
    assert_eq!(slot.queue.asked_back(FRAME + 1), None, "another frame");
    assert_eq!(slot.finish(), []);
    let said = slot.give_back(3);
    assert_eq!(results(&said), [(13, 3, 1)]);
    assert_eq!(said.last(), Some(&NOTHING_MORE));
    assert_eq!(slot.queue.asked_back(FRAME), None, "it is answered");
    assert_eq!(slot.finish(), []);
    let last = slot.finish();
    assert_eq!(results(&last), [(10, 3, 2)], "the frame is complete");
    assert!(slot.queue.is_idle());
}

/// Aim: who can't give back what it is asked for says so, and runs it.
#[test]
fn what_cannot_travel_stays() {
    let mut slot = Slot::new();
    assert_eq!(slot.recall(2), []);
    assert_eq!(slot.give_back(0), [NOTHING_MORE]);
    while slot.passed.len() > 1 {
        assert_eq!(slot.finish(), []);
    }
    assert_eq!(slot.recall(2), [NOTHING_MORE], "the last one runs");
    assert_eq!(results(&slot.finish()), [(10, 6, 2)]);
    assert!(slot.queue.is_idle());
}

/// Aim: a frame of which everything is given back is over, and what was done of it is said.
#[test]
fn a_frame_may_end_halfway() {
    let mut slot = Slot::new();
    assert_eq!(slot.finish(), []);
    assert_eq!(slot.recall(9), []);
    let said = slot.give_back(5);
    assert_eq!(results(&said), [(10, 1, 2), (11, 5, 1)]);
    assert!(slot.queue.is_idle());
    // What comes next is another frame's.
    let work = slot.queue.begin(&slot.passage, NOW);
    assert!(matches!(work, Work::Nothing), "{work:?}");
}

/// Aim: a slot that leaves gives back what waits halfway, and only then has nothing left to say.
#[test]
fn a_slot_that_leaves_gives_back_what_waits_halfway() {
    let mut slot = Slot::new();
    let said = heard(slot.queue.leave(&slot.passage));
    assert_eq!(said, [ToManager::Leaving]);
    assert_eq!(slot.queue.asked_back(FRAME), Some(u32::MAX));
    slot.finish();
    assert!(!slot.queue.has_left());
    assert_eq!(results(&slot.give_back(5)), [(10, 1, 2), (11, 5, 1)]);
    assert!(slot.queue.has_left());
}
