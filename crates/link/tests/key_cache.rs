//! The cache and its policies against models that are too slow to be wrong, and what the prefetch buffer does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::collections::VecDeque;

use exoskel_link::keys::{
    Cache, Clock, Counters, Geometry, GeometryError, LeastRecentlyUsed, Placement, PrefetchError,
    PrefetchSettings, PrefetchingCache, Replacement, S3Fifo,
};
use proptest::prelude::*;

/// One set of a model: a key goes in or is used; gives whether it was there and which key had to go.
trait Model {
    fn new(ways: usize) -> Self;
    fn touch(&mut self, key: u32) -> (bool, Option<u32>);
    fn remove(&mut self, key: u32) -> bool;
}

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

/// S3-FIFO as its paper writes it down, with an eviction that stops at the first victim.
struct ModelS3 {
    ways: usize,
    small_max: usize,
    small: VecDeque<(u32, u8)>,
    main: VecDeque<(u32, u8)>,
    ghosts: VecDeque<Option<u32>>,
}

impl ModelS3 {
    fn evict(&mut self) -> u32 {
        loop {
            if self.small.len() >= self.small_max || self.main.is_empty() {
                let (key, uses) = self.small.pop_front().unwrap();
                if uses > 1 {
                    self.main.push_back((key, 0));
                    continue;
                }
                self.ghosts.push_back(Some(key));
                if self.ghosts.len() > self.ways - self.small_max {
                    self.ghosts.pop_front();
                }
                return key;
            }
            let (key, uses) = self.main.pop_front().unwrap();
            if uses == 0 {
                return key;
            }
            self.main.push_back((key, uses - 1));
        }
    }
}

impl Model for ModelS3 {
    fn new(ways: usize) -> Self {
        Self {
            ways,
            small_max: (ways / 10).max(1),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
        }
    }

    fn touch(&mut self, key: u32) -> (bool, Option<u32>) {
        let mut all = self.small.iter_mut().chain(&mut self.main);
        if let Some(held) = all.find(|held| held.0 == key) {
            held.1 = (held.1 + 1).min(3);
            return (true, None);
        }
        let full = self.small.len() + self.main.len() == self.ways;
        let evicted = full.then(|| self.evict());
        // A ghost that was taken leaves its place in the order.
        let ghost = self.ghosts.iter_mut().find(|ghost| **ghost == Some(key));
        if let Some(ghost) = ghost {
            *ghost = None;
            self.main.push_back((key, 0));
        } else {
            self.small.push_back((key, 0));
        }
        (false, evicted)
    }

    fn remove(&mut self, key: u32) -> bool {
        let before = self.small.len() + self.main.len();
        self.small.retain(|held| held.0 != key);
        self.main.retain(|held| held.0 != key);
        before != self.small.len() + self.main.len()
    }
}

/// Runs a cache beside one model for each of its sets.
fn agree<M: Model, P: Replacement>(geometry: Geometry, steps: &[(u32, u8)], removals: bool) {
    let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
    let mut models: Vec<M> = (0..geometry.sets())
        .map(|_| M::new(geometry.ways()))
        .collect();
    let mut expected = Counters::default();
    let mut held = 0;
    for &(key, step) in steps {
        let model = &mut models[geometry.set_of(key)];
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

fn geometries() -> impl Strategy<Value = Geometry> {
    (1_usize..9, 1_usize..24, any::<bool>()).prop_map(|(sets, ways, low)| {
        let geometry = Geometry::set_associative(sets * ways, ways).unwrap();
        geometry.placed(if low {
            Placement::LowBits
        } else {
            Placement::Mixed
        })
    })
}

fn steps() -> impl Strategy<Value = Vec<(u32, u8)>> {
    // Few keys beside many, so that some come back often and others never.
    let keys = prop_oneof![0_u32..12, 0_u32..200];
    prop::collection::vec((keys, 0_u8..8), 0..600)
}

proptest! {
    #[test]
    fn least_recently_used_is_what_a_list_says(geometry in geometries(), steps in steps()) {
        agree::<ModelLru, LeastRecentlyUsed>(geometry, &steps, true);
    }

    #[test]
    fn clock_is_what_a_queue_with_second_chances_says(geometry in geometries(), steps in steps()) {
        agree::<ModelClock, Clock>(geometry, &steps, false);
    }

    #[test]
    fn s3_fifo_is_what_three_queues_say(geometry in geometries(), steps in steps()) {
        agree::<ModelS3, S3Fifo>(geometry, &steps, true);
    }

    /// With removals at any time no policy loses a slot or gives one away twice.
    #[test]
    fn what_goes_in_is_held_or_comes_out(geometry in geometries(), steps in steps()) {
        fn run<P: Replacement>(geometry: Geometry, steps: &[(u32, u8)]) {
            let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
            let mut held = std::collections::BTreeSet::new();
            for (number, &(key, step)) in steps.iter().enumerate() {
                match step {
                    0 => assert_eq!(cache.remove(key).is_some(), held.remove(&key)),
                    1 if number % 16 == 1 => {
                        cache.retain(|key, _| key % 2 == 0);
                        held.retain(|key| key % 2 == 0);
                    }
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
        run::<LeastRecentlyUsed>(geometry, &steps);
        run::<Clock>(geometry, &steps);
        run::<S3Fifo>(geometry, &steps);
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
        let sets = geometry.sets();
        for key in 0..200_u32 {
            assert_eq!(geometry.set_of(key), key as usize % sets);
        }
        let mut cache: Cache<u32, ()> = Cache::new(geometry);
        for key in 0..entries as u32 {
            assert_eq!(cache.insert(key, ()), None);
        }
        assert_eq!(cache.insert(entries as u32, ()), Some((0, ())));
    }
}

/// A mixed placement is the same on every machine: the study's digests rest on it.
#[test]
fn the_mixing_is_fixed() {
    let geometry = Geometry::set_associative(1024, 1).unwrap();
    let sets: Vec<usize> = (0..6_u64).map(|key| geometry.set_of(key)).collect();
    assert_eq!(sets, [904, 580, 605, 116, 441, 396]);
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
