//! Any program on any card: nothing is lost, nothing gets stuck, nothing is faster than it can be.

use std::collections::BTreeSet;
use std::sync::Arc;

use exoskel_keycache::sequence::{Lookup, ReplacementPolicy, keys};
use exoskel_keycache::{
    Forwarding, KeySource, Level, LookupUnit, Parameters, ReplayProgram, SchedulerKind, Study,
    SwitchKind,
};
use exoskel_trace::{Operation, TraceRecord};
use proptest::prelude::*;
use proptest::sample::select;

use super::workload::{after, call, program, trace};

const RANKS: u16 = 4;

/// A message or a collective, in an order of all of them that all ranks keep: so no program waits in a circle.
#[derive(Clone, Debug)]
enum Act {
    Message {
        from: u16,
        to: u16,
        bytes: u32,
        tag: i32,
        started: bool,
    },
    Together(Operation, u32),
}

fn act() -> impl Strategy<Value = (u64, Act)> {
    let message = (0..RANKS, 0..RANKS, 0..3_000_u32, 0..3, any::<bool>()).prop_map(
        |(from, to, bytes, tag, started)| Act::Message {
            from,
            to,
            bytes,
            tag,
            started,
        },
    );
    let kinds = vec![
        Operation::Barrier,
        Operation::AllReduce,
        Operation::AllToAll,
        Operation::AllGather,
        Operation::Broadcast,
        Operation::Reduce,
    ];
    let together = (select(kinds), 0..1_000_u32)
        .prop_map(|(operation, bytes)| Act::Together(operation, bytes));
    (0..20_000_u64, prop_oneof![8 => message, 1 => together])
}

fn build(acts: &[(u64, Act)]) -> Arc<ReplayProgram> {
    program(calls(acts))
}

fn calls(acts: &[(u64, Act)]) -> Vec<Vec<TraceRecord>> {
    let mut ranks: Vec<Vec<TraceRecord>> = vec![Vec::new(); RANKS.into()];
    let mut open = [0_i32; RANKS as usize];
    for (request, (gap, act)) in acts.iter().enumerate() {
        match act.clone() {
            Act::Message {
                from,
                to,
                bytes,
                tag,
                started,
            } => {
                let ends = [
                    (from, to, Operation::Send, Operation::SendStart),
                    (to, from, Operation::Receive, Operation::ReceiveStart),
                ];
                for (number, (own, peer, now, later)) in ends.into_iter().enumerate() {
                    let own = usize::from(own);
                    open[own] += i32::from(started);
                    ranks[own].push(TraceRecord {
                        tag,
                        request: 2 * request as u32 + number as u32 + 1,
                        ..after(*gap, call(if started { later } else { now }, peer, bytes))
                    });
                }
            }
            Act::Together(operation, bytes) => {
                for (own, open) in open.iter_mut().enumerate() {
                    ranks[own].push(TraceRecord {
                        request: 1,
                        tag: std::mem::take(open),
                        ..TraceRecord::new(Operation::WaitAll)
                    });
                    ranks[own].push(after(*gap, call(operation, 1, bytes)));
                }
            }
        }
    }
    ranks
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let network = (
        select(vec![SwitchKind::OutputQueued, SwitchKind::Crossbar]),
        select(vec![Forwarding::CutThrough, Forwarding::StoreAndForward]),
        1..4_u32,
        (1..4_u32, select(vec![1, 2, 4_u32])),
        select(vec![1, 32, 256, 2_048_u32]),
        select(vec![1_000_000_u64, 1_000_000_000, 12_500_000_000]),
    );
    let security = (
        select(vec![
            KeySource::None,
            KeySource::Memory,
            KeySource::Cache,
            KeySource::Derive,
            KeySource::Table,
        ]),
        select(vec![LookupUnit::Packet, LookupUnit::Message]),
        select(vec![
            ReplacementPolicy::LeastRecentlyUsed,
            ReplacementPolicy::Clock,
            ReplacementPolicy::S3Fifo,
        ]),
        1..5_u32,
        0..3_u32,
        any::<(bool, bool)>(),
    );
    let processors = (
        select(vec![
            SchedulerKind::Batch,
            SchedulerKind::Local,
            SchedulerKind::SpinBlock,
            SchedulerKind::DynamicCoscheduling,
            SchedulerKind::PeriodicBoost,
            SchedulerKind::Gang,
        ]),
        select(vec![10_000_u64, 1_000_000, 100_000_000]),
        select(vec![0_u64, 5_000]),
        select(vec![Level::Packet, Level::Packet, Level::Message]),
    );
    (network, security, processors).prop_map(|(network, security, processors)| {
        let (switch_kind, switch_forwarding, switch_places, card, payload, rate) = network;
        let (card_places, ranks_per_card) = card;
        let (keys, lookup_unit, cache_policy, entries, buffer, (overlaps, pipelined)) = security;
        let (scheduler, quantum_ns, context_switch_ns, level) = processors;
        Parameters {
            level,
            nodes: u32::from(RANKS) / ranks_per_card,
            ranks_per_card,
            switch_kind,
            switch_forwarding,
            switch_buffer_packets: switch_places,
            card_buffer_packets: card_places,
            packet_payload_bytes: payload,
            link_rate_bytes_per_second: rate,
            keys,
            lookup_unit,
            cache_policy,
            cache_entries: entries,
            prefetch_buffer_entries: buffer,
            receive_lookup_overlaps_arrival: overlaps,
            cipher_pipelined: pipelined,
            scheduler,
            quantum_ns,
            context_switch_ns,
            spin_ns: quantum_ns / 10,
            gang_slice_ns: quantum_ns,
            boost_period_ns: quantum_ns,
            ..Parameters::default()
        }
    })
}

/// Packets of all messages between different nodes, and the longest message.
fn sizes(acts: &[(u64, Act)], payload: u32, ranks_per_card: u32) -> (u64, u64) {
    let job = build(acts);
    let single = Parameters {
        nodes: RANKS.into(),
        ranks_per_card,
        keys: KeySource::None,
        packet_payload_bytes: payload,
        ..Parameters::default()
    };
    let outcome = Study::new(single, vec![job.clone()])
        .unwrap()
        .run(1)
        .unwrap();
    (job.messages() as u64, outcome.packets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_gets_stuck(
        acts in prop::collection::vec(act(), 1..40),
        parameters in parameters(),
        instances in 1..4_usize,
        seed in any::<u64>(),
    ) {
        let (messages, packets) = sizes(&acts, parameters.packet_payload_bytes, parameters.ranks_per_card);
        let jobs = vec![build(&acts); instances];
        let count = instances as u64;
        let study = Study::new(parameters.clone(), jobs).unwrap();
        let outcome = study.run(seed).unwrap();
        prop_assert!(outcome.finished);
        prop_assert_eq!(outcome.messages, messages * count);
        if parameters.level == Level::Packet {
            prop_assert_eq!(outcome.packets, packets * count);
            let lookups = match (parameters.keys, parameters.lookup_unit) {
                (KeySource::None, _) => Some(0),
                (_, LookupUnit::Packet) => Some(2 * outcome.packets),
                (_, LookupUnit::Message) => None,
            };
            prop_assert!(lookups.is_none_or(|lookups| lookups == outcome.lookups));
        }
        let found = outcome.hits + outcome.prefetch_hits + outcome.misses;
        prop_assert_eq!(found, outcome.lookups);
        for job in &outcome.jobs {
            prop_assert!(job.started_ps <= job.completed_ps);
            prop_assert!(job.completed_ps <= outcome.completion_ps);
        }
        // In slices it is the same run.
        let mut run = study.start(seed).unwrap();
        while !run.advance(7).unwrap() {}
        prop_assert_eq!(run.outcome(), outcome);
    }

    /// With room for all keys each end of a session misses once, so misses count sessions: pairs of ranks that talk and don't share a card.
    #[test]
    fn more_ranks_a_card_never_need_more_sessions(
        acts in prop::collection::vec(act(), 1..40),
        seed in any::<u64>(),
    ) {
        let (whole, job) = (trace(calls(&acts)), build(&acts));
        let mut before = u64::MAX;
        for ranks_per_card in [1, 2, 4_u16] {
            let parameters = Parameters {
                nodes: u32::from(RANKS / ranks_per_card),
                ranks_per_card: ranks_per_card.into(),
                cache_entries: 16,
                ..Parameters::default()
            };
            let outcome = Study::new(parameters, vec![job.clone()]).unwrap().run(seed).unwrap();
            let pairs: BTreeSet<_> = (0..RANKS)
                .flat_map(|rank| keys(&whole, rank.into(), Lookup::Message).map(move |(peer, _)| (rank, peer)))
                .filter(|(rank, peer)| rank / ranks_per_card != peer / ranks_per_card)
                .map(|(rank, peer)| (rank.min(peer), rank.max(peer)))
                .collect();
            prop_assert_eq!(outcome.misses, 2 * pairs.len() as u64);
            prop_assert!(outcome.misses <= before);
            prop_assert_eq!(outcome.messages, job.messages() as u64);
            before = outcome.misses;
        }
        prop_assert_eq!(before, 0, "all on one card");
    }
}
