//! What a run of the whole system is made of.

use std::time::Duration;

use exoskel_flow::contract::Contract;
use exoskel_flow::{Index, SchedulerConfig, Skeleton};
use exoskel_link::keys::{COMPACT_KEY_BYTES, Geometry, GeometryError, KeyStore};
use exoskel_link::{CipherSuite, EpochLimits, Limits, Protections};
use exoskel_task::payload::Format;

use crate::deliveries::BrokenDelivery;
use crate::network::LinkModel;
use crate::service::Service;

/// Which node: the manager, or a worker by its place in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// The manager and its users.
    Manager,
    /// A worker.
    Worker(usize),
}

/// How the manager's process ends in a write to its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// Its host is gone, with all that was not synced.
    HostGone,
    /// It is killed. Its host has all that it has written.
    Killed,
    /// The disk is full: it closes what it has open, and ends.
    DiskFull,
}

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// Nothing that the worker sends (`from`), or that is sent to it (`to`), arrives until [`InjectedFault::Repair`]. Nothing is lost
    /// by it but time, as TCP sends again.
    Partition {
        /// Which worker.
        worker: usize,
        /// What it sends.
        from: bool,
        /// What it is sent.
        to: bool,
    },
    /// Nobody accepts new connections at the worker until [`InjectedFault::Repair`]; those that there are go on.
    Refuse {
        /// Which worker.
        worker: usize,
    },
    /// The end of a partition, or of refusals.
    Repair {
        /// Which worker.
        worker: usize,
    },
    /// The node stands still until [`InjectedFault::Release`], as a stopped process or a host without memory.
    Hold(Node),
    /// It goes on.
    Release(Node),
    /// The node's process is gone; another one is there after `restart`. A manager's users are gone with it, and the next
    /// one, which knows nothing, begins with all streams from their start.
    Crash {
        /// Which node.
        node: Node,
        /// Nobody is told: the host is gone, not only the process.
        silent: bool,
        /// Until it is back.
        restart: Duration,
    },
    /// The manager's process is gone in the midst of one of the writes to its disks, where runs have a journal; another one is there after `restart`.
    EndInWrite {
        /// After so many other writes from now on.
        writes: u64,
        /// What ends it.
        end: WriteEnd,
        /// Until it is back.
        restart: Duration,
    },
    /// The worker says good-bye, and comes back.
    Leave {
        /// Which worker.
        worker: usize,
    },
    /// The worker is told to end: it finishes what runs, gives back the rest, says good-bye, and comes back.
    Drain {
        /// Which worker.
        worker: usize,
    },
    /// The connection breaks; both ends are told, and what was on the way is lost.
    Cut {
        /// Whose.
        worker: usize,
    },
    /// One bit of what arrives next on the worker's connection is another.
    Alter {
        /// Whose.
        worker: usize,
        /// On the way to the manager, or from it.
        to_manager: bool,
    },
    /// The worker needs so many times as long for everything from now on.
    Slow {
        /// Which worker.
        worker: usize,
        /// How many times.
        slowness: u32,
    },
    /// The node's clock jumps ahead.
    Jump {
        /// Whose.
        node: Node,
        /// By so much.
        by: Duration,
    },
    /// The manager's contract needs so many slots from now on: the others are given back.
    Want(u32),
    /// The manager's policy demands these protections from now on.
    Raise(Protections),
    /// The worker's certificate is revoked, with all of its slots'.
    Revoke {
        /// Which worker.
        worker: usize,
    },
    /// The worker's wire is worn out: from now on one bit of each of its connections is another, some time.
    WearOut {
        /// Whose.
        worker: usize,
    },
}

/// One slot of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerScenario {
    /// Its worker: slots with the same number are of one worker, and have its name.
    pub host: usize,
    /// Modules that the programs need and that are not installed at its worker.
    pub lacks: Vec<String>,
    /// The initializer raises at its worker, if there is one.
    pub initializer_raises: bool,
    /// It is in a trusted domain.
    pub in_domain: bool,
    /// How many times as long as usual it needs.
    pub slowness: u32,
    /// What its policy demands at least.
    pub minimum: Protections,
    /// It can't prove that nobody stands between.
    pub is_relayed: bool,
    /// How it must answer.
    pub format: Format,
    /// How much faster its clock runs, in parts per million.
    pub drift: i32,
    /// When it comes.
    pub joins_at: Duration,
    /// After the end of a session it comes again after this time.
    pub rejoins_after: Duration,
}

/// The order in which a user takes outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakingOrder {
    /// That of the items.
    Admission,
    /// As they come.
    Completion,
}

/// One stream of items and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamScenario {
    /// The program.
    pub skeleton: Skeleton,
    /// How many items there are.
    pub items: u64,
    /// How long each function takes.
    pub service: Service,
    /// Bytes of an item, evenly from 1 to this.
    pub input_bytes_max: u64,
    /// Bytes of a result, evenly from 1 to this.
    pub result_bytes_max: u64,
    /// Large ones travel beside their records.
    pub has_bulk: bool,
    /// The order in which outcomes are taken.
    pub order: TakingOrder,
    /// Any number of items may be inside.
    pub unbounded: bool,
    /// When it is opened.
    pub opens_at: Duration,
    /// The most items handed over at once.
    pub batch_max: u64,
    /// How long the user works on an outcome.
    pub take_time: Duration,
    /// A slot that runs one of these items dies of it.
    pub poison: Vec<Index>,
    /// After so long.
    pub poison_time: Duration,
    /// One of so many items can't be sent; 0: none.
    pub unsent_one_in: u64,
    /// Results that must be data are pickles for one of so many items; 0: none.
    pub pickled_one_in: u64,
    /// One of so many attempts at a segment raises what its item runs again for; 0: none.
    pub retriable_one_in: u64,
    /// One of so many items never ends by itself; 0: none.
    pub hangs_one_in: u64,
    /// How long an item may run, where some hang.
    pub timeout: Duration,
    /// The user takes back one of so many items, if that is still possible; 0: none. Only with [`TakingOrder::Completion`].
    pub cancels_one_in: u64,
    /// The user closes the stream when so many outcomes are there.
    pub closes_after: Option<u64>,
    /// Its results go to a sink with a journal: a manager that comes back goes on with it.
    pub has_journal: bool,
}

/// How many keys a manager holds ready: never so few that it can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRoom {
    /// Expanded contexts.
    pub contexts: usize,
    /// Compact keys; without room for any, each miss derives.
    pub compact: usize,
}

impl KeyRoom {
    /// A store of this size.
    pub(super) fn store(self) -> Result<KeyStore, GeometryError> {
        let room = Geometry::fully_associative(self.contexts)?;
        let memory = vec![0; self.compact * COMPACT_KEY_BYTES];
        KeyStore::new(room, Box::new(memory))
    }
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Of all randomness.
    pub seed: u64,
    /// The workers.
    pub workers: Vec<WorkerScenario>,
    /// The streams.
    pub streams: Vec<StreamScenario>,
    /// The manager dials its workers; else they dial it.
    pub manager_dials: bool,
    /// How many slots there are to be; else as many as there are workers.
    pub contract: Option<Contract>,
    /// Slots have an initializer to run, which asks for shared contents.
    pub has_initializer: bool,
    /// What the manager's policy demands at least.
    pub minimum: Protections,
    /// The manager's ciphers, the preferred one first.
    pub ciphers: Vec<CipherSuite>,
    /// Both sides' limits.
    pub limits: Limits,
    /// What the manager holds of its sessions' keys.
    pub keys: KeyRoom,
    /// When keys change.
    pub epoch: EpochLimits,
    /// The size of bulk segments.
    pub segment_bytes: usize,
    /// After so much silence a peer is dead.
    pub dead_after: Duration,
    /// The wires.
    pub link: LinkModel,
    /// Bytes that a wire holds in each direction before it takes no more.
    pub wire_bytes_max: u64,
    /// Timers are late by up to this.
    pub timer_slack: Duration,
    /// The scheduler's settings.
    pub config: SchedulerConfig,
    /// What happens when, by time.
    pub faults: Vec<(Duration, InjectedFault)>,
    /// What is wrong with runs that have a journal, to show that the checks see it.
    pub broken_delivery: Option<BrokenDelivery>,
    /// A run with more steps is a run without end.
    pub steps_max: u64,
}

impl Scenario {
    /// When the last fault happens.
    pub(super) fn calm_from(&self) -> Duration {
        let last = self.faults.iter().map(|(at, _)| *at).max();
        last.unwrap_or_default()
    }
}
