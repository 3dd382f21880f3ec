//! Small programs for the tests.

use std::sync::Arc;

use exoskel_keycache::{KeySource, Parameters, ReplayProgram, RunOutcome, Study};
use exoskel_trace::{Operation, Trace, TraceRecord};

/// No time but that of links and what a test adds: 1 ns each byte, no headers, no chance.
pub(crate) fn bare(nodes: u32) -> Parameters {
    Parameters {
        nodes,
        compute_jitter_ppm: 0,
        start_spread_ns: 0,
        link_latency_ns: 0,
        switch_latency_ns: 0,
        card_processing_ns: 0,
        packet_header_bytes: 0,
        keys: KeySource::None,
        context_switch_ns: 0,
        ..Parameters::default()
    }
}

/// A trace of those calls, in which everybody is in one communicator.
pub(crate) fn trace(ranks: Vec<Vec<TraceRecord>>) -> Trace {
    let everybody: Vec<u16> = (0..ranks.len() as u16).collect();
    Trace {
        name: "test".to_owned(),
        communicators: vec![vec![everybody]; ranks.len()],
        ranks,
        ..Trace::default()
    }
}

pub(crate) fn program(ranks: Vec<Vec<TraceRecord>>) -> Arc<ReplayProgram> {
    Arc::new(ReplayProgram::from_trace(&trace(ranks)).unwrap())
}

pub(crate) fn run(parameters: &Parameters, jobs: &[Arc<ReplayProgram>]) -> RunOutcome {
    Study::new(parameters.clone(), jobs.to_vec())
        .unwrap()
        .run(1)
        .unwrap()
}

pub(crate) fn call(operation: Operation, peer: u16, bytes: u32) -> TraceRecord {
    TraceRecord {
        peer: Some(peer),
        bytes,
        ..TraceRecord::new(operation)
    }
}

pub(crate) fn send(peer: u16, bytes: u32) -> TraceRecord {
    call(Operation::Send, peer, bytes)
}

pub(crate) fn receive(peer: u16, bytes: u32) -> TraceRecord {
    call(Operation::Receive, peer, bytes)
}

/// The call, after so much computation.
pub(crate) fn after(gap_ns: u64, record: TraceRecord) -> TraceRecord {
    TraceRecord { gap_ns, ..record }
}

/// Nothing but computation.
pub(crate) fn compute(gap_ns: u64) -> TraceRecord {
    after(gap_ns, TraceRecord::new(Operation::Finalize))
}
