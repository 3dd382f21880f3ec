//! The keys of all sessions of a node, in three tiers, each cheaper to hold and dearer to use than the one before.
//!
//! * `settings`: how many keys are held ready
//! * `ready`: the first tier, expanded keys; `compact`: the second, in memory that somebody lends
//! * `direction`: one direction of a session, which asks for keys; `name`: what it asks for, and what a key is derived from

mod compact;
mod direction;
mod name;
mod ready;
mod settings;
#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use thiserror::Error;

use super::cache::{Counters, GeometryError};
use super::prefetch::PrefetchError;
use compact::CompactKeys;
use name::{KeyName, KeyOrigin};
use ready::{ReadyKey, Tiers};

pub use compact::{COMPACT_KEY_BYTES, KeyMemory};
pub use direction::DirectionKeys;
pub use ready::{ReadyKeys, StoreCounters};
pub use settings::{KEYS_OF_SESSION, KeyStoreSettings};

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

/// What a lookup in the store gave.
struct Fetched {
    key: Arc<ReadyKey>,
    /// Whether it was there and needed no expansion now.
    was_ready: bool,
    /// Whether its group's keys should be prefetched.
    turns: bool,
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
    fn fetch(
        &self,
        name: KeyName,
        group: u32,
        is_message: bool,
        origin: &KeyOrigin<'_>,
    ) -> Fetched {
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
