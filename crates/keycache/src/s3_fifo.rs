//! S3-FIFO, a replacement policy that the study compares with those of the runtime.

use exoskel_link::keys::{Geometry, Replacement, Rings};
use hashbrown::HashTable;

/// The uses that S3-FIFO distinguishes.
const USES_MAX: u8 = 3;
/// The uses from which a key moves from the small queue to the main one.
const USES_TO_STAY: u8 = 2;
/// The part of a set's ways that the small queue has, at least one.
const SMALL_PART: u32 = 10;

/// S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023): a key enters a small
/// queue, a tenth of the ways. If it was used twice or more until it reaches its end, it moves to the main queue, else it goes and a
/// ghost of it stays: a key that has one enters the main queue at once. In the main queue a used key goes round again, one
/// use poorer. There are as many ghosts as places in the main queue.
pub struct S3Fifo {
    /// Each set has two rings: small and main.
    rings: Rings,
    small_len: Vec<u32>,
    small_max: u32,
    is_small: Vec<bool>,
    uses: Vec<u8>,
    identities: Vec<u64>,
    ghosts: Ghosts,
}

impl S3Fifo {
    fn small(set: u32) -> u32 {
        2 * set
    }

    fn main(set: u32) -> u32 {
        2 * set + 1
    }
}

impl Replacement for S3Fifo {
    fn new(geometry: &Geometry) -> Self {
        let entries = geometry.entries();
        let ways = geometry.ways() as u32;
        let small_max = (ways / SMALL_PART).max(1);
        Self {
            rings: Rings::new(entries, 2 * geometry.sets()),
            small_len: vec![0; geometry.sets()],
            small_max,
            is_small: vec![false; entries],
            uses: vec![0; entries],
            identities: vec![0; entries],
            ghosts: Ghosts::new(geometry.sets(), ways - small_max),
        }
    }

    fn filled(&mut self, set: u32, slot: u32, identity: u64) {
        let known = self.ghosts.take(identity);
        self.uses[slot as usize] = 0;
        self.identities[slot as usize] = identity;
        self.is_small[slot as usize] = !known;
        if known {
            self.rings.push_newest(Self::main(set), slot);
        } else {
            self.rings.push_newest(Self::small(set), slot);
            self.small_len[set as usize] += 1;
        }
    }

    fn used(&mut self, _set: u32, slot: u32) {
        let uses = &mut self.uses[slot as usize];
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn removed(&mut self, set: u32, slot: u32) {
        self.rings.unlink(slot);
        if self.is_small[slot as usize] {
            self.small_len[set as usize] -= 1;
        }
    }

    fn victim(&mut self, set: u32) -> u32 {
        // Ends: each turn without a victim shortens the small queue or takes a use from a key of the main one.
        loop {
            let main = self.rings.oldest(Self::main(set));
            let from_small = self.small_len[set as usize] >= self.small_max
                || main == self.rings.head(Self::main(set));
            let slot = if from_small {
                self.rings.oldest(Self::small(set))
            } else {
                main
            };
            self.rings.unlink(slot);
            let uses = &mut self.uses[slot as usize];
            if from_small {
                self.small_len[set as usize] -= 1;
                if *uses < USES_TO_STAY {
                    self.ghosts.add(set, self.identities[slot as usize]);
                    return slot;
                }
                *uses = 0;
                self.is_small[slot as usize] = false;
            } else if *uses == 0 {
                return slot;
            } else {
                *uses -= 1;
            }
            self.rings.push_newest(Self::main(set), slot);
        }
    }
}

/// The identities of keys that went from the small queues lately.
struct Ghosts {
    per_set: u32,
    next: Vec<u32>,
    identities: Vec<u64>,
    /// Positions in `identities`, found by what stands there.
    index: HashTable<u32>,
}

impl Ghosts {
    fn new(sets: usize, per_set: u32) -> Self {
        let all = sets * per_set as usize;
        Self {
            per_set,
            next: vec![0; sets],
            identities: vec![0; all],
            index: HashTable::with_capacity(2 * all),
        }
    }

    /// Whether there was a ghost of this key; it is gone now.
    fn take(&mut self, identity: u64) -> bool {
        let identities = &self.identities;
        self.index
            .find_entry(identity, |&position| {
                identities[position as usize] == identity
            })
            .map(|entry| entry.remove())
            .is_ok()
    }

    /// Adds a ghost in place of the set's oldest.
    fn add(&mut self, set: u32, identity: u64) {
        if self.per_set == 0 {
            return;
        }
        let next = &mut self.next[set as usize];
        let position = set * self.per_set + *next;
        *next = (*next + 1) % self.per_set;
        let oldest = self.identities[position as usize];
        if let Ok(entry) = self.index.find_entry(oldest, |&held| held == position) {
            entry.remove();
        }
        self.identities[position as usize] = identity;
        let identities = &self.identities;
        self.index.insert_unique(identity, position, |&position| {
            identities[position as usize]
        });
    }
}
