//! Slots that break the rules of the patterns: nothing of what they say counts, and the items go to others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use exoskel_flow::{Breach, Departure, FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, Execute, PARTS_MAX, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::{Contents, Origin, Outcomes};
use exoskel_task::payload::{BatchBuilder, Format, RecordWriter, put_varint};
use exoskel_task::router::{Effect, Function, ReceiveError, StreamPlan};

const NOW: Duration = Duration::from_secs(1);
const STREAM: u64 = 1;
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// As many parts of all items may be inside.
const SUBMITTED_MAX: u32 = 1 << 12;
const TRUSTED: u32 = 0;
const STRANGER: u32 = 1;

fn seq(number: u32) -> Box<Skeleton> {
    Box::new(Skeleton::Seq(FunctionId(number)))
}

fn map() -> Skeleton {
    Skeleton::Map {
        split: Some(FunctionId(0)),
        worker: seq(1),
        join: Some(FunctionId(2)),
    }
}

fn flat_map() -> Skeleton {
    Skeleton::FlatMap(FunctionId(0))
}

fn feedback() -> Skeleton {
    Skeleton::Feedback(FunctionId(0))
}

fn reduce() -> Skeleton {
    Skeleton::Reduce {
        operator: FunctionId(0),
        initial: None,
    }
}

struct Site {
    router: Router,
    /// What has been sent and is not answered.
    frames: Vec<(u32, Execute)>,
    outcomes: Vec<Outcomes>,
    total: Option<u64>,
}

impl Site {
    /// A site with one slot, and some items.
    fn new(skeleton: Skeleton, slot: u32, items: u8) -> Self {
        let limits = (1 << 30, MESSAGE_BYTES_MAX);
        let mut site = Self::keeping(limits, skeleton, slot, items);
        site.router.end_of_input(STREAM, NOW);
        site.pump();
        site
    }

    /// A site to which more items may come, that keeps so many bytes of what items are made into, besides two messages of so many.
    fn keeping(limits: (u64, u64), skeleton: Skeleton, slot: u32, items: u8) -> Self {
        let (kept_bytes_max, message_bytes_max) = limits;
        let config = SchedulerConfig {
            grant_bytes: 64,
            grant_bytes_min: 64,
            submitted_max: SUBMITTED_MAX,
            kept_bytes_max,
            ..SchedulerConfig::default()
        };
        let mut site = Self {
            router: Router::new(config, message_bytes_max, MESSAGE_BYTES_MAX),
            frames: Vec::new(),
            outcomes: Vec::new(),
            total: None,
        };
        let function = |number: u8| Function {
            digest: [number; 32],
            pickle: Bytes::from(vec![number]),
        };
        let plan = StreamPlan {
            skeleton,
            functions: (0..3).map(function).collect(),
            call: Call::Item,
            tickets: Tickets::Bounded,
            timeout: None,
            retries_on: None,
            tells_ends: false,
        };
        site.router.open(STREAM, plan, NOW).unwrap();
        site.start(slot);
        site.admit(items);
        site
    }

    fn admit(&mut self, items: u8) {
        let mut builder = BatchBuilder::default();
        for value in 0..items {
            builder.push(Format::Pickle, &[value], &[], Vec::new());
        }
        self.router.admit(STREAM, builder.take(Origin::user()), NOW);
        self.pump();
    }

    fn start(&mut self, slot: u32) {
        let origin = Origin {
            worker: format!("worker-{slot}"),
            format: match slot {
                STRANGER => Format::Data,
                _ => Format::Pickle,
            },
        };
        self.router
            .add_slot(slot, Arc::new(origin), u64::MAX, NOW)
            .unwrap();
    }

    fn pump(&mut self) {
        while let Some(effect) = self.router.poll_effect(NOW) {
            match effect {
                Effect::Send {
                    slot,
                    endpoint,
                    message,
                } => {
                    let message = ToSlot::decode(endpoint, message.handler, message.head);
                    if let ToSlot::Execute(execute) = message.unwrap() {
                        self.frames.push((slot, execute));
                    }
                }
                Effect::Deliver { outcomes, .. } => self.outcomes.push(outcomes),
                Effect::Total { count, .. } => self.total = Some(count),
                Effect::Ends { .. }
                | Effect::LostTrack { .. }
                | Effect::Overdue { .. }
                | Effect::LetGo { .. } => {
                    panic!("lost track")
                }
            }
        }
    }

    fn frame(&mut self) -> (u32, Execute) {
        self.pump();
        assert!(!self.frames.is_empty(), "nothing is to be done");
        self.frames.remove(0)
    }

    fn say(&mut self, slot: u32, message: &ToManager) -> Result<(), ReceiveError> {
        let (handler, head) = message.encode();
        let message = ReceivedMessage {
            handler,
            head,
            bulk: Vec::new(),
        };
        let said = self.router.receive(slot, message, NOW).map(drop);
        self.pump();
        said
    }

    /// The slot breaks the rules by this, is dismissed, and another one has all of it to do.
    fn is_refused(&mut self, slot: u32, execute: &Execute, message: &ToManager) -> ReceiveError {
        let error = self.say(slot, message).unwrap_err();
        let outstanding = self.router.slot_statistics(slot).unwrap().outstanding;
        assert!(
            outstanding >= u64::from(execute.count),
            "nothing of it counts"
        );
        self.frames.clear();
        self.router
            .remove_slot(slot, Departure::Broken, None, NOW)
            .unwrap();
        self.start(slot + 2);
        let (next, again) = self.frame();
        assert_eq!(
            (next, again.first, again.from),
            (slot + 2, execute.first, execute.from)
        );
        error
    }
}

fn records(bodies: &[&[u8]], format: Format, exception: bool) -> Bytes {
    let mut writer = RecordWriter::default();
    for body in bodies {
        writer.push(format, exception, body, &[], []);
    }
    writer.take().1
}

fn results(execute: &Execute, reached: u16, exception: bool) -> ToManager {
    let bodies = vec![&b"x"[..]; execute.count as usize];
    ToManager::Results {
        frame: execute.frame,
        first: execute.first,
        reached,
        count: execute.count,
        busy: 1000,
        records: records(&bodies, Format::Pickle, exception),
    }
}

/// One list for each item, each with such a head.
fn expanded(execute: &Execute, head: u64, records: &Bytes) -> ToManager {
    let mut lists = BytesMut::new();
    (0..execute.count).for_each(|_| put_varint(&mut lists, head));
    (0..execute.count).for_each(|_| lists.extend_from_slice(records));
    ToManager::Expanded {
        frame: execute.frame,
        first: execute.first,
        count: execute.count,
        busy: 1000,
        lists: lists.freeze(),
    }
}

fn folded(execute: &Execute, first: u64, count: u32) -> ToManager {
    ToManager::Folded {
        frame: execute.frame,
        first,
        count,
        busy: 1000,
        record: records(&[b"folded"], Format::Pickle, false),
    }
}

/// Aim: what isn't parts where parts are due ends the session, and the other way round.
#[test]
fn answers_are_of_the_kind_that_is_due() {
    let one = records(&[b"part"], Format::Pickle, false);
    for skeleton in [map(), flat_map()] {
        let mut site = Site::new(skeleton, TRUSTED, 1);
        let (slot, execute) = site.frame();
        let error = site.is_refused(slot, &execute, &results(&execute, 1, false));
        assert_eq!(error, ReceiveError::NotExpanded);
    }
    let mut site = Site::new(*seq(0), TRUSTED, 1);
    let (slot, execute) = site.frame();
    let error = site.is_refused(slot, &execute, &expanded(&execute, 1 << 1, &one));
    assert_eq!(error, ReceiveError::NotExpanding);
    let mut site = Site::new(*seq(0), TRUSTED, 1);
    let (slot, execute) = site.frame();
    let error = site.is_refused(slot, &execute, &folded(&execute, 0, 1));
    assert_eq!(error, ReceiveError::NotFolding);
    let mut site = Site::new(reduce(), TRUSTED, 1);
    let (slot, execute) = site.frame();
    let error = site.is_refused(slot, &execute, &results(&execute, 1, false));
    assert_eq!(error, ReceiveError::NotFolded);
}

/// Aim: memory for each of very many records of a byte or two, of which a frame can't have so many.
#[test]
fn records_are_counted_before_anything_is_kept_of_them() {
    let many = records(&vec![&b""[..]; 5000], Format::Pickle, true);
    for retriable in [false, true] {
        let mut site = Site::new(*seq(0), TRUSTED, 1);
        let (slot, execute) = site.frame();
        let answer = match retriable {
            true => ToManager::Retriable {
                frame: execute.frame,
                first: execute.first,
                count: 5000,
                busy: 1,
                records: many.clone(),
            },
            false => ToManager::Results {
                frame: execute.frame,
                first: execute.first,
                reached: 1,
                count: 5000,
                busy: 1,
                records: many.clone(),
            },
        };
        let error = site.is_refused(slot, &execute, &answer);
        let (count, maximum) = (5000, 4096);
        assert_eq!(error, ReceiveError::ItemsOfNoFrame { count, maximum });
    }
    // Items of one frame may have many parts each, and not all of them the most.
    let mut site = Site::new(map(), TRUSTED, 3);
    let (slot, execute) = site.frame();
    let mut lists = BytesMut::new();
    for _ in 0..3 {
        put_varint(&mut lists, u64::from(PARTS_MAX) << 1);
    }
    let answer = ToManager::Expanded {
        frame: execute.frame,
        first: execute.first,
        count: 3,
        busy: 1,
        lists: lists.freeze(),
    };
    let error = site.is_refused(slot, &execute, &answer);
    assert!(
        error.to_string().contains("more parts in an answer"),
        "{error}"
    );
}

/// Aim: more parts than the limit, parts that aren't there, and exceptions among them end the session.
#[test]
fn parts_are_counted() {
    let one = records(&[b"part"], Format::Pickle, false);
    let raised = records(&[b"raised"], Format::Pickle, true);
    let many = u64::from(PARTS_MAX) + 1;
    let cases = [
        (many << 1, &one),
        (1 << 41, &one),
        (u64::MAX, &one),
        (2 << 1, &one),
        (1, &one),
        (0, &one),
        (1 << 1, &raised),
    ];
    for (head, records) in cases {
        for skeleton in [map(), feedback()] {
            let mut site = Site::new(skeleton, TRUSTED, 1);
            let (slot, execute) = site.frame();
            site.is_refused(slot, &execute, &expanded(&execute, head, records));
        }
    }
    // More bytes than were granted, in parts that are small.
    let parts = records(&[&b"ten bytes."[..]; 10], Format::Pickle, false);
    let mut site = Site::new(map(), TRUSTED, 1);
    let (slot, execute) = site.frame();
    let error = site.is_refused(slot, &execute, &expanded(&execute, 10 << 1, &parts));
    assert!(
        matches!(
            error,
            ReceiveError::Breach(Breach::OverGrant { got: 110, .. })
        ),
        "{error:?}"
    );
}

/// Aim: a slot that feeds back for ever ends with its item at the limit of parts inside. Method: it answers each frame with
/// two items more for each of it.
#[test]
fn what_is_fed_back_for_ever_ends_at_a_limit() {
    let two = records(&[b"one", b"two"], Format::Pickle, false);
    let mut site = Site::new(feedback(), TRUSTED, 1);
    let mut answers = 0;
    while site.total.is_none() {
        let (slot, execute) = site.frame();
        site.say(slot, &expanded(&execute, 2 << 1, &two)).unwrap();
        answers += execute.count;
        assert!(answers <= SUBMITTED_MAX);
    }
    let [outcomes] = &site.outcomes[..] else {
        panic!("{:?}", site.outcomes);
    };
    let Contents::TooManyParts { maximum, recurs } = outcomes.contents else {
        panic!("{outcomes:?}");
    };
    assert_eq!((maximum, recurs), (SUBMITTED_MAX, true));
    assert_eq!(site.total, Some(1));
}

/// Aim: what branches for ever ends at a limit of bytes, and nothing is kept of it then. Method: an item, and what it comes to, becomes two parts
/// each time, until it fails; the slot answers what it still has. Another item comes as far as the first at least.
#[test]
fn what_branches_for_ever_ends_at_a_limit_of_bytes() {
    let divide = Skeleton::Divide {
        is_base: FunctionId(0),
        base: FunctionId(0),
        divide: FunctionId(1),
        conquer: FunctionId(2),
    };
    let limits = (1 << 16, 1 << 15);
    let two = records(&[&[1; 25], &[2; 25]], Format::Pickle, false);
    for skeleton in [feedback(), divide] {
        let mut site = Site::keeping(limits, skeleton, TRUSTED, 1);
        let mut answers = [0, 0];
        for (number, answers) in answers.iter_mut().enumerate() {
            while site.outcomes.is_empty() {
                let (slot, execute) = site.frame();
                site.say(slot, &expanded(&execute, 2 << 1, &two)).unwrap();
                *answers += execute.count;
                assert!(*answers < SUBMITTED_MAX / 2, "it ends by bytes");
            }
            let contents = site.outcomes.remove(0).contents;
            let Contents::TooManyBytes { maximum, recurs } = contents else {
                panic!("{contents:?}");
            };
            assert_eq!((maximum, recurs), (1 << 17, true));
            while !site.frames.is_empty() {
                let (slot, execute) = site.frame();
                site.say(slot, &expanded(&execute, 2 << 1, &two)).unwrap();
            }
            if number == 0 {
                site.admit(1);
            }
        }
        assert!(answers[0] > 20 && answers[1] >= answers[0], "{answers:?}");
    }
}

/// Aim: what is folded are items that the slot has, each once.
#[test]
fn only_items_of_the_frame_are_folded() {
    for (first, count) in [(0, 9), (0, u32::MAX), (1, 8), (u64::MAX, 2), (0, 0), (7, 1)] {
        let mut site = Site::new(reduce(), TRUSTED, 8);
        let (slot, execute) = site.frame();
        assert!(execute.count < 7);
        let error = site.is_refused(slot, &execute, &folded(&execute, first, count));
        assert_eq!(error, ReceiveError::FoldedOthers);
    }
    let mut site = Site::new(reduce(), TRUSTED, 1);
    let (slot, execute) = site.frame();
    site.say(slot, &folded(&execute, 0, 1)).unwrap();
    // The frame is over: this is late, and no harm.
    site.say(slot, &folded(&execute, 0, 1)).unwrap();
    let (slot, last) = site.frame();
    assert_eq!((last.count, last.lists), (1, true));
    site.say(slot, &results(&last, 1, false)).unwrap();
    assert_eq!((site.outcomes.len(), site.total), (1, Some(1)));
}

/// Aim: a stranger's parts are data or are refused, and what is made of data is data.
#[test]
fn parts_of_strangers_are_data() {
    let pickle = records(&[b"part"], Format::Pickle, false);
    let data = records(&[b"part"], Format::Data, false);
    for skeleton in [map(), flat_map(), feedback()] {
        let mut site = Site::new(skeleton, STRANGER, 1);
        let (slot, execute) = site.frame();
        site.say(slot, &expanded(&execute, 1 << 1, &pickle))
            .unwrap();
        let [outcomes] = &site.outcomes[..] else {
            panic!("{:?}", site.outcomes);
        };
        assert!(matches!(outcomes.contents, Contents::Refused(_)));
    }
    let mut site = Site::new(map(), STRANGER, 1);
    let (slot, execute) = site.frame();
    site.say(slot, &expanded(&execute, 0, &Bytes::new()))
        .unwrap();
    // A list of nothing is a stranger's as well, and whoever gets it is told.
    site.frames.clear();
    site.router.remove_slot(slot, Departure::Orderly, None, NOW);
    site.start(TRUSTED);
    let (slot, joins) = site.frame();
    assert_eq!((joins.lists, &joins.records[..]), (true, &[2][..]));
    site.say(slot, &results(&joins, 2, false)).unwrap();
    let [outcomes] = &site.outcomes[..] else {
        panic!("{:?}", site.outcomes);
    };
    assert!(matches!(outcomes.contents, Contents::Refused(_)));
    let mut site = Site::new(flat_map(), STRANGER, 1);
    let (slot, execute) = site.frame();
    site.say(slot, &expanded(&execute, 1 << 1, &data)).unwrap();
    let Contents::Records(_, origin) = &site.outcomes[0].contents else {
        panic!("{:?}", site.outcomes);
    };
    assert!(!origin.is_trusted());
}

/// Aim: a slot that answers for a stream that was closed meanwhile has done nothing wrong, and owes nothing then. Method: a folded result that is larger than its
/// grant, announced before the stream is closed; it comes, or the slot has given it up.
#[test]
fn what_was_folded_for_a_closed_stream_is_settled() {
    for comes in [true, false] {
        let mut site = Site::new(reduce(), TRUSTED, 40);
        // The first frames have one item.
        let mut frame = site.frame();
        while frame.1.count == 1 {
            let (slot, execute) = &frame;
            site.say(*slot, &folded(execute, execute.first, 1)).unwrap();
            frame = site.frame();
        }
        let (slot, execute) = frame;
        let announced = ToManager::Announced {
            frame: execute.frame,
            index: execute.first,
            count: execute.count,
            bytes: 1000,
            busy: 1,
        };
        site.say(slot, &announced).unwrap();
        site.router.close(STREAM, NOW);
        site.pump();
        let recalled = |frame, first, count| ToManager::Recalled {
            frame,
            first,
            count,
        };
        for (_, other) in std::mem::take(&mut site.frames) {
            let all = recalled(other.frame, other.first, other.count);
            site.say(slot, &all).unwrap();
        }
        site.say(slot, &recalled(execute.frame, 0, 0)).unwrap();
        let answer = match comes {
            true => folded(&execute, execute.first, execute.count),
            false => recalled(execute.frame, execute.first + 1, execute.count - 1),
        };
        site.say(slot, &answer).unwrap();
        let outstanding = site.router.slot_statistics(slot).unwrap().outstanding;
        assert_eq!(outstanding, 0, "{comes}");
    }
}
