//! A running manager as Python sees it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use bytes::Bytes;
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton};
use exoskel_identity::{PeerText, Role};
use exoskel_net::fork::Owned;
use exoskel_net::key_memory::NodeKeys;
use exoskel_net::loopback;
use exoskel_net::manager::are_remote;
use exoskel_net::manager::{
    Contract, Function, HostFile, HostLine, ItemsDeadline, LocalTransport, LocalWorkers,
    ManagerConfig, ManagerNode, Notice, Readiness, Recruiting, SlotChange, StreamPlan, Tickets,
    WorkerReport,
};
use exoskel_net::message::{Call, Digest, ENVELOPE_BYTES_MAX};
use exoskel_net::pki::ThrowAwayAuthority;
use exoskel_net::result_queue::OutcomeOrder;
use exoskel_trust::Document;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator};

use crate::discovery::hearing;
use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::job::ProcessCredential;
use crate::keys::{keys, new_job, shared};
use crate::listener;
use crate::memory;
use crate::options::{ManagerOptions, NodeOptions, SessionPart, seconds};
use crate::recording::RecordingFile;
use crate::run::JournalledRun;
use crate::shared_contents;
use crate::skeleton;
use crate::stream::{MapStream, OutcomeForm, SubmitStream};
use crate::time::now;

/// Sessions whose keys have room, at most, unless there are more slots from the beginning.
const SESSIONS_MAX: u32 = 256;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// So long Python and what slots import may take to load from a slow disk.
const LOADING_TIME: Duration = Duration::from_secs(300);

/// A manager: recruits slots, opens streams, reports.
#[pyclass(frozen, weakref)]
pub(crate) struct Manager(Owned<RunningManager>);

/// What only the process that made the manager has.
struct RunningManager {
    node: Arc<ManagerNode>,
    notices: Arc<NoticePrinter>,
    keys: NodeKeys,
    item_bytes_max: u64,
    /// Where workers join, with the port that it has.
    address: Option<String>,
    recording: Mutex<Option<RecordingFile>>,
}

/// What the driver has to tell the user, and the function that tells it.
pub(crate) struct NoticePrinter {
    node: Arc<ManagerNode>,
    present: Py<PyAny>,
}

impl NoticePrinter {
    /// Hands waiting notices to Python.
    pub(crate) fn present(&self, py: Python<'_>) -> PyResult<()> {
        if !self.node.has_notices() {
            return Ok(());
        }
        for notice in self.node.take_notices() {
            let arguments = match notice {
                Notice::Output(output) => (
                    ["stdout", "stderr", "log"][usize::from(output.stream.min(2))],
                    PeerText::from(output.worker).unquoted(),
                    output.text.lines(output.colours),
                ),
                Notice::Warning(text) => ("warning", String::new(), text),
                Notice::Audit(text) => ("audit", String::new(), text),
            };
            self.present.call1(py, arguments)?;
        }
        Ok(())
    }
}

/// What a manager starts with besides its options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ManagerStart {
    /// How many slots there are to be.
    contract: ContractTerms,
    /// Addresses of workers, and the names in their certificates.
    hosts: Vec<(String, String)>,
    /// The file that lists them, if it is one.
    host_file: Option<PathBuf>,
    /// Workers are dialled that are heard.
    discovers: bool,
    /// The credential of a job's creator, in place of the one that the options name.
    credential: Option<Py<ProcessCredential>>,
    /// Starts a child.
    command: Vec<String>,
    /// Whether children are forked by a process of this command, or each starts by itself.
    forks: bool,
    /// What children read first.
    children: Vec<u8>,
    setup_local: Vec<u8>,
    setup_remote: Vec<u8>,
    has_initializer: bool,
    /// The version of Python.
    python: String,
}

/// How many slots there are to be: of a contract that was checked.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ContractTerms {
    slots_min: u32,
    slots_max: u32,
    throughput: Option<f64>,
    /// Seconds, and items.
    deadline: Option<(f64, u64)>,
    remote_slots: Option<u32>,
}

impl ContractTerms {
    fn contract(&self) -> PyResult<Contract> {
        let deadline = |(time, items)| {
            Ok::<_, PyErr>(ItemsDeadline {
                time: seconds(time)?,
                items,
            })
        };
        Ok(Contract {
            slots_min: self.slots_min,
            slots_max: self.slots_max,
            throughput: self.throughput,
            deadline: self.deadline.map(deadline).transpose()?,
            remote_max: self.remote_slots,
        })
    }
}

#[pymethods]
impl Manager {
    #[new]
    fn new(
        py: Python<'_>,
        start: ManagerStart,
        options: &Bound<'_, PyDict>,
        present: Py<PyAny>,
    ) -> PyResult<Self> {
        let node: NodeOptions = options.extract()?;
        let own: ManagerOptions = options.extract()?;
        let slots_max = SchedulerConfig::default().slots_max;
        let slots = start.contract.slots_max;
        if slots > slots_max {
            return Err(PyValueError::new_err(format!(
                "got {slots} slots, expected at most {slots_max} (slots_max): more would be started and get no work"
            )));
        }
        let is_local = start.hosts.is_empty() && own.listen.is_none() && !start.discovers;
        let (credential, policy, children) = if is_local {
            let (credential, children) = children(py, &start, &own)?;
            let policy = children.policy.clone();
            let policy = policy.map(|text| Document::Memory(text.into_bytes().into()));
            (credential, policy, Some(children))
        } else {
            let of_job = start.credential.as_ref();
            let of_job = of_job.map(|credential| credential.get().document.clone());
            let credential = of_job.or_else(|| node.credential()).ok_or_else(|| {
                let text = "got no credential, expected one: workers on other machines need credential=FILE \
                            (exoskel pki issue --role manager, or a proxy)";
                raise(py, ExceptionKind::Credential, text)
            })?;
            (credential, None, None)
        };
        let ready = shared(own.ready_keys)?;
        // A contract may allow far more slots than there will be; what finds no room is derived again.
        let sessions = slots.min(SESSIONS_MAX.max(start.contract.slots_min));
        let keys = keys(py, &ready, sessions as usize, node.key_memory.as_deref())?;
        let part = SessionPart {
            role: Role::Manager,
            peers: Role::Worker,
            minimum: own.minimum()?,
            handshake_time: seconds(own.connect_timeout)?,
            python: start.python,
            properties: Vec::new(),
            job: new_job()?,
            shared_memory: own.transport()? == LocalTransport::SharedMemory,
        };
        let sources = node.sources(py, credential, policy, part, &keys)?;
        // Before the files are read: what changes meanwhile is noticed.
        let renewal = (!is_local).then(|| sources.clone().renewal());
        let terms = sources.terms().map_err(|error| error::terms(py, &error))?;
        let listen = own.listen.as_deref();
        let listen = listen.map(|address| listener::bind(py, address));
        let listen = listen.transpose()?;
        let address = listen.as_ref().map(|listen| listen.address().to_string());
        let hosts = start.hosts.into_iter().map(|(address, name)| {
            let address = listener::parse(&address)?;
            Ok(HostLine { address, name })
        });
        let hosts = hosts.collect::<PyResult<Vec<_>>>()?;
        let contract = start.contract.contract()?;
        if let Some(remote) = contract.remote_max
            && !is_local
            && listen.is_none()
            && !start.discovers
            && remote < contract.slots_min
            && are_remote(&terms, &hosts)
        {
            return Err(PyValueError::new_err(format!(
                "got a contract for at least {} slots, of which {remote} may be outside the trusted domains, expected a worker inside: the policy places all workers outside",
                contract.slots_min
            )));
        }
        let recording = own.trace.map(RecordingFile::begin).transpose()?;
        let hearing = start
            .discovers
            .then(|| hearing(py, terms.policy.authorization()));
        let hearing = hearing.transpose()?;
        let config = ManagerConfig {
            at_end: memory::give_back_of_thread,
            terms,
            renewal,
            observer: recording.as_ref().map(RecordingFile::observer),
            scheduler: SchedulerConfig {
                retries: own.retries,
                stragglers: hundredths(own.stragglers),
                frame_items_max: own.frame_items_max,
                frame_bytes_max: own.frame_bytes_max.min(node.message_bytes_max / 2),
                ..SchedulerConfig::default()
            },
            recruiting: Recruiting {
                slots: start.contract.slots_min,
                contract: Some(contract),
                local: children,
                hosts,
                host_file: start.host_file.map(HostFile::new),
                hearing,
                listen,
                patience: seconds(own.patience)?,
            },
            setup_local: start.setup_local.into(),
            setup_remote: start.setup_remote.into(),
            has_initializer: start.has_initializer,
            shared: shared_contents::table(),
        };
        let manager = Arc::new(py.detach(|| ManagerNode::start(config))?);
        let notices = Arc::new(NoticePrinter {
            node: manager.clone(),
            present,
        });
        Ok(Self(Owned::new(RunningManager {
            node: manager,
            notices,
            keys,
            item_bytes_max: node.message_bytes_max.saturating_sub(ENVELOPE_BYTES_MAX),
            address,
            recording: Mutex::new(recording),
        })?))
    }

    /// Refuses forked children of the process that made it.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0).map(drop)
    }

    /// Says that no worker will join any more.
    fn expect_nobody(&self) {
        if let Some(own) = self.0.get() {
            own.node.expect_nobody();
        }
    }

    /// Where workers join, with the port that it has; none if they don't.
    #[getter]
    fn address(&self) -> Option<String> {
        self.0.get().and_then(|own| own.address.clone())
    }

    /// How many slots are wanted now; 0 in a forked child.
    #[getter]
    fn wanted(&self) -> u32 {
        self.0.get().map_or(0, |own| own.node.wanted())
    }

    /// Whether this is a forked child of the process that made it.
    fn is_inherited(&self) -> bool {
        self.0.get().is_none()
    }

    /// Waits until all wanted slots are ready, or for `timeout` seconds, or until nobody can come; unless `patient`, until every attempt has
    /// been decided. Says (ready, wanted, whether nobody else can be asked, an exception for each place where attempts failed, the
    /// texts of those that no warning has told of).
    fn wait_ready<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
        patient: bool,
    ) -> PyResult<ReadinessRow<'py>> {
        let own = fork::own(py, &self.0)?;
        let deadline = Instant::now() + seconds(timeout)?;
        let mut seen = own
            .node
            .wait_readiness(&Readiness::default(), Duration::ZERO);
        loop {
            let is_hopeless = seen.pending == 0 && seen.ready == 0 && seen.is_final;
            let decided = is_hopeless || seen.pending == 0 && seen.ready > 0;
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = seen.ready >= seen.wanted || is_hopeless || left.is_zero();
            if is_over || (decided && !patient) {
                let attempts = error::attempts(py, &seen.attempts)?;
                let is_decided = seen.is_final && seen.pending == 0;
                let untold = seen.attempts.iter().filter(|attempt| !attempt.is_told());
                let untold = untold.map(ToString::to_string).collect();
                return Ok((seen.ready, seen.wanted, is_decided, attempts, untold));
            }
            seen = py.detach(|| own.node.wait_readiness(&seen, left.min(PATIENCE)));
            py.check_signals()?;
            own.notices.present(py)?;
        }
    }

    /// Opens a stream for `map` over an iterator; with a run, one whose outcomes go to that.
    #[pyo3(signature = (program, items, outcomes, rules, manager, run = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "they come from Python, which has no struct for them"
    )]
    fn map(
        &self,
        py: Python<'_>,
        program: (Bound<'_, PyAny>, Vec<Vec<u8>>),
        items: &Bound<'_, PyAny>,
        outcomes: OutcomeForm,
        rules: ItemOptions,
        manager: Py<PyAny>,
        run: Option<Py<JournalledRun>>,
    ) -> PyResult<MapStream> {
        let own = fork::own(py, &self.0)?;
        let order = if outcomes.as_completed {
            OutcomeOrder::Completion
        } else {
            OutcomeOrder::Admission
        };
        let mut plan = rules.apply(plan(&program.0, program.1, Call::Item)?)?;
        let input = PyIterator::from_object(items)?.into_any().unbind();
        let keeps_number = plan.skeleton.keeps_number();
        plan.tells_ends = !keeps_number && run.as_ref().is_some_and(|run| run.get().is_ordered());
        MapStream::new(
            own.node.open(plan, order),
            own.notices.clone(),
            (input, keeps_number),
            outcomes,
            run,
            manager,
            own.item_bytes_max,
        )
    }

    /// Opens a stream for `submit`; its items are pairs of positional and keyword arguments.
    fn open(
        &self,
        py: Python<'_>,
        function: Vec<u8>,
        rules: ItemOptions,
    ) -> PyResult<SubmitStream> {
        let own = fork::own(py, &self.0)?;
        let functions = vec![self::function(function)];
        let skeleton = Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
        let plan = StreamPlan {
            skeleton,
            functions,
            call: Call::Arguments,
            tickets: Tickets::Unbounded,
            timeout: None,
            retries_on: None,
            tells_ends: false,
        };
        let plan = rules.apply(plan)?;
        let stream = own.node.open(plan, OutcomeOrder::Completion);
        SubmitStream::new(stream, own.notices.clone(), own.item_bytes_max)
    }

    /// What every worker did so far, and what became of the keys.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<ReportRows<'py>> {
        let own = fork::own(py, &self.0)?;
        let reports = py.detach(|| own.node.report());
        let row = |report: WorkerReport| {
            let row = PyDict::new(py);
            row.set_item("name", report.name)?;
            row.set_item("address", report.address)?;
            row.set_item("domain", report.domain)?;
            row.set_item("transport", report.transport)?;
            row.set_item("protection", report.protection)?;
            row.set_item("own_protection", report.own_protection)?;
            row.set_item("state", report.state)?;
            row.set_item("slots", report.slots)?;
            row.set_item("pids", report.pids)?;
            row.set_item("items", report.items)?;
            row.set_item("bytes_sent", report.bytes_sent)?;
            row.set_item("bytes_received", report.bytes_received)?;
            row.set_item("busy_seconds", report.busy.as_secs_f64())?;
            row.set_item("items_twice", report.items_put_back)?;
            row.set_item("stragglers", report.stragglers)?;
            row.set_item("set_aside", report.set_aside)?;
            Ok(row)
        };
        let rows = reports.into_iter().map(row).collect::<PyResult<_>>()?;
        Ok((rows, own.report_of_keys(py)?))
    }

    /// How everything stands, in rows; nothing when the driver is gone.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let own = fork::own(py, &self.0)?;
        let Some(status) = py.detach(|| own.node.status()) else {
            return Ok(None);
        };
        let row = PyDict::new(py);
        row.set_item("slots_ready", status.ready)?;
        row.set_item("slots_wanted", status.wanted)?;
        row.set_item("slots_busy", status.busy)?;
        row.set_item("recruiting", status.recruiting)?;
        let streams = status.streams.iter();
        let streams = streams.map(|stream| (stream.waiting, stream.running, stream.done));
        row.set_item("streams", streams.collect::<Vec<_>>())?;
        let workers = status.workers.into_iter().map(|(worker, age)| {
            let WorkerReport {
                name,
                address,
                state,
                slots,
                items,
                ..
            } = worker;
            (name, address, state, slots, items, age.as_secs_f64())
        });
        row.set_item("workers", workers.collect::<Vec<_>>())?;
        Ok(Some(row))
    }

    /// What became of the slots, when and why, a row for each change; nothing when the driver is gone.
    fn history(&self, py: Python<'_>) -> PyResult<Option<Vec<ChangeRow>>> {
        let own = fork::own(py, &self.0)?;
        let history = py.detach(|| own.node.history());
        let row = |change: SlotChange| {
            let kind = change.kind.to_string();
            let at = change.at.as_secs_f64();
            (at, kind, change.wanted, change.ready, change.reason)
        };
        Ok(history.map(|changes| changes.into_iter().map(row).collect()))
    }

    /// Waits until no longer `seen` slots can work, for at most `timeout` seconds. Says how many can; nothing when the manager has ended.
    fn wait_capacity(&self, py: Python<'_>, seen: u32, timeout: f64) -> PyResult<Option<u32>> {
        let own = fork::own(py, &self.0)?;
        let patience = seconds(timeout)?;
        Ok(py.detach(|| own.node.wait_capacity(seen, patience)))
    }

    /// Hands waiting notices to Python.
    fn present(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0)?.notices.present(py)
    }

    /// Ends all sessions in order, waits for children to leave, and writes the trace if there is one.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let own = fork::own(py, &self.0)?;
        py.detach(|| {
            own.node.shutdown();
            memory::give_back();
            let recording = &mut *own.recording.lock().unwrap_or_else(PoisonError::into_inner);
            recording.take().map_or(Ok(()), RecordingFile::end)
        })?;
        own.notices.present(py)
    }
}

impl RunningManager {
    fn report_of_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.keys.store.counters();
        let (contexts, compact) = self.keys.store.held();
        let keys = PyDict::new(py);
        keys.set_item("memory", self.keys.protection.name())?;
        keys.set_item("memory_foregone", self.keys.foregone.clone())?;
        keys.set_item("ready", contexts)?;
        keys.set_item("compact", compact)?;
        keys.set_item("hits", counters.contexts.hits)?;
        keys.set_item("misses", counters.contexts.misses)?;
        keys.set_item("evictions", counters.contexts.evictions)?;
        keys.set_item("expansions", counters.expansions)?;
        keys.set_item("derivations", counters.derivations)?;
        Ok(keys)
    }
}

/// What [`Manager::wait_ready`] says.
type ReadinessRow<'py> = (u32, u32, bool, Vec<Bound<'py, PyAny>>, Vec<String>);

/// A change: seconds since the manager began, what, slots wanted, slots ready, why.
type ChangeRow = (f64, String, u32, u32, String);

/// One row for each worker, and the key store.
type ReportRows<'py> = (Vec<Bound<'py, PyDict>>, Bound<'py, PyDict>);

/// The credential of a manager of children, in a world of their own that ends with it, and how children start.
fn children(
    py: Python<'_>,
    start: &ManagerStart,
    own: &ManagerOptions,
) -> PyResult<(Document, LocalWorkers)> {
    let transport = own.transport()?;
    let policy = (transport == LocalTransport::Tcp)
        .then(|| loopback::policy(own.protection.as_deref() == Some("plain")));
    let authority = ThrowAwayAuthority::new(now()).map_err(|error| error::pki(py, &error))?;
    let credential = authority.issue(Role::Manager, "manager", now());
    let credential = credential.map_err(|error| error::pki(py, &error))?;
    let children = LocalWorkers {
        command: start.command.iter().map(Into::into).collect(),
        forks: start.forks,
        loading_time: LOADING_TIME,
        options: start.children.clone().into(),
        transport,
        authority,
        policy: policy.map(str::to_owned),
    };
    Ok((Document::Memory(credential.to_pem()), children))
}

fn plan(structure: &Bound<'_, PyAny>, functions: Vec<Vec<u8>>, call: Call) -> PyResult<StreamPlan> {
    let skeleton = skeleton::read(structure)?;
    Ok(StreamPlan {
        skeleton,
        functions: functions.into_iter().map(function).collect(),
        call,
        tickets: Tickets::Bounded,
        timeout: None,
        retries_on: None,
        tells_ends: false,
    })
}

/// What is expected of each item of a stream.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ItemOptions {
    /// In seconds.
    timeout: Option<f64>,
    /// The pickle of the classes of exceptions for which it runs again.
    retries_on: Option<Vec<u8>>,
}

impl ItemOptions {
    fn apply(self, plan: StreamPlan) -> PyResult<StreamPlan> {
        Ok(StreamPlan {
            timeout: self.timeout.map(seconds).transpose()?,
            retries_on: self.retries_on.map(function),
            ..plan
        })
    }
}

/// The name that a function has by its pickle.
#[pyfunction]
pub(crate) fn function_digest<'py>(py: Python<'py>, pickle: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &digest_of(pickle))
}

fn digest_of(pickle: &[u8]) -> Digest {
    let hash = digest::digest(&digest::SHA256, pickle);
    let mut digest = [0; 32];
    digest.copy_from_slice(hash.as_ref());
    digest
}

fn function(pickle: Vec<u8>) -> Function {
    Function {
        digest: digest_of(&pickle),
        pickle: Bytes::from(pickle),
    }
}

/// How many hundredths of the usual time are too long; 0 if none are.
fn hundredths(times: Option<f64>) -> u32 {
    // What is too large to be a number of hundredths is as good as never.
    times.map_or(0, |times| (times * 100.0).round() as u32)
}
