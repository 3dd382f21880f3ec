//! What a packet's way takes, against times reckoned by hand.

use std::slice::from_ref;

use exoskel_keycache::{
    Forwarding, KeySource, Level, LookupUnit, Parameters, RunOutcome, SwitchKind,
};
use exoskel_trace::Operation;

use super::workload::{after, bare, call, program, receive, run, send};

/// One message of so many bytes from node 0 to node 1.
fn one_message(parameters: &Parameters, bytes: u32) -> RunOutcome {
    let job = program(vec![vec![send(1, bytes)], vec![receive(0, bytes)]]);
    run(parameters, &[job])
}

fn secured(keys: KeySource) -> Parameters {
    Parameters {
        keys,
        cache_access_ns: 0,
        derivation_ns: 0,
        key_memory_accesses_in_flight: 1,
        ..bare(2)
    }
}

#[test]
fn a_packet_takes_latency_and_length() {
    let plain = one_message(&bare(2), 256);
    assert_eq!(plain.packet_latency.mean_ps, 256_000);
    assert_eq!(plain.completion_ps, 256_000);
    assert_eq!((plain.packets, plain.messages, plain.lookups), (1, 1, 0));

    let far = Parameters {
        link_latency_ns: 25,
        switch_latency_ns: 200,
        packet_header_bytes: 26,
        card_processing_ns: 1_200,
        ..bare(2)
    };
    assert_eq!(
        one_message(&far, 256).packet_latency.mean_ps,
        256_000 + 26_000 + 250_000 + 2_400_000
    );

    let stored = Parameters {
        switch_forwarding: Forwarding::StoreAndForward,
        ..bare(2)
    };
    assert_eq!(one_message(&stored, 256).packet_latency.mean_ps, 512_000);
}

/// The second packet of a message is handed to the card with the first one, and follows it on the link.
#[test]
fn packets_follow_one_another() {
    let outcome = one_message(&bare(2), 512);
    assert_eq!(outcome.packets, 2);
    assert_eq!(outcome.packet_latency.mean_ps, (256_000 + 512_000) / 2);
    assert_eq!(outcome.packet_latency.max_ps, 512_000);
    assert_eq!(outcome.message_latency.max_ps, 512_000);
}

/// Aim: a message may be a packet, or so many, whatever its bytes are. Method: 1,000 bytes of a rendezvous are four packets; one packet of them is sent at once.
#[test]
fn a_message_may_be_at_most_so_many_packets() {
    let eager = Parameters {
        eager_bytes: 512,
        ..bare(2)
    };
    assert_eq!(one_message(&eager, 1_000).packets, 4);
    for (message_packets_max, packets, bytes) in [(1, 1, 256), (2, 2, 512), (9, 4, 1_000)] {
        let cut = Parameters {
            message_packets_max,
            ..eager.clone()
        };
        let outcome = one_message(&cut, 1_000);
        assert_eq!((outcome.packets, outcome.payload_bytes), (packets, bytes));
        assert_eq!(one_message(&cut, 0).packets, 1);
    }
}

/// Aim: section 4.1 of the paper: 30 cycles of 270 MHz at each end, 222 ns, are what security costs when the key is at hand.
#[test]
fn the_cipher_takes_thirty_cycles_at_each_end() {
    let table = one_message(&secured(KeySource::Table), 256);
    assert_eq!(table.packet_latency.mean_ps, 256_000 + 2 * 111_111);
    assert_eq!(table.lookups, 2);
}

#[test]
fn without_a_cache_each_end_waits_for_the_key_memory() {
    let memory = one_message(&secured(KeySource::Memory), 256);
    assert_eq!(
        memory.packet_latency.mean_ps,
        256_000 + 2 * (2_500_000 + 111_111)
    );
    let encrypted = Parameters {
        key_decrypt_ns: 56,
        ..secured(KeySource::Memory)
    };
    assert_eq!(
        one_message(&encrypted, 256).packet_latency.mean_ps,
        256_000 + 2 * (2_500_000 + 56_000 + 111_111)
    );
    let derived = Parameters {
        derivation_ns: 89,
        ..secured(KeySource::Derive)
    };
    assert_eq!(
        one_message(&derived, 256).packet_latency.mean_ps,
        256_000 + 2 * (89_000 + 111_111)
    );
}

/// Aim: packets wait for one another at the key memory. Method: two packets. The sender's keys are there after 2,500 and 5,000 ns, the packets at
/// the receiver 111.111 + 256 ns later, at 2,867.111 and 5,367.111 ns. The receiver's memory has ended the first access at that very moment.
#[test]
fn accesses_of_the_key_memory_queue() {
    let one = one_message(&secured(KeySource::Memory), 512);
    assert_eq!(one.packet_latency.max_ps, 7_978_222);
    assert_eq!(one.packet_latency.mean_ps, (5_478_222 + 7_978_222) / 2);
    assert_eq!(one.key_memory.accesses, 4);
    assert_eq!(one.key_memory.waited_max_ps, 2_500_000);
    assert_eq!(one.key_memory.waited_mean_ps, 625_000);
    assert_eq!(one.key_memory.busy_ps, 10_000_000);

    // Both keys are there after 2,500 ns; the second packet follows the first on the link.
    let overlapping = Parameters {
        key_memory_accesses_in_flight: 2,
        ..secured(KeySource::Memory)
    };
    let two = one_message(&overlapping, 512);
    assert_eq!(two.packet_latency.max_ps, 5_734_222);
    assert_eq!(two.key_memory.waited_max_ps, 0);
}

/// The receiver's 2,500 ns begin with the first bit, 256 ns earlier.
#[test]
fn a_receiving_lookup_may_overlap_with_arrival() {
    let parameters = Parameters {
        receive_lookup_overlaps_arrival: true,
        ..secured(KeySource::Memory)
    };
    assert_eq!(
        one_message(&parameters, 256).packet_latency.mean_ps,
        2 * (2_500_000 + 111_111)
    );
}

#[test]
fn a_key_misses_once_and_then_hits_in_both_directions() {
    let parameters = Parameters {
        cache_access_ns: 3,
        ..secured(KeySource::Cache)
    };
    let outcome = run(
        &parameters,
        &[program(vec![
            vec![send(1, 256), receive(1, 256)],
            vec![receive(0, 256), send(0, 256)],
        ])],
    );
    assert_eq!((outcome.hits, outcome.misses), (2, 2));
    assert!((outcome.hit_rate() - 0.5).abs() < f64::EPSILON);
    let cipher_and_link = 256_000 + 2 * 111_111;
    let missed = cipher_and_link + 2 * 2_503_000;
    let hit = cipher_and_link + 2 * 3_000;
    assert_eq!(outcome.packet_latency.max_ps, missed);
    assert_eq!(outcome.completion_ps, missed + hit);
}

/// Aim: a packet whose key is on its way already waits for that and asks for nothing. Method: sixteen packets, one access at each end. At the sender
/// all are there at once; at the receiver nine more come within 2,500 ns of the first.
#[test]
fn packets_share_a_fetch() {
    let parameters = Parameters {
        card_buffer_packets: 16,
        ..secured(KeySource::Cache)
    };
    let outcome = one_message(&parameters, 16 * 256);
    assert_eq!(outcome.key_memory.accesses, 2);
    assert_eq!((outcome.hits, outcome.misses), (30, 2));
    assert_eq!(outcome.joined_fetches, 15 + 9);
}

#[test]
fn a_lookup_is_for_a_packet_or_for_a_message() {
    let by_message = Parameters {
        lookup_unit: LookupUnit::Message,
        ..secured(KeySource::Memory)
    };
    assert_eq!(one_message(&by_message, 2_560).lookups, 2);
    assert_eq!(one_message(&secured(KeySource::Memory), 2_560).lookups, 20);
    let empty = one_message(&secured(KeySource::Memory), 0);
    assert_eq!((empty.packets, empty.lookups), (1, 2));
}

/// Aim: packets of messages in flight alternate, so that a cache of one key misses each time at the sender. Method: two messages of
/// four packets each at once; each receiver has one peer only.
#[test]
fn messages_in_flight_take_turns() {
    let parameters = Parameters {
        nodes: 3,
        cache_entries: 1,
        ..secured(KeySource::Cache)
    };
    let started = |peer, request| exoskel_trace::TraceRecord {
        request,
        ..call(Operation::SendStart, peer, 1_024)
    };
    let job = program(vec![
        vec![started(1, 1), started(2, 2)],
        vec![receive(0, 1_024)],
        vec![receive(0, 1_024)],
    ]);
    let slow_start = Parameters {
        card_buffer_packets: 1,
        ..parameters.clone()
    };
    // With room for one packet, the order is 1 1 2 1 2 1 2 2: the second message comes when the first one has its next turn already.
    assert_eq!(run(&slow_start, from_ref(&job)).misses, 6 + 2);
    let one_by_one = Parameters {
        lookup_unit: LookupUnit::Message,
        ..parameters
    };
    assert_eq!(run(&one_by_one, &[job]).misses, 2 + 2);
}

/// Aim: in a crossbar a packet waits behind others of its input whose output is taken, in an output-queued switch it doesn't. Method: nodes 0, 1
/// and 2 share the link of node 3, so two of three packets of each wait in the switch. After 3 us node 0 sends one to node 4, which nobody
/// else does: it is the fifteenth packet of node 0, and waits for the fourteenth, or for none.
#[test]
fn a_crossbar_has_head_of_line_blocking() {
    let completion = |switch_kind| {
        let parameters = Parameters {
            switch_kind,
            card_buffer_packets: 1,
            ..bare(5)
        };
        let job = program(vec![
            vec![send(3, 8_192), after(3_000, send(4, 256))],
            vec![send(3, 8_192)],
            vec![send(3, 8_192)],
            vec![],
            vec![receive(0, 256)],
        ]);
        run(&parameters, &[job]).completion_ps
    };
    assert_eq!(completion(SwitchKind::OutputQueued), 15 * 256_000);
    // The fourteenth packet of node 0 is the 40th, 41st or 42nd of all for node 3.
    let crossbar = completion(SwitchKind::Crossbar);
    assert!(
        (41 * 256_000..=43 * 256_000).contains(&crossbar),
        "got {crossbar} ps"
    );
}

/// Two senders share the receiver's link: three packets each take six times 256 ns there.
#[test]
fn the_receivers_link_is_shared() {
    for switch_kind in [SwitchKind::OutputQueued, SwitchKind::Crossbar] {
        let parameters = Parameters {
            switch_kind,
            ..bare(3)
        };
        let job = program(vec![
            vec![send(2, 768)],
            vec![send(2, 768)],
            vec![receive(0, 768), receive(1, 768)],
        ]);
        assert_eq!(run(&parameters, &[job]).completion_ps, 6 * 256_000);
    }
}

/// Latency and length of 1,000 bytes; the second message waits for the first at the sender.
#[test]
fn messages_have_latency_and_rate() {
    let parameters = Parameters {
        level: Level::Message,
        link_latency_ns: 25,
        switch_latency_ns: 200,
        ..bare(2)
    };
    let outcome = one_message(&parameters, 1_000);
    assert_eq!(outcome.completion_ps, 1_250_000);
    assert_eq!((outcome.packets, outcome.lookups), (0, 0));
    let two = program(vec![
        vec![send(1, 1_000), send(1, 1_000)],
        vec![receive(0, 1_000), receive(0, 1_000)],
    ]);
    assert_eq!(run(&parameters, &[two]).completion_ps, 2_250_000);
}
