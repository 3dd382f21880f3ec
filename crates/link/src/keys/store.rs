//! The keys of all sessions of a node, in three tiers, each cheaper to hold and dearer to use than the one before.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use super::cache::Counters;
use super::compact::{COMPACT_KEY_BYTES, CompactKeys, KeyMemory};
use super::geometry::{Geometry, GeometryError};
use super::name::{KeyName, KeyOrigin};
use super::ready::{Fetched, ReadyKey, ReadyKeys, StoreCounters, Tiers};
use super::settings::{KEYS_OF_SESSION, room_for_sessions};

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
    pub(super) node: Arc<NodeStore>,
}

/// A node's place in what it shares with others.
pub(super) struct NodeStore {
    pub(super) ready: Arc<ReadyKeys>,
    pub(super) table: u32,
    /// What had been done when it came.
    before: StoreCounters,
}

impl Drop for NodeStore {
    fn drop(&mut self) {
        let table = self.ready.lock().tables[self.table as usize].take();
        drop(table);
    }
}

impl KeyStore {
    /// A store with so much room for ready keys, which no other node shares; compact keys are in `memory`, [`COMPACT_KEY_BYTES`] each. With
    /// memory for none, every miss derives.
    ///
    /// # Errors
    /// [`GeometryError`] if the memory is for more keys than can be numbered.
    pub fn new(room: Geometry, memory: Box<dyn KeyMemory>) -> Result<Self, GeometryError> {
        Self::sharing(&ReadyKeys::new(room), memory)
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
        let node = NodeStore {
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
        Self::new(room_for_sessions(sessions), Box::new(memory))
            .expect("so many keys can be numbered")
    }

    /// What was done since this node came, for all nodes that share its ready keys.
    pub fn counters(&self) -> StoreCounters {
        let (now, before) = (self.lock().counters(), self.node.before);
        StoreCounters {
            contexts: Counters {
                hits: now.contexts.hits - before.contexts.hits,
                misses: now.contexts.misses - before.contexts.misses,
                evictions: now.contexts.evictions - before.contexts.evictions,
            },
            expansions: now.expansions - before.expansions,
            derivations: now.derivations - before.derivations,
        }
    }

    /// Expanded contexts and compact keys that it holds now, for all nodes that share its ready keys.
    pub fn held(&self) -> (usize, usize) {
        let tiers = self.lock();
        let tables = tiers.tables.iter().flatten();
        (tiers.contexts.len(), tables.map(CompactKeys::len).sum())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Tiers> {
        self.node.ready.lock()
    }

    /// The key of this name, from the first tier that has it.
    pub(super) fn fetch(&self, name: KeyName, origin: &KeyOrigin<'_>) -> Fetched {
        let mut tiers = self.lock();
        let absent = match tiers.contexts.look_up(name) {
            Ok(key) => {
                return Fetched {
                    key: Arc::clone(key),
                    was_ready: true,
                };
            }
            Err(absent) => absent,
        };
        let expanded = tiers.compact(name).and_then(|table| table.expand(name));
        let key = if let Some(key) = expanded {
            tiers.expansions += 1;
            key
        } else {
            // The longest way, and the only one that is gone without the lock. The key stays absent: this direction alone brings it.
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
        let room = self.node.ready.make_room(&mut tiers, &absent);
        let key = ReadyKey::new(key, room);
        tiers.contexts.fill(absent, Arc::clone(&key));
        Fetched {
            key,
            was_ready: false,
        }
    }

    /// Erases these keys: their epoch or their session is over.
    pub(super) fn forget(&self, names: [KeyName; 3]) {
        let mut tiers = self.lock();
        let mut gone = [None, None, None];
        for (name, gone) in names.into_iter().zip(&mut gone) {
            *gone = tiers.contexts.remove(name);
            if let Some(key) = gone {
                tiers.contexts.add_hits(key.uses.load(Relaxed));
            }
            if let Some(table) = tiers.compact(name) {
                table.remove(name);
            }
        }
        drop(tiers);
        drop(gone);
    }
}
