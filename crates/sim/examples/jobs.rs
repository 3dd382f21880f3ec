//! Plays jobs in virtual time: `--seed N` one seed with what it was made of, `--from N --count K` many. Each is played twice: the same seed
//! must give the same report.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line stands outside of what it runs"
)]

use std::process::ExitCode;

use exoskel_sim::jobs::{JobsScenario, play_twice};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        arguments.get(position + 1)?.parse::<u64>().ok()
    };
    let (first, count) = match value("--seed") {
        Some(seed) => {
            println!("{:#?}", JobsScenario::from_seed(seed));
            (seed, 1)
        }
        None => (
            value("--from").unwrap_or(1),
            value("--count").unwrap_or(100),
        ),
    };
    let mut failed = 0;
    for seed in first..first.saturating_add(count) {
        match play_twice(&JobsScenario::from_seed(seed)) {
            Ok(report) if count == 1 => println!("{report:#?}"),
            Ok(_) => {}
            Err(broken) => {
                failed += 1;
                eprintln!(
                    "{broken}\n  replay: cargo run -p exoskel-sim --example jobs -- --seed {seed}"
                );
            }
        }
    }
    println!("{count} seeds from {first}, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
