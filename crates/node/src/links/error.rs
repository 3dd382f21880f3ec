//! Why a link or a request comes to nothing.

use std::time::Duration;

use exoskel_identity::{Identity, PeerText};
use exoskel_link::capability::CapabilityError;
use exoskel_link::{HANDLERS_MAX, LinkRefusal, MessageKind, NAME_BYTES_MAX, SessionError};
use thiserror::Error;

use super::{EndedProcess, Hindrance, REQUESTS_MAX, WAITING_BYTES_MAX};

/// Why a link or a request comes to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// This process has an endpoint of that name.
    #[error(
        "got an endpoint {0:?} a second time: choose another name, or use the one that there is"
    )]
    EndpointTaken(String),
    /// This process has none of that name.
    #[error("got the endpoint {0:?}, which this node doesn't have")]
    NoEndpoint(String),
    /// The endpoint has a handler of that name.
    #[error("got a handler {0:?} a second time: choose another name")]
    HandlerTaken(String),
    /// A name that can't travel, or one handler too many.
    #[error(
        "got the handler {handler} as number {count} of its endpoint, expected at most {HANDLERS_MAX} with names of 1 to {NAME_BYTES_MAX} bytes \
         without control characters"
    )]
    HandlerName {
        /// Its name.
        handler: PeerText,
        /// How many there would be.
        count: usize,
    },
    /// A name that only this library's own endpoints have.
    #[error(
        "got the endpoint {0:?}, expected a name that doesn't begin with \"exoskel.\": choose another one"
    )]
    EndpointReserved(String),
    /// A node that was asked for a startpoint has given something else.
    #[error(
        "asked {node} for a startpoint of {endpoint:?} and got {got}: its software is at fault, or it means somebody else"
    )]
    LookedUp {
        /// Who was asked.
        node: Identity,
        /// For what.
        endpoint: String,
        /// What came.
        got: String,
    },
    /// A startpoint that can't be made, read or used.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// The other end doesn't open the link, or has ended it.
    #[error("{endpoint:?} of {node}: {reason}")]
    Refused {
        /// Whose endpoint it is.
        node: Identity,
        /// Its name.
        endpoint: String,
        /// What the other end says.
        reason: LinkRefusal,
    },
    /// The link gives no such handler.
    #[error(
        "got the handler {handler:?}, expected one that this startpoint and the owner's rules allow at {endpoint:?}: {}",
        list(known)
    )]
    NoHandler {
        /// What was asked for.
        handler: String,
        /// Where.
        endpoint: String,
        /// What there is.
        known: Vec<PeerText>,
    },
    /// Nobody could be reached as the node that the startpoint names.
    #[error(
        "{} {node}: {}{}{}",
        if *.hindrance == Hindrance::Way { "can't reach" } else { "no session with" },
        attempts.join("; "),
        if *.was_open { "; what was asked before may or may not have been handled" } else { "" },
        advice(*.ended)
    )]
    Unreachable {
        /// Whom the startpoint names.
        node: Identity,
        /// What each attempt came to.
        attempts: Vec<String>,
        /// What stood between.
        hindrance: Hindrance,
        /// Which process was meant, if another one was there.
        ended: Option<EndedProcess>,
        /// Whether there was a link, which is lost: what was asked by it may have arrived.
        was_open: bool,
    },
    /// Nothing says where the node is: the startpoint has no hints, and there is no session with the node.
    #[error(
        "can't reach {0}: the startpoint says no address, as its node neither listens nor registers at a gateway; give that node an address to listen at, or the startpoint hints"
    )]
    NoAddress(Identity),
    /// The session that carried the link is over.
    #[error("the session with {node} ended before the answer came: {why}")]
    SessionEnded {
        /// Who was at its other end.
        node: Identity,
        /// How it ended.
        why: String,
    },
    /// The session was lost, and no other one came in time.
    #[error(
        "the way to {node} was lost and did not come back within {patience:?}: {why}{}",
        if attempts.is_empty() { String::new() } else { format!("; tried {}", attempts.join("; ")) }
    )]
    Away {
        /// Whose process it is.
        node: Identity,
        /// How long was waited.
        patience: Duration,
        /// How the session ended.
        why: String,
        /// What the last attempts came to.
        attempts: Vec<String>,
    },
    /// A link is over, and nobody knows what of its posts has arrived.
    #[error(
        "{posts} {} to {endpoint} may be lost: {why}; what is posted from now on goes by a new link",
        if *.posts == 1 { "post" } else { "posts" }
    )]
    PostsLost {
        /// The endpoint.
        endpoint: String,
        /// How many have no word of their arrival.
        posts: usize,
        /// Why the link is over.
        why: String,
    },
    /// The same of a binding that its owner has closed: whoever closes its node hears it.
    #[error("{posts} {} to {endpoint} may be lost: {why}", if *.posts == 1 { "post" } else { "posts" })]
    ClosedPostsLost {
        /// The endpoint.
        endpoint: String,
        /// How many have no word of their arrival.
        posts: usize,
        /// Why the link is over.
        why: String,
    },
    /// The other end says that it has received what can't be.
    #[error(
        "got the word of {node} that it has received {got} messages of the link, expected {least} to {most}: its software is at fault"
    )]
    ImpossibleCount {
        /// Whose word it is.
        node: Identity,
        /// What it says.
        got: u64,
        /// What it has acknowledged before.
        least: u64,
        /// What was sent.
        most: u64,
    },
    /// The program has ended while there was no link.
    #[error("there was no link when the node was closed: {why}")]
    NoLink {
        /// What was lost or tried.
        why: String,
    },
    /// The program has ended before it knew what has become of its posts.
    #[error("the other end had not confirmed their arrival when the node was closed")]
    Unconfirmed,
    /// The link is over.
    #[error("the link has ended: {0}")]
    LinkEnded(String),
    /// The session refuses a message.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The node that would get arguments doesn't take as many bytes.
    #[error(
        "got arguments of {got} bytes, expected at most {maximum}, the `message_bytes_max` of the node that is asked: send less at a time, or raise it there"
    )]
    ArgumentsTooLarge {
        /// With what is around them.
        got: u64,
        /// What that node takes.
        maximum: u64,
    },
    /// The node that would get an answer doesn't take as many bytes.
    #[error(
        "got an answer of {got} bytes, expected at most {maximum}, the `message_bytes_max` of the node that asked: answer with less at a time, or raise it there"
    )]
    AnswerTooLarge {
        /// With what is around it.
        got: u64,
        /// What that node takes.
        maximum: u64,
    },
    /// Too much waits for a link.
    #[error(
        "got {got} bytes that wait for the link, expected at most {WAITING_BYTES_MAX}: wait for answers before more is asked"
    )]
    TooMuchWaits {
        /// With this message.
        got: u64,
    },
    /// Too many requests have no answer.
    #[error("got more than {REQUESTS_MAX} requests without an answer: wait for some")]
    TooManyRequests,
    /// The binding or the node is closed.
    #[error("it is closed")]
    Closed,
}

impl LinkError {
    /// Why a session doesn't take a message of this kind.
    #[must_use]
    pub fn of_message(error: SessionError, kind: MessageKind) -> Self {
        let SessionError::Limit {
            limit: "message_bytes_max",
            got,
            maximum,
        } = error
        else {
            return error.into();
        };
        match kind {
            MessageKind::Post | MessageKind::Request(_) => Self::ArgumentsTooLarge { got, maximum },
            MessageKind::Reply(_) | MessageKind::Failure(_) => {
                Self::AnswerTooLarge { got, maximum }
            }
        }
    }
}

fn advice(ended: Option<EndedProcess>) -> String {
    ended.map_or_else(String::new, |ended| format!("; {}", ended.advice()))
}

fn list(names: &[PeerText]) -> String {
    let names: Vec<String> = names.iter().map(PeerText::to_string).collect();
    names.join(", ")
}
