//! Runs with a journal that are crashed at each of their writes; `make crash-runs` crashes more of them.

use exoskel_sim::deliveries::{BrokenDelivery, CrashReport, crash_everywhere};

/// Aim: each result is in the sink once, wherever a run is crashed. Method: a crash at each write of some seeds' runs, on disks that
/// tear and lose what was not synced. Together they must have met what they are there for.
#[test]
fn each_result_is_delivered_once() {
    let mut all = CrashReport::default();
    // The last two lose the length of a journal that grows, and keep the page that states it.
    for seed in (1..=6).chain([1029, 1039]) {
        let report = crash_everywhere(seed, None).unwrap_or_else(|what| {
            panic!(
                "{what}\n  again: cargo run -p exoskel-sim --example deliveries -- --seed {seed}"
            )
        });
        all.crashes += report.crashes;
        all.begun_anew += report.begun_anew;
        all.early_found += report.early_found;
    }
    assert!(
        all.crashes > 300 && all.begun_anew > 0 && all.early_found > 0,
        "{all:?}"
    );
}

/// Aim: the checks see a delivery that is wrong. Method: each way to break it, until a seed shows it.
#[test]
fn a_broken_delivery_is_seen() {
    for broken in [
        BrokenDelivery::CommitBeforeSync,
        BrokenDelivery::WatermarkTooEarly,
        BrokenDelivery::NotCutBack,
    ] {
        let seen = (1..=10).any(|seed| crash_everywhere(seed, Some(broken)).is_err());
        assert!(seen, "{broken:?}");
    }
}
