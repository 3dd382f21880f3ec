//! When a place that failed is asked again.

use std::time::Duration;

use exoskel_determinism::SplitMix64;

/// The first pause after a failure.
pub const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause: a worker that is back is asked within this time.
pub const PAUSE_MAX: Duration = Duration::from_secs(3);

/// A pause is shorter than this by up to a quarter, so that managers that lost a worker together don't come back together.
const SHORTER_BY_MAX: u32 = 4;

/// The pauses of one place. They double with each failure in a row and count from the start of the attempt: one that takes
/// longer than its pause is followed by the next one at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// The longest pause.
    pause_max: Duration,
    /// Failures in a row.
    failures: u32,
    /// When the last attempt began.
    began_at: Duration,
    /// The failures of attempts that ran side by side count once.
    is_counted: bool,
    /// Not before this time.
    next_at: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(PAUSE_MAX)
    }
}

impl Backoff {
    /// With pauses of at most so long.
    pub(crate) fn up_to(pause_max: Duration) -> Self {
        Self {
            pause_max,
            failures: 0,
            began_at: Duration::ZERO,
            is_counted: false,
            next_at: Duration::ZERO,
        }
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.began_at = now;
        self.is_counted = false;
    }

    /// An attempt has failed.
    pub(crate) fn failed(&mut self, now: Duration, random: &mut SplitMix64) {
        if std::mem::replace(&mut self.is_counted, true) {
            return;
        }
        let doubled = PAUSE_MIN.saturating_mul(1 << self.failures.min(16));
        let pause = doubled.min(self.pause_max);
        let pause = random.between(pause - pause / SHORTER_BY_MAX, pause);
        self.failures = self.failures.saturating_add(1);
        self.next_at = now.max(self.began_at + pause);
    }

    /// An attempt has succeeded.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// What was had there is gone: it is asked again, but not without a pause.
    pub(super) fn rest(&mut self, now: Duration) {
        self.next_at = self.next_at.max(now + PAUSE_MIN);
    }

    /// Something is known that makes another attempt worth while now.
    pub(super) fn hurry(&mut self, now: Duration) {
        self.next_at = now;
    }

    /// Failures in a row: as long as there are any, one attempt is enough to find out.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Not before this time.
    pub(crate) fn next_at(&self) -> Duration {
        self.next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let (mut random, mut backoff) = (SplitMix64::new(1), Backoff::default());
        let mut now = Duration::ZERO;
        let mut expected = PAUSE_MIN;
        for _ in 0..40 {
            backoff.begin(now);
            backoff.failed(now, &mut random);
            let pause = backoff.next_at() - now;
            assert!(pause <= expected && pause >= expected * 3 / 4, "{pause:?}");
            now = backoff.next_at();
            expected = (expected * 2).min(PAUSE_MAX);
        }
        backoff.succeeded();
        backoff.begin(now);
        backoff.failed(now, &mut random);
        assert!(backoff.next_at() <= now + PAUSE_MIN);
    }

    #[test]
    fn attempts_side_by_side_fail_once_and_a_long_one_is_followed_at_once() {
        let (mut random, mut backoff) = (SplitMix64::new(1), Backoff::default());
        (0..8).for_each(|_| backoff.begin(Duration::ZERO));
        let late = Duration::from_secs(5);
        (0..8).for_each(|_| backoff.failed(late, &mut random));
        assert_eq!((backoff.failures(), backoff.next_at()), (1, late));
    }
}
