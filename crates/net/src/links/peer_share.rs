//! What the sessions of one certificate share: what a peer leaves unread counts together, however many sessions and processes it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use exoskel_identity::Identity;
use exoskel_link::SharedReception;
use exoskel_node::SessionId;
use exoskel_node::links::{AcceptedId, LinkCall};

use super::{LinkShared, lock};
use crate::connection::{Connection, PeerTurn};

/// Bytes that wait for a peer to read them. With more, none of its calls is handled, nor served by a region: their answers would only
/// wait as well.
const UNREAD_BYTES_MAX: u64 = 256 << 20;

/// Answers that may wait for a peer which has [`UNREAD_BYTES_MAX`] to read, at most: streams and failures are answered at once.
const UNREAD_ANSWERS_MAX: u64 = 65_536;

/// The sessions of one certificate.
#[derive(Default)]
pub(super) struct PeerShare {
    /// At the node's thread.
    pub(super) turn: PeerTurn,
    /// What is here of messages that aren't whole.
    reception: Arc<SharedReception>,
    connections: Mutex<BTreeMap<SessionId, Arc<Connection>>>,
}

/// What waits for a peer to read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unread {
    bytes: u64,
    answers: u64,
}

impl Unread {
    /// Whether nothing more is done for the peer that can wait.
    fn is_much(self) -> bool {
        self.bytes > UNREAD_BYTES_MAX
    }

    /// Whether nothing more is answered at all.
    fn is_too_much(self) -> bool {
        self.is_much() && self.answers > UNREAD_ANSWERS_MAX
    }
}

impl PeerShare {
    pub(super) fn begin(&self, session: SessionId, connection: &Arc<Connection>) {
        connection.with(|session| session.share_reception(self.reception.clone()));
        lock(&self.connections).insert(session, connection.clone());
    }

    pub(super) fn end(&self, session: SessionId) {
        lock(&self.connections).remove(&session);
    }

    fn unread(&self) -> Unread {
        let connections = lock(&self.connections);
        let mut unread = Unread::default();
        for connection in connections.values() {
            unread.bytes = unread.bytes.saturating_add(connection.waiting_bytes());
            unread.answers += connection.waiting_messages();
        }
        unread
    }
}

/// The shares of the peers that have sessions.
#[derive(Default)]
pub(super) struct PeerShares(Mutex<BTreeMap<Identity, Weak<PeerShare>>>);

impl PeerShares {
    pub(super) fn of(&self, peer: &Identity) -> Arc<PeerShare> {
        let mut shares = lock(&self.0);
        shares.retain(|_, share| share.strong_count() > 0);
        if let Some(share) = shares.get(peer).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::default();
        shares.insert(peer.clone(), Arc::downgrade(&share));
        share
    }

    fn known(&self, peer: &Identity) -> Option<Arc<PeerShare>> {
        lock(&self.0).get(peer).and_then(Weak::upgrade)
    }
}

/// Links to be ended, as their openers read no answers. The node's thread does so: who finds it may hold what that needs.
#[derive(Default)]
pub(super) struct UnreadLinks(Mutex<BTreeMap<AcceptedId, u64>>);

impl LinkShared {
    /// What waits until whoever has made a call reads it, with what waits for the other processes of its certificate.
    fn unread(&self, call: &LinkCall) -> Unread {
        let live = self.live(call.session);
        let is_away = live.is_none();
        let share = match live {
            Some(live) => Some(live.share.clone()),
            None => self.shares.known(&call.process.node),
        };
        let mut unread = share.map_or_else(Unread::default, |share| share.unread());
        if is_away {
            // Nothing, if another session carries its link.
            let unsent = lock(&self.machine).unsent_bytes(call.accepted);
            unread.bytes = unread.bytes.saturating_add(unsent);
        }
        unread
    }

    /// Whether a call has to wait until its opener has read answers.
    pub(super) fn is_held(&self, call: &LinkCall) -> bool {
        self.unread(call).is_much()
    }

    /// Whether a call can have an answer at once. If its opener reads none, its link and session end.
    pub(super) fn is_to_be_answered(&self, call: &LinkCall) -> bool {
        let unread = self.unread(call);
        if !unread.is_too_much() {
            return true;
        }
        lock(&self.unread_links.0).insert(call.accepted, unread.bytes);
        self.want();
        false
    }

    /// Ends links whose openers read no answers.
    pub(super) fn end_unread(self: &Arc<Self>) {
        for (accepted, got) in std::mem::take(&mut *lock(&self.unread_links.0)) {
            let text = format!(
                "more than {UNREAD_ANSWERS_MAX} answers of {got} bytes wait to be read, expected at most {UNREAD_BYTES_MAX} bytes: read answers before more is asked"
            );
            self.end_for_waiting(accepted, text);
        }
    }
}
