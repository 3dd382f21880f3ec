//! One connection: a session of `link` on a socket.
//!
//! Any thread may send: it seals under the session's lock and writes at once when the socket takes it; what the socket
//! doesn't take is left to the connection's own task, which also reads, keeps time and notices the end.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_link::{CloseReason, Event, LinkId, Message, Session, SessionError};
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::socket::Socket;

/// Reads in a row before the task looks at other connections again.
const READS_IN_A_ROW: usize = 16;

/// Spent buffers that wait for the task, at most.
const SPENT_MAX: usize = 64;

/// Slices handed to the kernel in one call (far below Linux's limit of 1,024; more brings nothing).
const SLICES_MAX: usize = 64;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// Closed in order by one of the ends.
    #[error("closed: {0:?}")]
    Closed(CloseReason),
    /// The session's rules were broken, or the peer fell silent.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The socket failed.
    #[error("the connection broke: {0}")]
    Socket(#[from] io::Error),
}

/// A session on its socket.
pub struct Connection {
    socket: Socket,
    session: Mutex<Session>,
    /// What other threads left for the task, so that they needn't wait for a read or a seal to end.
    mailbox: Mutex<Mailbox>,
    /// Wakes the connection's task: something is left to write, or the session is to be closed.
    wake: Notify,
    epoch: Instant,
}

#[derive(Default)]
struct Mailbox {
    /// To be sealed and written.
    messages: Vec<(LinkId, Message)>,
    /// Memory that received messages no longer need.
    spent: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Puts a session on a socket. `epoch` is the start of the session's time.
    #[must_use]
    pub fn new(socket: Socket, session: Session, epoch: Instant) -> Arc<Self> {
        Arc::new(Self {
            socket,
            session: Mutex::new(session),
            mailbox: Mutex::default(),
            wake: Notify::new(),
            epoch,
        })
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Runs `action` on the session, for opening and offering.
    pub fn with<T>(&self, action: impl FnOnce(&mut Session) -> T) -> T {
        action(&mut self.lock())
    }

    /// Queues a message; [`Connection::flush`] lets it go.
    ///
    /// # Errors
    /// When the session is over, or the message is over a limit.
    pub fn queue(&self, link: LinkId, message: Message) -> Result<(), SessionError> {
        self.lock().send(link, message)
    }

    /// Writes what is queued, as far as the socket takes it now.
    pub fn flush(&self) {
        if self.write(&mut self.lock()).is_some() {
            self.wake.notify_one();
        }
    }

    /// Queues a message and writes.
    ///
    /// # Errors
    /// As [`Connection::queue`].
    pub fn send(&self, link: LinkId, message: Message) -> Result<(), SessionError> {
        let mut session = self.lock();
        self.empty_mailbox(&mut session)?;
        session.send(link, message)?;
        if self.write(&mut session).is_some() {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Leaves a message for the connection's task to seal and write, for a caller that has something better to do.
    /// What is wrong with it ends the session.
    pub fn leave(&self, link: LinkId, message: Message) {
        self.mailbox().messages.push((link, message));
        self.wake.notify_one();
    }

    /// Takes memory back that a received message no longer needs.
    pub fn recycle(&self, spent: Vec<u8>) {
        let mut mailbox = self.mailbox();
        if mailbox.spent.len() < SPENT_MAX {
            mailbox.spent.push(spent);
        }
    }

    /// Says that a message of `size` bytes has been dealt with: its credit goes back to the peer.
    pub fn consumed(&self, link: LinkId, size: u64) {
        let mut session = self.lock();
        if session.consumed(link, size) && self.write(&mut session).is_some() {
            self.wake.notify_one();
        }
    }

    /// Closes in order: what is queued leaves first.
    pub fn close(&self, reason: CloseReason) {
        let mut session = self.lock();
        session.close(reason);
        let _ = self.write(&mut session);
        self.wake.notify_one();
    }

    /// Ends the session at once: what is queued is dropped.
    pub fn abort(&self, reason: CloseReason) {
        let mut session = self.lock();
        session.abort(reason);
        let _ = self.write(&mut session);
        self.wake.notify_one();
    }

    /// Serves the connection until it ends; `handle` gets every event of the session.
    pub async fn run(&self, mut handle: impl FnMut(Event)) -> Ended {
        let mut blocked = false;
        let tick =
            self.with(|session| session.next_timeout())
                .map_or(Duration::from_secs(1), |next| {
                    next.saturating_sub(self.now())
                        .clamp(Duration::from_millis(5), Duration::from_secs(1))
                });
        let mut clock = tokio::time::interval(tick);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let interest = if blocked {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            tokio::select! {
                ready = self.socket.ready(interest) => match ready {
                    Ok(ready) if ready.is_readable() || ready.is_read_closed() => {
                        if let Err(ended) = self.read(&mut handle) {
                            return ended;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => return error.into(),
                },
                () = self.wake.notified() => {}
                _ = clock.tick() => {
                    let result = self.lock().handle_timeout(self.now());
                    if let Err(error) = result {
                        return error.into();
                    }
                }
            }
            let mut session = self.lock();
            if let Err(error) = self.empty_mailbox(&mut session) {
                return error.into();
            }
            let written = self.write(&mut session);
            drop(session);
            match written {
                None => blocked = false,
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => blocked = true,
                Some(error) => return error.into(),
            }
            if let Some(ended) = self.ended() {
                return ended;
            }
        }
    }

    fn empty_mailbox(&self, session: &mut Session) -> Result<(), SessionError> {
        let Mailbox { messages, spent } = std::mem::take(&mut *self.mailbox());
        spent.into_iter().for_each(|buffer| session.recycle(buffer));
        messages
            .into_iter()
            .try_for_each(|(link, message)| session.send(link, message))
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether we closed and everything has left.
    fn ended(&self) -> Option<Ended> {
        let session = self.lock();
        if session.is_closed() && session.is_drained() {
            drop(session);
            self.socket.shutdown_write();
            return Some(Ended::Closed(CloseReason::Finished));
        }
        None
    }

    fn read(&self, handle: &mut impl FnMut(Event)) -> Result<(), Ended> {
        for _ in 0..READS_IN_A_ROW {
            let mut session = self.lock();
            let mut slices = session.receive_buffers().map(IoSliceMut::new);
            let count = match self.socket.try_read_vectored(&mut slices) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let result = if count == 0 {
                session.received_end()
            } else {
                session.received(count, self.now())
            };
            let mut events = Vec::new();
            while let Some(event) = session.poll_event() {
                events.push(event);
            }
            drop(session);
            let mut closed = None;
            for event in events {
                if let Event::Closed { reason } = &event {
                    closed = Some(reason.clone());
                }
                handle(event);
            }
            if let Err(error) = result {
                // The Close that is queued tells the peer why.
                let _ = self.write(&mut self.lock());
                self.socket.shutdown_write();
                return Err(error.into());
            }
            if let Some(reason) = closed {
                return Err(Ended::Closed(reason));
            }
            if count == 0 {
                return Err(Ended::Closed(CloseReason::Finished));
            }
        }
        Ok(())
    }

    /// Writes until nothing is left (none) or the socket refuses (its error).
    fn write(&self, session: &mut Session) -> Option<io::Error> {
        loop {
            if let Err(error) = session.prepare(self.now()) {
                return Some(io::Error::other(error));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(session.outgoing()) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            if count == 0 {
                return None;
            }
            match self.socket.try_write_vectored(&slices[..count]) {
                Ok(written) => session.sent(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(error),
            }
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
