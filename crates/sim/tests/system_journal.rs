//! Runs with a journal in the whole system: each result is in the sink once, wherever the manager's process ends.

use std::time::Duration;

use exoskel_sim::deliveries::BrokenDelivery;
use exoskel_sim::system::{InjectedFault, Report, Scenario, WriteEnd, play_twice, run};

/// Seeds of which nothing but a run with a journal goes wrong.
fn calm() -> impl Iterator<Item = Scenario> {
    (1..).map(Scenario::from_seed).filter(|scenario| {
        let has_journal = |scenario: &Scenario| {
            let mut streams = scenario.streams.iter();
            streams.any(|stream| stream.has_journal && stream.items > 5)
        };
        scenario.faults.is_empty() && has_journal(scenario)
    })
}

/// Aim: whoever comes back goes on, whatever was written when the process ended. Method: it ends in many of the writes of some runs, with and without its host;
/// the runs check what is in the sinks, and together they must have met what can be left.
#[test]
fn a_run_goes_on_wherever_its_manager_ends() {
    let mut all = Report::default();
    for calm in calm().take(4) {
        // Of the first ones each: the journal is begun in them.
        for writes in (0..12).chain((12..120).step_by(9)) {
            let mut scenario = calm.clone();
            let end = InjectedFault::EndInWrite {
                writes,
                end: [WriteEnd::HostGone, WriteEnd::Killed, WriteEnd::DiskFull]
                    [writes as usize % 3],
                restart: Duration::from_millis(writes % 3),
            };
            scenario.faults = vec![(Duration::ZERO, end)];
            let report = run(&scenario)
                .unwrap_or_else(|violation| panic!("{violation}\n{writes} writes\n{scenario:#?}"));
            if report.ended_in_write == 0 {
                break;
            }
            assert!(report.restarts > 0);
            all.ended_in_write += report.ended_in_write;
            all.commits += report.commits;
            all.continued += report.continued;
            all.early_found += report.early_found;
            all.removed += report.removed;
        }
    }
    let seen = [
        all.ended_in_write / 50,
        all.commits,
        all.continued,
        all.early_found,
        all.removed,
    ];
    assert!(!seen.contains(&0), "{all:?}");
}

/// Aim: the checks see a delivery that is wrong. Method: each way to break it, until a seed shows it.
#[test]
fn a_broken_delivery_is_seen() {
    for broken in [
        BrokenDelivery::CommitBeforeSync,
        BrokenDelivery::WatermarkTooEarly,
        BrokenDelivery::NotCutBack,
    ] {
        let seen = (1..=120).any(|seed| {
            let mut scenario = Scenario::from_seed(seed);
            scenario.broken_delivery = Some(broken);
            let has_journal = scenario.streams.iter().any(|stream| stream.has_journal);
            has_journal && play_twice(&scenario).is_err()
        });
        assert!(seen, "{broken:?}");
    }
}
