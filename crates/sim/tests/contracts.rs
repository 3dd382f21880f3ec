//! Contracts in virtual time, with the product's planner and scheduler.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use exoskel_flow::contract::{Contract, ItemsDeadline, Lack, Limit, PlannerSettings, SlotDecision};
use exoskel_flow::{FunctionId, Skeleton};
use exoskel_sim::contracts::{ContractReport, ContractScenario, ItemTimes};

const SECOND: Duration = Duration::from_secs(1);

/// So many seeds are played here, and thousands by `examples/contracts.rs`.
const SEEDS: u64 = 25;

fn throughput(rate: f64) -> Contract {
    Contract {
        slots_max: 64,
        throughput: Some(rate),
        ..Contract::fixed(1)
    }
}

#[track_caller]
fn play(scenario: &ContractScenario) -> ContractReport {
    let report = scenario.run().unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(scenario.run().as_ref(), Ok(&report), "two runs differ");
    report
}

/// Turns without a reason, and turns within a window, over all seeds.
fn turns(settings: &PlannerSettings) -> (usize, usize) {
    let mut sums = (0, 0);
    for seed in 1..=SEEDS {
        let (mut scenario, step) = ContractScenario::with_step(seed);
        scenario.settings = settings.clone();
        let report = scenario.run().unwrap();
        let (without_reason, within) = report.reversals(&[step], 10 * SECOND);
        sums = (sums.0 + without_reason, sums.1 + within);
    }
    sums
}

/// Aim: after a step in the time of items a throughput is met within ten seconds, with at most one slot too many, and slots are never
/// recruited and released in turn.
#[test]
fn a_throughput_is_met_after_a_step_and_nothing_is_reversed() {
    for seed in 1..=SEEDS {
        let (scenario, step) = ContractScenario::with_step(seed);
        let report = scenario.run().unwrap();
        assert_eq!(
            report.reversals(&[step], 10 * SECOND),
            (0, 0),
            "seed {seed}"
        );
        if scenario.times == ItemTimes::Exponential {
            // Then few items say little of their mean.
            continue;
        }
        let rate = scenario.contract.throughput.unwrap();
        let met = report.met_after(step, 0.97 * rate, SECOND).unwrap();
        assert!(met <= 10 * SECOND, "seed {seed}: met after {met:?}");
        let needed = scenario.slots_needed(step) as usize;
        let there = report.slots_at(scenario.end);
        if scenario.phases[1].item > scenario.phases[0].item {
            assert!(
                there <= needed + 1,
                "seed {seed}: {there} of {needed} slots"
            );
        }
    }
}

/// Aim: short items of exponential times that become slower end with no more than one slot too many, though each look at them shows something else.
#[test]
fn chance_adds_no_more_than_one_slot() {
    let mut seeds = 0;
    for seed in 1..=200 {
        let (scenario, step) = ContractScenario::with_step(seed);
        let is_slower = scenario.phases[1].item > scenario.phases[0].item;
        if scenario.times != ItemTimes::Exponential || !is_slower {
            continue;
        }
        seeds += 1;
        let report = scenario.run().unwrap();
        let needed = scenario.slots_needed(step) as usize;
        let there = report.slots_at(scenario.end);
        assert!(
            there <= needed + 1,
            "seed {seed}: {there} of {needed} slots\n{report}"
        );
    }
    assert!(seeds > 50, "{seeds} seeds");
}

/// A check that never fails proves nothing.
#[test]
fn planners_that_are_broken_on_purpose_reverse_their_decisions() {
    let whole = PlannerSettings::default();
    let without_doubt = PlannerSettings {
        doubt: 0.0,
        ..whole.clone()
    };
    assert!(turns(&without_doubt).0 > 0);
    let without_window = PlannerSettings {
        window: Duration::ZERO,
        ..without_doubt
    };
    assert!(turns(&without_window).1 > 10);
}

/// Aim: slots are recruited only while slots are what limits. Method: items come in at half the rate that is asked for; a planner that
/// doesn't look for that asks for all the slots that it may have.
#[test]
fn a_slow_source_is_no_reason_for_more_slots() {
    let mut scenario = ContractScenario::new(3, throughput(100.0), Duration::from_millis(50));
    scenario.phases[0].source = Some(50.0);
    let report = play(&scenario);
    assert!(report.slots_at(scenario.end) <= 6, "{:?}", report.decisions);
    let is_source = |decision: &SlotDecision| {
        matches!(decision, SlotDecision::Lacks(Lack::Rate(Limit::Source, ..)))
    };
    let told = report
        .decisions
        .iter()
        .filter(|(_, decision)| is_source(decision));
    assert_eq!(told.count(), 1, "{:?}", report.decisions);
    scenario.settings.looks_for_limit = false;
    let report = play(&scenario);
    assert!(report.slots_at(scenario.end) > 12, "{:?}", report.decisions);
}

/// Aim: a serial function that does fewer items a second than are asked for is named, and no more slots are used than it can feed.
#[test]
fn a_serial_function_is_no_reason_for_more_slots() {
    let mut scenario = ContractScenario::new(4, throughput(100.0), Duration::from_millis(50));
    scenario.skeleton = Skeleton::Pipeline(vec![
        Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))),
        Skeleton::Seq(FunctionId(1)),
    ]);
    scenario.serial = Duration::from_millis(20);
    let report = play(&scenario);
    let there = report.slots_at(scenario.end);
    assert!(there <= 6, "{there} slots: {:?}", report.decisions);
    let is_serial = |decision: &SlotDecision| {
        let SlotDecision::Lacks(lack) = decision else {
            return false;
        };
        matches!(lack, Lack::Serial(_) | Lack::Rate(Limit::Serial, ..))
    };
    assert!(
        report
            .decisions
            .iter()
            .any(|(_, decision)| is_serial(decision)),
        "{:?}",
        report.decisions
    );
}

/// Aim: the loss of one of eight slots costs an eighth of the rate, and no more, until another one has come.
#[test]
fn a_lost_slot_costs_its_share_and_is_replaced() {
    let mut scenario = ContractScenario::new(5, Contract::fixed(8), Duration::from_millis(40));
    let loss = 20 * SECOND;
    scenario.losses = vec![loss];
    scenario.start = 2 * SECOND;
    scenario.end = 30 * SECOND;
    let report = play(&scenario);
    let before = report.rate(loss - 5 * SECOND, loss);
    let after = report.rate(loss + SECOND / 2, loss + 2 * SECOND);
    assert!(
        after >= before * 7.0 / 8.0 * 0.97,
        "{before} before, {after} after"
    );
    let replaced = report.rate(loss + 5 * SECOND, loss + 10 * SECOND);
    assert!(
        replaced >= before * 0.97,
        "{before} before, {replaced} when it was replaced"
    );
    assert_eq!(report.slots_at(loss + SECOND), 7);
    assert_eq!(report.slots_at(loss + 5 * SECOND), 8);
}

/// Aim: a slot of half the speed does half as many items as each of the others.
#[test]
fn a_slot_of_half_the_speed_has_half_a_share() {
    for latency in [1, 5] {
        let mut scenario = ContractScenario::new(6, Contract::fixed(4), Duration::from_millis(20));
        scenario.factors = vec![1, 2];
        scenario.latency = Duration::from_millis(latency);
        let report = play(&scenario);
        let others = (report.items[0] + report.items[2] + report.items[3]) as f64 / 3.0;
        let share = report.items[1] as f64 / others;
        assert!(
            (0.475..=0.525).contains(&share),
            "{latency} ms: {share}, {:?}",
            report.items
        );
    }
}

/// Aim: a deadline is kept with few slots, though items become slower half-way.
#[test]
fn a_deadline_is_kept() {
    let mut contract = throughput(0.0);
    contract.throughput = None;
    contract.deadline = Some(ItemsDeadline {
        time: 60 * SECOND,
        items: 6000,
    });
    let mut scenario = ContractScenario::new(7, contract, Duration::from_millis(30));
    let mut slower = scenario.phases[0];
    (slower.at, slower.item) = (30 * SECOND, Duration::from_millis(90));
    scenario.phases.push(slower);
    let report = play(&scenario);
    assert!(
        report.outcomes.len() >= 6000,
        "{} items",
        report.outcomes.len()
    );
    let most = report.slots.iter().map(|(_, slots)| *slots).max().unwrap();
    assert!(most <= 12, "{most} slots");
}

/// A deadline for items that all take the same.
fn deadline(seconds: u32, items: u64, item: Duration, slots_max: u32) -> ContractScenario {
    let contract = Contract {
        slots_max,
        deadline: Some(ItemsDeadline {
            time: SECOND * seconds,
            items,
        }),
        ..Contract::fixed(1)
    };
    let mut scenario = ContractScenario::new(8, contract, item);
    scenario.times = ItemTimes::Constant;
    scenario
}

/// Aim: of the last items, which are all at slots, it is told that they take longer than the time that is left, and that the deadline has passed.
#[test]
fn a_deadline_that_the_running_items_miss_is_told_before_it_has_passed() {
    let mut scenario = deadline(36, 24, 5 * SECOND, 4);
    scenario.items = Some(24);
    // The last round is slower, which the first items of it show.
    let mut slower = scenario.phases[0];
    (slower.at, slower.item) = (19 * SECOND, 11 * SECOND);
    scenario.phases.push(slower);
    scenario.end = 80 * SECOND;
    let report = play(&scenario);
    assert_eq!(report.outcomes.len(), 24);
    let in_time = report.outcomes.partition_point(|at| *at <= 36 * SECOND);
    assert!(in_time < 24, "{report}");
    let told = report.told(|lack| matches!(lack, Lack::Deadline(_) | Lack::Degree(_)));
    assert!(told.unwrap() < 36 * SECOND, "{report}");
    let passed = report.told(|lack| *lack == Lack::Time).unwrap();
    assert!(passed < 38 * SECOND, "{report}");
}

/// When the contract's lack was told first.
fn lack(report: &ContractReport) -> Option<(Duration, &Lack)> {
    report
        .decisions
        .iter()
        .find_map(|(at, decision)| match decision {
            SlotDecision::Lacks(lack) => Some((*at, lack)),
            _ => None,
        })
}

/// Aim: items that run show how long items take before the first of them has ended.
#[test]
fn items_of_seconds_are_seen_before_they_end() {
    let mut scenario = ContractScenario::new(9, throughput(0.5), 8 * SECOND);
    scenario.times = ItemTimes::Constant;
    scenario.end = 120 * SECOND;
    let report = play(&scenario);
    let first = report.moves().next().unwrap();
    assert!(first.0 < 8 * SECOND, "{:?}", report.decisions);
    let found = report.slots_after(Duration::ZERO, 4).unwrap();
    assert!(found <= 32 * SECOND, "{found:?}: {:?}", report.decisions);
    assert!(report.slots_at(scenario.end) <= 5, "{:?}", report.decisions);
}

/// Aim: a deadline of few long items is kept if slots are to spare, and if the most slots can't do it that is told before it has passed.
#[test]
fn a_deadline_of_few_long_items_is_kept_or_its_lack_is_told_in_time() {
    let kept = play(&deadline(45, 20, 8 * SECOND, 8));
    let in_time = kept.outcomes.partition_point(|at| *at <= 45 * SECOND);
    assert!(in_time >= 20, "{in_time} items: {:?}", kept.decisions);
    assert_eq!(lack(&kept), None);
    let (at, lacks) = {
        let missed = play(&deadline(45, 20, 8 * SECOND, 3));
        let (at, lack) = lack(&missed).unwrap();
        (at, lack.clone())
    };
    assert!(
        at < 40 * SECOND && matches!(lacks, Lack::Degree(3)),
        "{at:?} {lacks:?}"
    );
    let (at, lacks) = {
        let missed = play(&deadline(20, 20, 30 * SECOND, 64));
        let (at, lack) = lack(&missed).unwrap();
        (at, lack.clone())
    };
    assert!(
        at < 20 * SECOND && matches!(lacks, Lack::Deadline(_)),
        "{at:?} {lacks:?}"
    );
}

/// Aim: contracts over items of seconds, beside what somebody would do who knows how long they take. Method: seeds of constant, even,
/// exponential and mixed times with and without a step; the figures of more of them are in docs/virtual-time.md.
#[test]
fn items_of_seconds_of_all_kinds_need_few_slots_too_many_and_no_turns_within_a_window() {
    let (mut seeds, mut deadlines, mut too_many) = (0, 0, 0);
    let (mut late, mut late_alike, mut silent, mut in_vain) = (0, 0, 0, 0);
    for seed in 1..=1000 {
        let (scenario, step) = ContractScenario::with_any_items(seed);
        if scenario.phases[0].item < SECOND {
            continue;
        }
        seeds += 1;
        let report = scenario.run().unwrap_or_else(|broken| panic!("{broken}"));
        let changes: Vec<Duration> = step.into_iter().collect();
        assert_eq!(report.reversals(&changes, 10 * SECOND).1, 0, "seed {seed}");
        let needed = scenario.slots_needed(step.unwrap_or_default()) as usize;
        if let Some(deadline) = scenario.contract.deadline {
            deadlines += 1;
            let in_time = report.outcomes.partition_point(|at| *at <= deadline.time);
            let is_late = (in_time as u64) < deadline.items;
            let is_alike = matches!(scenario.times, ItemTimes::Constant | ItemTimes::Even);
            late += u32::from(is_late);
            late_alike += u32::from(is_late && is_alike);
            let told = report.told(|lack| !matches!(lack, Lack::Time));
            silent += u32::from(is_late && told.is_none_or(|at| at > deadline.time));
            let given_up = report.told(|lack| matches!(lack, Lack::Deadline(_)));
            in_vain += u32::from(!is_late && given_up.is_some());
        } else if report.slots_at(scenario.end) > needed + 1 {
            too_many += 1;
        }
    }
    assert!(seeds > 300 && deadlines > 80, "{seeds} seeds, {deadlines}");
    assert!(late * 6 <= deadlines, "{late} of {deadlines} deadlines");
    assert_eq!(late_alike, 0);
    assert!(silent * 4 <= late, "{silent} of {late} missed in silence");
    assert!(in_vain * 20 <= deadlines, "{in_vain} told in vain");
    assert!(too_many * 20 <= seeds, "{too_many} of {seeds} seeds");
}
