//! A run that is played twice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::violation::Violation;

/// Plays a run, and a panic of what is played is a broken promise as any other.
pub(crate) fn guarded<Report>(
    seed: u64,
    play: impl FnOnce() -> Result<Report, Violation>,
) -> Result<Report, Violation> {
    catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = format!("panicked: {}", text.unwrap_or("no text"));
        Err(whole_run(seed, what))
    })
}

/// Plays a run twice: both plays must have the same report. `digest` shows in the text how two plays differ.
pub(crate) fn twice<Report: PartialEq>(
    seed: u64,
    play: impl Fn() -> Result<Report, Violation>,
    digest: impl Fn(&Report) -> u64,
) -> Result<Report, Violation> {
    let first = guarded(seed, &play)?;
    let what = match guarded(seed, &play) {
        Ok(second) if second == first => return Ok(first),
        Ok(second) => format!(
            "two plays differ: digests {:016x} and {:016x}",
            digest(&first),
            digest(&second)
        ),
        Err(broken) => format!("two plays differ, the second one broke a promise: {broken}"),
    };
    Err(whole_run(seed, what))
}

/// What no single event shows.
fn whole_run(seed: u64, what: String) -> Violation {
    Violation {
        seed,
        step: 0,
        at: Duration::ZERO,
        what,
    }
}
