//! The runtime's own keys under the traffic of a trace: a thread for each rank, a socket and a session for each pair that talks.
//!
//! Each node handles its messages in the order of its program, one at a time: it seals and writes what it sends, and reads and opens what it waits
//! for, so each message is one lookup in the node's key store. Payloads are cut, as keys don't depend on them, and so that a message is a
//! record of known size.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use bytes::Bytes;
use exoskel_link::keys::{
    COMPACT_KEY_BYTES, Counters, Geometry, KEYS_OF_SESSION, KeyStore, KeyStoreSettings,
    PrefetchSettings,
};
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Session, SessionConfig, SessionSecret, Side,
    TrafficClass,
};
use exoskel_sim::keycache::sequence::{links, passages, predict};
use exoskel_sim::keycache::trace::{Direction, Step, Trace};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Failure, KeyCacheTrace, in_parallel, one_after_another, refused};

/// Most nodes: each is a thread, and each pair that talks has a socket.
const NODES_MAX: usize = 64;
/// A node that nothing happens to for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);
/// How long a read or write waits before it looks whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The payload of each message.
const PAYLOAD: [u8; 64] = [0x5a; 64];

/// The lookups of real nodes, and those that the simulation predicts, for caches of that shape: of each `lookups` and `hits`.
#[pyfunction]
pub(super) fn key_cache_live<'py>(
    py: Python<'py>,
    trace: &KeyCacheTrace,
    entries: usize,
    ways: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let geometry = Geometry::set_associative(entries, ways).map_err(refused)?;
    let nodes = nodes(&trace.trace, geometry).map_err(|failure| match failure {
        Failure::Refused(text) => pyo3::exceptions::PyValueError::new_err(text),
        Failure::Stopped => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
    })?;
    let total = Mutex::new((0, 0));
    in_parallel(
        py,
        nodes.len(),
        one_after_another(&nodes),
        |(_, node), stop| {
            let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
            node.run(stop)
        },
        |_, counters: Counters| {
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.0 += counters.lookups();
            total.1 += counters.hits;
            Ok(())
        },
    )?;
    let predicted = py.detach(|| predict(&trace.trace, geometry));
    let live = *total.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = PyDict::new(py);
    for (name, (lookups, hits)) in [
        ("live", live),
        ("predicted", (predicted.lookups, predicted.hits)),
    ] {
        let counts = PyDict::new(py);
        counts.set_item("lookups", lookups)?;
        counts.set_item("hits", hits)?;
        answer.set_item(name, counts)?;
    }
    Ok(answer)
}

/// One rank: its key store, its sessions by peer, and what it has to do.
struct Node {
    rank: usize,
    keys: KeyStore,
    lanes: BTreeMap<u16, Lane>,
    program: Vec<Step>,
}

/// A session on its socket.
struct Lane {
    session: Session,
    socket: UnixStream,
    link: LinkId,
    /// Of a message of the peer, on the wire.
    message_bytes: usize,
    /// When the session began.
    start: Instant,
}

/// All nodes of a trace, connected; no message of the program has gone yet, but each link is open.
fn nodes(trace: &Trace, geometry: Geometry) -> Result<Vec<Mutex<Node>>, Failure> {
    let count = trace.ranks.len();
    if count > NODES_MAX {
        let text =
            format!("got a trace of {count} ranks, expected at most {NODES_MAX} to run live");
        return Err(Failure::Refused(text));
    }
    let programs: Vec<Vec<Step>> = (0..count).map(|rank| passages(trace, rank)).collect();
    let mut nodes = Vec::with_capacity(count);
    for rank in 0..count {
        let settings = KeyStoreSettings {
            contexts: geometry,
            prefetch: PrefetchSettings::NONE,
        };
        let memory = vec![0; count * KEYS_OF_SESSION * COMPACT_KEY_BYTES];
        nodes.push(Node {
            rank,
            keys: KeyStore::new(settings, Box::new(memory))?,
            lanes: BTreeMap::new(),
            program: Vec::new(),
        });
    }
    let links = links(&programs);
    for (opener, other) in &links {
        let [opening, opened] = [*opener, *other].map(usize::from);
        let sockets = UnixStream::pair().map_err(|error| no_socket(&error, links.len()))?;
        let (own, theirs) = connect(&nodes[opening].keys, &nodes[opened].keys, sockets)?;
        nodes[opening].lanes.insert(*other, own);
        nodes[opened].lanes.insert(*opener, theirs);
    }
    for (node, program) in nodes.iter_mut().zip(programs) {
        node.program = program;
    }
    Ok(nodes.into_iter().map(Mutex::new).collect())
}

/// Why there is no socket, and how many descriptors so many links take.
fn no_socket(error: &std::io::Error, links: usize) -> Failure {
    Failure::Refused(format!(
        "got no socket ({error}), expected {} descriptors, two for each pair of ranks that talks: raise the limit (ulimit -n)",
        2 * links
    ))
}

/// Two sessions on both ends of a socket, each with a link to the other.
fn connect(
    own: &KeyStore,
    other: &KeyStore,
    (first, second): (UnixStream, UnixStream),
) -> Result<(Lane, Lane), Failure> {
    let mut secret = [0; 32];
    rand::fill(&mut secret)
        .map_err(|_| Failure::Refused("the system gave no random bytes".to_owned()))?;
    let mut client = Lane::new(Side::Client, &secret, own, first)?;
    let mut server = Lane::new(Side::Server, &secret, other, second)?;
    let go_on = AtomicBool::new(false);
    // Both have said all that they have to say of their links before the first message. What each writes last is a message, from which the
    // other learns how long one is.
    for (is_client, is_message) in [
        (true, false),
        (false, false),
        (true, false),
        (false, true),
        (true, true),
    ] {
        let (writer, reader) = if is_client {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        let bytes = if is_message {
            writer.send(&go_on)?
        } else {
            writer.write(&go_on)?
        };
        reader.message_bytes = bytes;
        reader.read(bytes, &go_on)?;
        while reader.session.poll_event().is_some() {}
    }
    Ok((client, server))
}

impl Node {
    /// Does all that the program says. The lookups that it took.
    fn run(&mut self, stop: &AtomicBool) -> Result<Counters, Failure> {
        let before = self.keys.counters().contexts;
        for (index, step) in self.program.iter().enumerate() {
            let Some(lane) = self.lanes.get_mut(&step.peer) else {
                continue;
            };
            let done = match step.direction {
                Direction::Send => lane.send(stop).map(drop),
                Direction::Receive => lane.receive(stop),
            };
            done.map_err(|failure| match failure {
                Failure::Refused(text) => Failure::Refused(format!(
                    "rank {}, message {index}, with rank {}: {text}",
                    self.rank, step.peer
                )),
                Failure::Stopped => Failure::Stopped,
            })?;
        }
        // Whoever still waits for a message of this node waits in vain.
        for lane in self.lanes.values() {
            lane.socket.shutdown(Shutdown::Write)?;
        }
        let after = self.keys.counters().contexts;
        Ok(Counters {
            hits: after.hits - before.hits,
            misses: after.misses - before.misses,
            ..Counters::default()
        })
    }
}

impl Lane {
    fn new(
        side: Side,
        secret: &[u8; 32],
        keys: &KeyStore,
        socket: UnixStream,
    ) -> Result<Self, Failure> {
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        socket.set_write_timeout(Some(LOOK_EVERY))?;
        let mut config = SessionConfig::new(side);
        // No record but those of messages: neither heartbeats nor credit.
        config.dead_after = Duration::from_secs(24 * 3600);
        config.heartbeat_every = config.dead_after;
        config.limits.credit_bytes = 1 << 40;
        config.peer_limits.credit_bytes = 1 << 40;
        let secret = SessionSecret::from_bytes(secret);
        let mut session = Session::new(config, secret, keys, Duration::ZERO);
        session.offer(Endpoint::new("node", &["take"]))?;
        let link = session.open_link("node", TrafficClass::Data)?;
        Ok(Self {
            session,
            socket,
            link,
            message_bytes: 0,
            start: Instant::now(),
        })
    }

    /// Seals and writes a message; how many bytes that were.
    fn send(&mut self, stop: &AtomicBool) -> Result<usize, Failure> {
        let message = Message {
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::from_static(&PAYLOAD),
            bulk: Vec::new(),
        };
        self.session.send(self.link, message)?;
        self.write(stop)
    }

    /// Writes what is queued; how many bytes that were.
    fn write(&mut self, stop: &AtomicBool) -> Result<usize, Failure> {
        let mut total = 0;
        self.session.prepare(self.start.elapsed())?;
        let mut happened = Instant::now();
        loop {
            let Some(slice) = self.session.outgoing().find(|slice| !slice.is_empty()) else {
                return Ok(total);
            };
            match self.socket.write(slice) {
                Ok(count) => {
                    self.session.sent(count);
                    total += count;
                    happened = Instant::now();
                }
                Err(error) => wait(&error, happened, stop)?,
            }
        }
    }

    /// Reads one message: no byte of the next one, so that each is opened by itself.
    fn receive(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        self.read(self.message_bytes, stop)?;
        let mut messages = 0;
        while let Some(event) = self.session.poll_event() {
            if let Event::Message { link, size, .. } = event {
                self.session.consumed(link, size);
                messages += 1;
            }
        }
        if messages == 1 {
            return Ok(());
        }
        Err(Failure::Refused(format!(
            "got {messages} messages in the bytes of one"
        )))
    }

    /// Reads so many bytes, and only then has the session look at them.
    fn read(&mut self, bytes: usize, stop: &AtomicBool) -> Result<(), Failure> {
        let mut record = vec![0; bytes];
        let mut done = 0;
        let mut happened = Instant::now();
        while done < bytes {
            match self.socket.read(&mut record[done..]) {
                Ok(0) => {
                    let text = "got no message, expected one: that rank has ended";
                    return Err(Failure::Refused(text.to_owned()));
                }
                Ok(count) => {
                    done += count;
                    happened = Instant::now();
                }
                Err(error) => wait(&error, happened, stop)?,
            }
        }
        let mut rest = &record[..];
        while !rest.is_empty() {
            let room = self.session.receive_buffer();
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            self.session.received(count, self.start.elapsed())?;
            rest = &rest[count..];
        }
        Ok(())
    }
}

/// Whether to go on after an error of a socket that may only have had nothing to do.
fn wait(error: &std::io::Error, happened: Instant, stop: &AtomicBool) -> Result<(), Failure> {
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Stopped);
    }
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock | ErrorKind::TimedOut if happened.elapsed() < STUCK_AFTER => Ok(()),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Failure::Refused(format!(
            "nothing came or went for {} s: the trace's messages don't fit together",
            STUCK_AFTER.as_secs()
        ))),
        _ => Err(Failure::Refused(error.to_string())),
    }
}
