//! States that are carried from item to item: what slots are given, what counts of what they say, and what breaks the rules.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Breach, Departure, FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, Execute, GivenState, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::{Contents, Origin, Outcomes};
use exoskel_task::payload::{BatchBuilder, Format, RecordReader, RecordWriter};
use exoskel_task::router::{Effect, Function, ReceiveError, StreamPlan};

const NOW: Duration = Duration::from_secs(1);
const STREAM: u64 = 1;
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
const GRANT_BYTES: u64 = 64;
/// The slots of strangers have odd numbers.
const STRANGER: u32 = 1;

/// The initial value is the pickle in the table of functions.
const INITIAL: &[u8] = &[1];

fn stateful() -> Skeleton {
    Skeleton::Stateful {
        function: FunctionId(0),
        initial: FunctionId(1),
    }
}

fn scan(initial: Option<u32>) -> Skeleton {
    Skeleton::Scan {
        operator: FunctionId(0),
        initial: initial.map(FunctionId),
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
        let config = SchedulerConfig {
            grant_bytes: GRANT_BYTES,
            grant_bytes_min: GRANT_BYTES,
            ..SchedulerConfig::default()
        };
        let mut site = Self {
            router: Router::new(config, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
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
            tells_ends: false,
            retries_on: Some(function(9)),
        };
        site.router.open(STREAM, plan, NOW).unwrap();
        site.start(slot, u64::MAX);
        let mut builder = BatchBuilder::default();
        for value in 0..items {
            builder.push(Format::Pickle, &[value], &[], Vec::new());
        }
        site.router.admit(STREAM, builder.take(Origin::user()), NOW);
        site.router.end_of_input(STREAM, NOW);
        site.pump();
        site
    }

    fn start(&mut self, slot: u32, message_bytes_max: u64) {
        let origin = Origin {
            worker: format!("worker-{slot}"),
            format: match slot % 2 {
                STRANGER => Format::Data,
                _ => Format::Pickle,
            },
        };
        self.router
            .add_slot(slot, Arc::new(origin), message_bytes_max, NOW)
            .unwrap();
    }

    /// Another slot has all that this one had.
    fn replace(&mut self, slot: u32, other: u32) {
        self.frames.clear();
        self.router
            .remove_slot(slot, Departure::Broken, None, NOW)
            .unwrap();
        self.start(other, u64::MAX);
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
                Effect::Deliver { outcomes, .. } => {
                    let (first, count) = (outcomes.first, outcomes.count);
                    self.outcomes.push(outcomes);
                    self.router.taken(STREAM, first, count, NOW);
                }
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

    /// The one frame that there is.
    fn frame(&mut self) -> (u32, Execute) {
        self.pump();
        assert_eq!(self.frames.len(), 1, "a state is at one slot");
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

    /// The slot breaks the rules by this, is dismissed, and another one has all of it to do, with the state from before.
    fn is_refused(&mut self, slot: u32, execute: &Execute, message: &ToManager) -> ReceiveError {
        let error = self.say(slot, message).unwrap_err();
        let outstanding = self.router.slot_statistics(slot).unwrap().outstanding;
        assert_eq!(
            outstanding,
            u64::from(execute.count),
            "nothing of it counts"
        );
        self.replace(slot, slot + 2);
        let (next, again) = self.frame();
        assert_eq!((next, again.first), (slot + 2, execute.first));
        assert_eq!(state_of(&again), state_of(execute));
        error
    }

    /// Frames are answered until one has so many items.
    fn frame_of(&mut self, slot: u32, count: u32) -> Execute {
        loop {
            let (at, execute) = self.frame();
            assert_eq!(at, slot);
            if execute.count >= count {
                return execute;
            }
            let answer = carried(&execute, execute.first, execute.count, b"state");
            self.say(slot, &answer).unwrap();
        }
    }
}

/// The record of the state that goes with a frame, if it is sent.
fn state_of(execute: &Execute) -> Option<(Format, Bytes)> {
    (execute.state == GivenState::Sent).then(|| {
        let mut reader = RecordReader::new(execute.records.clone(), Vec::new());
        let record = reader.next_record().unwrap().unwrap();
        (record.format, record.body)
    })
}

/// What a record has: its body, how that is written, and whether it is an exception.
type Body<'a> = (&'a [u8], Format, bool);

fn data(body: &[u8]) -> Body<'_> {
    (body, Format::Data, false)
}

fn pickle(body: &[u8]) -> Body<'_> {
    (body, Format::Pickle, false)
}

fn written(bodies: &[Body<'_>]) -> Bytes {
    let mut writer = RecordWriter::default();
    for (body, format, exception) in bodies {
        writer.push(*format, *exception, body, &[], []);
    }
    writer.take().1
}

/// Such results of some items, with a state.
fn carried_as(
    execute: &Execute,
    (first, count): (u64, u32),
    state: Body<'_>,
    result: Body<'_>,
) -> ToManager {
    let mut bodies = vec![state];
    bodies.extend(vec![result; count as usize]);
    ToManager::Carried {
        frame: execute.frame,
        first,
        count,
        busy: 1000,
        records: written(&bodies),
    }
}

fn carried(execute: &Execute, first: u64, count: u32, state: &[u8]) -> ToManager {
    carried_as(execute, (first, count), pickle(state), pickle(b"r"))
}

fn whole(execute: &Execute, state: &[u8]) -> ToManager {
    carried(execute, execute.first, execute.count, state)
}

fn results(execute: &Execute, exception: bool) -> ToManager {
    let body = (&b"r"[..], Format::Pickle, exception);
    ToManager::Results {
        frame: execute.frame,
        first: execute.first,
        reached: execute.to + 1,
        count: execute.count,
        busy: 1000,
        records: written(&vec![body; execute.count as usize]),
    }
}

/// Aim: the state goes to whoever has the next items, once a frame, and isn't sent to who has it. What was not answered for doesn't count.
#[test]
fn a_state_goes_with_the_items() {
    let mut site = Site::new(stateful(), 0, 20);
    let (slot, execute) = site.frame();
    assert_eq!((slot, execute.first), (0, 0));
    let initial = Some((Format::Pickle, Bytes::from_static(INITIAL)));
    assert_eq!(state_of(&execute), initial);
    site.say(0, &whole(&execute, b"one")).unwrap();
    let (_, next) = site.frame();
    assert_eq!(next.state, GivenState::Kept(execute.frame));
    assert_eq!(next.first, 1);
    // What this one has done is lost with it.
    site.replace(0, 2);
    let (slot, again) = site.frame();
    assert_eq!((slot, again.first), (2, 1));
    let one = Some((Format::Pickle, Bytes::from_static(b"one")));
    assert_eq!(state_of(&again), one);
    site.say(2, &whole(&again, b"two")).unwrap();
    // Late, and of somebody who is gone.
    site.say(2, &whole(&again, b"more")).unwrap();
    let (_, execute) = site.frame();
    assert_eq!(execute.state, GivenState::Kept(again.frame));
    site.replace(2, 4);
    let (_, again) = site.frame();
    let two = Some((Format::Pickle, Bytes::from_static(b"two")));
    assert_eq!(state_of(&again), two);
}

/// Aim: a part of a frame may be answered for, and the state behind that part counts.
#[test]
fn a_part_of_a_frame_counts_with_its_state() {
    let mut site = Site::new(stateful(), 0, 40);
    let execute = site.frame_of(0, 3);
    let first = execute.first;
    site.say(0, &carried(&execute, first, 2, b"half")).unwrap();
    assert_eq!(site.frames.len(), 0, "the rest is still there");
    site.replace(0, 2);
    let (_, again) = site.frame();
    assert_eq!(again.first, first + 2);
    let half = Some((Format::Pickle, Bytes::from_static(b"half")));
    assert_eq!(state_of(&again), half);
}

/// Aim: a slot where an item has raised what it runs again for is sent the state, also if results before that item have waited for a grant.
#[test]
fn a_state_that_comes_late_is_not_kept() {
    let mut site = Site::new(stateful(), 0, 40);
    let execute = site.frame_of(0, 3);
    let (frame, first) = (execute.frame, execute.first);
    let announced = ToManager::Announced {
        frame,
        index: first,
        count: 1,
        bytes: 1000,
        busy: 1000,
    };
    site.say(0, &announced).unwrap();
    let recalled = ToManager::Recalled {
        frame,
        first: first + 3,
        count: execute.count - 3,
    };
    site.say(0, &recalled).unwrap();
    let retriable = ToManager::Retriable {
        frame,
        first: first + 2,
        count: 1,
        busy: 1000,
        records: written(&[(b"again", Format::Pickle, true)]),
    };
    site.say(0, &retriable).unwrap();
    site.say(0, &carried(&execute, first, 2, b"half")).unwrap();
    let (_, next) = site.frame();
    assert_eq!(next.first, first + 2);
    let half = Some((Format::Pickle, Bytes::from_static(b"half")));
    assert_eq!(state_of(&next), half);
}

/// Aim: without an initial value there is no state before the first item; exceptions before that need none.
#[test]
fn a_scan_begins_with_nothing() {
    let mut site = Site::new(scan(None), 0, 9);
    let (_, execute) = site.frame();
    assert_eq!(execute.state, GivenState::Nothing);
    site.say(0, &results(&execute, true)).unwrap();
    let (_, execute) = site.frame();
    assert_eq!((execute.first, execute.state), (1, GivenState::Nothing));
    site.say(0, &whole(&execute, b"sum")).unwrap();
    let (_, next) = site.frame();
    assert_eq!(next.state, GivenState::Kept(execute.frame));
}

/// Aim: an answer without a state has the state sent again.
#[test]
fn a_state_is_sent_again_when_a_slot_may_have_another_one() {
    let mut site = Site::new(stateful(), 0, 9);
    let (_, execute) = site.frame();
    site.say(0, &whole(&execute, b"one")).unwrap();
    let (_, execute) = site.frame();
    site.say(0, &results(&execute, true)).unwrap();
    let (_, execute) = site.frame();
    let one = Some((Format::Pickle, Bytes::from_static(b"one")));
    assert_eq!(state_of(&execute), one);
}

/// Aim: a scan with an initial value has one result more than items, even without any, and its results go on in order.
#[test]
fn an_initial_value_is_the_first_result() {
    for items in [0, 2] {
        let mut site = Site::new(scan(Some(1)), 0, items);
        while !site.frames.is_empty() {
            let (_, execute) = site.frame();
            site.say(0, &whole(&execute, b"sum")).unwrap();
        }
        let mut bodies = Vec::new();
        for outcomes in site.outcomes {
            assert_eq!(outcomes.first, bodies.len() as u64);
            let Contents::Records(mut reader, _) = outcomes.contents else {
                panic!("no results");
            };
            while let Some(record) = reader.next_record().unwrap() {
                bodies.push(record.body);
            }
        }
        let mut expected = vec![Bytes::from_static(INITIAL)];
        expected.resize(usize::from(items) + 1, Bytes::from_static(b"r"));
        assert_eq!(bodies, expected);
        assert_eq!(site.total, Some(u64::from(items) + 1));
    }
}

/// Aim: an item that runs again does so before those behind it.
#[test]
fn an_item_that_runs_again_keeps_its_place() {
    let mut site = Site::new(stateful(), 0, 40);
    let execute = site.frame_of(0, 3);
    let first = execute.first;
    site.say(0, &carried(&execute, first, 1, b"state")).unwrap();
    let retriable = ToManager::Retriable {
        frame: execute.frame,
        first: first + 1,
        count: 1,
        busy: 1,
        records: written(&[(b"x", Format::Pickle, true)]),
    };
    site.say(0, &retriable).unwrap();
    let recalled = ToManager::Recalled {
        frame: execute.frame,
        first: first + 2,
        count: execute.count - 2,
    };
    site.say(0, &recalled).unwrap();
    // It may have come before the rest was back, then it is alone.
    let (_, again) = site.frame();
    assert_eq!(again.first, first + 1);
    let state = Some((Format::Pickle, Bytes::from_static(b"state")));
    assert_eq!(state_of(&again), state);
}

/// Aim: a state where none belongs, and none where one does, are faults of the slot.
#[test]
fn states_come_where_they_belong() {
    let farm = Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
    let mut site = Site::new(farm, 0, 2);
    let (_, execute) = (site.frames[0].0, site.frames.remove(0).1);
    let error = site.say(0, &whole(&execute, b"state")).unwrap_err();
    assert_eq!(error, ReceiveError::NotCarrying);

    let mut site = Site::new(stateful(), 0, 2);
    let (_, execute) = site.frame();
    let error = site.is_refused(0, &execute, &results(&execute, false));
    assert_eq!(error, ReceiveError::NotCarried);

    let mut site = Site::new(scan(Some(1)), 0, 2);
    let (_, execute) = site.frame();
    let expanded = ToManager::Expanded {
        frame: execute.frame,
        first: execute.first,
        count: 1,
        busy: 1,
        lists: [&[2][..], &written(&[pickle(b"r")])].concat().into(),
    };
    let error = site.is_refused(0, &execute, &expanded);
    assert_eq!(error, ReceiveError::NotCarried);

    let mut site = Site::new(stateful(), 0, 2);
    let (_, execute) = site.frame();
    let exception = (&b"x"[..], Format::Pickle, true);
    let place = (execute.first, execute.count);
    let answer = carried_as(&execute, place, exception, pickle(b"r"));
    let error = site.is_refused(0, &execute, &answer);
    assert_eq!(error, ReceiveError::ExceptionAsState);
}

/// Aim: a state counts only behind the items that are next, all of them, once. Method: a frame of several items, answered out of order, twice, or
/// for more than it has.
#[test]
fn states_come_in_order() {
    let answers: [fn(&Execute) -> ToManager; 4] = [
        |execute| carried(execute, execute.first + 1, execute.count - 1, b"state"),
        |execute| carried(execute, execute.first, execute.count + 1, b"state"),
        |execute| carried(execute, execute.first.wrapping_sub(1), 1, b"state"),
        |execute| carried(execute, u64::MAX, 2, b"state"),
    ];
    for answer in answers {
        let mut site = Site::new(stateful(), 0, 60);
        let execute = site.frame_of(0, 4);
        let error = site.say(0, &answer(&execute)).unwrap_err();
        let outstanding = site.router.slot_statistics(0).unwrap().outstanding;
        assert_eq!(
            outstanding,
            u64::from(execute.count),
            "nothing of it counts"
        );
        let is_right = matches!(error, ReceiveError::Breach(Breach::CarriedOthers { .. }));
        assert!(is_right, "{error}");
    }
    let mut site = Site::new(stateful(), 0, 60);
    let execute = site.frame_of(0, 4);
    let part = carried(&execute, execute.first, 1, b"state");
    site.say(0, &part).unwrap();
    let error = site.say(0, &part).unwrap_err();
    assert!(matches!(
        error,
        ReceiveError::Breach(Breach::CarriedOthers { .. })
    ));
    let none = ToManager::Carried {
        frame: execute.frame,
        first: execute.first,
        count: 0,
        busy: 1,
        records: written(&[pickle(b"state")]),
    };
    assert!(matches!(site.say(0, &none), Err(ReceiveError::Message(_))));
}

/// Aim: states have limits: together with their results what was granted, or announced, and half of a message.
#[test]
fn states_have_limits() {
    let mut site = Site::new(stateful(), 0, 2);
    let (_, execute) = site.frame();
    let state = vec![7; 200];
    let error = site.is_refused(0, &execute, &whole(&execute, &state));
    assert!(matches!(
        error,
        ReceiveError::Breach(Breach::CarriedOverGrant { .. })
    ));
    let huge = vec![7; 1 + MESSAGE_BYTES_MAX as usize / 2];
    let mut site = Site::new(stateful(), 0, 2);
    let (_, execute) = site.frame();
    let error = site.is_refused(0, &execute, &whole(&execute, &huge));
    assert!(matches!(error, ReceiveError::StateTooLarge { .. }));

    // Announced, it waits, and counts when it comes.
    let mut site = Site::new(stateful(), 0, 2);
    let (_, execute) = site.frame();
    let large = whole(&execute, &state);
    let announced = ToManager::Announced {
        frame: execute.frame,
        index: 0,
        count: 1,
        bytes: 300,
        busy: 1,
    };
    site.say(0, &announced).unwrap();
    site.say(0, &large).unwrap();
    let (_, execute) = site.frame();
    assert_eq!(execute.first, 1);
}

/// Aim: a slot that takes smaller messages than the state needs gets none, and the items say so. Method: the slot that made the state is replaced.
#[test]
fn a_state_that_is_too_large_for_a_slot_is_an_outcome() {
    let mut site = Site::new(stateful(), 0, 3);
    let (_, execute) = site.frame();
    let state = vec![7; 4000];
    let announced = ToManager::Announced {
        frame: execute.frame,
        index: 0,
        count: 1,
        bytes: 5000,
        busy: 1,
    };
    site.say(0, &announced).unwrap();
    site.say(0, &whole(&execute, &state)).unwrap();
    site.frames.clear();
    site.outcomes.clear();
    site.router
        .remove_slot(0, Departure::Broken, None, NOW)
        .unwrap();
    site.start(2, 2000);
    site.pump();
    assert!(site.frames.is_empty());
    assert_eq!(site.outcomes.len(), 2);
    for outcomes in &site.outcomes {
        assert!(matches!(
            outcomes.contents,
            Contents::TooLarge { maximum: 2000, .. }
        ));
    }
}

/// Aim: the same where several items go with the state: all of them say so. Method: the slot that takes less has had long frames before another one
/// has made the state large.
#[test]
fn a_state_that_is_too_large_for_a_slot_ends_all_items_of_the_frame() {
    let mut site = Site::new(stateful(), 0, 60);
    site.start(2, 2000);
    site.router.probe_slot(0);
    let (_, execute) = site.frame();
    site.say(0, &whole(&execute, b"state")).unwrap();
    let execute = site.frame_of(2, 4);
    site.router.resume_slot(0, NOW);
    site.router.probe_slot(2);
    site.say(2, &whole(&execute, b"state")).unwrap();
    let (slot, execute) = site.frame();
    assert_eq!(slot, 0);
    site.router.probe_slot(0);
    site.router.resume_slot(2, NOW);
    let announced = ToManager::Announced {
        frame: execute.frame,
        index: execute.first,
        count: 1,
        bytes: 5000,
        busy: 1,
    };
    site.say(0, &announced).unwrap();
    site.outcomes.clear();
    site.say(0, &whole(&execute, &vec![7; 4000])).unwrap();
    assert!(site.frames.is_empty(), "it would not be taken");
    let too_large = site.outcomes.iter();
    let too_large =
        too_large.filter(|outcomes| matches!(outcomes.contents, Contents::TooLarge { .. }));
    let next = execute.first + u64::from(execute.count);
    assert_eq!(too_large.count() as u64, 60 - next);
}

/// Aim: a state that a stranger's slot has touched is data from then on, and so are all results that follow, whoever makes them.
#[test]
fn what_a_stranger_has_touched_stays_data() {
    let mut site = Site::new(stateful(), STRANGER, 20);
    let (_, execute) = site.frame();
    let place = (execute.first, execute.count);
    site.say(
        STRANGER,
        &carried_as(&execute, place, data(b"theirs"), data(b"r")),
    )
    .unwrap();
    site.outcomes.clear();
    site.replace(STRANGER, 2);
    let (_, execute) = site.frame();
    let theirs = Some((Format::Data, Bytes::from_static(b"theirs")));
    assert_eq!(state_of(&execute), theirs);
    // A trusted slot writes data, since it was given some.
    let place = (execute.first, execute.count);
    site.say(2, &carried_as(&execute, place, data(b"ours"), data(b"r")))
        .unwrap();
    let outcomes = site.outcomes.pop().unwrap();
    let Contents::Records(_, origin) = outcomes.contents else {
        panic!("no result");
    };
    assert_eq!((&*origin.worker, origin.format), ("worker-2", Format::Data));
    // And if it doesn't, that is refused.
    let (_, execute) = site.frame();
    let place = (execute.first, execute.count);
    site.say(2, &carried_as(&execute, place, data(b"ours"), pickle(b"r")))
        .unwrap();
    let outcomes = site.outcomes.pop().unwrap();
    assert!(matches!(outcomes.contents, Contents::Refused(_)));
    // An exception that comes without a state may hold what its function has seen of one.
    let (_, execute) = site.frame();
    site.outcomes.clear();
    site.say(2, &results(&execute, true)).unwrap();
    let outcomes = site.outcomes.pop().unwrap();
    assert!(matches!(outcomes.contents, Contents::Refused(_)));
}

/// Aim: a stranger's pickle is thrown away unread, as a state too: the items' outcomes say so, and the state stays what it was.
#[test]
fn a_strangers_pickle_is_no_state() {
    let mut site = Site::new(stateful(), STRANGER, 2);
    let (_, execute) = site.frame();
    let place = (execute.first, execute.count);
    site.say(
        STRANGER,
        &carried_as(&execute, place, pickle(b"evil"), data(b"r")),
    )
    .unwrap();
    let outcomes = site.outcomes.pop().unwrap();
    assert!(matches!(outcomes.contents, Contents::Refused(_)));
    let (_, execute) = site.frame();
    let initial = Some((Format::Pickle, Bytes::from_static(INITIAL)));
    assert_eq!(state_of(&execute), initial);
}
