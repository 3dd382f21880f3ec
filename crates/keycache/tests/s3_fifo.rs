//! S3-FIFO against a model that is too slow to be wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../link/tests/models/mod.rs"]
mod models;

use std::collections::VecDeque;

use exoskel_keycache::S3Fifo;
use models::{Model, agree, geometries, nothing_is_lost, steps};
use proptest::prelude::*;

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

proptest! {
    #[test]
    fn s3_fifo_is_what_three_queues_say(geometry in geometries(), steps in steps()) {
        agree::<ModelS3, S3Fifo>(geometry, &steps, true);
    }

    #[test]
    fn what_goes_in_is_held_or_comes_out(geometry in geometries(), steps in steps()) {
        nothing_is_lost::<S3Fifo>(geometry, &steps);
    }
}
