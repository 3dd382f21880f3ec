//! Links that their openers have closed, for as long as the openers may not know that all of them has come.
//!
//! An opener that closes a link keeps its posts until the end of the link is confirmed. If the session is lost before, it resumes the link:
//! it has to hear that everything has come, and not that nobody knows the link any more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::Identity;
use exoskel_link::ResumptionKey;

use super::{AcceptedId, LinkMachine, PeerProcess};
use crate::session::SessionId;

/// How many are remembered. Those of the node that has most go first, and of these the oldest.
const ENDED_LINKS_MAX: usize = 4096;

/// A link that its opener has closed.
struct EndedLink {
    peer: Arc<PeerProcess>,
    /// What its opener calls it.
    name: u64,
    key: ResumptionKey,
    /// How many times it has been asked for in another session.
    attempt: u64,
    /// How many messages have come by it: all.
    received: u64,
    endpoint: String,
    /// Of the startpoint that it rests on.
    number: u64,
    by_rule: bool,
    /// The session in which its end was confirmed.
    session: SessionId,
    /// Since when that one is over.
    since: Option<Duration>,
}

/// All of them, by their openers' nodes.
#[derive(Default)]
pub(super) struct EndedLinks {
    nodes: BTreeMap<Identity, VecDeque<EndedLink>>,
    count: usize,
}

impl EndedLinks {
    fn add(&mut self, ended: EndedLink) {
        let of_node = self.nodes.entry(ended.peer.node.clone()).or_default();
        of_node.push_back(ended);
        self.count += 1;
        if self.count > ENDED_LINKS_MAX
            && let Some(most) = self.nodes.values_mut().max_by_key(|links| links.len())
        {
            most.pop_front();
            self.count -= 1;
        }
    }

    /// A session is over. If its end says that the other side resumes nothing, nothing of it is remembered.
    pub(super) fn session_ended(&mut self, id: SessionId, is_for_good: bool, now: Duration) {
        for one in self.nodes.values_mut().flatten() {
            if one.session == id {
                one.since.get_or_insert(now);
            }
        }
        if is_for_good {
            self.retain(|one| one.session != id);
        }
    }

    /// Forgets those whose session is over for too long.
    pub(super) fn forget(&mut self, is_over: impl Fn(Duration) -> bool) {
        self.retain(|one| !one.since.is_some_and(&is_over));
    }

    fn retain(&mut self, is_kept: impl Fn(&EndedLink) -> bool) {
        for of_node in self.nodes.values_mut() {
            of_node.retain(&is_kept);
        }
        self.nodes.retain(|_, of_node| !of_node.is_empty());
        self.count = self.nodes.values().map(VecDeque::len).sum();
    }

    /// Somebody resumes a link for the `attempt`th time. Says how many messages have come by it, if it is one of these and all of this is
    /// its opener's.
    pub(super) fn resume(
        &mut self,
        session: SessionId,
        peer: &PeerProcess,
        (name, attempt): (u64, u64),
        right: (&str, u64, bool),
        proves: impl Fn(&ResumptionKey) -> bool,
    ) -> Option<u64> {
        let mut of_node = self.nodes.get_mut(&peer.node)?.iter_mut();
        let ended = of_node.find(|one| one.name == name && *one.peer == *peer)?;
        let own = (ended.endpoint.as_str(), ended.number, ended.by_rule);
        if own != right || attempt <= ended.attempt || !proves(&ended.key) {
            return None;
        }
        ended.attempt = attempt;
        // That it has come may be lost as well.
        (ended.session, ended.since) = (session, None);
        Some(ended.received)
    }
}

impl LinkMachine {
    /// The opener of a link has closed it in this session.
    pub(super) fn remember_ended(&mut self, id: SessionId, number: AcceptedId) {
        let Some(accepted) = self.accepted.get(&number) else {
            return;
        };
        let lasting = accepted.lasting.as_ref();
        // Who has sent nothing keeps nothing.
        let Some(lasting) = lasting.filter(|one| one.received > 0) else {
            return;
        };
        self.ended.add(EndedLink {
            peer: accepted.peer.clone(),
            name: lasting.name,
            key: lasting.key.clone(),
            attempt: lasting.attempt,
            received: lasting.received,
            endpoint: accepted.endpoint.clone(),
            number: accepted.number,
            by_rule: accepted.by_rule,
            session: id,
            since: None,
        });
    }
}
