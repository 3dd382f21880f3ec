//! Items that take their slot down, in every segment of a program: each still has exactly one outcome.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Departure, FunctionId, Lease, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, Execute, ReceivedMessage, ToManager, ToSlot};
use exoskel_task::outcome::{Contents, Origin};
use exoskel_task::payload::{BatchBuilder, Format, RecordReader};
use exoskel_task::router::{Effect, Function, StreamPlan};
use proptest::prelude::*;

const STREAM: u64 = 7;
const ITEMS: u8 = 24;
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// A farm, a serial stage, a farm: three segments, the second one with a lease.
fn plan() -> StreamPlan {
    let seq = |number| Skeleton::Seq(FunctionId(number));
    let farm = |number| Skeleton::Farm(Box::new(seq(number)));
    let function = |number: u8| Function {
        digest: [number; 32],
        pickle: Bytes::from(vec![number]),
    };
    StreamPlan {
        skeleton: Skeleton::Pipeline(vec![farm(0), seq(1), farm(2)]),
        functions: (0..3).map(function).collect(),
        call: Call::Item,
        tickets: Tickets::Bounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    }
}

/// A manager and slots that die of some items.
struct Site {
    router: Router,
    now: Duration,
    /// By slot, what it was told and has not done.
    inboxes: BTreeMap<u32, VecDeque<ToSlot>>,
    next_slot: u32,
    /// Pairs of segment and item.
    deadly: BTreeSet<(u16, u8)>,
    outcomes: BTreeMap<u64, Option<u8>>,
}

impl Site {
    fn new(deadly: BTreeSet<(u16, u8)>, frame_items_max: u32) -> Self {
        let config = SchedulerConfig {
            retries: 1,
            frame_items_max,
            ..SchedulerConfig::default()
        };
        let mut site = Self {
            router: Router::new(config, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
            now: Duration::ZERO,
            inboxes: BTreeMap::new(),
            next_slot: 0,
            deadly,
            outcomes: BTreeMap::new(),
        };
        site.start_slot();
        site.start_slot();
        site
    }

    fn start_slot(&mut self) {
        let origin = Origin {
            worker: format!("worker-{}", self.next_slot),
            format: Format::Pickle,
        };
        let origin = Arc::new(origin);
        self.router
            .add_slot(self.next_slot, origin, u64::MAX, self.now)
            .unwrap();
        self.inboxes.insert(self.next_slot, VecDeque::new());
        self.next_slot += 1;
    }

    fn pump(&mut self) {
        self.now += Duration::from_millis(1);
        while let Some(effect) = self.router.poll_effect(self.now) {
            match effect {
                Effect::Send {
                    slot,
                    endpoint,
                    message,
                } => {
                    let message = ToSlot::decode(endpoint, message.handler, message.head);
                    if let Some(inbox) = self.inboxes.get_mut(&slot) {
                        inbox.push_back(message.unwrap());
                    }
                }
                Effect::Deliver { outcomes, .. } => {
                    let mut values = match outcomes.contents {
                        Contents::WorkersLost { .. }
                        | Contents::TooLarge { .. }
                        | Contents::TooManyParts { .. }
                        | Contents::TooManyBytes { .. }
                        | Contents::NothingToReduce => None,
                        Contents::Refused(origin) => panic!("refused of {origin:?}"),
                        Contents::Records(reader, _) => Some(reader),
                        Contents::Exhausted { attempts, .. } => panic!("{attempts} attempts"),
                    };
                    for index in outcomes.first..outcomes.first + u64::from(outcomes.count) {
                        let value = values
                            .as_mut()
                            .map(|reader| reader.next_record().unwrap().unwrap().body[0]);
                        let former = self.outcomes.insert(index, value);
                        assert_eq!(former, None, "item {index} had an outcome");
                    }
                    let (first, count) = (outcomes.first, outcomes.count);
                    self.router.taken(STREAM, first, count, self.now);
                }
                Effect::LostTrack { .. }
                | Effect::Total { .. }
                | Effect::Ends { .. }
                | Effect::Overdue { .. }
                | Effect::LetGo { .. } => {
                    panic!("the token of an item that must run is gone")
                }
            }
        }
    }

    /// The slot does the next thing it was told, and maybe dies of it.
    fn work(&mut self, slot: u32) {
        let Some(message) = self.inboxes.get_mut(&slot).and_then(VecDeque::pop_front) else {
            return;
        };
        match message {
            ToSlot::Execute(execute) => self.execute(slot, execute),
            ToSlot::Recall { frame, .. } => {
                let nothing = ToManager::Recalled {
                    frame,
                    first: 0,
                    count: 0,
                };
                self.say(slot, nothing);
            }
            _ => {}
        }
    }

    fn execute(&mut self, slot: u32, execute: Execute) {
        let mut reader = RecordReader::new(execute.records, Vec::new());
        if execute.lease == Lease::PassedOn {
            let released = ToManager::Released {
                frame: execute.frame,
                busy: 1,
            };
            self.say(slot, released);
        }
        for first in execute.first..execute.first + u64::from(execute.count) {
            let value = reader.next_record().unwrap().unwrap().body[0];
            if (execute.from..=execute.to).any(|segment| self.deadly.contains(&(segment, value))) {
                self.inboxes.remove(&slot);
                self.router
                    .remove_slot(slot, Departure::Lost, None, self.now);
                return self.start_slot();
            }
            let mut builder = BatchBuilder::default();
            builder.push(Format::Pickle, &[value], &[], Vec::new());
            let (records, _) = builder.take(Origin::user()).range(0, 1);
            let result = ToManager::Results {
                frame: execute.frame,
                first,
                reached: execute.to + 1,
                count: 1,
                busy: 1_000_000,
                records,
            };
            self.say(slot, result);
        }
    }

    fn say(&mut self, slot: u32, message: ToManager) {
        let (handler, head) = message.encode();
        let message = ReceivedMessage {
            handler,
            head,
            bulk: Vec::new(),
        };
        self.router.receive(slot, message, self.now).unwrap();
    }
}

proptest! {
    #[test]
    fn every_item_has_one_outcome_whatever_slots_die_of(
        deadly in proptest::collection::btree_set((0..3_u16, 0..ITEMS), 0..8),
        frame_items_max in 1..9_u32,
        order in proptest::collection::vec(any::<u32>(), 64),
    ) {
        let mut site = Site::new(deadly.clone(), frame_items_max);
        site.router.open(STREAM, plan(), site.now).unwrap();
        let mut builder = BatchBuilder::default();
        for value in 0..ITEMS {
            builder.push(Format::Pickle, &[value], &[], Vec::new());
        }
        site.router.admit(STREAM, builder.take(Origin::user()), site.now);
        site.router.end_of_input(STREAM, site.now);
        let mut picks = order.into_iter().cycle();
        for _ in 0..20_000 {
            site.pump();
            if site.outcomes.len() == usize::from(ITEMS) {
                break;
            }
            let slots: Vec<u32> = site.inboxes.keys().copied().collect();
            let pick = picks.next().unwrap() as usize % slots.len();
            site.work(slots[pick]);
        }
        let expected = |value: u8| (!(0..3).any(|segment| deadly.contains(&(segment, value)))).then_some(value);
        let wanted: BTreeMap<u64, Option<u8>> =
            (0..ITEMS).map(|value| (u64::from(value), expected(value))).collect();
        prop_assert_eq!(site.outcomes, wanted);
    }
}
