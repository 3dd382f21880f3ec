//! The manager's side: one driver thread that owns the scheduler and all connections, and a handle for user threads.
//!
//! User threads never touch the scheduler. They leave commands and find outcomes in their stream's
//! [`ResultQueue`]; the driver never waits for them and never needs the interpreter.

mod attempt;
mod child_process;
mod children;
mod driver;
mod recruit;
mod run;
mod status;
mod zygote;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_flow::SchedulerConfig;
pub use exoskel_flow::Tickets;
pub use exoskel_task::router::{Function, StreamPlan};
use tokio::sync::Notify;

pub use crate::host_file::{HostFile, HostLine};
pub use attempt::{Attempt, AttemptError};
pub use children::{LocalTransport, LocalWorkers};
use exoskel_flow::contract::Tier;
pub use exoskel_flow::contract::{Contract, ItemsDeadline};
pub use exoskel_node::manager::history::SlotChange;
pub use exoskel_node::manager::notice::{EarlyPhase, Notice, Output, Unwanted};
pub use exoskel_node::manager::worker_table::WorkerReport;
pub use recruit::Recruiting;
pub use status::{ManagerStatus, StreamState};

use crate::establish::NodeConfig;
use crate::listening::Listening;
use crate::payload::BatchBuilder;
use crate::result_queue::{OutcomeOrder, ResultQueue, StreamEnd};
use crate::shared_table::SharedTable;
use crate::sources::NodeConfigRenewal;

/// Spent buffers that wait for the driver at most.
const SPENT_MAX: usize = 64;
/// The commands that may wait before their queue has to grow.
const COMMANDS_ROOM: usize = 64;

/// Items that the driver looks at together, at most, unless more were handed over at once: what is kept of them goes when the
/// last one is through.
const BATCH_ITEMS_MAX: u32 = 4096;

/// Their bytes.
const BATCH_BYTES_MAX: u64 = 128 * 1024;

/// How long a user's thread waits for an answer of the driver.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Notices that wait for the user at most; later ones are dropped.
const NOTICES_MAX: usize = 10_000;

/// What workers print and who was refused may take up half of them, and so many bytes: whoever fills these must not
/// keep a warning from the user, nor use up memory. Warnings, which repeat reasons of peers, may have as many bytes again.
const NOTICE_BYTES_MAX: usize = 16 << 20;

/// A message between the manager and a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedMessage {
    /// The number of the slot's session; a new session has a new one.
    pub slot: u32,
    /// Whether the manager sends it.
    pub is_sent: bool,
    /// Its size with everything that belongs to it.
    pub bytes: u64,
    /// When, since the manager began.
    pub at: Duration,
}

/// Somebody who wants to know of each message.
pub type MessageObserver = Box<dyn FnMut(ObservedMessage) + Send>;

/// What a manager is made of.
pub struct ManagerConfig {
    /// Who we are and how links are protected.
    pub terms: NodeConfig,
    /// Looked at every few seconds: new terms when credential, policy or revocation list have changed.
    pub renewal: Option<NodeConfigRenewal>,
    /// Told of each message; called by the driver, so it must not take long.
    pub observer: Option<MessageObserver>,
    /// The scheduler's limits.
    pub scheduler: SchedulerConfig,
    /// Where slots come from.
    pub recruiting: Recruiting,
    /// What slots get before any code (opaque here): for children of this process, and for all others.
    pub setup_local: Bytes,
    /// See [`ManagerConfig::setup_local`].
    pub setup_remote: Bytes,
    /// Whether slots have an initializer to run.
    pub has_initializer: bool,
    /// What slots may ask for.
    pub shared: Arc<SharedTable>,
    /// Called by the driver's thread at its end, when it has let go of everything.
    pub at_end: fn(),
}

/// How recruiting stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Slots that can work, or will when their initializer has run.
    pub ready: u32,
    /// Attempts that are under way.
    pub pending: u32,
    /// Slots that were asked for.
    pub wanted: u32,
    /// Whether nobody else can be asked.
    pub is_final: bool,
    /// Whether the manager has ended.
    pub is_over: bool,
    /// The last attempt at each place where one has failed, most recent last.
    pub attempts: Vec<Attempt>,
}

/// A running manager. Dropping it without [`ManagerNode::shutdown`] ends the driver as well.
pub struct ManagerNode {
    shared: Arc<Shared>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

/// A stream as user threads see it.
#[derive(Clone)]
pub struct StreamHandle {
    shared: Arc<Shared>,
    number: u64,
    /// Where its outcomes wait.
    pub results: Arc<ResultQueue>,
}

pub(crate) struct Shared {
    commands: Mutex<Commands>,
    wake: Notify,
    pending: AtomicBool,
    streams: AtomicU64,
    notices: Mutex<Notices>,
    has_notices: AtomicBool,
    /// Memory of received results that users no longer need, until the driver has gone.
    spent: Mutex<Option<Vec<Vec<u8>>>>,
    readiness: Mutex<Readiness>,
    readiness_changed: Condvar,
}

/// Commands that wait for the driver.
struct Commands {
    list: Vec<Command>,
    /// The driver has gone: nobody takes them.
    is_over: bool,
}

pub(crate) enum Command {
    Open(u64, StreamPlan, Arc<ResultQueue>),
    Admit(u64, BatchBuilder),
    EndOfInput(u64),
    Taken { stream: u64, first: u64, count: u32 },
    Cancel(u64, u64, mpsc::Sender<bool>),
    CancelWaiting(u64, mpsc::Sender<Vec<u64>>),
    IsWaiting(u64, u64, mpsc::Sender<bool>),
    Close(u64),
    Report(mpsc::Sender<Vec<WorkerReport>>),
    Status(mpsc::Sender<ManagerStatus>),
    History(mpsc::Sender<Vec<SlotChange>>),
    ExpectNobody,
    Shutdown,
}

impl Command {
    /// Nobody does what was wanted. Who waits for an answer gets none, and who waits for outcomes is told.
    fn refuse(self) {
        if let Self::Open(_, _, results) = self {
            results.end(StreamEnd::Closed);
        }
    }
}

/// Notices that wait for the user.
#[derive(Default)]
struct Notices {
    list: Vec<Notice>,
    /// Of what workers print and who was refused.
    bytes: usize,
    /// Of warnings.
    warning_bytes: usize,
}

impl Notices {
    fn push(&mut self, notice: Notice) {
        let (bytes, held, count_max) = match &notice {
            Notice::Output(output) => (
                output.text.raw_for_comparison().len(),
                &mut self.bytes,
                NOTICES_MAX / 2,
            ),
            Notice::Audit(text) => (text.len(), &mut self.bytes, NOTICES_MAX / 2),
            Notice::Warning(text) => (text.len(), &mut self.warning_bytes, NOTICES_MAX),
        };
        if self.list.len() < count_max && *held + bytes <= NOTICE_BYTES_MAX {
            *held += bytes;
            self.list.push(notice);
        }
    }
}

/// Whether the policy is sure to place all of these workers outside its trusted domains.
#[must_use]
pub fn are_remote(terms: &NodeConfig, hosts: &[HostLine]) -> bool {
    let is_remote = |line| driver::expected_tier(terms, line) == Some(Tier::Remote);
    hosts.iter().all(is_remote)
}

impl ManagerNode {
    /// Starts the driver and begins to recruit.
    ///
    /// # Errors
    /// When no thread can be had, or the system refuses the listening socket.
    pub fn start(mut config: ManagerConfig) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            commands: Mutex::new(Commands {
                list: Vec::with_capacity(COMMANDS_ROOM),
                is_over: false,
            }),
            wake: Notify::new(),
            pending: AtomicBool::new(false),
            streams: AtomicU64::new(0),
            notices: Mutex::default(),
            has_notices: AtomicBool::new(false),
            spent: Mutex::new(Some(Vec::new())),
            readiness: Mutex::new(Readiness {
                wanted: config.recruiting.slots,
                ..Readiness::default()
            }),
            readiness_changed: Condvar::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let for_driver = shared.clone();
        let (at_end, of_thread) = (config.at_end, shared.clone());
        let entered = runtime.enter();
        let listening = config.recruiting.listen.take();
        let listening = listening.map(Listening::into_parts).transpose()?;
        drop(entered);
        let driver = std::thread::Builder::new()
            .name("exoskel-driver".to_owned())
            .spawn(move || {
                let tasks = tokio::task::LocalSet::new();
                tasks.block_on(&runtime, run::run(config, listening, for_driver));
                drop(tasks);
                runtime.shutdown_timeout(Duration::from_secs(1));
                // It was this thread's.
                lock(&of_thread.spent).take();
                at_end();
            })?;
        Ok(Self {
            shared,
            driver: Mutex::new(Some(driver)),
        })
    }

    /// Opens a stream, whose outcomes come in this order.
    #[must_use]
    pub fn open(&self, plan: StreamPlan, order: OutcomeOrder) -> StreamHandle {
        let number = self.shared.streams.fetch_add(1, Ordering::Relaxed);
        let results = Arc::new(ResultQueue::new(order));
        self.shared
            .command(Command::Open(number, plan, results.clone()));
        StreamHandle {
            shared: self.shared.clone(),
            number,
            results,
        }
    }

    /// Waits until recruiting has changed from `seen`, for at most `patience`, and says how it stands.
    #[must_use]
    pub fn wait_readiness(&self, seen: &Readiness, patience: Duration) -> Readiness {
        let deadline = Instant::now() + patience;
        let mut readiness = lock(&self.shared.readiness);
        while *readiness == *seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.readiness_changed.wait_timeout(readiness, left);
            readiness = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        readiness.clone()
    }

    /// What every worker did so far; empty when the driver is gone.
    #[must_use]
    pub fn report(&self) -> Vec<WorkerReport> {
        let (sender, receiver) = mpsc::channel();
        self.shared.command(Command::Report(sender));
        receiver.recv_timeout(ANSWER_TIME).unwrap_or_default()
    }

    /// How everything stands; nothing when the driver is gone.
    #[must_use]
    pub fn status(&self) -> Option<ManagerStatus> {
        let (sender, receiver) = mpsc::channel();
        self.shared.command(Command::Status(sender));
        receiver.recv_timeout(ANSWER_TIME).ok()
    }

    /// What became of the slots, when and why; nothing when the driver is gone.
    #[must_use]
    pub fn history(&self) -> Option<Vec<SlotChange>> {
        let (sender, receiver) = mpsc::channel();
        self.shared.command(Command::History(sender));
        receiver.recv_timeout(ANSWER_TIME).ok()
    }

    /// Waits until so many slots can work no longer or more can, for at most `patience`, and says how many can; nothing when the
    /// manager has ended.
    #[must_use]
    pub fn wait_capacity(&self, seen: u32, patience: Duration) -> Option<u32> {
        let readiness = lock(&self.shared.readiness);
        let is_same = |readiness: &mut Readiness| readiness.ready == seen && !readiness.is_over;
        let waited = self
            .shared
            .readiness_changed
            .wait_timeout_while(readiness, patience, is_same);
        let readiness = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!readiness.is_over).then_some(readiness.ready)
    }

    /// How many slots are wanted now.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        lock(&self.shared.readiness).wanted
    }

    /// Whether [`ManagerNode::take_notices`] would find something.
    #[must_use]
    pub fn has_notices(&self) -> bool {
        self.shared.has_notices.load(Ordering::Relaxed)
    }

    /// What there is to tell the user.
    #[must_use]
    pub fn take_notices(&self) -> Vec<Notice> {
        self.shared.has_notices.store(false, Ordering::Relaxed);
        std::mem::take(&mut *lock(&self.shared.notices)).list
    }

    /// Says that nobody will dial in any more.
    pub fn expect_nobody(&self) {
        self.shared.command(Command::ExpectNobody);
    }

    /// Ends all sessions in order, waits for local workers to leave, and ends the driver.
    pub fn shutdown(&self) {
        self.shared.command(Command::Shutdown);
        if let Some(driver) = lock(&self.driver).take() {
            // A panic of the driver has been printed; there is nothing left to end.
            let _ = driver.join();
        }
        let over = |readiness: &mut Readiness| readiness.is_over = true;
        self.shared.change_readiness(over);
        self.shared.end();
    }
}

impl Drop for ManagerNode {
    fn drop(&mut self) {
        self.shared.command(Command::Shutdown);
    }
}

impl StreamHandle {
    /// Hands items over. The caller keeps within [`ResultQueue::admissible`] for bounded streams.
    pub fn admit(&self, items: &mut BatchBuilder) {
        self.leave(items);
        self.shared.wake_driver();
    }

    /// Hands items over, of which the driver hears only when it has few.
    pub fn admit_when_wanted(&self, items: &mut BatchBuilder) {
        self.leave(items);
        // The driver says that it is not, and looks at what was left before that.
        if !self.results.has_plenty() {
            self.shared.wake_driver();
        }
    }

    /// Puts items where the driver finds them, beside those that it hasn't looked at yet.
    fn leave(&self, items: &mut BatchBuilder) {
        let mut commands = lock(&self.shared.commands);
        if commands.is_over {
            return drop(std::mem::take(items));
        }
        match commands.list.last_mut() {
            Some(Command::Admit(number, waiting))
                if *number == self.number
                    && waiting.count() + items.count() <= BATCH_ITEMS_MAX
                    && waiting.bytes() + items.bytes() <= BATCH_BYTES_MAX =>
            {
                waiting.append(items);
            }
            _ => {
                let items = std::mem::take(items);
                commands.list.push(Command::Admit(self.number, items));
            }
        }
    }

    /// No more items will come.
    pub fn end_of_input(&self) {
        self.shared.command(Command::EndOfInput(self.number));
    }

    /// The user has taken outcomes: their tickets are free.
    pub fn taken(&self, first: u64, count: u32) {
        self.shared.command(Command::Taken {
            stream: self.number,
            first,
            count,
        });
    }

    /// Takes memory back that received results no longer need.
    pub fn recycle(&self, spent: &mut Vec<Vec<u8>>) {
        if let Some(kept) = &mut *lock(&self.shared.spent) {
            if kept.capacity() == 0 {
                kept.reserve_exact(SPENT_MAX);
            }
            let room = SPENT_MAX.saturating_sub(kept.len());
            kept.extend(spent.drain(..).take(room));
        }
        spent.clear();
    }

    /// Takes an item back that no worker has begun; says whether that was possible.
    #[must_use]
    pub fn cancel(&self, index: u64) -> bool {
        self.ask(|reply| Command::Cancel(self.number, index, reply))
    }

    /// Takes all items back that no worker has begun, and says which they are.
    #[must_use]
    pub fn cancel_waiting(&self) -> Vec<u64> {
        self.ask(|reply| Command::CancelWaiting(self.number, reply))
    }

    /// Whether no worker has an item, and it has no outcome.
    #[must_use]
    pub fn is_waiting(&self, index: u64) -> bool {
        self.ask(|reply| Command::IsWaiting(self.number, index, reply))
    }

    /// The outcome of an item is wanted no more: it goes when it is there.
    pub fn forget(&self, index: u64) {
        for (first, count) in self.results.forget(index) {
            self.taken(first, count);
        }
    }

    /// Asks the driver; when it is gone, the answer is that there is nothing.
    fn ask<T: Default>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> T {
        let (sender, receiver) = mpsc::channel();
        self.shared.command(command(sender));
        receiver.recv_timeout(ANSWER_TIME).unwrap_or_default()
    }

    /// Forgets the stream and all of its items. Who waits for their outcomes is told.
    pub fn close(&self) {
        self.results.end(StreamEnd::Closed);
        self.shared.command(Command::Close(self.number));
    }
}

impl Shared {
    fn command(&self, command: Command) {
        let mut commands = lock(&self.commands);
        if commands.is_over {
            drop(commands);
            return command.refuse();
        }
        commands.list.push(command);
        drop(commands);
        self.wake_driver();
    }

    /// The driver has gone: nobody does what is wanted from now on, nor what still waits.
    fn end(&self) {
        let mut commands = lock(&self.commands);
        commands.is_over = true;
        let left = std::mem::take(&mut commands.list);
        drop(commands);
        left.into_iter().for_each(Command::refuse);
    }

    fn wake_driver(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// The commands since the last time. The queue keeps its memory: what a user's thread allocates between large results keeps the heap from
    /// shrinking when they are dropped.
    fn take_commands(&self) -> Vec<Command> {
        self.pending.store(false, Ordering::Release);
        lock(&self.commands).list.drain(..).collect()
    }

    /// The memory that came back since the last time; the list keeps its own, as above.
    fn take_spent(&self) -> Vec<Vec<u8>> {
        let mut spent = lock(&self.spent);
        spent.iter_mut().flat_map(|spent| spent.drain(..)).collect()
    }

    fn has_commands(&self) -> bool {
        !lock(&self.commands).list.is_empty()
    }

    fn notice(&self, notice: Notice) {
        lock(&self.notices).push(notice);
        self.has_notices.store(true, Ordering::Relaxed);
    }

    fn attempts(&self) -> Vec<Attempt> {
        lock(&self.readiness).attempts.clone()
    }

    fn change_readiness(&self, change: impl FnOnce(&mut Readiness)) {
        change(&mut lock(&self.readiness));
        self.readiness_changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
