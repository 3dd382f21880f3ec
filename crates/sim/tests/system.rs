//! The whole system in virtual time, with a fixed list of seeds; `make soak` plays others.

use exoskel_sim::system::{Report, Scenario, play_twice};

/// Plays a seed twice: it decides everything.
#[track_caller]
fn play(seed: u64) -> Report {
    let scenario = Scenario::from_seed(seed);
    play_twice(&scenario).unwrap_or_else(|violation| {
        panic!("{violation}\n  replay: cargo run -p exoskel-sim --example system -- --seed {seed}\n{scenario:#?}")
    })
}

/// Aim: everything that is promised holds, and the seeds see what they are there for. Method: the promises are checked
/// inside; together the runs must have met every kind of trouble and of relief.
#[test]
fn everything_holds_whatever_happens() {
    let mut all = Report::default();
    for seed in 1..=120 {
        let report = play(seed);
        all.outcomes += report.outcomes;
        all.cancelled += report.cancelled;
        all.slots_lost += report.slots_lost;
        all.crashes += report.crashes;
        all.keys_changed += report.keys_changed;
        all.recalled += report.recalled;
        all.released += report.released;
        all.announced += report.announced;
        all.tokens_seen += report.tokens_seen;
    }
    let seen = [
        all.outcomes,
        all.cancelled,
        all.slots_lost,
        all.crashes,
        all.keys_changed,
        all.recalled,
        all.released,
        all.announced,
        all.tokens_seen,
    ];
    assert!(!seen.contains(&0), "{all:?}");
}

/// Seeds that once broke a promise, each of another kind.
#[test]
fn what_was_broken_once_holds() {
    // A leaving worker whose connection broke kept its items: nobody could write it the last word.
    // A record whose length was altered waits for as many bytes as it says, while heartbeats come.
    for seed in [954, 1193, 102_393] {
        play(seed);
    }
}
