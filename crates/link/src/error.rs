//! What can go wrong in a session, and whose fault it is.

use core::time::Duration;

use exoskel_identity::PeerText;
use thiserror::Error;

use crate::message::LinkId;

/// Bytes that do not form what they should. Says what was read, what was found and what would have been right.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The bytes end too early.
    #[error("{what} ends early: got {got} bytes, expected {expected}")]
    Short {
        /// What was read.
        what: &'static str,
        /// How many bytes were left.
        got: usize,
        /// How many were needed.
        expected: usize,
    },
    /// Bytes are left over.
    #[error("{what} has {bytes} bytes too many")]
    Trailing {
        /// What was read.
        what: &'static str,
        /// How many were left.
        bytes: usize,
    },
    /// A number stands for nothing.
    #[error("got {got} as {what}, which stands for nothing")]
    Unknown {
        /// What was read.
        what: &'static str,
        /// The number.
        got: u64,
    },
    /// A limit is exceeded.
    #[error("{what} is over its limit: got {got}, expected at most {limit}")]
    Limit {
        /// What was read.
        what: &'static str,
        /// What stood there.
        got: u64,
        /// The limit.
        limit: u64,
    },
    /// Text that is not UTF-8 or holds control characters.
    #[error("{what} is not plain UTF-8 text")]
    Text {
        /// What was read.
        what: &'static str,
    },
}

/// Why a session was closed; travels to the peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// Everything is done.
    #[error("finished")]
    Finished,
    /// The process ends on request.
    #[error("shutting down")]
    ShuttingDown,
    /// The verified identity that the session rests on has expired.
    #[error(
        "the certificate of one of the two nodes has expired; a renewed one needs a new session"
    )]
    Expired,
    /// The peer is no longer allowed, after a reload of trust, revocation or policy.
    #[error("no longer allowed: {}", .0.sentence())]
    NotAllowed(PeerText),
    /// Nothing was heard of the other side for the agreed time. It may live on and hear this later.
    #[error("the peer heard nothing from this side for the agreed time")]
    Silence,
    /// The other side broke the protocol, or the wire was tampered with.
    #[error("the peer met a fault in what it received: {}", .0.sentence())]
    Fault(PeerText),
}

/// Why a link was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkRefusal {
    /// No endpoint of that name is offered.
    #[error("the peer has no such endpoint")]
    UnknownEndpoint,
    /// The endpoint's owner doesn't let this side in.
    #[error("the peer doesn't open it: {}", .0.sentence())]
    NotAllowed(PeerText),
    /// The endpoint's owner has ended a link that was open.
    #[error("the peer has ended it: {}", .0.sentence())]
    Ended(PeerText),
}

/// What ends a session or refuses a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// A record failed its check: altered, replayed, reordered, dropped before, or of another link or session.
    #[error(
        "record {counter} on {link} does not verify: it was altered, replayed, moved, or one before it was lost; \
         the session ends, check the wire between the peers"
    )]
    Authentication {
        /// The record's number in its direction.
        counter: u64,
        /// The link that its header names.
        link: LinkId,
    },
    /// The connection ended without a Close.
    #[error(
        "the connection ended without a Close after {records} records: cut off on the way, or the peer died"
    )]
    Truncated {
        /// How many whole records had come.
        records: u64,
    },
    /// A record came after the peer's Close.
    #[error("the peer sent a record after its Close")]
    RecordAfterClose,
    /// A header that cannot be.
    #[error("record {counter} has an invalid header: {source}")]
    Header {
        /// The record's number in its direction.
        counter: u64,
        /// What is wrong.
        source: CodecError,
    },
    /// A verified record's content cannot be.
    #[error("record {counter} has invalid content: {source}; the peer's software is at fault")]
    Content {
        /// The record's number in its direction.
        counter: u64,
        /// What is wrong.
        source: CodecError,
    },
    /// A record that does not fit the state of its link.
    #[error("record {counter} on {link} does not fit: {why}")]
    Unexpected {
        /// The record's number in its direction.
        counter: u64,
        /// The link.
        link: LinkId,
        /// What does not fit.
        why: &'static str,
    },
    /// The peer exceeded a limit of this side.
    #[error("the peer exceeded {limit}: got {got}, expected at most {maximum}")]
    PeerLimit {
        /// The limit's name.
        limit: &'static str,
        /// What came.
        got: u64,
        /// The limit.
        maximum: u64,
    },
    /// No sign of life of the peer for too long.
    #[error(
        "heard nothing from the peer for {0:?}, no whole record: it died or stands still, or the network is cut or too slow"
    )]
    PeerDead(Duration),
    /// A counter or an epoch is used up, which no real run reaches.
    #[error("the session has used up its record numbers; open a new one")]
    Exhausted,
    /// A call names a link that is not open.
    #[error("{0} is not open")]
    UnknownLink(LinkId),
    /// A call sends against a link's direction.
    #[error("{link} cannot carry this message: {why}")]
    Direction {
        /// The link.
        link: LinkId,
        /// The rule.
        why: &'static str,
    },
    /// A call exceeds a limit of the peer or of this side.
    #[error("over the limit {limit}: got {got}, expected at most {maximum}")]
    Limit {
        /// The limit's name.
        limit: &'static str,
        /// What was asked.
        got: u64,
        /// The limit.
        maximum: u64,
    },
    /// A call on a session that is closed or closing.
    #[error("the session is closed: {0}")]
    Closed(CloseReason),
}
