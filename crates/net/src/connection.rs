//! One connection: a session of `link` on a socket.
//!
//! Any thread may send: it seals under the session's lock and writes at once when the socket takes it; what the socket
//! doesn't take is left to the connection's own task, which also reads, keeps time and notices the end. A thread that
//! has nothing to do but wait for the peer reads by itself meanwhile.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_link::{CloseReason, Event, LinkId, Message, Session, SessionError};
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::socket::Socket;
use crate::watch::{Watch, wait_here};

/// Reads in a row before the task looks at other connections again.
const READS_IN_A_ROW: usize = 16;

/// Spent buffers that wait for the task, at most.
const SPENT_MAX: usize = 64;

/// Slices handed to the kernel in one call (far below Linux's limit of 1,024; more brings nothing).
const SLICES_MAX: usize = 64;

/// How long the other side may take to answer our Close before the connection is cut.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

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
    watch: Watch,
    /// Whose turn it is to read. Held until what was read has been handed out, so that events keep their order.
    reader: Mutex<Reader>,
    /// What other threads left for the task, so that they needn't wait for a read or a seal to end.
    mailbox: Mutex<Mailbox>,
    /// How the end that is under way came about.
    farewell: Mutex<Farewell>,
    /// Wakes the connection's task: something is left to write, or the session is to be closed.
    wake: Notify,
    epoch: Instant,
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The connection's task.
    Task,
    /// A thread that is in [`Connection::read_here`].
    Thread,
}

/// Whether the socket may have more to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Perhaps,
    No,
}

/// The end of a session, once one of its sides wants it.
#[derive(Default)]
struct Farewell {
    /// The first reason that was given, by us or by the peer.
    reason: Option<CloseReason>,
    /// Nothing of what the peer says counts any more.
    is_abrupt: bool,
    /// When the connection is cut, whatever the peer does.
    until: Option<Instant>,
    /// The peer has ended its direction.
    is_read: bool,
    /// What went wrong when a thread read, for the task to deal with.
    fault: Option<Ended>,
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
    ///
    /// # Errors
    /// When the process is out of descriptors, or no runtime is running.
    pub fn new(socket: Socket, session: Session, epoch: Instant) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            watch: Watch::new(&socket)?,
            reader: Mutex::new(Reader::Task),
            socket,
            session: Mutex::new(session),
            mailbox: Mutex::default(),
            farewell: Mutex::default(),
            wake: Notify::new(),
            epoch,
        }))
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
        // All at once and only once: what a user's thread allocates between large results keeps the heap from shrinking when they are dropped.
        if mailbox.spent.capacity() == 0 {
            mailbox.spent.reserve_exact(SPENT_MAX);
        }
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

    /// Says how much the peer may send now: see [`Session::limit_reception`].
    pub fn limit_reception(&self, bytes: u64) {
        self.lock().limit_reception(bytes);
    }

    /// Closes in order: what is queued leaves first.
    pub fn close(&self, reason: CloseReason) {
        let mut session = self.lock();
        // What is wrong with a message that was left ends the session as well: nobody waits for it any more.
        let _ = self.empty_mailbox(&mut session);
        session.close(reason.clone());
        self.say_farewell(&mut session, reason, false);
    }

    /// Ends the session at once: what is queued is dropped, and so is what the peer still says.
    pub fn abort(&self, reason: CloseReason) {
        let mut session = self.lock();
        session.abort(reason.clone());
        self.say_farewell(&mut session, reason, true);
    }

    fn say_farewell(&self, session: &mut Session, reason: CloseReason, is_abrupt: bool) {
        let mut farewell = self.farewell.lock().unwrap_or_else(PoisonError::into_inner);
        farewell.reason.get_or_insert(reason);
        if is_abrupt {
            farewell.is_abrupt = true;
            farewell
                .until
                .get_or_insert_with(|| Instant::now() + FAREWELL_TIME);
        }
        drop(farewell);
        let _ = self.write(session);
        self.wake.notify_one();
    }

    /// Reads on the calling thread, for which the connection's task steps aside: what the peer sends wakes this thread
    /// and no other. Returns when something was read, after `patience`, or when a signal came. `is_wanted` is asked
    /// when the task has handed out all it has read. Says whether the peer can still send something: if not, the task
    /// sees to the end, and there is nothing to wait for here.
    pub fn read_here(
        &self,
        patience: Duration,
        is_wanted: impl FnOnce() -> bool,
        mut handle: impl FnMut(Event),
    ) -> bool {
        if self.is_ending() {
            return false;
        }
        *self.reader() = Reader::Thread;
        let read = self.watch.tell_task(&self.socket, false).and_then(|()| {
            if is_wanted() {
                wait_here(&self.socket, patience)?;
            }
            Ok(())
        });
        let mut reader = self.reader();
        let read = read
            .map_err(Ended::from)
            .and_then(|()| self.read(&mut handle).map(drop));
        *reader = Reader::Task;
        let told = self.watch.tell_task(&self.socket, true);
        drop(reader);
        if let Err(ended) = read.and_then(|()| Ok(told?)) {
            self.farewell().fault.get_or_insert(ended);
        }
        // What was read may want an answer, credit or a heartbeat.
        let is_written = matches!(self.empty_and_write(), Ok(None));
        let is_ending = self.is_ending();
        if !is_written || is_ending {
            self.wake.notify_one();
        }
        !is_ending
    }

    fn is_ending(&self) -> bool {
        let farewell = self.farewell();
        farewell.is_read || farewell.fault.is_some() || farewell.reason.is_some()
    }

    /// Serves the connection until it ends; `handle` gets every event of the session.
    pub async fn run(&self, handle: impl FnMut(Event)) -> Ended {
        let ended = self.serve(handle).await;
        // Nobody reads or writes any more: who goes on sending must get an error, not fill a queue.
        let _ = self.lock().received_end();
        self.socket.shutdown_read();
        ended
    }

    async fn serve(&self, mut handle: impl FnMut(Event)) -> Ended {
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
            // Behind the peer's end the socket would always be readable.
            let is_read = self.farewell().is_read;
            tokio::select! {
                told = self.watch.readable(), if !is_read => {
                    let mut told = match told {
                        Ok(told) => told,
                        Err(error) => return error.into(),
                    };
                    match self.read_as_task(&mut handle) {
                        Ok(More::No) => told.clear_ready(),
                        Ok(More::Perhaps) => {}
                        Err(ended) => return self.fail(ended).await,
                    }
                }
                writable = self.socket.ready(Interest::WRITABLE), if blocked || is_read => {
                    if let Err(error) = writable {
                        return error.into();
                    }
                }
                () = self.wake.notified() => {}
                _ = clock.tick() => {
                    if let Err(error) = self.keep_time(&mut handle) {
                        return self.fail(error.into()).await;
                    }
                }
            }
            let fault = self.farewell().fault.take();
            if let Some(ended) = fault {
                return self.fail(ended).await;
            }
            let written = match self.empty_and_write() {
                Ok(written) => written,
                Err(error) => return error.into(),
            };
            match written {
                None => blocked = false,
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => blocked = true,
                // The peer may have said why it went before it did.
                Some(error) => {
                    let read = self.read_as_task(&mut handle);
                    return match (read, self.farewell().reason.take()) {
                        (Err(Ended::Session(error)), _) => error.into(),
                        (_, Some(reason)) => Ended::Closed(reason),
                        _ => error.into(),
                    };
                }
            }
            if let Some(ended) = self.ended() {
                return ended;
            }
        }
    }

    fn empty_and_write(&self) -> Result<Option<io::Error>, SessionError> {
        let mut session = self.lock();
        self.empty_mailbox(&mut session)?;
        Ok(self.write(&mut session))
    }

    fn empty_mailbox(&self, session: &mut Session) -> Result<(), SessionError> {
        let mut mailbox = self.mailbox();
        mailbox
            .spent
            .drain(..)
            .for_each(|buffer| session.recycle(buffer));
        let messages = std::mem::take(&mut mailbox.messages);
        drop(mailbox);
        messages
            .into_iter()
            .try_for_each(|(link, message)| session.send(link, message))
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The orderly end, when both sides have said Close or the peer has had its time to.
    fn ended(&self) -> Option<Ended> {
        let session = self.lock();
        let mut farewell = self.farewell();
        let mut is_over = session.is_closed() && session.is_drained();
        // A peer that has said Close may read no more, and once ours is sealed its silence counts no more either.
        if !is_over && (session.is_drained() || session.is_closed() || farewell.until.is_some()) {
            let until = *farewell
                .until
                .get_or_insert_with(|| Instant::now() + FAREWELL_TIME);
            is_over = Instant::now() >= until;
        }
        if !is_over {
            return None;
        }
        self.socket.shutdown_write();
        Some(Ended::Closed(
            farewell.reason.take().unwrap_or(CloseReason::Finished),
        ))
    }

    fn read_as_task(&self, handle: &mut impl FnMut(Event)) -> Result<More, Ended> {
        let reader = self.reader();
        match *reader {
            Reader::Task => self.read(handle),
            // Told before the thread took over. It reads, and has the task told of what it leaves.
            Reader::Thread => Ok(More::No),
        }
    }

    /// Reads and hands out. For who holds the lock on `reader`.
    fn read(&self, handle: &mut impl FnMut(Event)) -> Result<More, Ended> {
        for _ in 0..READS_IN_A_ROW {
            let mut session = self.lock();
            let mut slices = session.receive_buffers().map(IoSliceMut::new);
            let count = match self.socket.read_vectored(&mut slices) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(More::No),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let result = if count == 0 {
                self.farewell().is_read = true;
                session.received_end()
            } else {
                session.received(count, self.now())
            };
            let events = events_of(&mut session);
            drop(session);
            self.hand_out(events, handle, false);
            result?;
            if count == 0 {
                return Ok(More::No);
            }
        }
        Ok(More::Perhaps)
    }

    fn keep_time(&self, handle: &mut impl FnMut(Event)) -> Result<(), SessionError> {
        let mut session = self.lock();
        let result = session.handle_timeout(self.now());
        let events = events_of(&mut session);
        drop(session);
        // Our own end, when the identity behind the session has expired.
        self.hand_out(events, handle, true);
        result
    }

    fn hand_out(&self, events: Vec<Event>, handle: &mut impl FnMut(Event), is_our_end: bool) {
        for event in events {
            if let Event::Closed { reason } = &event {
                let mut farewell = self.farewell();
                farewell.reason.get_or_insert_with(|| reason.clone());
                if is_our_end {
                    farewell.is_abrupt = true;
                    farewell
                        .until
                        .get_or_insert_with(|| Instant::now() + FAREWELL_TIME);
                }
            } else {
                let mut farewell = self.farewell();
                if farewell.is_abrupt {
                    continue;
                }
                // It still has something to say: its time begins anew.
                farewell.until = None;
            }
            handle(event);
        }
    }

    /// The end by a fault. The peer is told why, and gets a moment to read it: unread bytes of its own would turn the
    /// Close into a reset.
    async fn fail(&self, ended: Ended) -> Ended {
        let farewell = self.farewell().reason.clone();
        if let (Ended::Session(SessionError::Truncated { .. }) | Ended::Socket(_), Some(reason)) =
            (&ended, farewell)
        {
            // We had said Close; that the peer went without an answer changes nothing.
            return Ended::Closed(reason);
        }
        if matches!(ended, Ended::Socket(_)) {
            return ended;
        }
        let _ = self.write(&mut self.lock());
        self.socket.shutdown_write();
        if !self.farewell().is_read && !matches!(ended, Ended::Session(SessionError::PeerDead(_))) {
            let drain = async {
                let mut sink = [0; 4096];
                while self.socket.ready(Interest::READABLE).await.is_ok() {
                    match self.socket.try_read(&mut sink) {
                        Ok(1..) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        _ => return,
                    }
                }
            };
            let _ = tokio::time::timeout(FAREWELL_TIME / 4, drain).await;
        }
        ended
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn farewell(&self) -> MutexGuard<'_, Farewell> {
        self.farewell.lock().unwrap_or_else(PoisonError::into_inner)
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

fn events_of(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}
