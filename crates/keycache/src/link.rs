//! Links: how long a packet is on one, and the credit that keeps it from being sent where there is no place for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::parameters::Parameters;
use crate::time::Picoseconds;

/// How long it takes to put packets on a link.
#[derive(Clone, Debug)]
pub(crate) struct LinkTiming {
    rate: u64,
    header: u64,
    full_bytes: u32,
    full: Picoseconds,
    pub(crate) latency: Picoseconds,
}

impl LinkTiming {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let mut timing = Self {
            rate: parameters.link_rate_bytes_per_second,
            header: parameters.packet_header_bytes.into(),
            full_bytes: u32::MAX,
            full: Picoseconds::ZERO,
            latency: Picoseconds::from_nanoseconds(parameters.link_latency_ns),
        };
        timing.full = timing.packet(parameters.packet_payload_bytes);
        timing.full_bytes = parameters.packet_payload_bytes;
        timing
    }

    /// From the first bit of a packet with so much payload to its last one.
    pub(crate) fn packet(&self, payload: u32) -> Picoseconds {
        if payload == self.full_bytes {
            return self.full;
        }
        Picoseconds::for_count(u64::from(payload) + self.header, self.rate)
    }
}

/// Places for packets at the other end of a link: the moments at which the sender may count on one. A place whose packet is still waiting
/// there is in none.
#[derive(Debug)]
pub(crate) struct Credit {
    places: BinaryHeap<Reverse<Picoseconds>>,
}

impl Credit {
    pub(crate) fn new(places: u32) -> Self {
        Self {
            places: (0..places).map(|_| Reverse(Picoseconds::ZERO)).collect(),
        }
    }

    /// When there is a place, as far as that is known.
    pub(crate) fn next(&self) -> Option<Picoseconds> {
        self.places.peek().map(|Reverse(at)| *at)
    }

    /// Takes the place that [`Self::next`] named.
    pub(crate) fn take(&mut self) {
        self.places.pop();
    }

    /// There is another one from then on.
    pub(crate) fn give(&mut self, at: Picoseconds) {
        self.places.push(Reverse(at));
    }
}
