//! Replacement policies: which key of a full set goes.

use super::geometry::Geometry;
use super::rings::Rings;

/// A replacement policy over the slots of a cache. Slots are numbered set by set: set `s` has the slots `s * ways .. (s + 1) * ways`.
pub trait Replacement {
    /// The policy of an empty cache.
    fn new(geometry: &Geometry) -> Self;

    /// A new key stands in `slot` now. `identity` is the same whenever the same key comes.
    fn filled(&mut self, set: u32, slot: u32, identity: u64);

    /// The key in `slot` was found.
    fn used(&mut self, set: u32, slot: u32);

    /// The key in `slot` was taken out by the cache's owner.
    fn removed(&mut self, set: u32, slot: u32);

    /// The slot of `set`, all of whose slots are filled, that has to go. The policy counts it as empty from now on.
    fn victim(&mut self, set: u32) -> u32;
}

/// The key that was used longest ago goes.
pub struct LeastRecentlyUsed {
    rings: Rings,
}

impl Replacement for LeastRecentlyUsed {
    fn new(geometry: &Geometry) -> Self {
        Self {
            rings: Rings::new(geometry.entries(), geometry.sets()),
        }
    }

    fn filled(&mut self, set: u32, slot: u32, _identity: u64) {
        self.rings.push_newest(set, slot);
    }

    fn used(&mut self, set: u32, slot: u32) {
        if !self.rings.is_newest(set, slot) {
            self.rings.unlink(slot);
            self.rings.push_newest(set, slot);
        }
    }

    fn removed(&mut self, _set: u32, slot: u32) {
        self.rings.unlink(slot);
    }

    fn victim(&mut self, set: u32) -> u32 {
        let slot = self.rings.oldest(set);
        self.rings.unlink(slot);
        slot
    }
}

/// CLOCK (Corbató: "A paging experiment with the Multics system", 1968): a use leaves a mark; a hand goes round the set's slots, erases
/// marks, and stops at the first slot without one. A new key has no mark.
pub struct ClockPolicy {
    ways: u32,
    hands: Vec<u32>,
    marks: Vec<bool>,
}

impl Replacement for ClockPolicy {
    fn new(geometry: &Geometry) -> Self {
        Self {
            ways: geometry.ways() as u32,
            hands: vec![0; geometry.sets()],
            marks: vec![false; geometry.entries()],
        }
    }

    fn filled(&mut self, _set: u32, slot: u32, _identity: u64) {
        self.marks[slot as usize] = false;
    }

    fn used(&mut self, _set: u32, slot: u32) {
        self.marks[slot as usize] = true;
    }

    fn removed(&mut self, _set: u32, slot: u32) {
        self.marks[slot as usize] = false;
    }

    fn victim(&mut self, set: u32) -> u32 {
        let hand = &mut self.hands[set as usize];
        // Ends after one round at the latest, since it erases the marks that it passes.
        loop {
            let slot = set * self.ways + *hand;
            *hand = (*hand + 1) % self.ways;
            if !self.marks[slot as usize] {
                return slot;
            }
            self.marks[slot as usize] = false;
        }
    }
}
