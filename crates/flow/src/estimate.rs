//! How long an item takes and how large a result is, learned from answers.

/// How much one sample may lift an estimate: an item that is slow among fast ones must not fool the scheduler.
const RISE_MAX: u64 = 4;

/// As long as there are fewer samples, a lower one replaces the estimate: the first items pay for imports and cold caches.
const COLD_SAMPLES: u32 = 4;

/// Longer times count as this (about two years), so that sums never overflow.
const NANOS_MAX: u64 = 1 << 56;

/// A sample is no farther from the average than this many times the average, where it is about how far they are.
const SPREAD_MAX: u64 = 8;

/// A moving average of the time of one item, and of how far times are from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    nanos: u64,
    samples: u32,
    /// In square nanoseconds.
    variance: f64,
}

impl Estimate {
    /// Learns from `count` items that took `nanos` together. No time at all means that nobody measured.
    pub(crate) fn observe(&mut self, nanos: u64, count: u32) {
        if nanos == 0 || count == 0 {
            return;
        }
        let sample = (nanos / u64::from(count)).clamp(1, NANOS_MAX);
        if self.samples >= COLD_SAMPLES {
            let most = self.nanos.saturating_mul(SPREAD_MAX);
            let distance = sample.abs_diff(self.nanos).min(most) as f64;
            // The mean of several is nearer to the average than each of them is.
            let square = distance * distance * f64::from(count);
            self.variance += (square - self.variance) / 8.0;
        }
        self.nanos = match self.samples {
            0 => sample,
            samples if samples < COLD_SAMPLES && sample < self.nanos => sample,
            _ if sample < self.nanos => self.nanos - (self.nanos - sample).div_ceil(4),
            _ => {
                self.nanos
                    + (sample.min(self.nanos.saturating_mul(RISE_MAX)) - self.nanos).div_ceil(4)
            }
        };
        self.samples = self.samples.saturating_add(1);
    }

    /// Nanoseconds of one item, once the first items no longer count.
    pub(crate) fn settled(&self) -> Option<u64> {
        (self.samples >= COLD_SAMPLES).then_some(self.nanos)
    }

    /// How long an item that runs when somebody looks goes on, on average: E[S^2] / 2 E[S], which is half of the time if all take the same,
    /// and all of it if times are exponential.
    pub(crate) fn residual(&self) -> u64 {
        let mean = self.nanos.max(1) as f64;
        ((self.variance + mean * mean) / (2.0 * mean)) as u64
    }

    /// Nanoseconds of one item, once there was an answer.
    pub(crate) fn nanos(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.nanos)
    }
}

/// The least of the last few times. Some take longer by chance, since a process waits for its turn or a result for
/// the next one; none is shorter than it must be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Least {
    nanos: u64,
    /// Of the samples since the least of earlier ones was forgotten.
    recent: u64,
    samples: u32,
}

impl Least {
    /// Samples of which the least is taken.
    const SAMPLES: u32 = 8;

    /// Learns from one time, which is `at_most` an upper bound or exact.
    pub(crate) fn observe(&mut self, nanos: u64, at_most: bool) {
        if self.nanos == 0 && at_most {
            return;
        }
        self.recent = if self.samples == 0 {
            nanos
        } else {
            self.recent.min(nanos)
        };
        self.nanos = if self.nanos == 0 {
            nanos
        } else {
            self.nanos.min(nanos)
        };
        if at_most {
            return;
        }
        self.samples += 1;
        if self.samples == Self::SAMPLES {
            (self.nanos, self.samples) = (self.recent, 0);
        }
    }

    /// What is known, 0 as long as that is nothing.
    pub(crate) fn nanos(&self) -> u64 {
        self.nanos
    }
}

/// How long answers usually take that need no time themselves: on the way, and until somebody here looks at them. Unlike the round trip to
/// a slot it grows when there is more to do here than can be done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lag(u64);

impl Lag {
    /// Learns from one answer: nanoseconds, and whether that is an upper bound.
    pub(crate) fn observe(&mut self, seen: Option<(u64, bool)>) {
        let Some((seen, at_most)) = seen else {
            return;
        };
        let seen = seen.min(NANOS_MAX);
        self.0 = match (seen > self.0, at_most) {
            (true, true) => self.0,
            (true, false) => self.0 + (seen - self.0).div_ceil(2),
            (false, _) => self.0 - (self.0 - seen) / 8,
        };
    }

    /// What is known, 0 as long as that is nothing.
    pub(crate) fn nanos(&self) -> u64 {
        self.0
    }
}

/// What is known of one segment at one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotEstimate {
    pub(crate) time: Estimate,
    /// The most items a frame may have: grows with every finished frame, so that a wrong first guess costs little.
    pub(crate) items_max: u32,
}

impl SlotEstimate {
    /// How much a frame may outgrow the largest finished one.
    const GROWTH: u32 = 4;

    pub(crate) fn finished(&mut self, frame_items: u32) {
        self.items_max = self.items_max.max(frame_items.saturating_mul(Self::GROWTH));
    }
}

impl Default for SlotEstimate {
    fn default() -> Self {
        Self {
            time: Estimate::default(),
            items_max: 1,
        }
    }
}

/// A moving average of sizes. Rises faster than it falls, since its use is to keep memory bounded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    bytes: u64,
    known: bool,
}

impl Average {
    /// Learns from `count` sizes that are `total` together.
    pub(crate) fn observe(&mut self, total: u64, count: u64) {
        if count == 0 {
            return;
        }
        let sample = total / count;
        self.bytes = match (self.known, sample > self.bytes) {
            (false, _) => sample,
            (true, true) => self.bytes + (sample - self.bytes).div_ceil(2),
            (true, false) => self.bytes - (self.bytes - sample) / 8,
        };
        self.known = true;
    }

    /// The average, 0 while nothing is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: one slow item among fast ones moves the estimate by less than a factor of two; a lasting change gets through.
    #[test]
    fn a_slow_item_does_not_fool_the_estimate() {
        let mut estimate = Estimate::default();
        (0..10).for_each(|_| estimate.observe(100_000, 100));
        assert_eq!(estimate.nanos(), Some(1000));
        estimate.observe(10_000_000_000, 1);
        assert!(estimate.nanos().unwrap() < 2000);
        (0..40).for_each(|_| estimate.observe(10_000_000_000, 1));
        assert!(estimate.nanos().unwrap() > 9_000_000_000);
    }

    /// Aim: who comes to a running item waits for half of it if all take the same, for all of it if times are exponential. Method: the
    /// quantiles of that distribution in an order that has no trend, one by one and in frames.
    #[test]
    fn a_running_item_goes_on_for_longer_if_times_differ() {
        let (mut same, mut differ) = (Estimate::default(), Estimate::default());
        let mut sum = 0;
        for step in 0..4000_u64 {
            same.observe(1_000_000, 1);
            let share = ((step * 611) % 1000) as f64 / 1000.0 + 0.0005;
            differ.observe((-share.ln() * 1e6) as u64 + 1, 1);
            sum += u64::from(step >= 2000) * differ.residual();
        }
        assert_eq!(same.residual(), 500_000);
        let mean = sum / 2000;
        assert!((700_000..1_300_000).contains(&mean), "{mean}");
    }

    /// Aim: what takes longer by chance is passed over, what takes longer from now on is believed after a while.
    #[test]
    fn the_least_of_the_last_few_counts() {
        let mut least = Least::default();
        least.observe(500, true);
        assert_eq!(
            least.nanos(),
            0,
            "an upper bound of nothing known says nothing"
        );
        [900, 100, 700]
            .iter()
            .for_each(|nanos| least.observe(*nanos, false));
        assert_eq!(least.nanos(), 100);
        least.observe(80, true);
        least.observe(3000, true);
        assert_eq!(least.nanos(), 80);
        (0..2 * Least::SAMPLES).for_each(|_| least.observe(400, false));
        assert_eq!(least.nanos(), 400);
    }

    /// Aim: a slow first item (imports) is forgotten at once.
    #[test]
    fn a_cold_start_is_forgotten() {
        let mut estimate = Estimate::default();
        estimate.observe(500_000_000, 1);
        estimate.observe(1000, 1);
        assert_eq!(estimate.nanos(), Some(1000));
        estimate.observe(0, 5);
        assert_eq!(estimate.nanos(), Some(1000));
        estimate.observe(u64::MAX, 1);
        assert_eq!(estimate.nanos(), Some(1750));
    }
}
