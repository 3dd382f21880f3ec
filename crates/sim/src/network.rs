//! How long a message is on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exoskel_flow::SlotId;

use crate::random::SplitMix64;

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

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    ToSlot,
    ToManager,
}

/// The wires between the manager and its slots. Messages of one direction arrive in the order in which they were
/// sent, as in any byte stream.
#[derive(Debug)]
pub(crate) struct Network {
    model: LinkModel,
    random: SplitMix64,
    /// When the last message of a wire is through.
    free: BTreeMap<(SlotId, Direction), Duration>,
    closed: BTreeSet<SlotId>,
}

impl Network {
    pub(crate) fn new(model: LinkModel, seed: u64) -> Self {
        Self {
            model,
            random: SplitMix64::new(seed),
            free: BTreeMap::new(),
            closed: BTreeSet::new(),
        }
    }

    /// Sends a message, and says when it arrives.
    pub(crate) fn send(
        &mut self,
        slot: SlotId,
        direction: Direction,
        bytes: u64,
        now: Duration,
    ) -> Duration {
        let passing = bytes.saturating_mul(1_000_000_000) / self.model.bytes_per_second.max(1);
        let on_the_way =
            self.model.latency + self.random.between(Duration::ZERO, self.model.jitter);
        let free = self.free.entry((slot, direction)).or_default();
        // The wire is taken while bytes pass; the latency of messages in a row overlaps.
        *free = (*free).max(now + on_the_way) + Duration::from_nanos(passing);
        *free
    }

    /// The same on a wire that may be cut: then nothing arrives.
    pub(crate) fn send_if_open(
        &mut self,
        slot: SlotId,
        direction: Direction,
        bytes: u64,
        now: Duration,
    ) -> Option<Duration> {
        (!self.closed.contains(&slot)).then(|| self.send(slot, direction, bytes, now))
    }

    /// Cuts a wire: what is on the way arrives, nothing else does.
    pub(crate) fn close(&mut self, slot: SlotId) {
        self.closed.insert(slot);
    }

    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.free.remove(&(slot, Direction::ToSlot));
        self.free.remove(&(slot, Direction::ToManager));
    }
}
