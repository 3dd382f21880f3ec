//! Expanded keys, ready for use.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cache::{Absent, Cache, Counters};
use super::compact::CompactKeys;
use super::geometry::Geometry;
use super::name::KeyName;
use super::schedule::RecordKey;

/// A key whose use was remembered during the last of so many parts of a cache's turnover may be used without that.
pub(super) const TURNOVER_PARTS: usize = 64;

/// What a store has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StoreCounters {
    /// The cache of expanded contexts. A lookup is made once for each key in each batch of records.
    pub contexts: Counters,
    /// Contexts that were made from a compact key.
    pub expansions: u64,
    /// Keys that were derived from the secret of their epoch, because no tier had them.
    pub derivations: u64,
}

/// The expanded keys of all nodes of a process, in a [`Cache`]: what is near the processor is shared by all that it runs.
///
/// A session that comes back to a key which is still there takes it without a lock. The cache learns of such uses when the key goes: they are
/// counted exactly, and the order of use is exact but for the last 64th of a turnover. Caches of fewer than 64 ways have all uses in their order.
pub struct ReadyKeys {
    tiers: Mutex<Tiers>,
    pub(super) directions: AtomicU64,
    /// How many keys had to go, for who looks whether its own is still well remembered.
    pub(super) evictions: AtomicU64,
    /// So many may go before the use of a key is to be remembered again.
    memorable: u64,
}

impl ReadyKeys {
    /// Room for keys; about 700 bytes each.
    pub fn new(room: Geometry) -> Arc<Self> {
        Arc::new(Self {
            tiers: Mutex::new(Tiers {
                contexts: Cache::new(room),
                tables: Vec::new(),
                expansions: 0,
                derivations: 0,
            }),
            directions: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            memorable: (room.ways() / TURNOVER_PARTS) as u64,
        })
    }

    /// Makes room for a key that isn't there. Gives what had to go for it; the cache learns how often that was used.
    pub(super) fn make_room(
        &self,
        tiers: &mut Tiers,
        absent: &Absent<KeyName>,
    ) -> Option<Arc<ReadyKey>> {
        let (_, key) = tiers.contexts.make_room(absent)?;
        tiers.contexts.add_hits(key.uses.load(Relaxed));
        let evictions = tiers.contexts.counters().evictions;
        self.evictions.store(evictions, Relaxed);
        Some(key)
    }

    /// The key that was found before, if it is still there and its use needn't be remembered.
    pub(super) fn at_hand(&self, known: &KnownKey) -> Option<Arc<ReadyKey>> {
        let evictions = self.evictions.load(Relaxed);
        if evictions.wrapping_sub(known.remembered) >= self.memorable {
            return None;
        }
        let key = known.key.upgrade()?;
        // Only one direction uses a key, so nothing is lost in between.
        key.uses.store(key.uses.load(Relaxed) + 1, Relaxed);
        Some(key)
    }

    /// A panic of another thread can't have left anything but a well-formed table: every step on it is complete by itself.
    pub(super) fn lock(&self) -> MutexGuard<'_, Tiers> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An expanded key. When it is evicted it is erased at once, or at the end of the batch that has it in hand.
pub(super) struct ReadyKey {
    pub(super) key: RecordKey,
    /// How often it was used without the cache's being told.
    pub(super) uses: AtomicU64,
}

impl ReadyKey {
    /// The key, in the place of an old one if that is nobody's any more, which that erases: the memory is used again.
    pub(super) fn new(key: RecordKey, old: Option<Arc<Self>>) -> Arc<Self> {
        let uses = AtomicU64::new(0);
        let new = Self { key, uses };
        if let Some(mut old) = old
            && let Some(place) = Arc::get_mut(&mut old)
        {
            *place = new;
            return old;
        }
        Arc::new(new)
    }
}

/// What a lookup in the store gave.
pub(super) struct Fetched {
    pub(super) key: Arc<ReadyKey>,
    /// Whether it was there and needed no expansion now.
    pub(super) was_ready: bool,
}

/// What a direction knows of a key that it has used.
#[derive(Default)]
pub(super) struct KnownKey {
    pub(super) key: Weak<ReadyKey>,
    /// The evictions there had been when the cache was last told of a use.
    pub(super) remembered: u64,
}

pub(super) struct Tiers {
    pub(super) contexts: Cache<KeyName, Arc<ReadyKey>>,
    /// The compact keys of each node. A place that is empty again is the next node's.
    pub(super) tables: Vec<Option<CompactKeys>>,
    pub(super) expansions: u64,
    pub(super) derivations: u64,
}

impl Tiers {
    pub(super) fn counters(&self) -> StoreCounters {
        let mut contexts = self.contexts.counters();
        let keys = self.contexts.values();
        contexts.hits += keys.map(|key| key.uses.load(Relaxed)).sum::<u64>();
        StoreCounters {
            contexts,
            expansions: self.expansions,
            derivations: self.derivations,
        }
    }

    /// The table of the key's node, if that is there still.
    pub(super) fn compact(&mut self, name: KeyName) -> Option<&mut CompactKeys> {
        self.tables.get_mut(name.table as usize)?.as_mut()
    }
}
