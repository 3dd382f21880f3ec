//! Where results come from decides how they may be read, through all stages of a program, and what slots send is
//! held against what they may.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Breach, Departure, FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, Execute, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::{Contents, Origin};
use exoskel_task::payload::{Batch, BatchBuilder, Format, Record, RecordReader, RecordWriter};
use exoskel_task::router::{Effect, Function, ReceiveError, StreamPlan};

const STREAM: u64 = 1;
const NOW: Duration = Duration::ZERO;
/// Slots by how they may answer.
const TRUSTED: u32 = 0;
const STRANGER: u32 = 1;

/// What became of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It has this body, by this worker, trusted or not.
    Value(Format, Vec<u8>, String, bool),
    Exception(Format, Vec<u8>, String, bool),
    Refused(String, bool),
}

/// One result that a slot gives.
#[derive(Clone, Copy)]
struct Given(Format, bool, &'static [u8], Option<&'static [u8]>);

struct Site {
    router: Router,
    /// Frames that slots have got, by slot, with their bulk parts.
    frames: BTreeMap<u32, VecDeque<(Execute, Vec<Bytes>)>>,
    fates: BTreeMap<u64, Fate>,
}

impl Site {
    /// A stream through `stages` serial stages, with no slots yet.
    fn new(stages: u32, config: SchedulerConfig) -> Self {
        let mut router = Router::new(config, 1 << 20, 1 << 20);
        let stage = |number| Skeleton::Seq(FunctionId(number));
        let function = |number: u32| Function {
            digest: [number as u8; 32],
            pickle: Bytes::new(),
        };
        let plan = StreamPlan {
            skeleton: Skeleton::Pipeline((0..stages).map(stage).collect()),
            functions: (0..stages).map(function).collect(),
            call: Call::Item,
            tickets: Tickets::Unbounded,
            timeout: None,
            retries_on: None,
            tells_ends: false,
        };
        router.open(STREAM, plan, NOW).unwrap();
        Self {
            router,
            frames: BTreeMap::new(),
            fates: BTreeMap::new(),
        }
    }

    fn join(&mut self, slot: u32) {
        let origin = Origin {
            worker: format!("worker {slot}"),
            format: if slot == STRANGER {
                Format::Data
            } else {
                Format::Pickle
            },
        };
        self.router
            .add_slot(slot, Arc::new(origin), u64::MAX, NOW)
            .unwrap();
        self.pump();
    }

    fn leave(&mut self, slot: u32) {
        self.frames.remove(&slot);
        self.router.remove_slot(slot, Departure::Orderly, None, NOW);
        self.pump();
    }

    fn admit(&mut self, batch: Batch) {
        self.router.admit(STREAM, batch, NOW);
        self.pump();
    }

    fn admit_values(&mut self, count: u8) {
        let mut builder = BatchBuilder::default();
        (0..count).for_each(|value| builder.push(Format::Pickle, &[value], &[], Vec::new()));
        self.admit(builder.take(Origin::user()));
    }

    fn pump(&mut self) {
        while let Some(effect) = self.router.poll_effect(NOW) {
            match effect {
                Effect::Send {
                    slot,
                    endpoint,
                    message,
                } => {
                    let read = ToSlot::decode(endpoint, message.handler, message.head);
                    if let ToSlot::Execute(execute) = read.unwrap() {
                        let frames = self.frames.entry(slot).or_default();
                        frames.push_back((execute, message.bulk));
                    }
                }
                Effect::Deliver { outcomes, .. } => {
                    let mut contents = outcomes.contents;
                    for index in outcomes.first..outcomes.first + u64::from(outcomes.count) {
                        let fate = fate(&mut contents);
                        assert_eq!(self.fates.insert(index, fate), None, "item {index}");
                    }
                }
                Effect::LostTrack { .. }
                | Effect::Total { .. }
                | Effect::Ends { .. }
                | Effect::Overdue { .. }
                | Effect::LetGo { .. } => {
                    panic!("lost track")
                }
            }
        }
    }

    /// The slot answers for the items of its next frame; says what they were.
    fn answer(&mut self, slot: u32, give: impl Fn(u64, &Record) -> Given) -> Vec<Record> {
        let (execute, bulk) = self.frames.get_mut(&slot).unwrap().pop_front().unwrap();
        let bulk = bulk.iter().map(|part| part.to_vec()).collect();
        let mut reader = RecordReader::new(execute.records.clone(), bulk);
        let mut writer = RecordWriter::default();
        let mut records = Vec::new();
        for index in execute.first..execute.first + u64::from(execute.count) {
            let record = reader.next_record().unwrap().unwrap();
            let Given(format, exception, body, part) = give(index, &record);
            writer.push(format, exception, body, &[], part.map(Bytes::from_static));
            records.push(record);
        }
        self.say(slot, &execute, writer).unwrap();
        self.pump();
        records
    }

    fn say(
        &mut self,
        slot: u32,
        execute: &Execute,
        mut writer: RecordWriter,
    ) -> Result<(), ReceiveError> {
        let (count, records, bulk) = writer.take();
        let message = ToManager::Results {
            frame: execute.frame,
            first: execute.first,
            reached: execute.to + 1,
            count,
            busy: 1,
            records,
        };
        let (handler, head) = message.encode();
        let message = ReceivedMessage {
            handler,
            head,
            bulk: bulk.into_iter().map(Vec::from).collect(),
        };
        self.router.receive(slot, message, NOW).map(|_| ())
    }

    fn has_work(&self, slot: u32) -> bool {
        self.frames
            .get(&slot)
            .is_some_and(|frames| !frames.is_empty())
    }
}

fn fate(contents: &mut Contents) -> Fate {
    match contents {
        Contents::Refused(origin) => Fate::Refused(origin.worker.clone(), origin.is_trusted()),
        Contents::Exhausted { attempts, .. } => panic!("{attempts} attempts"),
        Contents::WorkersLost { count, .. } => panic!("{count} workers lost"),
        Contents::NothingToReduce => panic!("nothing to reduce"),
        Contents::TooManyParts { maximum, .. } => panic!("more than {maximum} parts"),
        Contents::TooManyBytes { maximum, .. } => panic!("more than {maximum} bytes"),
        Contents::TooLarge { bytes, maximum } => panic!("{bytes} bytes of {maximum}"),
        Contents::Records(reader, origin) => {
            let record = reader.next_record().unwrap().unwrap();
            let mut body = record.body.to_vec();
            body.extend(record.bulk.concat());
            let (worker, trusted) = (origin.worker.clone(), origin.is_trusted());
            if record.exception {
                Fate::Exception(record.format, body, worker, trusted)
            } else {
                Fate::Value(record.format, body, worker, trusted)
            }
        }
    }
}

fn name(slot: u32) -> String {
    format!("worker {slot}")
}

/// Aim: the way a stranger's exception took to be unpickled: through a trusted slot, which passed it on as its own.
/// Method: it raises in the first of two stages, as it must and as it must not.
#[test]
fn a_strangers_exception_stays_a_strangers() {
    let mut site = Site::new(2, SchedulerConfig::default());
    site.admit_values(2);
    site.join(STRANGER);
    while site.has_work(STRANGER) {
        assert_eq!(site.frames[&STRANGER][0].0.from, 0);
        site.answer(STRANGER, |index, _| match index {
            0 => Given(Format::Pickle, true, b"os.system", None),
            _ => Given(Format::Data, true, b"ValueError", None),
        });
    }
    site.leave(STRANGER);
    site.join(TRUSTED);
    assert!(!site.has_work(TRUSTED), "exceptions pass no other stage");
    let raised = Fate::Exception(Format::Data, b"ValueError".to_vec(), name(STRANGER), false);
    let refused = Fate::Refused(name(STRANGER), false);
    assert_eq!(site.fates, BTreeMap::from([(0, refused), (1, raised)]));
}

/// Aim: what a stranger touched is data for ever. Method: the first stage runs at a stranger's, the next ones at a
/// trusted slot, which answers once as it must and once with a pickle.
#[test]
fn a_token_that_a_stranger_touched_is_data_for_ever() {
    let mut site = Site::new(3, SchedulerConfig::default());
    site.admit_values(1);
    site.join(STRANGER);
    site.answer(STRANGER, |_, _| {
        Given(Format::Data, false, b"touched", None)
    });
    site.leave(STRANGER);
    // Behind it one that no stranger touches.
    site.join(TRUSTED);
    site.admit_values(1);
    while site.has_work(TRUSTED) && site.fates.len() < 2 {
        let (execute, _) = &site.frames[&TRUSTED][0];
        let last = execute.from == 2;
        let seen = site.answer(TRUSTED, |index, _| match (index, last) {
            (0, false) => Given(Format::Data, false, b"still", None),
            _ => Given(Format::Pickle, false, b"pickle", None),
        });
        assert_eq!(seen.len(), 1);
        let is_data = seen[0].format == Format::Data;
        assert_eq!(
            is_data,
            [&b"touched"[..], b"still"].contains(&&seen[0].body[..])
        );
    }
    let own = Fate::Value(Format::Pickle, b"pickle".to_vec(), name(TRUSTED), true);
    let refused = Fate::Refused(name(TRUSTED), false);
    assert_eq!(site.fates, BTreeMap::from([(0, refused), (1, own)]));
}

/// Aim: one answer of many items, some refused, some raised, some large: each goes its own way with its own bytes.
/// Method: one frame of eight items in the first of two stages, where every other one goes on.
#[test]
fn an_answer_is_taken_apart_item_by_item() {
    let mut site = Site::new(2, SchedulerConfig::default());
    // A slot that has shown how long items take gets them together.
    site.join(STRANGER);
    site.admit_values(40);
    let give = |index: u64, _: &Record| match index % 8 {
        1 => Given(Format::Pickle, false, b"program", Some(b"its buffer")),
        2 => Given(Format::Data, true, b"raised ", Some(b"by two")),
        5 => Given(Format::Pickle, true, b"program", None),
        6 => Given(Format::Data, false, b"large ", Some(b"by six")),
        _ => Given(Format::Data, false, b"small", None),
    };
    let mut largest = 0;
    for _ in 0..200 {
        if !site.has_work(STRANGER) {
            break;
        }
        let (execute, _) = &site.frames[&STRANGER][0];
        if execute.from == 0 {
            largest = largest.max(execute.count);
            site.answer(STRANGER, give);
        } else {
            let seen = site.answer(STRANGER, |index, record| {
                let expected: &[u8] = if index % 8 == 6 { b"by six" } else { b"" };
                assert_eq!(record.bulk.concat(), expected, "item {index}");
                Given(Format::Data, false, b"end", None)
            });
            let goes_on = |record: &Record| [&b"small"[..], b"large "].contains(&&record.body[..]);
            assert!(seen.iter().all(goes_on));
        }
    }
    assert!(largest >= 4, "some answers have many items: {largest}");
    assert_eq!(site.fates.len(), 40);
    for (index, got) in site.fates {
        let expected = match index % 8 {
            1 | 5 => Fate::Refused(name(STRANGER), false),
            2 => Fate::Exception(
                Format::Data,
                b"raised by two".to_vec(),
                name(STRANGER),
                false,
            ),
            _ => Fate::Value(Format::Data, b"end".to_vec(), name(STRANGER), false),
        };
        assert_eq!(got, expected, "item {index}");
    }
}

/// Aim: results that come too late take their buffers with them. Method: an answer that begins before its frame does
/// and ends behind it, each result with a buffer of its own.
#[test]
fn buffers_of_late_results_go_to_nobody() {
    let mut site = Site::new(1, SchedulerConfig::default());
    site.join(TRUSTED);
    site.admit_values(3);
    let (execute, _) = site.frames.get_mut(&TRUSTED).unwrap().remove(1).unwrap();
    assert_eq!((execute.first, execute.count), (1, 1));
    let mut writer = RecordWriter::default();
    for buffer in [&b"zero"[..], b"one", b"two"] {
        writer.push(
            Format::Pickle,
            false,
            b"with ",
            &[],
            [Bytes::from_static(buffer)],
        );
    }
    let shifted = Execute {
        first: 0,
        ..execute
    };
    site.say(TRUSTED, &shifted, writer).unwrap();
    site.pump();
    let one = Fate::Value(Format::Pickle, b"with one".to_vec(), name(TRUSTED), true);
    assert_eq!(site.fates, BTreeMap::from([(1, one)]));
}

/// Aim: what can't be sent is the item's outcome, though there is no slot at all, and of the user's own making.
#[test]
fn what_the_user_could_not_send_is_an_outcome_at_once() {
    let mut site = Site::new(2, SchedulerConfig::default());
    let mut builder = BatchBuilder::default();
    builder.push(Format::Pickle, b"zero", &[], Vec::new());
    builder.push_exception(Format::Pickle, b"one");
    builder.push_exception(Format::Pickle, b"two");
    builder.push(Format::Pickle, b"three", &[], Vec::new());
    site.admit(builder.take(Origin::user()));
    let exception =
        |body: &[u8]| Fate::Exception(Format::Pickle, body.to_vec(), String::new(), true);
    let expected = BTreeMap::from([(1, exception(b"one")), (2, exception(b"two"))]);
    assert_eq!(site.fates, expected);
    site.join(TRUSTED);
    while site.has_work(TRUSTED) {
        let seen = site.answer(TRUSTED, |_, _| Given(Format::Pickle, false, b"done", None));
        assert!(seen.iter().all(|record| !record.exception));
    }
    assert_eq!(site.fates.len(), 4);
}

/// Aim: the manager counts a result's bytes as its slot does, to the byte, and takes no more than it granted. Method:
/// a result of exactly the grant with head, body and buffer, and one of a byte more.
#[test]
fn a_result_over_its_grant_ends_the_session_and_counts_for_nothing() {
    let config = SchedulerConfig {
        grant_bytes: 100,
        grant_bytes_min: 100,
        ..SchedulerConfig::default()
    };
    let mut site = Site::new(1, config);
    site.join(TRUSTED);
    site.admit_values(2);
    let frames = site.frames.remove(&TRUSTED).unwrap();
    let (first, second) = (&frames[0].0, &frames[1].0);
    assert_eq!((first.grant, second.grant), (100, 100));
    assert_eq!(site.router.receivable(TRUSTED), 200);
    let result = |part: &'static [u8]| {
        let mut writer = RecordWriter::default();
        writer.push(
            Format::Pickle,
            false,
            &[7; 60],
            &[],
            [Bytes::from_static(part)],
        );
        writer
    };
    let over = result(&[1; 37]);
    let got = over.bytes();
    let breach = Breach::OverGrant {
        index: first.first,
        got,
        grant: 100,
    };
    assert_eq!(got, 101);
    assert_eq!(
        site.say(TRUSTED, first, over),
        Err(ReceiveError::Breach(breach))
    );
    site.pump();
    assert!(site.fates.is_empty());
    assert_eq!(site.router.receivable(TRUSTED), 200);
    assert_eq!(site.say(TRUSTED, first, result(&[1; 36])), Ok(()));
    site.pump();
    assert_eq!(site.fates.len(), 1);
    assert_eq!(site.router.receivable(TRUSTED), 100);
}
