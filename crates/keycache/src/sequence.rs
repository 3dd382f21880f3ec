//! Sequences of keys without time: how often a cache has the key that comes next.
//!
//! Two kinds of sequences: what the interface of each rank of a [`Trace`] looks up ([`replay`]), and synthetic traffic of many processes that are ON and OFF in turn
//! ([`Traffic`]). Both go through [`exoskel_link::keys::Cache`], the cache of the runtime.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Range, RangeInclusive};

use exoskel_link::keys::{Cache, CacheKey, ClockPolicy, Geometry, LeastRecentlyUsed, Replacement};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ranks_per_card::RanksPerCard;
use crate::s3_fifo::S3Fifo;
use exoskel_determinism::{RunDigest, SplitMix64};
use exoskel_trace::{CollectiveStep, MessageDirection, Operation, Trace, TraceRecord};

/// What the runtime's store adds to the number of a direction for the key of encrypted records.
const ENCRYPTED: u64 = 2;
/// Most keys of synthetic traffic.
pub const KEYS_MAX: u32 = 1 << 24;
/// Most packets of a mean ON period.
pub const PACKETS_PER_ON_MAX: u32 = 1 << 14;
/// Smallest and largest ratio of OFF to ON.
pub const OFF_ON_RANGE: RangeInclusive<f64> = 0.02..=8192.0;

/// Keys that are looked up before somebody is asked whether to go on.
const KEYS_BETWEEN_LOOKS: usize = 1 << 16;

/// A parameter that no sequence has.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SequenceError {
    /// A number out of its range.
    #[error("got {parameter} = {got}, expected 1 to {most}")]
    OutOfRange {
        /// Which one.
        parameter: &'static str,
        /// What was asked for.
        got: u32,
        /// The most it may be.
        most: u32,
    },
    /// The ratio of the two mean times.
    #[error("got off-on = {got}, expected a number from {} to {}", OFF_ON_RANGE.start(), OFF_ON_RANGE.end())]
    OffOn {
        /// What was asked for.
        got: f64,
    },
}

/// What counts as one lookup. It decides what a cache can do: the packets of one message, one after another, find what the first
/// of them has fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A message, whatever its size.
    Message,
    /// A packet with at most so many bytes of payload; the packets of a message come one after another, and a message without
    /// payload is a packet.
    Packet {
        /// Most payload of a packet, in bytes.
        payload_max: u32,
    },
}

impl Lookup {
    /// A lookup for each packet of at most that payload.
    ///
    /// # Errors
    ///
    /// [`SequenceError`] if a packet could carry nothing.
    pub fn packets(payload_max: u32) -> Result<Self, SequenceError> {
        in_range("packet payload", payload_max, u32::MAX)?;
        Ok(Self::Packet { payload_max })
    }

    /// How many a message of that payload is.
    fn count(self, bytes: u32) -> u64 {
        match self {
            Self::Message => 1,
            Self::Packet { payload_max } => u64::from(bytes.div_ceil(payload_max).max(1)),
        }
    }
}

/// Which key of a full set goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplacementPolicy {
    /// The one that was used longest ago.
    #[default]
    #[serde(rename = "lru")]
    LeastRecentlyUsed,
    /// CLOCK.
    Clock,
    /// S3-FIFO.
    S3Fifo,
}

/// How often the key was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// How often one was looked up.
    pub lookups: u64,
    /// How often it was there.
    pub hits: u64,
    /// Of all keys and of what became of each: the same on every machine.
    pub digest: u64,
}

impl Hits {
    /// The share of lookups that found their key: 0..1, and not a number (NaN) where there were none.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.lookups as f64
    }
}

/// The keys that one rank's interface looks up, in the order of the calls: the rank at the other end of each message that it sends or
/// receives, and how often. A receive counts where it is posted. Collectives are the messages of [`Trace::steps`].
pub fn keys(trace: &Trace, rank: usize, lookup: Lookup) -> impl Iterator<Item = (u16, u64)> + '_ {
    let records = trace.ranks.get(rank).map_or(&[][..], Vec::as_slice);
    records
        .iter()
        .flat_map(move |record| messages(trace, rank, record))
        .map(move |(peer, bytes)| (peer, lookup.count(bytes)))
}

/// Peer and payload of the messages of one call. Receives from anybody whose sender nobody knows are left out.
pub(crate) fn messages(
    trace: &Trace,
    rank: usize,
    record: &TraceRecord,
) -> impl Iterator<Item = (u16, u32)> {
    let operation = record.operation;
    let single = (operation.is_send() || operation.is_receive())
        .then(|| record.peer.map(|peer| (peer, record.bytes)))
        .flatten();
    let steps = if operation.is_collective() {
        trace.steps(rank, record)
    } else {
        Vec::new()
    };
    single
        .into_iter()
        .chain(steps.into_iter().map(|step| (step.peer, step.bytes)))
}

/// The messages of one rank in the order in which it is done with them: a send when it is called, a receive when its message is waited for. This is what an interface
/// sees that holds a key for each direction of a link, and handles messages one by one. Messages of a rank to itself are left out: there is no link for them.
pub fn passages(trace: &Trace, rank: usize) -> Vec<CollectiveStep> {
    let mut passages = Vec::new();
    // Requests that nobody has waited for, in the order of their posts; what has to be received for them.
    let mut open: Vec<(u32, Option<CollectiveStep>)> = Vec::new();
    for record in trace.ranks.get(rank).map_or(&[][..], Vec::as_slice) {
        let step = |direction, peer| CollectiveStep {
            direction,
            peer,
            bytes: record.bytes,
        };
        match (record.operation, record.peer) {
            (Operation::Send, Some(peer)) => passages.push(step(MessageDirection::Send, peer)),
            (Operation::SendStart, Some(peer)) => {
                passages.push(step(MessageDirection::Send, peer));
                open.push((record.request, None));
            }
            (Operation::Receive, Some(peer)) => {
                passages.push(step(MessageDirection::Receive, peer))
            }
            (Operation::ReceiveStart, peer) => {
                let awaited = peer.map(|peer| step(MessageDirection::Receive, peer));
                open.push((record.request, awaited));
            }
            (Operation::Wait, _) => {
                if let Some(index) = open.iter().position(|(id, _)| *id == record.request) {
                    passages.extend(open.remove(index).1);
                }
            }
            // The record has the lowest request and their number: they are taken for the first ones from there on.
            (Operation::WaitAll, _) => {
                let mut left = record.tag;
                open.retain(|(id, awaited)| {
                    let is_waited_for = *id >= record.request && left > 0;
                    if is_waited_for {
                        left -= 1;
                        passages.extend(*awaited);
                    }
                    !is_waited_for
                });
            }
            _ => passages.extend(trace.steps(rank, record)),
        }
    }
    passages.extend(open.into_iter().filter_map(|(_, awaited)| awaited));
    passages.retain(|step| usize::from(step.peer) != rank);
    passages
}

/// The links that a program's messages need, each as the rank that opens it and the other one: rank by rank, in the order in which their [`passages`] come to them.
pub fn links(programs: &[Vec<CollectiveStep>]) -> Vec<(u16, u16)> {
    let mut known = BTreeSet::new();
    let mut links = Vec::new();
    for (rank, program) in programs.iter().enumerate() {
        let rank = rank as u16;
        for peer in program.iter().map(|step| step.peer) {
            if known.insert((rank.min(peer), rank.max(peer))) {
                links.push((rank, peer));
            }
        }
    }
    links
}

/// The lookups of [`passages`] of all ranks, pooled, each rank with an LRU cache of its own that has a key for each direction of each link. All [`links`] are open
/// before the first message: what both ends said to open one, in turns, beginning and ending with the rank that opens it, has left its keys in their caches. Keys have the
/// [indexes](exoskel_link::keys::CacheKey::index) that the runtime's store gives them, so that they fall into the same sets.
pub fn predict(trace: &Trace, geometry: Geometry) -> Hits {
    let mut hits = Hits::default();
    let mut digest = RunDigest::default();
    let programs: Vec<Vec<CollectiveStep>> = (0..trace.ranks.len())
        .map(|rank| passages(trace, rank))
        .collect();
    let mut ends: Vec<LinkEnds> = programs.iter().map(|_| LinkEnds::new(geometry)).collect();
    for (opener, other) in links(&programs) {
        for opener_sends in [true, false, true, false, true] {
            ends[usize::from(opener)].look_up(other, opener_sends);
            ends[usize::from(other)].look_up(opener, !opener_sends);
        }
    }
    for (ends, program) in ends.iter_mut().zip(&programs) {
        for step in program {
            let (key, found) = ends.look_up(step.peer, step.direction == MessageDirection::Send);
            hits.lookups += 1;
            hits.hits += u64::from(found);
            digest.word(key << 1 | u64::from(found));
        }
    }
    hits.digest = digest.value();
    hits
}

/// One rank's ends of its links: a cache, and the number of each link.
struct LinkEnds {
    cache: Cache<u64, ()>,
    numbers: BTreeMap<u16, u64>,
}

impl LinkEnds {
    fn new(geometry: Geometry) -> Self {
        Self {
            cache: Cache::new(geometry),
            numbers: BTreeMap::new(),
        }
    }

    /// Which key that was, and whether the cache had it. A store numbers the directions of its sessions as they come, that of sending first, and has room for four keys of each.
    fn look_up(&mut self, peer: u16, sends: bool) -> (u64, bool) {
        let next = self.numbers.len() as u64;
        let link = *self.numbers.entry(peer).or_insert(next);
        let key = (2 * link + u64::from(!sends)) << 2 | ENCRYPTED;
        (key, look_up(&mut self.cache, key))
    }
}

/// The lookups of these ranks of a trace, pooled, each rank with a cache of its own that is empty at first: of all ranks, or of a manager, say,
/// without its workers, who have one peer each. Ranks that the trace doesn't have look nothing up. Asks every so often whether to go on;
/// nothing if not.
pub fn replay(
    trace: &Trace,
    ranks: Range<usize>,
    geometry: Geometry,
    policy: ReplacementPolicy,
    lookup: Lookup,
    go_on: impl Fn() -> bool,
) -> Option<Hits> {
    let one = RanksPerCard::ONE;
    replay_on_cards(trace, ranks, one, geometry, policy, lookup, go_on)
}

/// As [`replay`], with a cache for each card and so many ranks behind it: these cards' caches. Ranks of a card take turns, a message each, and each has a key for each
/// of its peers. Messages between ranks of one card are left out: they need no key. A rank that is alone on its card looks up a key for itself, too.
pub fn replay_on_cards(
    trace: &Trace,
    cards: Range<usize>,
    ranks_per_card: RanksPerCard,
    geometry: Geometry,
    policy: ReplacementPolicy,
    lookup: Lookup,
    go_on: impl Fn() -> bool,
) -> Option<Hits> {
    let each = ranks_per_card;
    match policy {
        ReplacementPolicy::LeastRecentlyUsed => {
            replay_with::<LeastRecentlyUsed>(trace, cards, each, geometry, lookup, go_on)
        }
        ReplacementPolicy::Clock => {
            replay_with::<ClockPolicy>(trace, cards, each, geometry, lookup, go_on)
        }
        ReplacementPolicy::S3Fifo => {
            replay_with::<S3Fifo>(trace, cards, each, geometry, lookup, go_on)
        }
    }
}

/// The keys that a card looks up, and how often each: the place of the rank on the card above the rank of its peer.
fn keys_of_card(
    trace: &Trace,
    card: usize,
    ranks_per_card: RanksPerCard,
    lookup: Lookup,
) -> impl Iterator<Item = (u32, u64)> + '_ {
    let each = usize::from(ranks_per_card.get());
    let mut ranks: VecDeque<_> = (card * each..(card + 1) * each)
        .map(|rank| (rank as u16, keys(trace, rank, lookup)))
        .collect();
    std::iter::from_fn(move || {
        loop {
            let (rank, mut calls) = ranks.pop_front()?;
            let Some((peer, count)) = calls.next() else {
                continue;
            };
            ranks.push_back((rank, calls));
            if each == 1 || !ranks_per_card.shared(rank, peer) {
                let place = u32::from(ranks_per_card.place(rank));
                return Some((place << 16 | u32::from(peer), count));
            }
        }
    })
}

fn replay_with<P: Replacement>(
    trace: &Trace,
    cards: Range<usize>,
    ranks_per_card: RanksPerCard,
    geometry: Geometry,
    lookup: Lookup,
    go_on: impl Fn() -> bool,
) -> Option<Hits> {
    /// After so many lookups of one key in a row, no policy learns anything from another one.
    const REPEATS_MAX: u64 = 8;
    let mut hits = Hits::default();
    let mut digest = RunDigest::default();
    for card in cards {
        let mut cache = Cache::<u32, (), P>::new(geometry);
        let looked_up = keys_of_card(trace, card, ranks_per_card, lookup);
        for (number, (key, count)) in looked_up.enumerate() {
            if number % KEYS_BETWEEN_LOOKS == 0 && !go_on() {
                return None;
            }
            let mut found = count.saturating_sub(REPEATS_MAX);
            for _ in 0..count.min(REPEATS_MAX) {
                found += u64::from(look_up(&mut cache, key));
            }
            hits.lookups += count;
            hits.hits += found;
            digest.word(u64::from(key));
            digest.word(found);
        }
    }
    hits.digest = digest.value();
    Some(hits)
}

/// Whether the key is there; afterwards it is.
fn look_up<K: CacheKey, P: Replacement>(cache: &mut Cache<K, (), P>, key: K) -> bool {
    let found = cache.get(key).is_some();
    if !found {
        cache.insert(key, ());
    }
    found
}

/// Synthetic traffic of one interface with many keys. Each key's process is ON and OFF in turn, for exponentially distributed times; while it is ON, it
/// sends packets at a rate that is the same for all, so that those of different processes are interleaved. Only the order counts. Integers alone decide it, so a
/// seed gives the same sequence on every machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    keys: u32,
    off_on: f64,
    packets_per_on: u32,
}

/// Rates are multiples of the rate at which an OFF period ends, in parts of this size: all of them together stay below 2^64.
const RATE_PARTS: u64 = 1 << 12;

impl Traffic {
    /// Traffic of so many keys, with that ratio of the mean OFF time to the mean ON time, and that mean number of packets in an ON
    /// period (there are ON periods without any). The paper does not state the latter.
    ///
    /// # Errors
    ///
    /// [`SequenceError`] names the parameter that is out of its range.
    pub fn new(keys: u32, off_on: f64, packets_per_on: u32) -> Result<Self, SequenceError> {
        in_range("keys", keys, KEYS_MAX)?;
        in_range("packets per ON period", packets_per_on, PACKETS_PER_ON_MAX)?;
        if !OFF_ON_RANGE.contains(&off_on) {
            return Err(SequenceError::OffOn { got: off_on });
        }
        Ok(Self {
            keys,
            off_on,
            packets_per_on,
        })
    }

    /// The packets' keys, 0 to the number of keys less one, without end.
    pub fn packets(&self, seed: u64) -> Packets {
        let end_rate = (self.off_on * RATE_PARTS as f64).round() as u64;
        let mut packets = Packets {
            random: SplitMix64::new(seed),
            order: (0..self.keys).collect(),
            active: 0,
            packet_rate: end_rate * u64::from(self.packets_per_on),
            end_rate,
        };
        // The state after a long time: each is ON with the probability ON / (ON + OFF).
        for index in 0..self.keys as usize {
            if packets.random.below(RATE_PARTS + end_rate) < RATE_PARTS {
                packets.begin(index);
            }
        }
        packets
    }

    /// The lookups of so many packets, of which the first half only fills the cache. Asks every so often whether to go on; nothing if not.
    pub fn hits(
        &self,
        seed: u64,
        packets: u64,
        geometry: Geometry,
        policy: ReplacementPolicy,
        go_on: impl Fn() -> bool,
    ) -> Option<Hits> {
        match policy {
            ReplacementPolicy::LeastRecentlyUsed => {
                self.hits_with::<LeastRecentlyUsed>(seed, packets, geometry, go_on)
            }
            ReplacementPolicy::Clock => {
                self.hits_with::<ClockPolicy>(seed, packets, geometry, go_on)
            }
            ReplacementPolicy::S3Fifo => self.hits_with::<S3Fifo>(seed, packets, geometry, go_on),
        }
    }

    fn hits_with<P: Replacement>(
        &self,
        seed: u64,
        packets: u64,
        geometry: Geometry,
        go_on: impl Fn() -> bool,
    ) -> Option<Hits> {
        let mut cache = Cache::<u32, (), P>::new(geometry);
        let mut hits = Hits::default();
        let mut digest = RunDigest::default();
        let mut keys = self.packets(seed);
        for number in 0..packets {
            if number % KEYS_BETWEEN_LOOKS as u64 == 0 && !go_on() {
                return None;
            }
            let key = keys.draw();
            let found = look_up(&mut cache, key);
            digest.word(u64::from(key) << 1 | u64::from(found));
            if number >= packets / 2 {
                hits.lookups += 1;
                hits.hits += u64::from(found);
            }
        }
        hits.digest = digest.value();
        Some(hits)
    }
}

/// See [`Traffic::packets`].
#[derive(Clone, Debug)]
pub struct Packets {
    random: SplitMix64,
    /// All keys, those that are ON first.
    order: Vec<u32>,
    active: usize,
    /// Of each that is ON.
    packet_rate: u64,
    end_rate: u64,
}

impl Packets {
    /// The key of the next packet.
    ///
    /// What happens next is a packet or an end of one of those that are ON, or the beginning of one of those that are OFF, with probabilities
    /// as their rates.
    fn draw(&mut self) -> u32 {
        loop {
            let on = self.active as u64;
            let (packets, ends) = (on * self.packet_rate, on * self.end_rate);
            let begins = (self.order.len() as u64 - on) * RATE_PARTS;
            // Below its part of the range, an event is evenly distributed over those that it can happen to.
            let event = self.random.below(packets + ends + begins);
            if event < packets {
                return self.order[(event / self.packet_rate) as usize];
            }
            let event = event - packets;
            if event < ends {
                self.active -= 1;
                self.order
                    .swap((event / self.end_rate) as usize, self.active);
            } else {
                self.begin(self.active + ((event - ends) / RATE_PARTS) as usize);
            }
        }
    }

    fn begin(&mut self, index: usize) {
        self.order.swap(index, self.active);
        self.active += 1;
    }
}

impl Iterator for Packets {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        Some(self.draw())
    }
}

fn in_range(parameter: &'static str, got: u32, most: u32) -> Result<(), SequenceError> {
    if (1..=most).contains(&got) {
        Ok(())
    } else {
        Err(SequenceError::OutOfRange {
            parameter,
            got,
            most,
        })
    }
}
