//! The keys of all sessions of a node, in three tiers, each cheaper to hold and dearer to use than the one before.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::aead::NONCE_LEN;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::cache::{Cache, CacheKey, Counters, ENTRIES_MAX, Geometry, GeometryError};
use super::prefetch::{PrefetchError, PrefetchSettings, PrefetchingCache};
use super::replacement::Clock;
use super::schedule::{
    CipherSuite, EpochSecret, KEY_BYTES, RawRecordKey, RecordKey, SessionSecret,
};
use crate::protection::Protection;
use crate::session::Side;

/// The bytes of the memory for compact keys that one key takes: the key and the static part of its nonces.
pub const COMPACT_KEY_BYTES: usize = KEY_BYTES + NONCE_LEN;
/// The group of records and links that belong to none.
const NO_GROUP: u32 = 0;

/// How many keys a node holds ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStoreSettings {
    /// The expanded contexts; about 700 bytes each.
    pub contexts: Geometry,
    /// The prefetch buffer beside them.
    pub prefetch: PrefetchSettings,
}

/// The keys of one session: three protections in two directions, and as many again while the keys are changed.
pub const KEYS_OF_SESSION: usize = 12;
/// The contexts that a node holds at most unless it is told otherwise: those of a thousand busy sessions, in 3 MiB.
const CONTEXTS_MAX: usize = 4096;

impl KeyStoreSettings {
    /// All keys of a few sessions; or those in use of many, and a prefetch buffer, which only helps where keys have to go.
    pub fn for_sessions(sessions: usize) -> Self {
        let keys = sessions.saturating_mul(KEYS_OF_SESSION);
        let entries = keys.clamp(1, CONTEXTS_MAX);
        let prefetch = if keys <= entries {
            PrefetchSettings::NONE
        } else {
            PrefetchSettings {
                buffer: 16,
                groups: 64,
                frequent: 32,
            }
        };
        Self {
            contexts: Geometry::fully_associative(entries).expect("it has entries, and few"),
            prefetch,
        }
    }
}

/// A store that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyStoreError {
    /// The prefetch buffer.
    #[error(transparent)]
    Prefetch(#[from] PrefetchError),
    /// The memory for compact keys.
    #[error("the memory for compact keys: {0}")]
    Memory(#[from] GeometryError),
}

/// Memory for compact keys, which the owner of the process lends: it knows how memory is kept out of swap and from other processes.
///
/// # Security
/// The store erases each key that leaves, and all of it at its own end. Whoever lends it should see to it that no forked child has it.
pub trait KeyMemory: Send {
    /// All of it, always of the same length; or nothing in a process that has none of it any more, as a forked child.
    fn bytes(&mut self) -> &mut [u8];
}

impl KeyMemory for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

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

/// The keys of all sessions of a node: a handle, cheap to clone.
///
/// - Expanded contexts, ready for use, are in a [`PrefetchingCache`].
/// - Compact keys of 32 bytes, and what is fixed of their nonces, are in a bounded table, in memory that [may be](KeyMemory) protected.
/// - What neither has is derived again from the epoch's secret, which its session keeps.
///
/// Record numbers and epochs are the sessions' own and never here: whatever a store forgets, no number is used twice.
///
/// A session takes a key once for each batch of records that it seals or opens, and holds it only during the batch: the store's lock is held for
/// the lookup and not for the cipher's work, so that the sessions of several threads don't wait for each other, and a session that is
/// quiet holds nothing.
///
/// When two batches in a row are of a link's group that isn't the active one, the group's frequent keys are expanded into the prefetch buffer
/// at the end of the second, and it becomes the active one. One batch is no sign of a turn: groups that take turns at each message would have
/// all their keys expanded for every one of them. Group 0 is none.
#[derive(Clone)]
pub struct KeyStore {
    shared: Arc<Shared>,
}

struct Shared {
    tiers: Mutex<Tiers>,
    sessions: AtomicU64,
}

struct Tiers {
    contexts: PrefetchingCache<u32, KeyName, Arc<RecordKey>>,
    compact: Option<CompactKeys>,
    /// The group of the last key that was taken.
    recent: u32,
    expansions: u64,
    derivations: u64,
    /// What is wanted for the buffer; here so that its memory is used again.
    wanted: Vec<KeyName>,
}

/// What tells a key from every other key of a store. The epoch is part of it, so an old epoch's key is never found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyName {
    /// The number of a direction of a session, never given twice.
    direction: u64,
    epoch: u64,
    cipher: CipherSuite,
    protection: Protection,
}

impl CacheKey for KeyName {
    fn index(self) -> u64 {
        self.direction << 2 | u64::from(self.protection.code())
    }
}

impl KeyStore {
    /// A store with these settings; compact keys are in `memory`, [`COMPACT_KEY_BYTES`] each. With memory for none, every miss derives.
    ///
    /// # Errors
    /// [`KeyStoreError`] names the parameter that can't be.
    pub fn new(
        settings: KeyStoreSettings,
        memory: Box<dyn KeyMemory>,
    ) -> Result<Self, KeyStoreError> {
        Ok(Self {
            shared: Arc::new(Shared {
                tiers: Mutex::new(Tiers {
                    contexts: PrefetchingCache::new(settings.contexts, settings.prefetch)?,
                    compact: CompactKeys::new(memory)?,
                    recent: NO_GROUP,
                    expansions: 0,
                    derivations: 0,
                    wanted: Vec::with_capacity(settings.prefetch.buffer),
                }),
                sessions: AtomicU64::new(0),
            }),
        })
    }

    /// A store for so many sessions, with all their compact keys in ordinary memory. For tests and simulations; a node lends memory that is
    /// protected.
    pub fn in_ordinary_memory(sessions: usize) -> Self {
        let memory = vec![0; sessions * KEYS_OF_SESSION * COMPACT_KEY_BYTES];
        Self::new(KeyStoreSettings::for_sessions(sessions), Box::new(memory))
            .expect("settings for a number of sessions are possible")
    }

    /// What the store has done.
    pub fn counters(&self) -> StoreCounters {
        let tiers = self.lock();
        StoreCounters {
            contexts: tiers.contexts.counters(),
            expansions: tiers.expansions,
            derivations: tiers.derivations,
        }
    }

    /// Expanded contexts and compact keys that it holds now.
    pub fn held(&self) -> (usize, usize) {
        let tiers = self.lock();
        let contexts = tiers.contexts.len() + tiers.contexts.buffered();
        (
            contexts,
            tiers.compact.as_ref().map_or(0, |table| table.rows.len()),
        )
    }

    /// A panic of another thread can't have left anything but a well-formed table: every step on it is complete by itself.
    fn lock(&self) -> MutexGuard<'_, Tiers> {
        self.shared
            .tiers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of this name, from the first tier that has it; and whether the group's keys should be prefetched.
    fn fetch(&self, name: KeyName, group: u32, secret: &EpochSecret) -> (Arc<RecordKey>, bool) {
        let mut tiers = self.lock();
        let turns = group != NO_GROUP
            && tiers.contexts.has_buffer()
            && core::mem::replace(&mut tiers.recent, group) == group
            && tiers.contexts.active() != Some(group);
        if let Some(key) = tiers.contexts.get(name) {
            return (Arc::clone(key), turns);
        }
        let compact = tiers.compact.as_mut().and_then(|table| table.get(name));
        let key = if let Some(raw) = compact {
            tiers.expansions += 1;
            RecordKey::expand(&raw, name.cipher)
        } else {
            // The longest way, and the only one that is gone without the lock.
            drop(tiers);
            let raw = secret.record_key(name.cipher, name.protection);
            let key = RecordKey::expand(&raw, name.cipher);
            tiers = self.lock();
            tiers.derivations += 1;
            if let Some(table) = &mut tiers.compact {
                table.put(name, &raw);
            }
            key
        };
        // Into the place of the one that goes, which that erases, unless a batch has it in hand still.
        let key = match tiers.contexts.make_room(name) {
            Some((_, old)) => put_in(old, key),
            None => Arc::new(key),
        };
        tiers.contexts.insert(group, name, Arc::clone(&key));
        (key, turns)
    }

    /// It is this group's turn: expands what the buffer should have of it. Only from compact keys, since the secrets are the sessions'.
    fn turn_to(&self, group: u32) {
        let mut tiers = self.lock();
        let Tiers {
            contexts,
            compact,
            expansions,
            wanted,
            ..
        } = &mut *tiers;
        contexts.settle();
        contexts.wanted(group, wanted);
        contexts.activate(Some(group));
        for name in wanted.drain(..) {
            match compact.as_mut().and_then(|table| table.get(name)) {
                Some(raw) => {
                    *expansions += 1;
                    let key = RecordKey::expand(&raw, name.cipher);
                    contexts.fill(group, name, Arc::new(key));
                }
                // It would be wanted for ever, and take the place of one that can be had.
                None => drop(contexts.remove(group, name)),
            }
        }
    }

    /// Erases these keys: their epoch or their session is over.
    fn forget(&self, group: u32, names: [KeyName; 3]) {
        let mut tiers = self.lock();
        let mut gone = [None, None, None];
        for (name, gone) in names.into_iter().zip(&mut gone) {
            *gone = tiers.contexts.remove(group, name);
            if let Some(table) = &mut tiers.compact {
                table.remove(name);
            }
        }
        drop(tiers);
        drop(gone);
    }
}

/// Has a key in the place of another: the memory is used again, and the old key is erased as it goes.
fn put_in(mut old: Arc<RecordKey>, key: RecordKey) -> Arc<RecordKey> {
    match Arc::get_mut(&mut old) {
        Some(place) => {
            *place = key;
            old
        }
        None => Arc::new(key),
    }
}

/// The table of compact keys. With CLOCK, because a lookup in a large table costs what it touches: a list in the order of use would be four
/// places more, far apart.
struct CompactKeys {
    /// Where each key stands, in rows of the memory.
    rows: Cache<KeyName, u32, Clock>,
    free: Vec<u32>,
    memory: Box<dyn KeyMemory>,
}

impl CompactKeys {
    fn new(mut memory: Box<dyn KeyMemory>) -> Result<Option<Self>, GeometryError> {
        let rows = memory.bytes().len() / COMPACT_KEY_BYTES;
        if rows == 0 {
            return Ok(None);
        }
        let geometry = Geometry::fully_associative(rows.min(ENTRIES_MAX))?;
        let free = (0..geometry.entries() as u32).rev().collect();
        Ok(Some(Self {
            rows: Cache::new(geometry),
            free,
            memory,
        }))
    }

    fn row(&mut self, row: u32) -> Option<&mut [u8]> {
        let start = row as usize * COMPACT_KEY_BYTES;
        self.memory
            .bytes()
            .get_mut(start..start + COMPACT_KEY_BYTES)
    }

    fn get(&mut self, name: KeyName) -> Option<RawRecordKey> {
        let row = *self.rows.get(name)?;
        let mut raw = RawRecordKey {
            key: Zeroizing::new([0; KEY_BYTES]),
            iv: Zeroizing::new([0; NONCE_LEN]),
        };
        let (key, iv) = self.row(row)?.split_at(KEY_BYTES);
        raw.key.copy_from_slice(key);
        raw.iv.copy_from_slice(iv);
        Some(raw)
    }

    fn put(&mut self, name: KeyName, raw: &RawRecordKey) {
        if self.rows.contains(name) {
            return;
        }
        let row = match self.free.pop() {
            Some(row) => {
                self.rows.insert(name, row);
                row
            }
            // Full: what is evicted leaves its row, whose contents are written over.
            None => match self.rows.insert(name, 0) {
                Some((_, row)) => {
                    if let Some(place) = self.rows.get(name) {
                        *place = row;
                    }
                    row
                }
                None => return,
            },
        };
        if let Some(place) = self.row(row) {
            let (key, iv) = place.split_at_mut(KEY_BYTES);
            key.copy_from_slice(&*raw.key);
            iv.copy_from_slice(&*raw.iv);
        }
    }

    fn remove(&mut self, name: KeyName) {
        if let Some(row) = self.rows.remove(name) {
            if let Some(place) = self.row(row) {
                place.zeroize();
            }
            self.free.push(row);
        }
    }
}

impl Drop for CompactKeys {
    fn drop(&mut self) {
        self.memory.bytes().zeroize();
    }
}

/// One direction of a session and its way to its keys: the epoch and its secret are here, the keys are in the store.
pub struct DirectionKeys {
    store: KeyStore,
    number: u64,
    cipher: CipherSuite,
    secret: EpochSecret,
    epoch: u64,
    /// The last group that a record was for.
    group: u32,
    /// By protection, what the batch that is under way has used.
    in_hand: [Option<Arc<RecordKey>>; 3],
    turns: bool,
}

impl DirectionKeys {
    /// The keys of the direction in which `sender` writes, in its first epoch.
    pub fn new(
        store: &KeyStore,
        secret: &SessionSecret,
        sender: Side,
        cipher: CipherSuite,
    ) -> Self {
        Self {
            store: store.clone(),
            number: store.shared.sessions.fetch_add(1, Ordering::Relaxed),
            cipher,
            secret: EpochSecret::first(secret, sender),
            epoch: 0,
            group: NO_GROUP,
            in_hand: [None, None, None],
            turns: false,
        }
    }

    /// How often the keys were changed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The key for a record of this protection and group, for as long as the batch lasts.
    pub fn get(&mut self, protection: Protection, group: u32) -> &RecordKey {
        let name = self.name(protection);
        let (store, secret) = (&self.store, &self.secret);
        let (recent, turns) = (&mut self.group, &mut self.turns);
        self.in_hand[usize::from(protection.code())].get_or_insert_with(|| {
            if group != NO_GROUP {
                *recent = group;
            }
            let (key, turned) = store.fetch(name, group, secret);
            *turns |= turned;
            key
        })
    }

    /// Ends a batch of records: the store's hold on the keys is the only one again.
    pub fn release(&mut self) {
        self.in_hand = [None, None, None];
        if core::mem::take(&mut self.turns) {
            self.store.turn_to(self.group);
        }
    }

    /// Moves on to the next epoch and erases what there is of this one.
    pub fn advance(&mut self) {
        self.forget();
        self.secret = self.secret.next();
        self.epoch += 1;
    }

    fn name(&self, protection: Protection) -> KeyName {
        KeyName {
            direction: self.number,
            epoch: self.epoch,
            cipher: self.cipher,
            protection,
        }
    }

    fn forget(&mut self) {
        self.in_hand = [None, None, None];
        let names = Protection::ALL.map(|protection| self.name(protection));
        self.store.forget(self.group, names);
    }
}

impl Drop for DirectionKeys {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(store: &KeyStore, secret: u8) -> DirectionKeys {
        let secret = SessionSecret::from_bytes(&[secret; 32]);
        DirectionKeys::new(store, &secret, Side::Client, CipherSuite::Aes256Gcm)
    }

    fn memory(store: &KeyStore) -> Vec<u8> {
        let mut tiers = store.lock();
        tiers.compact.as_mut().unwrap().memory.bytes().to_vec()
    }

    fn use_all(keys: &mut DirectionKeys) {
        for protection in Protection::ALL {
            keys.get(protection, NO_GROUP);
        }
        keys.release();
    }

    /// Compact keys stand in the memory that was lent and are erased when their epoch or their session ends.
    #[test]
    fn compact_keys_are_erased_when_they_leave() {
        let store = KeyStore::in_ordinary_memory(1);
        let blank = memory(&store);
        let mut keys = direction(&store, 1);
        use_all(&mut keys);
        let raw = EpochSecret::first(&SessionSecret::from_bytes(&[1; 32]), Side::Client)
            .record_key(CipherSuite::Aes256Gcm, Protection::Encrypted);
        let holds = |key: &[u8]| memory(&store).windows(key.len()).any(|bytes| bytes == key);
        assert!(holds(&*raw.key));
        assert_eq!(store.held(), (3, 3));
        keys.advance();
        assert_eq!(memory(&store), blank);
        use_all(&mut keys);
        assert!(!holds(&*raw.key));
        assert_ne!(memory(&store), blank);
        drop(keys);
        assert_eq!(memory(&store), blank);
        assert_eq!(store.held(), (0, 0));
    }

    /// An eviction from the compact table leaves nothing of the key that went.
    #[test]
    fn a_row_is_written_over() {
        let settings = KeyStoreSettings::for_sessions(1);
        let store = KeyStore::new(settings, Box::new(vec![0; COMPACT_KEY_BYTES])).unwrap();
        let (mut first, mut second) = (direction(&store, 1), direction(&store, 2));
        first.get(Protection::Plain, NO_GROUP);
        let before = memory(&store);
        second.get(Protection::Plain, NO_GROUP);
        let after = memory(&store);
        assert!(
            before
                .iter()
                .zip(&after)
                .filter(|(old, new)| old == new)
                .count()
                < 8
        );
        drop(first);
        assert_eq!(memory(&store), after);
    }

    /// A process that has lost the memory, as a forked child has, derives; it never takes blank memory for a key.
    #[test]
    fn memory_that_is_gone_is_no_key() {
        struct Gone;
        impl KeyMemory for (Gone, Vec<u8>, Arc<AtomicU64>) {
            fn bytes(&mut self) -> &mut [u8] {
                match self.2.load(Ordering::Relaxed) {
                    0 => &mut self.1,
                    _ => &mut [],
                }
            }
        }
        let gone = Arc::new(AtomicU64::new(0));
        let settings = KeyStoreSettings {
            contexts: Geometry::fully_associative(1).unwrap(),
            prefetch: PrefetchSettings::NONE,
        };
        let lent = (Gone, vec![0; 4 * COMPACT_KEY_BYTES], Arc::clone(&gone));
        let store = KeyStore::new(settings, Box::new(lent)).unwrap();
        let mut keys = direction(&store, 1);
        use_all(&mut keys);
        use_all(&mut keys);
        assert_eq!(store.counters().derivations, 3);
        gone.store(1, Ordering::Relaxed);
        use_all(&mut keys);
        assert_eq!(store.counters().derivations, 6);
        drop(keys);
    }

    /// Keys in hand outlive their eviction, so a batch never loses its key in the middle.
    #[test]
    fn a_key_in_hand_stays() {
        let settings = KeyStoreSettings {
            contexts: Geometry::fully_associative(1).unwrap(),
            prefetch: PrefetchSettings::NONE,
        };
        let store = KeyStore::new(settings, Box::new(vec![])).unwrap();
        let mut keys = direction(&store, 1);
        let seal = |keys: &mut DirectionKeys| {
            let key = keys.get(Protection::Plain, NO_GROUP);
            key.seal(0, b"", &mut []).unwrap()
        };
        let first = seal(&mut keys);
        let mut other = direction(&store, 2);
        other.get(Protection::Plain, NO_GROUP);
        let misses = store.counters().contexts.misses;
        assert_eq!(seal(&mut keys), first);
        assert_eq!(store.counters().contexts.misses, misses);
        keys.release();
        assert_eq!(seal(&mut keys), first);
        assert_eq!(store.counters().contexts.misses, misses + 1);
    }
}
