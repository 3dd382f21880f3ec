//! Startpoints that a node gives to whoever asks, where rules of its policy allow that.
//!
//! Asking is a request at an endpoint that every node has and that no startpoint is needed for. What is given is for the asker alone,
//! and is held against the rules again whenever a link is opened by it.

use bytes::Bytes;
use exoskel_identity::{Authorization, Identity, PeerText, VerifiedIdentity};
use exoskel_link::MessageKind;
use exoskel_link::Protection;
use exoskel_link::capability::{Caveat, NewStartpoint, Startpoint};
use exoskel_link::handshake::ProcessNumber;

use super::endpoint::OwnEndpoint;
use super::judgement::{action, handler_rule};

/// The endpoint that every node has. No other endpoint begins its name so.
pub const LOOKUP_ENDPOINT: &str = "exoskel.lookup";

/// Its one handler. A request has the name of an endpoint, the reply a startpoint, a failure the reason.
pub const LOOKUP_HANDLER: &str = "startpoint";

/// What the names of this library's own endpoints begin with.
pub(super) const RESERVED: &str = "exoskel.";

/// Reasons that a refusal tells, and actions of each.
const TOLD_MAX: usize = 3;
const ACTIONS_TOLD_MAX: usize = 8;

/// Where a node says that it is.
pub(super) struct NodePlace {
    /// Who it is.
    pub(super) node: Identity,
    /// Which process of that node.
    pub(super) process: ProcessNumber,
    /// Where it may be found, the best first.
    pub(super) hints: Vec<String>,
}

/// What comes of a request for a startpoint: the answer, and a line for the log.
pub(super) struct LookupAnswer {
    pub(super) kind: fn(u64) -> MessageKind,
    pub(super) head: Bytes,
    pub(super) audit: String,
}

impl LookupAnswer {
    fn refused(who: &Identity, endpoint: &str, reason: &str) -> Self {
        Self {
            kind: MessageKind::Failure,
            head: Bytes::copy_from_slice(reason.as_bytes()),
            audit: format!("refused {who} a startpoint of {endpoint}: {reason}"),
        }
    }
}

/// Answers a request for a startpoint. `own` is the endpoint, if there is one of this name; `asked` is shown as the peer wrote it.
pub(super) fn answer(
    own: Option<&mut OwnEndpoint>,
    asked: &str,
    place: Option<&NodePlace>,
    who: &VerifiedIdentity,
    rules: &Authorization,
) -> LookupAnswer {
    let identity = who.identity();
    let (Some(own), Some(place)) = (own, place) else {
        let reason = "this node has no such endpoint";
        return LookupAnswer::refused(identity, asked, reason);
    };
    let mut handlers = Vec::new();
    let mut lines = Vec::new();
    let mut against = Vec::new();
    for handler in &own.handlers {
        match handler_rule(rules, who, own.key.endpoint(), handler, true) {
            Ok(decision) => {
                handlers.push(handler.as_str());
                let source = decision.rule.map(|source| source.to_string());
                lines.extend(source.filter(|source| !lines.contains(source)));
            }
            Err(decision) => {
                let action = action(own.key.endpoint(), handler);
                add_refusal(&mut against, &action, &decision.reason);
            }
        }
    }
    if handlers.is_empty() {
        let reason = said_refusals(&against);
        return LookupAnswer::refused(identity, asked, &reason);
    }
    match startpoint(own.minimum, &handlers, &mut own.rules_key, place, identity) {
        Ok(startpoint) => LookupAnswer {
            kind: MessageKind::Reply,
            audit: format!(
                "gave {identity} a startpoint of {asked} ({}) by {}",
                handlers.join(", "),
                lines.join(", ")
            ),
            head: startpoint.encode().into(),
        },
        Err(reason) => LookupAnswer::refused(identity, asked, &reason),
    }
}

/// Actions that are refused with the same words behind them.
struct RefusedActions {
    actions: Vec<String>,
    /// Why, without the words that name the action where all reasons begin so.
    reason: String,
}

fn add_refusal(against: &mut Vec<RefusedActions>, action: &str, reason: &str) {
    let action = PeerText::new(action).to_string();
    let named = format!("action {action} ");
    let reason = reason.strip_prefix(&named).unwrap_or(reason);
    match against.iter_mut().find(|one| one.reason == reason) {
        Some(alike) => alike.actions.push(action),
        None => against.push(RefusedActions {
            actions: vec![action],
            reason: reason.to_owned(),
        }),
    }
}

/// Says why nothing is allowed, each reason once.
fn said_refusals(against: &[RefusedActions]) -> String {
    if against.is_empty() {
        return "the endpoint has no handlers".to_owned();
    }
    let said = against.iter().take(TOLD_MAX).map(|refusal| {
        let named = refusal.actions.iter().take(ACTIONS_TOLD_MAX);
        let named: Vec<&str> = named.map(String::as_str).collect();
        let more = match refusal.actions.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = if refusal.actions.len() == 1 {
            "action"
        } else {
            "actions"
        };
        format!("{what} {}{more} {}", named.join(", "), refusal.reason)
    });
    let said: Vec<String> = said.collect();
    let told: usize = against
        .iter()
        .take(TOLD_MAX)
        .map(|one| one.actions.len())
        .sum();
    let all: usize = against.iter().map(|one| one.actions.len()).sum();
    match all - told {
        0 => said.join("; "),
        more => format!(
            "{}; {more} other handlers are refused as well",
            said.join("; ")
        ),
    }
}

fn startpoint(
    minimum: Protection,
    handlers: &[&str],
    key: &mut exoskel_link::capability::RootKey,
    place: &NodePlace,
    who: &Identity,
) -> Result<Startpoint, String> {
    // A pattern is what a name with this character would be.
    if who.name.contains('*') {
        return Err("its name has a *, which no startpoint can be for".to_owned());
    }
    let holder = Caveat::holder(&who.name).map_err(|error| error.to_string())?;
    let new = NewStartpoint {
        node: place.node.clone(),
        process: place.process,
        hints: place.hints.clone(),
        minimum,
        bearer: false,
        caveats: vec![holder, Caveat::handlers(handlers.iter().copied())],
    };
    key.issue(new).map_err(|error| error.to_string())
}
