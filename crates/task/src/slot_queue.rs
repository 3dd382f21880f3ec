//! The slot's side: frames come in, items go out one by one, results gather until it is time to send them.

mod carry;
mod deadline;
mod fold;
mod halfway;
mod pending;

pub use deadline::{Overdue, TimeoutAnswer};

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::Lease;
use thiserror::Error;

use self::deadline::{Deadline, TimeLimit};
use self::halfway::Rest;
use self::pending::{Kind, Pending, ToldItem};
use crate::message::{
    Digest, ENVELOPE_BYTES_MAX, EncodedMessage, Execute, GivenState, HeardWorker, MessageError,
    PIECE_BYTES_MAX, ReceivedMessage, SlotEndpoint, ToManager, ToSlot,
};
use crate::payload::{Format, Record, RecordReader, RecordWriter};

/// Results that wait to be sent together, in bytes at most.
const PENDING_BYTES_MAX: u64 = 64 * 1024;

/// Results of this size need not leave before the next item is begun, when there is one.
const LEAVE_BYTES_MIN: u64 = 16 * 1024;

/// How long a finished result waits for others at most.
pub const PENDING_TIME_MAX: Duration = Duration::from_millis(2);

/// Which attempt at which item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemKey {
    /// Its stream.
    pub stream: u32,
    /// The frame it belongs to.
    pub frame: u64,
    /// Its index.
    pub index: u64,
    /// The last segment that it passes here.
    pub to: u16,
    /// How large its result may be and still leave at once.
    pub grant: u64,
}

/// One item to run.
#[derive(Debug)]
pub struct Item {
    /// Which one.
    pub key: ItemKey,
    /// The first segment that it passes.
    pub from: u16,
    /// How to go about that one, if it is serial: with [`Lease::PassedOn`] that is all to be done now, and
    /// [`Work::Rest`] says when to go on.
    pub lease: Lease,
    /// The item itself. If it is data, its result must be data too.
    pub record: Record,
    /// The item is a list instead. Few are, and each item is moved several times.
    pub list: Option<Box<List>>,
    /// The state that comes to it.
    pub state: StateBefore,
}

/// The state that comes to an item.
#[derive(Debug, Default)]
pub enum StateBefore {
    /// Its segment carries none, or the item isn't the first of its frame: the state is that of the item before.
    #[default]
    OfItemBefore,
    /// There is none yet.
    Nothing,
    /// This is it.
    Sent(Box<Record>),
    /// The one that was sent last, with results of this frame.
    Kept(u64),
}

/// An item that is a list of values.
#[derive(Debug, Default)]
pub struct List {
    /// If this is data, the result must be data too.
    pub format: Format,
    /// What a slot wanted to be given back.
    pub state: Option<Record>,
    /// The values.
    pub parts: Vec<Record>,
}

/// What to do next.
#[derive(Debug, Default)]
pub enum Work {
    /// Code and settings, in the order in which they came; always before the work that needs them.
    Code(ToSlot),
    /// One item.
    Item(Item),
    /// The serial function has seen all items of the frame: call [`SlotQueue::release`], then run the rest.
    Rest {
        /// The frame.
        frame: u64,
    },
    /// Nothing for now.
    #[default]
    Nothing,
    /// The session is over: leave.
    Ended(String),
}

/// A message to the manager.
#[derive(Debug)]
pub struct Outgoing {
    /// The message.
    pub message: EncodedMessage,
    /// There is something to run: the next item need not wait for this one's sealing and writing.
    pub can_wait: bool,
}

/// A result over its size limit: nothing was sent, and an exception can be given instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("got a result of {got} bytes, expected at most {maximum}")]
pub struct TooLarge {
    /// Its bytes.
    pub got: u64,
    /// The limit.
    pub maximum: u64,
}

/// How far the running item of a frame that keeps its lease is. It stands beside the [`SlotQueue`], since whoever runs the
/// item says so without waiting for anybody.
#[derive(Debug, Default)]
pub struct SerialPassage(AtomicU8);

/// It has the serial function before it or runs it.
const IN_SERIAL: u8 = 0;
/// The same, and somebody waits for it to have passed.
const AWAITED: u8 = 1;
/// It has passed the serial function.
const BEYOND: u8 = 2;

impl SerialPassage {
    /// The running item, of a frame that keeps its lease, has passed the serial function and goes on. Gives what is to
    /// be sent: word of it, if its frame's lease is waited for.
    #[must_use]
    pub fn pass(&self, frame: u64) -> Option<Outgoing> {
        let is_awaited = self.0.swap(BEYOND, Ordering::SeqCst) == AWAITED;
        is_awaited.then(|| ToManager::Released { frame, busy: 0 }.into())
    }

    /// Whether the running item has passed the serial function; if it has not, [`pass`](Self::pass) says so when it
    /// has.
    fn has_passed(&self) -> bool {
        let order = Ordering::SeqCst;
        self.0.compare_exchange(IN_SERIAL, AWAITED, order, order) == Err(BEYOND)
    }
}

/// What a slot has to do and has done.
///
/// Times are durations since any start that never go back.
#[derive(Debug)]
pub struct SlotQueue {
    result_bytes_max: u64,
    code: VecDeque<ToSlot>,
    jobs: VecDeque<QueuedFrame>,
    /// The streams whose programs are known, and how long their items may run.
    programs: HashMap<u32, Option<TimeLimit>>,
    /// How many of them have a limit.
    limited: usize,
    pending: Pending,
    /// Large results that wait for a grant, and their streams, by frames and items.
    held: BTreeMap<(u64, u64), (u32, Pending)>,
    /// When the running item was started.
    started: Option<Duration>,
    running: Option<BegunItem>,
    /// Until when what runs must have ended, if it must.
    deadline: Option<Deadline>,
    /// The deadline of an item for which something is loaded.
    paused: Option<Deadline>,
    /// Items that were folded and not told of: since when, the time they took, how many.
    folded: (Option<Duration>, u64, u32),
    /// Results of a frame that wait for the state behind them.
    carried: Pending,
    /// What of a frame has passed the serial function and has no result yet.
    rest: Option<Rest>,
    /// What ran didn't end, and was answered for: nothing that it still gives counts.
    has_given_up: bool,
    /// Where a record is written before it is known whether it may go.
    scratch: RecordWriter,
    /// Pieces of shared contents that were asked for: nothing until they come.
    pieces: HashMap<(Digest, u64), Option<Vec<u8>>>,
    /// Nothing more is started.
    is_leaving: bool,
    ended: Option<String>,
}

/// The running item.
#[derive(Clone, Copy, Debug)]
struct BegunItem {
    key: ItemKey,
    /// Its frame keeps a lease.
    keeps_lease: bool,
}

#[derive(Debug)]
struct QueuedFrame {
    execute: Execute,
    reader: RecordReader,
    next: u64,
    end: u64,
}

impl SlotQueue {
    /// An empty queue; messages have at most `message_bytes_max` bytes.
    #[must_use]
    pub fn new(message_bytes_max: u64) -> Self {
        Self {
            result_bytes_max: message_bytes_max.saturating_sub(ENVELOPE_BYTES_MAX),
            code: VecDeque::new(),
            jobs: VecDeque::new(),
            programs: HashMap::new(),
            limited: 0,
            pending: Pending::default(),
            held: BTreeMap::new(),
            started: None,
            running: None,
            deadline: None,
            paused: None,
            folded: (None, 0, 0),
            carried: Pending::default(),
            rest: None,
            has_given_up: false,
            scratch: RecordWriter::default(),
            pieces: HashMap::new(),
            is_leaving: false,
            ended: None,
        }
    }

    /// The session is over, for this reason.
    pub fn end(&mut self, reason: String) {
        self.ended = Some(reason);
    }

    /// Whether [`end`](Self::end) was called.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The slot is to leave: what has not been started goes back, now and when it comes. Says what is to be sent.
    pub fn leave(&mut self, passage: &SerialPassage) -> Vec<Outgoing> {
        if std::mem::replace(&mut self.is_leaving, true) {
            return Vec::new();
        }
        let mut outgoing = vec![Outgoing::from(ToManager::Leaving)];
        let halfway = self.rest.map(|rest| rest.frame);
        let jobs = self.jobs.iter().map(|job| job.execute.frame);
        let frames: Vec<u64> = halfway.into_iter().chain(jobs).collect();
        for frame in frames {
            outgoing.extend(self.recall(frame, u32::MAX, passage));
        }
        outgoing
    }

    /// Whether the slot [leaves](Self::leave) and has nothing left to say.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.is_leaving && self.is_idle() && self.held.is_empty()
    }

    /// Takes what to do next; from now on it runs.
    pub fn begin(&mut self, passage: &SerialPassage, now: Duration) -> Work {
        let work = self.next(now);
        if let Work::Item(Item { key, lease, .. }) = &work {
            let (key, keeps_lease) = (*key, *lease == Lease::Kept);
            self.running = Some(BegunItem { key, keeps_lease });
            if keeps_lease {
                passage.0.store(IN_SERIAL, Ordering::SeqCst);
            }
            self.expect(key, now);
        }
        work
    }

    /// Takes the outcome of an item: `write` appends its one record. Says what is to be sent.
    ///
    /// # Errors
    /// When the result is over its size limit; nothing of it is kept then.
    pub fn finish(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.finish_as(key, ToldItem::of(key, Kind::Outcome), now, write)
    }

    /// Takes the outcome of an item, as [`finish`](Self::finish) does, and begins what comes next, unless something is to be sent: the time of what
    /// begins doesn't wait for that.
    ///
    /// # Errors
    /// As those of [`finish`](Self::finish). Nothing begins then.
    pub fn finish_and_begin(
        &mut self,
        key: ItemKey,
        passage: &SerialPassage,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<(Vec<Outgoing>, Work), TooLarge> {
        let outgoing = self.finish(key, now, write)?;
        let work = match outgoing[..] {
            [] => self.begin(passage, now),
            _ => Work::Nothing,
        };
        Ok((outgoing, work))
    }

    /// Takes the result of an item that goes on at another segment than the next one, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// When it is over the size limit; nothing of it is kept then.
    pub fn finish_at(
        &mut self,
        key: ItemKey,
        reached: u16,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        let told = ToldItem {
            reached,
            ..ToldItem::of(key, Kind::Outcome)
        };
        self.finish_as(key, told, now, write)
    }

    /// Takes what an item was made into, any number of records. With `has_state`, the first of them is no part: whoever gets what becomes of the
    /// parts is given it, too.
    ///
    /// # Errors
    /// When they are over the size limit; nothing of them is kept then.
    pub fn finish_expanded(
        &mut self,
        key: ItemKey,
        has_state: bool,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        let told = ToldItem {
            has_state,
            ..ToldItem::of(key, Kind::Expanded)
        };
        self.finish_as(key, told, now, write)
    }

    /// Takes an exception that the program wants the item to be run again for, as [`finish`](Self::finish) takes an outcome.
    ///
    /// # Errors
    /// When it is over the size limit; nothing of it is kept then.
    pub fn finish_retriable(
        &mut self,
        key: ItemKey,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        self.finish_as(key, ToldItem::of(key, Kind::Retriable), now, write)
    }

    fn finish_as(
        &mut self,
        key: ItemKey,
        told: ToldItem,
        now: Duration,
        write: impl FnOnce(&mut RecordWriter),
    ) -> Result<Vec<Outgoing>, TooLarge> {
        let ItemKey {
            frame,
            index,
            grant,
            ..
        } = key;
        let ToldItem { kind, reached, .. } = told;
        if self.has_given_up {
            return Ok(Vec::new());
        }
        let busy = self.elapsed(now);
        write(&mut self.scratch);
        let bytes = self.scratch.bytes();
        if bytes > self.result_bytes_max {
            let _ = self.scratch.take();
            return Err(TooLarge {
                got: bytes,
                maximum: self.result_bytes_max,
            });
        }
        let mut outgoing = Vec::new();
        let complete = self.complete(frame);
        self.expect_rest(key, now);
        let pending = &self.pending;
        let is_same = (pending.kind, pending.frame, pending.reached) == (kind, frame, reached);
        let follows = is_same && pending.next() == index;
        if !follows || bytes > grant {
            let new = Pending::new(kind, (frame, reached), index);
            let earlier = std::mem::replace(&mut self.pending, new);
            outgoing.extend(earlier.into_outgoing());
        }
        if bytes > grant {
            let mut large = Pending::new(kind, (frame, reached), index);
            large.push(&mut self.scratch, told);
            large.busy = busy;
            outgoing.extend(self.send_or_hold(key, large));
            return Ok(outgoing);
        }
        self.pending.push(&mut self.scratch, told);
        self.pending.busy += busy;
        let since = *self.pending.since.get_or_insert(now);
        if complete
            || self.pending.writer.bytes() >= PENDING_BYTES_MAX
            || now.saturating_sub(since) >= PENDING_TIME_MAX / 2
        {
            let pending = self.take_pending();
            let can_wait = !self.jobs.is_empty() && pending.writer.bytes() >= LEAVE_BYTES_MIN;
            outgoing.extend(pending.into_outgoing().map(|results| Outgoing {
                can_wait,
                ..results
            }));
        }
        Ok(outgoing)
    }

    /// What is larger than its grant is announced, and waits for a grant of its own.
    fn send_or_hold(&mut self, key: ItemKey, mut pending: Pending) -> Vec<Outgoing> {
        let ItemKey {
            stream,
            frame,
            index,
            grant,
            ..
        } = key;
        let bytes = pending.writer.bytes();
        if bytes <= grant {
            return pending.into_outgoing().into_iter().collect();
        }
        let busy = std::mem::take(&mut pending.busy);
        let announced = ToManager::Announced {
            frame,
            index,
            count: pending.items,
            bytes,
            busy,
        };
        let mut outgoing = vec![Outgoing::from(announced)];
        // Nobody grants what a forgotten stream has made.
        if self.programs.contains_key(&stream) {
            self.held.insert((frame, index), (stream, pending));
        } else {
            outgoing.extend(pending.give_up());
        }
        outgoing
    }

    /// All items of a frame have passed the serial function.
    pub fn release(&mut self, frame: u64, now: Duration) -> Outgoing {
        if let Some(Deadline { key, .. }) = self.deadline {
            self.expect_rest(key, now);
        }
        let busy = self.elapsed(now);
        ToManager::Released { frame, busy }.into()
    }

    /// Settings have been taken in and what work may need is there, but for these modules. Says what is to be sent.
    #[must_use]
    pub fn ready(&self, lacks: Vec<String>) -> Outgoing {
        ToManager::Ready { lacks }.into()
    }

    /// Packages have other versions here than at the manager, one line for each. Says what is to be sent.
    #[must_use]
    pub fn differs(&self, packages: Vec<String>) -> Outgoing {
        ToManager::Differs { packages }.into()
    }

    /// Its worker hears these on its network, and no others. Says what is to be sent.
    #[must_use]
    pub fn heard(&self, workers: Vec<HeardWorker>) -> Outgoing {
        ToManager::Heard { workers }.into()
    }

    /// The initializer has run, or raised what is told here. Says what is to be sent.
    #[must_use]
    pub fn initialized(&self, error: Bytes) -> Outgoing {
        ToManager::Initialized { error }.into()
    }

    /// Asks for a piece of shared contents, of `bytes` at most, or of as many as a message may have. Says what is to be sent.
    #[must_use]
    pub fn fetch(&mut self, digest: Digest, offset: u64, bytes: u32) -> Outgoing {
        let bytes_max = self.result_bytes_max.min(PIECE_BYTES_MAX.into()) as u32;
        let bytes = bytes.min(bytes_max);
        self.pieces.entry((digest, offset)).or_default();
        ToManager::Fetch {
            digest,
            offset,
            bytes,
        }
        .into()
    }

    /// Takes a piece that was asked for, if it is there. It is empty where the contents aren't at the manager any more.
    pub fn take_piece(&mut self, digest: Digest, offset: u64) -> Option<Vec<u8>> {
        let piece = self.pieces.get_mut(&(digest, offset))?.take()?;
        self.pieces.remove(&(digest, offset));
        Some(piece)
    }

    /// Whether somebody waits for pieces of shared contents, or one that has come is still here.
    #[must_use]
    pub fn awaits_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// A task has printed something. Says what is to be sent.
    #[must_use]
    pub fn output(&self, stream: u8, text: Bytes) -> Outgoing {
        ToManager::Output { stream, text }.into()
    }

    /// A message of the manager has come to one of the slot's endpoints. Says what is to be answered.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn receive(
        &mut self,
        endpoint: SlotEndpoint,
        message: ReceivedMessage,
        passage: &SerialPassage,
    ) -> Result<Vec<Outgoing>, MessageError> {
        let instruction = ToSlot::decode(endpoint, message.handler, message.head)?;
        Ok(self.take_in(instruction, message.bulk, passage))
    }

    fn take_in(
        &mut self,
        message: ToSlot,
        bulk: Vec<Vec<u8>>,
        passage: &SerialPassage,
    ) -> Vec<Outgoing> {
        match message {
            ToSlot::Execute(execute) => {
                let frame = execute.frame;
                let reader = RecordReader::new(execute.records.clone(), bulk);
                let next = execute.first;
                let end = next.saturating_add(execute.count.into());
                self.jobs.push_back(QueuedFrame {
                    execute,
                    reader,
                    next,
                    end,
                });
                if self.is_leaving {
                    self.recall(frame, u32::MAX, passage)
                } else {
                    Vec::new()
                }
            }
            ToSlot::Recall { frame, count } => self.recall(frame, count, passage),
            ToSlot::Probe => vec![ToManager::Probed.into()],
            ToSlot::Grant { frame, index } => {
                let held = self.held.remove(&(frame, index));
                held.and_then(|(_, held)| held.into_outgoing())
                    .into_iter()
                    .collect()
            }
            ToSlot::Interrupt { frame, index } => self.end_item(frame, index),
            ToSlot::Forget { stream } => {
                // The manager still counts on an answer for what waits here.
                let answers = self.forget_jobs(stream);
                let limit = self.programs.remove(&stream).flatten();
                self.limited -= usize::from(limit.is_some());
                // In order, so that whoever plays this plays it again.
                let held = std::mem::take(&mut self.held).into_iter();
                let (given_up, kept): (Vec<_>, _) = held.partition(|(_, (of, _))| *of == stream);
                self.held = kept.into_iter().collect();
                let others = given_up
                    .into_iter()
                    .filter_map(|(_, (_, held))| held.give_up());
                let answers = answers.into_iter().chain(others).collect();
                self.code.push_back(ToSlot::Forget { stream });
                if let Some(BegunItem { key, .. }) = self.running
                    && key.stream == stream
                {
                    self.end_running(key);
                }
                answers
            }
            ToSlot::Piece { digest, offset } => {
                // What nobody asked for is dropped.
                if let Some(place) = self.pieces.get_mut(&(digest, offset)) {
                    *place = Some(bulk.into_iter().next().unwrap_or_default());
                }
                Vec::new()
            }
            code => {
                if let ToSlot::Define { stream, rules, .. } = &code {
                    let limit = rules.timeout.map(TimeLimit::new);
                    self.limited += usize::from(limit.is_some());
                    self.programs.insert(*stream, limit);
                }
                self.code.push_back(code);
                Vec::new()
            }
        }
    }

    /// When [`flush`](Self::flush) has something to send though nothing happens.
    #[must_use]
    pub fn flush_at(&self) -> Option<Duration> {
        self.pending.since.map(|since| since + PENDING_TIME_MAX)
    }

    /// Results that have waited for long enough: the next item may take long.
    pub fn flush(&mut self, now: Duration) -> Option<Outgoing> {
        if self.flush_at().is_none_or(|due| now < due) {
            return None;
        }
        self.take_pending().into_outgoing()
    }

    /// Whether the frame that came last has several items: its results may be sent in parts.
    #[must_use]
    pub fn ends_with_long_frame(&self) -> bool {
        let last = self.jobs.back();
        last.is_some_and(|job| job.execute.count > 1)
    }

    /// Whether nothing waits here and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
            && self.pending.items == 0
            && self.folded.2 == 0
            && self.carried.items == 0
            && self.running.is_none()
            && self.rest.is_none()
    }

    fn next(&mut self, now: Duration) -> Work {
        if self.has_given_up && self.ended.is_none() {
            return Work::Nothing;
        }
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
        if passed == 0 && !self.programs.contains_key(&job.execute.stream) {
            return Work::Nothing;
        }
        if self.started.is_none() {
            self.started = Some(now);
        }
        let end = job.next;
        let item = job.take();
        if job.next >= job.end && (item.is_none() || job.execute.lease != Lease::PassedOn) {
            self.jobs.pop_front();
        }
        match item {
            Some(item) => Work::Item(item),
            // A frame whose lease is passed on stays until all of its items have been taken and seen.
            None if passed > 0 => {
                self.rest = Some(Rest {
                    frame,
                    left: passed,
                    end,
                    asked: 0,
                });
                Work::Rest { frame }
            }
            None => Work::Nothing,
        }
    }

    /// The time since the last outcome or the start of the running item, in nanoseconds.
    fn elapsed(&mut self, now: Duration) -> u64 {
        let started = self.started.replace(now);
        let elapsed = started.map_or(Duration::ZERO, |started| now.saturating_sub(started));
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    /// An item of this frame has its result: the running one, unless that is of another frame already. Says whether it is the last one to have one.
    fn complete(&mut self, frame: u64) -> bool {
        if !self.runs_another(frame) {
            self.running = None;
        }
        match &mut self.rest {
            Some(rest) if rest.frame == frame => {
                rest.left = rest.left.saturating_sub(1);
                let complete = rest.left == 0;
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

    /// Whether an item of another frame runs.
    fn runs_another(&self, frame: u64) -> bool {
        self.running
            .is_some_and(|running| running.key.frame != frame)
    }

    /// Whether the running item is the last of its frame that will come to the serial function.
    fn is_last_of(&self, frame: u64) -> bool {
        let keeps_lease = |running: BegunItem| running.keeps_lease && running.key.frame == frame;
        self.running.is_some_and(keeps_lease)
            && self.jobs.iter().all(|job| job.execute.frame != frame)
    }

    /// Takes what is pending; what comes next in the same frame follows on it.
    fn take_pending(&mut self) -> Pending {
        let Pending {
            kind,
            frame,
            reached,
            ..
        } = self.pending;
        let rest = Pending::new(kind, (frame, reached), self.pending.next());
        std::mem::replace(&mut self.pending, rest)
    }

    /// Drops the jobs of a stream; says what of each has not been started.
    fn forget_jobs(&mut self, stream: u32) -> Vec<Outgoing> {
        let frames: Vec<u64> = self
            .jobs
            .iter()
            .filter(|job| job.execute.stream == stream)
            .map(|job| job.execute.frame)
            .collect();
        let answer = |frame| {
            let (first, count) = self.give_back(frame, u32::MAX);
            ToManager::Recalled {
                frame,
                first,
                count,
            }
            .into()
        };
        frames.into_iter().map(answer).collect()
    }

    /// Gives back up to `count` items of a frame that have not been started.
    fn recall(&mut self, frame: u64, count: u32, passage: &SerialPassage) -> Vec<Outgoing> {
        if self.ask_back(frame, count) {
            return Vec::new();
        }
        let (first, count) = self.give_back(frame, count);
        let released = self.is_last_of(frame) && passage.has_passed();
        let recalled = ToManager::Recalled {
            frame,
            first,
            count,
        };
        let released = released.then_some(ToManager::Released { frame, busy: 0 });
        let answers = [Some(recalled), released];
        answers.into_iter().flatten().map(Outgoing::from).collect()
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

impl QueuedFrame {
    fn take(&mut self) -> Option<Item> {
        if self.next >= self.end {
            return None;
        }
        let state = self.state();
        // A record that can't be read becomes an item that can't be decoded: its own exception, not the slot's end.
        let (record, list) = match self.execute.lists {
            false => (self.reader.next_record().ok().flatten(), None),
            true => (None, Some(Box::new(self.list()))),
        };
        let record = record.unwrap_or_default();
        let index = self.next;
        self.next += 1;
        let Execute {
            frame,
            stream,
            from,
            to,
            lease,
            grant,
            ..
        } = self.execute;
        Some(Item {
            key: ItemKey {
                stream,
                frame,
                index,
                to,
                grant,
            },
            from,
            lease,
            record,
            list,
            state,
        })
    }

    /// The state that comes to the next item, if that is the first.
    fn state(&mut self) -> StateBefore {
        if self.next != self.execute.first {
            return StateBefore::OfItemBefore;
        }
        match self.execute.state {
            GivenState::Nothing => StateBefore::Nothing,
            GivenState::Sent => {
                let record = self.reader.next_record().ok().flatten();
                StateBefore::Sent(Box::new(record.unwrap_or_default()))
            }
            GivenState::Kept(frame) => StateBefore::Kept(frame),
        }
    }

    /// The values of the next item.
    fn list(&mut self) -> List {
        let mut list = List::default();
        let head = self.reader.next_list().ok().flatten();
        let (count, format, has_state) = head.unwrap_or_default();
        list.format = format;
        for place in 0..count {
            // The count is a claim of whoever sent it.
            let Some(record) = self.reader.next_record().ok().flatten() else {
                break;
            };
            match has_state && place == 0 {
                true => list.state = Some(record),
                false => list.parts.push(record),
            }
        }
        list
    }
}

impl From<ToManager> for Outgoing {
    fn from(message: ToManager) -> Self {
        Self {
            message: message.with_bulk(Vec::new()),
            can_wait: false,
        }
    }
}
