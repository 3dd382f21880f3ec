//! The runtime's own keys under the traffic of a trace: a thread for each rank, a socket and a session for each pair that talks.
//!
//! Each node handles its messages in the order of its program, one at a time: it seals and writes what it sends, and opens what it waits
//! for, so each message is one lookup in the node's key store. While a node waits, be it for a message or for room to send, it reads whatever its peers
//! have sent, as a library of small messages does: two that first send and then receive would wait for each other otherwise. What came early stays as it
//! came until its receive is waited for, so that no key is looked up before its turn. Payloads are cut, as keys don't depend on them, and so that a
//! message is a record of known size.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use bytes::{Bytes, BytesMut};
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Failure, KeyCacheTrace, in_parallel, one_after_another, refused};

/// Most nodes: each is a thread, and each pair that talks has a socket.
const NODES_MAX: usize = 64;
/// Nodes that exchange no byte for so long are stuck, all of them.
const STUCK_AFTER: Duration = Duration::from_secs(20);
/// How long a node waits before it looks whether it should stop, in nanoseconds.
const LOOK_EVERY_NS: i64 = 100_000_000;
/// Most bytes of messages that came before their receive, all nodes together: some two million messages. Each node may be a [`READ_BYTES`] over it.
const EARLY_BYTES_MAX: usize = 256 << 20;
/// Most bytes that a node reads at a time.
const READ_BYTES: usize = 64 << 10;
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
    let (total, traffic) = (Mutex::new((0, 0)), Traffic::default());
    in_parallel(
        py,
        nodes.len(),
        one_after_another(&nodes),
        |(_, node), stop| {
            let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
            node.run(&traffic, stop)
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

/// What all nodes know of one another.
#[derive(Default)]
struct Traffic {
    /// Goes up whenever a byte comes or goes somewhere.
    moves: AtomicU64,
    /// Nodes that wait for room to send.
    without_room: AtomicUsize,
    /// Bytes that came before their receive, all nodes together.
    early: AtomicUsize,
}

/// One rank: its key store, its sessions by peer, and what it has to do.
struct Node {
    rank: usize,
    keys: KeyStore,
    lanes: BTreeMap<u16, Lane>,
    program: Vec<Step>,
}

/// What a node waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Room to send to that rank.
    Room(u16),
    /// A message of that rank.
    Message(u16),
    /// The ends of the others.
    Ends,
}

/// A session on its socket.
struct Lane {
    session: Session,
    socket: UnixStream,
    link: LinkId,
    /// Of a message of the peer, on the wire.
    message_bytes: usize,
    /// What the peer has sent and no receive has been waited for yet, as it came: not opened.
    early: BytesMut,
    /// The peer sends nothing more.
    has_ended: bool,
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
    // Both have said all that they have to say of their links before the first message. What each writes last is a message, from which the
    // other learns how long one is. All of it is less than a socket has room for.
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
        if is_message {
            writer.queue()?;
        }
        writer.session.prepare(writer.start.elapsed())?;
        reader.message_bytes = writer.write()?;
        reader.read(&mut vec![0; READ_BYTES])?;
        if reader.early.len() != reader.message_bytes || !writer.is_all_written() {
            let text = "a socket had no room for the first words of a link";
            return Err(Failure::Refused(text.to_owned()));
        }
        reader.open()?;
        while reader.session.poll_event().is_some() {}
    }
    Ok((client, server))
}

impl Node {
    /// Does all that the program says. The lookups that it took.
    fn run(&mut self, traffic: &Traffic, stop: &AtomicBool) -> Result<Counters, Failure> {
        let before = self.keys.counters().contexts;
        let mut room = vec![0; READ_BYTES];
        for (index, step) in std::mem::take(&mut self.program).into_iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            let done = match step.direction {
                Direction::Send => self.send(step.peer, &mut room, traffic, stop),
                Direction::Receive => self.receive(step.peer, &mut room, traffic, stop),
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
        // What the others still send, nobody receives; but they must not wait for room.
        loop {
            for lane in self.lanes.values_mut() {
                traffic.early.fetch_sub(lane.early.len(), Ordering::Relaxed);
                lane.early.clear();
            }
            if self.lanes.values().all(|lane| lane.has_ended) {
                break;
            }
            self.wait(Awaited::Ends, &mut room, traffic, stop)?;
        }
        let after = self.keys.counters().contexts;
        Ok(Counters {
            hits: after.hits - before.hits,
            misses: after.misses - before.misses,
            ..Counters::default()
        })
    }

    /// Seals and writes a message.
    fn send(
        &mut self,
        peer: u16,
        room: &mut [u8],
        traffic: &Traffic,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let lane = self.lane(peer)?;
        lane.queue()?;
        lane.session.prepare(lane.start.elapsed())?;
        let mut waits = false;
        let done = loop {
            let lane = self.lane(peer)?;
            match lane.write() {
                Ok(0) => {}
                Ok(_) => drop(traffic.moves.fetch_add(1, Ordering::Relaxed)),
                Err(failure) => break Err(failure),
            }
            if lane.is_all_written() {
                break Ok(());
            }
            if !waits {
                waits = true;
                traffic.without_room.fetch_add(1, Ordering::Relaxed);
            }
            if let Err(failure) = self.wait(Awaited::Room(peer), room, traffic, stop) {
                break Err(failure);
            }
        };
        if waits {
            traffic.without_room.fetch_sub(1, Ordering::Relaxed);
        }
        done
    }

    /// Opens the next message of that rank, when it is here.
    fn receive(
        &mut self,
        peer: u16,
        room: &mut [u8],
        traffic: &Traffic,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        loop {
            let lane = self.lane(peer)?;
            if lane.early.len() >= lane.message_bytes {
                traffic
                    .early
                    .fetch_sub(lane.message_bytes, Ordering::Relaxed);
                return lane.take();
            }
            if lane.has_ended {
                let text = "got no message, expected one: that rank has ended";
                return Err(Failure::Refused(text.to_owned()));
            }
            self.wait(Awaited::Message(peer), room, traffic, stop)?;
        }
    }

    fn lane(&mut self, peer: u16) -> Result<&mut Lane, Failure> {
        let none = || Failure::Refused("expected a link to it, got none".to_owned());
        self.lanes.get_mut(&peer).ok_or_else(none)
    }

    /// Waits until something comes, or goes, and reads what came.
    fn wait(
        &mut self,
        awaited: Awaited,
        room: &mut [u8],
        traffic: &Traffic,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut moves = traffic.moves.load(Ordering::Relaxed);
        let mut moved = Instant::now();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            if self.look(awaited, room, traffic)? {
                return Ok(());
            }
            let now = traffic.moves.load(Ordering::Relaxed);
            if now != moves {
                (moves, moved) = (now, Instant::now());
            } else if awaited != Awaited::Ends && moved.elapsed() >= STUCK_AFTER {
                return Err(Failure::Refused(self.stuck(traffic)));
            }
        }
    }

    /// One look at the sockets: whether anything has come, or there is the room that is waited for.
    fn look(
        &mut self,
        awaited: Awaited,
        room: &mut [u8],
        traffic: &Traffic,
    ) -> Result<bool, Failure> {
        let is_room =
            awaited == Awaited::Ends || traffic.early.load(Ordering::Relaxed) < EARLY_BYTES_MAX;
        let mut peers = Vec::with_capacity(self.lanes.len());
        let mut sockets = Vec::with_capacity(self.lanes.len());
        for (peer, lane) in &self.lanes {
            let mut events = PollFlags::empty();
            // The message that is waited for comes in, whatever else is here.
            if !lane.has_ended && (is_room || awaited == Awaited::Message(*peer)) {
                events |= PollFlags::IN;
            }
            if awaited == Awaited::Room(*peer) {
                events |= PollFlags::OUT;
            }
            if !events.is_empty() {
                peers.push(*peer);
                sockets.push(PollFd::new(&lane.socket, events));
            }
        }
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY_NS,
        };
        match poll(&mut sockets, Some(&patience)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<(u16, PollFlags)> = peers
            .into_iter()
            .zip(sockets.iter().map(PollFd::revents))
            .filter(|(_, events)| !events.is_empty())
            .collect();
        for (peer, events) in ready {
            if events == PollFlags::OUT {
                continue;
            }
            let count = self.lane(peer)?.read(room)?;
            traffic.early.fetch_add(count, Ordering::Relaxed);
            traffic
                .moves
                .fetch_add(u64::from(count > 0), Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Why no node goes on.
    fn stuck(&self, traffic: &Traffic) -> String {
        let seconds = STUCK_AFTER.as_secs();
        let without_room = traffic.without_room.load(Ordering::Relaxed);
        if without_room == 0 {
            return format!(
                "nothing came or went for {seconds} s: the trace's messages don't fit together, each rank waits for one that none sends: record or make it again"
            );
        }
        let message = self.lanes.values().map(|lane| lane.message_bytes).max();
        let early = traffic.early.load(Ordering::Relaxed) / message.unwrap_or(1).max(1);
        let mebibytes = EARLY_BYTES_MAX >> 20;
        format!(
            "nothing came or went for {seconds} s: {without_room} ranks wait for room to send, and {early} messages are under way to ranks that don't receive them yet, as many as are kept ({mebibytes} MiB): take a part of the trace, or one whose ranks receive earlier"
        )
    }
}

impl Lane {
    fn new(
        side: Side,
        secret: &[u8; 32],
        keys: &KeyStore,
        socket: UnixStream,
    ) -> Result<Self, Failure> {
        socket.set_nonblocking(true)?;
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
            early: BytesMut::new(),
            has_ended: false,
            start: Instant::now(),
        })
    }

    /// Puts a message into the session's queue.
    fn queue(&mut self) -> Result<(), Failure> {
        let message = Message {
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::from_static(&PAYLOAD),
            bulk: Vec::new(),
        };
        Ok(self.session.send(self.link, message)?)
    }

    fn is_all_written(&self) -> bool {
        self.session.outgoing().all(<[u8]>::is_empty)
    }

    /// Writes what is prepared, as much as the socket has room for; how many bytes that were.
    fn write(&mut self) -> Result<usize, Failure> {
        let mut total = 0;
        loop {
            let Some(slice) = self.session.outgoing().find(|slice| !slice.is_empty()) else {
                return Ok(total);
            };
            match self.socket.write(slice) {
                Ok(count) => {
                    self.session.sent(count);
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(total),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what is there, up to so much, and keeps it; how many bytes that were.
    fn read(&mut self, room: &mut [u8]) -> Result<usize, Failure> {
        loop {
            match self.socket.read(room) {
                Ok(count) => {
                    self.has_ended = count == 0;
                    self.early.extend_from_slice(&room[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens one message of those that are here: no byte of the next one, so that each is opened by itself.
    fn take(&mut self) -> Result<(), Failure> {
        self.open()?;
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

    /// Has the session look at as many bytes as a message has.
    fn open(&mut self) -> Result<(), Failure> {
        let record = self.early.split_to(self.message_bytes);
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
