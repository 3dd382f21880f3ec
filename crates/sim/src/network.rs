//! How long a message is on the way.

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_link::Side;

/// What a wire is like, the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkModel {
    /// The least time from end to end.
    pub latency: Duration,
    /// A random time up to this comes on top.
    pub jitter: Duration,
    /// How fast bytes follow each other.
    pub bytes_per_second: u64,
}

/// Both machines in one room, or one machine.
impl Default for LinkModel {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(40),
            jitter: Duration::from_micros(20),
            bytes_per_second: 1 << 30,
        }
    }
}

/// A wire between two ends. What one end sends arrives in the order in which it was sent, as in any byte stream.
#[derive(Debug)]
pub(crate) struct ModelWire {
    model: LinkModel,
    random: SplitMix64,
    /// When the last message of each end is through.
    free: [Duration; 2],
    is_cut: bool,
}

impl ModelWire {
    pub(crate) fn new(model: LinkModel, seed: u64) -> Self {
        Self {
            model,
            random: SplitMix64::new(seed),
            free: [Duration::ZERO; 2],
            is_cut: false,
        }
    }

    /// Sends a message of that end, and says when it arrives; `None`: never, as the wire is cut.
    pub(crate) fn send(&mut self, from: Side, bytes: u64, now: Duration) -> Option<Duration> {
        if self.is_cut {
            return None;
        }
        let passing = bytes.saturating_mul(1_000_000_000) / self.model.bytes_per_second.max(1);
        let on_the_way =
            self.model.latency + self.random.between(Duration::ZERO, self.model.jitter);
        let free = &mut self.free[usize::from(from == Side::Server)];
        // The wire is taken while bytes pass; the latency of messages in a row overlaps.
        *free = (*free).max(now + on_the_way) + Duration::from_nanos(passing);
        Some(*free)
    }

    /// Cuts the wire: what is on the way arrives, nothing else does.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }
}
