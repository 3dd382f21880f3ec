//! A manager with two workers over TCP: an honest one, and one that does as it is told by a test.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::{FunctionId, Lease, SchedulerConfig, Skeleton};
use exoskel_link::{Event, LinkId, Message, MessageKind, TrafficClass};
use exoskel_net::address::Address;
use exoskel_net::connection::Connection;
use exoskel_net::establish::{Established, NodeConfig, welcome};
use exoskel_net::manager::{
    Function, HostLine, ManagerConfig, ManagerNode, Notice, Readiness, Recruiting, StreamHandle,
    StreamPlan, Tickets,
};
use exoskel_net::message::{Call, Execute, PIECE_BYTES_MAX, RESULT_ENDPOINT, ToManager, ToSlot};
use exoskel_net::payload::{BatchBuilder, Format, RecordReader, RecordWriter};
use exoskel_net::result_queue::{Contents, OutcomeOrder, Taken};
use exoskel_net::shared_table::SharedTable;
use exoskel_net::slot::{SlotNode, Work};
use exoskel_net::socket::Socket;
use tokio::sync::watch;

use crate::wire::{Site, anybody};

/// How long a run of a few hundred items may take on a loaded machine.
const RUN_TIME: Duration = Duration::from_secs(20);

pub(crate) const ITEMS: u32 = 300;

/// What is done to a frame in place of running it.
pub(crate) type Strike = fn(&Hostile, &Execute);

/// A slot that speaks for itself.
pub(crate) struct Hostile {
    pub(crate) connection: Arc<Connection>,
    pub(crate) results: LinkId,
    pub(crate) tasks: std::cell::Cell<Option<LinkId>>,
    /// Whether it keeps the credit for what it is sent from now on.
    pub(crate) keeps_credit: std::cell::Cell<bool>,
}

impl Hostile {
    pub(crate) fn say(&self, message: &ToManager) {
        self.say_with(message, Vec::new());
    }

    pub(crate) fn say_with(&self, message: &ToManager, bulk: Vec<Bytes>) {
        let (handler, head) = message.encode();
        self.raw(self.results, handler, MessageKind::Post, head, bulk);
    }

    /// Says anything. Once the session has ended, nothing can be said.
    pub(crate) fn raw(
        &self,
        link: LinkId,
        handler: u16,
        kind: MessageKind,
        head: Bytes,
        bulk: Vec<Bytes>,
    ) {
        let message = Message {
            handler,
            kind,
            head,
            bulk,
            is_gathered: false,
        };
        let _ = self.connection.send(link, message);
    }

    /// What an honest slot would say to items `first .. first + count` of a frame.
    pub(crate) fn honest(&self, execute: &Execute, first: u64, count: u32) -> ToManager {
        ToManager::Results {
            frame: execute.frame,
            first,
            reached: execute.to + 1,
            count,
            busy: 1000,
            records: records(execute.to, first, count),
        }
    }

    pub(crate) fn answer(&self, execute: &Execute) {
        self.say(&self.honest(execute, execute.first, execute.count));
    }
}

/// The results of consecutive items: their numbers, and how many segments they have been through.
pub(crate) fn records(segment: u16, first: u64, count: u32) -> Bytes {
    let mut writer = RecordWriter::default();
    for index in first..first + u64::from(count) {
        writer.push(Format::Data, false, &outcome(index, segment), &[], []);
    }
    writer.take().1
}

fn outcome(index: u64, segment: u16) -> Vec<u8> {
    let mut body = index.to_be_bytes().to_vec();
    body.push(u8::try_from(segment).unwrap() + 1);
    body
}

/// A worker's thread.
pub(crate) struct Worker {
    line: HostLine,
    thread: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Worker {
    fn start<F>(
        terms: NodeConfig,
        serve: impl Fn(Established, watch::Receiver<bool>) -> F + Send + 'static,
        again: bool,
    ) -> Self
    where
        F: Future<Output = ()>,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = HostLine {
            address: Address::Tcp(listener.local_addr().unwrap().to_string()),
            name: terms.credential.identity().name,
        };
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let work = async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut ending = stopped.clone();
                loop {
                    let stream = tokio::select! {
                        accepted = listener.accept() => accepted.unwrap().0,
                        _ = ending.wait_for(|stop| *stop) => return,
                    };
                    let socket = Socket::tcp(stream).unwrap();
                    // A manager that goes in the middle of a handshake is nobody's fault.
                    let Ok(established) = welcome(socket, &terms, anybody).await else {
                        continue;
                    };
                    tokio::select! {
                        () = serve(established, stopped.clone()) => {}
                        _ = ending.wait_for(|stop| *stop) => return,
                    }
                    if !again {
                        return;
                    }
                }
            };
            runtime.block_on(work);
        });
        Self { line, thread, stop }
    }

    /// One that does its work.
    pub(crate) fn honest(site: &Site, name: &str) -> Self {
        Self::start(site.worker(name), honest, true)
    }

    /// One that does something else with the first frames, `times` altogether, and answers the others; counts how often.
    pub(crate) fn hostile(site: &Site, strike: Strike, times: usize) -> (Self, Arc<AtomicUsize>) {
        Self::named(site, "evil", strike, times)
    }

    /// The same under another name.
    pub(crate) fn named(
        site: &Site,
        name: &str,
        strike: Strike,
        times: usize,
    ) -> (Self, Arc<AtomicUsize>) {
        let struck = Arc::new(AtomicUsize::new(0));
        let counter = struck.clone();
        let serve =
            move |established, stop| hostile(established, stop, strike, times, counter.clone());
        (Self::start(site.worker(name), serve, false), struck)
    }

    /// One that sends nonsense as soon as a session begins, and takes the next one; counts the sessions.
    pub(crate) fn breaking(site: &Site) -> (Self, Arc<AtomicUsize>) {
        let sessions = Arc::new(AtomicUsize::new(0));
        let counter = sessions.clone();
        let serve = move |established: Established, _| {
            counter.fetch_add(1, Ordering::Relaxed);
            async move {
                nonsense(&established.connection);
                established.connection.run(drop).await;
            }
        };
        (Self::start(site.worker("evil"), serve, true), sessions)
    }

    /// Its line in a hosts file.
    pub(crate) fn line(&self) -> HostLine {
        self.line.clone()
    }

    /// Ends it.
    pub(crate) fn end(self) {
        self.stop.send_replace(true);
        self.thread.join().unwrap();
    }
}

/// Writes what is no record, as somebody on the wire could.
pub(crate) fn nonsense(connection: &Connection) {
    let transport = connection.transport();
    let _ = transport.try_write_vectored(&[std::io::IoSlice::new(&[0xff; 64])]);
}

async fn honest(established: Established, _: watch::Receiver<bool>) {
    let connection = established.connection;
    for endpoint in SlotNode::endpoints() {
        connection.with(|session| session.offer(endpoint)).unwrap();
    }
    let node = SlotNode::start(connection, established.message_bytes_max).unwrap();
    let interpreter = node.clone();
    let thread = std::thread::spawn(move || interpret(&interpreter));
    node.run().await;
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();
}

/// What stands in for an interpreter: it counts the segments that an item has been through.
fn interpret(node: &SlotNode) {
    let finish = |item: exoskel_net::slot::Item| {
        let body = outcome(item.key.index, item.key.to);
        // The session may be over.
        let _ = node.finish(item.key, |writer| {
            writer.push(Format::Data, false, &body, &[], []);
        });
    };
    let mut passed = Vec::new();
    loop {
        match node.wait(Duration::from_millis(50)) {
            Work::Item(item) if item.lease == Lease::PassedOn => passed.push(item),
            Work::Item(item) => {
                if item.lease == Lease::Kept {
                    let _ = node.pass(item.key);
                }
                finish(item);
            }
            Work::Rest { frame } => {
                let _ = node.release(frame);
                passed.drain(..).for_each(finish);
            }
            Work::Code(ToSlot::Setup { .. }) => drop(node.ready(Vec::new(), Vec::new())),
            Work::Ended(_) => return,
            _ => {}
        }
    }
}

async fn hostile(
    established: Established,
    _: watch::Receiver<bool>,
    strike: Strike,
    times: usize,
    struck: Arc<AtomicUsize>,
) {
    let connection = established.connection;
    for endpoint in SlotNode::endpoints() {
        connection.with(|session| session.offer(endpoint)).unwrap();
    }
    let open = |session: &mut exoskel_link::Session| {
        session.open_link(RESULT_ENDPOINT, TrafficClass::Data)
    };
    let results = connection.with(open).unwrap();
    let slot = Hostile {
        connection: connection.clone(),
        results,
        tasks: std::cell::Cell::new(None),
        keeps_credit: std::cell::Cell::new(false),
    };
    slot.say(&ToManager::Ready { lacks: Vec::new() });
    let mut frames = HashMap::new();
    let mut endpoints = HashMap::new();
    let handle = |event| match event {
        Event::LinkOpened { link, endpoint, .. } => drop(endpoints.insert(link, endpoint)),
        Event::Message {
            link,
            handler,
            head,
            size,
            ..
        } => {
            if !slot.keeps_credit.get() {
                slot.connection.consumed(link, size);
            }
            if endpoints[&link] != exoskel_net::message::TASK_ENDPOINT {
                return;
            }
            slot.tasks.set(Some(link));
            match ToSlot::decode_task(handler, head).unwrap() {
                ToSlot::Execute(execute) => {
                    if struck.load(Ordering::Relaxed) < times {
                        struck.fetch_add(1, Ordering::Relaxed);
                        strike(&slot, &execute);
                    } else {
                        slot.answer(&execute);
                    }
                    frames.insert(execute.frame, execute);
                }
                ToSlot::Grant { frame, index } => {
                    slot.say(&slot.honest(&frames[&frame], index, 1));
                }
                ToSlot::Recall { frame, .. } => slot.say(&ToManager::Recalled {
                    frame,
                    first: 0,
                    count: 0,
                }),
                _ => {}
            }
        }
        _ => {}
    };
    connection.run(handle).await;
}

/// How many items came out of a run, and what the manager told its user.
pub(crate) struct Outcome {
    pub(crate) notices: Vec<Notice>,
    pub(crate) struck: usize,
}

/// Runs all items through a manager with an honest worker and a hostile one. Every item must have exactly one outcome,
/// the honest one.
pub(crate) fn outcomes(strike: Strike, times: usize) -> Outcome {
    let site = Site::new();
    let (evil, struck) = Worker::hostile(&site, strike, times);
    let workers = [Worker::honest(&site, "good"), evil];
    let notices = manage(&site, &workers);
    for worker in workers {
        worker.end();
    }
    Outcome {
        notices,
        struck: struck.load(Ordering::Relaxed),
    }
}

/// What the managers here share.
pub(crate) const SHARED: [u8; 32] = [7; 32];

fn manage(site: &Site, workers: &[Worker]) -> Vec<Notice> {
    let shared = Arc::new(SharedTable::default());
    shared.insert(SHARED, vec![0; PIECE_BYTES_MAX as usize].into());
    let manager = ManagerNode::start(ManagerConfig {
        at_end: || (),
        terms: site.manager(),
        renewal: None,
        observer: None,
        scheduler: SchedulerConfig {
            frame_items_max: 16,
            ..SchedulerConfig::default()
        },
        recruiting: Recruiting {
            slots: 2,
            contract: None,
            local: None,
            hosts: workers.iter().map(|worker| worker.line.clone()).collect(),
            listen: None,
            host_file: None,
            hearing: None,
            patience: Duration::from_secs(60),
        },
        setup_local: Bytes::new(),
        setup_remote: Bytes::new(),
        has_initializer: false,
        shared,
    })
    .unwrap();
    let mut seen = Readiness::default();
    let deadline = Instant::now() + RUN_TIME;
    while seen.ready < 2 {
        assert!(Instant::now() < deadline, "{seen:?}");
        seen = manager.wait_readiness(&seen, Duration::from_millis(500));
    }
    let function = |number: u8| Function {
        digest: [number; 32],
        pickle: Bytes::from_static(b"a function"),
    };
    // Two segments: what comes out of the first one goes to a slot again.
    let stage = |number| Skeleton::Seq(FunctionId(number));
    let skeleton = Skeleton::Pipeline(vec![
        Skeleton::Farm(Box::new(stage(0))),
        stage(1),
        Skeleton::Farm(Box::new(stage(2))),
    ]);
    let plan = StreamPlan {
        skeleton,
        functions: (0..3).map(function).collect(),
        call: Call::Item,
        tickets: Tickets::Unbounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    };
    let stream = manager.open(plan, OutcomeOrder::Admission);
    let mut batch = BatchBuilder::default();
    for index in 0..ITEMS {
        batch.push(Format::Pickle, &index.to_be_bytes(), &[], Vec::new());
    }
    stream.admit(&mut batch);
    stream.end_of_input();
    take_all(&stream, deadline, &manager);
    // The driver is alive and well.
    assert!(!manager.report().is_empty());
    let notices = manager.take_notices();
    manager.shutdown();
    notices
}

fn take_all(stream: &StreamHandle, deadline: Instant, manager: &ManagerNode) {
    let mut next = 0;
    while next < u64::from(ITEMS) {
        let late = || panic!("{next} of {ITEMS} outcomes; {:?}", manager.take_notices());
        if Instant::now() > deadline {
            late();
        }
        match stream.results.wait(Duration::from_millis(200), None) {
            Taken::Outcomes(outcomes) => {
                assert_eq!(outcomes.first, next);
                let Contents::Records(reader, origin) = outcomes.contents else {
                    panic!("lost workers for items from {next} on");
                };
                check(reader, next, outcomes.count, &origin.worker);
                next += u64::from(outcomes.count);
                stream.taken(outcomes.first, outcomes.count);
            }
            Taken::Ended(reason) => panic!("the stream ended at {next}: {reason}"),
            Taken::Nothing => {}
        }
    }
    let more = stream.results.wait(Duration::from_millis(20), None);
    assert!(matches!(more, Taken::Nothing), "more outcomes than items");
}

fn check(mut reader: RecordReader, first: u64, count: u32, worker: &str) {
    for index in first..first + u64::from(count) {
        let record = reader.next_record();
        let record = record.unwrap_or_else(|error| panic!("item {index} of {worker}: {error}"));
        let record = record.unwrap_or_else(|| panic!("item {index} of {worker} is missing"));
        assert_eq!(
            record.body[..8],
            index.to_be_bytes(),
            "item {index} of {worker}"
        );
        assert!(record.bulk.is_empty());
    }
    assert!(reader.is_empty(), "more records than items, of {worker}");
}
