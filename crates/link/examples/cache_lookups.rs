//! How many lookups a second the cache does by itself: 1,024 entries, about 99 of 100 lookups hit.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement reads a clock and prints"
)]

use std::hint::black_box;
use std::time::Instant;

use exoskel_link::keys::{Cache, Clock, Geometry, LeastRecentlyUsed, Replacement, S3Fifo};

const ENTRIES: usize = 1024;
const LOOKUPS: usize = 8_000_000;

fn keys() -> Vec<u32> {
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 32) * below) >> 32
    };
    (0..LOOKUPS)
        .map(|_| match draw(100) {
            0 => 1000 + draw(1_000_000) as u32,
            _ => draw(900) as u32,
        })
        .collect()
}

fn run<P: Replacement>(name: &str, ways: usize, keys: &[u32]) {
    let geometry = Geometry::set_associative(ENTRIES, ways).unwrap();
    let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        cache.reset_counters();
        let start = Instant::now();
        for &key in keys {
            if cache.get(key).is_none() {
                black_box(cache.insert(key, key));
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:8} {ways:5} ways {:6.1} M lookups/s, {:.2} % hits",
        keys.len() as f64 / best / 1e6,
        100.0 * cache.counters().hit_rate()
    );
}

fn main() {
    let keys = keys();
    for ways in [ENTRIES, 16, 1] {
        run::<LeastRecentlyUsed>("LRU", ways, &keys);
        run::<Clock>("CLOCK", ways, &keys);
        run::<S3Fifo>("S3-FIFO", ways, &keys);
    }
}
