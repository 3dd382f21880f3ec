//! The loop of a worker's process: takes work from the I/O thread, runs functions, gives results.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exoskel_flow::Lease;
use exoskel_identity::Role;
use exoskel_link::{Protection, SessionError};
use exoskel_net::fork::Owned;
use exoskel_net::message::{Call, Digest, SegmentFunctions, ToSlot};
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::rendezvous::{News, Rendezvous, meet};
use exoskel_net::slot::{Item, ItemKey, SlotNode, Work};
use exoskel_trust::Document;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::data::DataEncoder;
use crate::error::{self, ExceptionKind, raise};
use crate::keys::{keys, of_one_session};
use crate::listener::parse;
use crate::options::{NodeOptions, SessionPart};
use crate::pickle::{Encoder, decode};

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a manager may take to prove itself.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

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
    manager_name: Option<String>,
    credential_fd: Option<RawFd>,
    policy_fd: Option<RawFd>,
    /// What it says of itself to managers.
    properties: Vec<(String, String)>,
    /// The version of Python.
    python: String,
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
    let rendezvous = match (start.connection_fd, start.listen_fd, start.join) {
        (Some(descriptor), None, None) => Rendezvous::Inherited(take(descriptor)),
        (None, Some(descriptor), None) => Rendezvous::Listening(take(descriptor)),
        (None, None, Some(address)) => Rendezvous::Dialling(parse(&address)?, start.manager_name),
        _ => {
            return Err(PyValueError::new_err(
                "expected exactly one of connection_fd, listen_fd and join",
            ));
        }
    };
    let inherited = |descriptor: Option<RawFd>| {
        descriptor
            .map(|descriptor| Document::inherited(take(descriptor)))
            .transpose()
    };
    let credential = inherited(start.credential_fd)?
        .or_else(|| options.credential())
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session()?, 1, options.key_memory.as_deref())?;
    let part = SessionPart {
        role: Role::Worker,
        peers: Role::Manager,
        minimum: Protection::Plain,
        patience: HANDSHAKE_TIME,
        python: start.python,
        properties: start.properties,
        // A slot serves one manager at a time, whose job is its own.
        job: 0,
    };
    let policy = inherited(start.policy_fd)?;
    let sources = options.sources(py, credential, policy, part, &keys)?;
    // Before the files are read: what changes meanwhile is noticed.
    let renewal = sources.clone().renewal();
    // Once here, where the error has a kind; then at every handshake, so that renewed files are taken up.
    sources.terms().map_err(|error| error::terms(py, &error))?;
    let terms = move || sources.terms();
    let news = meet(rendezvous, terms, renewal)?;
    let node = wait_for_session(py, loader, news)?;
    let output = Bound::new(py, SlotOutput(Owned::new(node.clone())?))?;
    loader.call_method1("attach", (output,))?;
    let mut interpreter = SlotInterpreter::new(loader, Owned::new(node)?);
    interpreter.run(py)
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

fn wait_for_session(
    py: Python<'_>,
    loader: &Bound<'_, PyAny>,
    news: Receiver<News>,
) -> PyResult<Arc<SlotNode>> {
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
            Ok(News::Begun(node)) => return Ok(node),
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
    segments: Vec<SegmentFunctions>,
}

struct SlotInterpreter<'py> {
    loader: &'py Bound<'py, PyAny>,
    /// A task may fork: a child that comes back from it must not answer, with the numbers that the parent's records will have.
    node: Owned<Arc<SlotNode>>,
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

/// A value on its way through a segment, or the exception that ended its way.
type Passing<'py> = Result<Bound<'py, PyAny>, PyErr>;

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
                let lacks = self
                    .loader
                    .call_method1("setup", (PyBytes::new(py, &settings),))?
                    .extract()?;
                self.node()?.ready(lacks)?;
            }
            ToSlot::Function { digest, pickle } => {
                self.pickles
                    .insert(digest, PyBytes::new(py, &pickle).unbind());
            }
            ToSlot::Define {
                stream,
                call,
                segments,
            } => {
                self.programs
                    .insert(stream, LoadedProgram { call, segments });
            }
            ToSlot::Forget { stream } => {
                self.programs.remove(&stream);
            }
            ToSlot::Execute(_) | ToSlot::Recall { .. } | ToSlot::Grant { .. } => {}
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
            return self.finish(py, key, format, value);
        }
        let value = self.apply(py, key, segment, 0..1, value);
        if let Err(error) = &value
            && self.ends_process(py, error)
        {
            return Err(error.clone_ref(py).into());
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
        self.finish(py, key, format, value)
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
            self.finish(py, key, format, value)?;
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
        let value = decode(py, item.record, "an earlier worker", false, &mut spent);
        let node = self.node()?;
        spent.into_iter().for_each(|buffer| node.recycle(buffer));
        Ok(value)
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
        let Some(program) = self.programs.get(&key.stream) else {
            return Err(PyRuntimeError::new_err(
                "got an item of a stream that was never defined",
            ));
        };
        let functions = program
            .segments
            .get(segment)
            .map_or(&[][..], |segment| &segment.functions[..]);
        for (position, digest) in functions.iter().enumerate() {
            if !positions.contains(&position) {
                continue;
            }
            let function = match self
                .functions
                .entry(*digest)
                .or_insert_with(|| load(py, self.loader, &self.pickles, digest))
            {
                Ok(function) => function.bind(py),
                Err(error) => return Err(error.clone_ref(py)),
            };
            value = if program.call == Call::Arguments && segment == 0 && position == 0 {
                call_with_arguments(function, &value)?
            } else {
                function.call1((value,))?
            };
        }
        Ok(value)
    }

    fn finish(
        &mut self,
        py: Python<'_>,
        key: ItemKey,
        format: Format,
        value: Passing<'_>,
    ) -> Result<(), LoopEnd> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let sent = self.finish_with(py, key, format, value, &mut scratch);
        self.scratch = scratch;
        sent
    }

    fn finish_with(
        &mut self,
        py: Python<'_>,
        key: ItemKey,
        format: Format,
        value: Passing<'_>,
        scratch: &mut RecordWriter,
    ) -> Result<(), LoopEnd> {
        let encoded = match (value, format) {
            (Ok(value), Format::Pickle) => self.encoder.encode(&value, scratch, u64::MAX),
            (Ok(value), Format::Data) => self.data.encode(&value).map(|()| {
                let bulk = self.data.take_bulk();
                scratch.push(Format::Data, false, self.data.body(), &[], bulk);
            }),
            (Err(error), _) => Err(error),
        };
        if let Err(error) = encoded {
            if self.ends_process(py, &error) {
                return Err(error.into());
            }
            self.write_exception(py, format, scratch, error)?;
        }
        match self.node()?.finish(key, |writer| writer.append(scratch)) {
            Err(SessionError::Limit { got, maximum, .. }) => {
                let text = format!(
                    "got a result of {got} bytes, expected at most {maximum}; return less, or raise message_bytes_max of the Manager"
                );
                let error = raise(py, ExceptionKind::SizeLimit, text);
                self.write_exception(py, format, scratch, error)?;
                Ok(self.node()?.finish(key, |writer| writer.append(scratch))?)
            }
            other => Ok(other?),
        }
    }

    /// Ctrl-C ends the slot. `sys.exit` ends the item only, but a child that the task has forked may leave by it.
    fn ends_process(&self, py: Python<'_>, error: &PyErr) -> bool {
        let is_exit = error.is_instance_of::<PySystemExit>(py) && self.node.get().is_none();
        is_exit || error.is_instance_of::<PyKeyboardInterrupt>(py)
    }

    fn write_exception(
        &mut self,
        py: Python<'_>,
        format: Format,
        writer: &mut RecordWriter,
        error: PyErr,
    ) -> Result<(), LoopEnd> {
        let _ = writer.take();
        let error = error.into_value(py);
        let is_data = format == Format::Data;
        let travels = self.loader.call_method1("exception", (error, is_data))?;
        if is_data {
            if let Err(error) = self.data.encode_in_band(&travels) {
                if !error.is_instance_of::<pyo3::exceptions::PyException>(py) {
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
    pickles: &HashMap<Digest, Py<PyBytes>>,
    digest: &Digest,
) -> Loaded {
    let pickle = pickles.get(digest);
    let pickle = pickle
        .ok_or_else(|| PyRuntimeError::new_err("got an item whose function was never sent"))?;
    Ok(loader.call_method1("load", (pickle.bind(py),))?.unbind())
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
