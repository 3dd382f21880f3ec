//! Random programs of all patterns on random slots that come and go: they mean what they mean one item after the other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod record;
mod slot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Departure, FunctionId, SchedulerConfig, Skeleton, Tickets};
use exoskel_task::Router;
use exoskel_task::message::{Call, ReceivedMessage};
use exoskel_task::outcome::{Contents, Origin, Outcomes};
use exoskel_task::payload::{BatchBuilder, Format};
use exoskel_task::router::{Effect, Function, StreamPlan};

use exoskel_meaning::meaning::{self, Data, Outcome, Raised, Value};
use exoskel_meaning::{Random, program};
use slot::{MESSAGE_BYTES_MAX, Slot};

const STREAM: u64 = 7;

/// A step takes so long at most, in microseconds: some folds are told of in between.
const STEP_MICROS: u64 = 3000;

/// After so many steps something hangs.
const STEPS_MAX: u64 = 400_000;

struct Site {
    router: Router,
    random: Random,
    now: Duration,
    slots: BTreeMap<u32, Slot>,
    next_slot: u32,
    /// How many slots may still be lost.
    losses: u32,
    /// Outcomes that say so.
    workers_lost: u32,
    /// What there may be of slots that aren't trusted.
    strangers: bool,
    outcomes: BTreeMap<u64, Outcome>,
    untaken: Vec<(u64, u32)>,
    total: Option<u64>,
    /// Where the outcomes of each item end, as far as that was told.
    ends: Vec<u64>,
    /// Whose the outcomes were by that when they came.
    owners: BTreeMap<u64, usize>,
}

fn plan(skeleton: Skeleton) -> StreamPlan {
    let function = |number: u8| Function {
        digest: [number; 32],
        pickle: match u32::from(number) {
            meaning::INITIAL => record::body(&Value::untouched(meaning::initial())),
            _ => Bytes::from(vec![number]),
        },
    };
    StreamPlan {
        skeleton,
        functions: (0..=u8::MAX).map(function).collect(),
        call: Call::Item,
        tickets: Tickets::Bounded,
        timeout: None,
        retries_on: None,
        tells_ends: true,
    }
}

impl Site {
    fn new(seed: u64, strangers: bool, end: End) -> Self {
        let mut random = Random::new(seed);
        let config = SchedulerConfig {
            retries: if end == End::Deadly { 1 } else { 200 },
            frame_items_max: 1 + random.below(9) as u32,
            tickets_max: 1 + random.below(40) as u32,
            grant_bytes: 1 + random.below(200),
            grant_bytes_min: 1 + random.below(30),
            result_budget_bytes: 50 + random.below(2000),
            input_budget_bytes: 50 + random.below(2000),
            // Slots have their turn now and then; what they haven't begun by then must not be asked back for ever.
            recall_time: Duration::from_millis(40),
            ..SchedulerConfig::default()
        };
        let router = Router::new(config, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX);
        Self {
            router,
            random,
            now: Duration::ZERO,
            slots: BTreeMap::new(),
            next_slot: 0,
            losses: 12,
            workers_lost: 0,
            strangers,
            outcomes: BTreeMap::new(),
            untaken: Vec::new(),
            total: None,
            ends: Vec::new(),
            owners: BTreeMap::new(),
        }
    }

    fn start_slot(&mut self) {
        let is_stranger = self.strangers && self.random.is(2);
        let origin = Origin {
            worker: format!("worker-{}", self.next_slot),
            format: if is_stranger {
                Format::Data
            } else {
                Format::Pickle
            },
        };
        let slot = self.next_slot;
        self.router
            .add_slot(slot, Arc::new(origin), MESSAGE_BYTES_MAX, self.now)
            .unwrap();
        self.slots.insert(slot, Slot::new(is_stranger));
        self.next_slot += 1;
    }

    fn pump(&mut self) {
        while let Some(effect) = self.router.poll_effect(self.now) {
            match effect {
                Effect::Send {
                    slot,
                    endpoint,
                    message,
                } => {
                    let message = ReceivedMessage {
                        handler: message.handler,
                        head: message.head,
                        bulk: message.bulk.iter().map(|part| part.to_vec()).collect(),
                    };
                    if let Some(slot) = self.slots.get_mut(&slot) {
                        slot.inbox.push_back((endpoint, message));
                    }
                }
                Effect::Deliver { outcomes, .. } => self.take_in(outcomes),
                Effect::Total { count, .. } => assert_eq!(self.total.replace(count), None),
                Effect::Ends { ends, .. } => self.ends.extend(ends),
                Effect::Overdue { .. } => panic!("nothing has a time limit"),
                Effect::LetGo { .. } => panic!("no slot is to end"),
                Effect::LostTrack { .. } => panic!("the token of an item that must run is gone"),
            }
        }
    }

    fn take_in(&mut self, outcomes: Outcomes) {
        let (first, count) = (outcomes.first, outcomes.count);
        let mut contents = outcomes.contents;
        for index in first..first + u64::from(count) {
            let outcome = match &mut contents {
                Contents::Records(reader, origin) => {
                    let record = reader.next_record().unwrap().unwrap();
                    assert!(origin.allows(record.format));
                    let Value { data, touched } = record::read(&record.body, &record.bulk);
                    assert!(
                        !touched || !origin.is_trusted(),
                        "outcome {index} was touched"
                    );
                    match record.exception {
                        true => Err(vec![raised(&data)]),
                        false => Ok(data),
                    }
                }
                Contents::NothingToReduce => Err(Vec::new()),
                Contents::WorkersLost { .. } => {
                    self.workers_lost += 1;
                    Err(Vec::new())
                }
                other => panic!("{other:?}"),
            };
            let owner = self.ends.iter().filter(|end| **end <= index).count();
            self.owners.insert(index, owner);
            let former = self.outcomes.insert(index, outcome);
            assert_eq!(former, None, "item {index} had an outcome");
        }
        self.untaken.push((first, count));
    }

    /// One thing happens.
    fn step(&mut self) {
        self.now += Duration::from_micros(self.random.below(STEP_MICROS));
        let slots: Vec<u32> = self.slots.keys().copied().collect();
        match self.random.below(40) {
            0 if slots.len() < 4 => self.start_slot(),
            1 if slots.len() > 1 && self.losses > 0 && self.random.is(4) => {
                self.losses -= 1;
                let slot = self.random.pick(&slots).unwrap();
                self.slots.remove(&slot);
                let departures = [Departure::Orderly, Departure::Lost, Departure::Broken];
                let departure = self.random.pick(&departures).unwrap();
                self.router.remove_slot(slot, departure, None, self.now);
            }
            2..=9 => {
                if !self.untaken.is_empty() {
                    let place = self.random.below(self.untaken.len() as u64) as usize;
                    let (first, count) = self.untaken.swap_remove(place);
                    self.router.taken(STREAM, first, count, self.now);
                }
            }
            10..=19 => {
                let slot = self.random.pick(&slots).unwrap();
                self.hear(slot);
            }
            _ => {
                let slot = self.random.pick(&slots).unwrap();
                let random = &mut self.random;
                self.slots.get_mut(&slot).unwrap().step(random, self.now);
            }
        }
        self.pump();
    }

    /// It was told in time which item each outcome is of, and how many each item has.
    fn check_ends(&self, skeleton: &Skeleton, items: &[Data]) {
        let mut owners = Vec::new();
        let mut ends = Vec::new();
        for count in 1..=items.len() {
            let first = items[..count].iter().cloned().map(Ok).collect();
            let outcomes = meaning::run(skeleton, first).len();
            owners.resize(outcomes, count - 1);
            ends.push(outcomes as u64);
        }
        assert_eq!(self.ends, ends, "{skeleton:?}");
        let told: Vec<usize> = self.owners.values().copied().collect();
        assert_eq!(told, owners, "{skeleton:?}");
    }

    /// The manager hears the next thing that a slot says.
    fn hear(&mut self, slot: u32) {
        let said = self.slots.get_mut(&slot).unwrap().outbox.pop_front();
        if let Some(said) = said {
            let message = ReceivedMessage {
                handler: said.message.handler,
                head: said.message.head,
                bulk: said.message.bulk.iter().map(|part| part.to_vec()).collect(),
            };
            self.router.receive(slot, message, self.now).unwrap();
        }
    }
}

/// What an exception says.
fn raised(data: &Data) -> Raised {
    match data {
        Data::List(told) => match told[..] {
            [Data::Number(function), Data::Number(sum)] => Raised {
                function: function as u32,
                sum,
            },
            _ => panic!("an exception that no function raises: {data:?}"),
        },
        Data::Number(_) => panic!("an exception that no function raises: {data:?}"),
    }
}

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// With all outcomes.
    Complete,
    /// Its user gives it up.
    Closed,
    /// With all outcomes, some of which are that workers were lost.
    Deadly,
}

fn run(seed: u64, raises: bool, strangers: bool, end: End) {
    let mut site = Site::new(seed, strangers, end);
    let skeleton = program(&mut site.random, raises, true);
    let count = site.random.below(30);
    play(site, seed, skeleton, count, end);
}

fn play(mut site: Site, seed: u64, skeleton: Skeleton, count: u64, end: End) {
    let keeps_number = skeleton.keeps_number();
    let items: Vec<Data> = (0..count)
        .map(|_| Data::Number(site.random.below(1000)))
        .collect();
    let all = items.clone();
    let expected = meaning::run(&skeleton, items.iter().cloned().map(Ok).collect());
    let is_reduced = matches!(&skeleton, Skeleton::Pipeline(stages) if matches!(stages.last(), Some(Skeleton::Reduce { .. })));
    site.router
        .open(STREAM, plan(skeleton.clone()), site.now)
        .unwrap();
    site.start_slot();
    let mut left = items.into_iter().peekable();
    let mut has_ended = false;
    let steps = match end {
        End::Complete | End::Deadly => u64::MAX,
        End::Closed => site.random.below(600),
    };
    for step in 0..steps {
        assert!(
            step < STEPS_MAX,
            "seed {seed} hangs: {skeleton:?} {:?} of {}, total {:?}, {:#?}",
            site.outcomes.len(),
            expected.len(),
            site.total,
            site.router.scheduler()
        );
        if left.peek().is_some() && site.random.is(5) {
            let mut builder = BatchBuilder::default();
            let admitted = left.by_ref().take(1 + site.random.below(6) as usize);
            for data in admitted {
                let (body, bulk) = record::write(&Value::untouched(data));
                builder.push(Format::Pickle, &body, &[], bulk);
            }
            let batch = builder.take(Origin::user());
            site.router.admit(STREAM, batch, site.now);
        } else if left.peek().is_none() && !has_ended && site.random.is(5) {
            has_ended = true;
            site.router.end_of_input(STREAM, site.now);
        }
        site.step();
        let total = site.total.or_else(|| keeps_number.then_some(count));
        if total == Some(site.outcomes.len() as u64) && (has_ended || is_reduced) {
            break;
        }
    }
    assert!(site.workers_lost == 0 || end != End::Complete);
    if end != End::Closed && site.workers_lost == 0 {
        let outcomes: Vec<_> = site.outcomes.values().collect();
        let is_expected = |(outcome, expected): (&&Outcome, &Outcome)| match (outcome, expected) {
            // Of parts that raise, any may be the first.
            (Err(got), Err(raised)) => got.iter().all(|one| raised.contains(one)),
            (outcome, expected) => *outcome == expected,
        };
        let are_expected = outcomes.iter().zip(&expected).all(is_expected);
        assert!(
            outcomes.len() == expected.len() && are_expected,
            "seed {seed}: {skeleton:?}: got {outcomes:?}, expected {expected:?}"
        );
    }
    if end == End::Complete && !keeps_number && !is_reduced {
        site.check_ends(&skeleton, &all);
    }
    let delivered = site.outcomes.len();
    // Nothing is kept of a stream that is over.
    site.router.close(STREAM, site.now);
    site.losses = 0;
    for _ in 0..3000 {
        site.step();
    }
    assert_eq!(site.router.streams().count(), 0);
    assert_eq!(site.outcomes.len(), delivered);
    for slot in site.slots.keys() {
        let outstanding = site.router.slot_statistics(*slot).unwrap().outstanding;
        assert_eq!(outstanding, 0, "seed {seed}: {skeleton:?}");
    }
}

/// How many programs are tried of each kind.
const SEEDS: u64 = 80;

#[test]
fn programs_of_all_patterns_mean_what_they_mean() {
    (0..SEEDS).for_each(|seed| run(seed, false, false, End::Complete));
}

/// Aim: it is told that an item has no outcomes, wherever on its way it came to nothing. Method: few items, so that the last one often does, and three
/// stages in a row that make any number of each.
#[test]
fn items_end_where_they_come_to_nothing() {
    for seed in 0..SEEDS {
        let mut site = Site::new(seed + 50_000, false, End::Complete);
        let functions = [(); 3].map(|()| FunctionId(site.random.below(100) as u32));
        let skeleton = Skeleton::Pipeline(functions.map(Skeleton::FlatMap).to_vec());
        let count = site.random.below(6);
        play(site, seed, skeleton, count, End::Complete);
    }
}

#[test]
fn exceptions_are_the_outcomes_of_the_items_they_belong_to() {
    (0..SEEDS).for_each(|seed| run(seed + 10_000, true, false, End::Complete));
}

#[test]
fn what_a_stranger_has_touched_stays_a_strangers() {
    (0..SEEDS).for_each(|seed| run(seed + 20_000, true, true, End::Complete));
}

#[test]
fn a_stream_that_is_closed_leaves_nothing_behind() {
    (0..SEEDS).for_each(|seed| run(seed + 30_000, true, true, End::Closed));
}

#[test]
fn items_that_cost_a_worker_end_what_they_are_part_of() {
    (0..SEEDS).for_each(|seed| run(seed + 40_000, true, true, End::Deadly));
}
