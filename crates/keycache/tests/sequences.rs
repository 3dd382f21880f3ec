//! Sequences of keys: the hit rates of real programs and of synthetic traffic, and the same ones on every machine.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "traces are files, and a test may read them"
)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use exoskel_keycache::model::OnOffParameters;
use exoskel_keycache::periods::{PeriodRules, Periods};
use exoskel_keycache::sequence::{
    KEYS_MAX, Lookup, PACKETS_PER_ON_MAX, ReplacementPolicy, SequenceError, Traffic, keys, links,
    passages, predict, replay, replay_on_cards,
};
use exoskel_keycache::{RanksPerCard, S3Fifo};
use exoskel_link::keys::{Cache, ClockPolicy, Geometry, LeastRecentlyUsed, Placement, Replacement};
use exoskel_trace::{MessageDirection, Operation, Trace, TraceRecord};
use proptest::prelude::*;

fn kept(name: &str) -> Trace {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let bytes = std::fs::read(directory.join(format!("{name}.skct.zst"))).unwrap();
    Trace::read(&bytes).unwrap()
}

fn all(trace: &Trace) -> Range<usize> {
    0..trace.ranks.len()
}

fn full(entries: usize) -> Geometry {
    Geometry::fully_associative(entries).unwrap()
}

const ENTRIES: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 10, 15];

/// The first forty iterations of a class A trace of SP or BT, as a run of so many has them: what each rank does before and after its iterations, and the same
/// calls in each of them.
fn forty_iterations(name: &str) -> Trace {
    let mut trace = kept(name);
    let left_out = trace.iterations as usize - 40;
    for records in &mut trace.ranks {
        // Each iteration sends 24 messages, like the one step before them that touches everything once.
        let sends: Vec<usize> = (0..records.len())
            .filter(|index| records[*index].operation.is_send())
            .collect();
        let (second, third) = (sends[2 * 24], sends[3 * 24]);
        records.drain(second..second + left_out * (third - second));
    }
    trace.iterations = 40;
    trace
}

/// What the tables of others are about: SP and BT with forty iterations, the others whole.
fn measured_by_others(name: &str) -> Trace {
    if name.starts_with("sp") || name.starts_with("bt") {
        forty_iterations(name)
    } else {
        kept(name)
    }
}

fn percent_of_hits(trace: &Trace, entries: usize, lookup: Lookup) -> f64 {
    100.0
        * replay(
            trace,
            all(trace),
            full(entries),
            ReplacementPolicy::LeastRecentlyUsed,
            lookup,
            || true,
        )
        .unwrap()
        .hit_rate()
}

/// Aim: messages, collectives and LRU are counted as by others. Method: the rates in percent that another program, in another
/// language, found for these traces, with 1, 2, 3, 4, 5, 6, 8, 10 and 15 entries.
#[test]
fn hit_rates_of_real_programs() {
    const EXPECTED: [(&str, [f64; 9]); 6] = [
        (
            "cg.A.16",
            [57.0, 85.7, 99.8, 99.8, 99.8, 99.8, 99.9, 99.9, 99.9],
        ),
        (
            "mg.A.16",
            [49.5, 60.0, 60.6, 96.4, 98.0, 98.6, 99.7, 99.7, 99.7],
        ),
        (
            "lu.A.16.it20",
            [1.3, 18.6, 67.1, 99.6, 99.7, 99.8, 99.9, 99.9, 99.9],
        ),
        (
            "sp.A.16",
            [6.7, 61.6, 61.6, 61.9, 68.0, 98.6, 99.3, 99.5, 99.5],
        ),
        (
            "bt.A.16",
            [6.7, 61.6, 61.7, 62.0, 68.1, 98.6, 99.3, 99.5, 99.5],
        ),
        (
            "ft.A.16",
            [6.1, 14.2, 20.8, 28.5, 33.9, 39.1, 53.3, 65.2, 94.4],
        ),
    ];
    for (name, expected) in EXPECTED {
        let trace = measured_by_others(name);
        for (entries, expected) in ENTRIES.into_iter().zip(expected) {
            let got = percent_of_hits(&trace, entries, Lookup::Message);
            // Both sides are rounded to tenths.
            assert!(
                (got - expected).abs() < 0.06,
                "{name}, {entries} entries: got {got}, expected {expected}"
            );
        }
    }
}

/// The same by packets of 256 bytes, one message after another: the lowest and the highest of six programs, as others found them.
#[test]
fn packets_in_a_row_of_real_programs() {
    let packets = Lookup::packets(256).unwrap();
    let traces = [
        "cg.A.16",
        "mg.A.16",
        "lu.A.16.it20",
        "sp.A.16",
        "bt.A.16",
        "ft.A.16",
    ]
    .map(measured_by_others);
    let lowest_and_highest = |entries| {
        let rates = traces
            .each_ref()
            .map(|trace| percent_of_hits(trace, entries, packets));
        rates
            .into_iter()
            .fold((100.0_f64, 0.0_f64), |(low, high), rate| {
                (low.min(rate), high.max(rate))
            })
    };
    for (entries, low) in [(1, 88.6), (2, 90.6), (3, 96.2), (4, 99.7), (15, 100.0)] {
        let (got, _) = lowest_and_highest(entries);
        assert!(
            (got - low).abs() < 0.06,
            "{entries} entries: got {got}, expected {low}"
        );
    }
    let (_, high) = lowest_and_highest(1);
    assert!((high - 99.95).abs() < 0.006, "got {high}");
}

#[test]
fn ranks_alone_are_those_of_all_together() {
    let trace = kept("mg.S.16");
    let policy = ReplacementPolicy::LeastRecentlyUsed;
    let of = |ranks| replay(&trace, ranks, full(3), policy, Lookup::Message, || true).unwrap();
    let sums = (0..16).map(|rank| of(rank..rank + 1));
    let sums = sums.fold((0, 0), |sum, one| (sum.0 + one.lookups, sum.1 + one.hits));
    let pooled = of(all(&trace));
    assert_eq!(sums, (pooled.lookups, pooled.hits));
    assert!(of(0..1).lookups > 0);
    assert_eq!(of(16..17).lookups, 0);
}

/// Aim: ranks behind one card share its cache, and need keys for peers on other cards only. Method: with a card each it is the replay by ranks; with room for all
/// keys, misses are the ends of sessions, which can be counted in the trace; with all ranks on one card nothing is left.
#[test]
fn ranks_behind_a_card_share_its_cache() {
    let trace = kept("mg.S.16");
    let (policy, lookup) = (ReplacementPolicy::LeastRecentlyUsed, Lookup::Message);
    let on = |each: u64, entries| {
        let cards = 0..16 / each as usize;
        let each = RanksPerCard::of(&trace, each).unwrap();
        replay_on_cards(&trace, cards, each, full(entries), policy, lookup, || true).unwrap()
    };
    let single = replay(&trace, all(&trace), full(3), policy, lookup, || true).unwrap();
    assert_eq!(on(1, 3), single);
    let mut sessions = u64::MAX;
    for each in [1, 2, 4, 8, 16] {
        let ends: BTreeSet<(u16, u16)> = (0..16)
            .flat_map(|rank| keys(&trace, rank.into(), lookup).map(move |(peer, _)| (rank, peer)))
            .filter(|(rank, peer)| rank / each != peer / each)
            .collect();
        let found = on(each.into(), 256);
        assert_eq!(found.lookups - found.hits, ends.len() as u64, "{each}");
        assert!(found.lookups - found.hits < sessions, "{each}");
        sessions = found.lookups - found.hits;
        assert!(each == 16 || on(each.into(), 2).hits < found.hits, "{each}");
    }
    assert_eq!(on(16, 1).lookups, 0);
    for each in [0, 3, 32, 1 << 40] {
        let error = RanksPerCard::of(&trace, each).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "got ranks_per_card = {each}, expected a divisor of 16"
            )),
            "{error}"
        );
    }
}

/// Packets of one message leave nothing for a cache to do, but for the first one.
#[test]
fn packets_in_a_row_hit_almost_always() {
    let trace = kept("bt.S.16");
    let message = replay(
        &trace,
        all(&trace),
        full(3),
        ReplacementPolicy::LeastRecentlyUsed,
        Lookup::Message,
        || true,
    )
    .unwrap();
    let packets = Lookup::packets(256).unwrap();
    let packet = replay(
        &trace,
        all(&trace),
        full(3),
        ReplacementPolicy::LeastRecentlyUsed,
        packets,
        || true,
    )
    .unwrap();
    assert_eq!(
        packet.lookups - packet.hits,
        message.lookups - message.hits,
        "the same misses"
    );
    assert!(packet.hit_rate() > 0.9 && message.hit_rate() < 0.7);
}

/// The same by another way: each packet looked up by itself.
fn one_by_one<P: Replacement>(trace: &Trace, geometry: Geometry, lookup: Lookup) -> (u64, u64) {
    let (mut lookups, mut hits) = (0, 0);
    for rank in 0..trace.ranks.len() {
        let mut cache = Cache::<u16, (), P>::new(geometry);
        for (peer, count) in keys(trace, rank, lookup) {
            for _ in 0..count {
                lookups += 1;
                if cache.get(peer).is_some() {
                    hits += 1;
                } else {
                    cache.insert(peer, ());
                }
            }
        }
    }
    (lookups, hits)
}

#[test]
fn packets_of_a_message_are_not_simplified_too_much() {
    let trace = kept("mg.S.16");
    let lookup = Lookup::packets(64).unwrap();
    for entries in [2, 3, 5] {
        let geometry = full(entries);
        let counted = |policy| {
            let hits = replay(&trace, all(&trace), geometry, policy, lookup, || true).unwrap();
            (hits.lookups, hits.hits)
        };
        assert_eq!(
            counted(ReplacementPolicy::LeastRecentlyUsed),
            one_by_one::<LeastRecentlyUsed>(&trace, geometry, lookup)
        );
        assert_eq!(
            counted(ReplacementPolicy::Clock),
            one_by_one::<ClockPolicy>(&trace, geometry, lookup)
        );
        assert_eq!(
            counted(ReplacementPolicy::S3Fifo),
            one_by_one::<S3Fifo>(&trace, geometry, lookup)
        );
    }
}

#[test]
fn receives_pass_when_they_are_waited_for() {
    let call = |operation, peer, request, tag| TraceRecord {
        peer,
        request,
        tag,
        ..TraceRecord::new(operation)
    };
    let calls = vec![
        call(Operation::ReceiveStart, Some(1), 1, 0),
        call(Operation::ReceiveStart, Some(2), 2, 0),
        call(Operation::SendStart, Some(1), 3, 0),
        call(Operation::ReceiveStart, Some(3), 4, 0),
        call(Operation::Wait, None, 2, 0),
        call(Operation::Send, Some(0), 0, 0),
        call(Operation::WaitAll, None, 1, 2),
        call(Operation::Receive, Some(2), 0, 0),
        call(Operation::Wait, None, 4, 0),
    ];
    let trace = Trace {
        ranks: vec![calls, Vec::new(), Vec::new(), Vec::new()],
        communicators: vec![Vec::new(); 4],
        ..Trace::default()
    };
    let order: Vec<_> = passages(&trace, 0)
        .iter()
        .map(|step| (step.direction, step.peer))
        .collect();
    use MessageDirection::{Receive, Send};
    assert_eq!(
        order,
        [
            (Send, 1),
            (Receive, 2),
            (Receive, 1),
            (Receive, 2),
            (Receive, 3)
        ]
    );
}

/// Aim: nothing is lost or made up on the way. Method: as many messages as there are sends, receives and steps of collectives; a link for each two that talk; and a
/// cache for all keys has them from the opening of the links.
#[test]
fn all_messages_of_a_program_pass() {
    for name in ["cg.S.16", "mg.S.16", "lu.S.16", "sp.S.16", "ft.S.16"] {
        let trace = kept(name);
        let messages: usize = (0..16)
            .map(|rank| {
                keys(&trace, rank, Lookup::Message)
                    .filter(|(peer, _)| usize::from(*peer) != rank)
                    .count()
            })
            .sum();
        let found = predict(&trace, full(64));
        assert_eq!(found.lookups, messages as u64, "{name}");
        assert_eq!(found.hits, found.lookups, "{name}");
        let programs: Vec<_> = (0..16).map(|rank| passages(&trace, rank)).collect();
        let talk = |one: usize, other: u16| programs[one].iter().any(|step| step.peer == other);
        let pairs = (0..16_u16)
            .flat_map(|one| (one + 1..16).map(move |other| (one, other)))
            .filter(|(one, other)| talk((*one).into(), *other) || talk((*other).into(), *one));
        let mut opened: Vec<(u16, u16)> = links(&programs)
            .into_iter()
            .map(|(one, other)| (one.min(other), one.max(other)))
            .collect();
        opened.sort_unstable();
        assert_eq!(opened, pairs.collect::<Vec<_>>(), "{name}");
    }
}

/// Two that talk once, with room for one key: what the link's opener said last is its key for sending.
#[test]
fn opening_a_link_leaves_its_keys() {
    let call = |operation, peer| TraceRecord {
        peer: Some(peer),
        ..TraceRecord::new(operation)
    };
    let trace = Trace {
        name: "two".to_owned(),
        ranks: vec![
            vec![call(Operation::Send, 1), call(Operation::Receive, 1)],
            vec![call(Operation::Receive, 0), call(Operation::Send, 0)],
        ],
        communicators: vec![vec![vec![0, 1]]; 2],
        ..Trace::default()
    };
    let found = predict(&trace, full(1));
    assert_eq!((found.lookups, found.hits), (4, 2));
}

fn synthetic(keys: u32, off_on: f64, packets_per_on: u32, geometry: Geometry) -> f64 {
    let traffic = Traffic::new(keys, off_on, packets_per_on).unwrap();
    let hits = traffic
        .hits(
            7,
            2_000_000,
            geometry,
            ReplacementPolicy::LeastRecentlyUsed,
            || true,
        )
        .unwrap();
    assert_eq!(hits.lookups, 1_000_000);
    hits.hit_rate()
}

/// Aim: the generator is the ON/OFF chain. Method: the rates that another generator gave for 1024 entries; how many are ON at
/// once moves slowly, so long periods and caches that are just full leave a point or two to chance.
#[test]
fn hit_rates_of_synthetic_traffic() {
    for (off_on, keys, packets_per_on, expected) in [
        (2.0, 2000, 2, 0.769),
        (2.0, 2000, 10, 0.934),
        (2.0, 2000, 100, 0.993),
        (8.0, 8000, 2, 0.655),
        (8.0, 8000, 10, 0.896),
        (8.0, 8000, 100, 0.990),
        (4.0, 10_000, 2, 0.429),
        (4.0, 10_000, 10, 0.494),
    ] {
        let got = synthetic(keys, off_on, packets_per_on, full(1024));
        assert!(
            (got - expected).abs() < 0.01,
            "{off_on} {keys} {packets_per_on}: got {got}, expected {expected}"
        );
    }
}

#[test]
fn the_closed_form_is_close_when_periods_are_long() {
    let keys = 10_000;
    let covered = OnOffParameters::new(4.0).unwrap().covered(keys, 1024);
    let got = synthetic(keys as u32, 4.0, 100, full(1024));
    assert!(
        (got - covered).abs() < 0.03,
        "got {got}, expected {covered}"
    );
}

#[test]
fn fewer_ways_hit_less() {
    let rate = |ways| {
        let geometry = Geometry::set_associative(1024, ways).unwrap();
        synthetic(8000, 8.0, 100, geometry.placed(Placement::LowBits))
    };
    for (ways, expected) in [(1, 0.688), (2, 0.788), (8, 0.911), (1024, 0.990)] {
        let got = rate(ways);
        assert!(
            (got - expected).abs() < 0.015,
            "{ways} ways: got {got}, expected {expected}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_on_every_machine() {
    let traffic = Traffic::new(3000, 7.66, 10).unwrap();
    let first: Vec<u32> = traffic.packets(1).take(8).collect();
    assert_eq!(first, [221, 743, 854, 1135, 1744, 257, 954, 1531]);
    let geometry = Geometry::set_associative(256, 8).unwrap();
    let digests = [
        ReplacementPolicy::LeastRecentlyUsed,
        ReplacementPolicy::Clock,
        ReplacementPolicy::S3Fifo,
    ]
    .map(|policy| {
        traffic
            .hits(1, 100_000, geometry, policy, || true)
            .unwrap()
            .digest
    });
    assert_eq!(
        digests,
        [
            12_597_930_402_957_597_079,
            16_026_177_204_329_890_887,
            8_287_440_517_984_304_098
        ]
    );
    let trace = kept("cg.S.16");
    let stopped = replay(
        &trace,
        all(&trace),
        full(2),
        ReplacementPolicy::LeastRecentlyUsed,
        Lookup::Message,
        || false,
    );
    assert_eq!(stopped, None);
    let replayed = replay(
        &trace,
        all(&trace),
        full(2),
        ReplacementPolicy::LeastRecentlyUsed,
        Lookup::Message,
        || true,
    )
    .unwrap();
    assert_eq!(
        (replayed.lookups, replayed.digest),
        (94_396, 8_255_911_985_444_200_924)
    );
}

#[test]
fn periods_of_real_programs() {
    // Mean ON and OFF in microseconds and messages for each ON, with 20 microseconds as the threshold.
    for (name, on, off, messages) in [
        ("mg.A.16", 243.3, 484.5, 18.6),
        ("cg.A.16", 56.0, 95.2, 13.9),
        ("lu.A.16.it20", 168.6, 84.6, 19.3),
    ] {
        let periods = Periods::of(&kept(name), &PeriodRules::default()).unwrap();
        for (got, expected) in [
            (periods.on_us, on),
            (periods.off_us, off),
            (periods.messages_per_on, messages),
        ] {
            assert!((got - expected).abs() < 0.06, "{name}: {periods:?}");
        }
        assert!(periods.model().unwrap().capacity(1024, 0.9).unwrap() > 1024);
    }
    // Nothing is ever OFF for an hour.
    let rules = PeriodRules {
        gap_ns: 3_600_000_000_000,
        ..PeriodRules::default()
    };
    assert_eq!(Periods::of(&kept("ft.S.16"), &rules), None);
    assert_eq!(Periods::of(&Trace::default(), &rules), None);
}

#[test]
fn impossible_parameters_are_named() {
    let refused = |keys, off_on, packets| Traffic::new(keys, off_on, packets).unwrap_err();
    let message = refused(0, 1.0, 1).to_string();
    assert_eq!(message, format!("got keys = 0, expected 1 to {KEYS_MAX}"));
    assert!(matches!(
        refused(KEYS_MAX + 1, 1.0, 1),
        SequenceError::OutOfRange { .. }
    ));
    for packets in [0, PACKETS_PER_ON_MAX + 1] {
        let message = refused(1, 1.0, packets).to_string();
        assert!(message.contains("packets per ON period"), "{message}");
    }
    for off_on in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-3] {
        assert!(matches!(refused(1, off_on, 1), SequenceError::OffOn { .. }));
    }
    assert!(Lookup::packets(0).is_err());
}

proptest! {
    /// A process sends in its ON periods only: over a long time each key comes about equally often, and so many are ON as the ratio says.
    #[test]
    fn all_keys_come(seed: u64, keys in 1..20_u32, off_on in 0.02..5.0_f64, packets_per_on in 1..50_u32) {
        let traffic = Traffic::new(keys, off_on, packets_per_on).unwrap();
        let mut seen = vec![false; keys as usize];
        for key in traffic.packets(seed).take(50_000) {
            seen[key as usize] = true;
        }
        prop_assert!(seen.iter().all(|seen| *seen));
    }
}
