//! The cache and its policies against models that are too slow to be wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod models;

use std::collections::VecDeque;

use exoskel_link::keys::{
    Cache, ClockPolicy, Geometry, GeometryError, LeastRecentlyUsed, Placement,
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
