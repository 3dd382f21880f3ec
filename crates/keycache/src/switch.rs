//! The switch between all nodes. It holds a bounded number of packets for each input, and sends none that has no place in the card.

use std::collections::VecDeque;

use crate::agenda::PacketAgenda;
use crate::event::Event;
use crate::flight::PacketsInFlight;
use crate::link::{Credit, LinkTiming};
use crate::parameters::{Forwarding, Parameters, SwitchKind};
use crate::time::Picoseconds;

pub(crate) struct Switch {
    kind: SwitchKind,
    latency: Picoseconds,
    /// A packet counts as here with its last bit, and not with its first one.
    pub(crate) stores: bool,
    /// It counts as in the card with its first bit.
    card_takes_heads: bool,
    outputs: Vec<SwitchOutput>,
    inputs: Vec<Input>,
    /// Places that became free in this step, for who asked for it to pass on: input, and when its card may count on it.
    pub(crate) freed: Vec<(u16, Picoseconds)>,
}

struct SwitchOutput {
    free_at: Picoseconds,
    /// Places in the card behind it.
    credit: Credit,
    /// Packets with the moments from which on they may leave (output-queued).
    queue: VecDeque<(u32, Picoseconds)>,
    /// Inputs whose first packet is for this output, in the order in which they asked (crossbar).
    requests: VecDeque<u16>,
    /// The arbitration that is planned.
    arbitrate_at: Picoseconds,
}

/// For the crossbar.
#[derive(Default)]
struct Input {
    queue: VecDeque<(u32, Picoseconds)>,
    free_at: Picoseconds,
}

impl Switch {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let output = || SwitchOutput {
            free_at: Picoseconds::ZERO,
            credit: Credit::new(parameters.card_buffer_packets),
            queue: VecDeque::new(),
            requests: VecDeque::new(),
            arbitrate_at: Picoseconds::NEVER,
        };
        Self {
            kind: parameters.switch_kind,
            latency: Picoseconds::from_nanoseconds(parameters.switch_latency_ns),
            stores: parameters.switch_forwarding == Forwarding::StoreAndForward,
            card_takes_heads: parameters.receive_lookup_overlaps_arrival,
            outputs: (0..parameters.nodes).map(|_| output()).collect(),
            inputs: (0..parameters.nodes).map(|_| Input::default()).collect(),
            freed: Vec::new(),
        }
    }

    /// A packet is here.
    pub(crate) fn arrive(
        &mut self,
        number: u32,
        now: Picoseconds,
        link: &LinkTiming,
        packets: &PacketsInFlight,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let packet = packets.get(number);
        let earliest = now + self.latency;
        match self.kind {
            SwitchKind::OutputQueued => {
                let output = &mut self.outputs[usize::from(packet.destination)];
                output.queue.push_back((number, earliest));
                self.drain(packet.destination, link, packets, agenda);
            }
            SwitchKind::Crossbar => {
                let input = &mut self.inputs[usize::from(packet.source)];
                input.queue.push_back((number, earliest));
                if input.queue.len() == 1 {
                    agenda.plan(earliest.max(input.free_at), Event::Request(packet.source));
                }
            }
        }
    }

    /// The card behind an output has another place.
    pub(crate) fn place_in_card(
        &mut self,
        node: u16,
        at: Picoseconds,
        now: Picoseconds,
        link: &LinkTiming,
        packets: &PacketsInFlight,
        agenda: &mut PacketAgenda<Event>,
    ) {
        self.outputs[usize::from(node)].credit.give(at);
        match self.kind {
            SwitchKind::OutputQueued => self.drain(node, link, packets, agenda),
            SwitchKind::Crossbar => self.arbitrate(node, now, link, packets, agenda),
        }
    }

    /// Settles when packets leave, for all that have a place in the card. Cards give places in order, so no later one can be free earlier.
    fn drain(
        &mut self,
        node: u16,
        link: &LinkTiming,
        packets: &PacketsInFlight,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let output = &mut self.outputs[usize::from(node)];
        while let (Some((number, earliest)), Some(place)) =
            (output.queue.front().copied(), output.credit.next())
        {
            output.queue.pop_front();
            output.credit.take();
            let begins = earliest.max(output.free_at).max(place);
            let packet = packets.get(number);
            let length = link.packet(packet.bytes);
            output.free_at = begins + length;
            let seen = if self.card_takes_heads {
                begins
            } else {
                output.free_at
            };
            agenda.plan(seen + link.latency, Event::AtCard(number));
            self.freed
                .push((packet.source, output.free_at + link.latency));
        }
    }

    /// The first packet of an input asks for its output (crossbar).
    pub(crate) fn request(
        &mut self,
        input: u16,
        now: Picoseconds,
        link: &LinkTiming,
        packets: &PacketsInFlight,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let Some((number, _)) = self.inputs[usize::from(input)].queue.front() else {
            return;
        };
        let destination = packets.get(*number).destination;
        self.outputs[usize::from(destination)]
            .requests
            .push_back(input);
        self.arbitrate(destination, now, link, packets, agenda);
    }

    /// Gives an output to whoever asked first, as soon as it is free and the card has a place (crossbar).
    pub(crate) fn arbitrate(
        &mut self,
        node: u16,
        now: Picoseconds,
        link: &LinkTiming,
        packets: &PacketsInFlight,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let output = &mut self.outputs[usize::from(node)];
        if output.arbitrate_at <= now {
            output.arbitrate_at = Picoseconds::NEVER;
        }
        let (Some(asking), Some(place)) = (output.requests.front().copied(), output.credit.next())
        else {
            return;
        };
        let possible = output.free_at.max(place);
        if possible > now {
            if possible < output.arbitrate_at {
                output.arbitrate_at = possible;
                agenda.plan(possible, Event::Arbitrate(node));
            }
            return;
        }
        let input = &mut self.inputs[usize::from(asking)];
        let Some((number, _)) = input.queue.pop_front() else {
            return;
        };
        output.requests.pop_front();
        output.credit.take();
        let length = link.packet(packets.get(number).bytes);
        output.free_at = now + length;
        input.free_at = now + length;
        let seen = if self.card_takes_heads {
            now
        } else {
            now + length
        };
        agenda.plan(seen + link.latency, Event::AtCard(number));
        self.freed.push((asking, now + length + link.latency));
        if let Some((_, earliest)) = input.queue.front() {
            agenda.plan((*earliest).max(input.free_at), Event::Request(asking));
        }
        if !output.requests.is_empty() && output.free_at < output.arbitrate_at {
            output.arbitrate_at = output.free_at;
            agenda.plan(output.free_at, Event::Arbitrate(node));
        }
    }
}
