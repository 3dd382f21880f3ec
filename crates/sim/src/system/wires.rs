//! The connections between the manager and its workers: byte streams that are late, full, cut, silent or altered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::network::LinkModel;
use exoskel_determinism::SplitMix64;

/// A connection; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u32);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    ToManager,
    ToWorker,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::ToManager, Self::ToWorker];
}

/// What arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    /// The stream ends.
    End,
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::End => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    /// When the last piece is through.
    free: Duration,
    /// Bytes on the way.
    under_way: u64,
    /// The writer found no room.
    is_full: bool,
    /// What could not be delivered because of a partition, or because the reader stands still.
    piled: VecDeque<Piece>,
    /// The writer has ended it.
    is_ended: bool,
}

#[derive(Debug)]
struct SimulatedWire {
    worker: usize,
    lanes: [Lane; 2],
    /// Nothing arrives any more.
    is_dead: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Wires {
    model: LinkModel,
    room: u64,
    random: SplitMix64,
    wires: BTreeMap<ConnectionId, SimulatedWire>,
    next: u32,
    /// By worker: what does not get through.
    blocked: Vec<[bool; 2]>,
}

impl Wires {
    pub(super) fn new(model: LinkModel, room: u64, workers: usize, seed: u64) -> Self {
        Self {
            model,
            room,
            random: SplitMix64::new(seed),
            wires: BTreeMap::new(),
            next: 0,
            blocked: vec![[false; 2]; workers],
        }
    }

    pub(super) fn connect(&mut self, worker: usize) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        let wire = SimulatedWire {
            worker,
            lanes: Default::default(),
            is_dead: false,
        };
        self.wires.insert(id, wire);
        id
    }

    pub(super) fn worker(&self, id: ConnectionId) -> Option<usize> {
        self.wires.get(&id).map(|wire| wire.worker)
    }

    /// How many bytes may be written now; remembers that a writer waits when that is none.
    pub(super) fn room(&mut self, id: ConnectionId, way: Way) -> u64 {
        let room = self.room;
        self.lane(id, way).map_or(0, |lane| {
            let left = if lane.is_ended {
                0
            } else {
                room.saturating_sub(lane.under_way)
            };
            lane.is_full |= left == 0;
            left
        })
    }

    /// Sends a piece; says when it arrives, if ever.
    pub(super) fn send(
        &mut self,
        id: ConnectionId,
        way: Way,
        piece: &Piece,
        now: Duration,
    ) -> Option<Duration> {
        let jitter = self.random.between(Duration::ZERO, self.model.jitter);
        let (latency, speed) = (self.model.latency, self.model.bytes_per_second.max(1));
        let lane = self.lane(id, way).filter(|lane| !lane.is_ended)?;
        let bytes = piece.len();
        lane.under_way += bytes;
        lane.is_ended = *piece == Piece::End;
        let passing = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / speed);
        lane.free = lane.free.max(now + latency + jitter) + passing;
        Some(lane.free)
    }

    /// A piece has come to the end of the wire: it gets through, or has to wait.
    pub(super) fn arrive(&mut self, id: ConnectionId, way: Way, piece: Piece) -> Option<Piece> {
        let wire = self.wires.get_mut(&id).filter(|wire| !wire.is_dead)?;
        let lane = &mut wire.lanes[way as usize];
        if self.blocked[wire.worker][way as usize] || !lane.piled.is_empty() {
            lane.piled.push_back(piece);
            return None;
        }
        Some(piece)
    }

    /// The reader stands still: what has come waits in its socket.
    pub(super) fn keep(&mut self, id: ConnectionId, way: Way, piece: Piece) {
        if let Some(lane) = self.lane(id, way) {
            lane.piled.push_back(piece);
        }
    }

    /// What waited for the end of a partition, or in the socket, and gets through now.
    pub(super) fn unpile(&mut self, id: ConnectionId, way: Way) -> Option<Piece> {
        let wire = self.wires.get_mut(&id).filter(|wire| !wire.is_dead)?;
        if self.blocked[wire.worker][way as usize] {
            return None;
        }
        wire.lanes[way as usize].piled.pop_front()
    }

    /// The reader has these bytes. Says whether a writer waits for room.
    pub(super) fn read(&mut self, id: ConnectionId, way: Way, bytes: usize) -> bool {
        self.lane(id, way).is_some_and(|lane| {
            lane.under_way = lane.under_way.saturating_sub(bytes as u64);
            std::mem::take(&mut lane.is_full)
        })
    }

    pub(super) fn block(&mut self, worker: usize, way: Way) {
        self.blocked[worker][way as usize] = true;
    }

    /// Whether something does not get through.
    pub(super) fn is_blocked(&self, worker: usize) -> bool {
        self.blocked[worker] != [false; 2]
    }

    /// Ends a partition; says which connections have something waiting.
    pub(super) fn unblock(&mut self, worker: usize) -> Vec<ConnectionId> {
        self.blocked[worker] = [false; 2];
        let of_worker = self.wires.iter().filter(|(_, wire)| wire.worker == worker);
        of_worker.map(|(id, _)| *id).collect()
    }

    /// Nothing arrives on it any more.
    pub(super) fn kill(&mut self, id: ConnectionId) {
        if let Some(wire) = self.wires.get_mut(&id) {
            wire.is_dead = true;
        }
    }

    /// Both ends have left.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.wires.remove(&id);
    }

    /// The connections of a worker, oldest first.
    pub(super) fn of_worker(&self, worker: usize) -> Vec<ConnectionId> {
        let of_worker = self.wires.iter().filter(|(_, wire)| wire.worker == worker);
        of_worker.map(|(id, _)| *id).collect()
    }

    fn lane(&mut self, id: ConnectionId, way: Way) -> Option<&mut Lane> {
        Some(&mut self.wires.get_mut(&id)?.lanes[way as usize])
    }
}
