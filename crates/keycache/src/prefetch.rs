//! A cache with a prefetch buffer beside it, which guesses the scheduler's next decision.

use exoskel_link::keys::{
    Cache, CacheKey, ENTRIES_MAX, Geometry, GeometryError, LeastRecentlyUsed, Replacement,
};
use thiserror::Error;

/// The evictions that wait for [`PrefetchingCache::settle`]; one more settles them at once.
const UNSETTLED_MAX: usize = 64;
/// The most keys of one group's list.
const FREQUENT_MAX: usize = 1024;

/// The size of the prefetch buffer and of what it learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefetchSettings {
    /// The keys that the buffer holds. With none, nothing is prefetched and no list is kept.
    pub buffer: usize,
    /// The groups whose frequent keys are remembered; the one that was used longest ago is forgotten for another.
    pub groups: usize,
    /// The keys that are remembered of each group.
    pub frequent: usize,
}

impl PrefetchSettings {
    /// No prefetching.
    pub const NONE: Self = Self {
        buffer: 0,
        groups: 0,
        frequent: 0,
    };
}

/// [`PrefetchSettings`] that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PrefetchError {
    /// The buffer has an impossible size.
    #[error("the prefetch buffer: {0}")]
    Buffer(#[source] GeometryError),
    /// A buffer without groups or without lists would never be filled, and lists have a limit.
    #[error("got {parameter} = {got}, expected 1 ..= {most} beside a prefetch buffer")]
    Parameter {
        /// Which one: `groups` or `frequent`.
        parameter: &'static str,
        /// What was asked for.
        got: usize,
        /// The most it may be.
        most: usize,
    },
}

/// What a cache and its buffer have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PrefetchingCounters {
    /// Lookups that found their key in the cache.
    pub hits: u64,
    /// Lookups that found it nowhere.
    pub misses: u64,
    /// Lookups that found it in the prefetch buffer.
    pub prefetch_hits: u64,
    /// Keys that had to make room for others.
    pub evictions: u64,
    /// Keys that were put into the prefetch buffer, whether they were used from there or not.
    pub prefetches: u64,
}

impl PrefetchingCounters {
    /// All lookups.
    pub fn lookups(&self) -> u64 {
        self.hits + self.misses + self.prefetch_hits
    }
}

/// A value with what has to be known about its key when it goes.
struct Held<G, V> {
    group: G,
    uses: u32,
    value: V,
}

/// A key's share in the traffic of its group.
#[derive(Clone, Copy)]
struct Frequent<K> {
    key: K,
    weight: u32,
}

/// A key that was evicted.
#[derive(Clone, Copy)]
struct EvictedKey<G, K> {
    group: G,
    key: K,
    uses: u32,
}

/// The buffer and what fills it.
struct Prefetching<G, K, V> {
    buffer: Cache<K, Held<G, V>>,
    /// Each group's frequent keys, the heaviest first.
    groups: Cache<G, Vec<Frequent<K>>>,
    frequent_max: usize,
    /// An empty list for the next new group; the group that makes room for it gives back another.
    spare: Vec<Frequent<K>>,
    unused: Vec<Vec<Frequent<K>>>,
    departures: Vec<EvictedKey<G, K>>,
    hits: u64,
    fills: u64,
}

/// The runtime's [`Cache`] with a prefetch buffer beside it (Lee, An, Kim 2010, section 3.3). Keys belong to groups: a process, a job.
///
/// On a message for a group that isn't active, its owner asks which keys are [wanted](Self::wanted), gets them, which may take
/// time, and [fills](Self::fill) the buffer. A lookup searches cache and buffer; a hit in the buffer moves the key into the cache.
/// Each eviction from the cache changes the list of its group's frequent keys, which is done by [`Self::settle`], off the hot path.
///
/// A key's weight in its group's list is the number of its uses while it was in the cache, plus half of its former weight. A list that is
/// full gives up its lightest key for a new one that is at least as heavy, and halves the lightest otherwise, so that nothing stays for ever.
/// The paper says that there is a list and not how it is kept.
pub struct PrefetchingCache<G, K, V, P = LeastRecentlyUsed> {
    cache: Cache<K, Held<G, V>, P>,
    prefetching: Option<Prefetching<G, K, V>>,
    /// By processor.
    active: Vec<Option<G>>,
}

impl<G: CacheKey, K: CacheKey, V: Copy, P: Replacement> PrefetchingCache<G, K, V, P> {
    /// An empty cache of this geometry with an empty buffer. No group is active.
    ///
    /// # Errors
    /// [`PrefetchError`] names the parameter that can't be.
    pub fn new(geometry: Geometry, settings: PrefetchSettings) -> Result<Self, PrefetchError> {
        let prefetching = match settings.buffer {
            0 => None,
            _ => Some(Prefetching::new(settings)?),
        };
        Ok(Self {
            cache: Cache::new(geometry),
            prefetching,
            active: Vec::new(),
        })
    }

    /// How many keys the cache and the buffer hold.
    pub fn held(&self) -> (usize, usize) {
        let prefetching = self.prefetching.as_ref();
        let buffered = prefetching.map_or(0, |prefetching| prefetching.buffer.len());
        (self.cache.len(), buffered)
    }

    /// What cache and buffer have done.
    pub fn counters(&self) -> PrefetchingCounters {
        let own = self.cache.counters();
        let prefetching = self.prefetching.as_ref();
        let (prefetch_hits, prefetches) =
            prefetching.map_or((0, 0), |prefetching| (prefetching.hits, prefetching.fills));
        PrefetchingCounters {
            hits: own.hits,
            misses: own.misses - prefetch_hits,
            prefetch_hits,
            evictions: own.evictions,
            prefetches,
        }
    }

    /// Says whose turn it is on a processor, of which there are few, from 0 on; `None`: nobody's.
    pub fn activate(&mut self, processor: usize, group: Option<G>) {
        if self.active.len() <= processor {
            self.active.resize(processor + 1, None);
        }
        self.active[processor] = group;
    }

    /// Looks a key up in cache and buffer, which counts, makes it recently used, and moves it from the buffer into the cache.
    pub fn get(&mut self, key: K) -> Option<V> {
        if let Some(held) = self.cache.get(key) {
            held.uses = held.uses.saturating_add(1);
            return Some(held.value);
        }
        let prefetching = self.prefetching.as_mut()?;
        let mut held = prefetching.buffer.remove(key)?;
        prefetching.hits += 1;
        held.uses += 1;
        let value = held.value;
        if let Some((key, held)) = self.cache.insert(key, held) {
            prefetching.note(key, &held);
        }
        Some(value)
    }

    /// Looks a key up in cache and buffer without a trace.
    pub fn peek(&self, key: K) -> Option<V> {
        let buffered = || self.prefetching.as_ref()?.buffer.peek(key);
        let held = self.cache.peek(key).or_else(buffered);
        held.map(|held| held.value)
    }

    /// Puts the value of a lookup that missed into the cache. It counts as used once. Gives what had to go, as [`Cache::insert`] does.
    pub fn insert(&mut self, group: G, key: K, value: V) -> Option<(K, V)> {
        let held = Held {
            group,
            uses: 1,
            value,
        };
        if let Some(prefetching) = &mut self.prefetching {
            prefetching.buffer.remove(key);
        }
        let (evicted, held) = self.cache.insert(key, held)?;
        if let Some(prefetching) = &mut self.prefetching
            && evicted != key
        {
            prefetching.note(evicted, &held);
        }
        Some((evicted, held.value))
    }

    /// Appends the keys that the buffer lacks, now that a message for this group has come. It should have the heaviest of the group's list that
    /// aren't in the cache, as many as it holds. None are wanted for an active group.
    ///
    /// A key is wanted until it is filled: who fetches over time has to know what is under way.
    pub fn wanted(&mut self, group: G, keys: &mut Vec<K>) {
        if self.active.contains(&Some(group)) {
            return;
        }
        let Some(prefetching) = &mut self.prefetching else {
            return;
        };
        let room = prefetching.buffer.geometry().entries();
        if let Some(list) = prefetching.groups.get(group) {
            // What the buffer has already takes its room too and is as good as new there, or else what is filled next would drive it out.
            let uncached = list.iter().map(|frequent| frequent.key);
            let uncached = uncached.filter(|&key| !self.cache.contains(key));
            let missing = uncached.take(room);
            keys.extend(missing.filter(|&key| prefetching.buffer.get(key).is_none()));
        }
    }

    /// Puts a prefetched value into the buffer, in place of the oldest one there if that is full. Dropped if there is no buffer or if the
    /// cache has the key already.
    pub fn fill(&mut self, group: G, key: K, value: V) {
        if let Some(prefetching) = &mut self.prefetching
            && !self.cache.contains(key)
        {
            prefetching.fills += 1;
            let held = Held {
                group,
                uses: 0,
                value,
            };
            prefetching.buffer.insert(key, held);
        }
    }

    /// Brings the lists of frequent keys up to date with the evictions since the last time.
    pub fn settle(&mut self) {
        if let Some(prefetching) = &mut self.prefetching {
            prefetching.settle();
        }
    }
}

impl<G: CacheKey, K: CacheKey, V> Prefetching<G, K, V> {
    fn new(settings: PrefetchSettings) -> Result<Self, PrefetchError> {
        for (parameter, got, most) in [
            ("groups", settings.groups, ENTRIES_MAX),
            ("frequent", settings.frequent, FREQUENT_MAX),
        ] {
            if !(1..=most).contains(&got) {
                return Err(PrefetchError::Parameter {
                    parameter,
                    got,
                    most,
                });
            }
        }
        let whole = |entries| Geometry::fully_associative(entries).map_err(PrefetchError::Buffer);
        let list = || Vec::with_capacity(settings.frequent);
        Ok(Self {
            buffer: Cache::new(whole(settings.buffer)?),
            groups: Cache::new(whole(settings.groups)?),
            frequent_max: settings.frequent,
            spare: list(),
            unused: (0..settings.groups).map(|_| list()).collect(),
            departures: Vec::with_capacity(UNSETTLED_MAX),
            hits: 0,
            fills: 0,
        })
    }

    fn note(&mut self, key: K, held: &Held<G, V>) {
        if self.departures.len() == UNSETTLED_MAX {
            self.settle();
        }
        self.departures.push(EvictedKey {
            group: held.group,
            key,
            uses: held.uses,
        });
    }

    fn settle(&mut self) {
        for position in 0..self.departures.len() {
            let EvictedKey { group, key, uses } = self.departures[position];
            if !self.groups.contains(group) {
                let list = core::mem::take(&mut self.spare);
                self.spare = match self.groups.insert(group, list) {
                    Some((_, mut forgotten)) => {
                        forgotten.clear();
                        forgotten
                    }
                    None => self.unused.pop().unwrap_or_default(),
                };
            }
            if let Some(list) = self.groups.get(group) {
                weigh(list, self.frequent_max, key, uses);
            }
        }
        self.departures.clear();
    }
}

/// Adds a key's uses to its group's list.
fn weigh<K: CacheKey>(list: &mut Vec<Frequent<K>>, most: usize, key: K, uses: u32) {
    let known = list.iter().position(|frequent| frequent.key == key);
    let weight = match known {
        Some(position) => (list.remove(position).weight / 2).saturating_add(uses),
        None => uses,
    };
    if list.len() == most {
        match list.last_mut() {
            Some(lightest) if lightest.weight > weight => {
                lightest.weight /= 2;
                return;
            }
            _ => drop(list.pop()),
        }
    }
    let position = list.partition_point(|other| other.weight > weight);
    list.insert(position, Frequent { key, weight });
}
