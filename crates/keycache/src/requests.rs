//! Requests and answers between servers: a substitute where the paper has traffic of a commercial workload that isn't free.

use thiserror::Error;

use exoskel_determinism::SplitMix64;
use exoskel_trace::{Operation, RANKS_MAX, RECORDS_MAX, Trace, TraceRecord};

/// Payload of a request, and of an answer: a coherence protocol's command, and one with a cache line.
const REQUEST_BYTES: u32 = 8;
const ANSWER_BYTES: u32 = 72;
/// Mean processor time before a request, and of answering one, in nanoseconds.
const THINK_NS: u64 = 5_000;
const SERVICE_NS: u64 = 1_000;
/// Records that a request and its answer make, at both ends.
const RECORDS_EACH: usize = 6;

/// Traffic that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestsError {
    /// Nobody to ask, or too many.
    #[error("got ranks = {got}, expected 2 to {RANKS_MAX}")]
    Ranks {
        /// What was asked for.
        got: usize,
    },
    /// More than a trace holds.
    #[error("got requests = {got} of each rank, expected 1 to {most}")]
    Requests {
        /// What was asked for.
        got: usize,
        /// With so many ranks.
        most: usize,
    },
}

/// A trace in which each rank asks others and answers them. Which of the others a rank asks follows Zipf's law: the `k`-th of them is
/// asked `1/k` times as often as the first, and the order is each rank's own. Requests have 8 bytes, answers 72; both need one packet. Ranks think for 5 microseconds before a
/// request and work one for an answer, in the mean, evenly distributed up to twice that. A seed gives the same trace on every machine.
///
/// This is no trace of SPECjbb2000, which the paper used and which isn't free; the sizes are those of a coherence protocol's messages, as
/// its traffic was, too.
///
/// # Errors
/// [`RequestsError`] names the parameter that can't be.
pub fn requests(ranks: usize, requests: usize, seed: u64) -> Result<Trace, RequestsError> {
    if !(2..=RANKS_MAX).contains(&ranks) {
        return Err(RequestsError::Ranks { got: ranks });
    }
    let most = RECORDS_MAX / RECORDS_EACH / ranks;
    if !(1..=most).contains(&requests) {
        let got = requests;
        return Err(RequestsError::Requests { got, most });
    }
    let mut random = SplitMix64::new(seed);
    let popularity = Popularity::new(ranks - 1);
    let mut all: Vec<Vec<TraceRecord>> = vec![Vec::new(); ranks];
    for round in 0..requests {
        // Everybody asks, then answers who has asked, then takes the answer: no round holds up another one for ever.
        let asked: Vec<usize> = (0..ranks)
            .map(|rank| (rank + 1 + popularity.draw(&mut random)) % ranks)
            .collect();
        // A rank that asks another one may be asked by it in the same round: the tag tells its answer from the other's request.
        let call = |operation, peer: usize, bytes, gap_ns| TraceRecord {
            peer: Some(peer as u16),
            bytes,
            tag: 2 * round as i32 + i32::from(bytes == ANSWER_BYTES),
            request: round as u32,
            gap_ns,
            ..TraceRecord::new(operation)
        };
        for (rank, server) in asked.iter().enumerate() {
            let think = random.below(2 * THINK_NS);
            all[rank].push(call(Operation::ReceiveStart, *server, ANSWER_BYTES, think));
            all[rank].push(call(Operation::Send, *server, REQUEST_BYTES, 0));
        }
        for (client, server) in asked.iter().enumerate() {
            let work = random.below(2 * SERVICE_NS);
            all[*server].push(call(Operation::Receive, client, REQUEST_BYTES, 0));
            all[*server].push(call(Operation::Send, client, ANSWER_BYTES, work));
        }
        for (rank, server) in asked.iter().enumerate() {
            let mut wait = call(Operation::Wait, *server, 0, 0);
            wait.peer = None;
            all[rank].push(wait);
        }
    }
    let everybody: Vec<u16> = (0..ranks).map(|rank| rank as u16).collect();
    Ok(Trace {
        name: "requests".to_owned(),
        iterations: requests as u64,
        note: "synthetic: requests and answers, Zipf popularity".to_owned(),
        ranks: all,
        communicators: vec![vec![everybody]; ranks],
    })
}

/// Zipf's law in whole numbers.
struct Popularity {
    /// The sums of the weights up to each place.
    sums: Vec<u64>,
}

impl Popularity {
    fn new(places: usize) -> Self {
        let weight = |place: u64| (1 << 40) / place;
        let sums = (1..=places as u64).scan(0, |sum, place| {
            *sum += weight(place);
            Some(*sum)
        });
        Self {
            sums: sums.collect(),
        }
    }

    /// A place: the first one is the most popular.
    fn draw(&self, random: &mut SplitMix64) -> usize {
        let drawn = random.below(self.sums.last().copied().unwrap_or(1));
        self.sums.partition_point(|sum| *sum <= drawn)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Parameters, ReplayProgram, Study};

    #[test]
    fn every_request_has_its_answer() {
        let trace = requests(5, 40, 7).expect("possible");
        let count = |operation, bytes| {
            let records = trace.ranks.iter().flatten();
            records
                .filter(|record| record.operation == operation && record.bytes == bytes)
                .count()
        };
        assert_eq!(count(Operation::Send, REQUEST_BYTES), 5 * 40);
        assert_eq!(count(Operation::Receive, REQUEST_BYTES), 5 * 40);
        assert_eq!(count(Operation::Send, ANSWER_BYTES), 5 * 40);
        assert_eq!(count(Operation::ReceiveStart, ANSWER_BYTES), 5 * 40);
        assert_eq!(count(Operation::Wait, 0), 5 * 40);
        assert_eq!(requests(5, 40, 7), Ok(trace));
    }

    /// Aim: nobody waits for ever, whoever asks whom. Method: a whole run on cards; four ranks often ask one another in the same round.
    #[test]
    fn they_can_be_run() {
        let trace = requests(4, 200, 1).expect("possible");
        let program = ReplayProgram::from_trace(&trace).expect("matches");
        let study = Study::new(Parameters::default(), vec![Arc::new(program)]);
        let outcome = study.expect("possible").run(1).expect("ends");
        assert!(outcome.finished);
        assert_eq!(outcome.messages, 4 * 200 * 2);
    }

    /// Aim: popularity is Zipf's. Method: three other ranks, so shares of 6, 3 and 2 in 11.
    #[test]
    fn some_are_asked_more_often() {
        let trace = requests(4, 11_000, 3).expect("possible");
        let mut asked = [0_i64; 4];
        for record in &trace.ranks[0] {
            if record.operation == Operation::Send && record.bytes == REQUEST_BYTES {
                asked[usize::from(record.peer.expect("a send has one"))] += 1;
            }
        }
        for (got, expected) in asked.into_iter().zip([0, 6_000, 3_000, 2_000]) {
            assert!((got - expected).abs() < 200, "{asked:?}");
        }
    }

    #[test]
    fn what_can_not_be_is_named() {
        assert_eq!(requests(1, 1, 0), Err(RequestsError::Ranks { got: 1 }));
        let error = requests(2, 0, 0).expect_err("nothing is asked");
        assert!(error.to_string().contains("requests = 0"), "{error}");
        assert!(requests(2, usize::MAX, 0).is_err());
    }
}
