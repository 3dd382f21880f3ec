//! Synthetic ON/OFF traffic, as a trace that can be run.

use std::collections::BTreeSet;

use crate::error::KeycacheError;
use crate::program::MESSAGES_MAX;
use exoskel_determinism::SplitMix64;
use exoskel_trace::{GAP_NS_MAX, Operation, RANKS_MAX, RECORDS_MAX, Trace, TraceRecord};

/// Processes that compute (OFF) and then send to one other process (ON), in turn. Both times are drawn anew for each period, between 0 and twice their
/// means; nobody waits for anybody before the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// How many processes.
    pub ranks: u32,
    /// How many ON periods each of them has.
    pub periods: u32,
    /// Messages of an ON period.
    pub messages: u32,
    /// Payload of a message.
    pub message_bytes: u32,
    /// Mean time between two messages of an ON period.
    pub gap_ns: u64,
    /// Mean length of an OFF period.
    pub off_ns: u64,
}

impl Default for OnOff {
    fn default() -> Self {
        Self {
            ranks: 16,
            periods: 200,
            messages: 20,
            message_bytes: 256,
            gap_ns: 5_000,
            off_ns: 766_000,
        }
    }
}

impl OnOff {
    /// A trace of it; a function of the numbers and the seed.
    ///
    /// # Errors
    /// [`KeycacheError::Parameter`] names a number that can't be.
    pub fn trace(&self, seed: u64) -> Result<Trace, KeycacheError> {
        // Each message is two records, and each process waits once.
        let most = MESSAGES_MAX.min(RECORDS_MAX / 4) as u64;
        within("ranks", self.ranks.into(), 2, RANKS_MAX as u64)?;
        within(
            "periods",
            self.periods.into(),
            1,
            most / u64::from(self.ranks),
        )?;
        let periods = u64::from(self.ranks) * u64::from(self.periods);
        within("messages", self.messages.into(), 1, most / periods)?;
        within("gap_ns", self.gap_ns, 0, GAP_NS_MAX / 2)?;
        within("off_ns", self.off_ns, 0, GAP_NS_MAX / 2)?;
        let mut draft = Draft::new(self.ranks, seed);
        draft.in_order(self.periods, self.off_ns, |draft, source, off_ns| {
            let others = draft.ranks.len() as u64 - 1;
            let distance = 1 + draft.random.below(others) as usize;
            let destination = (source + distance) % draft.ranks.len();
            for number in 0..self.messages {
                let gap_ns = match number {
                    0 => off_ns,
                    _ => draft.random.below(2 * self.gap_ns + 1),
                };
                draft.send(source, destination, self.message_bytes, gap_ns);
                draft.begin_receive(destination, source, self.message_bytes);
            }
        });
        draft.wait_for_all();
        Ok(draft.finish())
    }
}

fn within(name: &'static str, got: u64, least: u64, most: u64) -> Result<(), KeycacheError> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    Err(KeycacheError::Parameter {
        name,
        got,
        expected: format!("{least} ..= {most}"),
    })
}

/// A trace that is being made. All calls are made in one order of all ranks, so that no two can wait for one another.
struct Draft {
    ranks: Vec<Vec<TraceRecord>>,
    random: SplitMix64,
    /// Receives that each rank has begun.
    begun: Vec<u32>,
}

impl Draft {
    fn new(ranks: u32, seed: u64) -> Self {
        Self {
            ranks: vec![Vec::new(); ranks as usize],
            random: SplitMix64::new(seed),
            begun: vec![0; ranks as usize],
        }
    }

    /// Each rank acts so many times, with pauses between 0 and twice the mean; they act in the order in which their pauses end.
    fn in_order(&mut self, times: u32, mean_ns: u64, mut act: impl FnMut(&mut Self, usize, u64)) {
        let mut next = BTreeSet::new();
        let mut left = vec![times; self.ranks.len()];
        let mut pauses = vec![0; self.ranks.len()];
        for (rank, pause) in pauses.iter_mut().enumerate() {
            *pause = self.random.below(2 * mean_ns + 1);
            next.insert((*pause, rank));
        }
        while let Some((at, rank)) = next.pop_first() {
            act(self, rank, pauses[rank]);
            left[rank] -= 1;
            if left[rank] > 0 {
                pauses[rank] = self.random.below(2 * mean_ns + 1);
                next.insert((at + pauses[rank], rank));
            }
        }
    }

    fn send(&mut self, rank: usize, peer: usize, bytes: u32, gap_ns: u64) {
        self.ranks[rank].push(TraceRecord {
            peer: Some(peer as u16),
            bytes,
            gap_ns,
            ..TraceRecord::new(Operation::Send)
        });
    }

    fn begin_receive(&mut self, rank: usize, peer: usize, bytes: u32) {
        self.begun[rank] += 1;
        self.ranks[rank].push(TraceRecord {
            peer: Some(peer as u16),
            bytes,
            request: self.begun[rank],
            ..TraceRecord::new(Operation::ReceiveStart)
        });
    }

    fn wait_for_all(&mut self) {
        for (calls, begun) in self.ranks.iter_mut().zip(&self.begun) {
            calls.push(TraceRecord {
                request: 1,
                tag: *begun as i32,
                ..TraceRecord::new(Operation::WaitAll)
            });
        }
    }

    fn finish(self) -> Trace {
        let everybody: Vec<u16> = (0..self.ranks.len() as u16).collect();
        Trace {
            name: "on-off".to_owned(),
            iterations: 1,
            note: "synthetic: processes compute, and send to one other process, in turn".to_owned(),
            communicators: vec![vec![everybody]; self.ranks.len()],
            ranks: self.ranks,
        }
    }
}
