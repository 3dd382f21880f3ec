//! The driver: carries events of connections to the scheduler and its actions back. Kept a router.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::{
    Action, Cancel, FrameId, Program, Scheduler, Sizes, SlotId, SlotStatistics, StreamId,
    StreamOptions, Tickets,
};
use exoskel_link::{
    CloseReason, Endpoint, Event, LinkId, Message, MessageKind, SessionError, TrafficClass,
};
use tokio::net::TcpListener;

use super::recruit::{self, Recruiter};
use super::roster::{Roster, WorkerKey};
use super::tokens::Tokens as TokenStore;
use super::{Command, Function, ManagerConfig, Notice, Shared, StreamPlan};
use crate::connection::{Connection, Ended};
use crate::establish::{Established, Renewal, Standing, Terms};
use crate::message::{
    CODE_ENDPOINT, Call, Digest, Execute, RESULT_ENDPOINT, RESULT_HANDLERS, SegmentFunctions,
    TASK_ENDPOINT, ToManager, ToSlot,
};
use crate::outlet::{Contents, Origin, Outcomes, Outlet};
use crate::payload::{Batch, RecordReader, check_records};

/// How long an orderly end may take before the rest is cut off.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Reasons of failed attempts that are kept for the user.
const FAILURES_KEPT: usize = 100;

/// How often credential, policy and revocation list are looked at.
const RENEWAL_TIME: Duration = Duration::from_secs(2);

/// Everything the driver owns.
pub(super) struct Hub {
    pub(super) config: ManagerConfig,
    pub(super) shared: Arc<Shared>,
    pub(super) recruiter: Recruiter,
    scheduler: Scheduler,
    epoch: Instant,
    next_slot: u32,
    slots: HashMap<u32, Slot>,
    streams: HashMap<u64, Stream>,
    /// From the scheduler's number of a stream to ours.
    numbers: HashMap<StreamId, u64>,
    roster: Roster,
    /// Connections with something queued.
    dirty: Vec<u32>,
    /// When the driver's loop wakes for the scheduler.
    armed: Option<Duration>,
    shutting_down: bool,
}

struct Slot {
    connection: Arc<Connection>,
    tasks: LinkId,
    code: LinkId,
    origin: Arc<Origin>,
    standing: Standing,
    worker: WorkerKey,
    ready: bool,
    functions: HashSet<Digest>,
    streams: HashSet<u64>,
}

struct Stream {
    id: StreamId,
    outlet: Arc<Outlet>,
    functions: Vec<Function>,
    call: Call,
    segments: Vec<SegmentFunctions>,
    bounded: bool,
    /// One for each segment.
    tokens: Vec<TokenStore>,
    /// Items handed over by the user, admitted or not.
    received: u64,
    /// Sizes of items that have no ticket yet, though they had when the user looked.
    backlog: VecDeque<u64>,
    input_ended: bool,
}

/// Runs the driver until it is told to shut down.
pub(super) async fn drive(
    config: ManagerConfig,
    listener: Option<std::net::TcpListener>,
    shared: Arc<Shared>,
) {
    let recruiter = Recruiter::new(&config.recruiting);
    let scheduler = Scheduler::new(config.scheduler.clone());
    let hub = Rc::new(RefCell::new(Hub {
        config,
        shared: shared.clone(),
        recruiter,
        scheduler,
        epoch: Instant::now(),
        next_slot: 0,
        slots: HashMap::new(),
        streams: HashMap::new(),
        numbers: HashMap::new(),
        roster: Roster::default(),
        dirty: Vec::new(),
        armed: None,
        shutting_down: false,
    }));
    if let Some(listener) = listener.and_then(|listener| TcpListener::from_std(listener).ok()) {
        tokio::task::spawn_local(recruit::listen(hub.clone(), listener));
    }
    if let Some(renewal) = hub.borrow_mut().config.renewal.take() {
        tokio::task::spawn_local(renew(hub.clone(), renewal));
    }
    recruit::fill(&hub);
    loop {
        let (timeout, now) = hub.borrow_mut().arm();
        tokio::select! {
            () = shared.wake.notified() => {}
            () = sleep_until(timeout, now) => {}
        }
        let mut borrowed = hub.borrow_mut();
        for command in shared.take_commands() {
            borrowed.command(command);
        }
        borrowed.pump();
        if borrowed.shutting_down {
            break;
        }
    }
    shut_down(&hub).await;
}

/// Takes up new terms when there are any, and judges all sessions by them.
async fn renew(hub: Rc<RefCell<Hub>>, mut renewal: Renewal) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        match renewal() {
            None => {}
            Some(Ok(terms)) => hub.borrow_mut().take_up(terms),
            Some(Err(reason)) => {
                let text =
                    format!("kept the credential, policy and revocation list of before: {reason}");
                hub.borrow().shared.notice(Notice::Warning(text));
            }
        }
    }
}

async fn sleep_until(deadline: Option<Duration>, now: Duration) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_sub(now)).await,
        None => std::future::pending().await,
    }
}

async fn shut_down(hub: &Rc<RefCell<Hub>>) {
    let connections: Vec<Arc<Connection>> = hub
        .borrow()
        .slots
        .values()
        .map(|slot| slot.connection.clone())
        .collect();
    for stream in hub.borrow().streams.values() {
        stream.outlet.end("the manager was closed");
    }
    for connection in connections {
        connection.close(CloseReason::Finished);
    }
    let left = async {
        while !hub.borrow().slots.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_TIME, left).await;
    let mut recruiter = std::mem::take(&mut hub.borrow_mut().recruiter);
    recruiter.end_children(SHUTDOWN_TIME).await;
}

/// Takes in a slot whose session has begun and serves it to its last event.
///
/// The slot counts as soon as this returns, so that nobody recruits another in its place.
pub(super) fn serve(hub: &Rc<RefCell<Hub>>, established: &Established, source: recruit::Source) {
    // Only our own children are local, whatever a peer says of itself.
    let is_child = matches!(source, recruit::Source::Local(_));
    let joined = hub.borrow_mut().join(established, is_child);
    let slot = match joined {
        Ok(slot) => slot,
        Err(error) => {
            hub.borrow_mut().attempt_failed(&source, &error.to_string());
            return recruit::replace(hub, source);
        }
    };
    let (hub, connection) = (hub.clone(), established.connection.clone());
    tokio::task::spawn_local(async move {
        let ended = connection
            .run(|event| hub.borrow_mut().event(slot, event))
            .await;
        hub.borrow_mut().leave(slot, &ended);
        if matches!(ended, Ended::Closed(CloseReason::Fault(_))) {
            hub.borrow_mut().recruiter.failed(&source, false);
        } else {
            hub.borrow_mut().recruiter.proved(&source);
        }
        recruit::replace(&hub, source);
    });
}

impl Hub {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn take_up(&mut self, terms: Terms) {
        for slot in self.slots.values() {
            if let Err(reason) = terms.judge_again(&slot.standing, &slot.connection) {
                self.shared.notice(Notice::Audit(format!(
                    "ended the session with {}: {reason}",
                    slot.worker.0
                )));
                slot.connection.abort(CloseReason::NotAllowed(reason));
            }
        }
        self.config.terms = terms;
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Open(number, plan, outlet) => self.open(number, plan, outlet),
            Command::Admit(number, batch) => self.admit(number, batch),
            Command::EndOfInput(number) => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.input_ended = true;
                }
                self.admit_backlog(number);
            }
            Command::Taken {
                stream,
                first,
                count,
            } => {
                if let Some(id) = self.streams.get(&stream).map(|stream| stream.id) {
                    self.scheduler.taken(id, first, count, self.epoch.elapsed());
                    self.admit_backlog(stream);
                }
            }
            Command::Cancel(number, index, reply) => {
                // The user may have gone; then nobody needs the answer.
                let _ = reply.send(self.cancel(number, index));
            }
            Command::Close(number) => self.close_stream(number),
            Command::Report(reply) => {
                let live = self.slots.iter().filter_map(|(number, slot)| {
                    Some((
                        slot.worker.clone(),
                        self.scheduler.slot_statistics(SlotId(*number))?,
                    ))
                });
                let _ = reply.send(self.roster.report(live));
            }
            Command::Shutdown => self.shutting_down = true,
        }
    }

    fn open(&mut self, number: u64, plan: StreamPlan, outlet: Arc<Outlet>) {
        let tickets = if plan.unbounded {
            Tickets::Unbounded
        } else {
            Tickets::Bounded
        };
        let program = match Program::compile(&plan.skeleton) {
            Ok(program) => program,
            Err(error) => return outlet.end(&error.to_string()),
        };
        let id = match self.scheduler.open_stream(
            &program,
            StreamOptions { tickets },
            self.epoch.elapsed(),
        ) {
            Ok(id) => id,
            Err(error) => return outlet.end(&error.to_string()),
        };
        let segments: Vec<SegmentFunctions> = program
            .segments()
            .iter()
            .map(|segment| SegmentFunctions {
                serial: segment.serial.is_some(),
                functions: segment
                    .serial
                    .iter()
                    .chain(&segment.parallel)
                    .filter_map(|function| plan.functions.get(function.0 as usize))
                    .map(|function| function.digest)
                    .collect(),
            })
            .collect();
        if let Some(reason) = self.recruiter.given_up() {
            outlet.end(reason);
        }
        let stream = Stream {
            id,
            outlet,
            functions: plan.functions,
            call: plan.call,
            tokens: segments.iter().map(|_| TokenStore::default()).collect(),
            segments,
            bounded: !plan.unbounded,
            received: 0,
            backlog: VecDeque::new(),
            input_ended: false,
        };
        self.numbers.insert(id, number);
        self.streams.insert(number, stream);
    }

    fn admit(&mut self, number: u64, batch: Batch) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.backlog.extend(batch.sizes());
        let first = stream.received;
        stream.received += u64::from(batch.count());
        if let Some(tokens) = stream.tokens.first_mut() {
            tokens.insert(first, batch);
        }
        self.admit_backlog(number);
    }

    fn admit_backlog(&mut self, number: u64) {
        let now = self.now();
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let count = stream
            .backlog
            .len()
            .min(self.scheduler.tickets(stream.id) as usize);
        if count > 0 {
            let sizes: Vec<u64> = stream.backlog.drain(..count).collect();
            // There are tickets, the stream is open and its input hasn't ended: nothing can be refused.
            let _ = self.scheduler.admit(stream.id, &sizes, now);
        }
        if stream.input_ended && stream.backlog.is_empty() {
            self.scheduler.end_of_input(stream.id);
        }
    }

    fn cancel(&mut self, number: u64, index: u64) -> bool {
        let now = self.now();
        let Some(stream) = self.streams.get_mut(&number) else {
            return false;
        };
        let removed = self.scheduler.cancel(stream.id, index, now) == Cancel::Removed;
        if removed && let Some(tokens) = stream.tokens.first_mut() {
            tokens.release(&(index..index + 1));
        }
        removed
    }

    fn close_stream(&mut self, number: u64) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.numbers.remove(&stream.id);
        self.scheduler.close_stream(stream.id, self.epoch.elapsed());
        let knowing: Vec<u32> = self
            .slots
            .iter_mut()
            .filter(|(_, slot)| slot.streams.contains(&number))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in knowing {
            if let Some(entry) = self.slots.get_mut(&slot) {
                entry.streams.remove(&number);
            }
            self.queue(
                slot,
                &ToSlot::Forget {
                    stream: stream.id.0,
                },
                Vec::new(),
            );
        }
    }

    /// Takes in a slot whose session has begun; it gets work when it says that it is ready.
    fn join(&mut self, established: &Established, is_child: bool) -> Result<u32, SessionError> {
        let connection = established.connection.clone();
        let (tasks, code) = connection.with(|session| {
            session.offer(Endpoint::new(RESULT_ENDPOINT, RESULT_HANDLERS))?;
            let tasks = session.open_link(TASK_ENDPOINT, TrafficClass::Data)?;
            Ok::<_, SessionError>((tasks, session.open_link(CODE_ENDPOINT, TrafficClass::Code)?))
        })?;
        let number = self.next_slot;
        self.next_slot += 1;
        let origin = Origin {
            worker: established.peer.name().to_owned(),
            restricted: !established.trusted_results,
        };
        let worker = self.roster.join(established);
        self.shared.notice(Notice::Audit(format!(
            "accepted {} at {}: {} ({:?}, domain {})",
            established.peer.identity(),
            connection.socket().peer_text(),
            established.protections,
            established.proof,
            established.domain.as_deref().unwrap_or("none"),
        )));
        let slot = Slot {
            connection,
            tasks,
            code,
            origin: Arc::new(origin),
            standing: established.standing(),
            worker,
            ready: false,
            functions: HashSet::new(),
            streams: HashSet::new(),
        };
        self.slots.insert(number, slot);
        let setup = if is_child {
            self.config.setup_local.clone()
        } else {
            self.config.setup_remote.clone()
        };
        self.queue(number, &ToSlot::Setup(setup), Vec::new());
        self.flush();
        Ok(number)
    }

    fn leave(&mut self, number: u32, ended: &Ended) {
        let now = self.now();
        let Some(slot) = self.slots.remove(&number) else {
            return;
        };
        let statistics = self
            .scheduler
            .slot_statistics(SlotId(number))
            .unwrap_or_default();
        let orderly = matches!(ended, Ended::Closed(_));
        let outstanding = statistics.outstanding;
        let lost = SlotStatistics {
            put_back: statistics.put_back + outstanding,
            ..statistics
        };
        self.roster.leave(
            &slot.worker,
            lost,
            if orderly && outstanding == 0 {
                "left"
            } else {
                "lost"
            },
        );
        if orderly {
            // It said good-bye: whatever it had is innocent.
            self.scheduler.retire_slot(SlotId(number), now);
        } else {
            self.scheduler.remove_slot(SlotId(number), now);
        }
        if slot.ready {
            self.shared
                .change_readiness(|readiness| readiness.ready = readiness.ready.saturating_sub(1));
        } else {
            self.shared.change_readiness(|readiness| {
                readiness.pending = readiness.pending.saturating_sub(1)
            });
        }
        if !self.shutting_down {
            self.shared.notice(Notice::Warning(format!(
                "lost worker {}{} ({ended}); items put back: {outstanding}, slots that go on: {}",
                slot.worker.0,
                if slot.worker.1.is_empty() {
                    String::new()
                } else {
                    format!(" at {}", slot.worker.1)
                },
                self.slots.len(),
            )));
            self.wake_users();
        }
        self.pump();
    }

    pub(super) fn attempt_failed(&self, source: &recruit::Source, reason: &str) {
        let text = format!("{source}: {reason}");
        self.shared
            .notice(Notice::Audit(format!("no session with {text}")));
        let is_final = !self.recruiter.has_hope();
        self.shared.change_readiness(|readiness| {
            readiness.pending = readiness.pending.saturating_sub(1);
            readiness.is_final = is_final;
            if !readiness.failures.contains(&text) {
                readiness.failures.push(text);
            }
            let surplus = readiness.failures.len().saturating_sub(FAILURES_KEPT);
            readiness.failures.drain(..surplus);
        });
        self.wake_users();
    }

    pub(super) fn attempt_begins(&self) {
        self.shared
            .change_readiness(|readiness| readiness.pending += 1);
    }

    /// A worker that dialled in was not accepted.
    pub(super) fn refused(&self, source: &recruit::Source, reason: &str) {
        self.shared
            .notice(Notice::Audit(format!("no session with {source}: {reason}")));
    }

    pub(super) fn recent_failures(&self) -> String {
        let mut failures = String::from("none was asked");
        self.shared.change_readiness(|readiness| {
            let recent = readiness.failures.len().saturating_sub(5);
            if !readiness.failures.is_empty() {
                failures = readiness.failures[recent..].join("; ");
            }
        });
        failures
    }

    pub(super) fn slots_in_use(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Nobody is left to work and nobody can be found: all streams end with the reason.
    pub(super) fn give_up(&self, reason: &str) {
        for stream in self.streams.values() {
            stream.outlet.end(reason);
        }
        self.shared.notice(Notice::Warning(reason.to_owned()));
    }

    fn event(&mut self, number: u32, event: Event) {
        let Event::Message {
            link,
            handler,
            head,
            bulk,
            size,
            ..
        } = event
        else {
            return;
        };
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        slot.connection.consumed(link, size);
        if !bulk.is_empty() {
            // The connection that just gave buffers away is the one that needs some.
            for spent in self.shared.take_spent() {
                slot.connection.recycle(spent);
            }
        }
        match ToManager::decode(handler, head) {
            Ok(message) => self.message(number, message, bulk),
            Err(error) => self.dismiss(number, error.to_string()),
        }
        self.pump();
    }

    /// Ends the session with a slot that breaks the rules; nothing of what it still says counts.
    fn dismiss(&self, number: u32, reason: String) {
        if let Some(slot) = self.slots.get(&number) {
            slot.connection.abort(CloseReason::Fault(reason));
        }
    }

    fn message(&mut self, number: u32, message: ToManager, bulk: Vec<Vec<u8>>) {
        let now = self.now();
        let slot = SlotId(number);
        match message {
            ToManager::Results {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let busy = Duration::from_nanos(busy);
                self.results(number, FrameId(frame), first, count, busy, records, bulk);
            }
            ToManager::Released { frame } => self.scheduler.released(slot, FrameId(frame), now),
            ToManager::Recalled {
                frame,
                first,
                count,
            } => {
                self.scheduler
                    .recalled(slot, FrameId(frame), first, count, now);
            }
            ToManager::Announced {
                frame,
                index,
                bytes,
                ..
            } => {
                self.scheduler
                    .announced(slot, FrameId(frame), index, bytes, now);
            }
            ToManager::Output { stream, text } => {
                let Some(slot) = self.slots.get(&number) else {
                    return;
                };
                let text = String::from_utf8_lossy(&text).into_owned();
                self.shared
                    .notice(Notice::Output(slot.origin.worker.clone(), stream, text));
                self.wake_users();
            }
            ToManager::Ready => {
                let Some(entry) = self.slots.get_mut(&number).filter(|entry| !entry.ready) else {
                    return;
                };
                entry.ready = true;
                // The number is new and the limit on slots is checked when they are recruited.
                let _ = self.scheduler.add_slot(slot, now);
                self.shared.change_readiness(|readiness| {
                    readiness.ready += 1;
                    readiness.pending = readiness.pending.saturating_sub(1);
                });
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn results(
        &mut self,
        number: u32,
        frame: FrameId,
        first: u64,
        count: u32,
        busy: Duration,
        records: Bytes,
        bulk: Vec<Vec<u8>>,
    ) {
        let now = self.now();
        // What the scheduler has counted is done. So what can't be read must not reach it: the items stay with the
        // slot, and go to another one when this one is dismissed.
        if let Err(error) = check_records(&records, bulk.len(), count) {
            return self.dismiss(number, error.to_string());
        }
        let bytes = records.len() as u64 + bulk.iter().map(|part| part.len() as u64).sum::<u64>();
        let sizes = Sizes::Total { count, bytes };
        let Some(accepted) = self
            .scheduler
            .results(SlotId(number), frame, first, sizes, busy, now)
        else {
            return;
        };
        let (segment, last) = (usize::from(accepted.segment), accepted.last);
        let ranges: Vec<Range<u64>> = accepted.ranges.to_vec();
        let whole = ranges.len() == 1 && ranges[0] == (first..first + u64::from(count));
        let Some(stream) = self
            .numbers
            .get(&accepted.stream)
            .and_then(|number| self.streams.get_mut(number))
        else {
            return;
        };
        let Some(origin) = self.slots.get(&number).map(|slot| slot.origin.clone()) else {
            return;
        };
        for range in &ranges {
            stream.tokens[segment].release(range);
        }
        if whole && last {
            let contents = Contents::Records(RecordReader::new(records, bulk), origin);
            stream.outlet.deliver(Outcomes {
                first,
                count,
                contents,
            });
            return;
        }
        let bulk = bulk.into_iter().map(Bytes::from).collect();
        let batch = match Batch::parse(records, bulk, count, origin.restricted) {
            Ok(batch) => batch,
            Err(error) => {
                // Can't be: it was checked above.
                return self.dismiss(number, error.to_string());
            }
        };
        for range in ranges {
            let part = batch.part(range.start - first, range.end - range.start);
            if last {
                let count = part.count();
                let contents = Contents::Records(part.into_reader(), origin.clone());
                stream.outlet.deliver(Outcomes {
                    first: range.start,
                    count,
                    contents,
                });
            } else if let Some(tokens) = stream.tokens.get_mut(segment + 1) {
                tokens.insert(range.start, part);
            }
        }
    }

    /// Does everything the scheduler wants done, and lets it go out.
    fn pump(&mut self) {
        let now = self.now();
        while let Some(action) = self.scheduler.poll_action(now) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    stream,
                    segment,
                    first,
                    count,
                    grant,
                } => {
                    let frame = Frame {
                        frame: frame.0,
                        stream,
                        segment,
                        first,
                        count,
                        grant,
                    };
                    self.dispatch(slot.0, &frame);
                }
                Action::Recall { slot, frame, count } => {
                    self.queue(
                        slot.0,
                        &ToSlot::Recall {
                            frame: frame.0,
                            count,
                        },
                        Vec::new(),
                    );
                }
                Action::Grant { slot, frame, index } => {
                    self.queue(
                        slot.0,
                        &ToSlot::Grant {
                            frame: frame.0,
                            index,
                        },
                        Vec::new(),
                    );
                }
                Action::Failed {
                    stream,
                    index,
                    failure,
                } => {
                    let exoskel_flow::Failure::WorkersLost { count } = failure;
                    let Some(stream) = self
                        .numbers
                        .get(&stream)
                        .and_then(|number| self.streams.get_mut(number))
                    else {
                        continue;
                    };
                    for tokens in &mut stream.tokens {
                        tokens.release(&(index..index + 1));
                    }
                    stream.outlet.deliver(Outcomes {
                        first: index,
                        count: 1,
                        contents: Contents::WorkersLost(count),
                    });
                }
            }
        }
        self.flush();
        self.publish();
        if self
            .scheduler
            .next_timeout()
            .is_some_and(|next| self.armed.is_none_or(|armed| next < armed))
        {
            self.shared.wake.notify_one();
        }
    }

    /// When the loop has to wake at the latest, and the time now.
    fn arm(&mut self) -> (Option<Duration>, Duration) {
        self.armed = self.scheduler.next_timeout();
        (self.armed, self.now())
    }

    fn dispatch(&mut self, number: u32, frame: &Frame) {
        let Some(&stream_number) = self.numbers.get(&frame.stream) else {
            return;
        };
        self.define(number, stream_number);
        let Some(stream) = self.streams.get(&stream_number) else {
            return;
        };
        let items = frame.first..frame.first + u64::from(frame.count);
        let Some(collected) = stream
            .tokens
            .get(usize::from(frame.segment))
            .and_then(|tokens| tokens.collect(items))
        else {
            // Can't be: a token is kept until its result counts. Ending the stream is better than waiting for ever.
            stream
                .outlet
                .end("lost track of an item's input; this is a defect of exoskel");
            return;
        };
        let execute = Execute {
            frame: frame.frame,
            stream: frame.stream.0,
            segment: frame.segment,
            restricted: collected.restricted,
            grant: frame.grant,
            first: frame.first,
            count: frame.count,
            records: collected.records,
        };
        self.queue(number, &ToSlot::Execute(execute), collected.bulk);
    }

    /// Sends a stream's program and functions to a slot that doesn't have them yet.
    fn define(&mut self, number: u32, stream_number: u64) {
        let Some(stream) = self.streams.get(&stream_number) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if !slot.streams.insert(stream_number) {
            return;
        }
        let missing: Vec<Function> = stream
            .functions
            .iter()
            .filter(|function| slot.functions.insert(function.digest))
            .cloned()
            .collect();
        let define = ToSlot::Define {
            stream: stream.id.0,
            call: stream.call,
            segments: stream.segments.clone(),
        };
        for function in missing {
            self.queue(
                number,
                &ToSlot::Function {
                    digest: function.digest,
                    pickle: function.pickle,
                },
                Vec::new(),
            );
        }
        self.queue(number, &define, Vec::new());
    }

    fn queue(&mut self, number: u32, message: &ToSlot, bulk: Vec<Bytes>) {
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        let link = match message {
            ToSlot::Setup(_) | ToSlot::Function { .. } | ToSlot::Define { .. } => slot.code,
            _ => slot.tasks,
        };
        let (handler, head) = message.encode();
        let message = Message {
            handler,
            kind: MessageKind::Post,
            head,
            bulk,
        };
        if let Err(error) = slot.connection.queue(link, message) {
            // Over a limit, or the session is ending: its end puts the items back.
            slot.connection.abort(CloseReason::Fault(error.to_string()));
        }
        if self.dirty.last() != Some(&number) {
            self.dirty.push(number);
        }
    }

    fn flush(&mut self) {
        for number in self.dirty.drain(..) {
            if let Some(slot) = self.slots.get(&number) {
                slot.connection.flush();
            }
        }
    }

    /// Tells user threads how many items they may hand over, and whether they should hurry.
    fn publish(&self) {
        for stream in self.streams.values() {
            if !stream.bounded {
                continue;
            }
            let tickets = if stream.backlog.is_empty() {
                self.scheduler.tickets(stream.id)
            } else {
                0
            };
            stream
                .outlet
                .set_admissible(stream.received + u64::from(tickets));
            let ready = self
                .scheduler
                .progress(stream.id)
                .map_or(0, |progress| progress.ready);
            stream
                .outlet
                .set_hungry(ready == 0 && self.someone_is_idle());
        }
    }

    fn someone_is_idle(&self) -> bool {
        self.slots.keys().any(|number| {
            self.scheduler
                .slot_statistics(SlotId(*number))
                .is_some_and(|statistics| statistics.outstanding == 0)
        })
    }

    /// Lets a user thread that waits look at the notices.
    fn wake_users(&self) {
        for stream in self.streams.values() {
            stream.outlet.notify();
        }
    }
}

struct Frame {
    frame: u64,
    stream: StreamId,
    segment: u16,
    first: u64,
    count: u32,
    grant: u64,
}
