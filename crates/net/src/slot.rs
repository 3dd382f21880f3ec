//! The worker's side: frames come in, the interpreter's thread takes items and gives results.
//!
//! The I/O thread goes on while an item runs: it reads, answers heartbeats and recalls, and sends partial results of a
//! frame whose next item takes its time. While nothing runs, the interpreter's thread reads by itself, so that it is the
//! one that a frame wakes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_link::{CloseReason, Endpoint, Event, LinkId, SessionError};
use exoskel_node::SlotMachine;
use exoskel_node::slot::SlotAnswer;
pub use exoskel_task::slot_queue::{Item, ItemKey, Work};
use exoskel_task::slot_queue::{Outgoing, PENDING_TIME_MAX, SerialPassage, TooLarge};
use tokio::sync::Notify;

use crate::connection::{Connection, Ended};
use crate::payload::RecordWriter;

/// A slot's end of a session.
#[derive(Debug)]
pub struct SlotNode {
    connection: Arc<Connection>,
    machine: Mutex<SlotMachine>,
    /// The link by which everything goes to the manager.
    results: LinkId,
    passage: SerialPassage,
    epoch: Instant,
    /// Tells the interpreter's thread that the session is over.
    ended: Condvar,
    /// Tells the I/O thread that frames have come, so that it watches over partial results.
    active: Notify,
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
            ended: Condvar::new(),
            active: Notify::new(),
        };
        Ok(Arc::new(node))
    }

    /// Says that the settings have been taken in and what work may need is there, but for these modules.
    ///
    /// # Errors
    /// When the session is over.
    pub fn ready(&self, lacks: Vec<String>) -> Result<(), SessionError> {
        let ready = self.lock().ready(lacks);
        self.send_all([ready])
    }

    /// Serves the session on the I/O thread until it ends.
    pub async fn run(self: &Arc<Self>) -> Ended {
        let watch = self.watch_partial_results();
        let serve = self.connection.run(|event| self.handle(event));
        let ended = tokio::select! {
            ended = serve => ended,
            () = watch => unreachable!("the watch has no end"),
        };
        self.lock().end(ended.to_string());
        self.ended.notify_all();
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
                .ended
                .wait_timeout(machine, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        machine.begin_work(&self.passage, self.now())
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
        let outgoing = self.lock().finish(key, self.now(), write);
        let outgoing = outgoing.map_err(|TooLarge { got, maximum }| SessionError::Limit {
            limit: "message_bytes_max",
            got,
            maximum,
        })?;
        self.send_all(outgoing)
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

    /// Sends what a task printed (0 standard output, 1 standard error, 2 log); a flood is cut.
    ///
    /// # Errors
    /// When the session is over.
    pub fn output(&self, stream: u8, text: &[u8]) -> Result<(), SessionError> {
        let waiting = self.connection.with(|session| session.queued_bytes());
        let pieces = self.lock().output(stream, text, waiting);
        self.send_all(pieces)
    }

    /// Closes the session in order.
    pub fn close(&self) {
        self.connection.close(CloseReason::ShuttingDown);
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
        drop(machine);
        if is_long {
            self.active.notify_one();
        }
        match answers {
            // The session's end is noticed by its own task.
            Ok(answers) => drop(self.send_all(answers)),
            Err(reason) => self.connection.close(reason),
        }
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
                if idle {
                    break;
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, SlotMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
