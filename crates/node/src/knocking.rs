//! How a worker's slot asks a manager that it dials: when it tries again, and what its owner is told.
//!
//! One slot of a worker asks at a time. So the pauses are the worker's, and what is wrong is said once.

use std::time::Duration;

use exoskel_determinism::SplitMix64;

use crate::manager::backoff::Backoff;

/// The longest pause between two attempts: a manager that is back is asked within this time.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The attempts of one slot.
#[derive(Debug)]
pub struct Knocking {
    backoff: Backoff,
    random: SplitMix64,
    /// Why the last attempt failed, as it was told.
    told: Option<String>,
}

impl Knocking {
    /// A slot that has not tried yet. `seed`: of the pauses, which differ from one worker to the next.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            backoff: Backoff::up_to(PAUSE_MAX),
            random: SplitMix64::new(seed),
            told: None,
        }
    }

    /// An attempt begins.
    pub fn begin(&mut self, now: Duration) {
        self.backoff.begin(now);
    }

    /// An attempt has failed. Gives what there is to tell: nothing when the one before failed in the same way.
    pub fn failed(&mut self, now: Duration, reason: String) -> Option<&str> {
        self.backoff.failed(now, &mut self.random);
        if self.told.as_ref() == Some(&reason) {
            return None;
        }
        Some(self.told.insert(reason))
    }

    /// When to try again.
    #[must_use]
    pub fn next_at(&self) -> Duration {
        self.backoff.next_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::backoff::PAUSE_MIN;

    /// Aim: a manager that is away for hours is asked twice a minute, and its absence is one line in the log.
    #[test]
    fn pauses_grow_to_half_a_minute_and_each_reason_is_told_once() {
        let mut knocking = Knocking::new(7);
        let (mut now, mut told, mut pauses) = (Duration::ZERO, Vec::new(), Vec::new());
        for attempt in 0..40 {
            knocking.begin(now);
            let reason = if attempt < 30 { "refused" } else { "no route" };
            told.extend(knocking.failed(now, reason.to_owned()).map(str::to_owned));
            pauses.push(knocking.next_at() - now);
            now = knocking.next_at();
        }
        assert_eq!(told, ["refused", "no route"]);
        assert!(pauses[0] <= PAUSE_MIN);
        let last = &pauses[20..];
        assert!(
            last.iter()
                .all(|pause| (PAUSE_MAX * 3 / 4..=PAUSE_MAX).contains(pause))
        );
        assert!(
            last.windows(2).any(|pair| pair[0] != pair[1]),
            "they differ"
        );
    }
}
