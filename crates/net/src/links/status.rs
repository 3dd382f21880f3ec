//! What a running node says of itself to programs of its own account: its endpoints, its peers, and each link with the rule that decides
//! about it. Nothing of it is secret, and none of it is for anybody else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exoskel_link::handshake::Path;
use exoskel_link::{Protection, TrafficClass};
use exoskel_node::links::OpenLinkRow;
use serde::Serialize;

use super::{LinkNode, LinkShared, RunningSession, lock};
use crate::listening::Listener;

/// How long somebody who asks may take to read the answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Between two attempts to accept, where the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A node, as `exoskel links` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// The process.
    pub process: u32,
    /// The name that it proves.
    pub name: String,
    /// In which role.
    pub role: String,
    /// Where others are told to dial.
    pub hints: Vec<String>,
    /// For how long it has run.
    pub seconds: u64,
    /// What it offers.
    pub endpoints: Vec<EndpointStatus>,
    /// Its sessions.
    pub sessions: Vec<SessionStatus>,
    /// Its bindings that have no link, and why.
    pub troubled_links: Vec<TroubledLinkStatus>,
    /// What is wrong with the node itself.
    pub troubles: Vec<String>,
}

/// A binding without a link.
#[derive(Clone, Debug, Serialize)]
pub struct TroubledLinkStatus {
    /// The endpoint that it leads to.
    pub endpoint: String,
    /// Whose endpoint that is.
    pub peer: String,
    /// What was lost, what was tried last, and why that failed.
    pub why: String,
}

/// An endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointStatus {
    /// Its name.
    pub endpoint: String,
    /// Its handlers.
    pub handlers: Vec<String>,
    /// What links to it have at least.
    pub minimum: String,
}

/// A session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    /// The name that the peer has proven.
    pub peer: String,
    /// In which role.
    pub role: String,
    /// What carries it.
    pub method: &'static str,
    /// Where the peer is.
    pub address: String,
    /// For how long it has run.
    pub seconds: u64,
    /// Bytes of messages to the peer, of all links that there were.
    pub bytes_sent: u64,
    /// Bytes of messages of the peer.
    pub bytes_received: u64,
    /// Its links.
    pub links: Vec<LinkStatus>,
}

/// A link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    /// The endpoint that it leads to.
    pub endpoint: String,
    /// Whether this node opened it; the endpoint is the peer's then.
    pub opened_here: bool,
    /// What holds for its records.
    pub protection: String,
    /// What this node's policy says of it, and by which rule.
    pub rule: String,
    /// Whether it is stricter than the policy wants.
    pub raised: bool,
    /// What made it so: a word of [`RaisedBy`].
    pub raised_by: Option<RaisedBy>,
    /// The number of the startpoint that it rests on.
    pub startpoint: u64,
    /// Whether a rule gave that.
    pub by_rule: bool,
    /// Messages to the peer.
    pub messages_sent: u64,
    /// Messages of the peer.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// For how long it has been open: longer than its session has run, where it has come from an earlier one.
    pub seconds: u64,
}

/// What has made a link stricter than this node's policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RaisedBy {
    /// What the startpoint or the endpoint asks for.
    Endpoint,
    /// A user of this node, for its own link.
    User,
    /// The way to the peer leads through others.
    Relay,
    /// This node's policy, as it was before it was read again.
    EarlierPolicy,
    /// The policy of the other end.
    PeerPolicy,
    /// The other end, which has opened the link: its policy or its user.
    Peer,
}

impl LinkNode {
    /// How the node stands.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.shared.status()
    }
}

impl LinkShared {
    fn status(&self) -> NodeStatus {
        let (endpoints, links, troubled) = {
            let machine = lock(&self.machine);
            let troubled = machine.troubled_links(self.now());
            (machine.endpoint_rows(), machine.open_links(), troubled)
        };
        let troubled = troubled.into_iter().map(|one| TroubledLinkStatus {
            endpoint: one.endpoint,
            peer: one.node.name,
            why: one.why,
        });
        // One time for all ages: what began later is never older.
        let now = Instant::now();
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let endpoints = endpoints.into_iter().map(|row| EndpointStatus {
            endpoint: row.endpoint,
            handlers: row.handlers,
            minimum: row.minimum.to_string(),
        });
        NodeStatus {
            process: std::process::id(),
            name: self.identity.name.clone(),
            role: self.identity.role.to_string(),
            hints: self.hints.clone(),
            seconds: now.saturating_duration_since(self.since).as_secs(),
            endpoints: endpoints.collect(),
            sessions: sessions
                .iter()
                .map(|live| self.session_status(live, &links, now))
                .collect(),
            troubled_links: troubled.collect(),
            troubles: self.standing_troubles(),
        }
    }

    fn session_status(
        &self,
        live: &RunningSession,
        links: &[OpenLinkRow],
        now: Instant,
    ) -> SessionStatus {
        let row = live.row();
        let counts = live.connection.with(|session| session.counts());
        let own = links.iter().filter(|link| link.session == live.id);
        SessionStatus {
            peer: row.peer.name,
            role: row.peer.role.to_string(),
            method: row.method,
            address: row.address,
            seconds: now.saturating_duration_since(live.since).as_secs(),
            bytes_sent: counts.bytes_sealed.iter().sum(),
            bytes_received: counts.bytes_opened.iter().sum(),
            links: own
                .filter_map(|link| self.link_status(live, link, now))
                .collect(),
        }
    }

    fn link_status(
        &self,
        live: &RunningSession,
        row: &OpenLinkRow,
        now: Instant,
    ) -> Option<LinkStatus> {
        let (protection, traffic): (Protection, _) = live.connection.with(|session| {
            let protection = session.link_protection(row.link)?;
            Some((protection, session.link_traffic(row.link)?))
        })?;
        let verdict = lock(&self.terms).link_verdict(&live.record, &row.endpoint);
        let raised_by = (protection > verdict.protection).then(|| live.raise_of(row, protection));
        Some(LinkStatus {
            endpoint: row.endpoint.clone(),
            opened_here: row.is_own,
            protection: protection.to_string(),
            rule: verdict.to_string(),
            raised: raised_by.is_some(),
            raised_by,
            startpoint: row.startpoint,
            by_rule: row.by_rule,
            messages_sent: traffic.messages_sent,
            messages_received: traffic.messages_received,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            seconds: now
                .saturating_duration_since(self.since)
                .saturating_sub(row.since)
                .as_secs(),
        })
    }
}

impl RunningSession {
    /// What a link's protection comes from, where this node's policy doesn't ask for it.
    fn raise_of(&self, row: &OpenLinkRow, protection: Protection) -> RaisedBy {
        let handshake = self.own_minimum.of(TrafficClass::Data);
        if row.needs >= protection {
            RaisedBy::Endpoint
        } else if row.required >= protection {
            RaisedBy::User
        } else if self.record.path == Path::Relayed {
            // Both ends ask for it, whatever their policies say.
            RaisedBy::Relay
        } else if row.policy_asked.max(handshake) >= protection {
            RaisedBy::EarlierPolicy
        } else if row.is_own {
            RaisedBy::PeerPolicy
        } else {
            RaisedBy::Peer
        }
    }
}

/// Tells whoever connects, if it is of our own account or root's. One after the other: each has its time.
pub(super) async fn tell(shared: Arc<LinkShared>, listener: Listener) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if !socket.proven_same_host() {
            continue;
        }
        // Numbers and texts only: this can't fail.
        let text = serde_json::to_vec(&shared.status()).unwrap_or_default();
        // Who doesn't read isn't told.
        let _ = tokio::time::timeout(ANSWER_TIME, socket.write_all(&text)).await;
        socket.shutdown_write();
    }
}
