//! Who may open a link to an endpoint, and by what: a startpoint of its owner, or one that the owner's rules have given. A rule that denies
//! an action takes it away from both.

use exoskel_identity::authorization::Decision;
use exoskel_identity::{Authorization, VerifiedIdentity};
use exoskel_link::capability::{CapabilityError, Caveat, Presentation, Right};
use exoskel_link::{LinkRefusal, Protection};

use super::endpoint::{AcceptedLink, OwnEndpoint};

/// What rules call the right to a handler.
pub(super) fn action(endpoint: &str, handler: &str) -> String {
    format!("{endpoint}.{handler}")
}

/// What rules say of one handler to somebody who has a right to it, or whom nothing but a rule lets in.
pub(super) fn handler_rule(
    rules: &Authorization,
    who: &VerifiedIdentity,
    endpoint: &str,
    handler: &str,
    only_by_rule: bool,
) -> Result<Decision, Decision> {
    let decision = rules.decide(who, &action(endpoint, handler));
    // A rule or a ban that is against it has been found by name; where none is for it, a startpoint of the owner is enough.
    let is_denied = !decision.allowed && decision.rule.is_some();
    if decision.allowed || (!only_by_rule && !is_denied) {
        Ok(decision)
    } else {
        Err(decision)
    }
}

/// What somebody may do by a link.
pub(super) struct Allowed {
    pub(super) handlers: Vec<String>,
    /// Of the startpoint.
    pub(super) number: u64,
    /// Whether a rule has given that.
    pub(super) by_rule: bool,
    /// What takes away from it: copies that allow less have the same number.
    pub(super) caveats: Vec<Caveat>,
    pub(super) expires: Option<u64>,
    pub(super) protection: Protection,
    /// What the startpoint asks for by itself.
    pub(super) needs: Protection,
}

/// Whether somebody may open a link, and to which handlers.
pub(super) fn judge(
    own: Option<&OwnEndpoint>,
    right: &[u8],
    presented: &Presentation<'_>,
    rules: &Authorization,
) -> Result<Allowed, LinkRefusal> {
    let own = own.ok_or(LinkRefusal::UnknownEndpoint)?;
    let refused = |error: CapabilityError| LinkRefusal::NotAllowed(error.to_string().into());
    let right = Right::read(right).map_err(refused)?;
    let by_rule = right.key_id() == own.rules_key.key_id();
    let key = if by_rule { &own.rules_key } else { &own.key };
    let allowance = key.verify(&right, presented).map_err(refused)?;
    let allowed = |name: &&String| {
        let only = allowance.handlers.as_ref();
        only.is_none_or(|only| only.contains(*name))
    };
    let endpoint = own.key.endpoint();
    let mut handlers = Vec::new();
    let mut against = None;
    for handler in own.handlers.iter().filter(allowed) {
        match handler_rule(rules, presented.holder, endpoint, handler, by_rule) {
            Ok(_) => handlers.push(handler.clone()),
            Err(decision) => drop(against.get_or_insert(decision)),
        }
    }
    if handlers.is_empty() {
        let text = against.map_or_else(|| none_allowed(own).to_owned(), |decision| decision.reason);
        return Err(LinkRefusal::NotAllowed(text.into()));
    }
    Ok(Allowed {
        handlers,
        number: allowance.number,
        by_rule,
        caveats: right.caveats().to_vec(),
        expires: allowance.expires,
        protection: allowance.protection,
        needs: right.needs(presented.same_host),
    })
}

fn none_allowed(own: &OwnEndpoint) -> &'static str {
    if own.handlers.is_empty() {
        "the endpoint has no handlers yet"
    } else {
        "the endpoint has none of the handlers that the startpoint allows"
    }
}

impl AcceptedLink {
    /// Why rules are against this link now, if they are.
    pub(super) fn is_barred(
        &self,
        rules: &Authorization,
        who: &VerifiedIdentity,
    ) -> Option<Decision> {
        let mut handlers = self.handlers.iter();
        handlers.find_map(|handler| {
            handler_rule(rules, who, &self.endpoint, handler, self.by_rule).err()
        })
    }
}
