//! One direction of a session and its way to its keys.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::name::{KeyName, KeyOrigin};
use super::ready::{Fetched, KnownKey, ReadyKey, ReadyKeys};
use super::schedule::{CipherSuite, EpochSecret, RecordKey, SessionSecret};
use super::store::KeyStore;
use crate::protection::Protection;
use crate::session::Side;

/// One direction of a session and its way to its keys: the epoch and its secret are here, the keys are in the store.
pub struct DirectionKeys {
    /// Of the store, and here because each batch looks at it.
    ready: Arc<ReadyKeys>,
    store: KeyStore,
    number: u64,
    cipher: CipherSuite,
    secret: EpochSecret,
    epoch: u64,
    /// By protection, what the batch that is under way has used.
    in_hand: [Option<Arc<ReadyKey>>; 3],
    pub(super) known: [KnownKey; 3],
}

impl DirectionKeys {
    /// The keys of the direction in which `sender` writes, in its first epoch.
    pub fn new(
        store: &KeyStore,
        secret: &SessionSecret,
        sender: Side,
        cipher: CipherSuite,
    ) -> Self {
        let ready = Arc::clone(&store.node.ready);
        Self {
            store: store.clone(),
            number: ready.directions.fetch_add(1, Relaxed),
            cipher,
            secret: EpochSecret::first(secret, sender),
            epoch: 0,
            in_hand: [None, None, None],
            known: Default::default(),
            ready,
        }
    }

    /// How often the keys were changed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The key for a record of this protection, for as long as the batch lasts.
    #[inline]
    pub fn get(&mut self, protection: Protection) -> &RecordKey {
        let place = usize::from(protection.code());
        let key = match self.in_hand[place].take() {
            Some(key) => key,
            None => self.find(place, protection),
        };
        &self.in_hand[place].insert(key).key
    }

    /// Ends a batch of records: the store's hold on the keys is the only one again.
    #[inline]
    pub fn release(&mut self) {
        self.in_hand = [None, None, None];
    }

    /// Moves on to the next epoch and erases what there is of this one.
    pub fn advance(&mut self) {
        self.forget();
        self.secret = self.secret.next();
        self.epoch += 1;
    }

    fn find(&mut self, place: usize, protection: Protection) -> Arc<ReadyKey> {
        if let Some(key) = self.ready.at_hand(&self.known[place]) {
            return key;
        }
        let name = self.name(protection);
        let origin = KeyOrigin {
            secret: &self.secret,
            cipher: self.cipher,
            protection,
        };
        let Fetched { key, was_ready } = self.store.fetch(name, &origin);
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
        self.store.forget(names);
    }
}

impl Drop for DirectionKeys {
    fn drop(&mut self) {
        self.forget();
    }
}
