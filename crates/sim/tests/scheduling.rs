//! How well the whole system uses its slots, and what it does about those that die.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use exoskel_flow::{FunctionId, Program, SchedulerConfig, Skeleton};
use exoskel_link::{CipherSuite, EpochLimits, Limits, Protections};
use exoskel_meaning::meaning::RAISING;
use exoskel_meaning::renumbered;
use exoskel_sim::system::{
    InjectedFault, KeyRoom, Node, Report, Scenario, StreamScenario, TakingOrder, WorkerScenario,
    play_twice,
};
use exoskel_sim::{LinkModel, Service};
use exoskel_task::payload::Format;

const SEEDS: [u64; 4] = [1, 2, 3, 5];
/// A run ends when somebody has looked and found that all is quiet: so late at most.
const QUIET: Duration = Duration::from_millis(300);
/// Longer than any run here lasts.
const NEVER: Duration = Duration::from_secs(3600);

fn seq(number: u32) -> Skeleton {
    Skeleton::Seq(FunctionId(number))
}

fn farm(inner: Skeleton) -> Skeleton {
    Skeleton::Farm(Box::new(inner))
}

/// The programs of the tests: a farm; a serial stage with a farmed one; two serial stages; all of it.
fn programs() -> [Skeleton; 4] {
    [
        farm(seq(0)),
        Skeleton::Pipeline(vec![seq(0), farm(seq(1))]),
        Skeleton::Pipeline(vec![seq(0), seq(1)]),
        Skeleton::Pipeline(vec![
            farm(seq(0)),
            seq(1),
            farm(Skeleton::Pipeline(vec![seq(2), seq(3)])),
            seq(4),
        ]),
    ]
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Equal slots in one room, one stream of small items, and nothing that goes wrong.
fn calm(seed: u64, slots: usize, skeleton: &Skeleton, items: u64, service: Service) -> Scenario {
    let minimum = Protections::default();
    let worker = |host| WorkerScenario {
        host,
        lacks: Vec::new(),
        initializer_raises: false,
        in_domain: false,
        slowness: 1,
        minimum,
        is_relayed: false,
        format: Format::Pickle,
        drift: 0,
        joins_at: Duration::ZERO,
        rejoins_after: millis(50),
    };
    let stream = StreamScenario {
        skeleton: skeleton.clone(),
        items,
        service,
        input_bytes_max: 200,
        result_bytes_max: 200,
        has_bulk: false,
        order: TakingOrder::Admission,
        unbounded: false,
        opens_at: Duration::ZERO,
        batch_max: 1000,
        take_time: Duration::ZERO,
        poison: Vec::new(),
        poison_time: Duration::ZERO,
        unsent_one_in: 0,
        pickled_one_in: 0,
        retriable_one_in: 0,
        hangs_one_in: 0,
        timeout: Duration::ZERO,
        cancels_one_in: 0,
        closes_after: None,
        has_journal: false,
    };
    Scenario {
        seed,
        workers: (0..slots).map(worker).collect(),
        streams: vec![stream],
        manager_dials: false,
        contract: None,
        has_initializer: false,
        minimum,
        ciphers: CipherSuite::ALL.to_vec(),
        limits: Limits::default(),
        keys: KeyRoom {
            contexts: 4096,
            compact: 1000,
        },
        epoch: EpochLimits::default(),
        segment_bytes: 256 << 10,
        dead_after: Duration::from_secs(5),
        link: LinkModel::default(),
        wire_bytes_max: 1 << 20,
        timer_slack: Duration::ZERO,
        config: SchedulerConfig::default(),
        faults: Vec::new(),
        broken_delivery: None,
        steps_max: 10_000_000,
    }
}

/// Plays it twice: a scenario decides everything.
#[track_caller]
fn play(scenario: &Scenario) -> Report {
    play_twice(scenario).unwrap_or_else(|violation| panic!("{violation}\n{scenario:#?}"))
}

fn dies(worker: usize, restart: Duration) -> InjectedFault {
    InjectedFault::Crash {
        node: Node::Worker(worker),
        silent: false,
        restart,
    }
}

/// Aim: without trouble nothing is done twice, with one slot or dozens.
#[test]
fn two_slots_then_dozens() {
    for seed in SEEDS {
        for program in programs() {
            let segments = Program::compile(&program).unwrap().segments().len() as u64;
            for slots in [1, 2, 3, 36] {
                let service = Service::Uniform(micros(1), micros(300));
                let report = play(&calm(seed, slots, &program, 300, service));
                assert_eq!(
                    (report.outcomes, report.started),
                    (300, 300 * segments),
                    "{slots} slots, {program:?}"
                );
            }
        }
    }
}

/// Aim: nothing is lost whenever a slot dies. Method: a small run, and others with a death at each of many moments of it;
/// the slot comes back later.
#[test]
fn a_slot_dies_at_any_moment() {
    for (seed, program) in (1..).zip(programs()) {
        let service = Service::Uniform(micros(100), millis(3));
        let calm = calm(seed, 2, &program, 24, service);
        // The work is done within the first tenths of a second; then all fall quiet.
        for part in 0..30 {
            let mut scenario = calm.clone();
            scenario.faults = vec![(micros(1400) * part, dies(part as usize % 2, millis(5)))];
            assert_eq!(play(&scenario).outcomes, 24, "part {part}");
        }
    }
}

/// Aim: a slot that is told to end costs nobody anything: no item is begun twice or charged, though one charge would be an item's
/// end. Method: as above, with a good-bye at each of many moments.
#[test]
fn a_slot_is_told_to_end_at_any_moment() {
    for (seed, program) in (1..).zip(programs()) {
        let segments = Program::compile(&program).unwrap().segments().len() as u64;
        let service = Service::Uniform(micros(100), millis(3));
        let mut calm = calm(seed, 2, &program, 24, service);
        calm.config.retries = 1;
        let mut drained = 0;
        for part in 0..30 {
            let mut scenario = calm.clone();
            let worker = part as usize % 2;
            scenario.faults = vec![(micros(1400) * part, InjectedFault::Drain { worker })];
            let report = play(&scenario);
            let counts = (report.outcomes, report.started, report.slots_lost);
            assert_eq!(counts, (24, 24 * segments, 0), "part {part}, {program:?}");
            drained += report.drained;
        }
        assert!(drained > 10, "{drained}");
    }
}

/// Aim: of 80 tasks of 0.25 s on two slots, one of which dies for good, 80 have results, and no more are started twice than ran there.
#[test]
fn one_of_two_dies() {
    for seed in SEEDS {
        let calm = calm(seed, 2, &farm(seq(0)), 80, Service::Fixed(millis(250)));
        for at in [millis(700), millis(3333), millis(5000), millis(9800)] {
            let mut scenario = calm.clone();
            scenario.faults = vec![(at, dies(0, NEVER))];
            let report = play(&scenario);
            assert_eq!(report.outcomes, 80);
            assert!(report.started <= 82, "{report:?}");
        }
    }
}

/// Aim: an item that ends every worker fails by itself, charged as often as allowed; all others have results.
#[test]
fn a_poisonous_item_fails_alone() {
    for seed in SEEDS {
        for program in programs() {
            let mut scenario = calm(seed, 3, &program, 200, Service::Fixed(micros(50)));
            scenario.streams[0].poison = vec![77];
            let report = play(&scenario);
            assert_eq!(report.outcomes, 200);
            // The first death charges nobody unless the item ran alone.
            let charged = u64::from(scenario.config.retries);
            assert!(
                (charged..=charged + 1).contains(&report.slots_lost),
                "{report:?}"
            );
        }
    }
}

/// Aim: huge results and a slow user: memory stays bounded (checked inside) and all comes through.
#[test]
fn huge_results_and_a_slow_user() {
    for program in programs() {
        let service = Service::Uniform(micros(10), millis(1));
        let mut scenario = calm(1, 5, &program, 60, service);
        scenario.config.result_budget_bytes = 4 << 20;
        scenario.streams[0].result_bytes_max = 3 << 20;
        scenario.streams[0].take_time = micros(700);
        let report = play(&scenario);
        assert_eq!(report.outcomes, 60);
        assert!(report.announced > 0, "{report:?}");
    }
}

/// Aim: items that raise on the way hold nobody up, in no kind of program, whoever is lost meanwhile. Method: one of
/// thirteen raises in each function; a slot dies in the middle.
#[test]
fn exceptions_are_outcomes_at_once() {
    for seed in SEEDS {
        for program in programs() {
            let service = Service::Uniform(micros(1), millis(1));
            let mut scenario = calm(seed, 3, &program, 400, service);
            let skeleton = &mut scenario.streams[0].skeleton;
            *skeleton = renumbered(skeleton, &mut |FunctionId(number)| {
                FunctionId(RAISING + number)
            });
            scenario.faults = vec![(millis(30), dies(0, millis(3)))];
            assert_eq!(play(&scenario).outcomes, 400);
        }
    }
}

/// Aim: communication hides behind computation. Method: tokens and results of up to 1 MiB; a task takes three times
/// as long as its round trip.
#[test]
fn sending_hides_behind_computing() {
    let (bytes, items) = (1 << 20, 60);
    let mut scenario = calm(1, 2, &farm(seq(0)), items, Service::Fixed(Duration::ZERO));
    scenario.link.bytes_per_second = 1 << 25;
    let stream = &mut scenario.streams[0];
    (stream.input_bytes_max, stream.result_bytes_max) = (bytes, bytes);
    let passing = Duration::from_nanos(2 * bytes * 1_000_000_000 / (1 << 25));
    let time = (scenario.link.latency * 2 + passing) * 3;
    stream.service = Service::Fixed(time);
    let report = play(&scenario);
    let ideal = time * items as u32 / 2;
    assert!(
        report.ended_at < ideal.mul_f64(1.04) + QUIET,
        "{report:?} instead of {ideal:?}"
    );
}

/// Aim: one slow item does not hold the others of its frame. Method: one item takes a second. Its user goes when all others have
/// their outcomes, and both slots are gone long before the slow item is done: whoever waits behind it waits for ever.
#[test]
fn a_slow_item_holds_nothing_up() {
    for index in [0, 1, 500, 4000, 7990, 7999] {
        let service = Service::One {
            usual: micros(5),
            slow: Duration::from_secs(1),
            index,
        };
        let mut scenario = calm(1, 2, &farm(seq(0)), 8000, service);
        scenario.streams[0].order = TakingOrder::Completion;
        scenario.streams[0].closes_after = Some(7999);
        let at = millis(300);
        scenario.faults = vec![(at, dies(0, NEVER)), (at, dies(1, NEVER))];
        let report = play(&scenario);
        assert_eq!(report.left, 1);
        assert!(report.ended_at < NEVER, "item {index}: {report:?}");
    }
}

/// Aim: the tail is balanced among unequal slots. Method: one slot of four is five times as slow; the whole may
/// take little longer than the work divided by the speeds.
#[test]
fn unequal_slots_end_together() {
    for (time, items) in [(micros(100), 60_000), (millis(2), 4000), (millis(100), 100)] {
        let mut scenario = calm(1, 4, &farm(seq(0)), items, Service::Fixed(time));
        scenario.workers[3].slowness = 5;
        let ideal = time.mul_f64(items as f64 / 3.2);
        let report = play(&scenario);
        assert!(
            report.ended_at < ideal.mul_f64(1.1) + time * 5 + QUIET,
            "{time:?}: {report:?} instead of {ideal:?}"
        );
    }
}

/// Aim: the lease of a serial stage goes where it can be used next, and neither it nor the slots wait for long. Method:
/// a farmed stage that takes five times as long as the serial one before it, on four slots: the slots are the limit.
#[test]
fn a_lease_goes_on_while_the_rest_is_farmed() {
    let rest = Skeleton::Pipeline((1..6).map(seq).collect());
    let program = Skeleton::Pipeline(vec![seq(0), farm(rest)]);
    for (time, items) in [(micros(100), 20_000), (millis(1), 3000)] {
        let report = play(&calm(1, 4, &program, items, Service::Fixed(time)));
        let ideal = time * 6 * items as u32 / 4;
        assert!(
            report.ended_at < ideal.mul_f64(1.11) + QUIET,
            "{time:?}: {report:?} instead of {ideal:?}"
        );
    }
}

/// Aim: a lease is not moved when all that could go on meanwhile takes less time than moving it. Method: a wire of
/// 20 ms each way; frames of the one slot that has the lease must hide it.
#[test]
fn a_lease_stays_where_moving_gains_nothing() {
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    for (time, items) in [(micros(20), 40_000), (millis(1), 3000)] {
        let mut scenario = calm(1, 2, &program, items, Service::Fixed(time));
        scenario.link.latency = millis(20);
        let report = play(&scenario);
        let ideal = time * 2 * items as u32;
        assert!(
            report.ended_at < ideal.mul_f64(1.25) + millis(600) + QUIET,
            "{time:?}: {report:?} instead of {ideal:?}"
        );
    }
}

/// Aim: stages overlap. Method: with the serial part as the bottleneck it must not wait.
#[test]
fn a_pipeline_overlaps() {
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    let report = play(&calm(1, 3, &program, 1000, Service::Fixed(millis(3))));
    let ideal = millis(3) * 1000;
    assert!(report.ended_at < ideal.mul_f64(1.25) + QUIET, "{report:?}");
    let program = Skeleton::Pipeline(vec![seq(0), seq(1)]);
    let report = play(&calm(1, 2, &program, 1000, Service::Fixed(millis(3))));
    assert!(report.ended_at < ideal.mul_f64(1.11) + QUIET, "{report:?}");
}
