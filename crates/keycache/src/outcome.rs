//! What came out of a run.

use hdrhistogram::Histogram;

use crate::time::Picoseconds;

/// Everything that a run says. Times are picoseconds of virtual time; counts are over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    /// Whether all jobs have ended and all their messages have arrived; if not, the rest says how far it got.
    pub finished: bool,
    /// The run's.
    pub seed: u64,
    /// In the order in which they were given.
    pub jobs: Vec<JobOutcome>,
    /// When the last job ended.
    pub completion_ps: u64,
    /// Messages that were delivered.
    pub messages: u64,
    /// Packets that left the receiving card; 0 at message level.
    pub packets: u64,
    /// Payload of the messages that were delivered.
    pub payload_bytes: u64,
    /// From the first bit's way into the sending card to the last bit's way out of the receiving card, with all waiting in between.
    pub packet_latency: Latency,
    /// From the process's call (or from the receiver's, if a large message had to wait for that) to the last packet's way out of the receiving card.
    pub message_latency: Latency,
    /// Lookups of keys, in both directions: hits, prefetch hits and misses together.
    pub lookups: u64,
    /// Lookups that found the key in the cache. The sources without cache have none.
    pub hits: u64,
    /// Lookups that found it in the prefetch buffer.
    pub prefetch_hits: u64,
    /// Lookups that found it nowhere: what the key memory, or a derivation, had to give.
    pub misses: u64,
    /// Hits on a key that was still on its way from the key memory, and waited for it.
    pub joined_fetches: u64,
    /// Keys that had to make room for others in the cache.
    pub evictions: u64,
    /// Keys that were fetched into the prefetch buffer.
    pub prefetches: u64,
    /// The memories outside the chips.
    pub key_memory: KeyMemoryOutcome,
    /// How often a processor changed to another process.
    pub context_switches: u64,
    /// Processor time of processes that waited for messages without blocking.
    pub spun_ps: u64,
    /// Processor time of computation.
    pub computed_ps: u64,
    /// Events that were handled.
    pub events: u64,
    /// A number for everything that happened, in its order: equal runs have equal digests, on every machine.
    pub digest: u64,
}

impl RunOutcome {
    /// The share of lookups that found their key in the cache or the prefetch buffer: 0..1, and 0 without lookups.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits + self.prefetch_hits, self.lookups)
    }

    /// The share that found it in the cache.
    pub fn cache_hit_rate(&self) -> f64 {
        share(self.hits, self.lookups)
    }

    /// The share that found it in the prefetch buffer.
    pub fn prefetch_hit_rate(&self) -> f64 {
        share(self.prefetch_hits, self.lookups)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// One job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutcome {
    /// Its trace.
    pub name: String,
    /// When its first process began.
    pub started_ps: u64,
    /// When its last process ended; 0 if it hasn't.
    pub completed_ps: u64,
}

/// Times of many things of a kind. The mean and the longest one are exact, percentiles are within a thousandth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Rounded down.
    pub mean_ps: u64,
    /// Half of them took no longer.
    pub p50_ps: u64,
    /// 99 of 100 took no longer.
    pub p99_ps: u64,
    /// The longest.
    pub max_ps: u64,
}

/// What the memories outside the chips had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyMemoryOutcome {
    /// Accesses, with those of prefetching.
    pub accesses: u64,
    /// How long an access that a packet needed waited for others, in the mean.
    pub waited_mean_ps: u64,
    /// And at most.
    pub waited_max_ps: u64,
    /// Time of all accesses together.
    pub busy_ps: u64,
}

/// Collects a [`Latency`].
#[derive(Clone, Debug)]
pub(crate) struct LatencyRecorder {
    histogram: Histogram<u64>,
    sum_ps: u128,
    longest: Picoseconds,
}

/// Percentiles are no finer than this.
const NANOSECOND_PS: u64 = 1_000;
/// Nor than one part in a thousand.
const DIGITS: u8 = 3;
/// Longer times count as this one in the percentiles: 18 minutes.
const PERCENTILE_PS_MAX: u64 = 1 << 50;

impl LatencyRecorder {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(NANOSECOND_PS, PERCENTILE_PS_MAX, DIGITS);
        Self {
            histogram: histogram.unwrap_or_else(|_| unreachable!("these constants are in range")),
            sum_ps: 0,
            longest: Picoseconds::ZERO,
        }
    }

    pub(crate) fn record(&mut self, time: Picoseconds) {
        self.histogram.saturating_record(time.0);
        self.sum_ps += u128::from(time.0);
        self.longest = self.longest.max(time);
    }

    pub(crate) fn summary(&self) -> Latency {
        let count = self.histogram.len();
        if count == 0 {
            return Latency::default();
        }
        let percentile = |share| self.histogram.value_at_quantile(share).min(self.longest.0);
        Latency {
            count,
            mean_ps: (self.sum_ps / u128::from(count)) as u64,
            p50_ps: percentile(0.5),
            p99_ps: percentile(0.99),
            max_ps: self.longest.0,
        }
    }
}
