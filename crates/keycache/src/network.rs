//! The network between the processes' memories: cards, links and a switch; or, at message level, flows.

use crate::agenda::PacketAgenda;
use crate::card::{Card, CardModel};
use crate::error::KeycacheError;
use crate::event::Event;
use crate::flight::{Flight, PacketsInFlight};
use crate::flow::MessageNetwork;
use crate::outcome::LatencyRecorder;
use crate::parameters::{Level, Parameters};
use crate::switch::Switch;
use crate::time::Picoseconds;

/// Either level behind the same verbs.
pub(crate) enum Network {
    Packets(Box<PacketNetwork>),
    Messages(MessageNetwork),
}

impl Network {
    pub(crate) fn new(parameters: &Parameters, jobs: usize) -> Result<Self, KeycacheError> {
        Ok(match parameters.level {
            Level::Packet => Self::Packets(Box::new(PacketNetwork::new(parameters, jobs)?)),
            Level::Message => Self::Messages(MessageNetwork::new(parameters)),
        })
    }

    /// A message leaves its process.
    pub(crate) fn send(
        &mut self,
        message: u32,
        now: Picoseconds,
        flights: &mut [Flight],
        agenda: &mut PacketAgenda<Event>,
    ) {
        match self {
            Self::Packets(network) => network.send(message, now, flights, agenda),
            Self::Messages(network) => network.send(message, now, agenda),
        }
    }

    /// The processor of a rank of each job changes to another job's process.
    pub(crate) fn activate(&mut self, rank: u16, job: Option<u16>) {
        if let Self::Packets(network) = self {
            let ranks_per_card = network.model.ranks_per_card;
            let card = &mut network.cards[usize::from(ranks_per_card.card(rank))];
            card.keys.activate(ranks_per_card.place(rank), job);
        }
    }
}

/// Cards, links and the switch.
pub(crate) struct PacketNetwork {
    model: CardModel,
    pub(crate) cards: Vec<Card>,
    switch: Switch,
    packets: PacketsInFlight,
    pub(crate) delivered: u64,
    pub(crate) latency: LatencyRecorder,
}

impl PacketNetwork {
    fn new(parameters: &Parameters, jobs: usize) -> Result<Self, KeycacheError> {
        let cards = (0..parameters.nodes).map(|_| Card::new(parameters, jobs));
        Ok(Self {
            model: CardModel::new(parameters),
            cards: cards.collect::<Result<_, _>>()?,
            switch: Switch::new(parameters),
            packets: PacketsInFlight::default(),
            delivered: 0,
            latency: LatencyRecorder::new(),
        })
    }

    fn send(
        &mut self,
        message: u32,
        now: Picoseconds,
        flights: &mut [Flight],
        agenda: &mut PacketAgenda<Event>,
    ) {
        let flight = &mut flights[message as usize];
        flight.packets_left = self.model.packets(flight.bytes);
        let node = self.model.ranks_per_card.card(flight.source);
        let card = &mut self.cards[usize::from(node)];
        card.enqueue(&self.model, flights, message);
        card.refill(&self.model, flights, &mut self.packets, now);
        self.plan_transmission(node, now, agenda);
    }

    /// Plans the first packet's transmission, unless it is planned for that moment or an earlier one.
    fn plan_transmission(&mut self, node: u16, now: Picoseconds, agenda: &mut PacketAgenda<Event>) {
        let card = &mut self.cards[usize::from(node)];
        if let Some(at) = card.next_transmission() {
            let at = at.max(now);
            if at < card.transmit_at {
                card.transmit_at = at;
                agenda.plan(at, Event::Transmit(node));
            }
        }
    }

    pub(crate) fn transmit(
        &mut self,
        node: u16,
        now: Picoseconds,
        flights: &mut [Flight],
        agenda: &mut PacketAgenda<Event>,
    ) {
        let card = &mut self.cards[usize::from(node)];
        if card.transmit_at != now {
            return;
        }
        card.transmit_at = Picoseconds::NEVER;
        if let Some((packet, length)) = card.transmit(&self.model, &self.packets, now) {
            let stored = if self.switch.stores {
                length
            } else {
                Picoseconds::ZERO
            };
            agenda.plan(
                now + self.model.link.latency + stored,
                Event::AtSwitch(packet),
            );
            card.refill(&self.model, flights, &mut self.packets, now);
        }
        self.plan_transmission(node, now, agenda);
    }

    pub(crate) fn at_switch(
        &mut self,
        packet: u32,
        now: Picoseconds,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let link = &self.model.link;
        self.switch.arrive(packet, now, link, &self.packets, agenda);
        self.pass_credit(now, agenda);
    }

    pub(crate) fn request(
        &mut self,
        input: u16,
        now: Picoseconds,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let link = &self.model.link;
        self.switch.request(input, now, link, &self.packets, agenda);
        self.pass_credit(now, agenda);
    }

    pub(crate) fn arbitrate(
        &mut self,
        output: u16,
        now: Picoseconds,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let link = &self.model.link;
        self.switch
            .arbitrate(output, now, link, &self.packets, agenda);
        self.pass_credit(now, agenda);
    }

    /// Tells cards about places that became free in the switch.
    fn pass_credit(&mut self, now: Picoseconds, agenda: &mut PacketAgenda<Event>) {
        let mut freed = std::mem::take(&mut self.switch.freed);
        for (node, at) in freed.drain(..) {
            self.cards[usize::from(node)].credit.give(at);
            self.plan_transmission(node, now, agenda);
        }
        self.switch.freed = freed;
    }

    /// A packet is at the receiving card; says when it is out of it.
    pub(crate) fn at_card(
        &mut self,
        number: u32,
        now: Picoseconds,
        flights: &mut [Flight],
        agenda: &mut PacketAgenda<Event>,
    ) -> Picoseconds {
        let packet = self.packets.remove(number);
        let node = packet.destination;
        let received = self.cards[usize::from(node)].receive(&self.model, &packet, now);
        self.delivered += 1;
        self.latency
            .record(received.out.saturating_sub(packet.handed));
        let flight = &mut flights[packet.message as usize];
        flight.packets_left -= 1;
        if flight.packets_left == 0 {
            agenda.plan(received.out, Event::Delivered(packet.message));
        }
        let link = &self.model.link;
        let place = received.place_free + link.latency;
        self.switch
            .place_in_card(node, place, now, link, &self.packets, agenda);
        self.pass_credit(now, agenda);
        received.out
    }
}
