//! Endpoints of this process, and the links that others have opened to them.

use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{PeerText, VerifiedIdentity};
use exoskel_link::capability::{Caveat, RootKey};
use exoskel_link::{HANDLERS_MAX, LinkId, Message, NAME_BYTES_MAX, Protection};

use super::lasting::LastingEnd;
use super::{CALL_BYTES, LinkError, PeerProcess};
use crate::session::SessionId;

/// An endpoint that this process offers.
pub(super) struct OwnEndpoint {
    pub(super) key: RootKey,
    /// Of startpoints that rules give out.
    pub(super) rules_key: RootKey,
    /// In the order in which they were added.
    pub(super) handlers: Vec<String>,
    /// What each link to it has at least.
    pub(super) minimum: Protection,
}

/// A link that somebody has opened to one of our endpoints, whatever session carries it. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcceptedId(pub(super) u64);

impl AcceptedId {
    /// The one of this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// A link that somebody has opened to one of our endpoints.
pub(super) struct AcceptedLink {
    pub(super) endpoint: String,
    /// What it may call; messages carry the index.
    pub(super) handlers: Vec<String>,
    /// The handlers of early messages, as the LinkOpen of the session that carries it names them.
    pub(super) early: Vec<PeerText>,
    /// Of the startpoint that it rests on.
    pub(super) number: u64,
    /// Whether that is one that a rule gave out: then only rules say what it is good for.
    pub(super) by_rule: bool,
    /// What takes away from that startpoint.
    pub(super) caveats: Vec<Caveat>,
    pub(super) expires: Option<u64>,
    pub(super) protection: Protection,
    /// What its startpoint asks for by itself.
    pub(super) needs: Protection,
    /// The strictest that this program's policy has asked for since the session that carries it has done so.
    pub(super) policy_asked: Protection,
    /// When it was opened: in its first session, if there have been several.
    pub(super) since: Duration,
    /// Which process has opened it.
    pub(super) peer: Arc<PeerProcess>,
    /// Who that has proven to be, in the last session that has carried it.
    pub(super) identity: Arc<VerifiedIdentity>,
    /// What carries it now.
    pub(super) place: Option<(SessionId, LinkId)>,
    /// What is kept of it, if it outlives its session.
    pub(super) lasting: Option<LastingEnd>,
    /// Since when no session has carried it.
    pub(super) away_since: Option<Duration>,
    /// Its opener has closed it: what has come is handled, and nothing else comes.
    pub(super) is_closed: bool,
    /// The bytes of calls that have come and are not handled yet.
    pub(super) held: u64,
    /// How many these are.
    pub(super) held_calls: u64,
}

impl AcceptedLink {
    /// Which handler a message is for, by its number. An early message may be for one that the link doesn't have.
    pub(super) fn handler(&self, number: u16) -> Option<&String> {
        let Some(place) = number.checked_sub(Message::EARLY_HANDLER) else {
            return self.handlers.get(usize::from(number));
        };
        let name = self.early.get(usize::from(place))?;
        self.handlers.iter().find(|handler| name.is(handler))
    }

    /// Adds the handlers that it may call now, and could not when it was opened. The others keep their numbers.
    pub(super) fn learn(&mut self, allowed: Vec<String>) {
        for handler in allowed {
            if !self.handlers.contains(&handler) {
                self.handlers.push(handler);
            }
        }
    }

    /// The memory that it takes while no session carries it.
    pub(super) fn weight(&self) -> u64 {
        let calls = self.held_calls.saturating_mul(CALL_BYTES);
        self.held + calls + self.kept_bytes()
    }

    /// The bytes of answers of which nobody knows yet that they have arrived.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.lasting.as_ref().map_or(0, LastingEnd::kept_bytes)
    }
}

impl OwnEndpoint {
    pub(super) fn new(key: RootKey, minimum: Protection) -> Self {
        let handlers = Vec::new();
        Self {
            rules_key: key.of_rules(),
            key,
            handlers,
            minimum,
        }
    }

    pub(super) fn add_handler(&mut self, handler: &str) -> Result<(), LinkError> {
        if self.handlers.iter().any(|known| known == handler) {
            return Err(LinkError::HandlerTaken(handler.to_owned()));
        }
        // What a link is accepted with has to travel, to everybody who asks.
        if self.handlers.len() >= HANDLERS_MAX || !is_name(handler) {
            return Err(LinkError::HandlerName {
                handler: handler.into(),
                count: self.handlers.len() + 1,
            });
        }
        self.handlers.push(handler.to_owned());
        Ok(())
    }
}

/// Whether it can travel as a name.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = !text.is_empty() && !text.contains(char::is_control);
    is_plain && text.len() <= NAME_BYTES_MAX
}
