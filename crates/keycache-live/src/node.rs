//! One rank: its key store, its sessions, and what it has to do.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exoskel_link::keys::{COMPACT_KEY_BYTES, Geometry, KEYS_OF_SESSION, KeyStore};
use exoskel_trace::{CollectiveStep, MessageDirection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lane::{LiveSession, begin};
use crate::{LiveError, Lookups, READ_BYTES};

/// Nodes that exchange no byte for so long are stuck, all of them.
const STUCK_AFTER: Duration = Duration::from_secs(20);
/// How long a node waits before it looks whether it should stop, in nanoseconds.
const LOOK_EVERY_NS: i64 = 100_000_000;
/// Most bytes of messages that came before their receive, all nodes together: some two million messages. Each node may be a [`READ_BYTES`] over it.
const EARLY_BYTES_MAX: usize = 256 << 20;

/// What all nodes know of one another.
#[derive(Default)]
pub(crate) struct LiveTraffic {
    /// Goes up whenever a byte comes or goes somewhere.
    moves: AtomicU64,
    /// Nodes that wait for room to send.
    without_room: AtomicUsize,
    /// Bytes that came before their receive, all nodes together.
    early: AtomicUsize,
}

/// One rank: its key store, its sessions by peer, and what it has to do.
pub(crate) struct LiveRank {
    rank: usize,
    keys: KeyStore,
    lanes: BTreeMap<u16, LiveSession>,
    program: Vec<CollectiveStep>,
}

/// What a node waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LiveWait {
    /// Room to send to that rank.
    Room(u16),
    /// A message of that rank.
    Message(u16),
    /// The ends of the others.
    Ends,
}

/// Gives two nodes a session with each other; `links` is how many there are.
pub(crate) fn connect(
    nodes: &mut [LiveRank],
    (opener, other): (u16, u16),
    links: usize,
) -> Result<(), LiveError> {
    let [opening, opened] = [opener, other].map(usize::from);
    let sockets = UnixStream::pair().map_err(|source| LiveError::NoSocket {
        source,
        descriptors: 2 * links,
    })?;
    let (own, theirs) = begin(&nodes[opening].keys, &nodes[opened].keys, sockets)?;
    nodes[opening].lanes.insert(other, own);
    nodes[opened].lanes.insert(opener, theirs);
    Ok(())
}

impl LiveRank {
    /// One of so many, with a key store of that shape; it has no sessions yet.
    pub(crate) fn new(
        rank: usize,
        count: usize,
        geometry: Geometry,
        program: Vec<CollectiveStep>,
    ) -> Result<Self, LiveError> {
        let memory = vec![0; count * KEYS_OF_SESSION * COMPACT_KEY_BYTES];
        Ok(Self {
            rank,
            keys: KeyStore::new(geometry, Box::new(memory))?,
            lanes: BTreeMap::new(),
            program,
        })
    }

    /// Does all that the program says. The lookups that it took.
    pub(crate) fn run(
        &mut self,
        traffic: &LiveTraffic,
        stop: &AtomicBool,
    ) -> Result<Lookups, LiveError> {
        let before = self.keys.counters().contexts;
        let mut room = vec![0; READ_BYTES];
        for (index, step) in std::mem::take(&mut self.program).into_iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Err(LiveError::Stopped);
            }
            let done = match step.direction {
                MessageDirection::Send => self.send(step.peer, &mut room, traffic, stop),
                MessageDirection::Receive => self.receive(step.peer, &mut room, traffic, stop),
            };
            done.map_err(|failure| match failure {
                LiveError::Stopped => LiveError::Stopped,
                failure => LiveError::InProgram {
                    rank: self.rank,
                    message: index,
                    peer: step.peer,
                    source: Box::new(failure),
                },
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
            self.wait(LiveWait::Ends, &mut room, traffic, stop)?;
        }
        let after = self.keys.counters().contexts;
        Ok(Lookups {
            lookups: after.lookups() - before.lookups(),
            hits: after.hits - before.hits,
        })
    }

    /// Seals and writes a message.
    fn send(
        &mut self,
        peer: u16,
        room: &mut [u8],
        traffic: &LiveTraffic,
        stop: &AtomicBool,
    ) -> Result<(), LiveError> {
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
            if let Err(failure) = self.wait(LiveWait::Room(peer), room, traffic, stop) {
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
        traffic: &LiveTraffic,
        stop: &AtomicBool,
    ) -> Result<(), LiveError> {
        loop {
            let lane = self.lane(peer)?;
            if lane.early.len() >= lane.message_bytes {
                traffic
                    .early
                    .fetch_sub(lane.message_bytes, Ordering::Relaxed);
                return lane.take();
            }
            if lane.has_ended {
                return Err(LiveError::NoMessage);
            }
            self.wait(LiveWait::Message(peer), room, traffic, stop)?;
        }
    }

    fn lane(&mut self, peer: u16) -> Result<&mut LiveSession, LiveError> {
        self.lanes.get_mut(&peer).ok_or(LiveError::NoLink)
    }

    /// Waits until something comes, or goes, and reads what came.
    fn wait(
        &mut self,
        awaited: LiveWait,
        room: &mut [u8],
        traffic: &LiveTraffic,
        stop: &AtomicBool,
    ) -> Result<(), LiveError> {
        let mut moves = traffic.moves.load(Ordering::Relaxed);
        let mut moved = Instant::now();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(LiveError::Stopped);
            }
            if self.look(awaited, room, traffic)? {
                return Ok(());
            }
            let now = traffic.moves.load(Ordering::Relaxed);
            if now != moves {
                (moves, moved) = (now, Instant::now());
            } else if awaited != LiveWait::Ends && moved.elapsed() >= STUCK_AFTER {
                return Err(self.stuck(traffic));
            }
        }
    }

    /// One look at the sockets: whether anything has come, or there is the room that is waited for.
    fn look(
        &mut self,
        awaited: LiveWait,
        room: &mut [u8],
        traffic: &LiveTraffic,
    ) -> Result<bool, LiveError> {
        let is_room =
            awaited == LiveWait::Ends || traffic.early.load(Ordering::Relaxed) < EARLY_BYTES_MAX;
        let mut peers = Vec::with_capacity(self.lanes.len());
        let mut sockets = Vec::with_capacity(self.lanes.len());
        for (peer, lane) in &self.lanes {
            let mut events = PollFlags::empty();
            // The message that is waited for comes in, whatever else is here.
            if !lane.has_ended && (is_room || awaited == LiveWait::Message(*peer)) {
                events |= PollFlags::IN;
            }
            if awaited == LiveWait::Room(*peer) {
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
    fn stuck(&self, traffic: &LiveTraffic) -> LiveError {
        let seconds = STUCK_AFTER.as_secs();
        let ranks = traffic.without_room.load(Ordering::Relaxed);
        if ranks == 0 {
            return LiveError::Stuck { seconds };
        }
        let message = self.lanes.values().map(|lane| lane.message_bytes).max();
        let early = traffic.early.load(Ordering::Relaxed);
        LiveError::WithoutRoom {
            seconds,
            ranks,
            messages: early / message.unwrap_or(1).max(1),
            mebibytes: EARLY_BYTES_MAX >> 20,
        }
    }
}
