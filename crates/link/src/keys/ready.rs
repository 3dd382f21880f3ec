//! Expanded keys, ready for use.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cache::{Absent, Counters};
use super::compact::CompactKeys;
use super::name::{KeyName, NO_JOB};
use super::prefetch::{PrefetchError, PrefetchingCache};
use super::schedule::RecordKey;
use super::settings::KeyStoreSettings;

/// A key whose use was remembered during the last of so many parts of a cache's turnover may be used without that.
pub(super) const TURNOVER_PARTS: usize = 64;

/// What a store has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StoreCounters {
    /// The cache of expanded contexts and its prefetch buffer. A lookup is made once for each key in each batch of records.
    pub contexts: Counters,
    /// Contexts that were made from a compact key: on a miss, or ahead for the buffer.
    pub expansions: u64,
    /// Keys that were derived from the secret of their epoch, because no tier had them.
    pub derivations: u64,
}

/// The expanded keys of all nodes of a process, in a [`PrefetchingCache`]: what is near the processor is shared by all that it runs.
///
/// When two batches in a row are for a job that isn't the active one, the job's frequent keys are expanded into the prefetch buffer
/// at the end of the second, and it becomes the active one. One batch is no sign of a turn: jobs that take turns at each message would have
/// all their keys expanded for every one of them. Group 0 is none.
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
    pub(super) has_buffer: bool,
    /// The active job, and that of the last message whose key was taken.
    pub(super) active: AtomicU32,
    pub(super) recent: AtomicU32,
}

impl ReadyKeys {
    /// Room for keys, and a prefetch buffer beside it.
    ///
    /// # Errors
    /// [`PrefetchError`] names the parameter that can't be.
    pub fn new(settings: KeyStoreSettings) -> Result<Arc<Self>, PrefetchError> {
        Ok(Arc::new(Self {
            tiers: Mutex::new(Tiers {
                contexts: PrefetchingCache::new(settings.contexts, settings.prefetch)?,
                tables: Vec::new(),
                expansions: 0,
                derivations: 0,
                wanted: Vec::with_capacity(settings.prefetch.buffer),
            }),
            directions: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            memorable: (settings.contexts.ways() / TURNOVER_PARTS) as u64,
            has_buffer: settings.prefetch.buffer > 0,
            active: AtomicU32::new(NO_JOB),
            recent: AtomicU32::new(NO_JOB),
        }))
    }

    /// Makes room for a key that isn't there. Gives what had to go for it; the cache learns how often that was used.
    pub(super) fn make_room(
        &self,
        tiers: &mut Tiers,
        absent: &Absent<KeyName>,
    ) -> Option<Arc<ReadyKey>> {
        let (departed, key) = tiers.contexts.make_room(absent)?;
        tiers.contexts.add_uses(departed, key.uses.load(Relaxed));
        let evictions = tiers.contexts.counters().evictions;
        self.evictions.store(evictions, Relaxed);
        Some(key)
    }

    /// The key that was found before, if it is still there and its use needn't be remembered.
    pub(super) fn at_hand(
        &self,
        known: &KnownKey,
        job: u32,
        is_message: bool,
    ) -> Option<Arc<ReadyKey>> {
        let evictions = self.evictions.load(Relaxed);
        if evictions.wrapping_sub(known.remembered) >= self.memorable {
            return None;
        }
        // Before the first has to go, it doesn't matter whose turn it is.
        if is_message && self.has_buffer && evictions > 0 {
            if self.active.load(Relaxed) != job {
                return None;
            }
            self.recent.store(job, Relaxed);
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
    /// Whether its job's keys should be prefetched.
    pub(super) turns: bool,
}

/// What a direction knows of a key that it has used.
#[derive(Default)]
pub(super) struct KnownKey {
    pub(super) key: Weak<ReadyKey>,
    /// The evictions there had been when the cache was last told of a use.
    pub(super) remembered: u64,
}

pub(super) struct Tiers {
    pub(super) contexts: PrefetchingCache<u32, KeyName, Arc<ReadyKey>>,
    /// The compact keys of each node. A place that is empty again is the next node's.
    pub(super) tables: Vec<Option<CompactKeys>>,
    pub(super) expansions: u64,
    pub(super) derivations: u64,
    /// What is wanted for the buffer; here so that its memory is used again.
    pub(super) wanted: Vec<KeyName>,
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
