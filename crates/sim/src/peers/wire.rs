//! A connection between two processes.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_link::handshake::EXPORTER_BYTES;

use crate::network::LinkModel;

/// What travels. A handshake's messages come whole, as records of TLS do.
#[derive(Clone, Debug)]
pub(super) enum PeerPiece {
    Hello(Vec<u8>),
    Answer(Vec<u8>),
    Bytes(Vec<u8>),
    /// The stream ends.
    End,
}

#[derive(Default)]
struct WireLane {
    free: Duration,
    /// What waits for the end of a partition, or for a reader that stands still.
    piled: VecDeque<PeerPiece>,
    is_ended: bool,
}

/// A connection: end 0 has dialled end 1.
pub(super) struct PeerWire {
    pub(super) peers: [usize; 2],
    /// Which process of each peer.
    pub(super) lives: [u32; 2],
    /// Each end is done with it.
    pub(super) has_left: [bool; 2],
    /// Nothing arrives any more.
    pub(super) is_dead: bool,
    /// The next bytes for an end are altered.
    pub(super) alter: bool,
    pub(super) exporter: [u8; EXPORTER_BYTES],
    /// What each end gets.
    lanes: [WireLane; 2],
}

impl PeerWire {
    pub(super) fn new(peers: [usize; 2], lives: [u32; 2], random: &mut SplitMix64) -> Self {
        let mut exporter = [0; EXPORTER_BYTES];
        exporter
            .iter_mut()
            .for_each(|byte| *byte = random.next_u64() as u8);
        Self {
            peers,
            lives,
            has_left: [false; 2],
            is_dead: false,
            alter: false,
            exporter,
            lanes: Default::default(),
        }
    }

    /// Sends something to an end; says when it arrives, if ever.
    pub(super) fn send(
        &mut self,
        to: usize,
        piece: &PeerPiece,
        model: &LinkModel,
        random: &mut SplitMix64,
        now: Duration,
    ) -> Option<Duration> {
        let lane = &mut self.lanes[to];
        if lane.is_ended {
            return None;
        }
        let bytes = match piece {
            PeerPiece::Hello(bytes) | PeerPiece::Answer(bytes) | PeerPiece::Bytes(bytes) => {
                bytes.len() as u64
            }
            PeerPiece::End => {
                lane.is_ended = true;
                0
            }
        };
        let passing = Duration::from_nanos(bytes * 1_000_000_000 / model.bytes_per_second);
        let late = random.between(Duration::ZERO, model.jitter);
        lane.free = lane.free.max(now + model.latency + late) + passing;
        Some(lane.free)
    }

    /// Something has come to the end of the wire; it waits there if it doesn't get through.
    pub(super) fn arrive(
        &mut self,
        to: usize,
        piece: PeerPiece,
        gets_through: bool,
    ) -> Option<PeerPiece> {
        if self.is_dead || self.has_left[to] {
            return None;
        }
        let lane = &mut self.lanes[to];
        if !gets_through || !lane.piled.is_empty() {
            lane.piled.push_back(piece);
            return None;
        }
        Some(piece)
    }

    /// The next of what waits.
    pub(super) fn unpile(&mut self, to: usize) -> Option<PeerPiece> {
        if self.is_dead || self.has_left[to] {
            return None;
        }
        self.lanes[to].piled.pop_front()
    }
}
