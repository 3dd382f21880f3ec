//! Crashes runs with a journal: `--seed N` those of one seed, `--from N --crashes K` of as many seeds as it takes.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line stands outside of what it runs"
)]

use std::process::ExitCode;
use std::time::Instant;

use exoskel_sim::deliveries::crash_everywhere;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let position = arguments.iter().position(|argument| argument == name)?;
        arguments.get(position + 1)?.parse::<u64>().ok()
    };
    let seed = value("--seed");
    let first = seed.or_else(|| value("--from")).unwrap_or(1);
    let wanted = match seed {
        Some(_) => 1,
        None => value("--crashes").unwrap_or(100_000),
    };
    let begun = Instant::now();
    let (mut crashes, mut found, mut played, mut failed) = (0, 0, 0, 0);
    while crashes < wanted && failed < 10 {
        match crash_everywhere(first + played, None) {
            Ok(report) => {
                crashes += report.crashes;
                found += report.early_found;
            }
            Err(what) => {
                eprintln!("{what}");
                failed += 1;
            }
        }
        played += 1;
    }
    println!(
        "{crashes} crashes of {played} runs from seed {first} in {:.1} s, {found} early results found again, {failed} failed",
        begun.elapsed().as_secs_f64()
    );
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
