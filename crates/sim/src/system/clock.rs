//! What a node's clock shows.

use std::time::Duration;

/// A clock that never goes back, as an operating system's monotonic one; it may run fast or slow and jump ahead, as after
/// a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    ahead: Duration,
    /// Parts per million that it is faster than time.
    drift: i32,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    pub(super) fn new(ahead: Duration, drift: i32) -> Self {
        Self { ahead, drift }
    }

    pub(super) fn jump(&mut self, by: Duration) {
        self.ahead += by;
    }

    /// What it shows at this time.
    pub(super) fn shows(&self, time: Duration) -> Duration {
        self.ahead + scaled(time, MILLION + i128::from(self.drift), MILLION)
    }

    /// When it shows this, at the latest.
    pub(super) fn when(&self, shown: Duration) -> Duration {
        let since = shown.saturating_sub(self.ahead);
        scaled(since, MILLION, MILLION + i128::from(self.drift)) + Duration::from_nanos(2)
    }
}

fn scaled(time: Duration, by: i128, of: i128) -> Duration {
    let nanos = time.as_nanos() as i128 * by / of.max(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_was_waited_for() {
        for drift in [-400, 0, 1, 399] {
            let mut clock = Clock::new(Duration::from_secs(7), drift);
            for nanos in [0, 1, 999, 1_000_000_007, 3_600_000_000_000] {
                let shown = clock.shows(Duration::from_nanos(nanos));
                assert!(clock.shows(clock.when(shown)) >= shown);
                assert!(clock.when(shown) <= Duration::from_nanos(nanos + 4));
            }
            clock.jump(Duration::from_secs(1));
            assert!(clock.shows(Duration::ZERO) == Duration::from_secs(8));
        }
    }
}
