//! What keys cost: ready ones, cached ones, ones made again, and the alternatives. Prints JSON; `make bench-keys` makes a table of it.
//!
//! All seals are AES-256-GCM with 16 covered bytes. Every figure is the median of several rounds in which the candidates take turns, in
//! nanoseconds for each message.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement reads a clock, prints, and stops at whatever fails"
)]

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cmac;
use exoskel_identity::Role;
use exoskel_link::keys::{
    COMPACT_KEY_BYTES, Cache, ClockPolicy, DirectionKeys, Geometry, KeyStore, LeastRecentlyUsed,
    Replacement,
};
use exoskel_link::{CipherSuite, Protection, SessionSecret, Side, vectors};
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::tls::{Handshake, Tls};
use rustls_pki_types::UnixTime;

const COVERED: [u8; 16] = [7; 16];
/// Contexts of the cache: what a node has by default.
const CONTEXTS: usize = 4096;
/// Contexts of the small cache in the table, which stays in the second-level cache of one core.
const FEW_CONTEXTS: usize = 256;
/// Peers of one job, and messages of one turn of a job, in the table.
const JOB_PEERS: usize = 16;
const TURN_MESSAGES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let quick = std::env::args().any(|word| word == "--quick");
    let rounds = if quick { 3 } else { 9 };
    println!("{{");
    println!("\"ratios\": {},", ratios(rounds)?);
    println!("\"lookups_per_second\": {},", lookups());
    println!("\"table\": [");
    let most = if quick { 65_536 } else { 1_000_000 };
    let sizes = [16, 256, 4096, 65_536, 1_000_000];
    let lines: Vec<String> = sizes
        .into_iter()
        .filter(|&keys| keys <= most)
        .flat_map(|keys| table(keys, if quick { 1 } else { 3 }))
        .collect();
    println!("{}\n]\n}}", lines.join(",\n"));
    Ok(())
}

/// Numbers that look like chance and are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * bound as u64) >> 32) as usize
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A key handle as a program without a store would have it.
struct Handle {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl Handle {
    fn new(key: &[u8; 32], iv: [u8; 12]) -> Self {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).unwrap());
        Self { key, iv }
    }

    fn seal(&self, number: u64, body: &mut [u8]) -> [u8; 16] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&COVERED), body)
            .unwrap();
        tag.as_ref().try_into().unwrap()
    }
}

fn secret(number: usize) -> [u8; 32] {
    let mut bytes = [9; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

fn handle(number: usize) -> Handle {
    let (key, iv) = vectors::record_key(
        &secret(number),
        Side::Client,
        0,
        CipherSuite::Aes256Gcm,
        Protection::Encrypted,
    );
    Handle::new(&key, iv)
}

/// A store and one direction of so many sessions in it.
struct Node {
    store: KeyStore,
    directions: Vec<DirectionKeys>,
}

impl Node {
    fn new(peers: usize, contexts: usize, compact: usize) -> Self {
        let room = Geometry::fully_associative(contexts).unwrap();
        let memory = vec![0; compact * COMPACT_KEY_BYTES];
        let store = KeyStore::new(room, Box::new(memory)).unwrap();
        let direction = |number| {
            let secret = SessionSecret::from_bytes(&secret(number));
            DirectionKeys::new(&store, &secret, Side::Client, CipherSuite::Aes256Gcm)
        };
        let directions = (0..peers).map(direction).collect();
        Self { store, directions }
    }

    /// Seals a batch of messages to one peer.
    fn seal(&mut self, peer: usize, number: u64, batch: u64, body: &mut [u8]) {
        let keys = &mut self.directions[peer];
        for message in 0..batch {
            let key = keys.get(Protection::Encrypted);
            black_box(key.seal(number + message, &COVERED, body).unwrap());
        }
        keys.release();
    }

    /// Has every peer's key compact, and the last ones' ready.
    fn warm(&mut self, body: &mut [u8]) {
        for peer in 0..self.directions.len() {
            self.seal(peer, 0, 1, body);
        }
    }
}

/// Nanoseconds for each of so many calls.
fn time(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(&mut call);
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// The goals: everything in one run, 64-byte messages, each candidate once a round.
fn ratios(rounds: usize) -> Result<String, Box<dyn Error>> {
    const PEERS: usize = 256;
    const MANY: usize = 65_536;
    const CALLS: usize = 100_000;
    let mut draw = Draw(1);
    let mut body = [0; 64];
    let order: Vec<usize> = (0..CALLS).map(|_| draw.below(PEERS)).collect();
    // 99 of 100 messages go to the first 256 peers.
    let skewed: Vec<usize> = (0..CALLS)
        .map(|_| match draw.below(100) {
            0 => PEERS + draw.below(MANY - PEERS),
            _ => draw.below(PEERS),
        })
        .collect();
    let handles: Vec<Handle> = (0..PEERS).map(handle).collect();
    let mut cache: Cache<u64, Handle> = Cache::new(Geometry::fully_associative(CONTEXTS)?);
    for number in 0..PEERS {
        cache.insert(number as u64, handle(number));
    }
    let mut hot = Node::new(PEERS, CONTEXTS, PEERS);
    let mut missing = Node::new(PEERS, 1, PEERS);
    let mut deriving = Node::new(PEERS, 1, 0);
    let mut many = Node::new(MANY, CONTEXTS, MANY);
    for node in [&mut hot, &mut missing, &mut deriving, &mut many] {
        node.warm(&mut body);
    }
    // Neighbours differ, so that a cache of one context misses at every message.
    let turns = |call: usize| call % PEERS;
    let names = [
        "direct",
        "cache_hit",
        "store_hit",
        "store_hit_batch_of_8",
        "miss_compact",
        "miss_derived",
        "all_hot",
        "skewed",
        "new_key",
        "handshake",
    ];
    let mut seen = vec![Vec::new(); names.len()];
    let site = Site::new()?;
    for _ in 0..rounds {
        let mut column = 0;
        let mut note = |value| {
            seen[column].push(value);
            column += 1;
        };
        note(time(CALLS, |call| {
            black_box(handles[order[call]].seal(call as u64, &mut body));
        }));
        note(time(CALLS, |call| {
            let key = cache.get(order[call] as u64).unwrap();
            black_box(key.seal(call as u64, &mut body));
        }));
        note(time(CALLS, |call| {
            hot.seal(order[call], call as u64, 1, &mut body);
        }));
        note(
            time(CALLS / 8, |call| {
                hot.seal(order[call], 8 * call as u64, 8, &mut body);
            }) / 8.0,
        );
        note(time(CALLS / 4, |call| {
            missing.seal(turns(call), call as u64, 1, &mut body);
        }));
        note(time(CALLS / 4, |call| {
            deriving.seal(turns(call), call as u64, 1, &mut body);
        }));
        note(time(CALLS, |call| {
            many.seal(order[call], call as u64, 1, &mut body);
        }));
        note(time(CALLS, |call| {
            many.seal(skewed[call], call as u64, 1, &mut body);
        }));
        let store = &hot.store;
        note(time(CALLS / 10, |call| {
            let secret = SessionSecret::from_bytes(&secret(call));
            let mut keys = DirectionKeys::new(store, &secret, Side::Client, CipherSuite::Aes256Gcm);
            black_box(keys.get(Protection::Encrypted));
        }));
        note(site.handshakes(Duration::from_millis(300)));
    }
    let entries: Vec<String> = names
        .iter()
        .zip(seen)
        .map(|(name, values)| {
            let all: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            format!("\"{name}\": [{}]", all.join(", "))
        })
        .collect();
    Ok(format!("{{{}}}", entries.join(", ")))
}

/// Two who can prove to each other who they are.
struct Site {
    client: exoskel_identity::Credential,
    server: exoskel_identity::Credential,
}

impl Site {
    fn new() -> Result<Self, Box<dyn Error>> {
        let now = UnixTime::since_unix_epoch(SystemTime::now().duration_since(UNIX_EPOCH)?);
        let authority = ThrowAwayAuthority::new(now)?;
        Ok(Self {
            client: authority.issue(Role::Manager, "head", now)?,
            server: authority.issue(Role::Worker, "node", now)?,
        })
    }

    /// Nanoseconds of one mutual TLS 1.3 handshake, both ends of it on this processor, as sessions begin with.
    fn handshakes(&self, at_least: Duration) -> f64 {
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < at_least {
            self.handshake();
            count += 1;
        }
        start.elapsed().as_nanos() as f64 / f64::from(count)
    }

    fn handshake(&self) {
        let verifier =
            |credential: &exoskel_identity::Credential| Arc::new(credential.authority(1).unwrap());
        let mut client = Tls::client(
            &self.client,
            verifier(&self.client),
            vec![Role::Worker],
            None,
        )
        .unwrap();
        let mut server =
            Tls::server(&self.server, verifier(&self.server), vec![Role::Manager]).unwrap();
        while !(client.is_complete() && server.is_complete()) {
            carry(&mut client, &mut server);
            carry(&mut server, &mut client);
        }
    }
}

fn carry(from: &mut Tls, to: &mut Tls) {
    let mut bytes = Vec::new();
    from.take_outgoing(&mut bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let length = 5 + usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        to.receive(&rest[..length]).unwrap();
        rest = &rest[length..];
    }
}

/// The cache by itself: 1,024 entries, fully associative, about 99 of 100 lookups hit.
fn lookups() -> String {
    fn run<P: Replacement>(keys: &[u32]) -> f64 {
        let geometry = Geometry::fully_associative(1024).unwrap();
        let mut cache: Cache<u32, u32, P> = Cache::new(geometry);
        let round = |_| {
            1e9 / time(keys.len(), |call| {
                let key = keys[call];
                if cache.get(key).is_none() {
                    black_box(cache.insert(key, key));
                }
            })
        };
        median((0..3).map(round).collect())
    }
    let mut draw = Draw(2);
    let keys: Vec<u32> = (0..4_000_000)
        .map(|_| match draw.below(100) {
            0 => 1000 + draw.below(1_000_000) as u32,
            _ => draw.below(900) as u32,
        })
        .collect();
    format!(
        "{{\"lru\": {:.0}, \"clock\": {:.0}}}",
        run::<LeastRecentlyUsed>(&keys),
        run::<ClockPolicy>(&keys)
    )
}

/// One line of JSON for each length of messages: the four ways over so many live keys, with two kinds of traffic.
///
/// `even`: each message goes to any peer. `jobs`: the peers are in jobs of 16; a job sends 64 messages, each to any peer of its own, then
/// it is any other job's turn.
fn table(keys: usize, rounds: usize) -> Vec<String> {
    let ready: Vec<Handle> = (0..keys).map(handle).collect();
    let jobs = keys.div_ceil(JOB_PEERS);
    let mut body = vec![0; 2048];
    let mut small = Node::new(keys, FEW_CONTEXTS, keys);
    small.warm(&mut body[..32]);
    let mut cached = Node::new(keys, CONTEXTS, keys);
    cached.warm(&mut body[..32]);
    let mut deriving = Node::new(keys, 1, 0);
    // What a device has that derives each key from one of its own and a number in the packet (PSP, section on key derivation).
    let master = cmac::Key::new(cmac::AES_256, &secret(0)).unwrap();
    let mut draw = Draw(3);
    // So many messages that the memory of their keys doesn't stay close and look fast.
    let calls = keys.clamp(1 << 15, 1 << 18) / TURN_MESSAGES * TURN_MESSAGES;
    let even: Vec<usize> = (0..calls).map(|_| draw.below(keys)).collect();
    let turns: Vec<usize> = (0..calls / TURN_MESSAGES)
        .map(|_| draw.below(jobs))
        .collect();
    let in_jobs: Vec<usize> = (0..calls)
        .map(|call| {
            let job = turns[call / TURN_MESSAGES] * JOB_PEERS;
            (job + draw.below(JOB_PEERS)).min(keys - 1)
        })
        .collect();
    let mut lines = Vec::new();
    for bytes in [32, 64, 256, 1024, 2048] {
        let body = &mut body[..bytes];
        for (traffic, order) in [("even", &even), ("jobs", &in_jobs)] {
            let names = [
                "ready",
                "small_cache",
                "cache",
                "derive_hkdf",
                "derive_cmac",
            ];
            let mut seen = vec![Vec::new(); names.len()];
            let mut hit_rates = [0.0; 2];
            // A derivation costs the same whatever came before it.
            let few = calls.min(1 << 15);
            for _ in 0..rounds {
                seen[0].push(time(calls, |call| {
                    black_box(ready[order[call]].seal(call as u64, body));
                }));
                for (column, node) in [&mut small, &mut cached].into_iter().enumerate() {
                    let before = node.store.counters().contexts;
                    seen[1 + column].push(time(calls, |call| {
                        node.seal(order[call], call as u64, 1, body);
                    }));
                    let after = node.store.counters().contexts;
                    let lookups = after.lookups() - before.lookups();
                    let misses = after.misses - before.misses;
                    hit_rates[column] = 1.0 - misses as f64 / lookups as f64;
                }
                seen[3].push(time(few, |call| {
                    deriving.seal(order[call], call as u64, 1, body);
                }));
                seen[4].push(time(few, |call| {
                    let mut key = [0; 32];
                    let number = (order[call] as u64).to_be_bytes();
                    for (half, part) in key.chunks_exact_mut(16).enumerate() {
                        let mut input = [0; 16];
                        input[3] = half as u8 + 1;
                        input[8..].copy_from_slice(&number);
                        part.copy_from_slice(cmac::sign(&master, &input).unwrap().as_ref());
                    }
                    black_box(Handle::new(&key, [0; 12]).seal(call as u64, body));
                }));
            }
            let times: Vec<String> = names
                .iter()
                .zip(seen)
                .map(|(name, values)| format!("\"{name}\": {:.1}", median(values)))
                .collect();
            lines.push(format!(
                "{{\"keys\": {keys}, \"bytes\": {bytes}, \"traffic\": \"{traffic}\", {}, \"small_cache_hit_rate\": {:.4}, \"cache_hit_rate\": {:.4}}}",
                times.join(", "),
                hit_rates[0],
                hit_rates[1]
            ));
        }
    }
    lines
}
