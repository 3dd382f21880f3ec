//! Sessions with other processes, those that are over included: which links were opened in each of them.
//!
//! An opener whose session ends before the first answer doesn't know whether its LinkOpen has come. It resumes the link, and a link that has
//! never been heard of is opened anew: nothing of it was handled. One that was heard of and isn't kept any more stays closed, as its messages
//! may have been handled. LinkOpens of one session come in order and their names grow, so one number for each session says which have come.
//! Who has forgotten the session has forgotten its key as well, and opens nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::Identity;
use exoskel_link::ResumptionKey;

use super::PeerProcess;
use crate::session::SessionId;

/// How many sessions of one process are remembered that are over. The oldest go first.
const OF_PROCESS_MAX: usize = 8;

/// How many of all processes, and of names that were opened anew, together. Those of the node that has most go first.
const WEIGHT_MAX: usize = 16_384;

/// How many links of one session are opened anew in others.
const ANEW_MAX: usize = 4096;

/// One session.
struct MetSession {
    peer: Arc<PeerProcess>,
    key: ResumptionKey,
    /// The greatest name of a link that was first opened here.
    heard: Option<u64>,
    /// Greater ones, of links whose LinkOpens have not come here, and that were opened anew in other sessions.
    anew: BTreeSet<u64>,
    /// Since when it is over.
    since: Option<Duration>,
}

impl MetSession {
    fn has_heard_of(&self, name: u64) -> bool {
        self.heard.is_some_and(|heard| name <= heard) || self.anew.contains(&name)
    }

    fn weight(&self) -> usize {
        1 + self.anew.len()
    }
}

/// All of them. Later ones have greater numbers.
#[derive(Default)]
pub(super) struct MetSessions {
    sessions: BTreeMap<SessionId, MetSession>,
}

impl MetSessions {
    pub(super) fn begin(&mut self, id: SessionId, peer: Arc<PeerProcess>, key: ResumptionKey) {
        let met = MetSession {
            peer,
            key,
            heard: None,
            anew: BTreeSet::new(),
            since: None,
        };
        self.sessions.insert(id, met);
    }

    /// A link of this name is opened for the first time. Says whether that can be: it may have been opened anew in another session, or was
    /// here, and has ended since.
    pub(super) fn is_first(&mut self, id: SessionId, name: u64) -> bool {
        let Some(met) = self.sessions.get_mut(&id) else {
            return false;
        };
        let is_first = !met.has_heard_of(name);
        met.heard = met.heard.max(Some(name));
        is_first
    }

    /// Somebody resumes a link in this session that isn't kept. Gives its key if it was asked for in another session of this process in
    /// which nobody has heard of it: it is opened anew, once.
    pub(super) fn open_anew(
        &mut self,
        id: SessionId,
        peer: &PeerProcess,
        name: u64,
        proves: impl Fn(&ResumptionKey) -> bool,
    ) -> Option<ResumptionKey> {
        let others = self.sessions.iter_mut().filter(|(other, _)| **other != id);
        let mut of_peer = others.filter(|(_, one)| *one.peer == *peer);
        let (_, met) = of_peer.find(|(_, one)| proves(&one.key))?;
        if met.has_heard_of(name) || met.anew.len() >= ANEW_MAX {
            return None;
        }
        met.anew.insert(name);
        Some(met.key.clone())
    }

    /// A session is over. If its end says that nothing of it is resumed, it is forgotten.
    pub(super) fn end(&mut self, id: SessionId, is_for_good: bool, now: Duration) {
        let Some(met) = self.sessions.get_mut(&id) else {
            return;
        };
        met.since = Some(now);
        let peer = met.peer.clone();
        if is_for_good {
            self.sessions.remove(&id);
        }
        let over = self.over().filter(|(_, one)| one.peer == peer);
        let over: Vec<_> = over.map(|(id, _)| id).collect();
        for id in &over[..over.len().saturating_sub(OF_PROCESS_MAX)] {
            self.sessions.remove(id);
        }
        self.bound_memory();
    }

    /// Forgets those that are over for too long.
    pub(super) fn forget(&mut self, is_over: impl Fn(Duration) -> bool) {
        self.sessions
            .retain(|_, one| !one.since.is_some_and(&is_over));
    }

    fn over(&self) -> impl Iterator<Item = (SessionId, &MetSession)> {
        let over = self.sessions.iter().filter(|(_, one)| one.since.is_some());
        over.map(|(id, one)| (*id, one))
    }

    fn bound_memory(&mut self) {
        let mut weight: usize = self.over().map(|(_, one)| one.weight()).sum();
        while weight > WEIGHT_MAX {
            let mut nodes: BTreeMap<&Identity, (usize, SessionId)> = BTreeMap::new();
            for (id, one) in self.over() {
                // The first one that is met is the oldest.
                nodes.entry(&one.peer.node).or_insert((0, id)).0 += one.weight();
            }
            let most = nodes.into_values().max();
            let gone = most.and_then(|(_, oldest)| self.sessions.remove(&oldest));
            let Some(gone) = gone else {
                return;
            };
            weight -= gone.weight();
        }
    }
}
