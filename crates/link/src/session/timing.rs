//! What happens because time passes: heartbeats, a dead peer, the end of a verified identity.

use core::time::Duration;

use crate::error::{CloseReason, SessionError};
use crate::message::Event;
use crate::session::{Session, SessionConfig};

/// Bytes of a record that isn't whole yet are a sign of life only if they come at this rate on average, in bytes a second. Nobody has vouched
/// for them: behind an altered length, the peer's heartbeats would otherwise pass for the body of a record until there are as many of them
/// as it says. A record of 256 KiB that really is under way may take 64 s.
pub const UNVERIFIED_BYTES_PER_SECOND: u64 = 4 * 1024;

/// When things last happened.
pub(super) struct Timing {
    sealed: Duration,
    heard: Duration,
    /// When a record of the peer was last found good, and the bytes that have come since.
    verified: Duration,
    unverified_bytes: u64,
    /// When the owner last told the time.
    told: Duration,
}

impl Timing {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            sealed: now,
            heard: now,
            verified: now,
            unverified_bytes: 0,
            told: now,
        }
    }

    /// A record was sealed.
    pub(super) fn sealed(&mut self, now: Duration) {
        self.sealed = now;
    }

    /// So many bytes came from the peer.
    pub(super) fn heard(&mut self, bytes: usize, now: Duration, dead_after: Duration) {
        self.told(now, dead_after);
        self.heard = now;
        self.unverified_bytes = self.unverified_bytes.saturating_add(bytes as u64);
    }

    /// Records of the peer were found good.
    pub(super) fn verified(&mut self, now: Duration) {
        self.verified = now;
        self.unverified_bytes = 0;
    }

    fn told(&mut self, now: Duration, dead_after: Duration) {
        // A process that was itself stopped for a while must first read what came in the meantime.
        if now.saturating_sub(self.told) > dead_after / 2 {
            let since = now.saturating_sub(dead_after / 2);
            self.heard = self.heard.max(since);
            self.verified = self.verified.max(since);
        }
        self.told = now;
    }

    /// When the peer counts as dead if nothing more comes.
    fn dead_at(&self, dead_after: Duration) -> Duration {
        let micros = self.unverified_bytes.saturating_mul(1_000_000) / UNVERIFIED_BYTES_PER_SECOND;
        let verified = self.verified.saturating_add(Duration::from_micros(micros));
        self.heard.min(verified).saturating_add(dead_after)
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
    /// [`SessionError::PeerDead`] when no sign of life of the peer came for too long: nothing at all, or bytes that make up no record and
    /// are fewer than [`UNVERIFIED_BYTES_PER_SECOND`]; the session is over then.
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), SessionError> {
        if self.cut_when_due(now) || self.is_closed() {
            return Ok(());
        }
        if self.config.expires_at.is_some_and(|end| now >= end) {
            self.config.expires_at = None;
            self.abort(CloseReason::Expired);
            self.events.push_back(Event::Closed {
                reason: CloseReason::Expired,
            });
            self.begin_closing_time(now);
        }
        let dead_after = self.config.dead_after;
        self.timing.told(now, dead_after);
        if now >= self.timing.dead_at(dead_after) {
            if self.closing.peer_closed {
                // It may say nothing more, and all that it said has come. It has not read all of ours, and has had time for it.
                self.cut();
                return Ok(());
            }
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

    /// When [`handle_timeout`](Self::handle_timeout) is due next; never, when the session is over.
    pub fn next_timeout(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let cut = self.cut_at();
        if self.is_closed() {
            return cut;
        }
        let dead = self.timing.dead_at(self.config.dead_after);
        // While bytes wait for the writer they are sign of life enough once they go out.
        let quiet = !self.closing.close_sealed && self.outbox.bytes() == 0;
        let heartbeat = quiet.then_some(self.timing.sealed + self.config.heartbeat_every);
        // Told the time this often, the session can tell a silent peer from its own process having been stopped.
        let tick = Some(self.timing.told + self.config.dead_after / 4);
        let others = [heartbeat, tick, self.config.expires_at, cut];
        others.into_iter().flatten().chain([dead]).min()
    }
}
