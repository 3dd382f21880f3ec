//! The loop of a worker's process: takes work from the I/O thread, runs functions, gives results.

mod answers;
mod carrying;
mod rows;
mod steps;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Lease, SegmentStep};
use exoskel_identity::Role;
use exoskel_link::{Protection, SessionError};
use exoskel_net::fork::Owned;
use exoskel_net::hearing_worker::HeardFile;
use exoskel_net::message::{Call, Digest, SegmentEnding, SegmentFunctions, ToSlot};
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::rendezvous::{JudgedBy, ManagerPlace, Met, Rendezvous, meet};
use exoskel_net::signer::{self, SlotEnd};
use exoskel_net::slot::{Item, ItemKey, SlotNode, TimeoutAnswer, Work};
use exoskel_net::sources::{CurrentConfig, NodeSources, RENEWAL_TIME};
use exoskel_trust::Document;
use pyo3::exceptions::{
    PyException, PyKeyboardInterrupt, PyRuntimeError, PySystemExit, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use self::answers::Reader;
use self::carrying::StateAtSlot;
use self::steps::{Intermediate, Passing, load};
use crate::confinement::told_sandbox;
use crate::data::DataEncoder;
use crate::error::{self, ExceptionKind, raise};
use crate::interrupt::{self, OverdueItem};
use crate::item_note::Subject;
use crate::job::ProcessCredential;
use crate::keys::{keys, of_one_session};
use crate::listener::parse;
use crate::options::{NodeOptions, SessionPart};
use crate::pickle::Encoder;
use crate::shared_contents::SharedSource;

/// How long a wait lasts before signals are looked at. A signal ends a wait for work; for the rest, many slots may wait for long on one
/// host, and each look costs.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a manager may take to prove itself.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// How long what runs may take when a slot is told to leave by anybody but its worker.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Blocks from this size on are mapped by themselves, and given back when freed.
const MAPPED_BYTES_MIN: i32 = 32 << 20;

/// Freed memory that a slot keeps at most.
const FREED_BYTES_MAX: i32 = 64 << 20;

/// Where the text that a task prints goes.
#[pyclass(frozen)]
pub(crate) struct SlotOutput(Owned<Arc<SlotNode>>);

#[pymethods]
impl SlotOutput {
    /// Sends text: stream 0 is standard output, 1 standard error, 2 the log. Says no in a child that a task has forked, which has no session.
    fn send(&self, py: Python<'_>, stream: u8, text: &str) -> bool {
        let Some(node) = self.0.get() else {
            return false;
        };
        // When the session is over there is nobody to tell; the loop notices that by itself.
        let _ = py.detach(|| node.output(stream, text.as_bytes()));
        true
    }
}

/// How a slot meets its manager, and what it got from whoever started it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SlotStart {
    connection_fd: Option<RawFd>,
    listen_fd: Option<RawFd>,
    join: Option<String>,
    /// Connected to a manager that listens.
    dialled_fd: Option<RawFd>,
    manager_name: Option<String>,
    /// Where the worker's signer is asked, which alone reads its credential.
    signer_fd: Option<RawFd>,
    credential_fd: Option<RawFd>,
    /// That of a process of a job.
    credential: Option<Py<ProcessCredential>>,
    policy_fd: Option<RawFd>,
    /// Where it is written whom its worker hears.
    heard_fd: Option<RawFd>,
    /// What it says of itself to managers.
    properties: Vec<(String, String)>,
    /// The version of Python.
    python: String,
    /// Slots of its worker have served with these files: what is wrong with them now is being edited.
    is_replacement: bool,
    /// How long what runs may take when the slot is told to leave, in seconds.
    drain: Option<f64>,
}

/// Serves one manager and returns when its session is over.
#[pyfunction]
pub(crate) fn serve_slot(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    options: NodeOptions,
    start: SlotStart,
) -> PyResult<()> {
    keep_freed_memory();
    let signer = start
        .signer_fd
        .map(|requests| SlotEnd::open(take(requests)));
    let signer = signer.transpose()?;
    let places = (
        start.connection_fd,
        start.listen_fd,
        start.join,
        start.dialled_fd,
    );
    let rendezvous = match (places, start.manager_name) {
        ((Some(descriptor), None, None, None), _) => Rendezvous::Inherited(take(descriptor)),
        ((None, Some(descriptor), None, None), _) => Rendezvous::Listening(take(descriptor)),
        ((None, None, Some(address), None), name) => Rendezvous::Dialling(ManagerPlace {
            address: parse(&address)?,
            name,
            turns: signer.clone(),
            ends_at_wrong_name: !start.is_replacement,
        }),
        ((None, None, None, Some(descriptor)), Some(name)) => {
            Rendezvous::Dialled(take(descriptor), name)
        }
        _ => {
            return Err(PyValueError::new_err(
                "expected exactly one of connection_fd, listen_fd, join, and dialled_fd with manager_name",
            ));
        }
    };
    let inherited = |descriptor: Option<RawFd>| {
        descriptor
            .map(|descriptor| Document::inherited(take(descriptor)))
            .transpose()
    };
    let of_job = start.credential.as_ref();
    let of_job = of_job.map(|credential| credential.get().document.clone());
    let credential = inherited(start.credential_fd)?
        .or(of_job)
        .or_else(|| options.credential())
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session(), 1, options.key_memory.as_deref())?;
    let part = part_of_worker(start.python, start.properties);
    let policy = inherited(start.policy_fd)?;
    let mut sources = options.sources(py, credential, policy, part, &keys)?;
    let judged_by = match signer {
        Some(signer) => {
            sources.files.holder = Some(Arc::new(signer.clone()));
            JudgedBy::Signer(signer)
        }
        // Before the files are read: what changes meanwhile is noticed.
        None => JudgedBy::Files(Box::new(sources.clone().renewal())),
    };
    let config = read_config(py, loader, sources, &judged_by, start.is_replacement)?;
    let drain = start
        .drain
        .map_or(Ok(DRAIN_TIME), Duration::try_from_secs_f64);
    let drain = drain.map_err(|error| PyValueError::new_err(format!("drain: {error}")))?;
    // A manager ends a child that lets go of the connection. So one that fails holds it until it has said why.
    let connection = match &rendezvous {
        Rendezvous::Inherited(connection) => Some(connection.try_clone()?),
        _ => None,
    };
    let heard = start.heard_fd.map(take).map(HeardFile::new);
    let owned = loader.clone().unbind();
    let audit = move |line: String| {
        Python::attach(|py| {
            if let Err(error) = owned.call_method1(py, "audit", (line,)) {
                error.write_unraisable(py, None);
            }
        });
    };
    let begun = py
        .detach(|| meet(rendezvous, config, judged_by, drain, audit))
        .map_err(|error| error::meet(py, &error))
        .and_then(|met| met.map(|met| begin(py, loader, met, heard)).transpose());
    if let (Err(_), Some(connection)) = (&begun, connection) {
        let _until_the_end = connection.into_raw_fd();
    }
    let Some(node) = begun? else {
        return Ok(());
    };
    let output = Bound::new(py, SlotOutput(Owned::new(node.clone())?))?;
    let shared = Bound::new(py, SharedSource::new(node.clone())?)?;
    loader.call_method1("attach", (output, shared))?;
    let mut interpreter = SlotInterpreter::new(loader, Owned::new(node)?);
    interpreter.run(py)
}

/// What a worker's slot is in its sessions.
fn part_of_worker(python: String, properties: Vec<(String, String)>) -> SessionPart {
    SessionPart {
        role: Role::Worker,
        peers: Role::Manager,
        minimum: Protection::Plain,
        handshake_time: HANDSHAKE_TIME,
        python,
        properties,
        // A slot serves one manager at a time, whose job is its own.
        job: 0,
        // Its manager decides.
        shared_memory: true,
    }
}

/// Sees whether a worker's slots can use its files: credential, policy, lists and trust directories. Returns what code in a sandbox may use
/// here, as `Sandbox.told` has it, if anybody's can be in one.
#[pyfunction]
pub(crate) fn check_worker<'py>(
    py: Python<'py>,
    options: NodeOptions,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let credential = options
        .credential()
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session(), 1, options.key_memory.as_deref())?;
    let part = part_of_worker(String::new(), Vec::new());
    let sources = options.sources(py, credential, None, part, &keys)?;
    let config = py.detach(|| sources.terms());
    let config = config.map_err(|error| error::terms(py, &error))?;
    let (allowed, is_asked_for) = config.policy.authorization().sandbox();
    // People of a grid are in one even if nobody asks for it.
    let is_used = is_asked_for || options.trust_anchors.is_some();
    is_used.then(|| told_sandbox(py, allowed)).transpose()
}

/// Items and results of megabytes come and go all the time; memory that is given back to the kernel in between comes
/// back as page faults, which cost as much as copying it.
fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain settings of the allocator of this process, which is ours alone; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREED_BYTES_MAX);
    }
}

/// Takes over a descriptor that was inherited for us alone.
pub(crate) fn take(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the number comes from the arguments that our parent made for this process; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Reads the files once here, where an error has a kind; from then on they are read at every handshake. In the place of a slot that has
/// served, they are waited for: the worker's other slots go on.
fn read_config(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    sources: NodeSources,
    judged_by: &JudgedBy,
    is_replacement: bool,
) -> PyResult<CurrentConfig> {
    let mut told = None;
    loop {
        let error = match CurrentConfig::new(sources.clone()) {
            Ok(config) => return Ok(config),
            // Another slot asks another signer.
            Err(error) if !is_replacement || judged_by.has_ended() => {
                return Err(error::terms(py, &error));
            }
            Err(error) => error.to_string(),
        };
        if told.as_ref() != Some(&error) {
            loader.call_method1("audit", (format!("waits: {error}"),))?;
            told = Some(error);
        }
        py.detach(|| std::thread::sleep(RENEWAL_TIME));
        py.check_signals()?;
    }
}

/// Begins the session, with what the policy says held before anything of its manager runs.
fn begin(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    met: Met,
    heard: Option<HeardFile>,
) -> PyResult<Arc<SlotNode>> {
    let mut held = Vec::new();
    if let Some((allowed, _)) = met.sandbox() {
        let confined = told_sandbox(py, allowed)
            .and_then(|told| loader.call_method1("confine", (told,)))
            .and_then(|held| held.extract());
        held = match confined {
            Ok(held) => held,
            Err(error) => {
                let why = format!(
                    "the worker's policy confines this manager's code, and this host can't hold it: {}",
                    error.value(py)
                );
                py.detach(|| met.refuse(&why));
                return Err(PyRuntimeError::new_err(why));
            }
        };
    }
    let audit = |line: String| loader.call_method1("audit", (line,)).map(drop);
    let mut said = Ok(());
    let node = met.begin(&held, heard, |line| said = audit(line));
    said?;
    node.map_err(|error| error::meet(py, &error))
}

/// Signs for the slots of a worker, for as long as this process lives.
#[pyfunction]
pub(crate) fn serve_signer(py: Python<'_>, options: NodeOptions, requests: RawFd) -> PyResult<()> {
    let credential = options
        .credential()
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session(), 1, None)?;
    let part = part_of_worker(String::new(), Vec::new());
    let sources = options.sources(py, credential, None, part, &keys)?;
    let requests = take(requests);
    match py.detach(|| signer::serve(requests, sources))? {}
}

/// A function that was loaded, or the exception that loading raised.
type Loaded = Result<Py<PyAny>, PyErr>;

struct LoadedProgram {
    /// The first stream of the same program of the user's.
    first_stream: u32,
    call: Call,
    /// The classes of exceptions for which items run again.
    retries_on: Option<Digest>,
    segments: Vec<SegmentFunctions>,
    /// Which of them only call functions.
    rows: Vec<bool>,
    /// Which of them carry a state.
    carry: Vec<bool>,
}

struct SlotInterpreter<'py> {
    loader: &'py Bound<'py, PyAny>,
    /// The running item can be told to end.
    has_interrupts: bool,
    /// A task may fork: a child that comes back from it must not answer, with the numbers that the parent's records will have.
    node: Owned<Arc<SlotNode>>,
    /// Functions that have not been called yet.
    pickles: HashMap<Digest, Py<PyBytes>>,
    functions: HashMap<Digest, Loaded>,
    programs: HashMap<u32, Rc<LoadedProgram>>,
    /// How answers to this manager must be written, at least: it says so before the first item.
    answers: Format,
    encoder: Encoder,
    data: DataEncoder,
    /// Where a result is written before it is known to be good.
    scratch: RecordWriter,
    /// What has passed the serial function of a frame whose lease is passed on.
    passed: VecDeque<Passed<'py>>,
    folding: Option<Folding<'py>>,
    /// The states of streams' segments.
    carried: HashMap<(u32, u16), StateAtSlot<'py>>,
    /// The last item whose outcome waits for the state behind it.
    carrying: Option<ItemKey>,
    /// Segments whose states could not be sent: each item is told of by itself, so that it is known which one that is.
    told_one_by_one: HashSet<(u32, u16)>,
    /// The stream of the item that has begun last.
    entered: Option<u32>,
}

/// An item that has passed a serial function.
struct Passed<'py> {
    key: ItemKey,
    /// The segment that it has reached.
    reached: u16,
    /// How its answer must be written.
    format: Format,
    value: Passing<'py>,
}

/// Items of a frame that have been folded into one value and were not told of.
struct Folding<'py> {
    /// The first of them.
    key: ItemKey,
    /// The item that would follow.
    next: u64,
    /// How it must be written.
    format: Format,
    value: Bound<'py, PyAny>,
}

/// An exception that is the outcome of an item, and what it is about.
struct TaskFailure<'py> {
    error: PyErr,
    subject: Subject<'py>,
}

impl From<PyErr> for TaskFailure<'_> {
    fn from(error: PyErr) -> Self {
        Self {
            error,
            subject: Subject::Unknown,
        }
    }
}

impl From<PyErr> for Box<TaskFailure<'_>> {
    fn from(error: PyErr) -> Self {
        Self::new(error.into())
    }
}

impl<'py> SlotInterpreter<'py> {
    fn new(loader: &'py Bound<'py, PyAny>, node: Owned<Arc<SlotNode>>) -> Self {
        Self {
            loader,
            node,
            pickles: HashMap::new(),
            functions: HashMap::new(),
            programs: HashMap::new(),
            answers: Format::Data,
            encoder: Encoder::default(),
            data: DataEncoder::default(),
            scratch: RecordWriter::default(),
            passed: VecDeque::new(),
            folding: None,
            carried: HashMap::new(),
            carrying: None,
            told_one_by_one: HashSet::new(),
            entered: None,
            has_interrupts: false,
        }
    }

    /// The slot's end of the session, in the process that has it.
    fn node(&self) -> Result<&SlotNode, LoopEnd> {
        self.node.get().map(Arc::as_ref).ok_or(LoopEnd::Forked)
    }

    fn run(&mut self, py: Python<'py>) -> PyResult<()> {
        match self.serve(py) {
            Ok(()) => Ok(()),
            // The session is over or ending: what was lost runs elsewhere.
            Err(LoopEnd::Session) => Ok(()),
            Err(LoopEnd::Python(error)) => Err(error),
            Err(LoopEnd::Forked) => Err(raise(
                py,
                ExceptionKind::Fork,
                "a task came back in a process that it had forked, which ends here: end such a child inside the task (os._exit)",
            )),
        }
    }

    fn serve(&mut self, py: Python<'py>) -> Result<(), LoopEnd> {
        let mut idle = false;
        let mut next = Work::Nothing;
        loop {
            let mut work = match std::mem::take(&mut next) {
                Work::Nothing => self.node()?.next(),
                work => work,
            };
            self.end_folding_before(py, &work)?;
            self.end_carrying_before(py, &work)?;
            if matches!(work, Work::Nothing) {
                if !std::mem::replace(&mut idle, true) {
                    // A line without an end that a task printed leaves now, rather than with the next task's.
                    self.loader.call_method0("finish_task")?;
                }
                let node = self.node()?;
                work = py.detach(|| node.wait(PATIENCE));
            }
            idle &= matches!(work, Work::Nothing);
            match work {
                Work::Code(code) => self.code(py, code)?,
                Work::Item(item) => next = self.item(py, item)?,
                Work::Rest { frame } => self.rest(py, frame)?,
                Work::Nothing => py.check_signals()?,
                Work::Ended(_) => return Ok(()),
            }
        }
    }

    fn code(&mut self, py: Python<'_>, code: ToSlot) -> Result<(), LoopEnd> {
        match code {
            ToSlot::Setup { answers, settings } => {
                self.answers = answers;
                let settings = (PyBytes::new(py, &settings),);
                let (lacks, differ): (Vec<String>, Vec<String>) =
                    self.loader.call_method1("setup", settings)?.extract()?;
                let is_fit = lacks.is_empty();
                self.node()?.ready(lacks, differ)?;
                if is_fit {
                    self.initialize()?;
                }
            }
            ToSlot::Function { digest, pickle } => {
                // An item of a forgotten stream may have found that it wasn't there.
                self.functions.remove(&digest);
                self.pickles
                    .insert(digest, PyBytes::new(py, &pickle).unbind());
            }
            ToSlot::Discard { digest } => {
                self.pickles.remove(&digest);
                self.functions.remove(&digest);
            }
            ToSlot::Define {
                stream,
                first_stream,
                call,
                rules,
                segments,
            } => {
                let retries_on = rules.retries_on;
                let is_row = |segment: &SegmentFunctions| {
                    let mut steps = segment.steps.iter();
                    segment.ending == SegmentEnding::Next
                        && steps.all(|step| *step == SegmentStep::Call)
                };
                let program = LoadedProgram {
                    rows: segments.iter().map(is_row).collect(),
                    carry: segments.iter().map(carrying::is_carrying).collect(),
                    first_stream,
                    call,
                    retries_on,
                    segments,
                };
                self.programs.insert(stream, Rc::new(program));
                self.allow_interrupts(py)?;
                if let Some(timeout) = rules.timeout {
                    self.limit_time(py, stream, timeout)?;
                }
            }
            ToSlot::Forget { stream } => self.forget(py, stream)?,
            ToSlot::Execute(_)
            | ToSlot::Recall { .. }
            | ToSlot::Grant { .. }
            | ToSlot::Interrupt { .. }
            | ToSlot::Probe
            | ToSlot::Piece { .. } => {}
        }
        Ok(())
    }

    /// Ends a stream. Functions that no other stream needs may have something to close; they stay, for streams to come.
    fn forget(&mut self, py: Python<'_>, stream: u32) -> PyResult<()> {
        let Some(program) = self.programs.remove(&stream) else {
            return Ok(());
        };
        self.carried.retain(|(of, _), _| *of != stream);
        self.told_one_by_one.retain(|(of, _)| *of != stream);
        let functions_of = |program: &LoadedProgram| {
            let segments = program.segments.iter();
            segments
                .flat_map(|segment| segment.functions.clone())
                .collect::<Vec<Digest>>()
        };
        let needed: HashSet<Digest> = self
            .programs
            .values()
            .flat_map(|program| functions_of(program))
            .collect();
        let ended: Vec<Bound<'_, PyAny>> = functions_of(&program)
            .into_iter()
            .filter(|digest| !needed.contains(digest))
            .filter_map(|digest| self.functions.get(&digest)?.as_ref().ok())
            .map(|function| function.bind(py).clone())
            .collect();
        self.loader.call_method1("end", (ended,)).map(drop)
    }

    /// Says to which program of the user's the items belong that follow, and which of them are not over, by their first streams.
    fn enter(&mut self, stream: u32) -> PyResult<()> {
        let open: HashSet<u32> = self
            .programs
            .values()
            .map(|program| program.first_stream)
            .collect();
        let known = self.programs.get(&stream);
        let first = known.map_or(stream, |program| program.first_stream);
        self.loader.call_method1("enter", (first, open))?;
        self.entered = Some(stream);
        Ok(())
    }

    /// Runs the manager's initializer, if it has one, and says what came of it.
    fn initialize(&self) -> Result<(), LoopEnd> {
        let error: Option<Vec<u8>> = self.loader.call_method0("initialize")?.extract()?;
        if let Some(error) = error {
            self.node()?.initialized(error.into())?;
        }
        Ok(())
    }

    /// Runs an item, and those behind it that pass the same functions and nothing else. Gives what came next; nothing if the queue wasn't asked for that.
    fn item(&mut self, py: Python<'py>, item: Item) -> Result<Work, LoopEnd> {
        if self.entered != Some(item.key.stream) {
            self.enter(item.key.stream)?;
        }
        if let Some(row) = self.row_of(py, &item) {
            return self.pass_row(py, &row, item);
        }
        self.item_by_itself(py, item)?;
        Ok(Work::Nothing)
    }

    fn item_by_itself(&mut self, py: Python<'py>, item: Item) -> Result<(), LoopEnd> {
        let key = item.key;
        if item.lease == Lease::Kept && self.carries(key.stream, item.from) {
            return self.carry_item(py, item);
        }
        let format = item.list.as_ref().map(|list| list.format);
        let format = self.answer_to(format.unwrap_or(item.record.format));
        let (from, lease) = (item.from, item.lease);
        let value = self.start(py, item)?;
        if lease == Lease::None {
            let value = self.apply(py, key, from..=key.to, value);
            return self.finish(py, key, format, value);
        }
        let value = self.apply(py, key, from..=from, value);
        // No program has so many segments that this could overflow.
        let reached = from.saturating_add(1);
        if let Err(failure) = &value
            && self.ends_process(py, &failure.error)
        {
            return Err(failure.error.clone_ref(py).into());
        }
        if lease == Lease::PassedOn {
            self.passed.push_back(Passed {
                key,
                reached,
                format,
                value,
            });
            return Ok(());
        }
        self.node()?.pass(key)?;
        let value = self.apply(py, key, reached..=key.to, value);
        self.finish(py, key, format, value)
    }

    /// How what is made of something must be written: what was made of data is no better than data.
    fn answer_to(&self, format: Format) -> Format {
        match format {
            Format::Data => Format::Data,
            Format::Pickle => self.answers,
        }
    }

    /// The items of a frame have passed the serial function: with the lease given back, through the rest.
    fn rest(&mut self, py: Python<'py>, frame: u64) -> Result<(), LoopEnd> {
        self.node()?.release(frame)?;
        while !self.passed.is_empty() {
            if let Some(count) = self.node()?.asked_back(frame) {
                self.give_back_halfway(frame, count as usize)?;
            }
            let Some(Passed {
                key,
                reached,
                format,
                value,
            }) = self.passed.pop_front()
            else {
                break;
            };
            if !self.programs.contains_key(&key.stream) {
                // Nobody reads what a forgotten stream makes, but the frame must be answered for.
                self.node()?.finish(key, |writer| {
                    writer.push(Format::Data, true, &[], &[], []);
                })?;
                continue;
            }
            let value = self.apply(py, key, reached..=key.to, value);
            self.finish(py, key, format, value)?;
        }
        Ok(())
    }

    /// Gives back at most so many of the items that have passed the serial function, from the last one on, as tokens for the next segment. What can't
    /// travel, or is too large to be sent unasked, runs here, and what comes before it.
    fn give_back_halfway(&mut self, frame: u64, count: usize) -> Result<(), LoopEnd> {
        let (mut records, mut place) = (VecDeque::new(), 0);
        while records.len() < count
            && let Some(passed) = self.passed.pop_back()
        {
            place = passed.reached;
            match self.write_halfway(&passed) {
                Some(record) => records.push_front(record),
                None => {
                    self.passed.push_back(passed);
                    break;
                }
            }
        }
        Ok(self
            .node()?
            .give_back_halfway(frame, place, records.into())?)
    }

    /// The record of an item that has passed the serial function, if it has a value that can travel.
    fn write_halfway(&mut self, passed: &Passed<'_>) -> Option<RecordWriter> {
        let Passed {
            key,
            reached,
            format,
            value,
        } = passed;
        let Ok(Intermediate::Value(value)) = value else {
            return None;
        };
        if !self.programs.contains_key(&key.stream) {
            return None;
        }
        let mut record = RecordWriter::default();
        let to = reached.checked_sub(1)?;
        // An exception is nobody's: the item ends here, where its value need not travel.
        let key = ItemKey { to, ..*key };
        let reader = Reader::OfItem(key, key.to + 1);
        self.write(value, reader, *format, &mut record).ok()?;
        (record.bytes() <= key.grant).then_some(record)
    }

    /// Whatever a task raises is its item's outcome. But a child that the task has forked may leave by an exit.
    fn ends_process(&self, py: Python<'_>, error: &PyErr) -> bool {
        self.node.get().is_none()
            && (error.is_instance_of::<PySystemExit>(py)
                || error.is_instance_of::<PyKeyboardInterrupt>(py))
    }

    /// Whether the program wants its items to be run again for this exception.
    fn is_retriable(&mut self, py: Python<'_>, stream: u32, error: &PyErr) -> Result<bool, PyErr> {
        let classes = self.retries_on(py, stream)?;
        let classes = classes.as_ref().map(|classes| classes.bind(py));
        classes.map_or(Ok(false), |classes| error.value(py).is_instance(classes))
    }

    fn retries_on(&mut self, py: Python<'_>, stream: u32) -> PyResult<Option<Py<PyAny>>> {
        let program = self.programs.get(&stream);
        let Some(digest) = program.and_then(|program| program.retries_on) else {
            return Ok(None);
        };
        let classes = self.functions.entry(digest);
        let classes = classes.or_insert_with(|| load(py, self.loader, &mut self.pickles, &digest));
        match classes {
            Ok(classes) => Ok(Some(classes.clone_ref(py))),
            // Where the class of an exception can't be had, nothing raises it.
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
            Err(error) => Err(error.clone_ref(py)),
        }
    }

    /// The items of a stream may run for some time only.
    fn limit_time(
        &mut self,
        py: Python<'_>,
        stream: u32,
        timeout: Duration,
    ) -> Result<(), LoopEnd> {
        let classes = self.retries_on(py, stream)?;
        let arguments = (timeout.as_secs_f64(), classes);
        let limited = self.loader.call_method1("timeout_answer", arguments)?;
        let (travels, retriable): (Bound<'_, PyAny>, bool) = limited.extract()?;
        self.data.encode_in_band(&travels)?;
        let body = Bytes::copy_from_slice(self.data.body());
        let answer = TimeoutAnswer { body, retriable };
        self.node()?.set_timeout_answer(stream, answer);
        Ok(())
    }

    /// From now on the running item can be told to end.
    fn allow_interrupts(&mut self, py: Python<'_>) -> Result<(), LoopEnd> {
        if std::mem::replace(&mut self.has_interrupts, true) {
            return Ok(());
        }
        let node = self.node.get().ok_or(LoopEnd::Forked)?;
        let node = Owned::new(node.clone()).map_err(PyErr::from)?;
        let overdue = Bound::new(py, OverdueItem(node))?;
        self.loader.call_method1("allow_interrupts", (overdue,))?;
        interrupt::prepare();
        self.node()?.set_interrupt(interrupt::interrupt);
        Ok(())
    }
}

/// Why the loop has to end.
enum LoopEnd {
    Session,
    /// This is a child of the slot's process.
    Forked,
    Python(PyErr),
}

impl From<SessionError> for LoopEnd {
    /// Why it ended is the I/O thread's to say.
    fn from(_: SessionError) -> Self {
        Self::Session
    }
}

impl From<PyErr> for LoopEnd {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}
