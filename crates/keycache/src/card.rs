//! An interconnect card: what it takes from its processes, protects and sends, and what it receives, opens and delivers.

use std::collections::VecDeque;

use crate::cipher::CipherTiming;
use crate::error::KeycacheError;
use crate::flight::{Flight, NOBODY, Packet, PacketsInFlight};
use crate::key_source::{CardProcess, Keys};
use crate::link::{Credit, LinkTiming};
use crate::parameters::{LookupUnit, Parameters};
use crate::ranks_per_card::RanksPerCard;
use crate::time::Picoseconds;

/// What all cards have in common.
#[derive(Debug)]
pub(crate) struct CardModel {
    pub(crate) link: LinkTiming,
    cipher: CipherTiming,
    processing: Picoseconds,
    payload_max: u32,
    buffer: usize,
    ranks: usize,
    pub(crate) ranks_per_card: RanksPerCard,
    lookup_unit: LookupUnit,
    pub(crate) overlaps: bool,
}

impl CardModel {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        Self {
            link: LinkTiming::new(parameters),
            cipher: CipherTiming::new(parameters),
            processing: Picoseconds::from_nanoseconds(parameters.card_processing_ns),
            payload_max: parameters.packet_payload_bytes,
            buffer: parameters.card_buffer_packets as usize,
            ranks: parameters.ranks() as usize,
            ranks_per_card: RanksPerCard::stated(parameters.ranks_per_card),
            lookup_unit: parameters.lookup_unit,
            overlaps: parameters.receive_lookup_overlaps_arrival,
        }
    }

    fn process(&self, packet: &Packet, rank: u16) -> CardProcess {
        CardProcess {
            job: packet.job,
            place: self.ranks_per_card.place(rank),
        }
    }

    /// How many packets a message has: one even without payload.
    pub(crate) fn packets(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.payload_max).max(1)
    }
}

/// The messages between two processes that wait for the card, the first and the last.
#[derive(Clone, Copy, Debug)]
struct Pair {
    first: u32,
    last: u32,
}

/// One card. Packets of messages to different processes take turns; those between two processes keep their order. Each direction is a queue: a
/// packet whose key is late holds up those behind it.
pub(crate) struct Card {
    pub(crate) keys: Keys,
    /// By job, sender and receiver.
    pairs: Vec<Pair>,
    /// Pairs with something to send, in turn.
    turns: VecDeque<u32>,
    /// Packets in the card, each with the moment at which it is ready for the link.
    outgoing: VecDeque<(u32, Picoseconds)>,
    sealing_free: Picoseconds,
    link_free: Picoseconds,
    /// Places in the switch.
    pub(crate) credit: Credit,
    /// The transmission that is planned.
    pub(crate) transmit_at: Picoseconds,
    opening_free: Picoseconds,
}

/// A packet that came through the receiving card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Its last bit leaves the card.
    pub(crate) out: Picoseconds,
    /// Its place in the card is free.
    pub(crate) place_free: Picoseconds,
}

impl Card {
    pub(crate) fn new(parameters: &Parameters, jobs: usize) -> Result<Self, KeycacheError> {
        let idle = Pair {
            first: NOBODY,
            last: NOBODY,
        };
        Ok(Self {
            keys: Keys::new(parameters, jobs)?,
            pairs: vec![idle; jobs * (parameters.ranks_per_card * parameters.ranks()) as usize],
            turns: VecDeque::new(),
            outgoing: VecDeque::with_capacity(parameters.card_buffer_packets as usize),
            sealing_free: Picoseconds::ZERO,
            link_free: Picoseconds::ZERO,
            credit: Credit::new(parameters.switch_buffer_packets),
            transmit_at: Picoseconds::NEVER,
            opening_free: Picoseconds::ZERO,
        })
    }

    /// A process has a message to send.
    pub(crate) fn enqueue(&mut self, model: &CardModel, flights: &mut [Flight], message: u32) {
        let flight = &flights[message as usize];
        let place = model.ranks_per_card.place(flight.source);
        let sender =
            usize::from(flight.job) * usize::from(model.ranks_per_card.get()) + usize::from(place);
        let number = sender * model.ranks + usize::from(flight.destination);
        let pair = &mut self.pairs[number];
        if pair.first == NOBODY {
            pair.first = message;
            self.turns.push_back(number as u32);
        } else {
            flights[pair.last as usize].next = message;
        }
        pair.last = message;
    }

    /// Takes packets while there is a place for them: looks the keys up, and reckons when they are sealed.
    pub(crate) fn refill(
        &mut self,
        model: &CardModel,
        flights: &mut [Flight],
        packets: &mut PacketsInFlight,
        now: Picoseconds,
    ) {
        while self.outgoing.len() < model.buffer {
            let Some(number) = self.turns.pop_front() else {
                return;
            };
            let pair = &mut self.pairs[number as usize];
            let message = pair.first;
            let flight = &mut flights[message as usize];
            let bytes = flight.unsent.min(model.payload_max);
            let packet = Packet {
                handed: now,
                message,
                bytes,
                source: model.ranks_per_card.card(flight.source),
                destination: model.ranks_per_card.card(flight.destination),
                sender: flight.source,
                receiver: flight.destination,
                job: flight.job,
                first: flight.unsent == flight.bytes,
            };
            flight.unsent -= bytes;
            if flight.unsent == 0 {
                pair.first = flight.next;
            }
            if pair.first != NOBODY {
                self.turns.push_back(number);
            }
            let key_there = self.key(model, &packet, (packet.sender, packet.receiver), now);
            let cipher = model.cipher.of(bytes);
            let begins = key_there.max(self.sealing_free);
            self.sealing_free = begins + cipher.occupied;
            let ready = begins + cipher.delay + model.processing;
            self.outgoing.push_back((packets.add(packet), ready));
        }
    }

    fn key(
        &mut self,
        model: &CardModel,
        packet: &Packet,
        (own, peer): (u16, u16),
        now: Picoseconds,
    ) -> Picoseconds {
        if model.lookup_unit == LookupUnit::Message && !packet.first {
            return now;
        }
        self.keys.look_up(now, model.process(packet, own), peer)
    }

    /// When the first packet can go, as far as that is known.
    pub(crate) fn next_transmission(&self) -> Option<Picoseconds> {
        let (_, ready) = self.outgoing.front()?;
        let place = self.credit.next()?;
        Some((*ready).max(self.link_free).max(place))
    }

    /// Puts the first packet on the link; says which, and how long that takes.
    pub(crate) fn transmit(
        &mut self,
        model: &CardModel,
        packets: &PacketsInFlight,
        now: Picoseconds,
    ) -> Option<(u32, Picoseconds)> {
        let (number, _) = self.outgoing.pop_front()?;
        self.credit.take();
        let length = model.link.packet(packets.get(number).bytes);
        self.link_free = now + length;
        Some((number, length))
    }

    /// A packet is here: with its last bit, or with its first one if lookups overlap with arrival. Packets come in order, and leave in order.
    pub(crate) fn receive(
        &mut self,
        model: &CardModel,
        packet: &Packet,
        now: Picoseconds,
    ) -> Received {
        if packet.first {
            self.keys.hint(now, model.process(packet, packet.receiver));
        }
        let key_there = self.key(model, packet, (packet.receiver, packet.sender), now);
        let whole = if model.overlaps {
            now + model.link.packet(packet.bytes)
        } else {
            now
        };
        let cipher = model.cipher.of(packet.bytes);
        let begins = key_there.max(whole).max(self.opening_free);
        self.opening_free = begins + cipher.occupied;
        let place_free = begins + cipher.delay;
        Received {
            out: place_free + model.processing,
            place_free,
        }
    }
}
