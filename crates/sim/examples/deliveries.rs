//! Crashes runs with a journal: `--seed N` those of one seed, `--from N --crashes K` of as many seeds as it takes.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line stands outside of what it runs"
)]

use std::process::ExitCode;
use std::time::Instant;

use exoskel_sim::deliveries::{ResultForm, crash_everywhere};

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
    let (mut crashes, mut found, mut many, mut folds) = (0, 0, 0, 0);
    let (mut played, mut failed) = (0, 0);
    while crashes < wanted && failed < 10 {
        for form in ResultForm::ALL {
            match crash_everywhere(first + played, form, None) {
                Ok(report) => {
                    crashes += report.crashes;
                    found += report.early_found;
                    many += report.many_continued;
                    folds += report.folds_continued;
                }
                Err(what) => {
                    eprintln!("{what}");
                    failed += 1;
                }
            }
        }
        played += 1;
    }
    println!(
        "{crashes} crashes of {played} runs from seed {first} in {:.1} s, {found} early results found again, {many} runs with many results an item and {folds} folds went on, {failed} failed",
        begun.elapsed().as_secs_f64()
    );
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
