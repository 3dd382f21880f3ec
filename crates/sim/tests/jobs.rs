//! Jobs in virtual time, with a fixed list of seeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use exoskel_node::job::GRACE;
use exoskel_sim::jobs::{JobsMischief, JobsReport, JobsScenario, play_twice, run};

/// Aim: everything that jobs promise holds, whatever goes wrong, and the seeds see what they are there for.
#[test]
fn jobs_keep_their_promises_whatever_happens() {
    let mut all = JobsReport::default();
    for seed in 1..=200 {
        let scenario = JobsScenario::from_seed(seed);
        let report =
            play_twice(&scenario).unwrap_or_else(|violation| panic!("{violation}\n{scenario:#?}"));
        all.faults += report.faults;
        all.processes += report.processes;
        all.there += report.there;
        all.failed += report.failed;
        all.lost += report.lost;
        all.refused += report.refused;
        all.replaced += report.replaced;
        all.told += report.told;
        all.siblings += report.siblings;
        all.met += report.met;
        all.killed += report.killed;
        all.agents_lost += report.agents_lost;
        all.longest_end = all.longest_end.max(report.longest_end);
    }
    let seen = [
        all.faults,
        all.processes,
        all.there,
        all.failed,
        all.lost,
        all.refused,
        all.replaced,
        all.told,
        all.siblings,
        all.met,
        all.killed,
        all.agents_lost,
    ];
    assert!(!seen.contains(&0), "{all:?}");
    assert!(all.longest_end >= GRACE, "{all:?}");
}

/// Aim: each check finds what it is there for. Method: the driver does something wrong on purpose.
#[test]
fn each_check_finds_its_mischief() {
    for (mischief, shown) in [
        (JobsMischief::LosesEnds, "has not heard of the end"),
        (JobsMischief::SettlesTwice, "has two outcomes"),
        (JobsMischief::InventsLosses, "lost for no reason"),
        (JobsMischief::RepeatsNumbers, "have the number"),
        (JobsMischief::IgnoresLimits, "run on host"),
        (JobsMischief::IgnoresEnd, "and its job is over"),
        (JobsMischief::IgnoresHangUp, "and its job is over"),
        (JobsMischief::ForgetsGrace, "and its job is over"),
        (JobsMischief::LosesSignals, "and its job is over"),
        (JobsMischief::LosesTellings, "knows None as rank"),
        (JobsMischief::RepeatsTellings, "is told twice"),
        (JobsMischief::NamesTheDead, "is told wrongly"),
        (JobsMischief::HidesReplacements, "knows Some"),
        (JobsMischief::ForgetsSlots, "is not replaced"),
        (JobsMischief::LosesKeys, "has no certificate"),
        (JobsMischief::BelievesLiars, "where somebody else is"),
    ] {
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        for seed in 1..=150 {
            let mut scenario = JobsScenario::from_seed(seed);
            scenario.mischief = Some(mischief);
            if let Err(violation) = run(&scenario) {
                *found.entry(violation.what).or_default() += 1;
            }
        }
        let shows = |what: &String| what.contains(shown);
        let count: u32 = found
            .iter()
            .filter(|(what, _)| shows(what))
            .map(|(_, count)| count)
            .sum();
        assert!(count > 0, "{mischief:?}: {found:#?}");
    }
}
