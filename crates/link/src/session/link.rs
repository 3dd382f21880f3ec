//! The ends of links that a session holds, and the table of them.

use std::collections::VecDeque;

use crate::message::{LinkId, Message};
use crate::protection::{Protection, TrafficClass};
use crate::resumption::LinkLife;
use crate::session::assembly::Assembly;
use crate::session::config::Side;

/// One end of a link.
pub(super) struct Link {
    /// Whether the startpoint is here: this side opened it, and receives replies only.
    pub(super) opened_here: bool,
    pub(super) class: TrafficClass,
    pub(super) job: u32,
    pub(super) state: LinkState,
    /// What the records that this side seals have at least, and those that it opens. They differ while a change is under way.
    pub(super) sending: Protection,
    pub(super) receiving: Protection,
    /// Nothing goes out before the peer has answered.
    pub(super) waits: bool,
    /// What its opener has said of its life; once it is accepted, what holds.
    pub(super) life: LinkLife,
    /// The credit that has come back, all together.
    pub(super) credited: u64,
    /// How many handlers its LinkOpen names, for early messages.
    pub(super) early: u16,
    /// How many handlers the endpoint has; not known to the opener before the answer.
    pub(super) handlers: Option<u16>,
    /// Messages that wait.
    pub(super) queue: VecDeque<Message>,
    /// Those, and the one that is going out.
    pub(super) backlog: SendBacklog,
    /// The message whose records go out.
    pub(super) current: Option<Progress>,
    /// What may be sent; below zero after a message that was larger.
    pub(super) credit: i64,
    /// Whether the link stands in the list of those that can send.
    pub(super) is_ready: bool,
    /// What the peer may send.
    pub(super) window: i64,
    /// What the application has consumed and the peer does not know of yet.
    pub(super) returned: u64,
    pub(super) assembly: Option<Assembly>,
    pub(super) traffic: LinkTraffic,
}

/// Messages that have not gone out as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SendBacklog {
    pub(super) bytes: u64,
    pub(super) messages: u64,
}

impl SendBacklog {
    /// A message of this size.
    pub(super) const fn one(bytes: u64) -> Self {
        Self { bytes, messages: 1 }
    }

    /// What they take of memory.
    pub(super) const fn memory(self) -> u64 {
        let beside = self.messages.saturating_mul(Message::MEMORY_BYTES);
        self.bytes.saturating_add(beside)
    }
}

impl core::ops::Add for SendBacklog {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(more.bytes),
            messages: self.messages.saturating_add(more.messages),
        }
    }
}

impl core::ops::SubAssign for SendBacklog {
    fn sub_assign(&mut self, less: Self) {
        self.bytes -= less.bytes;
        self.messages -= less.messages;
    }
}

/// The messages that a link has carried so far, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Messages of this side whose first record is sealed.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Whole messages of the peer.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
}

impl LinkTraffic {
    pub(super) fn sent(&mut self, bytes: u64) {
        self.messages_sent += 1;
        self.bytes_sent = self.bytes_sent.saturating_add(bytes);
    }

    pub(super) fn received(&mut self, bytes: u64) {
        self.messages_received += 1;
        self.bytes_received = self.bytes_received.saturating_add(bytes);
    }
}

/// Where a link is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Open,
    /// The peer wants to open it, and this side has not answered.
    Asked,
    /// This side refused it: what still comes is dropped until the opener's LinkClose.
    Refused,
    /// Nothing more may be queued; when the queue is empty the peer is told.
    Closing,
    /// The opener has told the peer and waits for its answer.
    Closed,
}

/// How far a message has gone out.
pub(super) struct Progress {
    pub(super) message: Message,
    /// 0 is the head.
    pub(super) part: usize,
    pub(super) offset: usize,
}

impl Link {
    pub(super) fn new(
        opened_here: bool,
        class: TrafficClass,
        job: u32,
        credit: u64,
        window: u64,
    ) -> Self {
        Self {
            opened_here,
            class,
            job,
            state: LinkState::Open,
            sending: Protection::Plain,
            receiving: Protection::Plain,
            waits: false,
            life: LinkLife::OneSession,
            credited: 0,
            early: 0,
            handlers: None,
            queue: VecDeque::new(),
            backlog: SendBacklog::default(),
            current: None,
            credit: signed(credit),
            is_ready: false,
            window: signed(window),
            returned: 0,
            assembly: None,
            traffic: LinkTraffic::default(),
        }
    }

    /// Whether it outlives the session.
    pub(super) fn is_lasting(&self) -> bool {
        self.life != LinkLife::OneSession
    }

    /// The bytes that its message will have which has come in part.
    pub(super) fn half_here(&self) -> Option<u64> {
        self.assembly.as_ref().map(Assembly::bytes)
    }

    /// Whether a record of it can go out now.
    pub(super) fn can_send(&self) -> bool {
        self.current.is_some() || (self.credit > 0 && !self.queue.is_empty() && !self.waits)
    }

    /// Whether a post or request can be for this handler: the endpoint has as many, or the LinkOpen has named it.
    pub(super) fn has_handler(&self, handler: u16) -> bool {
        match handler.checked_sub(Message::EARLY_HANDLER) {
            Some(early) => early < self.early,
            None => self.handlers.is_some_and(|count| handler < count),
        }
    }

    /// Drops what waits to go out, and says how much that was.
    pub(super) fn drop_queue(&mut self) -> SendBacklog {
        self.queue.clear();
        self.current = None;
        core::mem::take(&mut self.backlog)
    }

    /// Whether everything queued has gone out.
    pub(super) fn is_flushed(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }
}

/// Byte counts are below 2^49 by the limits of the codecs; anything else saturates.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// All links of a session. Numbers are dense, so that finding one is an index: the client opens odd ones, the server
/// even ones.
pub(super) struct LinkTable {
    side: Side,
    by_client: Vec<Option<Box<Link>>>,
    by_server: Vec<Option<Box<Link>>>,
}

impl LinkTable {
    pub(super) fn new(side: Side) -> Self {
        Self {
            side,
            by_client: Vec::new(),
            by_server: Vec::new(),
        }
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let (opener, index) = place(id)?;
        self.opened_by(opener).get_mut(index)?.as_deref_mut()
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        let (opener, index) = place(id)?;
        let links = match opener {
            Side::Client => &self.by_client,
            Side::Server => &self.by_server,
        };
        links.get(index)?.as_deref()
    }

    /// Adds a link of this side at the lowest free number, unless there are `limit` already.
    pub(super) fn add_own(&mut self, link: Link, limit: u32) -> Option<LinkId> {
        let side = self.side;
        let links = self.opened_by(side);
        let index = links
            .iter()
            .position(Option::is_none)
            .unwrap_or(links.len());
        if index as u64 >= u64::from(limit) {
            return None;
        }
        if index == links.len() {
            links.push(None);
        }
        links[index] = Some(Box::new(link));
        let parity = if side == Side::Client { 1 } else { 2 };
        Some(LinkId(2 * index as u32 + parity))
    }

    /// Adds a link that the peer opened with this number, or says what is wrong with the number.
    pub(super) fn add_peers(
        &mut self,
        id: LinkId,
        link: Link,
        limit: u32,
    ) -> Result<(), &'static str> {
        let peer = self.side.peer();
        let Some((opener, index)) = place(id).filter(|(opener, _)| *opener == peer) else {
            return Err("the number belongs to the other side");
        };
        if index as u64 >= u64::from(limit) {
            return Err("the peer has more links open than links_max");
        }
        let links = self.opened_by(opener);
        if links.len() <= index {
            links.resize_with(index + 1, || None);
        }
        if links[index].is_some() {
            return Err("the link is open already");
        }
        links[index] = Some(Box::new(link));
        Ok(())
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Box<Link>> {
        let (opener, index) = place(id)?;
        self.opened_by(opener).get_mut(index)?.take()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        let links = self.by_client.iter_mut().chain(self.by_server.iter_mut());
        links.filter_map(Option::as_deref_mut)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        let links = self.by_client.iter().chain(self.by_server.iter());
        links.filter_map(Option::as_deref)
    }

    /// The credit that the peers of lasting links are to have back, however little it is: they keep what it stands for.
    pub(super) fn take_returned(&mut self) -> Vec<(LinkId, u64)> {
        let tables = [(1, &mut self.by_client), (2, &mut self.by_server)];
        let mut taken = Vec::new();
        for (first, links) in tables {
            for (index, link) in links.iter_mut().enumerate() {
                let link = link.as_deref_mut();
                if let Some(link) = link.filter(|link| link.is_lasting() && link.returned > 0) {
                    let bytes = core::mem::take(&mut link.returned);
                    link.window = link.window.saturating_add(signed(bytes));
                    taken.push((LinkId(2 * index as u32 + first), bytes));
                }
            }
        }
        taken
    }

    fn opened_by(&mut self, opener: Side) -> &mut Vec<Option<Box<Link>>> {
        match opener {
            Side::Client => &mut self.by_client,
            Side::Server => &mut self.by_server,
        }
    }
}

/// Who opened the link with this number, and its place in the opener's table.
fn place(id: LinkId) -> Option<(Side, usize)> {
    let index = usize::try_from(id.0.checked_sub(1)? / 2).ok()?;
    let opener = if id.0 % 2 == 1 {
        Side::Client
    } else {
        Side::Server
    };
    Some((opener, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link::new(true, TrafficClass::Data, 0, 1, 1)
    }

    #[test]
    fn each_side_has_its_own_numbers_and_uses_them_again() {
        let mut client = LinkTable::new(Side::Client);
        let mut server = LinkTable::new(Side::Server);
        assert_eq!(client.add_own(link(), 2), Some(LinkId(1)));
        assert_eq!(client.add_own(link(), 2), Some(LinkId(3)));
        assert_eq!(client.add_own(link(), 2), None);
        assert_eq!(server.add_own(link(), 2), Some(LinkId(2)));
        assert!(client.remove(LinkId(1)).is_some());
        assert!(client.get(LinkId(1)).is_none());
        assert_eq!(client.add_own(link(), 2), Some(LinkId(1)));
    }

    #[test]
    fn a_peer_cannot_take_a_number_that_is_not_its_own() {
        let mut server = LinkTable::new(Side::Server);
        assert!(server.add_peers(LinkId(2), link(), 2).is_err());
        assert!(server.add_peers(LinkId(0), link(), 2).is_err());
        assert!(server.add_peers(LinkId(3), link(), 2).is_ok());
        assert!(server.add_peers(LinkId(3), link(), 2).is_err());
        assert!(server.add_peers(LinkId(5), link(), 2).is_err());
        assert!(server.add_peers(LinkId(u32::MAX), link(), 2).is_err());
    }
}
