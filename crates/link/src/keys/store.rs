//! The keys of all sessions of a node, in three tiers, each cheaper to hold and dearer to use than the one before.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aws_lc_rs::aead::NONCE_LEN;
use thiserror::Error;
use zeroize::Zeroize;

use super::cache::{Absent, Cache, CacheKey, Counters, ENTRIES_MAX, Geometry, GeometryError};
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
/// A key whose use was remembered during the last of so many parts of a cache's turnover may be used without that.
const TURNOVER_PARTS: usize = 64;

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
/// The contexts that are held at most unless somebody says otherwise: those of a thousand busy sessions, in 3 MiB.
const CONTEXTS_DEFAULT: usize = 4096;
/// The keys that a prefetch buffer holds, unless the cache beside it is smaller.
const BUFFER: usize = 16;

impl KeyStoreSettings {
    /// So many contexts, and a prefetch buffer for when they aren't enough.
    ///
    /// # Errors
    /// [`GeometryError`] if there are none or too many.
    pub fn for_contexts(contexts: usize) -> Result<Self, GeometryError> {
        Ok(Self {
            contexts: Geometry::fully_associative(contexts)?,
            prefetch: PrefetchSettings {
                buffer: BUFFER.min(contexts),
                groups: 64,
                frequent: 2 * BUFFER,
            },
        })
    }

    /// All keys of a few sessions; or those in use of many, and a prefetch buffer, which only helps where keys have to go.
    pub fn for_sessions(sessions: usize) -> Self {
        let keys = sessions.saturating_mul(KEYS_OF_SESSION);
        let settings = Self::for_contexts(keys.clamp(1, CONTEXTS_DEFAULT));
        let settings = settings.expect("it has contexts, and few");
        if keys > CONTEXTS_DEFAULT {
            return settings;
        }
        Self {
            prefetch: PrefetchSettings::NONE,
            ..settings
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

/// The expanded keys of all nodes of a process, in a [`PrefetchingCache`]: what is near the processor is shared by all that it runs.
///
/// When two batches in a row are for a group that isn't the active one, the group's frequent keys are expanded into the prefetch buffer
/// at the end of the second, and it becomes the active one. One batch is no sign of a turn: groups that take turns at each message would have
/// all their keys expanded for every one of them. Group 0 is none.
///
/// A session that comes back to a key which is still there takes it without a lock. The cache learns of such uses when the key goes: they are
/// counted exactly, and the order of use is exact but for the last 64th of a turnover. Caches of fewer than 64 ways have all uses in their order.
pub struct ReadyKeys {
    tiers: Mutex<Tiers>,
    directions: AtomicU64,
    /// How many keys had to go, for who looks whether its own is still well remembered.
    evictions: AtomicU64,
    /// So many may go before the use of a key is to be remembered again.
    memorable: u64,
    has_buffer: bool,
    /// The active group, and that of the last message whose key was taken.
    active: AtomicU32,
    recent: AtomicU32,
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
            active: AtomicU32::new(NO_GROUP),
            recent: AtomicU32::new(NO_GROUP),
        }))
    }

    /// Makes room for a key that isn't there. Gives what had to go for it; the cache learns how often that was used.
    fn make_room(&self, tiers: &mut Tiers, absent: &Absent<KeyName>) -> Option<Arc<ReadyKey>> {
        let (departed, key) = tiers.contexts.make_room(absent)?;
        tiers.contexts.add_uses(departed, key.uses.load(Relaxed));
        let evictions = tiers.contexts.counters().evictions;
        self.evictions.store(evictions, Relaxed);
        Some(key)
    }

    /// The key that was found before, if it is still there and its use needn't be remembered.
    fn at_hand(&self, known: &Known, group: u32, is_message: bool) -> Option<Arc<ReadyKey>> {
        let evictions = self.evictions.load(Relaxed);
        if evictions.wrapping_sub(known.remembered) >= self.memorable {
            return None;
        }
        // Before the first has to go, it doesn't matter whose turn it is.
        if is_message && self.has_buffer && evictions > 0 {
            if self.active.load(Relaxed) != group {
                return None;
            }
            self.recent.store(group, Relaxed);
        }
        let key = known.key.upgrade()?;
        // Only one direction uses a key, so nothing is lost in between.
        key.uses.store(key.uses.load(Relaxed) + 1, Relaxed);
        Some(key)
    }

    /// A panic of another thread can't have left anything but a well-formed table: every step on it is complete by itself.
    fn lock(&self) -> MutexGuard<'_, Tiers> {
        self.tiers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys of all sessions of a node: a handle, cheap to clone.
///
/// - Expanded contexts, ready for use, are in [`ReadyKeys`], which several nodes may share.
/// - Compact keys of 32 bytes, and what is fixed of their nonces, are in a bounded table, in memory that [may be](KeyMemory) protected.
/// - What neither has is derived again from the epoch's secret, which its session keeps.
///
/// Record numbers and epochs are the sessions' own and never here: whatever a store forgets, no number is used twice.
///
/// A session takes a key once for each batch of records that it seals or opens, and holds it only during the batch: the store's lock is held for
/// the lookup and not for the cipher's work, so that the sessions of several threads don't wait for each other, and a session that is
/// quiet holds nothing.
#[derive(Clone)]
pub struct KeyStore {
    node: Arc<Node>,
}

/// A node's place in what it shares with others.
struct Node {
    ready: Arc<ReadyKeys>,
    table: u32,
    /// What had been done when it came.
    before: StoreCounters,
}

impl Drop for Node {
    fn drop(&mut self) {
        let table = self.ready.lock().tables[self.table as usize].take();
        drop(table);
    }
}

/// An expanded key. When it is evicted it is erased at once, or at the end of the batch that has it in hand.
struct ReadyKey {
    key: RecordKey,
    /// How often it was used without the cache's being told.
    uses: AtomicU64,
}

impl ReadyKey {
    /// The key, in the place of an old one if that is nobody's any more, which that erases: the memory is used again.
    fn new(key: RecordKey, old: Option<Arc<Self>>) -> Arc<Self> {
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
struct Fetched {
    key: Arc<ReadyKey>,
    /// Whether it was there and needed no expansion now.
    was_ready: bool,
    /// Whether its group's keys should be prefetched.
    turns: bool,
}

/// What a direction knows of a key that it has used.
#[derive(Default)]
struct Known {
    key: Weak<ReadyKey>,
    /// The evictions there had been when the cache was last told of a use.
    remembered: u64,
}

struct Tiers {
    contexts: PrefetchingCache<u32, KeyName, Arc<ReadyKey>>,
    /// The compact keys of each node. A place that is empty again is the next node's.
    tables: Vec<Option<CompactKeys>>,
    expansions: u64,
    derivations: u64,
    /// What is wanted for the buffer; here so that its memory is used again.
    wanted: Vec<KeyName>,
}

impl Tiers {
    fn counters(&self) -> StoreCounters {
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
    fn compact(&mut self, name: KeyName) -> Option<&mut CompactKeys> {
        self.tables.get_mut(name.table as usize)?.as_mut()
    }
}

/// What tells a key from every other key. The epoch is part of it, so an old epoch's key is never found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyName {
    /// The number of a direction of a session, never given twice, and that of the protection.
    number: u64,
    epoch: u64,
    /// Its node's table of compact keys.
    table: u32,
}

impl CacheKey for KeyName {
    fn index(self) -> u64 {
        self.number
    }
}

/// What a key is derived from where no tier has it.
struct Origin<'a> {
    secret: &'a EpochSecret,
    cipher: CipherSuite,
    protection: Protection,
}

impl KeyStore {
    /// A store with these settings that no other node shares; compact keys are in `memory`, [`COMPACT_KEY_BYTES`] each. With memory for none,
    /// every miss derives.
    ///
    /// # Errors
    /// [`KeyStoreError`] names the parameter that can't be.
    pub fn new(
        settings: KeyStoreSettings,
        memory: Box<dyn KeyMemory>,
    ) -> Result<Self, KeyStoreError> {
        Ok(Self::sharing(&ReadyKeys::new(settings)?, memory)?)
    }

    /// A store of one of the nodes that share `ready`; its compact keys are in `memory`, its own.
    ///
    /// # Errors
    /// [`GeometryError`] if the memory is for more keys than can be numbered.
    pub fn sharing(
        ready: &Arc<ReadyKeys>,
        memory: Box<dyn KeyMemory>,
    ) -> Result<Self, GeometryError> {
        let table = CompactKeys::new(memory)?;
        let mut tiers = ready.lock();
        let before = tiers.counters();
        let tables = &mut tiers.tables;
        let place = tables.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            tables.push(None);
            tables.len() - 1
        });
        tables[place] = Some(table);
        let node = Node {
            ready: Arc::clone(ready),
            table: place as u32,
            before,
        };
        Ok(Self {
            node: Arc::new(node),
        })
    }

    /// A store for so many sessions, with all their compact keys in ordinary memory. For tests and simulations; a node lends memory that is
    /// protected.
    pub fn in_ordinary_memory(sessions: usize) -> Self {
        let memory = vec![0; sessions * KEYS_OF_SESSION * COMPACT_KEY_BYTES];
        Self::new(KeyStoreSettings::for_sessions(sessions), Box::new(memory))
            .expect("settings for a number of sessions are possible")
    }

    /// What was done since this node came, for all nodes that share its ready keys.
    pub fn counters(&self) -> StoreCounters {
        let (now, before) = (self.lock().counters(), self.node.before);
        StoreCounters {
            contexts: Counters {
                hits: now.contexts.hits - before.contexts.hits,
                misses: now.contexts.misses - before.contexts.misses,
                prefetch_hits: now.contexts.prefetch_hits - before.contexts.prefetch_hits,
                evictions: now.contexts.evictions - before.contexts.evictions,
                prefetches: now.contexts.prefetches - before.contexts.prefetches,
            },
            expansions: now.expansions - before.expansions,
            derivations: now.derivations - before.derivations,
        }
    }

    /// Expanded contexts and compact keys that it holds now, for all nodes that share its ready keys.
    pub fn held(&self) -> (usize, usize) {
        let tiers = self.lock();
        let contexts = tiers.contexts.len() + tiers.contexts.buffered();
        let tables = tiers.tables.iter().flatten();
        (contexts, tables.map(CompactKeys::len).sum())
    }

    fn lock(&self) -> MutexGuard<'_, Tiers> {
        self.node.ready.lock()
    }

    /// The key of this name, from the first tier that has it.
    fn fetch(&self, name: KeyName, group: u32, is_message: bool, origin: &Origin<'_>) -> Fetched {
        let ready = &*self.node.ready;
        let mut tiers = self.lock();
        let turns = is_message
            && ready.has_buffer
            && ready.recent.swap(group, Relaxed) == group
            && tiers.contexts.active() != Some(group);
        // What is in the buffer will need room as well.
        let is_ahead = tiers.contexts.buffered() > 0;
        let coming = is_ahead.then(|| tiers.contexts.absent(name)).flatten();
        let spare = coming.and_then(|absent| ready.make_room(&mut tiers, &absent));
        let absent = match tiers.contexts.look_up(name) {
            Ok(key) => {
                return Fetched {
                    key: Arc::clone(key),
                    was_ready: true,
                    turns,
                };
            }
            Err(absent) => absent,
        };
        let expanded = tiers.compact(name).and_then(|table| table.expand(name));
        let key = if let Some(key) = expanded {
            tiers.expansions += 1;
            key
        } else {
            // The longest way, and the only one that is gone without the lock. The key stays absent: this direction alone brings it, and no buffer
            // is filled with what isn't in the table.
            drop(tiers);
            let raw = origin.secret.record_key(origin.cipher, origin.protection);
            let key = raw.expand(origin.cipher);
            tiers = self.lock();
            tiers.derivations += 1;
            if let Some(table) = tiers.compact(name) {
                table.put(name, &raw, origin.cipher);
            }
            key
        };
        // Without the lock somebody else may have taken the room.
        let room = ready.make_room(&mut tiers, &absent);
        let key = ReadyKey::new(key, room.or(spare));
        tiers.contexts.fill_absent(group, absent, Arc::clone(&key));
        Fetched {
            key,
            was_ready: false,
            turns,
        }
    }

    /// It is this group's turn: expands what the buffer should have of it. Only from compact keys, since the secrets are the sessions'.
    fn turn_to(&self, group: u32) {
        let mut tiers = self.lock();
        let mut wanted = core::mem::take(&mut tiers.wanted);
        tiers.contexts.settle();
        tiers.contexts.wanted(group, &mut wanted);
        tiers.contexts.activate(Some(group));
        self.node.ready.active.store(group, Relaxed);
        for name in wanted.drain(..) {
            match tiers.compact(name).and_then(|table| table.expand(name)) {
                Some(key) => {
                    tiers.expansions += 1;
                    tiers.contexts.fill(group, name, ReadyKey::new(key, None));
                }
                // It would be wanted for ever, and take the place of one that can be had.
                None => drop(tiers.contexts.remove(group, name)),
            }
        }
        tiers.wanted = wanted;
    }

    /// Erases these keys: their epoch or their session is over.
    fn forget(&self, group: u32, names: [KeyName; 3]) {
        let mut tiers = self.lock();
        let mut gone = [None, None, None];
        for (name, gone) in names.into_iter().zip(&mut gone) {
            *gone = tiers.contexts.remove(group, name);
            if let Some(key) = gone {
                tiers.contexts.add_uses(name, key.uses.load(Relaxed));
            }
            if let Some(table) = tiers.compact(name) {
                table.remove(name);
            }
        }
        drop(tiers);
        drop(gone);
    }
}

/// The table of compact keys. With CLOCK, because a lookup in a large table costs what it touches: a list in the order of use would be four
/// places more, far apart.
struct CompactKeys {
    /// Where each key stands; none if the memory has no room for one.
    rows: Option<Cache<KeyName, Row, Clock>>,
    free: Vec<u32>,
    memory: Box<dyn KeyMemory>,
}

/// A row of the memory, and the cipher of the key in it.
#[derive(Clone, Copy)]
struct Row {
    number: u32,
    cipher: CipherSuite,
}

impl CompactKeys {
    fn new(mut memory: Box<dyn KeyMemory>) -> Result<Self, GeometryError> {
        let rows = (memory.bytes().len() / COMPACT_KEY_BYTES).min(ENTRIES_MAX);
        let geometry = (rows > 0).then(|| Geometry::fully_associative(rows));
        Ok(Self {
            rows: geometry.transpose()?.map(Cache::new),
            free: (0..rows as u32).rev().collect(),
            memory,
        })
    }

    fn len(&self) -> usize {
        self.rows.as_ref().map_or(0, Cache::len)
    }

    fn row(&mut self, row: u32) -> Option<&mut [u8]> {
        let start = row as usize * COMPACT_KEY_BYTES;
        self.memory
            .bytes()
            .get_mut(start..start + COMPACT_KEY_BYTES)
    }

    /// Expands a key from where it stands: a copy would have to be erased.
    fn expand(&mut self, name: KeyName) -> Option<RecordKey> {
        let Row { number, cipher } = *self.rows.as_mut()?.get(name)?;
        let (key, iv) = self.row(number)?.split_first_chunk()?;
        Some(RecordKey::expand(key, iv.first_chunk()?, cipher))
    }

    fn put(&mut self, name: KeyName, raw: &RawRecordKey, cipher: CipherSuite) {
        let Some(rows) = &mut self.rows else {
            return;
        };
        let Some(absent) = rows.absent(name) else {
            return;
        };
        // Full: what is evicted leaves its row, whose contents are written over.
        let departed = rows.make_room(&absent).map(|(_, row)| row.number);
        let Some(number) = departed.or_else(|| self.free.pop()) else {
            return;
        };
        rows.fill(absent, Row { number, cipher });
        if let Some(place) = self.row(number) {
            let (key, iv) = place.split_at_mut(KEY_BYTES);
            key.copy_from_slice(&*raw.key);
            iv.copy_from_slice(&*raw.iv);
        }
    }

    fn remove(&mut self, name: KeyName) {
        if let Some(row) = self.rows.as_mut().and_then(|rows| rows.remove(name)) {
            if let Some(place) = self.row(row.number) {
                place.zeroize();
            }
            self.free.push(row.number);
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
    /// Of the store, and here because each batch looks at it.
    ready: Arc<ReadyKeys>,
    store: KeyStore,
    number: u64,
    cipher: CipherSuite,
    secret: EpochSecret,
    epoch: u64,
    /// The group that the session belongs to; the last one that a message was for, if it belongs to none.
    group: u32,
    has_own_group: bool,
    /// By protection, what the batch that is under way has used.
    in_hand: [Option<Arc<ReadyKey>>; 3],
    known: [Known; 3],
    turns: bool,
}

impl DirectionKeys {
    /// The keys of the direction in which `sender` writes, in its first epoch. If this node belongs to a `group` (not 0), all of its messages
    /// count for that, whatever the peer calls the groups of its links.
    pub fn new(
        store: &KeyStore,
        secret: &SessionSecret,
        sender: Side,
        cipher: CipherSuite,
        group: u32,
    ) -> Self {
        let ready = Arc::clone(&store.node.ready);
        Self {
            store: store.clone(),
            number: ready.directions.fetch_add(1, Relaxed),
            cipher,
            secret: EpochSecret::first(secret, sender),
            epoch: 0,
            group,
            has_own_group: group != NO_GROUP,
            in_hand: [None, None, None],
            known: Default::default(),
            turns: false,
            ready,
        }
    }

    /// How often the keys were changed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The key for a record of this protection and group, for as long as the batch lasts. Group 0 is that of control records, which are
    /// nobody's messages: heartbeats of a job that sleeps don't wake it.
    #[inline]
    pub fn get(&mut self, protection: Protection, group: u32) -> &RecordKey {
        let place = usize::from(protection.code());
        let key = match self.in_hand[place].take() {
            Some(key) => key,
            None => self.find(place, protection, group),
        };
        &self.in_hand[place].insert(key).key
    }

    /// Ends a batch of records: the store's hold on the keys is the only one again.
    #[inline]
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

    fn find(&mut self, place: usize, protection: Protection, group: u32) -> Arc<ReadyKey> {
        let is_message = group != NO_GROUP;
        if is_message && !self.has_own_group {
            self.group = group;
        }
        if let Some(key) = (self.ready).at_hand(&self.known[place], self.group, is_message) {
            return key;
        }
        let name = self.name(protection);
        let origin = Origin {
            secret: &self.secret,
            cipher: self.cipher,
            protection,
        };
        let Fetched {
            key,
            was_ready,
            turns,
        } = self.store.fetch(name, self.group, is_message, &origin);
        self.turns |= turns;
        // A key that is found a second time is worth it; others come and go.
        if was_ready {
            let known = &mut self.known[place];
            if known.key.as_ptr() != Arc::as_ptr(&key) {
                known.key = Arc::downgrade(&key);
            }
            known.remembered = self.ready.evictions.load(Relaxed);
        }
        key
    }

    fn name(&self, protection: Protection) -> KeyName {
        KeyName {
            number: self.number << 2 | u64::from(protection.code()),
            epoch: self.epoch,
            table: self.store.node.table,
        }
    }

    fn forget(&mut self) {
        self.in_hand = [None, None, None];
        self.known = Default::default();
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
        DirectionKeys::new(
            store,
            &secret,
            Side::Client,
            CipherSuite::Aes256Gcm,
            NO_GROUP,
        )
    }

    fn memory(store: &KeyStore) -> Vec<u8> {
        let table = &mut store.lock().tables[store.node.table as usize];
        table.as_mut().unwrap().memory.bytes().to_vec()
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
                match self.2.load(Relaxed) {
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
        gone.store(1, Relaxed);
        use_all(&mut keys);
        assert_eq!(store.counters().derivations, 6);
        drop(keys);
    }

    /// A session comes back to a key without the store's lock, and that counts as the hit that it is. Once the key is evicted nobody has it any more: it is
    /// gone with the batch, however often it was used.
    #[test]
    fn an_evicted_key_is_gone_though_its_session_knew_it() {
        let settings = KeyStoreSettings {
            contexts: Geometry::fully_associative(TURNOVER_PARTS).unwrap(),
            prefetch: PrefetchSettings::NONE,
        };
        let store = KeyStore::new(settings, Box::new(vec![])).unwrap();
        let mut keys = direction(&store, 0);
        let use_one = |keys: &mut DirectionKeys| {
            keys.get(Protection::Plain, NO_GROUP);
            keys.release();
        };
        let lookups = 5;
        (0..lookups).for_each(|_| use_one(&mut keys));
        let counters = store.counters().contexts;
        assert_eq!((counters.misses, counters.hits), (1, lookups - 1));
        let known = keys.known[usize::from(Protection::Plain.code())]
            .key
            .clone();
        assert_eq!(known.strong_count(), 1);
        let mut others = [(); TURNOVER_PARTS].map(|()| direction(&store, 1));
        others.iter_mut().for_each(use_one);
        assert_eq!(known.strong_count(), 0);
        let counters = store.counters().contexts;
        assert_eq!((counters.evictions, counters.hits), (1, lookups - 1));
        use_one(&mut keys);
        assert_eq!(store.counters().contexts.misses, counters.misses + 1);
        // Neither does a key outlive its epoch or its session.
        use_one(&mut keys);
        let known = keys.known[usize::from(Protection::Plain.code())]
            .key
            .clone();
        assert_eq!(known.strong_count(), 1);
        keys.advance();
        assert_eq!(known.strong_count(), 0);
        let hits = store.counters().contexts.hits;
        drop((keys, others));
        assert_eq!(store.counters().contexts.hits, hits);
    }

    /// Uses without the lock are remembered often enough: a key that is always used stays, whatever else comes and goes.
    #[test]
    fn a_key_in_constant_use_stays() {
        let settings = KeyStoreSettings {
            contexts: Geometry::fully_associative(2 * TURNOVER_PARTS).unwrap(),
            prefetch: PrefetchSettings::NONE,
        };
        let store = KeyStore::new(settings, Box::new(vec![])).unwrap();
        let mut constant = direction(&store, 0);
        let mut others = [(); 4 * TURNOVER_PARTS].map(|()| direction(&store, 1));
        for _ in 0..4 {
            for other in &mut others {
                for keys in [other, &mut constant] {
                    keys.get(Protection::Plain, NO_GROUP);
                    keys.release();
                }
            }
        }
        let counters = store.counters().contexts;
        let rounds = 4 * others.len() as u64;
        assert_eq!((counters.hits, counters.misses), (rounds - 1, rounds + 1));
    }

    /// Whose turn it is follows from messages, and in a node that belongs to a group from that alone: neither control records, as heartbeats, nor
    /// a peer's word change it.
    #[test]
    fn only_messages_are_a_sign_of_a_turn() {
        let store = KeyStore::new(
            KeyStoreSettings::for_contexts(2).unwrap(),
            Box::new(vec![0; 8 * COMPACT_KEY_BYTES]),
        )
        .unwrap();
        let mut keys = [1, 2, NO_GROUP].map(|group| {
            let secret = SessionSecret::from_bytes(&[group as u8; 32]);
            DirectionKeys::new(&store, &secret, Side::Client, CipherSuite::Aes256Gcm, group)
        });
        let active = |keys: &mut DirectionKeys, group| {
            for _ in 0..3 {
                keys.get(Protection::Integrity, group);
                keys.release();
            }
            store.lock().contexts.active()
        };
        assert_eq!(active(&mut keys[0], NO_GROUP), None);
        assert_eq!(active(&mut keys[0], 1), Some(1));
        assert_eq!(active(&mut keys[1], NO_GROUP), Some(1));
        assert_eq!(active(&mut keys[1], 1), Some(2));
        // Who belongs to none goes by the links.
        assert_eq!(active(&mut keys[2], 1), Some(1));
    }

    /// Nodes of one process share what is ready and nothing else: each has its compact keys in its own memory, and takes them along.
    #[test]
    fn nodes_share_ready_keys_and_no_memory() {
        let ready = ReadyKeys::new(KeyStoreSettings::for_contexts(4).unwrap()).unwrap();
        let lent = || Box::new(vec![0; 3 * COMPACT_KEY_BYTES]);
        let stores = [(); 3].map(|()| KeyStore::sharing(&ready, lent()).unwrap());
        let mut keys = [0, 1, 2].map(|number| direction(&stores[number], 1));
        keys.iter_mut().for_each(use_all);
        assert_eq!(stores[0].held(), (4, 9));
        assert_eq!(stores[0].counters().derivations, 9);
        let late = KeyStore::sharing(&ready, lent()).unwrap();
        assert_eq!(late.counters(), StoreCounters::default());
        // The same secret, so the same keys: in each node's memory, in the order of their first use.
        assert_eq!(memory(&stores[0]), memory(&stores[1]));
        let [first, second, third] = keys;
        let [store, other, last] = stores;
        drop((second, other));
        assert_eq!(store.held().1, 6);
        let again = KeyStore::sharing(&ready, lent()).unwrap();
        assert!(memory(&again).iter().all(|&byte| byte == 0));
        assert_ne!(memory(&store), memory(&again));
        drop((first, third, last, store));
        assert_eq!(again.held(), (0, 0));
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
