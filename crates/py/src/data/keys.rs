//! Keys that are meant to collide.
//!
//! Python's hashes of numbers and tuples have no secret, so a stranger can choose keys that all look for the same places of a
//! dict or set: inserting n of them takes n^2 steps. The tables below take the steps that CPython (3.8 to 3.14) would take,
//! and count them, before it does.

/// Keys of which a container may have so many without anybody counting: all of them in one place cost less than their message.
pub(super) const UNCOUNTED_MAX: usize = 8;

/// The same for keys whose hashes have a secret (text and bytes): it may have been given away (`PYTHONHASHSEED`).
pub(super) const UNCOUNTED_TEXTS_MAX: usize = 1024;

/// Steps for each key on average, at most. Honest keys take less than three, growth included; multiples of a large power of 2 (offsets of
/// pages) more than a hundred in a set, which is still less than a microsecond.
const STEPS_PER_KEY_MAX: u64 = 192;

/// Steps that any container may take.
const STEPS_MIN: u64 = 1024;

/// Comparisons of keys with equal hashes that any container may need, besides one for each key. (-1 and -2 have one hash, and so
/// have tuples with them.)
const COMPARISONS_MIN: u64 = 64;

/// A slot that is free. No object has this hash: Python keeps it for errors.
const FREE: isize = -1;

/// How a table looks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyedContainer {
    Dict,
    Set,
}

/// Counts the steps of insertions into one container.
#[derive(Debug)]
pub(super) struct Collisions {
    kind: KeyedContainer,
    slots: Vec<isize>,
    hashes: Vec<isize>,
    steps: u64,
    comparisons: u64,
}

impl Collisions {
    pub(super) fn new(kind: KeyedContainer) -> Self {
        Self {
            kind,
            slots: vec![FREE; 8],
            hashes: Vec::new(),
            steps: 0,
            comparisons: 0,
        }
    }

    /// Notes a key's hash. Says whether the container is still cheap to fill.
    pub(super) fn insert(&mut self, hash: isize) -> bool {
        if self.is_full() {
            self.grow();
        }
        self.place(hash);
        self.hashes.push(hash);
        let count = self.hashes.len() as u64;
        self.steps <= STEPS_MIN + STEPS_PER_KEY_MAX * count
            && self.comparisons <= COMPARISONS_MIN + count
    }

    fn is_full(&self) -> bool {
        let (used, size) = (self.hashes.len(), self.slots.len());
        match self.kind {
            KeyedContainer::Dict => used >= size * 2 / 3,
            KeyedContainer::Set => used * 5 >= (size - 1) * 3,
        }
    }

    fn grow(&mut self) {
        let used = self.hashes.len();
        let wanted = match self.kind {
            KeyedContainer::Dict => used * 3,
            KeyedContainer::Set if used > 50_000 => used * 2 + 1,
            KeyedContainer::Set => used * 4 + 1,
        };
        self.slots.clear();
        self.slots.resize(wanted.next_power_of_two().max(8), FREE);
        // Equal hashes aren't compared again when a table grows.
        let comparisons = self.comparisons;
        for index in 0..used {
            self.place(self.hashes[index]);
        }
        self.comparisons = comparisons;
    }

    fn place(&mut self, hash: isize) {
        let mask = self.slots.len() - 1;
        let mut perturb = hash as usize;
        let mut position = perturb & mask;
        loop {
            let run = match self.kind {
                KeyedContainer::Set if position + LINEAR_PROBES <= mask => LINEAR_PROBES,
                _ => 0,
            };
            for slot in position..=position + run {
                self.steps += 1;
                if self.slots[slot] == FREE {
                    self.slots[slot] = hash;
                    return;
                }
                self.comparisons += u64::from(self.slots[slot] == hash);
            }
            if self.steps > STEPS_MIN + STEPS_PER_KEY_MAX * (self.hashes.len() as u64 + 1) {
                // Dear already: what follows doesn't matter.
                return;
            }
            perturb >>= PERTURB_SHIFT;
            position = position
                .wrapping_mul(5)
                .wrapping_add(perturb)
                .wrapping_add(1)
                & mask;
        }
    }
}

/// As in CPython's `setobject.c`.
const LINEAR_PROBES: usize = 9;

/// As in CPython's `dictobject.c` and `setobject.c`.
const PERTURB_SHIFT: u32 = 5;
