//! The doors through which traces come in, one function for each reader: a trace that is read can be written, and comes back the same.

#![allow(dead_code, reason = "each target goes through one of the doors")]

use exoskel_trace::{RankCalls, ReplayText, Trace};

pub(crate) fn skct(bytes: &[u8]) {
    if let Ok(trace) = Trace::read(bytes) {
        comes_back(&trace);
    }
}

pub(crate) fn simgrid(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let texts = [ReplayText { name: "text", text }];
    if let Ok(trace) = Trace::read_simgrid("text", &texts, 1e9) {
        comes_back(&trace);
    }
}

/// The bytes up to the first blank line are the communicators, the others the calls.
pub(crate) fn calls(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (communicators, calls) = bytes.split_at(end.map_or(0, |end| end + 2));
    let Ok(communicators) = std::str::from_utf8(communicators) else {
        return;
    };
    let files = [RankCalls {
        name: "calls",
        calls,
        communicators: communicators.trim_end(),
    }];
    if let Ok(trace) = Trace::read_calls("calls", &files) {
        comes_back(&trace);
    }
}

fn comes_back(trace: &Trace) {
    for (rank, records) in trace.ranks.iter().enumerate() {
        for record in records.iter().take(8) {
            trace.steps(rank, record);
        }
    }
    let written = trace.write().expect("a trace that was read is sound");
    assert_eq!(Trace::read(&written).as_ref(), Ok(trace));
}
