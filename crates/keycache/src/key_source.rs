//! Where one card has its keys from, and when a packet has its key.

use std::collections::VecDeque;

use exoskel_link::keys::{ClockPolicy, Geometry, LeastRecentlyUsed};

use crate::error::KeycacheError;
use crate::key_memory::KeyLatency;
use crate::parameters::{KeySource, Parameters};
use crate::prefetch::{PrefetchError, PrefetchSettings, PrefetchingCache, PrefetchingCounters};
use crate::s3_fifo::S3Fifo;
use crate::sequence::ReplacementPolicy;
use crate::time::Picoseconds;

/// Whose key: which of its node's ranks of a job, the job, and the peer's rank. That is a pair of processes.
pub(crate) type KeyId = u64;
/// A process of the node.
pub(crate) type Group = u32;

/// A process of a node: the one of this job at this place among the node's ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardProcess {
    pub(crate) job: u16,
    pub(crate) place: u16,
}

impl CardProcess {
    fn key(self, peer: u16) -> KeyId {
        let (place, job) = (u64::from(self.place), u64::from(self.job));
        place << 32 | job << 16 | u64::from(peer)
    }
}

/// The cache, with the moment at which a key is there for its value: a key whose fetch is under way has its place already.
type KeyCache<P> = PrefetchingCache<Group, KeyId, Picoseconds, P>;

enum AnyKeyCache {
    LeastRecentlyUsed(KeyCache<LeastRecentlyUsed>),
    Clock(KeyCache<ClockPolicy>),
    S3Fifo(KeyCache<S3Fifo>),
}

/// The same for each policy: the cache's type says which one it has.
macro_rules! with_cache {
    ($any:expr, $cache:ident => $do:expr) => {
        match $any {
            AnyKeyCache::LeastRecentlyUsed($cache) => $do,
            AnyKeyCache::Clock($cache) => $do,
            AnyKeyCache::S3Fifo($cache) => $do,
        }
    };
}

enum KeySourceKind {
    None,
    Memory,
    After(Picoseconds),
    Cache(Box<CachedKeys>),
}

struct CachedKeys {
    cache: AnyKeyCache,
    access: Picoseconds,
    /// Keys that were asked for on a hint and that the memory hasn't begun to give, and since when.
    hinted: VecDeque<(Picoseconds, Group, KeyId)>,
    /// No more than the buffer holds: the oldest would be out of it again before they are used.
    hinted_max: usize,
    wanted: Vec<KeyId>,
    joined: u64,
}

/// The keys of a card.
pub(crate) struct Keys {
    source: KeySourceKind,
    pub(crate) memory: KeyLatency,
    decrypt: Picoseconds,
    ranks_per_card: u32,
    lookups: u64,
}

impl Keys {
    pub(crate) fn new(parameters: &Parameters, jobs: usize) -> Result<Self, KeycacheError> {
        let time = Picoseconds::from_nanoseconds;
        let source = match parameters.keys {
            KeySource::None => KeySourceKind::None,
            KeySource::Memory => KeySourceKind::Memory,
            KeySource::Derive => KeySourceKind::After(time(parameters.derivation_ns)),
            KeySource::Table => KeySourceKind::After(time(parameters.cache_access_ns)),
            KeySource::Cache => KeySourceKind::Cache(Box::new(CachedKeys::new(parameters, jobs)?)),
        };
        Ok(Self {
            source,
            memory: KeyLatency::new(
                time(parameters.key_memory_ns),
                parameters.key_memory_accesses_in_flight,
            ),
            decrypt: time(parameters.key_decrypt_ns),
            ranks_per_card: parameters.ranks_per_card,
            lookups: 0,
        })
    }

    fn group(&self, process: CardProcess) -> Group {
        u32::from(process.job) * self.ranks_per_card + u32::from(process.place)
    }

    /// Looks up the key of a process and its peer now; says when it is there. Calls come in the order of time.
    pub(crate) fn look_up(
        &mut self,
        now: Picoseconds,
        process: CardProcess,
        peer: u16,
    ) -> Picoseconds {
        let (group, key) = (self.group(process), process.key(peer));
        let memory = &mut self.memory;
        let decrypt = self.decrypt;
        if !matches!(self.source, KeySourceKind::None) {
            self.lookups += 1;
        }
        match &mut self.source {
            KeySourceKind::None => now,
            KeySourceKind::Memory => memory.fetch(now) + decrypt,
            KeySourceKind::After(delay) => now + *delay,
            KeySourceKind::Cache(cached) => {
                cached.prefetch(now, memory, decrypt);
                let found = now + cached.access;
                with_cache!(&mut cached.cache, cache => {
                    if let Some(there_at) = cache.get(key) {
                        if there_at > found {
                            cached.joined += 1;
                        }
                        return found.max(there_at);
                    }
                    let there_at = memory.fetch(found) + decrypt;
                    cache.insert(group, key, there_at);
                    cache.settle();
                    there_at
                })
            }
        }
    }

    /// A message for a process has begun to arrive. If that process doesn't have the processor, its frequent keys are fetched into the prefetch
    /// buffer, whenever the memory has nothing else to do.
    pub(crate) fn hint(&mut self, now: Picoseconds, process: CardProcess) {
        let group = self.group(process);
        if let KeySourceKind::Cache(cached) = &mut self.source {
            cached.hint(now, group);
        }
    }

    /// The processor of the node's ranks at this place has the process of this job from now on; `None`: nobody's.
    pub(crate) fn activate(&mut self, place: u16, job: Option<u16>) {
        let group = job.map(|job| self.group(CardProcess { job, place }));
        if let KeySourceKind::Cache(cached) = &mut self.source {
            with_cache!(&mut cached.cache, cache => cache.activate(place.into(), group));
        }
    }

    /// Counts of lookups, and hits on keys whose fetch was under way. Without a cache, each lookup is a miss.
    pub(crate) fn counters(&self) -> (PrefetchingCounters, u64) {
        match &self.source {
            KeySourceKind::Cache(cached) => {
                let counters = with_cache!(&cached.cache, cache => cache.counters());
                (counters, cached.joined)
            }
            _ => {
                let counters = PrefetchingCounters {
                    misses: self.lookups,
                    ..PrefetchingCounters::default()
                };
                (counters, 0)
            }
        }
    }
}

impl CachedKeys {
    fn new(parameters: &Parameters, jobs: usize) -> Result<Self, KeycacheError> {
        let entries = parameters.cache_entries as usize;
        let ways = match parameters.cache_ways {
            0 => entries,
            ways => ways as usize,
        };
        let buffer = parameters.prefetch_buffer_entries as usize;
        let settings = PrefetchSettings {
            buffer,
            groups: jobs * parameters.ranks_per_card as usize,
            frequent: parameters.prefetch_list_entries as usize,
        };
        // `Parameters::validate` has seen to it that these are possible; if the cache knows better, it names the parameter.
        let impossible = |reason: String| KeycacheError::Scenario { reason };
        let geometry = Geometry::set_associative(entries, ways)
            .map_err(|error| impossible(error.to_string()))?;
        let impossible_buffer = |error: PrefetchError| impossible(error.to_string());
        let cache = match parameters.cache_policy {
            ReplacementPolicy::LeastRecentlyUsed => AnyKeyCache::LeastRecentlyUsed(
                PrefetchingCache::new(geometry, settings).map_err(impossible_buffer)?,
            ),
            ReplacementPolicy::Clock => AnyKeyCache::Clock(
                PrefetchingCache::new(geometry, settings).map_err(impossible_buffer)?,
            ),
            ReplacementPolicy::S3Fifo => AnyKeyCache::S3Fifo(
                PrefetchingCache::new(geometry, settings).map_err(impossible_buffer)?,
            ),
        };
        Ok(Self {
            cache,
            access: Picoseconds::from_nanoseconds(parameters.cache_access_ns),
            hinted: VecDeque::with_capacity(buffer),
            hinted_max: buffer,
            wanted: Vec::with_capacity(buffer),
            joined: 0,
        })
    }

    fn hint(&mut self, now: Picoseconds, group: Group) {
        if self.hinted_max == 0 || self.hinted.iter().any(|(_, hinted, _)| *hinted == group) {
            return;
        }
        self.wanted.clear();
        with_cache!(&mut self.cache, cache => cache.wanted(group, &mut self.wanted));
        for key in self.wanted.drain(..) {
            if self.hinted.len() == self.hinted_max {
                self.hinted.pop_front();
            }
            self.hinted.push_back((now, group, key));
        }
    }

    /// Does what the memory had time for before now.
    fn prefetch(&mut self, now: Picoseconds, memory: &mut KeyLatency, decrypt: Picoseconds) {
        while let Some((since, group, key)) = self.hinted.front().copied() {
            let wanted = with_cache!(&self.cache, cache => cache.peek(key).is_none());
            if wanted {
                let Some(there_at) = memory.fetch_before(since, now) else {
                    return;
                };
                with_cache!(&mut self.cache, cache => cache.fill(group, key, there_at + decrypt));
            }
            self.hinted.pop_front();
        }
    }
}
