//! What a client of a front may do, by the rules in force.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use exoskel_identity::Authorization;
use exoskel_identity::authorization::Decision;
use http::{HeaderValue, Method};

use super::headers::IdentityHeaders;
use super::paths::{Chosen, Needs};
use super::unmet::Unmet;
use super::{FrontFault, FrontState};
use crate::admission::{CONNECT, Refused};
use crate::audit::{AuditLine, Verdict};
use crate::metrics::RefusalCause;
use crate::peer::{Peer, Stranger, Visit};

/// What a client without a certificate is told.
const WITHOUT_CERTIFICATE: &str = "this path needs a client certificate, and you sent none: show a certificate or a proxy of an authority \
    that this service trusts";

/// Who asks on a connection of a front.
pub(super) enum Client {
    /// Somebody who may connect.
    Peer {
        peer: Box<Peer>,
        rights: Mutex<Arc<Rights>>,
    },
    /// Somebody who may not, and why.
    Refused {
        reason: String,
        headers: Arc<IdentityHeaders>,
    },
    /// Somebody who showed no certificate.
    Anonymous {
        visit: Visit,
        headers: Arc<IdentityHeaders>,
    },
}

/// What somebody may do by one state of the rules.
pub(super) struct Rights {
    rules: Option<Arc<Authorization>>,
    headers: Arc<IdentityHeaders>,
    /// One for each path rule, made when it is first asked.
    decisions: Vec<OnceLock<Decision>>,
}

impl Rights {
    fn new(front: &FrontState, peer: &Peer) -> Self {
        let rules = peer.visit().state.admission.authorization();
        let secret: Option<HeaderValue> = front.secret.clone();
        Self {
            headers: Arc::new(IdentityHeaders::new(
                peer,
                rules.as_deref(),
                secret,
                front.chain,
                front.tell_refused,
            )),
            rules,
            decisions: (0..front.paths.len()).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whether the rules are still these.
    fn is_current(&self, peer: &Peer) -> bool {
        let now = peer.visit().state.admission.authorization();
        match (&self.rules, &now) {
            (Some(rules), Some(now)) => Arc::ptr_eq(rules, now),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Client {
    pub(super) fn peer(front: &FrontState, peer: Peer) -> Self {
        let rights = Mutex::new(Arc::new(Rights::new(front, &peer)));
        Self::Peer {
            peer: Box::new(peer),
            rights,
        }
    }

    pub(super) fn stranger(front: &FrontState, stranger: &Stranger) -> Self {
        let visit = stranger.visit.clone();
        let address = visit.connection.address();
        let headers = Arc::new(IdentityHeaders::of_stranger(address, front.secret.clone()));
        match &stranger.refused {
            Some(refused) => Self::Refused {
                reason: refused.told().to_owned(),
                headers,
            },
            None => Self::Anonymous { visit, headers },
        }
    }

    /// Decides whether a request may pass, and gives the fields that state who asks.
    pub(super) async fn admit(
        &self,
        front: &FrontState,
        method: &Method,
        path: &str,
    ) -> Result<Arc<IdentityHeaders>, FrontFault> {
        let chosen = if front.paths.is_empty() {
            None
        } else {
            let chosen = front.paths.choose(method, path)?;
            Some(chosen.ok_or_else(|| no_rule(method))?)
        };
        let needs = chosen.map_or(&Needs::Client, |chosen| front.paths.needs(chosen));
        match (self, needs) {
            (Self::Peer { peer, rights }, needs) => {
                let rights = rights_now(rights, front, peer);
                if let (Needs::Action(action), Some(chosen)) = (needs, chosen) {
                    decide(&rights, peer, chosen, action).await?;
                }
                Ok(rights.headers.clone())
            }
            (Self::Refused { headers, .. } | Self::Anonymous { headers, .. }, Needs::Nothing) => {
                Ok(headers.clone())
            }
            (Self::Refused { reason, .. }, _) => Err(FrontFault::Forbidden(reason.clone())),
            (Self::Anonymous { visit, .. }, _) => {
                let refused = Refused::without_certificate();
                let (address, now) = (visit.connection.address(), visit.state.now());
                let line = AuditLine::refused(&refused, address, now, CONNECT);
                visit.state.audit.record(&line).await;
                let metrics = visit.state.connections.metrics();
                metrics.count_identity_refused(refused.cause);
                Err(FrontFault::Forbidden(WITHOUT_CERTIFICATE.to_owned()))
            }
        }
    }

    /// Writes down that the server behind refused an action, if that is what the rules have it do.
    pub(super) async fn refused_behind(&self, action: &str) {
        if let Self::Peer { peer, .. } = self {
            let decision = peer.decide(action);
            if !decision.allowed {
                refuse(peer, action, &decision).await;
            }
        }
    }

    /// Writes down that the server behind refused somebody who does not meet a requirement of its own, if that is so.
    pub(super) async fn unmet_behind(&self, unmet: &Unmet) {
        if let Self::Peer { peer, .. } = self
            && let Some(reason) = unmet.refusal(peer.identity())
        {
            let metrics = peer.visit().state.connections.metrics();
            metrics.count_identity_refused(RefusalCause::Rules);
            peer.record(&unmet.action(), Verdict::Refused, &reason)
                .await;
        }
    }
}

fn no_rule(method: &Method) -> FrontFault {
    FrontFault::Forbidden(format!(
        "no path rule of this service is about {method} of this path, and what none allows is refused"
    ))
}

fn rights_now(rights: &Mutex<Arc<Rights>>, front: &FrontState, peer: &Peer) -> Arc<Rights> {
    // What it guards is always whole.
    let mut rights = rights.lock().unwrap_or_else(PoisonError::into_inner);
    if !rights.is_current(peer) {
        *rights = Arc::new(Rights::new(front, peer));
    }
    rights.clone()
}

/// Refusals have a line in the audit trail. What may pass has one in the access log.
async fn decide(
    rights: &Rights,
    peer: &Peer,
    chosen: Chosen,
    action: &str,
) -> Result<(), FrontFault> {
    let decide = || match &rights.rules {
        Some(rules) => rules.decide(peer.identity(), action),
        None => peer.decide(action),
    };
    let decision = rights.decisions[chosen.index()].get_or_init(decide);
    if decision.allowed {
        return Ok(());
    }
    refuse(peer, action, decision).await;
    Err(FrontFault::Forbidden(decision.reason.clone()))
}

async fn refuse(peer: &Peer, action: &str, decision: &Decision) {
    let metrics = peer.visit().state.connections.metrics();
    metrics.count_identity_refused(match decision.is_ban {
        true => RefusalCause::Banned,
        false => RefusalCause::Rules,
    });
    peer.record(action, Verdict::Refused, &decision.reason)
        .await;
}
