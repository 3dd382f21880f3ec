//! A bounded cache, n-way set associative, with a choice of replacement policies.

use hashbrown::HashTable;

use super::geometry::{CacheKey, Geometry, KeyPlace};
use super::replacement::{LeastRecentlyUsed, Replacement};

/// "No slot" in the list of free ones.
const NONE: u32 = u32::MAX;

/// What a cache has done since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Counters {
    /// Lookups that found their key in the cache.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Keys that had to make room for others.
    pub evictions: u64,
}

impl Counters {
    /// All lookups.
    pub fn lookups(&self) -> u64 {
        self.hits + self.misses
    }
}

/// A key that a lookup didn't find, and where it belongs: its owner goes on from there. Good until the key comes in.
#[derive(Clone, Copy)]
pub struct Absent<K> {
    key: K,
    place: KeyPlace,
}

/// A bounded cache. It allocates when it is made and never again.
///
/// One index over all entries finds a key in constant time whatever the associativity; the sets only bound what a new key may replace.
///
/// # Security
/// A value is dropped or handed out when its key is evicted, removed or replaced: values that are secrets have to erase themselves
/// when dropped.
pub struct Cache<K, V, P = LeastRecentlyUsed> {
    geometry: Geometry,
    index: HashTable<u32>,
    slots: Vec<Option<(K, V)>>,
    /// The first free slot of each set, and behind each free slot the next one.
    first_free: Vec<u32>,
    next_free: Vec<u32>,
    policy: P,
    counters: Counters,
}

impl<K: CacheKey, V, P: Replacement> Cache<K, V, P> {
    /// An empty cache.
    pub fn new(geometry: Geometry) -> Self {
        let entries = geometry.entries();
        let last_of_set = |slot: u32| (slot + 1).is_multiple_of(geometry.ways);
        Self {
            geometry,
            // Twice the entries: then the table clears what removals leave behind in place, and never grows.
            index: HashTable::with_capacity(2 * entries),
            slots: (0..entries).map(|_| None).collect(),
            first_free: (0..geometry.sets).map(|set| set * geometry.ways).collect(),
            next_free: (0..entries as u32)
                .map(|slot| if last_of_set(slot) { NONE } else { slot + 1 })
                .collect(),
            policy: P::new(&geometry),
            counters: Counters::default(),
        }
    }

    /// Its size and shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Looks a key up, which counts and makes it recently used.
    pub fn get(&mut self, key: K) -> Option<&mut V> {
        self.look_up(key).ok()
    }

    /// Looks a key up without a trace.
    pub fn peek(&self, key: K) -> Option<&V> {
        let slot = self.slot_of(self.geometry.place(key), key)?;
        self.slots[slot as usize].as_ref().map(|(_, value)| value)
    }

    /// Whether it holds the key; leaves no trace.
    pub fn contains(&self, key: K) -> bool {
        self.slot_of(self.geometry.place(key), key).is_some()
    }

    /// Puts a value in, in place of the one that this key had, else of the one that the policy gives up if the key's set is full.
    /// Gives what had to go; only the latter counts as an eviction.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let place = self.geometry.place(key);
        if let Some(slot) = self.slot_of(place, key) {
            self.policy.used(place.set, slot);
            return self.slots[slot as usize].replace((key, value));
        }
        self.fill(Absent { key, place }, value)
    }

    /// The key, if it isn't there; leaves no trace.
    pub fn absent(&self, key: K) -> Option<Absent<K>> {
        let place = self.geometry.place(key);
        let is_there = self.slot_of(place, key).is_some();
        (!is_there).then_some(Absent { key, place })
    }

    /// Makes room for a key that isn't there: gives what [`Self::insert`] would evict for it, so that its value can be used again.
    pub fn make_room(&mut self, absent: &Absent<K>) -> Option<(K, V)> {
        self.make_room_in(absent.place.set)
    }

    /// Takes a value out. That is no eviction.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let place = self.geometry.place(key);
        let slot = self.slot_of(place, key)?;
        let (_, value) = self.vacate(slot, place)?;
        self.policy.removed(place.set, slot);
        self.free(place.set, slot);
        Some(value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().flatten().map(|(_, value)| value)
    }

    pub(super) fn add_hits(&mut self, hits: u64) {
        self.counters.hits += hits;
    }

    /// As [`Self::get`]; a key that isn't there comes back as what [`Self::fill`] takes.
    pub(super) fn look_up(&mut self, key: K) -> Result<&mut V, Absent<K>> {
        let place = self.geometry.place(key);
        let Some(slot) = self.slot_of(place, key) else {
            self.counters.misses += 1;
            return Err(Absent { key, place });
        };
        self.counters.hits += 1;
        self.policy.used(place.set, slot);
        let held = self.slots[slot as usize].as_mut();
        Ok(&mut held.expect("a slot that was just found is filled").1)
    }

    /// Puts in the value of a key that isn't there, in place of the one that the policy gives up if the key's set is full.
    pub(super) fn fill(&mut self, absent: Absent<K>, value: V) -> Option<(K, V)> {
        let Absent { key, place } = absent;
        debug_assert!(self.slot_of(place, key).is_none(), "the key came in since");
        let evicted = self.make_room_in(place.set);
        let slot = self.first_free[place.set as usize];
        self.first_free[place.set as usize] = self.next_free[slot as usize];
        self.slots[slot as usize] = Some((key, value));
        let slots = &self.slots;
        let geometry = &self.geometry;
        self.index.insert_unique(place.identity, slot, |&slot| {
            // Every slot in the index is taken, so the other arm is never reached; it needs no value that could be wrong.
            slots[slot as usize]
                .as_ref()
                .map_or(0, |(key, _)| geometry.place(*key).identity)
        });
        self.policy.filled(place.set, slot, place.identity);
        evicted
    }

    fn slot_of(&self, place: KeyPlace, key: K) -> Option<u32> {
        let slots = &self.slots;
        self.index
            .find(
                place.identity,
                |&slot| matches!(&slots[slot as usize], Some((held, _)) if *held == key),
            )
            .copied()
    }

    /// Evicts from a set that is full.
    fn make_room_in(&mut self, set: u32) -> Option<(K, V)> {
        if self.first_free[set as usize] != NONE {
            return None;
        }
        let slot = self.policy.victim(set);
        self.counters.evictions += 1;
        let key = self.slots[slot as usize].as_ref().map(|(key, _)| *key)?;
        let evicted = self.vacate(slot, self.geometry.place(key));
        self.free(set, slot);
        evicted
    }

    fn free(&mut self, set: u32, slot: u32) {
        self.next_free[slot as usize] = self.first_free[set as usize];
        self.first_free[set as usize] = slot;
    }

    /// Takes slot and index entry apart; the policy and the list of free slots are the caller's.
    fn vacate(&mut self, slot: u32, place: KeyPlace) -> Option<(K, V)> {
        if let Ok(entry) = self.index.find_entry(place.identity, |&held| held == slot) {
            entry.remove();
        }
        self.slots[slot as usize].take()
    }
}
