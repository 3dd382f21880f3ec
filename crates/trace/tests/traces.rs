//! Traces: the kept ones say what their README says, everything written can be read, and everything else is refused with its place.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "traces are files, and a test may read them"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use exoskel_trace::{
    GAP_NS_MAX, MessageDirection, NAME_BYTES_MAX, Operation, RankCalls, Recording, ReplayText,
    Trace, TraceError, TraceFault, TraceRecord,
};
use proptest::prelude::*;

fn kept(name: &str) -> Trace {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let bytes = std::fs::read(directory.join(format!("{name}.skct.zst"))).unwrap();
    Trace::read(&bytes).unwrap()
}

/// What the README of the traces says of a file: name, iterations, records, sends, bytes sent, processor time in hundredths of a
/// second, directed pairs that send.
const KEPT: [(&str, u64, usize, u64, u64, u64, usize); 12] = [
    ("bt.A.16", 200, 273_760, 77_280, 3_533_592_960, 2494, 96),
    ("sp.A.16", 400, 430_240, 154_080, 5_922_579_456, 1575, 96),
    ("lu.A.16.it20", 20, 128_908, 63_684, 133_132_032, 147, 48),
    ("cg.A.16", 15, 141_376, 47_104, 559_325_184, 77, 48),
    ("mg.A.16", 4, 34_720, 11_024, 206_992_128, 109, 72),
    ("ft.A.16", 6, 336, 0, 0, 155, 0),
    ("bt.S.16", 60, 83_360, 23_520, 52_208_640, 10, 96),
    ("sp.S.16", 100, 108_640, 38_880, 44_421_120, 12, 96),
    ("lu.S.16", 50, 57_212, 27_108, 9_915_648, 4, 48),
    ("cg.S.16", 15, 141_376, 47_104, 56_131_584, 10, 48),
    ("mg.S.16", 4, 21_760, 6_704, 3_890_944, 2, 72),
    ("ft.S.16", 6, 336, 0, 0, 4, 0),
];

#[test]
fn the_kept_traces_are_as_their_readme_says() {
    for (name, iterations, records, sends, bytes, centiseconds, pairs) in KEPT {
        let trace = kept(name);
        assert_eq!(trace.ranks.len(), 16, "{name}");
        assert!(name.to_uppercase().starts_with(&trace.name), "{name}");
        assert_eq!(trace.iterations, iterations, "{name}");
        assert_eq!(trace.records(), records, "{name}");
        // Messages and bytes, by sender and receiver.
        let mut sent: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
        let mut received = sent.clone();
        let mut gap_ns = 0;
        for (rank, calls) in trace.ranks.iter().enumerate() {
            for record in calls {
                gap_ns += record.gap_ns;
                let Some(peer) = record.peer.map(usize::from) else {
                    continue;
                };
                let entry = if record.operation.is_send() {
                    sent.entry((rank, peer))
                } else if record.operation.is_receive() {
                    received.entry((peer, rank))
                } else {
                    continue;
                };
                let (messages, payload) = entry.or_default();
                *messages += 1;
                *payload += u64::from(record.bytes);
            }
        }
        assert_eq!(sent.values().map(|sum| sum.0).sum::<u64>(), sends, "{name}");
        assert_eq!(sent.values().map(|sum| sum.1).sum::<u64>(), bytes, "{name}");
        assert_eq!(sent.len(), pairs, "{name}");
        assert_eq!((gap_ns + 5_000_000) / 10_000_000, centiseconds, "{name}");
        let messages = |sums: &BTreeMap<(usize, usize), (u64, u64)>| -> Vec<_> {
            sums.iter().map(|(pair, sum)| (*pair, sum.0)).collect()
        };
        assert_eq!(messages(&sent), messages(&received), "{name}");
        assert!(sent == received || name.starts_with("mg"), "{name}");
    }
}

#[test]
fn a_kept_trace_survives_being_written() {
    let trace = kept("mg.S.16");
    let bytes = trace.write().unwrap();
    assert_eq!(Trace::read(&bytes).unwrap(), trace);
}

/// A trace of everything that the format can say, between that many ranks.
fn any_trace() -> impl Strategy<Value = Trace> {
    (1..6_usize).prop_flat_map(|ranks| {
        let everybody: Vec<u16> = (0..ranks as u16).collect();
        let record = (
            prop::sample::select(OPERATIONS.to_vec()),
            prop::option::of(0..ranks as u16),
            (any::<u32>(), any::<i32>(), any::<u32>()),
            (0..=GAP_NS_MAX, any::<u32>(), any::<u32>()),
        )
            .prop_map(|(operation, peer, message, times)| TraceRecord {
                operation,
                peer: peer.or_else(|| (operation.is_send() || operation.has_root()).then_some(0)),
                bytes: message.0,
                tag: message.1,
                request: message.2,
                communicator: 0,
                gap_ns: times.0,
                entry_us: times.1,
                duration_us: times.2,
            });
        let calls = prop::collection::vec(prop::collection::vec(record, 0..20), ranks..=ranks);
        (calls, any::<u64>(), ".{0,8}").prop_map(move |(calls, iterations, note)| Trace {
            name: "any".to_owned(),
            iterations,
            note,
            ranks: calls,
            communicators: vec![vec![everybody.clone()]; ranks],
        })
    })
}

const OPERATIONS: [Operation; 19] = [
    Operation::Init,
    Operation::Send,
    Operation::SendStart,
    Operation::Receive,
    Operation::ReceiveStart,
    Operation::Wait,
    Operation::WaitAll,
    Operation::Barrier,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllReduce,
    Operation::AllToAll,
    Operation::AllToAllVarying,
    Operation::Gather,
    Operation::AllGather,
    Operation::Scatter,
    Operation::ReduceScatter,
    Operation::Scan,
    Operation::Finalize,
];

/// A small trace without zstd around it, so that damage reaches what is inside.
fn content() -> Vec<u8> {
    let mut calls = vec![TraceRecord::new(Operation::Init)];
    for peer in 0..3 {
        calls.push(TraceRecord {
            peer: Some(peer),
            bytes: 100,
            gap_ns: 5_000_000_000,
            ..TraceRecord::new(Operation::Send)
        });
    }
    calls.push(TraceRecord {
        peer: Some(1),
        bytes: 8,
        ..TraceRecord::new(Operation::Broadcast)
    });
    let trace = Trace {
        name: "small".to_owned(),
        ranks: vec![calls; 3],
        communicators: vec![vec![vec![0, 1, 2]]; 3],
        ..Trace::default()
    };
    zstd::stream::decode_all(&trace.write().unwrap()[..]).unwrap()
}

/// Where the columns begin.
fn columns_of(content: &[u8]) -> usize {
    12 + u32::from_le_bytes(content[8..12].try_into().unwrap()) as usize
}

proptest! {
    #[test]
    fn what_was_written_is_read(trace in any_trace()) {
        let bytes = trace.write().unwrap();
        prop_assert_eq!(Trace::read(&bytes).unwrap(), trace);
    }

    /// No part of a trace is a trace: neither of its file nor of what is in it.
    #[test]
    fn a_torn_trace_is_refused(cut: prop::sample::Index) {
        let content = content();
        let file = zstd::bulk::compress(&content, 1).unwrap();
        for whole in [content, file] {
            let part = &whole[..cut.index(whole.len())];
            let error = Trace::read(part).unwrap_err();
            prop_assert!(error.place.byte.is_some(), "{}", error);
        }
    }

    /// A changed bit is refused with its place, or the trace is another sound one: what is read can be written.
    #[test]
    fn a_changed_bit_never_breaks_the_reader(place: prop::sample::Index, bit in 0..8_u32) {
        let content = content();
        let file = zstd::bulk::compress(&content, 1).unwrap();
        for mut bytes in [content, file] {
            let index = place.index(bytes.len());
            bytes[index] ^= 1 << bit;
            match Trace::read(&bytes) {
                Ok(trace) => prop_assert_eq!(&Trace::read(&trace.write().unwrap()).unwrap(), &trace),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Trace::read(&bytes).is_err());
    }

    /// Aim: the messages of a collective fit together. Method: what all members send, each receives, with the same bytes, and nobody
    /// sends to itself.
    #[test]
    fn the_steps_of_a_collective_fit_together(
        operation in prop::sample::select(OPERATIONS.to_vec()),
        size in 1..20_u16,
        root: prop::sample::Index,
        bytes in 0..1000_u32,
    ) {
        let members: Vec<u16> = (0..size).rev().collect();
        let trace = Trace {
            communicators: vec![vec![members.clone()]; usize::from(size)],
            ..Trace::default()
        };
        let record = TraceRecord {
            peer: Some(*root.get(&members)),
            bytes,
            ..TraceRecord::new(operation)
        };
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for me in 0..size {
            for step in trace.steps(usize::from(me), &record) {
                prop_assert_ne!(step.peer, me);
                match step.direction {
                    MessageDirection::Send => sent.push((me, step.peer, step.bytes)),
                    MessageDirection::Receive => received.push((step.peer, me, step.bytes)),
                }
            }
        }
        sent.sort_unstable();
        received.sort_unstable();
        prop_assert_eq!(&sent, &received);
        prop_assert_eq!(sent.is_empty(), size == 1 || !operation.is_collective());
        // Information from everybody has to get to everybody, or to and from the root.
        let reached: BTreeSet<u16> = sent.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        prop_assert!(sent.is_empty() || reached.len() == usize::from(size));
    }
}

fn refused(bytes: &[u8]) -> TraceError {
    Trace::read(bytes).unwrap_err()
}

#[test]
fn errors_say_where() {
    let whole = content();
    let columns = columns_of(&whole);
    // Five records: operations, communicators, then peers of two bytes.
    let (operations, communicators, peers) = (columns, columns + 5, columns + 10);
    let changed = |place: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[place] = value;
        refused(&bytes)
    };

    let error = changed(operations + 2, 99);
    assert_eq!(error.fault, TraceFault::UnknownOperation { got: 99 });
    assert_eq!(
        error.to_string(),
        format!(
            "column op, rank 0, record 2, byte {}: got operation 99, expected one of this version (0 to 6, 16 to 26, 31)",
            operations + 2
        )
    );
    let error = changed(communicators + 4, 7);
    assert_eq!(
        error.fault,
        TraceFault::NoSuchCommunicator { got: 7, known: 1 }
    );
    assert_eq!(error.place.byte, Some(communicators + 4));
    // Of a call that is no collective, too.
    let error = changed(communicators + 1, 99);
    assert_eq!(
        error.fault,
        TraceFault::NoSuchCommunicator { got: 99, known: 1 }
    );
    assert_eq!(error.place.record, Some(1));
    let error = changed(peers + 2 * 3, 3);
    assert_eq!(error.fault, TraceFault::NoSuchPeer { got: 3, ranks: 3 });
    assert_eq!(error.place.part, "column peer");
    assert_eq!((error.place.rank, error.place.record), (Some(0), Some(3)));
    assert_eq!(error.place.byte, Some(peers + 6));

    let error = changed(0, b'X');
    assert_eq!(error.place.byte, Some(0));
    assert!(matches!(error.fault, TraceFault::Magic { .. }), "{error}");
    assert!(matches!(refused(b"").fault, TraceFault::Magic { .. }));

    // A column that ends early: the tags of the last rank's last three records are gone, and what follows them.
    let end = whole.len() - 5 * 29 + 10 + 5 * 2 + 2 * 4;
    let error = refused(&whole[..end]);
    assert_eq!(error.fault, TraceFault::Torn { expected: 12 });
    assert_eq!(error.place.part, "column tag");
    assert_eq!((error.place.rank, error.place.record), (Some(2), Some(2)));
    assert_eq!(error.place.byte, Some(end));

    let mut longer = whole.clone();
    longer.push(0);
    assert_eq!(refused(&longer).fault, TraceFault::Trailing { got: 1 });
}

/// The content with another header.
fn with_header(change: impl FnOnce(&str) -> String) -> Vec<u8> {
    let whole = content();
    let columns = columns_of(&whole);
    let header = change(std::str::from_utf8(&whole[12..columns]).unwrap());
    let mut bytes = whole[..8].to_vec();
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(&whole[columns..]);
    bytes
}

#[test]
fn a_header_that_can_not_be_is_refused() {
    let fault = |from: &str, to: &str| {
        refused(&with_header(|header| {
            assert!(header.contains(from), "{header}");
            header.replacen(from, to, 1)
        }))
        .fault
    };
    let ranks = |got, expected| TraceFault::Ranks { got, expected };
    assert_eq!(fault("\"ranks\":3", "\"ranks\":2"), ranks(3, 2));
    assert_eq!(fault("[5,5,5]", "[5,5,5,5]"), ranks(4, 3));
    assert_eq!(fault("[[[0,1,2]],", "["), ranks(2, 3));
    assert_eq!(
        fault("[0,1,2]", "[0,1,9]"),
        TraceFault::NoSuchPeer { got: 9, ranks: 3 }
    );
    assert_eq!(
        fault("[0,1,2]", "[0,1,1]"),
        TraceFault::MemberTwice { got: 1 }
    );
    assert_eq!(fault("[0,1,2]", "[1,2]"), TraceFault::NotMember);
    assert!(matches!(
        fault("[5,5,5]", "[5,5,99999999]"),
        TraceFault::TooMany {
            what: "records",
            ..
        }
    ));
    let long = format!("\"{}\"", "x".repeat(NAME_BYTES_MAX + 1));
    assert_eq!(
        fault("\"small\"", &long),
        TraceFault::TooMany {
            what: "bytes",
            got: NAME_BYTES_MAX as u64 + 1,
            most: NAME_BYTES_MAX as u64
        }
    );
    assert!(matches!(fault("<i2", "<i4"), TraceFault::Columns { .. }));
    assert!(matches!(
        fault("\"columns\"", "\"pillars\""),
        TraceFault::Header { .. }
    ));
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut trace = Trace {
        ranks: vec![vec![TraceRecord::new(Operation::Send)]],
        communicators: vec![vec![vec![0]]],
        ..Trace::default()
    };
    let error = trace.write().unwrap_err();
    assert_eq!(error.fault, TraceFault::NoSuchPeer { got: -1, ranks: 1 });
    assert_eq!((error.place.rank, error.place.record), (Some(0), Some(0)));
    trace.ranks[0][0].peer = Some(0);
    trace.ranks[0][0].gap_ns = GAP_NS_MAX + 1;
    let got = GAP_NS_MAX + 1;
    assert_eq!(
        trace.write().unwrap_err().fault,
        TraceFault::LongGap { got }
    );
    trace.ranks[0][0].gap_ns = 0;
    trace.name = "x".repeat(NAME_BYTES_MAX);
    assert!(trace.write().is_ok());
    trace.name.push('x');
    let error = trace.write().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the name: got 257 bytes, expected at most 256"
    );
}

/// The orders that the study relies on, spelled out for small numbers of members.
#[test]
fn collectives_have_these_steps() {
    let steps = |operation, size: u16, me: usize, root| {
        let trace = Trace {
            communicators: vec![vec![(0..size).collect()]; usize::from(size)],
            ..Trace::default()
        };
        let record = TraceRecord {
            peer: root,
            bytes: 8,
            ..TraceRecord::new(operation)
        };
        let short = |step: &exoskel_trace::CollectiveStep| match step.direction {
            MessageDirection::Send => format!(">{}", step.peer),
            MessageDirection::Receive => format!("<{}", step.peer),
        };
        let all: Vec<String> = trace.steps(me, &record).iter().map(short).collect();
        all.join(" ")
    };
    assert_eq!(steps(Operation::Barrier, 5, 1, None), ">2 <0 >3 <4 >0 <2");
    assert_eq!(steps(Operation::Broadcast, 8, 0, Some(0)), ">4 >2 >1");
    assert_eq!(steps(Operation::Broadcast, 8, 6, Some(0)), "<4 >7");
    assert_eq!(steps(Operation::Broadcast, 8, 1, Some(3)), "<7 >2");
    assert_eq!(steps(Operation::Reduce, 8, 0, Some(0)), "<1 <2 <4");
    assert_eq!(steps(Operation::AllReduce, 8, 5, None), ">4 <4 >7 <7 >1 <1");
    assert_eq!(steps(Operation::AllReduce, 3, 0, None), "<1 <2 >2 >1");
    assert_eq!(steps(Operation::AllToAll, 4, 1, None), ">2 <0 >3 <3 >0 <2");
    assert_eq!(steps(Operation::AllGather, 3, 1, None), ">2 <0 >2 <0");
    assert_eq!(steps(Operation::Scan, 3, 1, None), "<0 >2");
}

const REPLAY: &str = "\
0 init
0 compute 1e6
0 isend 1 7 100 6
0 irecv 1 8 10 0
0 wait 1 0 8
0 waitall
0 allreduce 4 0 1
0 finalize
1 init
1 recv 0 7 100 6
1 compute 500
1 compute 250
1 send 0 8 10 0
1 allreduce 4 0 1
1 finalize
";

fn replay(text: &str) -> Result<Trace, TraceError> {
    let name = "both.txt";
    Trace::read_simgrid("replay", &[ReplayText { name, text }], 1e9)
}

#[test]
fn replay_text_becomes_a_trace() {
    let trace = replay(REPLAY).unwrap();
    let names = |rank: usize| -> Vec<_> {
        let calls = trace.ranks[rank].iter();
        calls.map(|record| record.operation.name()).collect()
    };
    assert_eq!(
        names(0),
        [
            "init",
            "isend",
            "irecv",
            "wait",
            "waitall",
            "allreduce",
            "finalize"
        ]
    );
    assert_eq!(names(1), ["init", "recv", "send", "allreduce", "finalize"]);
    let zero = &trace.ranks[0];
    assert_eq!(
        (zero[1].peer, zero[1].tag, zero[1].bytes),
        (Some(1), 7, 100)
    );
    assert_eq!(zero[1].gap_ns, 1_000_000);
    assert_eq!(zero[2].bytes, 80, "ten doubles");
    assert_eq!(zero[3].request, zero[2].request);
    assert_eq!((zero[4].tag, zero[4].request), (1, zero[1].request));
    assert_eq!(zero[5].bytes, 16, "four ints");
    assert_eq!(trace.ranks[1][2].gap_ns, 750);
    assert_eq!(Trace::read(&trace.write().unwrap()).unwrap(), trace);
}

#[test]
fn what_smpi_writes_of_exchanges_and_of_anybody_becomes_calls() {
    // As smpirun -trace-ti writes them: both directions at once, two ways of sending, anybody with any tag, nobody, and an end that is missing.
    let text = "\
0 init
0 compute 5
0 sendRecv 3 1 4 1 1 1
0 irecv -333 -444 1 0
0 wait -333 0 -444
0 recv -333 4 1 0
0 send -333 5 1 0
0 finalize
1 init
1 sendRecv 4 0 3 0 1 1
1 Ssend 0 3 1 0
1 ISsend 0 4 1 0
1 wait 1 0 4
";
    let trace = replay(text).unwrap();
    let calls = |rank: usize| -> Vec<_> {
        let calls = trace.ranks[rank].iter();
        calls
            .map(|call| (call.operation.name(), call.peer, call.bytes, call.request))
            .collect()
    };
    assert_eq!(
        calls(0),
        [
            ("init", None, 0, 0),
            ("irecv", Some(1), 16, 0),
            ("send", Some(1), 12, 0),
            ("wait", None, 0, 0),
            ("irecv", None, 8, 1),
            ("wait", None, 0, 1),
            ("recv", None, 8, 0),
            ("finalize", None, 0, 0),
        ]
    );
    assert_eq!(
        calls(1)[1..],
        [
            ("irecv", Some(0), 12, 0),
            ("send", Some(0), 16, 0),
            ("wait", None, 0, 0),
            ("send", Some(0), 8, 0),
            ("isend", Some(0), 8, 1),
            ("wait", None, 0, 1),
        ]
    );
    assert_eq!(trace.ranks[0][1].gap_ns, 5);
    assert_eq!(trace.ranks[0][2].gap_ns, 0);
    assert_eq!(
        trace.note,
        "from a time-independent trace of SimGrid; ended early: rank 1; \
         2 receives are from anybody or nobody, which isn't told apart and is left out"
    );
    assert_eq!(Trace::read(&trace.write().unwrap()).unwrap(), trace);
}

#[test]
fn bad_replay_text_is_refused_with_its_line() {
    let refused = |from: &str, to: &str| {
        assert!(REPLAY.contains(from));
        let error = replay(&REPLAY.replacen(from, to, 1)).unwrap_err();
        (error.place.line, error.to_string())
    };
    let (line, message) = refused("compute 1e6", "compute soon");
    assert_eq!(line, Some(2));
    assert_eq!(
        message,
        "both.txt, line 2: got \"soon\", expected an amount (a number that isn't negative)"
    );
    assert_eq!(refused("isend 1 7", "isend 2 7").0, Some(3));
    assert_eq!(refused("isend 1 7 100 6", "isend 1 7").0, Some(3));
    assert_eq!(refused("100 6", "5e9 6").0, Some(3));
    assert_eq!(refused("0 wait 1", "0 wish 1").0, Some(5));
    assert_eq!(refused("1 recv", "one recv").0, Some(10));
    assert_eq!(refused("recv 0 7", "recv 70000 7").0, Some(10));
    assert_eq!(refused("0 waitall", "0 waitAny 2").0, Some(6));
    assert_eq!(refused("0 waitall", "0 sendRecv 3 1 4").0, Some(6));
    assert_eq!(refused("compute 1e6", "compute 1e99").0, Some(3));
    let error = replay("0 init\n2 init\n").unwrap_err();
    assert_eq!(
        (error.place.rank, error.fault),
        (
            Some(1),
            TraceFault::Ranks {
                got: 1,
                expected: 3
            }
        )
    );
    assert!(Trace::read_simgrid("none", &[], 0.0).is_err());
}

#[test]
fn sends_that_nobody_receives_are_in_the_note() {
    let note = |text: &str| replay(text).unwrap().note;
    let both = "0 send 1 0 8 6\n0 isend 1 1 8 6\n0 send 1 2 8 6\n1 recv 0 0 8 6\n";
    assert!(note(both).contains("; sends without a receive: 2,"));
    // A receive from anybody takes one of them, if it is the receiver's.
    assert!(note(&format!("{both}1 recv -333 1 8 6\n")).contains("; sends without a receive: 1,"));
    assert!(note(&format!("{both}0 recv -333 1 8 6\n")).contains("; sends without a receive: 2,"));
    assert!(
        !note(&format!("{both}1 recv 0 1 8 6\n1 irecv 0 2 8 6\n")).contains("without a receive")
    );
}

#[test]
fn a_recording_becomes_a_trace() {
    let at = Duration::from_micros;
    let mut recording = Recording::default();
    recording.note(7, MessageDirection::Send, 100, at(5_000));
    recording.note(3, MessageDirection::Send, 200, at(5_010));
    recording.note(7, MessageDirection::Receive, 1 << 40, at(5_100));
    let trace = recording.trace("live");
    let calls = |rank: usize| -> Vec<_> {
        let calls = trace.ranks[rank].iter();
        calls
            .map(|call| (call.operation.name(), call.peer, call.bytes, call.gap_ns))
            .collect()
    };
    assert_eq!(
        calls(0),
        [
            ("init", None, 0, 0),
            ("send", Some(1), 100, 0),
            ("send", Some(2), 200, 10_000),
            ("recv", Some(1), u32::MAX, 90_000),
            ("finalize", None, 0, 0),
        ]
    );
    assert_eq!(
        calls(1)[1..3],
        [
            ("recv", Some(0), 100, 0),
            ("send", Some(0), u32::MAX, 100_000)
        ]
    );
    assert_eq!(Trace::read(&trace.write().unwrap()).unwrap(), trace);
    // More peers than everybody's list of everybody has room for.
    for peer in 0..3000 {
        recording.note(peer, MessageDirection::Send, 1, at(6_000));
    }
    let trace = recording.trace("many");
    assert_eq!(trace.ranks.len(), 3001);
    assert_eq!(Trace::read(&trace.write().unwrap()).unwrap(), trace);
    assert!(Recording::default().trace("none").write().is_ok());
}

/// A file of the tracer: two calls, of which the second is given.
fn calls(rank: u32, ranks: u32, bytes: u64, peer: i32, operation: u8) -> Vec<u8> {
    let mut file = b"EXOCALL1".to_vec();
    file.extend(rank.to_le_bytes());
    file.extend(ranks.to_le_bytes());
    file.extend([0; 16]);
    for (operation, peer, gap_ns) in [(0, -1, 0), (operation, peer, 1_u64 << 41)] {
        for number in [3_000, 2_000, gap_ns, bytes] {
            file.extend(u64::to_le_bytes(number));
        }
        file.extend(i32::to_le_bytes(peer));
        file.extend(7_i32.to_le_bytes());
        file.extend(9_u32.to_le_bytes());
        file.extend([operation, 0, 0, 0]);
    }
    file
}

fn read_calls(files: &[Vec<u8>], communicators: &str) -> Result<Trace, TraceError> {
    let files: Vec<RankCalls<'_>> = files
        .iter()
        .map(|calls| RankCalls {
            name: "rank.calls",
            calls,
            communicators,
        })
        .collect();
    Trace::read_calls("traced", &files)
}

#[test]
fn what_the_tracer_left_becomes_a_trace() {
    let files = [calls(1, 2, 8, 0, 3), calls(0, 2, 8, 1, 1)];
    let trace = read_calls(&files, "0 1\n").unwrap();
    let sent = trace.ranks[0][1];
    assert_eq!(
        (sent.operation, sent.peer, sent.bytes),
        (Operation::Send, Some(1), 8)
    );
    assert_eq!((sent.tag, sent.request, sent.gap_ns), (7, 9, GAP_NS_MAX));
    assert_eq!((sent.entry_us, sent.duration_us), (3, 2));
    assert_eq!(trace.ranks[1][1].operation, Operation::Receive);
    assert_eq!(trace.communicators, [[[0, 1]], [[0, 1]]]);
    assert_eq!(
        trace.note,
        "ended early: rank 0, 1; 2 gaps were longer than 1099511627775 ns and are cut to that"
    );
    assert_eq!(Trace::read(&trace.write().unwrap()).unwrap(), trace);
    // A program that was killed: what is left of the last call isn't one.
    let mut torn = files.clone();
    torn[0].truncate(32 + 48 + 47);
    let trace = read_calls(&torn, "0 1").unwrap();
    assert_eq!(trace.ranks[1].len(), 1);
    assert!(trace.note.contains("; said nothing: rank 1; "));
}

#[test]
fn what_the_tracer_never_leaves_is_refused() {
    let fault = |files: &[Vec<u8>]| read_calls(files, "0 1\n").unwrap_err();
    let whole = calls(0, 2, 8, 1, 1);
    let ranks = |got, expected| TraceFault::Ranks { got, expected };
    assert_eq!(fault(std::slice::from_ref(&whole)).fault, ranks(1, 2));
    let twice = fault(&[whole.clone(), whole.clone()]);
    assert_eq!(twice.fault, TraceFault::RankTwice { got: 0 });
    let other = fault(&[whole.clone(), calls(1, 3, 8, 1, 1)]);
    let (got, expected) = (3, 2);
    assert_eq!(other.fault, TraceFault::OtherRun { got, expected });
    assert!(other.to_string().contains("trace again into a new folder"));
    let error = fault(&[calls(2, 2, 8, 1, 1)]);
    assert_eq!(error.fault, TraceFault::NoSuchPeer { got: 2, ranks: 2 });
    let error = fault(&[whole.clone(), calls(1, 2, 8, 2, 1)]);
    assert_eq!(error.fault, TraceFault::NoSuchPeer { got: 2, ranks: 2 });
    assert_eq!(
        error.to_string(),
        "rank.calls, rank 1, record 1, byte 112: got peer 2, expected a rank below 2"
    );
    let error = fault(&[whole.clone(), calls(1, 2, 1 << 40, 0, 1)]);
    assert!(matches!(
        error.fault,
        TraceFault::TooMany { what: "bytes", .. }
    ));
    let error = fault(&[whole.clone(), calls(1, 2, 8, 0, 15)]);
    assert_eq!(error.fault, TraceFault::UnknownOperation { got: 15 });
    assert_eq!(
        fault(&[whole[..20].to_vec()]).fault,
        TraceFault::Torn { expected: 12 }
    );
    assert!(matches!(
        fault(&[b"hello".to_vec()]).fault,
        TraceFault::NoCalls { .. }
    ));
    let error = read_calls(&[whole.clone(), calls(1, 2, 8, 0, 1)], "0 one\n").unwrap_err();
    assert_eq!(error.place.line, Some(1));
    assert!(read_calls(&[], "").unwrap().ranks.is_empty());
}

#[path = "../../../fuzz/trace_doors.rs"]
mod trace_doors;

type Door = fn(&[u8]);

#[test]
fn the_corpus_goes_through_its_doors() {
    let doors: [(&str, Door); 3] = [
        ("trace_calls", trace_doors::calls),
        ("trace_skct", trace_doors::skct),
        ("trace_simgrid", trace_doors::simgrid),
    ];
    for (name, door) in doors {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let files: Vec<Vec<u8>> = std::fs::read_dir(directory.join(name))
            .unwrap()
            .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
            .collect();
        assert!(files.len() >= 3, "{name}");
        for bytes in files {
            door(&bytes);
        }
    }
}

proptest! {
    /// Lines of words that actions are made of, in any order: read, or refused with the line.
    #[test]
    fn replay_text_in_disorder_is_read_or_refused(
        lines in prop::collection::vec(prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..7), 0..12),
    ) {
        let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
        trace_doors::simgrid(lines.join("\n").as_bytes());
    }
}

const WORDS: [&str; 16] = [
    "0",
    "1",
    "2",
    "1e9",
    "-1",
    "init",
    "isend",
    "irecv",
    "wait",
    "waitall",
    "compute",
    "bcast",
    "alltoallv",
    "gatherv",
    "scatter",
    "p0",
];
