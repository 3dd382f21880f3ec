//! How long runs wait for a slot when none is left.

use std::time::Duration;

/// Time is looked at this often while a run waits. What passes between two looks counts for no more than this: a process that
/// stood still, or a laptop that slept, has not waited.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// The time that runs have waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    waited: Duration,
    looked_at: Option<Duration>,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            waited: Duration::ZERO,
            looked_at: None,
        }
    }

    /// A run waits now; says whether that is for too long.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        if let Some(before) = self.looked_at.replace(now) {
            self.waited += now.saturating_sub(before).min(LOOK_TIME);
        }
        self.waited >= self.limit
    }

    /// No run waits for now.
    pub(super) fn pause(&mut self) {
        self.looked_at = None;
    }

    /// A slot works, or everybody was told.
    pub(super) fn renew(&mut self) {
        *self = Self::new(self.limit);
    }

    /// When to look again.
    pub(super) fn look_at(&self) -> Option<Duration> {
        let left = self.limit.saturating_sub(self.waited);
        Some(self.looked_at? + left.min(LOOK_TIME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_process_stood_still_is_not_waited() {
        let mut patience = Patience::new(Duration::from_secs(3));
        let second = Duration::from_secs(1);
        assert!(!patience.is_over(second));
        assert_eq!(patience.look_at(), Some(second * 2));
        assert!(!patience.is_over(second * 100));
        assert!(!patience.is_over(second * 101));
        assert!(patience.is_over(second * 102));
        patience.renew();
        assert_eq!(patience.look_at(), None);
        assert!(!patience.is_over(second * 103));
    }
}
