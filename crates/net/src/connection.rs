//! One connection: a session of `link` on a transport, driven.
//!
//! Any thread may send: it seals under the session's lock and writes at once when the transport takes it; what it
//! doesn't take is left to the connection's own task, which also reads, keeps time and notices the end. A thread that
//! has nothing to do but wait for the peer reads by itself meanwhile.

mod lending;
mod progress;
mod turn;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

pub use exoskel_link::Ended;
use exoskel_link::{CLOSING_TIME, CloseReason, Event, LinkId, Message, Session, SessionError};
use tokio::sync::Notify;

use self::lending::Lending;
pub(crate) use self::lending::{LENDING_TIME, wait_at_all};
pub use self::turn::PeerTurn;
pub(crate) use self::turn::TURN_TIME;
use self::turn::{TakenTurn, TurnWait};
use crate::beside::Served;
use crate::epoll_set::{EpollSet, Telling};
use crate::transport::Transport;
use crate::wake_up::WakeUp;

/// Reads in a row before the task looks at other connections again.
const READS_IN_A_ROW: usize = 16;

/// Spent buffers that wait for the task, at most.
const SPENT_MAX: usize = 64;

/// Slices handed to the kernel in one call (far below Linux's limit of 1,024; more brings nothing).
const SLICES_MAX: usize = 64;

/// Between two looks at the session's time at least.
const TICK_MIN: Duration = Duration::from_millis(5);

/// How long a peer may take to read why its session failed.
const LAST_WORD_TIME: Duration = CLOSING_TIME.checked_div(4).expect("four isn't zero");

/// A session on its transport.
pub struct Connection {
    transport: Transport,
    /// Tells the task that there is something to read.
    readiness: EpollSet,
    session: Mutex<Session>,
    /// Whose turn it is to read. Held while what was read is handed out, so that events keep their order.
    reader: Mutex<Reading>,
    /// Whether some of what was read is still to be handed out.
    is_behind: AtomicBool,
    /// Whether the task looks from time to time if somebody reads.
    is_lent: AtomicBool,
    /// What other threads left for the task, so that they needn't wait for a read or a seal to end.
    mailbox: Mutex<Mailbox>,
    /// Nothing of what the peer says counts any more, not even what has been read: [`Session::is_aborted`], for a reader that hands out
    /// events without the session's lock.
    is_aborted: AtomicBool,
    /// Wakes the connection's task: something is left to write, or the session is to be closed.
    wake: Notify,
    /// [`Session::queued_bytes`] after the last write, unless all that has credit was written.
    unwritten: AtomicU64,
    /// [`Session::queued_memory`] and [`Session::queued_count`] after the last write.
    waiting: AtomicU64,
    waiting_count: AtomicU64,
    /// How often [`Connection::progress`] has found nothing.
    looks: AtomicU32,
    epoch: Instant,
}

/// Who reads, and what has been read and not handed out yet.
struct Reading {
    by: Reader,
    left: VecDeque<Event>,
    lending: Lending,
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The connection's task.
    Task,
    /// A thread that is in [`Connection::read_here`].
    Thread,
    /// Whoever calls [`Connection::progress`]; nobody is told of anything.
    Poller,
    /// A thread that has read comes back soon, or the task takes over: see `lending`.
    Nobody,
}

/// Whether the transport may have more to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Perhaps,
    No,
}

#[derive(Default)]
struct Mailbox {
    /// To be sealed and written.
    messages: Vec<(LinkId, Message)>,
    /// What has been dealt with: credit for the peer.
    consumed: Vec<Consumed>,
    /// Memory that received messages no longer need.
    spent: Vec<Vec<u8>>,
    /// What went wrong with the transport when a thread read.
    fault: Option<io::Error>,
}

/// A message that has been dealt with.
struct Consumed {
    link: LinkId,
    size: u64,
    is_told_at_once: bool,
}

impl Consumed {
    /// True when a record is to be written.
    fn tell(self, session: &mut Session) -> bool {
        let is_told = session.consumed(self.link, self.size);
        is_told || (self.is_told_at_once && session.acknowledge(self.link))
    }
}

/// How a connection stands when it has written what there was to write.
struct Written {
    /// Why the transport takes no more now, if it doesn't.
    refused: Option<io::Error>,
    fault: Option<io::Error>,
    ended: Option<Ended>,
    /// The peer has ended its direction.
    is_read: bool,
    next_timeout: Option<Duration>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Puts a session on a transport, whose `readiness` it is. `epoch` is the start of the session's time.
    pub(crate) fn new(
        transport: Transport,
        readiness: EpollSet,
        session: Session,
        epoch: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            transport,
            readiness,
            reader: Mutex::new(Reading {
                by: Reader::Task,
                left: VecDeque::new(),
                lending: Lending::default(),
            }),
            is_behind: AtomicBool::new(false),
            is_lent: AtomicBool::new(false),
            session: Mutex::new(session),
            mailbox: Mutex::default(),
            is_aborted: AtomicBool::new(false),
            wake: Notify::new(),
            unwritten: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            waiting_count: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            epoch,
        })
    }

    /// What carries it.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
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

    /// Writes what is queued, as far as the transport takes it now.
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

    /// Says that a message of `size` bytes has been dealt with: its credit goes back to the peer, when that is worth a record. Never waits
    /// for a read or a seal to end.
    pub fn consumed(&self, link: LinkId, size: u64) {
        self.dealt_with(Consumed {
            link,
            size,
            is_told_at_once: false,
        });
    }

    /// As [`consumed`](Self::consumed), and the peer hears of it at once.
    pub fn acknowledge(&self, link: LinkId, size: u64) {
        self.dealt_with(Consumed {
            link,
            size,
            is_told_at_once: true,
        });
    }

    fn dealt_with(&self, consumed: Consumed) {
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.mailbox().consumed.push(consumed);
                // Whoever has the session may have emptied the mailbox already.
                return self.wake.notify_one();
            }
        };
        if consumed.tell(&mut session) && self.write(&mut session).is_some() {
            self.wake.notify_one();
        }
    }

    /// The memory of messages that wait until the peer takes them or gives credit for them, in bytes, as of the last write.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many messages wait until the peer takes them or gives credit for them, as of the last write.
    #[must_use]
    pub fn waiting_messages(&self) -> u64 {
        self.waiting_count.load(Ordering::Relaxed)
    }

    /// The bytes of messages that wait until the transport takes them, as of the last write.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
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
        session.close(reason);
        let _ = self.write(&mut session);
        self.wake.notify_one();
    }

    /// Ends the session at once: what is queued is dropped, and so is what the peer still says.
    pub fn abort(&self, reason: CloseReason) {
        let mut session = self.lock();
        session.abort(reason);
        self.is_aborted.store(true, Ordering::Relaxed);
        let _ = self.write(&mut session);
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
        handle: impl FnMut(Event),
    ) -> bool {
        self.read_until(patience, None, is_wanted, handle)
    }

    /// As [`Connection::read_here`]. With a `wake_up` it is for a thread that others may have to wake, and reads only if nobody else
    /// does just now.
    pub(crate) fn read_until(
        &self,
        patience: Duration,
        wake_up: Option<&WakeUp>,
        is_wanted: impl FnOnce() -> bool,
        mut handle: impl FnMut(Event),
    ) -> bool {
        if self.with(|session| session.is_ending()) {
            return false;
        }
        if wake_up.is_none() {
            self.reader().by = Reader::Thread;
        } else {
            // Whoever may have something else to do doesn't wait for its turn to read.
            match self.reader.try_lock() {
                Ok(mut reader) => reader.by = Reader::Thread,
                Err(_) => return false,
            }
        }
        let read = self
            .transport
            .tell_task(&self.readiness, Telling::Nothing)
            .and_then(|()| {
                if is_wanted() && !self.is_behind() {
                    self.transport.wait_here(patience, wake_up)?;
                }
                Ok(())
            });
        let mut reader = self.reader();
        let read = read.and_then(|()| self.read(&mut reader.left, &mut handle));
        reader.by = Reader::Task;
        let is_read = matches!(read, Ok(More::No));
        let telling = if is_read {
            Telling::Bytes
        } else {
            Telling::Now
        };
        let told = self.transport.tell_task(&self.readiness, telling);
        drop(reader);
        if let Err(fault) = read.and(told) {
            self.mailbox().fault.get_or_insert(fault);
            self.wake.notify_one();
            return false;
        }
        self.answer_what_was_read()
    }

    /// What was read may want an answer, credit or a heartbeat. Says whether the peer can still send something.
    fn answer_what_was_read(&self) -> bool {
        let mut session = self.lock();
        let is_written =
            self.empty_mailbox(&mut session).is_ok() && self.write(&mut session).is_none();
        let is_ending = session.is_ending();
        drop(session);
        if !is_written || is_ending || self.is_behind() {
            self.wake.notify_one();
        }
        !is_ending
    }

    /// Serves the connection until it ends; `handle` gets every event of the session.
    pub async fn run(&self, handle: impl FnMut(Event)) -> Ended {
        self.run_in_turn(&PeerTurn::default(), handle).await
    }

    /// As [`Connection::run`], with events that are handed out when it is the peer's turn: all connections that share it get as much of the
    /// thread's time as one, what they leave behind at their end included.
    pub async fn run_in_turn(&self, turn: &PeerTurn, mut handle: impl FnMut(Event)) -> Ended {
        let _served = Served::begin();
        let ended = self.serve(turn, &mut handle).await;
        // What has been read by now, here or by another thread, is handed out before anybody hears of the end.
        while self.is_left() {
            let taken = turn.take().await;
            let begin = Instant::now();
            self.hand_out(&mut self.reader().left, &mut handle);
            turn.give_back(taken, begin.elapsed()).await;
        }
        // Nobody reads or writes any more: who goes on sending must get an error, not fill a queue.
        let _ = self.lock().received_end();
        self.transport.shutdown_read();
        ended
    }

    async fn serve(&self, turn: &PeerTurn, handle: &mut impl FnMut(Event)) -> Ended {
        if let Err(error) = self.read_by_task() {
            return self.broken(error);
        }
        let (mut is_blocked, mut is_read) = (false, false);
        // There is something to read or to hand out, and another connection of the peer has its turn.
        let mut wait: Option<TurnWait> = None;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(self.epoch.into()));
        // Whether somebody comes back who has borrowed the reading.
        let mut lent = std::pin::pin!(tokio::time::sleep_until(self.epoch.into()));
        let mut is_lent = false;
        loop {
            if self.is_behind() {
                wait.get_or_insert_with(|| turn.take());
            }
            tokio::select! {
                taken = its_turn(&mut wait), if wait.is_some() => {
                    wait = None;
                    let begin = Instant::now();
                    let read = self.read_as_task(handle);
                    turn.give_back(taken, begin.elapsed()).await;
                    if let Err(error) = read {
                        return self.broken(error);
                    }
                }
                // Behind the peer's end a transport would always be readable.
                told = self.readiness.readable(), if !is_read && wait.is_none() => {
                    let mut told = match told {
                        Ok(told) => told,
                        Err(error) => return self.broken(error),
                    };
                    if let Some(taken) = turn.try_take() {
                        let begin = Instant::now();
                        let read = self.read_as_task(handle);
                        if matches!(read, Ok(More::No)) {
                            told.clear_ready();
                        }
                        drop(told);
                        turn.give_back(taken, begin.elapsed()).await;
                        if let Err(error) = read {
                            return self.broken(error);
                        }
                    } else {
                        wait = Some(turn.take());
                    }
                }
                writable = self.transport.writable(&self.readiness), if is_blocked || is_read => {
                    if let Err(error) = writable {
                        return self.broken(error);
                    }
                }
                () = self.wake.notified() => {}
                () = &mut timer => self.keep_time(),
                () = &mut lent, if is_lent => match self.take_reading_over(false) {
                    Ok(next) => {
                        is_lent = next.is_some();
                        let next = Instant::now() + next.unwrap_or_default();
                        lent.as_mut().reset(next.into());
                    }
                    Err(error) => return self.broken(error),
                },
            }
            if !is_lent && self.is_lent.load(Ordering::SeqCst) {
                is_lent = true;
                lent.as_mut().reset((Instant::now() + LENDING_TIME).into());
            }
            let written = match self.empty_and_write() {
                Ok(written) => written,
                Err(error) => return error.into(),
            };
            if let Some(fault) = written.fault {
                return self.broken(fault);
            }
            is_blocked = match written.refused {
                None => false,
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => true,
                Some(error) => {
                    // The peer may have said why it went before it did.
                    self.read_rest(turn, wait, handle).await;
                    return self.broken(error);
                }
            };
            if is_blocked && is_lent {
                // Who reads is told that there is room.
                match self.take_reading_over(true) {
                    Ok(next) => is_lent = next.is_some(),
                    Err(error) => return self.broken(error),
                }
            }
            if let Some(ended) = written.ended {
                // A turn that comes while the peer reads is for others.
                drop(wait);
                return self.part(ended, written.is_read).await;
            }
            is_read = written.is_read;
            if let Some(next) = written.next_timeout {
                let next = (self.epoch + next).max(Instant::now() + TICK_MIN);
                if timer.is_elapsed() || timer.deadline() > next.into() {
                    timer.as_mut().reset(next.into());
                }
            }
        }
    }

    /// Reads what came before the transport took no more of ours. It has arrived: whoever sends it again on another connection, which ends
    /// like this one, may never get further. Who waits for the turn already does so on: it would come to nobody else before.
    async fn read_rest(
        &self,
        turn: &PeerTurn,
        mut wait: Option<TurnWait>,
        handle: &mut impl FnMut(Event),
    ) {
        let start = Instant::now();
        // Some transports let a peer send that reads nothing.
        while start.elapsed() < CLOSING_TIME {
            let taken = wait.take().unwrap_or_else(|| turn.take()).await;
            let begin = Instant::now();
            // Whoever reads here otherwise may be waiting for more.
            let read = self.read(&mut self.reader().left, handle);
            turn.give_back(taken, begin.elapsed()).await;
            if !matches!(read, Ok(More::Perhaps)) {
                break;
            }
        }
    }

    fn empty_and_write(&self) -> Result<Written, SessionError> {
        let mut session = self.lock();
        let emptied = self.empty_mailbox(&mut session);
        let refused = self.write(&mut session);
        let ended = session.ended();
        if ended.is_none() {
            emptied?;
        }
        Ok(Written {
            refused,
            fault: self.mailbox().fault.take(),
            ended,
            is_read: session.is_read_to_end(),
            next_timeout: session.next_timeout(),
        })
    }

    fn empty_mailbox(&self, session: &mut Session) -> Result<(), SessionError> {
        let mut mailbox = self.mailbox();
        mailbox
            .spent
            .drain(..)
            .for_each(|buffer| session.recycle(buffer));
        let messages = std::mem::take(&mut mailbox.messages);
        let consumed = std::mem::take(&mut mailbox.consumed);
        drop(mailbox);
        for consumed in consumed {
            // What follows writes the credit, if there is enough.
            consumed.tell(session);
        }
        for (link, message) in messages {
            match session.send(link, message) {
                // The session's end is under way, and nobody would read it.
                Ok(()) | Err(SessionError::Closed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_as_task(&self, handle: &mut impl FnMut(Event)) -> io::Result<More> {
        let mut reader = self.reader();
        match reader.by {
            Reader::Task => self.read(&mut reader.left, handle),
            // Told before the thread took over. It reads, and has the task told of what it leaves.
            Reader::Thread | Reader::Poller | Reader::Nobody => {
                self.hand_out(&mut reader.left, handle);
                Ok(More::No)
            }
        }
    }

    /// Hands out what was left, reads, and hands that out, for one turn. For who holds the lock on `reader`. What is wrong with the bytes,
    /// the session knows.
    fn read(&self, left: &mut VecDeque<Event>, handle: &mut impl FnMut(Event)) -> io::Result<More> {
        if !self.hand_out(left, handle) {
            return Ok(More::Perhaps);
        }
        for _ in 0..READS_IN_A_ROW {
            let mut session = self.lock();
            let mut slices = session.receive_buffers().map(IoSliceMut::new);
            let count = match self.transport.read_vectored(&mut slices) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(More::No),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let result = if count == 0 {
                session.received_end()
            } else {
                session.received(count, self.now())
            };
            left.extend(events_of(&mut session));
            drop(session);
            let is_all = self.hand_out(left, handle);
            if count == 0 || result.is_err() {
                return Ok(More::No);
            }
            if !is_all {
                break;
            }
        }
        Ok(More::Perhaps)
    }

    fn keep_time(&self) {
        let mut session = self.lock();
        // What it finds is known to `ended`.
        let _ = session.handle_timeout(self.now());
        // Our own end, when the identity behind the session has expired.
        self.is_aborted
            .fetch_or(session.is_aborted(), Ordering::Relaxed);
        drop(session);
        let mut reader = self.reader();
        reader.left.extend(self.with(events_of));
        self.is_behind
            .store(!reader.left.is_empty(), Ordering::Relaxed);
    }

    /// Hands out what was read, for one turn. Says whether that was all.
    fn hand_out(&self, left: &mut VecDeque<Event>, handle: &mut impl FnMut(Event)) -> bool {
        let begin = Instant::now();
        while let Some(event) = left.pop_front() {
            let is_end = matches!(event, Event::Closed { .. });
            if is_end || !self.is_aborted.load(Ordering::Relaxed) {
                handle(event);
            }
            if !left.is_empty() && begin.elapsed() >= TURN_TIME {
                break;
            }
        }
        self.is_behind.store(!left.is_empty(), Ordering::Relaxed);
        left.is_empty()
    }

    fn is_left(&self) -> bool {
        !self.reader().left.is_empty()
    }

    fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// The end by a transport that failed.
    fn broken(&self, error: io::Error) -> Ended {
        self.lock().ended_by(error)
    }

    /// Leaves the transport. A peer whose session failed is told why, and gets a moment to read it. What a peer that is taken for dead
    /// didn't take it shall never get: the kernel would go on sending it when the network is whole again, with a protection of long ago.
    async fn part(&self, ended: Ended, is_read: bool) -> Ended {
        match &ended {
            Ended::Session(SessionError::PeerDead(_)) => {
                self.transport.socket().reset_at_close();
                self.transport.shutdown_write();
            }
            Ended::Session(_) if !is_read => {
                let readiness = Some(&self.readiness);
                self.transport
                    .linger(readiness, LAST_WORD_TIME, usize::MAX)
                    .await;
            }
            Ended::Session(_) | Ended::Closed(_) | Ended::Transport(_) => {
                self.transport.shutdown_write();
            }
        }
        ended
    }

    fn reader(&self) -> MutexGuard<'_, Reading> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until nothing is left (none) or the transport refuses (its error).
    fn write(&self, session: &mut Session) -> Option<io::Error> {
        self.write_by(session, None, |slices| {
            self.transport.try_write_vectored(slices)
        })
    }

    fn write_by(
        &self,
        session: &mut Session,
        now: Option<Duration>,
        write: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<io::Error> {
        // Once: what is written in one go happens at one time.
        let now = now.unwrap_or_else(|| self.now());
        loop {
            if let Err(error) = session.prepare(now) {
                return Some(io::Error::other(error));
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(session.outgoing()) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            if count == 0 {
                self.unwritten.store(0, Ordering::Relaxed);
                // What is left waits for credit.
                self.count_waiting(session);
                return None;
            }
            match write(&slices[..count]) {
                Ok(written) => session.sent(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let unwritten = session.queued_bytes();
                    self.unwritten.store(unwritten, Ordering::Relaxed);
                    self.count_waiting(session);
                    return Some(error);
                }
            }
        }
    }

    fn count_waiting(&self, session: &Session) {
        let memory = session.queued_memory();
        self.waiting.store(memory, Ordering::Relaxed);
        let count = session.queued_count();
        self.waiting_count.store(count, Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends when it is the peer's turn.
async fn its_turn(wait: &mut Option<TurnWait>) -> TakenTurn {
    match wait {
        Some(wait) => wait.await,
        None => std::future::pending().await,
    }
}

fn events_of(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}
