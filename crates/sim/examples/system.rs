//! Plays the whole system in virtual time: `--seed N` one seed with what it was made of, `--from N --count K` many, `--seconds S`
//! fresh ones for so long. Each is played twice: the same seed must give the same digest. With `--once` it is not, for twice as many seeds.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line stands outside of what it runs"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exoskel_sim::system::{Report, Scenario, play_once, play_twice};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        arguments.get(position + 1)?.parse::<u64>().ok()
    };
    if let Some(seed) = value("--seed") {
        println!("{:#?}", Scenario::from_seed(seed));
        return if play(seed, true, false).is_some() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let once = arguments.iter().any(|argument| argument == "--once");
    let seconds = value("--seconds").map(Duration::from_secs);
    let fresh = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| since.as_secs() * 1_000_000);
    let (usual_first, usual_count) = match seconds {
        Some(_) => (fresh, u64::MAX),
        None => (1, 100),
    };
    let first = value("--from").unwrap_or(usual_first);
    let count = value("--count").unwrap_or(usual_count);
    let begun = Instant::now();
    let (mut played, mut failed, mut unjudged) = (0, 0, 0);
    for seed in first..first.saturating_add(count) {
        if seconds.is_some_and(|seconds| begun.elapsed() >= seconds) {
            break;
        }
        played += 1;
        match play(seed, false, once) {
            Some(report) => unjudged += report.unjudged,
            None => failed += 1,
        }
    }
    println!(
        "{played} seeds from {first} in {:.1} s, {failed} failed; {unjudged} streams have too many courses to be judged",
        begun.elapsed().as_secs_f64()
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Plays a seed; none: it did not hold what is promised.
fn play(seed: u64, is_told: bool, once: bool) -> Option<Report> {
    let scenario = Scenario::from_seed(seed);
    let played = match once {
        true => play_once(&scenario),
        false => play_twice(&scenario),
    };
    match played {
        Ok(report) => {
            if is_told {
                println!("{report:#?}");
            }
            Some(report)
        }
        Err(violation) => {
            eprintln!(
                "{violation}\n  replay: cargo run -p exoskel-sim --example system -- --seed {seed}"
            );
            None
        }
    }
}
