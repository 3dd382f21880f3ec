//! The loop of a worker's process: takes work from the I/O thread, runs functions, gives results.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::Lease;
use exoskel_identity::Role;
use exoskel_link::{Protection, SessionError};
use exoskel_net::fork::Owned;
use exoskel_net::message::{Call, Digest, SegmentFunctions, ToSlot};
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::rendezvous::{ManagerPlace, News, Rendezvous, meet};
use exoskel_net::slot::{Item, ItemKey, SlotNode, TimeoutAnswer, Work};
use exoskel_net::sources::{CurrentConfig, NodeSources, RENEWAL_TIME};
use exoskel_trust::Document;
use pyo3::exceptions::{
    PyException, PyKeyboardInterrupt, PyRuntimeError, PySystemExit, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::data::DataEncoder;
use crate::error::{self, ExceptionKind, raise};
use crate::interrupt::{self, Interruptible, OverdueItem};
use crate::item_note::Subject;
use crate::job::ProcessCredential;
use crate::keys::{keys, of_one_session};
use crate::listener::parse;
use crate::options::{NodeOptions, SessionPart};
use crate::pickle::{Destination, Encoder, decode, result_over_limit};
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
    /// What all slots of the worker have open, where these dial.
    turns_fd: Option<RawFd>,
    credential_fd: Option<RawFd>,
    /// That of a process of a job.
    credential: Option<Py<ProcessCredential>>,
    policy_fd: Option<RawFd>,
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
            turns: start.turns_fd.map(take),
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
    let sources = options.sources(py, credential, policy, part, &keys)?;
    // Before the files are read: what changes meanwhile is noticed.
    let renewal = sources.clone().renewal();
    let config = read_config(py, loader, sources, start.is_replacement)?;
    let drain = start
        .drain
        .map_or(Ok(DRAIN_TIME), Duration::try_from_secs_f64);
    let drain = drain.map_err(|error| PyValueError::new_err(format!("drain: {error}")))?;
    // A manager ends a child that lets go of the connection. So one that fails holds it until it has said why.
    let connection = match &rendezvous {
        Rendezvous::Inherited(connection) => Some(connection.try_clone()?),
        _ => None,
    };
    let news = meet(rendezvous, config, renewal, drain);
    if let (Err(_), Some(connection)) = (&news, connection) {
        let _until_the_end = connection.into_raw_fd();
    }
    let news = news.map_err(|error| {
        PyRuntimeError::new_err(format!(
            "can't start its I/O thread: {error}; the limits on processes and open files (ulimit -u, ulimit -n) are too low for so many slots"
        ))
    })?;
    let Some(node) = wait_for_session(py, loader, news)? else {
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

/// Sees whether a worker's slots can use its files: credential, policy, lists and trust directories.
#[pyfunction]
pub(crate) fn check_worker(py: Python<'_>, options: NodeOptions) -> PyResult<()> {
    let credential = options
        .credential()
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session(), 1, options.key_memory.as_deref())?;
    let part = part_of_worker(String::new(), Vec::new());
    let sources = options.sources(py, credential, None, part, &keys)?;
    match py.detach(|| sources.terms()) {
        Ok(_) => Ok(()),
        Err(error) => Err(error::terms(py, &error)),
    }
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
fn take(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the number comes from the arguments that our parent made for this process; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Reads the files once here, where an error has a kind; from then on they are read at every handshake. In the place of a slot that has
/// served, they are waited for: the worker's other slots go on.
fn read_config(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    sources: NodeSources,
    is_replacement: bool,
) -> PyResult<CurrentConfig> {
    let mut told = None;
    loop {
        let error = match CurrentConfig::new(sources.clone()) {
            Ok(config) => return Ok(config),
            Err(error) if !is_replacement => return Err(error::terms(py, &error)),
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

/// The session, unless the slot is told to leave before there is one.
fn wait_for_session(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    news: Receiver<News>,
) -> PyResult<Option<Arc<SlotNode>>> {
    // A receiver may not be shared between threads; a lock that is never contended makes it so.
    let news = Mutex::new(news);
    loop {
        match py.detach(|| {
            news.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv_timeout(PATIENCE)
        }) {
            Ok(News::Audit(line)) => {
                loader.call_method1("audit", (line,))?;
            }
            Ok(News::Begun(node)) => return Ok(Some(node)),
            Ok(News::Left) => return Ok(None),
            Ok(News::Failed(error)) => return Err(error::meet(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "the I/O thread ended before the session began",
                ));
            }
        }
    }
}

/// A function that was loaded, or the exception that loading raised.
type Loaded = Result<Py<PyAny>, PyErr>;

struct LoadedProgram {
    call: Call,
    /// The classes of exceptions for which items run again.
    retries_on: Option<Digest>,
    segments: Vec<SegmentFunctions>,
}

struct SlotInterpreter<'py> {
    loader: &'py Bound<'py, PyAny>,
    /// A task may fork: a child that comes back from it must not answer, with the numbers that the parent's records will have.
    node: Owned<Arc<SlotNode>>,
    /// Functions that have not been called yet.
    pickles: HashMap<Digest, Py<PyBytes>>,
    functions: HashMap<Digest, Loaded>,
    programs: HashMap<u32, LoadedProgram>,
    /// How answers to this manager must be written, at least: it says so before the first item.
    answers: Format,
    encoder: Encoder,
    data: DataEncoder,
    /// Where a result is written before it is known to be good.
    scratch: RecordWriter,
    /// What has passed the serial function of a frame whose lease is passed on.
    passed: Vec<Passed<'py>>,
}

/// An item that has passed a serial function.
struct Passed<'py> {
    key: ItemKey,
    segment: usize,
    /// How its answer must be written.
    format: Format,
    value: Passing<'py>,
}

/// A value on its way through a segment, or what ended its way.
type Passing<'py> = Result<Bound<'py, PyAny>, Box<TaskFailure<'py>>>;

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
            passed: Vec::new(),
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
        loop {
            let mut work = self.node()?.next();
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
                Work::Item(item) => self.item(py, item)?,
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
                call,
                rules,
                segments,
            } => {
                let retries_on = rules.retries_on;
                let program = LoadedProgram {
                    call,
                    retries_on,
                    segments,
                };
                self.programs.insert(stream, program);
                if let Some(timeout) = rules.timeout {
                    self.limit_time(py, stream, timeout)?;
                }
            }
            ToSlot::Forget { stream } => {
                self.programs.remove(&stream);
            }
            ToSlot::Execute(_)
            | ToSlot::Recall { .. }
            | ToSlot::Grant { .. }
            | ToSlot::Probe
            | ToSlot::Piece { .. } => {}
        }
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

    fn item(&mut self, py: Python<'py>, item: Item) -> Result<(), LoopEnd> {
        let key = item.key;
        // What was made of data is no better than data.
        let format = match item.record.format {
            Format::Data => Format::Data,
            Format::Pickle => self.answers,
        };
        let (segment, lease) = (usize::from(item.segment), item.lease);
        let value = self.start(py, item)?;
        if lease == Lease::None {
            let value = self.apply(py, key, segment, 0..usize::MAX, value);
            return self.finish(py, key, segment, format, value);
        }
        let value = self.apply(py, key, segment, 0..1, value);
        if let Err(failure) = &value
            && self.ends_process(py, &failure.error)
        {
            return Err(failure.error.clone_ref(py).into());
        }
        if lease == Lease::PassedOn {
            self.passed.push(Passed {
                key,
                segment,
                format,
                value,
            });
            return Ok(());
        }
        self.node()?.pass(key)?;
        let value = self.apply(py, key, segment, 1..usize::MAX, value);
        self.finish(py, key, segment, format, value)
    }

    /// The items of a frame have passed the serial function: with the lease given back, through the rest.
    fn rest(&mut self, py: Python<'py>, frame: u64) -> Result<(), LoopEnd> {
        self.node()?.release(frame)?;
        let mut passed = std::mem::take(&mut self.passed);
        for Passed {
            key,
            segment,
            format,
            value,
        } in passed.drain(..)
        {
            if !self.programs.contains_key(&key.stream) {
                // Nobody reads what a forgotten stream makes, but the frame must be answered for.
                self.node()?.finish(key, |writer| {
                    writer.push(Format::Data, true, &[], &[], []);
                })?;
                continue;
            }
            let value = self.apply(py, key, segment, 1..usize::MAX, value);
            self.finish(py, key, segment, format, value)?;
        }
        // Its memory serves the next frame.
        self.passed = passed;
        Ok(())
    }

    fn start<'a>(&self, py: Python<'a>, item: Item) -> Result<Passing<'a>, LoopEnd> {
        // Gives back the results that the I/O thread has sent. It only notes them, for the next thread that attaches;
        // a slot that always has something to run wouldn't, and would keep them all.
        Python::attach(|_| ());
        let mut spent = Vec::new();
        let interruptible = Interruptible::begin();
        let value = decode(py, item.record, "an earlier worker", false, &mut spent);
        drop(interruptible);
        let node = self.node()?;
        spent.into_iter().for_each(|buffer| node.recycle(buffer));
        Ok(value.map_err(Box::from))
    }

    /// Applies the functions of a segment, those at `positions`.
    fn apply<'a>(
        &mut self,
        py: Python<'a>,
        key: ItemKey,
        segment: usize,
        positions: std::ops::Range<usize>,
        value: Passing<'a>,
    ) -> Passing<'a> {
        let mut value = value?;
        let interruptible = Interruptible::begin();
        let Some(program) = self.programs.get(&key.stream) else {
            return Err(
                PyRuntimeError::new_err("got an item of a stream that was never defined").into(),
            );
        };
        let functions = program
            .segments
            .get(segment)
            .map_or(&[][..], |segment| &segment.functions[..]);
        for (position, digest) in functions.iter().enumerate() {
            if !positions.contains(&position) {
                continue;
            }
            let function = match self.functions.entry(*digest).or_insert_with(|| {
                let pickles = &mut self.pickles;
                let mut load = || load(py, self.loader, pickles, digest);
                match self.node.get() {
                    Some(node) => node.loading(load),
                    None => load(),
                }
            }) {
                Ok(function) => function.bind(py),
                Err(error) => return Err(error.clone_ref(py).into()),
            };
            let is_first = segment == 0 && position == 0;
            let is_call = is_first && program.call == Call::Arguments;
            let called = if is_call {
                call_with_arguments(function, &value)
            } else {
                function.call1((&value,))
            };
            value = called.map_err(|error| {
                let function = function.clone();
                let subject = match (is_first, is_call) {
                    (_, true) => Subject::Call {
                        function,
                        arguments: value,
                    },
                    (true, false) => Subject::Item(value),
                    (false, false) => Subject::Argument { function, value },
                };
                Box::new(TaskFailure { error, subject })
            })?;
        }
        drop(interruptible);
        Ok(value)
    }

    fn finish(
        &mut self,
        py: Python<'_>,
        key: ItemKey,
        segment: usize,
        format: Format,
        value: Passing<'_>,
    ) -> Result<(), LoopEnd> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let sent = self.finish_with(py, key, segment, format, value, &mut scratch);
        self.scratch = scratch;
        sent
    }

    fn finish_with(
        &mut self,
        py: Python<'_>,
        key: ItemKey,
        segment: usize,
        format: Format,
        value: Passing<'_>,
        scratch: &mut RecordWriter,
    ) -> Result<(), LoopEnd> {
        let interruptible = Interruptible::begin();
        let encoded = value.and_then(|value| {
            match format {
                Format::Pickle => {
                    let destination = || destination(&self.programs, key, segment);
                    self.encoder.encode(&value, scratch, destination, u64::MAX)
                }
                Format::Data => self.data.encode(&value).map(|()| {
                    let bulk = self.data.take_bulk();
                    scratch.push(Format::Data, false, self.data.body(), &[], bulk);
                }),
            }
            .map_err(|error| {
                let subject = Subject::Result(value);
                Box::new(TaskFailure { error, subject })
            })
        });
        drop(interruptible);
        if let Err(mut failure) = encoded {
            if self.ends_process(py, &failure.error) {
                return Err(failure.error.into());
            }
            let retriable = self.is_retriable(py, key.stream, &failure.error)?;
            if matches!(failure.subject, Subject::Result(_)) {
                let function = self.last_function(py, key, segment);
                failure.error = result_not_sent(py, failure.error, function)?;
            }
            self.write_exception(py, format, scratch, *failure)?;
            if retriable {
                let node = self.node()?;
                return Ok(node.finish_retriable(key, |writer| writer.append(scratch))?);
            }
        }
        match self.node()?.finish(key, |writer| writer.append(scratch)) {
            Err(SessionError::Limit { got, maximum, .. }) => {
                let error = result_over_limit(py, got, maximum);
                self.write_exception(py, format, scratch, error.into())?;
                Ok(self.node()?.finish(key, |writer| writer.append(scratch))?)
            }
            other => Ok(other?),
        }
    }

    /// The function whose result a segment returns, if it could be loaded.
    fn last_function<'a>(
        &self,
        py: Python<'a>,
        key: ItemKey,
        segment: usize,
    ) -> Option<Bound<'a, PyAny>> {
        let segment = self.programs.get(&key.stream)?.segments.get(segment)?;
        let loaded = self.functions.get(segment.functions.last()?)?;
        let function = loaded.as_ref().ok()?;
        Some(function.bind(py).clone())
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
        let node = self.node.get().ok_or(LoopEnd::Forked)?;
        let overdue = Bound::new(
            py,
            OverdueItem(Owned::new(node.clone()).map_err(PyErr::from)?),
        )?;
        let arguments = (overdue, timeout.as_secs_f64(), classes);
        let limited = self.loader.call_method1("limit_time", arguments)?;
        let (travels, retriable): (Bound<'_, PyAny>, bool) = limited.extract()?;
        self.data.encode_in_band(&travels)?;
        let body = Bytes::copy_from_slice(self.data.body());
        interrupt::prepare();
        let answer = TimeoutAnswer { body, retriable };
        self.node()?
            .set_timeout_answer(stream, answer, interrupt::interrupt);
        Ok(())
    }

    fn write_exception(
        &mut self,
        py: Python<'_>,
        format: Format,
        writer: &mut RecordWriter,
        failure: TaskFailure<'_>,
    ) -> Result<(), LoopEnd> {
        let _ = writer.take();
        let TaskFailure { error, subject } = failure;
        let error = error.into_value(py);
        let is_data = format == Format::Data;
        let about = subject.describe(py)?;
        let arguments = (error, is_data, about);
        let travels = self.loader.call_method1("exception", arguments)?;
        if is_data {
            if let Err(error) = self.data.encode_in_band(&travels) {
                if !error.is_instance_of::<PyException>(py) {
                    return Err(error.into());
                }
                // What the program's own function made of it can't be sent; its name and text can.
                travels.set_item(3, py.None())?;
                self.data.encode_in_band(&travels)?;
            }
            writer.push(format, true, self.data.body(), &[], []);
        } else {
            let pickle = travels.cast_into::<PyBytes>().map_err(PyErr::from)?;
            writer.push(format, true, pickle.as_bytes(), &[], []);
        }
        Ok(())
    }
}

fn load(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    pickles: &mut HashMap<Digest, Py<PyBytes>>,
    digest: &Digest,
) -> Loaded {
    // What it is loaded from is needed only once.
    let pickle = pickles.remove(digest);
    let pickle = pickle
        .ok_or_else(|| PyRuntimeError::new_err("got an item whose function was never sent"))?;
    Ok(loader.call_method1("load", (pickle.bind(py),))?.unbind())
}

/// What an item ends with whose result can't be sent, so that nobody takes it for an exception of the function.
fn result_not_sent(
    py: Python<'_>,
    error: PyErr,
    function: Option<Bound<'_, PyAny>>,
) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "exoskel.outcome", "result_not_sent")?;
    Ok(PyErr::from_value(make.call1((error.value(py), function))?))
}

/// Who reads the results of a segment: the manager those of the last one, else slots.
fn destination(
    programs: &HashMap<u32, LoadedProgram>,
    key: ItemKey,
    segment: usize,
) -> Destination {
    let program = programs.get(&key.stream);
    if program.is_some_and(|program| segment + 1 < program.segments.len()) {
        Destination::Slots
    } else {
        Destination::Manager
    }
}

fn call_with_arguments<'py>(
    function: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (positional, keywords): (Bound<'py, PyTuple>, Bound<'py, PyDict>) = value.extract()?;
    function.call(positional, Some(&keywords))
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
