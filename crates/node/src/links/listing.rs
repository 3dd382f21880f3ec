//! The endpoints and links of a program, as people see them.

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
    /// When it was opened, in seconds since 1970.
    pub since_unix: u64,
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
                    since_unix: 0,
                };
                match user {
                    Use::Own(number) => {
                        let binding = self.bindings.get(number);
                        rows.extend(binding.filter(|binding| binding.is_open).map(|binding| {
                            OpenLinkRow {
                                is_own: true,
                                startpoint: binding.startpoint.number(),
                                since_unix: binding.since_unix,
                                ..row(binding.startpoint.endpoint())
                            }
                        }));
                    }
                    Use::Accepted(number) => {
                        let accepted = self.accepted.get(number);
                        rows.extend(accepted.map(|accepted| OpenLinkRow {
                            startpoint: accepted.number,
                            by_rule: accepted.by_rule,
                            since_unix: accepted.since_unix,
                            ..row(&accepted.endpoint)
                        }));
                    }
                    Use::Lookup => {}
                }
            }
        }
        rows
    }
}
