//! The runtime's own keys under the traffic of a trace: a thread for each rank, a socket and a session for each pair that talks.
//!
//! Each node handles its messages in the order of its program, one at a time: it seals and writes what it sends, and opens what it waits
//! for, so each message is one lookup in the node's key store. While a node waits, be it for a message or for room to send, it reads whatever its peers
//! have sent, as a library of small messages does: two that first send and then receive would wait for each other otherwise. What came early stays as it
//! came until its receive is waited for, so that no key is looked up before its turn. Payloads are cut, as keys don't depend on them, and so that a
//! message is a record of known size.
//!
//! # Layout
//!
//! * `node`: one rank, with its key store, and what it has to do
//! * `lane`: a session on its socket
//! * `error`: why a run can't be, or ends early

#![forbid(unsafe_code)]

mod error;
mod lane;
mod node;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use exoskel_keycache::sequence::{links, passages};
use exoskel_link::keys::Geometry;
use exoskel_trace::{CollectiveStep, Trace};

pub use error::LiveError;
use node::{LiveRank, LiveTraffic, connect};

/// Most nodes: each is a thread, and each pair that talks has a socket.
pub const NODES_MAX: usize = 64;
/// Most bytes that a node reads at a time.
const READ_BYTES: usize = 64 << 10;

/// The lookups of all nodes in their key stores, and how many found their key ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// One for each message.
    pub lookups: u64,
    /// Those that found it.
    pub hits: u64,
}

/// All nodes of a trace, connected; no message of the program has gone yet, but each link is open.
pub struct LiveRun {
    nodes: Vec<LiveRank>,
}

impl LiveRun {
    /// Connects the nodes of a trace, each with a key store of that shape.
    ///
    /// # Errors
    /// [`LiveError`] if there are too many ranks, or too few descriptors for their sockets.
    pub fn new(trace: &Trace, geometry: Geometry) -> Result<Self, LiveError> {
        let count = trace.ranks.len();
        if count > NODES_MAX {
            return Err(LiveError::TooManyRanks { ranks: count });
        }
        let programs: Vec<Vec<CollectiveStep>> =
            (0..count).map(|rank| passages(trace, rank)).collect();
        let links = links(&programs);
        let mut nodes = Vec::with_capacity(count);
        for (rank, program) in programs.into_iter().enumerate() {
            nodes.push(LiveRank::new(rank, count, geometry, program)?);
        }
        for pair in &links {
            connect(&mut nodes, *pair, links.len())?;
        }
        Ok(Self { nodes })
    }

    /// Does all that the programs say, on a thread for each node. Whoever sets `stop` ends it early; so does the first node that fails.
    ///
    /// # Errors
    /// [`LiveError`] of the node that failed first, or [`LiveError::Stopped`].
    pub fn run(self, stop: &AtomicBool) -> Result<Lookups, LiveError> {
        let traffic = LiveTraffic::default();
        let first_failure = Mutex::new(None);
        let mut total = Lookups::default();
        std::thread::scope(|scope| {
            let run = |mut node: LiveRank| {
                let (traffic, first_failure) = (&traffic, &first_failure);
                scope.spawn(move || match node.run(traffic, stop) {
                    Ok(lookups) => lookups,
                    Err(error) => {
                        let mut first =
                            first_failure.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(error);
                        stop.store(true, Ordering::Relaxed);
                        Lookups::default()
                    }
                })
            };
            let threads: Vec<_> = self.nodes.into_iter().map(run).collect();
            for thread in threads {
                let lookups = thread.join().expect("a node's thread doesn't panic");
                total.lookups += lookups.lookups;
                total.hits += lookups.hits;
            }
        });
        let failure = first_failure.into_inner();
        match failure.unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(total),
        }
    }
}
