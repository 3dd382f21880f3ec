//! The network at message level: latency, then a fair share of the links at both ends.

use crate::agenda::PacketAgenda;
use crate::event::Event;
use crate::flight::Flight;
use crate::parameters::Parameters;
use crate::ranks_per_card::RanksPerCard;
use crate::time::Picoseconds;

/// A unit of work: what a link of one byte per second does in a picosecond.
const WORK_OF_A_BYTE: u128 = 1_000_000_000_000;

/// Messages as flows. Each has its sender's link and its receiver's, and all flows of a link share it: max-min fair, as flow-level simulators such as
/// SimGrid have it, so that the two can be compared. There are no cards, no packets and no switch that could be full.
#[derive(Debug)]
pub(crate) struct MessageNetwork {
    ranks_per_card: RanksPerCard,
    rate: u64,
    latency: Picoseconds,
    flows: Vec<Flow>,
    free: Vec<u32>,
    links: Vec<CardLink>,
    /// Marks what was visited in this sharing.
    visit: u32,
    component: Component,
}

/// A message whose first bit has arrived.
#[derive(Debug)]
struct Flow {
    message: u32,
    /// The sender's link and the receiver's.
    links: [u32; 2],
    /// Up to when the work is accounted for.
    since: Picoseconds,
    work_left: u128,
    rate: u64,
    ends_at: Picoseconds,
    visited: u32,
    is_settled: bool,
}

/// One direction of a node's link.
#[derive(Debug, Default)]
struct CardLink {
    flows: Vec<u32>,
    visited: u32,
    rate_left: u64,
    unsettled: u32,
}

/// Flows and links that have to do with one another, directly or through others.
#[derive(Debug, Default)]
struct Component {
    links: Vec<u32>,
    flows: Vec<u32>,
}

impl MessageNetwork {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let time = Picoseconds::from_nanoseconds;
        let link = time(parameters.link_latency_ns);
        Self {
            ranks_per_card: RanksPerCard::stated(parameters.ranks_per_card),
            rate: parameters.link_rate_bytes_per_second,
            latency: link + time(parameters.switch_latency_ns) + link,
            flows: Vec::new(),
            free: Vec::new(),
            links: (0..2 * parameters.nodes)
                .map(|_| CardLink::default())
                .collect(),
            visit: 0,
            component: Component::default(),
        }
    }

    /// A message leaves: its first bit arrives after the latency.
    pub(crate) fn send(&self, message: u32, now: Picoseconds, agenda: &mut PacketAgenda<Event>) {
        agenda.plan(now + self.latency, Event::Arriving(message));
    }

    /// The first bit of a message is there; the others follow as fast as the links allow.
    pub(crate) fn arriving(
        &mut self,
        message: u32,
        now: Picoseconds,
        flights: &[Flight],
        agenda: &mut PacketAgenda<Event>,
    ) {
        let flight = &flights[message as usize];
        if flight.bytes == 0 {
            agenda.plan(now, Event::Delivered(message));
            return;
        }
        let links = [
            2 * u32::from(self.ranks_per_card.card(flight.source)),
            2 * u32::from(self.ranks_per_card.card(flight.destination)) + 1,
        ];
        let flow = Flow {
            message,
            links,
            since: now,
            work_left: u128::from(flight.bytes) * WORK_OF_A_BYTE,
            rate: 0,
            ends_at: Picoseconds::NEVER,
            visited: 0,
            is_settled: false,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.flows[number as usize] = flow;
                number
            }
            None => {
                self.flows.push(flow);
                (self.flows.len() - 1) as u32
            }
        };
        for link in links {
            self.links[link as usize].flows.push(number);
        }
        self.share(links, now, agenda);
    }

    /// A flow may have ended; says whose it was, if it has and its shares were not changed since that was planned.
    pub(crate) fn ending(
        &mut self,
        number: u32,
        now: Picoseconds,
        agenda: &mut PacketAgenda<Event>,
    ) -> Option<u32> {
        let flow = &mut self.flows[number as usize];
        if flow.ends_at != now {
            return None;
        }
        flow.ends_at = Picoseconds::NEVER;
        let (message, links) = (flow.message, flow.links);
        for link in links {
            let flows = &mut self.links[link as usize].flows;
            if let Some(place) = flows.iter().position(|other| *other == number) {
                flows.remove(place);
            }
        }
        self.free.push(number);
        self.share(links, now, agenda);
        Some(message)
    }

    /// Shares anew what the flows of these links, and all that depend on them, have.
    fn share(&mut self, changed: [u32; 2], now: Picoseconds, agenda: &mut PacketAgenda<Event>) {
        self.visit = self.visit.wrapping_add(1);
        let mut component = std::mem::take(&mut self.component);
        component.links.clear();
        component.flows.clear();
        for link in changed {
            self.reach(link, &mut component);
        }
        let mut next = 0;
        while let Some(link) = component.links.get(next).copied() {
            next += 1;
            for place in 0..self.links[link as usize].flows.len() {
                let number = self.links[link as usize].flows[place];
                let flow = &mut self.flows[number as usize];
                if flow.visited == self.visit {
                    continue;
                }
                flow.visited = self.visit;
                flow.is_settled = false;
                component.flows.push(number);
                for other in flow.links {
                    self.reach(other, &mut component);
                }
            }
        }
        // Fills the tightest link first: its flows can't have more, whatever the others do.
        let mut unsettled = component.flows.len();
        while unsettled > 0 {
            let shares = component.links.iter().filter_map(|number| {
                let link = &self.links[*number as usize];
                (link.unsettled > 0).then(|| (link.rate_left / u64::from(link.unsettled), *number))
            });
            let Some((share, tightest)) = shares.min() else {
                break;
            };
            for place in 0..self.links[tightest as usize].flows.len() {
                let number = self.links[tightest as usize].flows[place];
                if !self.flows[number as usize].is_settled {
                    self.settle(number, share.max(1), now, agenda);
                    unsettled -= 1;
                }
            }
        }
        self.component = component;
    }

    fn reach(&mut self, number: u32, component: &mut Component) {
        let link = &mut self.links[number as usize];
        if link.visited != self.visit {
            link.visited = self.visit;
            link.rate_left = self.rate;
            link.unsettled = link.flows.len() as u32;
            component.links.push(number);
        }
    }

    /// Gives a flow its rate from now on.
    fn settle(
        &mut self,
        number: u32,
        rate: u64,
        now: Picoseconds,
        agenda: &mut PacketAgenda<Event>,
    ) {
        let flow = &mut self.flows[number as usize];
        flow.is_settled = true;
        for link in flow.links {
            let link = &mut self.links[link as usize];
            link.rate_left = link.rate_left.saturating_sub(rate);
            link.unsettled -= 1;
        }
        if rate == flow.rate {
            return;
        }
        let done = u128::from(flow.rate) * u128::from((now - flow.since).0);
        flow.work_left = flow.work_left.saturating_sub(done);
        flow.since = now;
        flow.rate = rate;
        let takes = match u64::try_from(flow.work_left) {
            Ok(work) => work.div_ceil(rate),
            Err(_) => flow
                .work_left
                .div_ceil(u128::from(rate))
                .min(u128::from(Picoseconds::NEVER.0)) as u64,
        };
        let ends_at = now + Picoseconds(takes);
        if ends_at != flow.ends_at {
            flow.ends_at = ends_at;
            agenda.plan(ends_at, Event::FlowEnds(number));
        }
    }
}
