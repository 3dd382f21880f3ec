//! Why a binding has no link just now: what was lost, what was tried last, and why that failed.

use std::time::Duration;

use exoskel_identity::{Identity, PeerText};

use super::binding::Binding;
use super::{BindingId, FailedAttempts, LinkMachine, Want};

/// A binding without a link, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TroubledLink {
    /// The endpoint that it leads to.
    pub endpoint: String,
    /// Whose endpoint that is.
    pub node: Identity,
    /// What is known of the trouble.
    pub why: String,
}

impl LinkMachine {
    /// One hint of what is wanted is tried now; these attempts have failed before.
    pub fn trying(&mut self, want: &Want, hint: &str, attempts: &FailedAttempts) {
        self.dialling.trying(&want.peer, hint, attempts.told());
    }

    /// Why a binding has no link: nothing, if it has one or nobody has asked for one.
    #[must_use]
    pub fn trouble_of(&self, id: BindingId, now: Duration) -> Option<String> {
        self.trouble(self.bindings.get(&id)?, now)
    }

    /// The bindings of this program that have no link, and why. Lookups are not among them: who asks is told.
    #[must_use]
    pub fn troubled_links(&self, now: Duration) -> Vec<TroubledLink> {
        let bindings = self.bindings.values().filter(|one| !one.is_lookup());
        let troubled = bindings.filter_map(|binding| {
            Some(TroubledLink {
                endpoint: binding.startpoint.endpoint().to_owned(),
                node: binding.peer.node.clone(),
                why: self.trouble(binding, now)?,
            })
        });
        troubled.collect()
    }

    fn trouble(&self, binding: &Binding, now: Duration) -> Option<String> {
        if binding.is_open {
            return None;
        }
        let mut parts = Vec::new();
        if let Some((since, why)) = &binding.away {
            let seconds = now.saturating_sub(*since).as_secs();
            parts.push(format!("the connection was lost {seconds} s ago: {why}"));
            if !self.dialling.can_dial(&binding.peer) {
                parts.push("only the other end knows where to dial".to_owned());
            }
        }
        if binding.place.is_some() {
            parts.push("the other end has not said yet whether it opens the link".to_owned());
        } else if binding.is_wanted() {
            let tried = self.dialling.attempts(&binding.peer);
            if !tried.is_empty() {
                parts.push(format!("tried {}", tried.join("; ")));
            }
            if let Some(hint) = self.dialling.tried_now(&binding.peer) {
                let hint = PeerText::new(hint).unquoted();
                parts.push(format!("no answer from {hint} so far"));
            }
            if parts.is_empty() {
                parts.push("there is no session yet".to_owned());
            }
        } else if let Some(failure) = &binding.failure {
            parts.push(failure.clone());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}
