//! The cache and its policies against models that are too slow to be wrong, and what the prefetch buffer does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod models;

use std::collections::VecDeque;

use exoskel_link::keys::{
    Cache, ClockPolicy, Counters, Geometry, GeometryError, LeastRecentlyUsed, Placement,
    PrefetchError, PrefetchSettings, PrefetchingCache,
};
use models::{Model, agree, geometries, nothing_is_lost, steps};
use proptest::prelude::*;

struct ModelLru {
    ways: usize,
    keys: Vec<u32>,
}

impl Model for ModelLru {
    fn new(ways: usize) -> Self {
        Self { ways, keys: vec![] }
    }

    fn touch(&mut self, key: u32) -> (bool, Option<u32>) {
        let known = self.remove(key);
        let evicted = (self.keys.len() == self.ways).then(|| self.keys.remove(0));
        self.keys.push(key);
        (known, evicted)
    }

    fn remove(&mut self, key: u32) -> bool {
        let before = self.keys.len();
        self.keys.retain(|&held| held != key);
        before != self.keys.len()
    }
}

/// CLOCK as a queue with second chances, which it is as long as nothing is removed.
struct ModelClock {
    ways: usize,
    queue: VecDeque<(u32, bool)>,
}

impl Model for ModelClock {
    fn new(ways: usize) -> Self {
        Self {
            ways,
            queue: VecDeque::new(),
        }
    }

    fn touch(&mut self, key: u32) -> (bool, Option<u32>) {
        if let Some(held) = self.queue.iter_mut().find(|held| held.0 == key) {
            held.1 = true;
            return (true, None);
        }
        let mut evicted = None;
        while self.queue.len() == self.ways {
            let (oldest, marked) = self.queue.pop_front().unwrap();
            if marked {
                self.queue.push_back((oldest, false));
            } else {
                evicted = Some(oldest);
            }
        }
        self.queue.push_back((key, false));
        (false, evicted)
    }

    fn remove(&mut self, _key: u32) -> bool {
        unreachable!("the place that a removal leaves is no queue's")
    }
}

proptest! {
    #[test]
    fn least_recently_used_is_what_a_list_says(geometry in geometries(), steps in steps()) {
        agree::<ModelLru, LeastRecentlyUsed>(geometry, &steps, true);
    }

    #[test]
    fn clock_is_what_a_queue_with_second_chances_says(geometry in geometries(), steps in steps()) {
        agree::<ModelClock, ClockPolicy>(geometry, &steps, false);
    }

    /// With removals at any time no policy loses a slot or gives one away twice.
    #[test]
    fn what_goes_in_is_held_or_comes_out(geometry in geometries(), steps in steps()) {
        nothing_is_lost::<LeastRecentlyUsed>(geometry, &steps);
        nothing_is_lost::<ClockPolicy>(geometry, &steps);
    }

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
        let mut lookups = 0;
        for (group, key, step) in steps {
            // A key is one group's for ever.
            let key = key * 4 + u32::from(group);
            match step {
                0 => cache.settle(),
                1 => cache.activate(Some(group)),
                2 => {
                    let known = cache.peek(key).is_some();
                    prop_assert_eq!(cache.remove(group, key).is_some(), known);
                    prop_assert!(cache.peek(key).is_none());
                }
                3 | 4 => {
                    let mut wanted = vec![];
                    cache.wanted(group, &mut wanted);
                    prop_assert!(wanted.len() <= buffer);
                    prop_assert!(wanted.is_empty() || cache.active() != Some(group));
                    for key in wanted {
                        prop_assert!(cache.peek(key).is_none());
                        prop_assert_eq!(key % 4, u32::from(group));
                        cache.fill(group, key, key * 5);
                        prop_assert!(cache.peek(key).is_some());
                    }
                    let mut still = vec![];
                    cache.wanted(group, &mut still);
                    prop_assert_eq!(still, vec![]);
                }
                _ => {
                    lookups += 1;
                    let known = cache.peek(key).is_some();
                    let found = cache.get(key).copied();
                    prop_assert_eq!(found, known.then_some(key * 5));
                    if found.is_none() {
                        cache.insert(group, key, key * 5);
                    }
                    prop_assert_eq!(cache.peek(key), Some(&(key * 5)));
                }
            }
            prop_assert!(cache.len() <= entries);
            prop_assert!(cache.buffered() <= buffer);
            prop_assert_eq!(cache.counters().lookups(), lookups);
        }
    }
}

#[test]
fn impossible_geometries_are_named() {
    let zero = |parameter| Err(GeometryError::Zero { parameter });
    assert_eq!(Geometry::set_associative(0, 1), zero("entries"));
    assert_eq!(Geometry::set_associative(4, 0), zero("ways"));
    assert_eq!(Geometry::fully_associative(0), zero("entries"));
    assert_eq!(
        Geometry::set_associative(4, 8),
        Err(GeometryError::TooManyWays {
            ways: 8,
            entries: 4
        })
    );
    assert_eq!(
        Geometry::set_associative(10, 4),
        Err(GeometryError::Uneven {
            entries: 10,
            ways: 4
        })
    );
    let entries = 1 << 40;
    assert_eq!(
        Geometry::fully_associative(entries),
        Err(GeometryError::TooManyEntries { entries })
    );
}

/// Sequential identifiers fall into the sets in turn, as with hardware that takes their low bits.
#[test]
fn low_bits_place_sequential_keys_in_turn() {
    for (entries, ways) in [(64, 4), (60, 4)] {
        let geometry = Geometry::set_associative(entries, ways).unwrap();
        let geometry = geometry.placed(Placement::LowBits);
        let mut cache: Cache<u32, ()> = Cache::new(geometry);
        for key in 0..entries as u32 {
            assert_eq!(cache.insert(key, ()), None);
        }
        assert_eq!(cache.insert(entries as u32, ()), Some((0, ())));
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
    cache.activate(Some(1));
    cache.insert(1, 10, "ten");
    cache.insert(1, 11, "eleven");
    assert_eq!(cache.get(11), Some(&mut "eleven"));
    assert_eq!(cache.insert(2, 20, "twenty"), Some((10, "ten")));
    assert_eq!(cache.insert(2, 21, "twenty-one"), Some((11, "eleven")));
    cache.activate(Some(2));
    assert_eq!(wanted(&mut cache, 1), []);
    cache.settle();
    assert_eq!(wanted(&mut cache, 1), [11, 10]);
    assert_eq!(wanted(&mut cache, 2), []);
    for (key, value) in [(11, "eleven"), (10, "ten")] {
        cache.fill(1, key, value);
    }
    assert_eq!((cache.len(), cache.buffered()), (2, 2));
    assert_eq!(wanted(&mut cache, 1), []);
    assert_eq!(cache.get(10), Some(&mut "ten"));
    assert_eq!((cache.len(), cache.buffered()), (2, 1));
    assert_eq!(cache.peek(20), None);
    assert_eq!(cache.get(30), None);
    assert_eq!(
        cache.counters(),
        Counters {
            hits: 1,
            misses: 1,
            prefetch_hits: 1,
            evictions: 3,
            prefetches: 2
        }
    );
    cache.activate(None);
    cache.settle();
    assert_eq!(wanted(&mut cache, 2), [20]);
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
    assert!(cache.remove(9, 2).is_none());
    assert_eq!(wanted(&mut cache, 9), [4, 1, 7]);
}

/// Only so many groups are remembered: the one that was evicted from longest ago is forgotten.
#[test]
fn the_oldest_group_is_forgotten() {
    let mut cache = prefetching(1, 1);
    for (group, key) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
        cache.insert(group, key, "");
    }
    cache.settle();
    assert_eq!(wanted(&mut cache, 1), []);
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
