//! How a session ends: in order, at once, or by a fault; and when its connection is cut whatever the peer does.
//!
//! The owner calls [`Session::close`] or [`Session::abort`], goes on moving bytes and telling the time, and asks
//! [`Session::ended`] whenever it has written or told the time.

use core::time::Duration;
use std::io;

use thiserror::Error;

use crate::error::{CloseReason, SessionError};
use crate::message::Event;
use crate::session::Session;
use crate::session::link::SendBacklog;

/// How long the peer may take to answer our Close, or to read what is left for it, before the connection is cut.
pub const CLOSING_TIME: Duration = Duration::from_secs(1);

/// How a session is over.
#[derive(Debug, Error)]
pub enum Ended {
    /// Closed in order by one of the ends. The reason is the first one that either end gave.
    #[error("closed: {0}")]
    Closed(CloseReason),
    /// The session's rules were broken, or the peer fell silent.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// What carried the session's bytes failed.
    #[error("the connection broke: {0}")]
    Transport(#[from] io::Error),
}

/// How far the session's end has come.
#[derive(Default)]
pub(super) struct Closing {
    /// This side's reason, once it wants to end. Its Close says this.
    pub(super) own: Option<CloseReason>,
    /// The first reason that this side or the peer gave. The owner is told this.
    first: Option<CloseReason>,
    /// Nothing of what the peer says counts any more.
    is_abrupt: bool,
    /// Close has been sealed: no record may follow.
    pub(super) close_sealed: bool,
    pub(super) peer_closed: bool,
    /// The connection has no more bytes for this side.
    is_read: bool,
    pub(super) failure: Option<SessionError>,
    /// When the connection is cut, whatever the peer does.
    cut_at: Option<Duration>,
    is_cut: bool,
}

impl Closing {
    /// The peer has said Close.
    pub(super) fn peer_closes(&mut self, reason: &CloseReason) {
        self.peer_closed = true;
        self.first.get_or_insert_with(|| reason.clone());
    }

    /// Whether the owner is to get this event. Behind an abrupt end it gets no other than the end itself.
    pub(super) fn counts(&self, event: &Event) -> bool {
        !self.is_abrupt || matches!(event, Event::Closed { .. })
    }
}

impl Session {
    /// Orderly end: everything queued leaves first, then Close. The first reason counts.
    pub fn close(&mut self, reason: CloseReason) {
        self.closing.first.get_or_insert_with(|| reason.clone());
        self.closing.own.get_or_insert(reason);
    }

    /// Ends at once: what is queued and not yet sealed is dropped, Close goes out next, and what the peer still says
    /// does not count: [`poll_event`](Self::poll_event) gives only [`Event::Closed`] from now on.
    pub fn abort(&mut self, reason: CloseReason) {
        self.closing.is_abrupt = true;
        self.closing.first.get_or_insert_with(|| reason.clone());
        self.drop_queued(reason);
    }

    /// The connection has no more bytes.
    ///
    /// # Errors
    /// [`SessionError::Truncated`] unless the peer's Close had come: bytes may be missing, and nobody has vouched for
    /// the end.
    pub fn received_end(&mut self) -> Result<(), SessionError> {
        self.closing.is_read = true;
        if let Some(failure) = &self.closing.failure {
            return Err(failure.clone());
        }
        if self.closing.peer_closed {
            return Ok(());
        }
        let records = self.opener.counter();
        Err(self.fail(SessionError::Truncated { records }))
    }

    /// No message will come or go any more: both sides have closed, or the session failed.
    pub fn is_closed(&self) -> bool {
        self.closing.failure.is_some() || (self.closing.close_sealed && self.closing.peer_closed)
    }

    /// This side's Close and everything before it has been written.
    pub fn is_drained(&self) -> bool {
        self.closing.close_sealed && self.outbox.bytes() == 0
    }

    /// Whether the end is near: one of the sides has asked for it, the session failed, or the peer has no more bytes
    /// for this side.
    pub fn is_ending(&self) -> bool {
        self.closing.first.is_some() || self.closing.failure.is_some() || self.closing.is_read
    }

    /// Whether this side has ended the session at once, so that nothing of the peer counts any more.
    pub fn is_aborted(&self) -> bool {
        self.closing.is_abrupt
    }

    /// Whether the connection has no more bytes for this side.
    pub fn is_read_to_end(&self) -> bool {
        self.closing.is_read
    }

    /// How the session is over, once it is: both sides have said Close and this side's has been written, the session
    /// failed, or the peer's time is up. Ask when bytes were written or read, and after
    /// [`handle_timeout`](Self::handle_timeout). The connection is not needed any more then.
    pub fn ended(&self) -> Option<Ended> {
        match &self.closing.failure {
            // Somebody had said Close. That the peer then went without an answer changes nothing.
            Some(SessionError::Truncated { .. }) if self.closing.first.is_some() => {
                Some(self.in_order())
            }
            Some(error) => Some(Ended::Session(error.clone())),
            None => self.is_over().then(|| self.in_order()),
        }
    }

    /// How the session is over when what carries its bytes fails. A connection that breaks behind a Close changes
    /// nothing.
    pub fn ended_by(&self, error: io::Error) -> Ended {
        let ended = self.ended();
        ended.unwrap_or_else(|| match &self.closing.first {
            Some(reason) => Ended::Closed(reason.clone()),
            None => Ended::Transport(error),
        })
    }

    fn in_order(&self) -> Ended {
        let reason = self.closing.first.clone();
        Ended::Closed(reason.unwrap_or(CloseReason::Finished))
    }

    /// As [`ended`](Self::ended), without saying how.
    pub(super) fn is_over(&self) -> bool {
        let closing = &self.closing;
        closing.failure.is_some() || closing.is_cut || (self.is_closed() && self.is_drained())
    }

    /// When the connection is cut; nothing while that isn't known.
    pub(super) fn cut_at(&self) -> Option<Duration> {
        self.closing.cut_at
    }

    /// Time passes. Says whether the peer's time is up.
    pub(super) fn cut_when_due(&mut self, now: Duration) -> bool {
        self.closing.is_cut |= self.closing.cut_at.is_some_and(|at| now >= at);
        self.closing.is_cut
    }

    /// The peer gets no more time.
    pub(super) fn cut(&mut self) {
        self.closing.is_cut = true;
    }

    /// Begins the peer's time, when only the peer is waited for: it has said Close and may read no more; our Close is
    /// written and may stay without an answer; or the end is abrupt.
    pub(super) fn begin_closing_time(&mut self, now: Duration) {
        if self.closing.is_abrupt || self.is_closed() || self.is_drained() {
            self.closing.cut_at.get_or_insert(now + CLOSING_TIME);
        }
    }

    /// Begins the peer's time anew if it has said something since there were so many events: it is still at work.
    pub(super) fn renew_closing_time(&mut self, events_before: usize, now: Duration) {
        let closing = &mut self.closing;
        if closing.cut_at.is_none() || closing.is_abrupt {
            return;
        }
        let mut news = self.events.iter().skip(events_before);
        if news.any(|event| !matches!(event, Event::Closed { .. })) {
            closing.cut_at = Some(now + CLOSING_TIME);
        }
    }

    pub(super) fn check_open(&self) -> Result<(), SessionError> {
        if let Some(failure) = &self.closing.failure {
            return Err(failure.clone());
        }
        match &self.closing.own {
            Some(reason) => Err(SessionError::Closed(reason.clone())),
            None if self.closing.peer_closed => Err(SessionError::Closed(CloseReason::Finished)),
            None => Ok(()),
        }
    }

    /// Ends the session over a fault of the peer or the wire; the peer is told by a Close.
    pub(super) fn fail(&mut self, error: SessionError) -> SessionError {
        let reason = match &error {
            SessionError::PeerDead(_) => CloseReason::Silence,
            other => CloseReason::Fault(other.to_string().into()),
        };
        self.drop_queued(reason);
        self.closing.failure = Some(error.clone());
        error
    }

    /// Has Close go out next, in the place of all that is queued.
    fn drop_queued(&mut self, reason: CloseReason) {
        if self.closing.close_sealed {
            return;
        }
        self.closing.own = Some(reason);
        self.ready.clear();
        self.control.clear();
        self.backlog = SendBacklog::default();
        for end in self.links.iter_mut() {
            end.drop_queue();
            end.is_ready = false;
        }
    }

    /// The reason to seal Close now, when nothing else is to leave before.
    pub(super) fn final_reason(&self) -> Option<CloseReason> {
        if self.closing.peer_closed {
            // The peer grants no more credit, so what still waits for some can never go.
            return Some(self.closing.own.clone().unwrap_or(CloseReason::Finished));
        }
        self.closing
            .own
            .clone()
            .filter(|_| self.backlog.messages == 0)
    }
}
