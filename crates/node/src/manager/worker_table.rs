//! Which workers there are and were, and what they did.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use exoskel_flow::SlotStatistics;

use super::joining_slot::JoiningSlot;

/// What one worker did, for tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// Its name, as its certificate proves it; of a process of a job, that of its host.
    pub name: String,
    /// Its network address, or the path of the Unix socket; empty for a child of this process.
    pub address: String,
    /// The trust domain it is in, or empty.
    pub domain: String,
    /// `tcp`, `unix` or `socketpair`.
    pub transport: String,
    /// The protection of data.
    pub protection: String,
    /// What this side asks for. Where it is less, the worker asks for more.
    pub own_protection: String,
    /// `working`, `lost`, `left`, or `unfit`: it lacks what the program needs.
    pub state: String,
    /// When that began.
    pub since: Duration,
    /// Slots that work now.
    pub slots: u32,
    /// Process numbers of its slots, as they say.
    pub pids: Vec<u32>,
    /// Items done.
    pub items: u64,
    /// Bytes of all messages sent there: items, functions with their modules, shared contents, and what steers the run.
    pub bytes_sent: u64,
    /// Bytes of results from there.
    pub bytes_received: u64,
    /// Time spent in the user's functions.
    pub busy: Duration,
    /// Items that may have been started there and were put back.
    pub items_put_back: u64,
    /// Items that a second slot got as well, since they ran for too long there.
    pub stragglers: u64,
    /// Why it gets no more items, if it was set aside: it broke its session again and again.
    pub set_aside: String,
}

/// Reports by worker.
#[derive(Debug, Default)]
pub struct WorkerTable {
    workers: BTreeMap<WorkerKey, WorkerReport>,
}

/// Which worker a slot belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerKey {
    /// Its name, as its certificate proves it; of a process of a job, that of its host.
    pub name: String,
    /// Its network address, or the path of the Unix socket; empty for a child of this process.
    pub address: String,
}

impl fmt::Display for WorkerKey {
    /// For messages: `worker name at address`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {}", self.name)?;
        if self.address.is_empty() {
            return Ok(());
        }
        write!(formatter, " at {}", self.address)
    }
}

impl WorkerTable {
    /// A slot of this worker has begun its session.
    pub fn join(&mut self, peer: &JoiningSlot, now: Duration) -> WorkerKey {
        let key = WorkerKey {
            name: peer.identity.host().to_owned(),
            address: peer.address.clone(),
        };
        let report = self.workers.entry(key.clone()).or_default();
        report.name.clone_from(&key.name);
        report.address.clone_from(&key.address);
        report.domain = peer.domain.clone().unwrap_or_default();
        report.transport.clone_from(&peer.transport);
        report.protection = peer.protections.data.to_string();
        report.own_protection = peer.own_minimum.data.to_string();
        enter(report, "working", now);
        report.slots += 1;
        report.pids.extend(peer.pid);
        key
    }

    /// A slot's session is over.
    pub fn leave(
        &mut self,
        key: &WorkerKey,
        statistics: SlotStatistics,
        bytes_sent: u64,
        state: &str,
        now: Duration,
    ) {
        let Some(report) = self.workers.get_mut(key) else {
            return;
        };
        add(report, statistics, bytes_sent);
        report.slots = report.slots.saturating_sub(1);
        if report.slots == 0 {
            enter(report, state, now);
        }
    }

    /// Takes in that a worker gets no more items.
    pub fn set_aside(&mut self, name: &str, reason: &str) {
        let reports = self.workers.values_mut();
        for report in reports.filter(|report| report.name == name) {
            reason.clone_into(&mut report.set_aside);
        }
    }

    /// All reports; `live` adds what the slots that still work did, and the bytes that were sent to them.
    pub fn report(
        &self,
        live: impl Iterator<Item = (WorkerKey, SlotStatistics, u64)>,
    ) -> Vec<WorkerReport> {
        let mut workers = self.workers.clone();
        for (key, statistics, bytes_sent) in live {
            if let Some(report) = workers.get_mut(&key) {
                add(report, statistics, bytes_sent);
            }
        }
        workers.into_values().collect()
    }
}

fn enter(report: &mut WorkerReport, state: &str, now: Duration) {
    if report.state != state {
        state.clone_into(&mut report.state);
        report.since = now;
    }
}

fn add(report: &mut WorkerReport, statistics: SlotStatistics, bytes_sent: u64) {
    report.items += statistics.items;
    report.bytes_sent += bytes_sent;
    report.bytes_received += statistics.bytes_received;
    report.busy += statistics.busy;
    report.items_put_back += statistics.put_back;
    report.stragglers += statistics.stragglers;
}
