//! What the prefetch buffer beside a cache does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use exoskel_keycache::{PrefetchError, PrefetchSettings, PrefetchingCache, PrefetchingCounters};
use exoskel_link::keys::Geometry;
use proptest::prelude::*;

proptest! {
    /// Cache and buffer never hold a key twice, a value is always its key's, and every lookup counts once.
    #[test]
    fn a_key_is_in_one_place(
        entries in 1_usize..6,
        buffer in 0_usize..5,
        steps in prop::collection::vec((0_u16..4, 0_u32..12, 0_u8..12), 0..400),
    ) {
        let geometry = Geometry::fully_associative(entries).unwrap();
        let settings = PrefetchSettings { buffer, groups: 3, frequent: 4 };
        let mut cache: PrefetchingCache<u16, u32, u32> =
            PrefetchingCache::new(geometry, settings).unwrap();
        let (mut lookups, mut active) = (0, None);
        for (group, key, step) in steps {
            // A key is one group's for ever.
            let key = key * 4 + u32::from(group);
            match step {
                0 => cache.settle(),
                1 => {
                    active = Some(group);
                    cache.activate(0, active);
                }
                2 | 3 => {
                    let mut wanted = vec![];
                    cache.wanted(group, &mut wanted);
                    prop_assert!(wanted.len() <= buffer);
                    prop_assert!(wanted.is_empty() || active != Some(group));
                    for key in wanted {
                        prop_assert!(cache.peek(key).is_none());
                        prop_assert_eq!(key % 4, u32::from(group));
                        cache.fill(group, key, key * 5);
                        prop_assert!(cache.peek(key).is_some());
                    }
                    let mut still = vec![];
                    cache.wanted(group, &mut still);
                    prop_assert_eq!(still, [0_u32; 0]);
                }
                _ => {
                    lookups += 1;
                    let known = cache.peek(key).is_some();
                    let found = cache.get(key);
                    prop_assert_eq!(found, known.then_some(key * 5));
                    if found.is_none() {
                        cache.insert(group, key, key * 5);
                    }
                    prop_assert_eq!(cache.peek(key), Some(key * 5));
                }
            }
            let (cached, buffered) = cache.held();
            prop_assert!(cached <= entries && buffered <= buffer);
            prop_assert_eq!(cache.counters().lookups(), lookups);
        }
    }
}

fn prefetching(entries: usize, buffer: usize) -> PrefetchingCache<u16, u32, &'static str> {
    let settings = PrefetchSettings {
        buffer,
        groups: 2,
        frequent: 4,
    };
    PrefetchingCache::new(Geometry::fully_associative(entries).unwrap(), settings).unwrap()
}

fn wanted(cache: &mut PrefetchingCache<u16, u32, &'static str>, group: u16) -> Vec<u32> {
    let mut keys = vec![];
    cache.wanted(group, &mut keys);
    keys
}

/// The paper's scheme once through: evictions make a group's list, a message for the group brings the keys back, a hit in the
/// buffer moves a key into the cache and another one out.
#[test]
fn a_group_that_comes_back_finds_its_keys() {
    let mut cache = prefetching(2, 2);
    cache.activate(0, Some(1));
    cache.insert(1, 10, "ten");
    cache.insert(1, 11, "eleven");
    assert_eq!(cache.get(11), Some("eleven"));
    assert_eq!(cache.insert(2, 20, "twenty"), Some((10, "ten")));
    assert_eq!(cache.insert(2, 21, "twenty-one"), Some((11, "eleven")));
    cache.activate(0, Some(2));
    assert_eq!(wanted(&mut cache, 1), [0_u32; 0]);
    cache.settle();
    assert_eq!(wanted(&mut cache, 1), [11, 10]);
    assert_eq!(wanted(&mut cache, 2), [0_u32; 0]);
    for (key, value) in [(11, "eleven"), (10, "ten")] {
        cache.fill(1, key, value);
    }
    assert_eq!(cache.held(), (2, 2));
    assert_eq!(wanted(&mut cache, 1), [0_u32; 0]);
    assert_eq!(cache.get(10), Some("ten"));
    assert_eq!(cache.held(), (2, 1));
    assert_eq!(cache.peek(20), None);
    assert_eq!(cache.get(30), None);
    assert_eq!(
        cache.counters(),
        PrefetchingCounters {
            hits: 1,
            misses: 1,
            prefetch_hits: 1,
            evictions: 3,
            prefetches: 2
        }
    );
    cache.activate(0, None);
    cache.settle();
    assert_eq!(wanted(&mut cache, 2), [20]);
}

/// A node with several processors has as many groups that need no prefetching.
#[test]
fn each_processor_has_an_active_group() {
    let mut cache = prefetching(1, 2);
    for (group, key) in [(1, 10), (2, 20), (3, 30)] {
        cache.insert(group, key, "");
    }
    cache.settle();
    assert_eq!(wanted(&mut cache, 1), [10]);
    cache.activate(0, Some(1));
    cache.activate(1, Some(2));
    assert_eq!(wanted(&mut cache, 1), [0_u32; 0]);
    assert_eq!(wanted(&mut cache, 2), [0_u32; 0]);
    cache.activate(0, None);
    assert_eq!(wanted(&mut cache, 1), [10]);
    assert_eq!(wanted(&mut cache, 2), [0_u32; 0]);
}

/// The heaviest keys are wanted, no more than the buffer holds, and a list that is full gives up its lightest.
#[test]
fn the_heaviest_keys_are_wanted() {
    let mut cache = prefetching(1, 3);
    for (key, uses) in [(1, 5), (2, 9), (3, 2), (4, 7), (5, 3), (6, 1), (7, 1)] {
        cache.insert(9, key, "");
        for _ in 1..uses {
            assert!(cache.get(key).is_some());
        }
    }
    cache.insert(8, 100, "");
    cache.settle();
    // 3 was the lightest when 5 came; 5's weight fell to 1 and then to nothing while 6 and 7 knocked, and 7 took its place.
    assert_eq!(wanted(&mut cache, 9), [2, 4, 1]);
    cache.fill(9, 2, "");
    assert_eq!(wanted(&mut cache, 9), [4, 1]);
}

/// Only so many groups are remembered: the one that was evicted from longest ago is forgotten.
#[test]
fn the_oldest_group_is_forgotten() {
    let mut cache = prefetching(1, 1);
    for (group, key) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
        cache.insert(group, key, "");
    }
    cache.settle();
    assert_eq!(wanted(&mut cache, 1), [0_u32; 0]);
    assert_eq!(wanted(&mut cache, 2), [2]);
    assert_eq!(wanted(&mut cache, 3), [3]);
}

#[test]
fn a_cache_without_a_buffer_prefetches_nothing() {
    let geometry = Geometry::fully_associative(1).unwrap();
    let mut cache: PrefetchingCache<u16, u32, ()> =
        PrefetchingCache::new(geometry, PrefetchSettings::NONE).unwrap();
    cache.insert(1, 1, ());
    cache.insert(1, 2, ());
    cache.settle();
    cache.fill(1, 1, ());
    let mut keys = vec![];
    cache.wanted(1, &mut keys);
    assert_eq!((keys, cache.peek(1)), (vec![], None));
    assert_eq!(cache.counters().evictions, 1);
}

#[test]
fn impossible_prefetching_is_named() {
    let geometry = Geometry::fully_associative(1).unwrap();
    let refused = |groups, frequent| {
        let settings = PrefetchSettings {
            buffer: 1,
            groups,
            frequent,
        };
        PrefetchingCache::<u16, u32, ()>::new(geometry, settings).map(drop)
    };
    assert!(matches!(
        refused(0, 1),
        Err(PrefetchError::Parameter {
            parameter: "groups",
            got: 0,
            ..
        })
    ));
    assert!(matches!(
        refused(1, 0),
        Err(PrefetchError::Parameter {
            parameter: "frequent",
            got: 0,
            ..
        })
    ));
}
