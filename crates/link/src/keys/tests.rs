//! What a store does inside: what stands in memory, and who holds what.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use super::ready::TURNOVER_PARTS;
use super::{
    COMPACT_KEY_BYTES, CipherSuite, DirectionKeys, EpochSecret, Geometry, KeyMemory, KeyStore,
    ReadyKeys, SessionSecret, StoreCounters, room_for_sessions,
};
use crate::protection::Protection;
use crate::session::Side;

fn direction(store: &KeyStore, secret: u8) -> DirectionKeys {
    let secret = SessionSecret::from_bytes(&[secret; 32]);
    DirectionKeys::new(store, &secret, Side::Client, CipherSuite::Aes256Gcm)
}

fn memory(store: &KeyStore) -> Vec<u8> {
    let table = &mut store.lock().tables[store.node.table as usize];
    table.as_mut().unwrap().memory.bytes().to_vec()
}

fn use_all(keys: &mut DirectionKeys) {
    for protection in Protection::ALL {
        keys.get(protection);
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
    let memory_of_one = Box::new(vec![0; COMPACT_KEY_BYTES]);
    let store = KeyStore::new(room_for_sessions(1), memory_of_one).unwrap();
    let (mut first, mut second) = (direction(&store, 1), direction(&store, 2));
    first.get(Protection::Plain);
    let before = memory(&store);
    second.get(Protection::Plain);
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
    let room = Geometry::fully_associative(1).unwrap();
    let lent = (Gone, vec![0; 4 * COMPACT_KEY_BYTES], Arc::clone(&gone));
    let store = KeyStore::new(room, Box::new(lent)).unwrap();
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
    let room = Geometry::fully_associative(TURNOVER_PARTS).unwrap();
    let store = KeyStore::new(room, Box::new(vec![])).unwrap();
    let mut keys = direction(&store, 0);
    let use_one = |keys: &mut DirectionKeys| {
        keys.get(Protection::Plain);
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
    let room = Geometry::fully_associative(2 * TURNOVER_PARTS).unwrap();
    let store = KeyStore::new(room, Box::new(vec![])).unwrap();
    let mut constant = direction(&store, 0);
    let mut others = [(); 4 * TURNOVER_PARTS].map(|()| direction(&store, 1));
    for _ in 0..4 {
        for other in &mut others {
            for keys in [other, &mut constant] {
                keys.get(Protection::Plain);
                keys.release();
            }
        }
    }
    let counters = store.counters().contexts;
    let rounds = 4 * others.len() as u64;
    assert_eq!((counters.hits, counters.misses), (rounds - 1, rounds + 1));
}

/// Nodes of one process share what is ready and nothing else: each has its compact keys in its own memory, and takes them along.
#[test]
fn nodes_share_ready_keys_and_no_memory() {
    let ready = ReadyKeys::new(Geometry::fully_associative(4).unwrap());
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
    let room = Geometry::fully_associative(1).unwrap();
    let store = KeyStore::new(room, Box::new(vec![])).unwrap();
    let mut keys = direction(&store, 1);
    let seal = |keys: &mut DirectionKeys| {
        let key = keys.get(Protection::Plain);
        key.seal(0, b"", &mut []).unwrap()
    };
    let first = seal(&mut keys);
    let mut other = direction(&store, 2);
    other.get(Protection::Plain);
    let misses = store.counters().contexts.misses;
    assert_eq!(seal(&mut keys), first);
    assert_eq!(store.counters().contexts.misses, misses);
    keys.release();
    assert_eq!(seal(&mut keys), first);
    assert_eq!(store.counters().contexts.misses, misses + 1);
}
