//! The worker's side: frames come in, the interpreter's thread takes items and gives results.
//!
//! The I/O thread goes on while an item runs: it reads, answers heartbeats and recalls, and sends partial results of a
//! frame whose next item takes its time. While nothing runs, the interpreter's thread reads by itself, so that it is the
//! one that a frame wakes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::{CloseReason, Endpoint, Event, LinkId, SessionError};
use exoskel_node::SlotMachine;
use exoskel_node::slot::SlotAnswer;
pub use exoskel_task::slot_queue::TimeoutAnswer;
pub use exoskel_task::slot_queue::{Item, ItemKey, List, StateBefore, Work};
use exoskel_task::slot_queue::{Outgoing, Overdue, PENDING_TIME_MAX, SerialPassage, TooLarge};
use tokio::sync::Notify;

use crate::connection::{Connection, Ended};
use crate::hearing_worker::{HeardFile, LOOKING_TIME};
use crate::message::Digest;
use crate::payload::RecordWriter;

/// Interrupts the interpreter's thread, which then asks whether its item [is overdue](SlotNode::overdue_after).
pub type Interrupt = fn();

/// A slot's end of a session.
#[derive(Debug)]
pub struct SlotNode {
    connection: Arc<Connection>,
    machine: Mutex<SlotMachine>,
    /// The link by which everything goes to the manager.
    results: LinkId,
    passage: SerialPassage,
    epoch: Instant,
    /// Tells threads that wait that the session is over, or that a piece of shared contents has come.
    changed: Condvar,
    /// Tells the I/O thread that frames have come, so that it watches over partial results.
    active: Notify,
    /// Tells the I/O thread that there may be something whose time is limited.
    limited: Notify,
    interrupt: OnceLock<Interrupt>,
    /// Whom its worker hears, if it hears anybody.
    heard: OnceLock<HeardFile>,
    /// The slot is to leave: whoever has nothing more to say closes the session.
    is_leaving: AtomicBool,
    /// The interpreter's thread is about to send what it got from the machine.
    is_answering: AtomicBool,
}

impl SlotNode {
    /// The endpoints a slot offers to its manager.
    #[must_use]
    pub fn endpoints() -> [Endpoint; 2] {
        SlotMachine::endpoints()
    }

    /// Opens the ways to and from the manager. Messages have at most `message_bytes_max` bytes. The slot gets work when
    /// it has said that it is [ready](Self::ready).
    ///
    /// # Errors
    /// When the session is over already.
    pub fn start(
        connection: Arc<Connection>,
        message_bytes_max: u64,
    ) -> Result<Arc<Self>, SessionError> {
        let machine = connection.with(|session| SlotMachine::begin(session, message_bytes_max))?;
        let node = Self {
            connection,
            results: machine.results(),
            machine: Mutex::new(machine),
            passage: SerialPassage::default(),
            epoch: Instant::now(),
            changed: Condvar::new(),
            active: Notify::new(),
            limited: Notify::new(),
            interrupt: OnceLock::new(),
            heard: OnceLock::new(),
            is_leaving: AtomicBool::new(false),
            is_answering: AtomicBool::new(false),
        };
        Ok(Arc::new(node))
    }

    /// Says that the settings have been taken in and what work may need is there, but for the modules in `lacks`; before that,
    /// which packages `differ` in their version from the manager's, one line for each.
    ///
    /// # Errors
    /// When the session is over.
    pub fn ready(&self, lacks: Vec<String>, differ: Vec<String>) -> Result<(), SessionError> {
        let machine = self.lock();
        let differs = (!differ.is_empty()).then(|| machine.differs(differ));
        let ready = machine.ready(lacks);
        drop(machine);
        self.send_all(differs.into_iter().chain([ready]))
    }

    /// Says where it is written whom the worker hears. A manager that wants to know is told.
    pub fn hear(&self, heard: HeardFile) {
        let _ = self.heard.set(heard);
    }

    /// Serves the session on the I/O thread until it ends.
    pub async fn run(self: &Arc<Self>) -> Ended {
        let watch = self.watch_partial_results();
        let serve = self.connection.run(|event| self.handle(event));
        let ended = tokio::select! {
            ended = serve => ended,
            () = watch => unreachable!("the watch has no end"),
            () = self.watch_running_item() => unreachable!("the watch has no end"),
            () = self.tell_heard() => unreachable!("the watch has no end"),
        };
        self.lock().end(ended.to_string());
        self.changed.notify_all();
        ended
    }

    /// Where the manager is, for messages.
    #[must_use]
    pub fn peer(&self) -> String {
        self.connection.transport().peer_text()
    }

    /// What to do next, without waiting.
    #[must_use]
    pub fn next(&self) -> Work {
        self.lock().begin_work(&self.passage, self.now())
    }

    /// Waits for something to do, for at most `patience`.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> Work {
        let mut work = Work::Nothing;
        let is_wanted = || {
            work = self.next();
            matches!(work, Work::Nothing)
        };
        let goes_on = self
            .connection
            .read_here(patience, is_wanted, |event| self.handle(event));
        if !matches!(work, Work::Nothing) {
            return work;
        }
        let mut machine = self.lock();
        if !goes_on && !machine.is_ended() {
            machine = self
                .changed
                .wait_timeout(machine, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        machine.begin_work(&self.passage, self.now())
    }

    /// Says that the initializer has run, or raised what is told here.
    ///
    /// # Errors
    /// When the session is over.
    pub fn initialized(&self, error: Bytes) -> Result<(), SessionError> {
        let initialized = self.lock().initialized(error);
        self.send_all([initialized])
    }

    /// Asks for a piece of shared contents, of `bytes` at most, which [`wait_piece`](Self::wait_piece) gives.
    ///
    /// # Errors
    /// When the session is over.
    pub fn fetch(&self, digest: Digest, offset: u64, bytes: u32) -> Result<(), SessionError> {
        let fetch = self.lock().fetch(digest, offset, bytes);
        self.send_all([fetch])
    }

    /// Waits for a piece that was asked for, for at most `patience`. It is empty where the contents aren't at the manager
    /// any more, or the session is over.
    #[must_use]
    pub fn wait_piece(&self, digest: Digest, offset: u64, patience: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + patience;
        let mut machine = self.lock();
        loop {
            if let Some(piece) = machine.take_piece(digest, offset) {
                return Some(piece);
            }
            if machine.is_ended() {
                return Some(Vec::new());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(machine, left);
            machine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says that the running item, of a frame that keeps its lease, has passed the serial function and goes on.
    ///
    /// # Errors
    /// When the session is over.
    pub fn pass(&self, key: ItemKey) -> Result<(), SessionError> {
        self.send_all(self.passage.pass(key.frame))
    }

    /// Takes the outcome of an item: `write` appends its one record.
    ///
    /// # Errors
    /// When the session is over, or the result is over its size limit ([`SessionError`] says which); nothing was sent
    /// then, and an exception can be given instead.
    pub fn finish(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, now| machine.finish(key, now, write))
    }

    /// Takes the outcome of an item, as [`finish`](Self::finish) does, and gives what to do next. Nothing may mean that something had to be sent
    /// first: [`next`](Self::next) knows.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_and_next(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Work, SessionError> {
        let mut work = Work::Nothing;
        self.answer(|machine, now| {
            let (outgoing, begun) = machine.finish_and_begin(key, &self.passage, now, write)?;
            work = begun;
            Ok(outgoing)
        })?;
        Ok(work)
    }

    /// Takes the result of an item that goes on at another segment than the next one, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_at(
        &self,
        key: ItemKey,
        reached: u16,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, now| machine.finish_at(key, reached, now, write))
    }

    /// Takes what an item was made into, any number of records. With `has_state`, the first of them is no part.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_expanded(
        &self,
        key: ItemKey,
        has_state: bool,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, now| machine.finish_expanded(key, has_state, now, write))
    }

    /// Takes the outcome of an item of a segment that carries a state: `write` appends its one record. Says whether it is time to
    /// [tell](Self::finish_carried) of it.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn carry(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<bool, SessionError> {
        let now = self.now();
        self.lock().carry(key, now, write).map_err(over_limit)
    }

    /// Tells of items that were [carried](Self::carry), the last of which is `key`'s: `write` appends the one record of the state behind it.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish). The results wait on if it is over a limit.
    pub fn finish_carried(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, _| machine.finish_carried(key, write))
    }

    /// How many items were [carried](Self::carry) and not told of.
    #[must_use]
    pub fn carried(&self) -> u32 {
        self.lock().carried()
    }

    /// Forgets their outcomes: they are answered for in another way.
    pub fn forget_carried(&self) {
        self.lock().forget_carried();
    }

    /// Gives back those items, and what has not been started of their frame.
    ///
    /// # Errors
    /// When the session is over.
    pub fn give_back_carried(&self) -> Result<(), SessionError> {
        self.answer(|machine, _| Ok(machine.give_back_carried()))
    }

    /// Gives back the running item, whose state before it nobody will have.
    ///
    /// # Errors
    /// When the session is over.
    pub fn give_back_running(&self, key: ItemKey) -> Result<(), SessionError> {
        self.answer(|machine, now| Ok(machine.give_back_running(key, now).into_iter().collect()))
    }

    /// Gives back what has not been started of a frame.
    ///
    /// # Errors
    /// When the session is over.
    pub fn give_back_rest(&self, frame: u64) -> Result<(), SessionError> {
        self.answer(|machine, _| Ok(machine.give_back_rest(frame).into_iter().collect()))
    }

    /// An item has been folded into those before it. Says whether it is time to tell of that.
    #[must_use]
    pub fn absorb(&self, key: ItemKey) -> bool {
        self.lock().absorb(key, self.now())
    }

    /// Tells of what was folded, `key`'s item first: `write` appends its one record.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_folded(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, _| machine.finish_folded(key, write))
    }

    /// Takes an exception that the program wants the item to be run again for, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish).
    pub fn finish_retriable(
        &self,
        key: ItemKey,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(), SessionError> {
        self.answer(|machine, now| machine.finish_retriable(key, now, write))
    }

    fn answer(
        &self,
        take: impl FnOnce(&mut SlotMachine, Duration) -> Result<Vec<Outgoing>, TooLarge>,
    ) -> Result<(), SessionError> {
        let now = self.now();
        let mut machine = self.lock();
        let outgoing = take(&mut machine, now).map_err(over_limit)?;
        let has_answer = !outgoing.is_empty();
        if has_answer {
            // While the machine is locked: whoever finds that it has nothing left to say finds this as well.
            self.is_answering.store(true, Ordering::SeqCst);
        }
        drop(machine);
        if !has_answer {
            self.close_if_left();
            return Ok(());
        }
        let sent = self.send_all(outgoing);
        self.is_answering.store(false, Ordering::SeqCst);
        self.close_if_left();
        sent
    }

    /// Says how an item of this stream is answered for that runs for too long and does not end when it is told to.
    pub fn set_timeout_answer(&self, stream: u32, answer: TimeoutAnswer) {
        self.lock().set_timeout_answer(stream, answer);
        self.limited.notify_one();
    }

    /// Says how the interpreter's thread is interrupted. Until then nothing ends what runs but the end of the process.
    pub fn set_interrupt(&self, interrupt: Interrupt) {
        let _ = self.interrupt.set(interrupt);
    }

    /// Loads what the running item needs, which is not its own time.
    pub fn loading<T>(&self, load: impl FnOnce() -> T) -> T {
        self.lock().pause_clock();
        let loaded = load();
        self.lock().start_clock(self.now());
        loaded
    }

    /// How long the running item could run, if that is over and it is to end; zero if it is to end since nobody needs it any more.
    #[must_use]
    pub fn overdue_after(&self) -> Option<Duration> {
        self.lock().overdue_after()
    }

    /// Takes memory back that a received item no longer needs.
    pub fn recycle(&self, spent: Vec<u8>) {
        self.connection.recycle(spent);
    }

    /// Says that all items of a frame have passed the serial function.
    ///
    /// # Errors
    /// When the session is over.
    pub fn release(&self, frame: u64) -> Result<(), SessionError> {
        let released = self.lock().release(frame, self.now());
        self.send_all([released])
    }

    /// How many of this frame's items that have passed its serial function are asked back, if that isn't answered: the last ones,
    /// none of which has begun.
    #[must_use]
    pub fn asked_back(&self, frame: u64) -> Option<u32> {
        self.lock().asked_back(frame)
    }

    /// Gives back the last items of this frame halfway, as tokens for the segment that they have `reached`: one record each, in the
    /// order of items.
    ///
    /// # Errors
    /// When the session is over.
    pub fn give_back_halfway(
        &self,
        frame: u64,
        reached: u16,
        records: Vec<RecordWriter>,
    ) -> Result<(), SessionError> {
        self.answer(|machine, now| Ok(machine.give_back_halfway(frame, reached, records, now)))
    }

    /// Sends what a task printed (0 standard output, 1 standard error, 2 log); a flood is cut.
    ///
    /// # Errors
    /// When the session is over.
    pub fn output(&self, stream: u8, text: &[u8]) -> Result<(), SessionError> {
        let waiting = self.connection.with(|session| session.queued_bytes());
        let pieces = self.lock().output(stream, text, waiting);
        self.send_all(pieces)
    }

    /// Gives back what has not been started, and closes the session when the rest is done.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        let outgoing = self.lock().leave(&self.passage);
        // The session's end is noticed by its own task.
        drop(self.send_all(outgoing));
        self.close_if_left();
    }

    /// Closes the session in order.
    pub fn close(&self) {
        self.connection.close(CloseReason::ShuttingDown);
    }

    /// A slot that leaves says Close behind its last answer.
    fn close_if_left(&self) {
        if !self.is_leaving.load(Ordering::SeqCst) {
            return;
        }
        let has_left = self.lock().has_left();
        if has_left && !self.is_answering.load(Ordering::SeqCst) {
            self.close();
        }
    }

    fn send_all(&self, outgoing: impl IntoIterator<Item = Outgoing>) -> Result<(), SessionError> {
        for answer in outgoing {
            let SlotAnswer { message, can_wait } = answer.into();
            if can_wait {
                self.connection.leave(self.results, message);
            } else {
                self.connection.send(self.results, message)?;
            }
        }
        Ok(())
    }

    fn handle(&self, event: Event) {
        if let Event::Message { link, size, .. } = &event {
            // Work waits here as long as the manager's window allows; the link's credit need not count it a second time.
            self.connection.consumed(*link, *size);
        }
        let mut machine = self.lock();
        let answers = machine.event(event, &self.passage);
        let is_long = machine.ends_with_long_frame();
        let is_limited = machine.has_time_limits() || machine.has_deadline();
        let awaits_pieces = machine.awaits_pieces();
        drop(machine);
        if is_limited {
            self.limited.notify_one();
        }
        if awaits_pieces {
            self.changed.notify_all();
        }
        if is_long {
            self.active.notify_one();
        }
        match answers {
            // The session's end is noticed by its own task.
            Ok(answers) => drop(self.send_all(answers)),
            Err(reason) => self.connection.close(reason),
        }
        self.close_if_left();
    }

    /// While work is there, sends what has been finished for a while: the next item may take long.
    async fn watch_partial_results(&self) {
        loop {
            self.active.notified().await;
            loop {
                tokio::time::sleep(PENDING_TIME_MAX).await;
                let mut machine = self.lock();
                let results = machine.flush(self.now());
                let idle = machine.is_idle();
                drop(machine);
                let _ = self.send_all(results);
                self.close_if_left();
                if idle {
                    break;
                }
            }
        }
    }

    /// While something runs that may run for some time only, looks whether that is over.
    async fn watch_running_item(&self) {
        loop {
            self.limited.notified().await;
            while let Some(at) = self.look_at() {
                tokio::time::sleep_until((self.epoch + at).into()).await;
                let overdue = self.lock().look(self.now());
                match overdue {
                    None => {}
                    Some(Overdue::Tell) => {
                        if let Some(interrupt) = self.interrupt.get() {
                            interrupt();
                        }
                    }
                    Some(Overdue::Leave(answers)) => {
                        let _ = self.send_all(answers);
                        self.connection.close(CloseReason::ShuttingDown);
                    }
                }
            }
        }
    }

    /// Tells the manager whom the worker hears, if it wants to know, whenever that changes.
    async fn tell_heard(&self) {
        let Some(file) = self.heard.get() else {
            return std::future::pending().await;
        };
        let mut told = Vec::new();
        loop {
            tokio::time::sleep(LOOKING_TIME).await;
            if !self.lock().takes_hearsay() {
                continue;
            }
            let heard = file.read().filter(|heard| *heard != told);
            if let Some(heard) = heard {
                told.clone_from(&heard);
                let telling = self.lock().heard(heard);
                let _ = self.send_all([telling]);
            }
        }
    }

    fn look_at(&self) -> Option<Duration> {
        self.lock().look_at(self.now())
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, SlotMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over_limit(TooLarge { got, maximum }: TooLarge) -> SessionError {
    SessionError::Limit {
        limit: "message_bytes_max",
        got,
        maximum,
    }
}
