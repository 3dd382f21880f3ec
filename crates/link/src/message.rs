//! What enters a session and what leaves it: messages, endpoints and events.

use core::fmt;

use bytes::Bytes;

use exoskel_identity::PeerText;

use crate::error::{CloseReason, LinkRefusal};
use crate::protection::{Protection, Protections, TrafficClass};
use crate::resumption::{LinkLife, Resumption};

/// The number of a link within its session. Link 0 is the session's own control link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) u32);

impl LinkId {
    /// The session's own link.
    pub(crate) const CONTROL: Self = Self(0);

    /// The link of this number. A session knows only those that it has opened or accepted.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number that stands in record headers.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "link {}", self.0)
    }
}

/// What a message is for. The number of a request is chosen by the side that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// One way, from startpoint to endpoint.
    Post,
    /// Wants a reply with the same number, from startpoint to endpoint.
    Request(u64),
    /// Answers a request, from endpoint to startpoint.
    Reply(u64),
    /// Says that a request could not be served, from endpoint to startpoint.
    Failure(u64),
}

/// One message of a link: a small head that is never below `integrity`, and bulk parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The index of the endpoint's handler, in the order in which the endpoint names them.
    pub handler: u16,
    /// Post, request, reply or failure.
    pub kind: MessageKind,
    /// The in-band bytes: what the receiver interprets.
    pub head: Bytes,
    /// The out-of-band buffers, protected as the link is.
    pub bulk: Vec<Bytes>,
    /// All of `bulk` is one part for the receiver, sent from where its stretches lie.
    pub is_gathered: bool,
}

impl Message {
    /// The handler's number of an early message is this, and behind it the place of the handler's name in the LinkOpen: which index the
    /// endpoint has for it, only the answer says.
    pub const EARLY_HANDLER: u16 = 0x8000;

    /// What each message costs of its link's credit besides its bytes, so that a stream of empty messages is
    /// bounded as well.
    pub const OVERHEAD_BYTES: u64 = 64;

    /// What each message that waits takes of memory besides what it [counts](Self::size), where it is kept until it has arrived as well.
    pub const MEMORY_BYTES: u64 = 192;

    /// What the message takes from its link's credit.
    pub fn size(&self) -> u64 {
        let bulk: u64 = self.bulk.iter().map(|part| part.len() as u64).sum();
        Self::OVERHEAD_BYTES + self.head.len() as u64 + bulk
    }

    /// The bytes of each part that the receiver gets.
    pub(crate) fn part_lengths(&self) -> impl Iterator<Item = u64> {
        let lengths = || self.bulk.iter().map(|part| part.len() as u64);
        let gathered = self.is_gathered.then(|| lengths().sum());
        let each = (!self.is_gathered).then(lengths).into_iter().flatten();
        gathered.into_iter().chain(each)
    }

    /// How many parts the receiver gets.
    pub(crate) fn part_count(&self) -> usize {
        match self.is_gathered {
            true => 1,
            false => self.bulk.len(),
        }
    }
}

/// A receiving end with named handlers, offered to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name by which the peer opens links to it.
    pub name: String,
    /// The handlers' names; a message carries the index.
    pub handlers: Vec<String>,
}

impl Endpoint {
    /// An endpoint of this name with these handlers.
    pub fn new(name: &str, handlers: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            handlers: handlers.iter().map(|&handler| handler.to_owned()).collect(),
        }
    }
}

/// What a session tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A whole message arrived and every record of it was verified.
    Message {
        /// The link it came by.
        link: LinkId,
        /// The handler's index; checked against the endpoint's table.
        handler: u16,
        /// Post, request, reply or failure.
        kind: MessageKind,
        /// The in-band bytes.
        head: Bytes,
        /// The out-of-band buffers.
        bulk: Vec<Vec<u8>>,
        /// What to hand to [`Session::consumed`](crate::Session::consumed) when the message is done with.
        size: u64,
    },
    /// The peer opened a link to one of our endpoints.
    LinkOpened {
        /// The new link.
        link: LinkId,
        /// The endpoint's name: one that this side offers.
        endpoint: String,
        /// The class of its traffic.
        class: TrafficClass,
        /// The job that it belongs to.
        job: u32,
    },
    /// The peer wants to open a link to an endpoint that is not offered to everybody. Answer with
    /// [`Session::accept_link`](crate::Session::accept_link) or [`Session::refuse_link`](crate::Session::refuse_link).
    LinkAsked {
        /// The new link.
        link: LinkId,
        /// The endpoint's name, as the peer says it.
        endpoint: PeerText,
        /// What the peer asks for at least.
        protection: Protection,
        /// By what it wants to come in; empty for nothing.
        right: Vec<u8>,
        /// Whether the link is to outlive the session, or comes from an earlier one.
        life: LinkLife,
        /// The handlers that early messages call: see [`Message::EARLY_HANDLER`].
        early: Vec<PeerText>,
    },
    /// The peer accepted a link that we opened.
    LinkAccepted {
        /// The link.
        link: LinkId,
        /// The names of the endpoint's handlers, in the order of their indexes.
        handlers: Vec<PeerText>,
        /// What the peer says of a link that outlives the session.
        resumption: Option<Resumption>,
    },
    /// The peer refused a link that we opened, or has ended it; what was queued on it is dropped.
    LinkRefused {
        /// The link.
        link: LinkId,
        /// Why.
        reason: LinkRefusal,
    },
    /// A link ended; everything sent on it before has arrived.
    LinkClosed {
        /// The link.
        link: LinkId,
    },
    /// Credit came back: on a link that had none left, or on one that outlives the session, whatever it had.
    Credit {
        /// The link.
        link: LinkId,
    },
    /// A link's own protection became stricter.
    LinkProtectionRaised {
        /// The link.
        link: LinkId,
        /// What holds for records of the peer from now on, at least.
        protection: Protection,
    },
    /// The session's protections became stricter.
    ProtectionsRaised {
        /// What holds for records of the peer from now on.
        protections: Protections,
    },
    /// The peer closed the session, or its time is over; no more messages will come.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}
