//! The worker's side: frames come in, the interpreter's thread takes items and gives results.
//!
//! The I/O thread goes on while an item runs: it reads, answers heartbeats and recalls, and sends partial results of a
//! frame whose next item takes its time. While nothing runs, the interpreter's thread reads by itself, so that it is the
//! one that a frame wakes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::Lease;
use exoskel_link::{
    CloseReason, Endpoint, Event, LinkId, Message, MessageKind, SessionError, TrafficClass,
};
use tokio::sync::Notify;

use crate::connection::{Connection, Ended};
use crate::message::{
    CODE_ENDPOINT, CODE_HANDLERS, Execute, RESULT_ENDPOINT, TASK_ENDPOINT, TASK_HANDLERS,
    ToManager, ToSlot,
};
use crate::payload::{Record, RecordReader, RecordWriter};

/// Results that wait to be sent together, in bytes at most.
const PENDING_BYTES_MAX: u64 = 64 * 1024;

/// What a message has besides its results, amply.
const ENVELOPE_BYTES: u64 = 64 * 1024;

/// Results of this size are left to the I/O thread when there is more to run.
const LEAVE_BYTES_MIN: u64 = 16 * 1024;

/// How long a finished result waits for others at most.
const PENDING_TIME_MAX: Duration = Duration::from_millis(2);

/// What a task prints faster than the manager takes it is cut at this many bytes waiting.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;

/// Which attempt at which item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemKey {
    /// Its stream.
    pub stream: u32,
    /// The frame it belongs to.
    pub frame: u64,
    /// Its index.
    pub index: u64,
    /// How large its result may be and still leave at once.
    pub grant: u64,
}

/// One item to run.
#[derive(Debug)]
pub struct Item {
    /// Which one.
    pub key: ItemKey,
    /// The segment.
    pub segment: u16,
    /// Whether it must be decoded with restrictions.
    pub restricted: bool,
    /// How to go about the segment's serial function: with [`Lease::PassedOn`] that is all to be done now, and
    /// [`Work::Rest`] says when to go on.
    pub lease: Lease,
    /// The item itself.
    pub record: Record,
}

/// What the interpreter's thread does next.
#[derive(Debug)]
pub enum Work {
    /// Code and settings, in the order in which they came; always before the work that needs them.
    Code(ToSlot),
    /// One item.
    Item(Item),
    /// The serial function has seen all items of the frame: call [`SlotNode::release`], then run the rest.
    Rest {
        /// The frame.
        frame: u64,
    },
    /// Nothing for now.
    Nothing,
    /// The session is over: leave.
    Ended(String),
}

/// A slot's end of a session.
#[derive(Debug)]
pub struct SlotNode {
    connection: Arc<Connection>,
    results: LinkId,
    result_bytes_max: u64,
    state: Mutex<State>,
    /// How far the running item of a frame that keeps its lease is, as one of the three below.
    passage: AtomicU8,
    /// Tells the interpreter's thread that the session is over.
    ended: Condvar,
    /// Tells the I/O thread that frames have come, so that it watches over partial results.
    active: Notify,
}

/// It has the serial function before it or runs it.
const IN_SERIAL: u8 = 0;
/// The same, and somebody waits for it to have passed.
const AWAITED: u8 = 1;
/// It has passed the serial function.
const BEYOND: u8 = 2;

#[derive(Debug, Default)]
struct State {
    code: VecDeque<ToSlot>,
    jobs: VecDeque<Job>,
    /// The streams whose programs are known.
    programs: HashSet<u32>,
    pending: Pending,
    /// Large results that wait for a grant, and their streams.
    held: HashMap<(u64, u64), (u32, Pending)>,
    /// When the running item was started.
    started: Option<Instant>,
    /// The frame of the running item, and whether that keeps a lease.
    running: Option<(u64, bool)>,
    /// The frame whose items have passed the serial function, and how many of them have no result yet.
    rest: Option<(u64, u64)>,
    /// Where a record is written before it is known whether it may go.
    scratch: RecordWriter,
    /// The link on which code comes.
    code_link: Option<LinkId>,
    output_cut: bool,
    ended: Option<String>,
}

#[derive(Debug)]
struct Job {
    execute: Execute,
    reader: RecordReader,
    next: u64,
    end: u64,
}

#[derive(Debug, Default)]
struct Pending {
    frame: u64,
    first: u64,
    busy: u64,
    since: Option<Instant>,
    writer: RecordWriter,
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
            result_bytes_max: message_bytes_max.saturating_sub(ENVELOPE_BYTES),
            state: Mutex::new(State::default()),
            passage: AtomicU8::new(IN_SERIAL),
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
        let mut state = self.lock();
        state.ended = Some(ended.to_string());
        drop(state);
        self.ended.notify_all();
        ended
    }

    /// Where the manager is, for messages.
    #[must_use]
    pub fn peer(&self) -> String {
        self.connection.socket().peer_text()
    }

    /// What to do next, without waiting.
    #[must_use]
    pub fn next(&self) -> Work {
        self.begin(&mut self.lock())
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
        if !goes_on && state.ended.is_none() {
            state = self
                .ended
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        self.begin(&mut state)
    }

    /// Takes what to do next; from now on it runs.
    fn begin(&self, state: &mut State) -> Work {
        let work = state.next();
        if let Work::Item(Item { key, lease, .. }) = &work {
            state.running = Some((key.frame, *lease == Lease::Kept));
            if *lease == Lease::Kept {
                self.passage.store(IN_SERIAL, Ordering::SeqCst);
            }
        }
        work
    }

    /// Says that the running item, of a frame that keeps its lease, has passed the serial function and goes on.
    ///
    /// # Errors
    /// When the session is over.
    pub fn pass(&self, key: ItemKey) -> Result<(), SessionError> {
        if self.passage.swap(BEYOND, Ordering::SeqCst) == AWAITED {
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
        let ItemKey {
            stream,
            frame,
            index,
            grant,
        } = key;
        let mut state = self.lock();
        let now = Instant::now();
        let busy = state
            .started
            .replace(now)
            .map_or(0, |started| nanoseconds(now - started));
        write(&mut state.scratch);
        let bytes = state.scratch.bytes();
        if bytes > self.result_bytes_max {
            let _ = state.scratch.take();
            return Err(SessionError::Limit {
                limit: "message_bytes_max",
                got: bytes,
                maximum: self.result_bytes_max,
            });
        }
        let complete = state.complete(frame);
        let follows = state.pending.frame == frame && state.pending.next() == index;
        if !follows || bytes > grant {
            let earlier = std::mem::replace(&mut state.pending, Pending::new(frame, index));
            self.send_results(earlier)?;
        }
        if bytes > grant {
            let mut large = Pending::new(frame, index);
            large.writer.append(&mut state.scratch);
            // Nobody grants what a forgotten stream has made.
            if state.programs.contains(&stream) {
                state.held.insert((frame, index), (stream, large));
            }
            drop(state);
            return self.post(
                &ToManager::Announced {
                    frame,
                    index,
                    bytes,
                    busy,
                },
                Vec::new(),
            );
        }
        let State {
            pending, scratch, ..
        } = &mut *state;
        pending.writer.append(scratch);
        pending.busy += busy;
        let since = *pending.since.get_or_insert(now);
        if complete
            || pending.writer.bytes() >= PENDING_BYTES_MAX
            || now - since >= PENDING_TIME_MAX / 2
        {
            let pending = state.take_pending();
            let more = !state.jobs.is_empty();
            drop(state);
            if more && pending.writer.bytes() >= LEAVE_BYTES_MIN {
                // The next item need not wait for this one's sealing and writing.
                self.leave_results(pending);
                return Ok(());
            }
            return self.send_results(pending);
        }
        Ok(())
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
        let now = Instant::now();
        let busy = self
            .lock()
            .started
            .replace(now)
            .map_or(0, |started| nanoseconds(now - started));
        self.post(&ToManager::Released { frame, busy }, Vec::new())
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
        self.post(
            &ToManager::Output {
                stream,
                text: Bytes::copy_from_slice(text),
            },
            Vec::new(),
        )
    }

    /// Closes the session in order.
    pub fn close(&self) {
        self.connection.close(CloseReason::ShuttingDown);
    }

    fn leave_results(&self, pending: Pending) {
        if let Some((results, bulk)) = pending.into_message() {
            let (handler, head) = results.encode();
            self.connection.leave(
                self.results,
                Message {
                    handler,
                    kind: MessageKind::Post,
                    head,
                    bulk,
                },
            );
        }
    }

    fn send_results(&self, pending: Pending) -> Result<(), SessionError> {
        match pending.into_message() {
            Some((results, bulk)) => self.post(&results, bulk),
            None => Ok(()),
        }
    }

    fn post(&self, message: &ToManager, bulk: Vec<Bytes>) -> Result<(), SessionError> {
        let (handler, head) = message.encode();
        self.connection.send(
            self.results,
            Message {
                handler,
                kind: MessageKind::Post,
                head,
                bulk,
            },
        )
    }

    fn handle(&self, event: Event) {
        let (link, handler, head, bulk, size) = match event {
            Event::Message {
                link,
                handler,
                head,
                bulk,
                size,
                ..
            } => (link, handler, head, bulk, size),
            Event::LinkOpened { link, endpoint, .. } => {
                if endpoint == CODE_ENDPOINT {
                    self.lock().code_link = Some(link);
                }
                return;
            }
            _ => return,
        };
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
            Err(error) => self.connection.close(CloseReason::Fault(error.to_string())),
        }
    }

    fn take_in(&self, message: ToSlot, bulk: Vec<Vec<u8>>) {
        let mut state = self.lock();
        match message {
            ToSlot::Execute(execute) => {
                let reader = RecordReader::new(execute.records.clone(), bulk);
                let count = execute.count;
                let (next, end) = (execute.first, execute.first + u64::from(count));
                state.jobs.push_back(Job {
                    execute,
                    reader,
                    next,
                    end,
                });
                if count > 1 {
                    self.active.notify_one();
                }
            }
            ToSlot::Recall { frame, count } => {
                let (first, count) = state.give_back(frame, count);
                let released = state.is_last_of(frame) && self.has_passed();
                drop(state);
                // The session's end is noticed by its own task.
                let _ = self.post(
                    &ToManager::Recalled {
                        frame,
                        first,
                        count,
                    },
                    Vec::new(),
                );
                if released {
                    let _ = self.post(&ToManager::Released { frame, busy: 0 }, Vec::new());
                }
            }
            ToSlot::Grant { frame, index } => {
                let held = state.held.remove(&(frame, index));
                drop(state);
                if let Some((_, held)) = held {
                    let _ = self.send_results(held);
                }
            }
            ToSlot::Forget { stream } => {
                // The manager still counts on an answer for what waits here.
                let given_back = state.forget_jobs(stream);
                for (frame, first, count) in given_back {
                    let _ = self.post(
                        &ToManager::Recalled {
                            frame,
                            first,
                            count,
                        },
                        Vec::new(),
                    );
                }
                state.programs.remove(&stream);
                state.held.retain(|_, (of, _)| *of != stream);
                state.code.push_back(ToSlot::Forget { stream });
            }
            code => {
                if let ToSlot::Define { stream, .. } = &code {
                    state.programs.insert(*stream);
                }
                state.code.push_back(code);
            }
        }
    }

    /// Whether the running item has passed the serial function; if it has not, its interpreter says so when it has.
    fn has_passed(&self) -> bool {
        let order = Ordering::SeqCst;
        self.passage
            .compare_exchange(IN_SERIAL, AWAITED, order, order)
            == Err(BEYOND)
    }

    /// While work is there, sends what has been finished for a while: the next item may take long.
    async fn watch_partial_results(&self) {
        loop {
            self.active.notified().await;
            loop {
                tokio::time::sleep(PENDING_TIME_MAX).await;
                let mut state = self.lock();
                let due = state
                    .pending
                    .since
                    .is_some_and(|since| since.elapsed() >= PENDING_TIME_MAX);
                let pending = due.then(|| state.take_pending());
                let idle = state.jobs.is_empty()
                    && state.pending.writer.count() == 0
                    && state.running.is_none()
                    && state.rest.is_none();
                drop(state);
                if let Some(pending) = pending {
                    let _ = self.send_results(pending);
                }
                if idle {
                    break;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self) -> Work {
        if let Some(code) = self.code.pop_front() {
            return Work::Code(code);
        }
        if let Some(reason) = &self.ended {
            return Work::Ended(reason.clone());
        }
        // A frame whose program hasn't come yet waits; the code link may be slower than the task link.
        let Some(job) = self.jobs.front_mut() else {
            self.started = None;
            return Work::Nothing;
        };
        let (frame, passed) = (job.execute.frame, job.next - job.execute.first);
        if passed == 0 && !self.programs.contains(&job.execute.stream) {
            return Work::Nothing;
        }
        if self.started.is_none() {
            self.started = Some(Instant::now());
        }
        let item = job.take();
        if job.next >= job.end && (item.is_none() || job.execute.lease != Lease::PassedOn) {
            self.jobs.pop_front();
        }
        match item {
            Some(item) => Work::Item(item),
            // A frame whose lease is passed on stays until all of its items have been taken and seen.
            None if passed > 0 => {
                self.rest = Some((frame, passed));
                Work::Rest { frame }
            }
            None => Work::Nothing,
        }
    }

    /// The running item of this frame has its result. Says whether it is the last one to have one.
    fn complete(&mut self, frame: u64) -> bool {
        self.running = None;
        match &mut self.rest {
            Some((of, left)) if *of == frame => {
                *left = left.saturating_sub(1);
                let complete = *left == 0;
                if complete {
                    self.rest = None;
                }
                complete
            }
            _ => self
                .jobs
                .front()
                .is_none_or(|job| job.execute.frame != frame),
        }
    }

    /// Whether the running item is the last of its frame that will come to the serial function.
    fn is_last_of(&self, frame: u64) -> bool {
        self.running == Some((frame, true))
            && self.jobs.iter().all(|job| job.execute.frame != frame)
    }

    /// Takes what is pending; what comes next in the same frame follows on it.
    fn take_pending(&mut self) -> Pending {
        let rest = Pending::new(self.pending.frame, self.pending.next());
        std::mem::replace(&mut self.pending, rest)
    }

    /// Drops the jobs of a stream; says what of each has not been started.
    fn forget_jobs(&mut self, stream: u32) -> Vec<(u64, u64, u32)> {
        let frames: Vec<u64> = self
            .jobs
            .iter()
            .filter(|job| job.execute.stream == stream)
            .map(|job| job.execute.frame)
            .collect();
        frames
            .into_iter()
            .map(|frame| {
                let (first, count) = self.give_back(frame, u32::MAX);
                (frame, first, count)
            })
            .collect()
    }

    /// Takes up to `count` items off the end of a frame.
    fn give_back(&mut self, frame: u64, count: u32) -> (u64, u32) {
        let Some(position) = self.jobs.iter().position(|job| job.execute.frame == frame) else {
            return (0, 0);
        };
        let job = &mut self.jobs[position];
        let given = u64::from(count).min(job.end - job.next);
        job.end -= given;
        let first = job.end;
        // What has passed the serial function still waits for the rest.
        let has_rest = job.execute.lease == Lease::PassedOn && job.next > job.execute.first;
        if job.next >= job.end && !has_rest {
            self.jobs.remove(position);
        }
        // At most `count`, which is a u32.
        (first, u32::try_from(given).unwrap_or(u32::MAX))
    }
}

impl Job {
    fn take(&mut self) -> Option<Item> {
        if self.next >= self.end {
            return None;
        }
        // A record that can't be read becomes an item that can't be decoded: its own exception, not the slot's end.
        let record = self.reader.next_record().ok().flatten().unwrap_or_default();
        let index = self.next;
        self.next += 1;
        let Execute {
            frame,
            stream,
            segment,
            restricted,
            lease,
            grant,
            ..
        } = self.execute;
        Some(Item {
            key: ItemKey {
                stream,
                frame,
                index,
                grant,
            },
            segment,
            restricted,
            lease,
            record,
        })
    }
}

impl Pending {
    fn new(frame: u64, first: u64) -> Self {
        Self {
            frame,
            first,
            ..Self::default()
        }
    }

    /// The message and its bulk parts, unless there is nothing in it.
    fn into_message(mut self) -> Option<(ToManager, Vec<Bytes>)> {
        let (count, records, bulk) = self.writer.take();
        let results = ToManager::Results {
            frame: self.frame,
            first: self.first,
            count,
            busy: self.busy,
            records,
        };
        (count > 0).then_some((results, bulk))
    }

    /// The item that would follow.
    fn next(&self) -> u64 {
        self.first + u64::from(self.writer.count())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
