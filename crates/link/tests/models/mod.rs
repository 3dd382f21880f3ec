//! A cache beside models that are too slow to be wrong.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses a part, and one that cannot go on has failed"
)]

use exoskel_link::keys::{Cache, Counters, Geometry, Placement, Replacement};
use proptest::prelude::*;

/// One set of a model: a key goes in or is used; gives whether it was there and which key had to go.
pub(crate) trait Model {
    fn new(ways: usize) -> Self;
    fn touch(&mut self, key: u32) -> (bool, Option<u32>);
    fn remove(&mut self, key: u32) -> bool;
}

/// Runs a cache beside one model for each of its sets.
pub(crate) fn agree<M: Model, P: Replacement>(
    geometry: Geometry,
    steps: &[(u32, u8)],
    removals: bool,
) {
    let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
    let mut models: Vec<M> = (0..geometry.sets())
        .map(|_| M::new(geometry.ways()))
        .collect();
    let mut expected = Counters::default();
    let mut held = 0;
    for &(key, step) in steps {
        let model = &mut models[key as usize % geometry.sets()];
        if removals && step == 0 {
            let known = model.remove(key);
            held -= usize::from(known);
            assert_eq!(cache.remove(key), known.then_some(key * 3));
        } else {
            let (hit, evicted) = model.touch(key);
            assert_eq!(cache.peek(key).is_some(), hit);
            assert_eq!(cache.absent(key).is_none(), hit);
            assert_eq!(cache.get(key).copied(), hit.then_some(key * 3));
            if hit {
                expected.hits += 1;
            } else {
                expected.misses += 1;
                expected.evictions += u64::from(evicted.is_some());
                held += usize::from(evicted.is_none());
                let evicted = evicted.map(|key| (key, key * 3));
                // In one step, or in two so that what goes can be used again.
                if step == 1 {
                    let absent = cache.absent(key).unwrap();
                    assert_eq!(cache.make_room(&absent), evicted);
                    assert_eq!(cache.make_room(&absent), None);
                    assert_eq!(cache.insert(key, key * 3), None);
                } else {
                    assert_eq!(cache.insert(key, key * 3), evicted);
                }
            }
        }
        assert_eq!(cache.counters(), expected);
        assert_eq!(cache.len(), held);
    }
}

/// Shapes of caches. Where there are several sets, a key's set is known from its low bits.
pub(crate) fn geometries() -> impl Strategy<Value = Geometry> {
    let sets = prop_oneof![Just(1_usize), 1_usize..9];
    (sets, 1_usize..24).prop_map(|(sets, ways)| {
        let geometry = Geometry::set_associative(sets * ways, ways).unwrap();
        geometry.placed(match sets {
            1 => Placement::Mixed,
            _ => Placement::LowBits,
        })
    })
}

/// Keys, and what is done with each.
pub(crate) fn steps() -> impl Strategy<Value = Vec<(u32, u8)>> {
    // Few keys beside many, so that some come back often and others never.
    let keys = prop_oneof![0_u32..12, 0_u32..200];
    prop::collection::vec((keys, 0_u8..8), 0..600)
}

/// With removals at any time no slot is lost or given away twice.
pub(crate) fn nothing_is_lost<P: Replacement>(geometry: Geometry, steps: &[(u32, u8)]) {
    let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
    let mut held = std::collections::BTreeSet::new();
    for &(key, step) in steps {
        match step {
            0 => assert_eq!(cache.remove(key).is_some(), held.remove(&key)),
            _ => {
                let known = held.contains(&key);
                match cache.insert(key, key) {
                    Some((gone, _)) => assert_eq!(gone == key, known),
                    None => assert!(held.insert(key)),
                }
                held.retain(|&key| cache.contains(key));
                held.insert(key);
            }
        }
        assert_eq!(cache.len(), held.len());
        assert!(held.iter().all(|&key| cache.peek(key) == Some(&key)));
    }
}
