//! What happens because time passes: heartbeats, a dead peer, the end of a verified identity.

use core::time::Duration;

use crate::error::{CloseReason, SessionError};
use crate::message::Event;
use crate::session::{Session, SessionConfig};

/// When things last happened.
pub(super) struct Timing {
    sealed: Duration,
    heard: Duration,
    /// When the owner last told the time.
    told: Duration,
}

impl Timing {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            sealed: now,
            heard: now,
            told: now,
        }
    }

    /// A record was sealed.
    pub(super) fn sealed(&mut self, now: Duration) {
        self.sealed = now;
    }

    /// Bytes came from the peer.
    pub(super) fn heard(&mut self, now: Duration) {
        self.heard = now;
        self.told = now;
    }

    pub(super) fn wants_heartbeat(&self, now: Duration, config: &SessionConfig) -> bool {
        now.saturating_sub(self.sealed) >= config.heartbeat_every
    }
}

impl Session {
    /// Time passes. Call when [`next_timeout`](Self::next_timeout) is due, then [`prepare`](Self::prepare): a heartbeat
    /// may have to go out.
    ///
    /// # Errors
    /// [`SessionError::PeerDead`] when nothing was heard of the peer for too long; the session is over then.
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), SessionError> {
        if self.is_closed() {
            return Ok(());
        }
        if self.config.expires_at.is_some_and(|end| now >= end) {
            self.config.expires_at = None;
            self.abort(CloseReason::Expired);
            self.events.push_back(Event::Closed {
                reason: CloseReason::Expired,
            });
        }
        let dead_after = self.config.dead_after;
        // A process that was itself stopped for a while must first read what came in the meantime.
        if now.saturating_sub(self.timing.told) > dead_after / 2 {
            self.timing.heard = self.timing.heard.max(now.saturating_sub(dead_after / 2));
        }
        self.timing.told = now;
        if now.saturating_sub(self.timing.heard) >= dead_after {
            return Err(self.fail(SessionError::PeerDead(dead_after)));
        }
        if self.timing.wants_heartbeat(now, &self.config) && self.outbox.bytes() == 0 {
            // Nothing went out for a while: an idle session gives its spare memory back.
            self.outbox.release_spare();
            self.inbox.release();
            self.pool.clear();
        }
        Ok(())
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due next; never, when the session is closed.
    pub fn next_timeout(&self) -> Option<Duration> {
        if self.is_closed() {
            return None;
        }
        let dead = self.timing.heard + self.config.dead_after;
        // While bytes wait for the writer they are sign of life enough once they go out.
        let quiet = !self.ending.close_sealed && self.outbox.bytes() == 0;
        let heartbeat = quiet.then_some(self.timing.sealed + self.config.heartbeat_every);
        // Told the time this often, the session can tell a silent peer from its own process having been stopped.
        let tick = Some(self.timing.told + self.config.dead_after / 4);
        let others = [heartbeat, tick, self.config.expires_at];
        others.into_iter().flatten().chain([dead]).min()
    }
}
