//! The worker's side: frames come in, the interpreter's thread takes items and gives results.
//!
//! The I/O thread goes on while an item runs: it reads, answers heartbeats and recalls, and sends partial results of a
//! frame whose next item takes its time. While nothing runs, the interpreter's thread reads by itself, so that it is the
//! one that a frame wakes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_link::{
    CloseReason, Endpoint, Event, LinkId, Message, MessageKind, SessionError, TrafficClass,
};
use exoskel_task::Desk;
pub use exoskel_task::desk::{Item, ItemKey, Work};
use exoskel_task::desk::{Outgoing, PENDING_TIME_MAX, Passage, TooLarge};
use tokio::sync::Notify;

use crate::connection::{Connection, Ended};
use crate::message::{
    CODE_ENDPOINT, CODE_HANDLERS, RESULT_ENDPOINT, TASK_ENDPOINT, TASK_HANDLERS, ToManager, ToSlot,
};
use crate::payload::RecordWriter;

/// What a task prints faster than the manager takes it is cut at this many bytes waiting.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;

/// Text in one message at most: a manager expects little besides results.
const OUTPUT_PIECE_BYTES_MAX: usize = 256 * 1024;

/// A slot's end of a session.
#[derive(Debug)]
pub struct SlotNode {
    connection: Arc<Connection>,
    results: LinkId,
    state: Mutex<State>,
    passage: Passage,
    epoch: Instant,
    /// Tells the interpreter's thread that the session is over.
    ended: Condvar,
    /// Tells the I/O thread that frames have come, so that it watches over partial results.
    active: Notify,
}

#[derive(Debug)]
struct State {
    desk: Desk,
    /// The link on which code comes.
    code_link: Option<LinkId>,
    output_cut: bool,
}

impl SlotNode {
    /// The endpoints a slot offers to its manager.
    #[must_use]
    pub fn endpoints() -> [Endpoint; 2] {
        [
            Endpoint::new(TASK_ENDPOINT, TASK_HANDLERS),
            Endpoint::new(CODE_ENDPOINT, CODE_HANDLERS),
        ]
    }

    /// Opens the way back to the manager. Messages have at most `message_bytes_max` bytes. The slot gets work when it
    /// has said that it is [ready](Self::ready).
    ///
    /// # Errors
    /// When the session is over already.
    pub fn start(
        connection: Arc<Connection>,
        message_bytes_max: u64,
    ) -> Result<Arc<Self>, SessionError> {
        let results =
            connection.with(|session| session.open_link(RESULT_ENDPOINT, TrafficClass::Data))?;
        let node = Self {
            connection,
            results,
            state: Mutex::new(State {
                desk: Desk::new(message_bytes_max),
                code_link: None,
                output_cut: false,
            }),
            passage: Passage::default(),
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
        self.post(&ToManager::Ready { lacks }, Vec::new())
    }

    /// Serves the session on the I/O thread until it ends.
    pub async fn run(self: &Arc<Self>) -> Ended {
        let watch = self.watch_partial_results();
        let serve = self.connection.run(|event| self.handle(event));
        let ended = tokio::select! {
            ended = serve => ended,
            () = watch => unreachable!("the watch has no end"),
        };
        self.lock().desk.end(ended.to_string());
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
        let mut state = self.lock();
        state.desk.begin(&self.passage, self.now())
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
        let mut state = self.lock();
        if !goes_on && !state.desk.is_ended() {
            state = self
                .ended
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.desk.begin(&self.passage, self.now())
    }

    /// Says that the running item, of a frame that keeps its lease, has passed the serial function and goes on.
    ///
    /// # Errors
    /// When the session is over.
    pub fn pass(&self, key: ItemKey) -> Result<(), SessionError> {
        if self.passage.pass() {
            let frame = key.frame;
            return self.post(&ToManager::Released { frame, busy: 0 }, Vec::new());
        }
        Ok(())
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
        let mut state = self.lock();
        let outgoing = state.desk.finish(key, self.now(), write);
        drop(state);
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
        let mut state = self.lock();
        let released = state.desk.release(frame, self.now());
        drop(state);
        self.send_all([released])
    }

    /// Sends what a task printed (0 standard output, 1 standard error, 2 log); a flood is cut.
    ///
    /// # Errors
    /// When the session is over.
    pub fn output(&self, stream: u8, text: &[u8]) -> Result<(), SessionError> {
        let queued = self.connection.with(|session| session.queued_bytes());
        let mut state = self.lock();
        if queued > OUTPUT_BYTES_MAX && text.len() as u64 + queued > OUTPUT_BYTES_MAX {
            let told = std::mem::replace(&mut state.output_cut, true);
            drop(state);
            if told {
                return Ok(());
            }
            let text = Bytes::from_static(b"[output cut: more than 1 MiB waits to be sent]\n");
            return self.post(&ToManager::Output { stream, text }, Vec::new());
        }
        state.output_cut = false;
        drop(state);
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece_of(rest));
            rest = behind;
            let text = Bytes::copy_from_slice(piece);
            self.post(&ToManager::Output { stream, text }, Vec::new())?;
        }
        Ok(())
    }

    /// Closes the session in order.
    pub fn close(&self) {
        self.connection.close(CloseReason::ShuttingDown);
    }

    fn send_all(&self, outgoing: impl IntoIterator<Item = Outgoing>) -> Result<(), SessionError> {
        for Outgoing {
            message,
            bulk,
            can_wait,
        } in outgoing
        {
            if can_wait {
                self.connection.leave(self.results, posted(&message, bulk));
            } else {
                self.post(&message, bulk)?;
            }
        }
        Ok(())
    }

    fn post(&self, message: &ToManager, bulk: Vec<Bytes>) -> Result<(), SessionError> {
        self.connection.send(self.results, posted(message, bulk))
    }

    fn handle(&self, event: Event) {
        let (link, handler, kind, head, bulk, size) = match event {
            Event::Message {
                link,
                handler,
                kind,
                head,
                bulk,
                size,
            } => (link, handler, kind, head, bulk, size),
            Event::LinkOpened { link, endpoint, .. } => {
                if endpoint == CODE_ENDPOINT {
                    self.lock().code_link = Some(link);
                }
                return;
            }
            _ => return,
        };
        if kind != MessageKind::Post {
            // Nothing here answers: whoever asks would wait for ever.
            let text = format!("got {kind:?}, expected a post");
            return self.connection.close(CloseReason::Fault(text.into()));
        }
        let is_code = self.lock().code_link == Some(link);
        let message = if is_code {
            ToSlot::decode_code(handler, head)
        } else {
            ToSlot::decode_task(handler, head)
        };
        // Work waits here as long as the manager's window allows; the link's credit need not count it a second time.
        self.connection.consumed(link, size);
        match message {
            Ok(message) => self.take_in(message, bulk),
            Err(error) => self
                .connection
                .close(CloseReason::Fault(error.to_string().into())),
        }
    }

    fn take_in(&self, message: ToSlot, bulk: Vec<Vec<u8>>) {
        let is_long = matches!(&message, ToSlot::Execute(execute) if execute.count > 1);
        let answers = self.lock().desk.take_in(message, bulk, &self.passage);
        if is_long {
            self.active.notify_one();
        }
        // The session's end is noticed by its own task.
        let _ = self.send_all(answers);
    }

    /// While work is there, sends what has been finished for a while: the next item may take long.
    async fn watch_partial_results(&self) {
        loop {
            self.active.notified().await;
            loop {
                tokio::time::sleep(PENDING_TIME_MAX).await;
                let mut state = self.lock();
                let results = state.desk.flush(self.now());
                let idle = state.desk.is_idle();
                drop(state);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn posted(message: &ToManager, bulk: Vec<Bytes>) -> Message {
    let (handler, head) = message.encode();
    Message {
        handler,
        kind: MessageKind::Post,
        head,
        bulk,
    }
}

/// How much of a text goes into one message: no character is cut in two.
fn piece_of(text: &[u8]) -> usize {
    if text.len() <= OUTPUT_PIECE_BYTES_MAX {
        return text.len();
    }
    let is_inside = |position: &usize| text[*position] & 0xc0 == 0x80;
    let mut cuts = (OUTPUT_PIECE_BYTES_MAX - 3..=OUTPUT_PIECE_BYTES_MAX).rev();
    cuts.find(|position| !is_inside(position))
        .unwrap_or(OUTPUT_PIECE_BYTES_MAX)
}
