//! What has to leave before a binding or a node goes, and how much may be under way.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exoskel_node::links::{BindingId, LinkError, MessageContents, WAITING_BYTES_MAX};

use super::{LinkNode, LinkShared, lock};

/// How long it may go unnoticed that something has left.
const DELIVERY_LOOK: Duration = Duration::from_millis(5);

impl LinkNode {
    /// Hands out no more calls. What has come and nobody has taken is dropped.
    pub fn stop_calls(&self) {
        self.shared.calls.end();
        self.shared.end_inboxes();
    }

    /// Ends all bindings, as [`LinkNode::unbind`] does; nothing more can be asked or posted.
    pub fn leave(&self) {
        self.shared.is_leaving.store(true, Ordering::SeqCst);
        let bindings: Vec<_> = lock(&self.shared.machine).bindings().collect();
        for id in bindings {
            self.unbind(id);
        }
        // Whoever can't be reached now will not be in a moment.
        lock(&self.shared.machine).hurry(self.shared.now());
        self.shared.want();
    }

    /// Whether something that was posted or answered has not left yet, or a post of a closed binding may not have arrived.
    #[must_use]
    pub fn is_delivering(&self) -> bool {
        if lock(&self.shared.machine).is_delivering() {
            return true;
        }
        let sessions = lock(&self.shared.sessions);
        let mut waiting = sessions
            .values()
            .map(|live| live.connection.unwritten_bytes());
        waiting.any(|bytes| bytes > 0)
    }

    /// Waits until all that was posted and answered has left, for `patience` at most. Says whether it has.
    #[must_use]
    pub fn deliver(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_delivering() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.shared.wait_for_progress(left.min(DELIVERY_LOOK));
        }
        true
    }

    /// Gives up on what was posted and has not left, and says what is lost of closed bindings, ever since this was asked last.
    #[must_use]
    pub fn abandon(&self) -> Vec<LinkError> {
        lock(&self.shared.machine).abandon(self.shared.now())
    }

    /// Waits until there is room for what a binding is to send, for `patience` at most: [`WAITING_BYTES_MAX`] may be under way, or one
    /// message. Says whether there is.
    #[must_use]
    pub fn wait_for_room(
        &self,
        id: BindingId,
        contents: &MessageContents,
        patience: Duration,
    ) -> bool {
        self.wait_for_room_within(id, contents, WAITING_BYTES_MAX, patience)
    }

    /// The same for who lets less be under way.
    #[must_use]
    pub fn wait_for_room_within(
        &self,
        id: BindingId,
        contents: &MessageContents,
        bytes_max: u64,
        patience: Duration,
    ) -> bool {
        let deadline = Instant::now() + patience;
        let more = contents.size();
        let is_full = || {
            let pending = self.shared.pending_bytes(id);
            pending > 0 && pending.saturating_add(more) > bytes_max
        };
        while is_full() && self.shared.check_open().is_ok() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.shared.wait_for_progress(left.min(DELIVERY_LOOK));
        }
        true
    }
}

impl LinkShared {
    /// Waits until something has happened, or for so long.
    fn wait_for_progress(&self, patience: Duration) {
        let answers = lock(&self.answers);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = self.answered.wait_timeout(answers, patience);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// What a binding has under way.
    fn pending_bytes(&self, id: BindingId) -> u64 {
        let machine = lock(&self.machine);
        let (pending, place) = (machine.pending_bytes(id), machine.session_of(id));
        drop(machine);
        let live = place.and_then(|(session, _)| self.live(session));
        pending.max(live.map_or(0, |live| live.connection.unwritten_bytes()))
    }
}
