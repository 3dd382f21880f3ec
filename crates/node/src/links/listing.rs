//! The endpoints and links of a program, as people see them.

use std::time::Duration;

use exoskel_link::{LinkId, Protection};

use super::{LinkMachine, Use};
use crate::session::SessionId;

/// An endpoint that this program offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRow {
    /// Its name.
    pub endpoint: String,
    /// Its handlers, in the order in which they were added.
    pub handlers: Vec<String>,
    /// What links to it have at least.
    pub minimum: Protection,
}

/// A link of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLinkRow {
    /// The session.
    pub session: SessionId,
    /// The link's number there.
    pub link: LinkId,
    /// The endpoint that it leads to.
    pub endpoint: String,
    /// Whether this program opened it.
    pub is_own: bool,
    /// The number of the startpoint that it rests on.
    pub startpoint: u64,
    /// Whether the startpoint was given by a rule.
    pub by_rule: bool,
    /// When it was opened: in its first session, if there have been several.
    pub since: Duration,
    /// What the startpoint and, if it is ours, the endpoint ask for.
    pub needs: Protection,
    /// What a user of this program requires besides.
    pub required: Protection,
    /// The strictest that this program's policy has asked for since the link has been on this session.
    pub policy_asked: Protection,
}

impl LinkMachine {
    /// The endpoints, by name.
    #[must_use]
    pub fn endpoint_rows(&self) -> Vec<EndpointRow> {
        let endpoints = self.endpoints.iter();
        endpoints
            .map(|(name, own)| EndpointRow {
                endpoint: name.clone(),
                handlers: own.handlers.clone(),
                minimum: own.minimum,
            })
            .collect()
    }

    /// The links that are open, of all sessions.
    #[must_use]
    pub fn open_links(&self) -> Vec<OpenLinkRow> {
        let mut rows = Vec::new();
        for (session, known) in &self.sessions {
            for (link, user) in &known.links {
                let row = |endpoint: &str| OpenLinkRow {
                    session: *session,
                    link: *link,
                    endpoint: endpoint.to_owned(),
                    is_own: false,
                    startpoint: 0,
                    by_rule: false,
                    since: Duration::ZERO,
                    needs: Protection::Plain,
                    required: Protection::Plain,
                    policy_asked: Protection::Plain,
                };
                match user {
                    Use::Own(number) => {
                        let binding = self.bindings.get(number);
                        rows.extend(binding.filter(|binding| binding.is_open).map(|binding| {
                            OpenLinkRow {
                                is_own: true,
                                startpoint: binding.startpoint.number(),
                                since: binding.since,
                                needs: binding.startpoint.needs(known.peer.same_host),
                                required: binding.minimum,
                                policy_asked: binding.policy_asked,
                                ..row(binding.startpoint.endpoint())
                            }
                        }));
                    }
                    Use::Accepted(number) => {
                        let accepted = self.accepted.get(number);
                        let endpoint = |name: &str| {
                            let own = self.endpoints.get(name);
                            own.map_or(Protection::Plain, |own| own.minimum)
                        };
                        rows.extend(accepted.map(|accepted| OpenLinkRow {
                            startpoint: accepted.number,
                            by_rule: accepted.by_rule,
                            since: accepted.since,
                            needs: accepted.needs.max(endpoint(&accepted.endpoint)),
                            policy_asked: accepted.policy_asked,
                            ..row(&accepted.endpoint)
                        }));
                    }
                    Use::Lookup => {}
                }
            }
        }
        rows
    }

    /// This program's policy, read again, asks for this protection of a link.
    pub fn policy_asks(&mut self, session: SessionId, link: LinkId, protection: Protection) {
        let known = self.sessions.get(&session);
        let asked = match known.and_then(|known| known.links.get(&link)) {
            Some(Use::Own(number)) => {
                let binding = self.bindings.get_mut(number);
                binding.map(|binding| &mut binding.policy_asked)
            }
            Some(Use::Accepted(number)) => {
                let accepted = self.accepted.get_mut(number);
                accepted.map(|accepted| &mut accepted.policy_asked)
            }
            Some(Use::Lookup) | None => None,
        };
        if let Some(asked) = asked {
            *asked = protection.max(*asked);
        }
    }
}
