//! The messages of a node that runs, until they become a trace.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{GAP_NS_MAX, MEMBERS_MAX, MessageDirection, Operation, RANKS_MAX, Trace, TraceRecord};

/// Most messages of a recording: 16 bytes each.
pub const MESSAGES_MAX: usize = 1 << 22;

/// The messages that a node sends and receives, kept until they become a trace. Messages beyond [`MESSAGES_MAX`], and those of the
/// peers that there is no rank for, are only counted.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    ranks: BTreeMap<u32, u16>,
    messages: Vec<RecordingEntry>,
    left_out: u64,
}

#[derive(Clone, Copy, Debug)]
struct RecordingEntry {
    at_ns: u64,
    bytes: u32,
    rank: u16,
    direction: MessageDirection,
}

impl Recording {
    /// A message of this node, to or from the peer of that number. `at` is the time since some start; it never goes back.
    pub fn note(&mut self, peer: u32, direction: MessageDirection, bytes: u64, at: Duration) {
        let next = self.ranks.len() + 1;
        let known = self.ranks.get(&peer).copied();
        if self.messages.len() == MESSAGES_MAX || (known.is_none() && next == RANKS_MAX) {
            self.left_out += 1;
            return;
        }
        let rank = known.unwrap_or(next as u16);
        self.ranks.insert(peer, rank);
        self.messages.push(RecordingEntry {
            at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            rank,
            direction,
        });
    }

    /// The trace: rank 0 is the node, the others are its peers in the order of their first messages. Each message is a send of one and a receive of
    /// the other, in the order in which the node saw them; a gap is the time by the node's clock since the rank's message before,
    /// as nobody knows how much of it was computation.
    pub fn trace(&self, name: &str) -> Trace {
        let count = self.ranks.len() + 1;
        let mut ranks = vec![vec![TraceRecord::new(Operation::Init)]; count];
        let start = self.messages.first().map_or(0, |first| first.at_ns);
        let mut last = vec![start; count];
        for message in &self.messages {
            let peer = usize::from(message.rank);
            let ends = match message.direction {
                MessageDirection::Send => {
                    [(0, peer, Operation::Send), (peer, 0, Operation::Receive)]
                }
                MessageDirection::Receive => {
                    [(peer, 0, Operation::Send), (0, peer, Operation::Receive)]
                }
            };
            for (rank, other, operation) in ends {
                let gap_ns = message.at_ns.saturating_sub(last[rank]);
                last[rank] = message.at_ns;
                ranks[rank].push(TraceRecord {
                    peer: Some(other as u16),
                    bytes: message.bytes,
                    gap_ns: gap_ns.min(GAP_NS_MAX),
                    entry_us: u32::try_from((message.at_ns - start) / 1000).unwrap_or(u32::MAX),
                    ..TraceRecord::new(operation)
                });
            }
        }
        for records in &mut ranks {
            records.push(TraceRecord::new(Operation::Finalize));
        }
        // Nobody calls a collective here. Everybody's list of everybody is left out where it would be longer than all messages.
        let everybody = (count * count <= MEMBERS_MAX)
            .then(|| (0..count).map(|rank| rank as u16).collect::<Vec<_>>());
        let mut note = "messages as one node saw them: gaps are time by its clock".to_owned();
        if self.left_out > 0 {
            note = format!("{note}; {} later messages are left out", self.left_out);
        }
        Trace {
            name: name.to_owned(),
            iterations: 0,
            note,
            ranks,
            communicators: vec![everybody.into_iter().collect(); count],
        }
    }
}
