//! Runs with a journal that are crashed at each of their writes; `make crash-runs` crashes more of them.

use exoskel_sim::deliveries::{BrokenDelivery, CrashReport, ResultForm, crash_everywhere};

/// Aim: each result is in the sink once, wherever a run is crashed. Method: a crash at each write of some seeds' runs, on disks that
/// tear and lose what was not synced. Together they must have met what they are there for.
#[test]
fn each_result_is_delivered_once() {
    let mut all = CrashReport::default();
    // The last two lose the length of a journal that grows, and keep the page that states it.
    let of_forms = (1..=3).flat_map(|seed| ResultForm::ALL.map(|form| (seed, form)));
    for (seed, form) in of_forms.chain([(1029, ResultForm::One), (1039, ResultForm::One)]) {
        let report = crash_everywhere(seed, form, None).unwrap_or_else(|what| {
            panic!(
                "{what}\n  again: cargo run -p exoskel-sim --example deliveries -- --seed {seed}"
            )
        });
        all.crashes += report.crashes;
        all.begun_anew += report.begun_anew;
        all.told_unbegun += report.told_unbegun;
        all.told_heads += report.told_heads;
        all.early_found += report.early_found;
        all.many_continued += report.many_continued;
        all.folds_continued += report.folds_continued;
    }
    assert!(
        all.crashes > 300
            && all.begun_anew > 0
            && all.told_unbegun > 0
            && all.told_heads > 100
            && all.early_found > 0
            && all.many_continued > 0
            && all.folds_continued > 0,
        "{all:?}"
    );
}

/// Aim: the checks see a delivery that is wrong. Method: each way to break it, until a seed shows it.
#[test]
fn a_broken_delivery_is_seen() {
    for (broken, form) in [
        (BrokenDelivery::CommitBeforeSync, ResultForm::One),
        (BrokenDelivery::CommitBeforeSync, ResultForm::Many),
        (BrokenDelivery::WatermarkTooEarly, ResultForm::One),
        (BrokenDelivery::WatermarkTooEarly, ResultForm::Many),
        (BrokenDelivery::NotCutBack, ResultForm::One),
        (BrokenDelivery::NotCutBack, ResultForm::Many),
        (BrokenDelivery::NotCutBack, ResultForm::Folded),
        (BrokenDelivery::ItemTooEarly, ResultForm::Many),
        (BrokenDelivery::FoldTooLate, ResultForm::Folded),
        (BrokenDelivery::TornIsUnbegun, ResultForm::One),
        (BrokenDelivery::TornIsUnbegun, ResultForm::Many),
    ] {
        let seen = (1..=10).any(|seed| crash_everywhere(seed, form, Some(broken)).is_err());
        assert!(seen, "{broken:?} of {form:?}");
    }
}
