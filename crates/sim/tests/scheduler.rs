//! The scheduler through a simulated network, with a fixed list of seeds.

use std::time::Duration;

use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton};
use exoskel_sim::{Fault, Report, Scenario, Service, Simulation};

const SEEDS: [u64; 8] = [1, 2, 3, 5, 8, 13, 21, 34];

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

/// Runs it twice: a scenario decides everything.
#[track_caller]
fn run(scenario: &Scenario) -> Report {
    let report = Simulation::run(scenario.clone())
        .unwrap_or_else(|violation| panic!("{violation}\n{scenario:#?}"));
    assert_eq!(
        Simulation::run(scenario.clone()).as_ref(),
        Ok(&report),
        "two runs differ, seed {}",
        scenario.seed
    );
    report
}

#[test]
fn two_slots_then_dozens() {
    for seed in SEEDS {
        for program in programs() {
            for slots in [1, 2, 3, 36] {
                let service = Service::Uniform(micros(1), micros(300));
                let report = run(&Scenario {
                    slots,
                    ..Scenario::new(seed, program.clone(), 300, service)
                });
                assert_eq!((report.results, report.started_twice), (300, 0));
            }
        }
    }
}

/// Aim: nothing is lost whenever a slot dies. Method: a small run, and one more for each of its steps with a death
/// just before it; a new slot comes later.
#[test]
fn a_slot_dies_at_every_step() {
    for (seed, program) in (1..).zip(programs()) {
        let calm = Scenario::new(seed, program, 24, Service::Uniform(micros(100), millis(3)));
        for step in 0..run(&calm).steps {
            let faults = vec![Fault {
                step,
                slot: step as u32,
                restart: Some(millis(5)),
            }];
            let report = run(&Scenario {
                faults,
                ..calm.clone()
            });
            assert_eq!(report.results, 24);
            assert!(report.started_twice <= report.unfinished, "{report:?}");
        }
    }
}

/// Aim: the measure: 80 tasks of 0.25 s on two slots, one of which dies for good: 80 results, and no more
/// started twice than were unfinished there.
#[test]
fn one_of_two_dies() {
    for seed in SEEDS {
        let calm = Scenario::new(seed, farm(seq(0)), 80, Service::Fixed(millis(250)));
        let steps = run(&calm).steps;
        for step in [steps / 7, steps / 3, steps / 2, steps - 10] {
            let report = run(&Scenario {
                faults: vec![Fault {
                    step,
                    slot: 0,
                    restart: None,
                }],
                ..calm.clone()
            });
            assert_eq!(report.results, 80);
            assert!(
                report.unfinished <= 2 && report.started_twice <= report.unfinished,
                "{report:?}"
            );
        }
    }
}

/// Aim: an item that ends every worker fails by itself, charged as often as allowed; all others have results.
#[test]
fn a_poisonous_item_fails_alone() {
    for seed in SEEDS {
        for program in programs() {
            let calm = Scenario::new(seed, program, 200, Service::Fixed(micros(50)));
            let report = run(&Scenario {
                poison: vec![77],
                slots: 3,
                ..calm
            });
            assert_eq!(
                (report.results, report.failed.as_slice()),
                (199, [77].as_slice())
            );
        }
    }
}

/// Aim: huge results and a slow user: memory stays bounded (checked inside) and all comes through.
#[test]
fn huge_results_and_a_slow_user() {
    for seed in SEEDS {
        for program in programs() {
            let mut calm =
                Scenario::new(seed, program, 300, Service::Uniform(micros(10), millis(1)));
            calm.config = SchedulerConfig {
                result_budget_bytes: 4 << 20,
                ..SchedulerConfig::default()
            };
            let report = run(&Scenario {
                result_bytes_max: 3 << 20,
                take_time: micros(700),
                slots: 5,
                ..calm
            });
            assert_eq!(report.results, 300);
            assert!(report.inside_max < 128, "{}", report.inside_max);
        }
    }
}

/// Aim: items that raise on the way hold nobody up, in no kind of program, whoever is lost meanwhile. Method: one of
/// five raises in each segment; a slot dies in the middle.
#[test]
fn exceptions_are_outcomes_at_once() {
    for seed in SEEDS {
        for program in programs() {
            let calm = Scenario::new(seed, program, 400, Service::Uniform(micros(1), millis(1)));
            let raising = Scenario {
                raises_one_in: 5,
                slots: 3,
                ..calm
            };
            let steps = run(&raising).steps;
            let report = run(&Scenario {
                faults: vec![Fault {
                    step: steps / 2,
                    slot: 0,
                    restart: Some(millis(3)),
                }],
                ..raising
            });
            assert_eq!((report.results, report.failed.len()), (400, 0));
        }
    }
}

/// The share of the slots' time that was spent in functions, in percent.
fn efficiency(report: &Report, slots: u32) -> u128 {
    report.busy.as_nanos() * 100 / (report.makespan.as_nanos() * u128::from(slots))
}

/// Aim: short tasks are not bound by dispatching, long ones leave no slot waiting.
#[test]
fn slots_are_kept_busy() {
    for (time, items, least) in [
        (micros(1), 100_000, 85),
        (micros(20), 20_000, 90),
        (millis(1), 4000, 97),
        (millis(40), 200, 98),
    ] {
        let report = run(&Scenario::new(1, farm(seq(0)), items, Service::Fixed(time)));
        assert!(
            efficiency(&report, 2) >= least,
            "{time:?}: {} %, {} frames",
            efficiency(&report, 2),
            report.frames
        );
    }
}

/// Aim: the same over a wire of 20 ms each way. Method: the round trip is not set anywhere; it must be found out.
#[test]
fn slots_are_kept_busy_far_away() {
    for (time, items, least) in [
        (micros(200), 40_000, 90),
        (millis(1), 6000, 90),
        (millis(40), 400, 95),
    ] {
        let mut scenario = Scenario::new(1, farm(seq(0)), items, Service::Fixed(time));
        scenario.link.latency = millis(20);
        let report = run(&scenario);
        assert!(
            efficiency(&report, 2) >= least,
            "{time:?}: {} %",
            efficiency(&report, 2)
        );
    }
}

/// Aim: communication hides behind computation. Method: tokens and results of up to 1 MiB; a task takes three times
/// as long as its round trip.
#[test]
fn sending_hides_behind_computing() {
    for bytes in [64 << 10, 1 << 20] {
        let mut scenario = Scenario::new(1, farm(seq(0)), 300, Service::Fixed(Duration::ZERO));
        (scenario.input_bytes_max, scenario.result_bytes_max) = (bytes, bytes);
        let passing =
            Duration::from_nanos(2 * bytes * 1_000_000_000 / scenario.link.bytes_per_second);
        scenario.service = Service::Fixed((scenario.link.latency * 2 + passing) * 3);
        let report = run(&scenario);
        assert!(
            efficiency(&report, 2) >= 96,
            "{bytes} bytes: {} %",
            efficiency(&report, 2)
        );
    }
}

/// Aim: one slow item does not hold the others of its frame. Method: one item takes a second; when all fit into the
/// tickets, every other one must have its outcome long before.
#[test]
fn a_slow_item_holds_nothing_up() {
    for index in [0, 1, 500, 4000, 7990, 7999] {
        let service = Service::One {
            usual: micros(5),
            slow: Duration::from_secs(1),
            index,
        };
        let report = run(&Scenario::new(1, farm(seq(0)), 8000, service));
        let held: Vec<_> = (0..)
            .zip(&report.finished_at)
            .filter(|(_, at)| **at > millis(200))
            .collect();
        assert!(
            held.len() == 1,
            "item {index}: {} items were late, {} recalled, {:?}",
            held.len(),
            report.recalled,
            held.last()
        );
    }
}

/// Aim: the tail is balanced among unequal slots. Method: one slot of four is five times as slow; the whole may
/// take little longer than the work divided by the speeds.
#[test]
fn unequal_slots_end_together() {
    for (time, items) in [(micros(10), 60_000), (millis(2), 2000), (millis(100), 100)] {
        let calm = Scenario::new(1, farm(seq(0)), items, Service::Fixed(time));
        let report = run(&Scenario {
            slots: 4,
            slowness: vec![1, 1, 1, 5],
            ..calm
        });
        let ideal = time.mul_f64(items as f64 / 3.2);
        let late = report.makespan.saturating_sub(ideal);
        assert!(
            late < ideal / 10 + time * 5,
            "{time:?}: {:?} instead of {ideal:?}",
            report.makespan
        );
    }
}

/// Aim: the lease of a serial stage goes where it can be used next, and neither it nor the slots wait for long. Method:
/// a farmed stage that takes five times as long as the serial one before it, on four slots: the slots are the limit.
#[test]
fn a_lease_goes_on_while_the_rest_is_farmed() {
    let rest = Skeleton::Pipeline((1..6).map(seq).collect());
    let program = Skeleton::Pipeline(vec![seq(0), farm(rest)]);
    for (time, items) in [(micros(5), 40_000), (micros(100), 4000), (millis(1), 1000)] {
        let calm = Scenario::new(1, program.clone(), items, Service::Fixed(time));
        let report = run(&Scenario { slots: 4, ..calm });
        let efficiency = efficiency(&report, 4);
        assert!(
            efficiency >= 90,
            "{time:?}: {efficiency} %, {} frames",
            report.frames
        );
    }
}

/// Aim: a lease is not moved when all that could go on meanwhile takes less time than moving it. Method: a wire of
/// 20 ms each way; frames of the one slot that has the lease must hide it.
#[test]
fn a_lease_stays_where_moving_gains_nothing() {
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    for (time, items) in [(micros(20), 20_000), (millis(1), 3000)] {
        let mut scenario = Scenario::new(1, program.clone(), items, Service::Fixed(time));
        scenario.link.latency = millis(20);
        let report = run(&scenario);
        let ideal = time * 2 * items as u32;
        assert!(
            report.makespan < ideal.mul_f64(1.25) + millis(600),
            "{time:?}: {:?} instead of {ideal:?}",
            report.makespan
        );
    }
}

/// Aim: stages overlap. Method: with the serial part as the bottleneck it must not wait.
#[test]
fn a_pipeline_overlaps() {
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    for (time, items) in [(micros(10), 20_000), (millis(3), 300)] {
        let calm = Scenario::new(1, program.clone(), items, Service::Fixed(time));
        let report = run(&Scenario { slots: 3, ..calm });
        let ideal = time * items as u32;
        assert!(
            report.makespan < ideal.mul_f64(1.25),
            "{time:?}: {:?} instead of {ideal:?}",
            report.makespan
        );
    }
    let program = Skeleton::Pipeline(vec![seq(0), seq(1)]);
    for (time, items) in [(micros(10), 20_000), (millis(3), 300)] {
        let report = run(&Scenario::new(
            1,
            program.clone(),
            items,
            Service::Fixed(time),
        ));
        assert!(
            efficiency(&report, 2) >= 90,
            "{time:?}: {} %",
            efficiency(&report, 2)
        );
        // Tokens go from stage to stage in frames, not one by one.
        let by_one = report.frames > items / 5;
        assert!(time > millis(1) || !by_one, "{} frames", report.frames);
    }
}
