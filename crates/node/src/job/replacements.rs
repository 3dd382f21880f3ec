//! When another slot of a manager takes the place of one that has ended, and when that is hopeless.

use std::collections::BTreeSet;
use std::time::Duration;

/// A slot that ends sooner than this after its start waits before another one is started, longer each time.
const HEALTHY: Duration = Duration::from_secs(2);
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often each slot may end that soon, one time after the other, before nobody waits any more.
const STARTS_MAX: u32 = 2;

/// The slots of a manager, by ranks, each of which is a process of a job.
#[derive(Debug)]
pub struct Replacements {
    slots: Vec<SlotHistory>,
    /// When the places of processes are taken: time, process, rank.
    due: BTreeSet<(Duration, u32, u32)>,
}

#[derive(Clone, Debug)]
struct SlotHistory {
    /// Since when it runs.
    begun: Option<Duration>,
    wait: Duration,
    /// How often it has ended soon, one time after the other.
    failed: u32,
    /// No host is left for it.
    has_no_host: bool,
    /// Nobody is wanted there.
    is_vacant: bool,
}

impl Replacements {
    /// So many slots that begin now.
    #[must_use]
    pub fn new(slots: u32, now: Duration) -> Self {
        let begun = SlotHistory {
            begun: Some(now),
            wait: Duration::ZERO,
            failed: 0,
            has_no_host: false,
            is_vacant: false,
        };
        Self {
            slots: vec![begun; slots as usize],
            due: BTreeSet::new(),
        }
    }

    /// The process that was the slot of this rank has ended.
    pub fn ended(&mut self, process: u32, rank: u32, now: Duration) {
        let Some(slot) = self.slots.get_mut(rank as usize) else {
            return;
        };
        let begun = slot.begun.take();
        if begun.is_none_or(|begun| now.saturating_sub(begun) >= HEALTHY) {
            (slot.wait, slot.failed) = (Duration::ZERO, 0);
            self.due.insert((now, process, rank));
            return;
        }
        slot.failed = slot.failed.saturating_add(1);
        slot.wait = (2 * slot.wait).clamp(WAIT_MIN, WAIT_MAX);
        self.due.insert((now + slot.wait, process, rank));
    }

    /// Nobody is wanted any more in the place of this rank, or not yet.
    pub fn vacate(&mut self, rank: u32) {
        if let Some(slot) = self.slots.get_mut(rank as usize) {
            slot.is_vacant = true;
            self.due.retain(|(_, _, due)| *due != rank);
        }
    }

    /// Somebody is started in a place that was vacant.
    pub fn occupy(&mut self, rank: u32, now: Duration) {
        if let Some(slot) = self.slots.get_mut(rank as usize) {
            (slot.is_vacant, slot.begun) = (false, Some(now));
            (slot.wait, slot.failed) = (Duration::ZERO, 0);
        }
    }

    /// The next process whose place is taken now; nothing before [`next_timeout`](Self::next_timeout), nor once that is hopeless.
    pub fn next_due(&mut self, now: Duration) -> Option<u32> {
        let (at, _, _) = self.due.first()?;
        if *at > now || self.is_hopeless(now) {
            return None;
        }
        let (_, process, rank) = self.due.pop_first()?;
        self.slots[rank as usize].begun = Some(now);
        Some(process)
    }

    /// There was no host for the slot of this rank.
    pub fn no_host(&mut self, rank: u32) {
        if let Some(slot) = self.slots.get_mut(rank as usize) {
            (slot.begun, slot.has_no_host) = (None, true);
        }
    }

    /// When a place is taken next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.due.first().map(|(at, _, _)| *at)
    }

    /// Whether slots end again and again as soon as they are started, or have no host any more, and none has been there for a while: nobody is
    /// to wait for one.
    #[must_use]
    pub fn is_hopeless(&self, now: Duration) -> bool {
        let is_healthy = |slot: &SlotHistory| {
            let begun = slot.begun;
            begun.is_some_and(|begun| now.saturating_sub(begun) >= HEALTHY)
        };
        let is_lost =
            |slot: &SlotHistory| slot.has_no_host || slot.failed >= STARTS_MAX && !is_healthy(slot);
        let mut wanted = self.slots.iter().filter(|slot| !slot.is_vacant);
        wanted.all(is_lost)
    }
}
