//! Streams as Python sees them: an iterator for `map`, a queue of numbered outcomes for `submit`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_net::fork::{OwnProcess, Owned};
use exoskel_net::manager::StreamHandle;
use exoskel_net::payload::{BatchBuilder, Format, Record};
use exoskel_net::result_queue::{Contents, Outcomes, StreamEnd, Taken};
use pyo3::exceptions::{PyException, PyStopIteration, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::at_exit;
use crate::data;
use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::item_note::{Subject, with_note};
use crate::manager::NoticePrinter;
use crate::pickle::{Destination, Encoder, decode, read_fast};
use crate::turn::TurnTaking;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// Items that leave for the driver together, at most.
const BATCH_ITEMS_MAX: u32 = 512;

/// Bytes that leave for the driver together, at most, unless one item has more.
const BATCH_BYTES_MAX: u64 = 128 * 1024;

/// Items taken from the user's iterable in a row before outcomes are looked at.
const PULL_ITEMS_MAX: u32 = 256;

/// Time spent on the user's iterable in a row before outcomes are looked at.
const PULL_TIME_MAX: Duration = Duration::from_micros(500);

/// An iterable that takes longer than this for an item is asked only when there is nothing else to do.
const SLOW_PULL: Duration = Duration::from_micros(200);

/// The outcomes of `map`, as an iterator. Holds the input and pulls it as tickets come free.
#[pyclass(frozen)]
pub(crate) struct MapStream(Owned<Map>);

struct Map {
    process: OwnProcess,
    stream: StreamHandle,
    notices: Arc<NoticePrinter>,
    /// It was closed, perhaps while a thread is inside.
    is_closed: AtomicBool,
    state: TurnTaking<MapState>,
}

struct MapState {
    input: Option<Py<PyAny>>,
    feeder: Feeder,
    current: Option<Walk>,
    delivered: u64,
    slow_input: bool,
    outcomes: OutcomeForm,
    /// Why items that can't be sent can't, until it is their turn.
    unsent: BTreeMap<u64, PyErr>,
    /// What ended the input; it is raised behind the outcomes of all items before it.
    input_error: Option<PyErr>,
    /// The manager, which must not end with its user's last reference while somebody still iterates.
    manager: Option<Py<PyAny>>,
    over: bool,
}

/// How users want to be given outcomes.
#[derive(Clone, Copy, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OutcomeForm {
    /// They come as they complete, instead of in the order of the items.
    pub(crate) as_completed: bool,
    /// An exception stands in the place of the result, instead of ending the stream.
    return_errors: bool,
    /// Each outcome comes in a pair with its item's index.
    indices: bool,
}

/// Items on their way to the driver.
struct Feeder {
    item_bytes_max: u64,
    encoder: Encoder,
    batch: BatchBuilder,
    sent: u64,
}

/// What users know the parts of a stream as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResultParts {
    /// The items of an iterable, which they can count.
    Items,
    /// Calls, each with a future of its own and without a number.
    Calls,
}

/// A walk over outcomes that arrived together.
struct Walk {
    parts: ResultParts,
    first: u64,
    count: u32,
    next: u32,
    contents: Contents,
    /// Memory that the outcomes so far no longer need.
    spent: Vec<Vec<u8>>,
}

/// One outcome.
enum StreamOutcome<'py> {
    Value(Bound<'py, PyAny>),
    Exception(PyErr),
}

impl MapStream {
    pub(crate) fn new(
        stream: StreamHandle,
        notices: Arc<NoticePrinter>,
        input: Py<PyAny>,
        outcomes: OutcomeForm,
        manager: Py<PyAny>,
        item_bytes_max: u64,
    ) -> PyResult<Self> {
        let state = MapState {
            input: Some(input),
            feeder: Feeder::new(item_bytes_max, Encoder::default()),
            current: None,
            delivered: 0,
            slow_input: false,
            outcomes,
            unsent: BTreeMap::new(),
            input_error: None,
            manager: Some(manager),
            over: false,
        };
        Ok(Self(Owned::new(Map {
            process: OwnProcess::this()?,
            stream,
            notices,
            is_closed: AtomicBool::new(false),
            state: TurnTaking::new(state),
        })?))
    }
}

impl Map {
    /// Pulls items from the user's iterable while there are tickets, for a short time.
    fn pull(&self, py: Python<'_>, state: &mut MapState) -> PyResult<()> {
        let Some(input) = state.input.as_ref().map(|input| input.clone_ref(py)) else {
            return Ok(());
        };
        let input = input.bind(py);
        let admissible = self.stream.results.admissible();
        let start = Instant::now();
        let mut pulled = 0;
        while state.feeder.admitted() < admissible && pulled < PULL_ITEMS_MAX {
            // The iterable may be a generator of any length of life, so the state isn't borrowed by it meanwhile.
            let item = next_item(input);
            fork::check(py, self.process)?;
            let item = match item {
                Ok(Some(item)) => item,
                Ok(None) => {
                    state.input = None;
                    break;
                }
                Err(error) => {
                    self.end_input(py, state, error)?;
                    break;
                }
            };
            pulled += 1;
            let pushed = state.feeder.push(&self.stream, &item);
            fork::check(py, self.process)?;
            if let Err(error) = pushed {
                let index = state.feeder.admitted();
                let about = Subject::Item(item).describe(py)?;
                let error = with_note(py, error, Some(index), &about)?;
                if !state.outcomes.return_errors || !error.is_instance_of::<PyException>(py) {
                    self.end_input(py, state, error)?;
                    break;
                }
                state.feeder.push_exception(py, &error)?;
                state.unsent.insert(index, error);
            }
            if self.stream.results.is_hungry() {
                state.feeder.flush(&self.stream);
            }
            if pulled % 16 == 0 && start.elapsed() > PULL_TIME_MAX {
                break;
            }
        }
        state.feeder.flush(&self.stream);
        if state.input.is_none() {
            self.stream.end_of_input();
        }
        state.slow_input = pulled > 0 && start.elapsed() / pulled > SLOW_PULL;
        Ok(())
    }

    /// The input has raised: the outcomes of what it gave before come first. But Ctrl-C and the like don't wait.
    fn end_input(&self, py: Python<'_>, state: &mut MapState, error: PyErr) -> PyResult<()> {
        state.input = None;
        if error.is_instance_of::<PyException>(py) {
            state.input_error = Some(error);
            return Ok(());
        }
        self.finish(state);
        Err(error)
    }

    fn finish(&self, state: &mut MapState) {
        if !std::mem::replace(&mut state.over, true) {
            state.input = None;
            state.input_error = None;
            state.manager = None;
            state.unsent.clear();
            state.current = None;
            self.stream.close();
        }
    }

    fn deliver<'py>(
        &self,
        py: Python<'py>,
        state: &mut MapState,
        index: u64,
        outcome: StreamOutcome<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        state.delivered += 1;
        let value = match outcome {
            StreamOutcome::Value(value) => value,
            StreamOutcome::Exception(error) if state.outcomes.return_errors => {
                let error = state.unsent.remove(&index).unwrap_or(error);
                error.into_value(py).into_bound(py).into_any()
            }
            StreamOutcome::Exception(error) => {
                self.finish(state);
                return Err(error);
            }
        };
        if state.outcomes.indices {
            return Ok((index, value).into_pyobject(py)?.into_any());
        }
        Ok(value)
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut state = self.state.enter(py)?;
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                self.finish(&mut state);
                return Err(PyStopIteration::new_err(()));
            }
            if let Some(walk) = &mut state.current {
                if let Some(outcome) = walk.next(py)? {
                    let index = walk.first + u64::from(walk.next) - 1;
                    let ended = walk.is_over();
                    if ended {
                        self.stream.taken(walk.first, walk.count);
                        self.stream.recycle(&mut walk.spent);
                        state.current = None;
                    }
                    return self.deliver(py, &mut state, index, outcome);
                }
                state.current = None;
            }
            if state.over || (state.input.is_none() && state.delivered == state.feeder.admitted()) {
                let error = state.input_error.take();
                self.finish(&mut state);
                return Err(error.unwrap_or_else(|| PyStopIteration::new_err(())));
            }
            fork::check(py, self.process)?;
            if !state.slow_input {
                self.pull(py, &mut state)?;
            }
            let taken = match self.stream.results.take() {
                Taken::Nothing if state.slow_input && state.input.is_some() => {
                    self.pull(py, &mut state)?;
                    self.stream.results.take()
                }
                taken => taken,
            };
            let taken = match taken {
                Taken::Nothing => {
                    let admitted = state.input.is_some().then(|| state.feeder.admitted());
                    py.detach(|| self.stream.results.wait(PATIENCE, admitted))
                }
                taken => taken,
            };
            // Whoever is interrupted may come back for what is there.
            let ended = match taken {
                Taken::Outcomes(outcomes) => {
                    state.current = Some(Walk::new(outcomes, ResultParts::Items));
                    None
                }
                Taken::Nothing => None,
                Taken::Ended(end) => Some(end),
            };
            py.check_signals()?;
            // What an item printed came before its result, and is to be seen before it.
            self.notices.present(py)?;
            match ended {
                None => {}
                Some(_) if self.is_closed.load(Ordering::Relaxed) => {}
                Some(end) => {
                    at_exit::leave(py, &end)?;
                    self.finish(&mut state);
                    return Err(error::stream_end(py, &end));
                }
            }
        }
    }
}

#[pymethods]
impl MapStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        fork::own(py, &self.0)?.next(py)
    }

    /// Ends the stream: its items are forgotten, and threads that wait for its results are told that there are no more. A forked child
    /// may close its copy, to which nothing happens.
    fn close(&self) {
        if let Some(own) = self.0.get() {
            own.is_closed.store(true, Ordering::Relaxed);
            match own.state.try_enter() {
                Some(mut state) => own.finish(&mut state),
                None => own.stream.close(),
            }
        }
    }

    /// How many items were handed over and how many outcomes were taken, so far.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let state = fork::own(py, &self.0)?.state.enter(py)?;
        Ok((state.feeder.admitted(), state.delivered))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        self.stream.close();
    }
}

fn next_item<'py>(input: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    input
        .cast::<pyo3::types::PyIterator>()?
        .clone()
        .next()
        .transpose()
}

impl Feeder {
    fn new(item_bytes_max: u64, encoder: Encoder) -> Self {
        Self {
            item_bytes_max,
            encoder,
            batch: BatchBuilder::default(),
            sent: 0,
        }
    }

    /// An item that can't be sent has its exception as outcome.
    fn push_exception(&mut self, py: Python<'_>, error: &PyErr) -> PyResult<()> {
        static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let encode = ENCODE.import(py, "exoskel.outcome", "encode_exception")?;
        let pickle = encode
            .call1((error.value(py), false))?
            .cast_into::<PyBytes>()?;
        self.batch.push_exception(Format::Pickle, pickle.as_bytes());
        Ok(())
    }

    fn admitted(&self) -> u64 {
        self.sent + u64::from(self.batch.count())
    }

    fn push(&mut self, stream: &StreamHandle, item: &Bound<'_, PyAny>) -> PyResult<()> {
        self.encoder.encode(
            item,
            &mut self.batch,
            || Destination::Slots,
            self.item_bytes_max,
        )?;
        if self.batch.count() >= BATCH_ITEMS_MAX || self.batch.bytes() >= BATCH_BYTES_MAX {
            self.flush(stream);
        }
        Ok(())
    }

    fn leave(&mut self, stream: &StreamHandle) {
        let count = self.batch.count();
        if count > 0 {
            self.sent += u64::from(count);
            stream.admit_when_wanted(&mut self.batch);
        }
    }

    fn flush(&mut self, stream: &StreamHandle) {
        let count = self.batch.count();
        if count > 0 {
            self.sent += u64::from(count);
            stream.admit(&mut self.batch);
        }
    }
}

impl Walk {
    fn new(outcomes: Outcomes, parts: ResultParts) -> Self {
        let Outcomes {
            first,
            count,
            contents,
        } = outcomes;
        Self {
            parts,
            first,
            count,
            next: 0,
            contents,
            spent: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.next >= self.count
    }

    /// Appends all outcomes to a queue of Python's.
    fn append_to(&mut self, py: Python<'_>, arrived: &Bound<'_, PyAny>) -> PyResult<()> {
        let append = |index: u64, good: bool, value: Bound<'_, PyAny>| {
            let numbered = ((index, good, value),);
            let appended = arrived.call_method1(intern!(py, "append"), numbered);
            appended.map(drop)
        };
        while !self.is_over() {
            let index = self.first + u64::from(self.next);
            match self.next(py) {
                Ok(None) => {}
                Ok(Some(StreamOutcome::Value(value))) => append(index, true, value)?,
                Ok(Some(StreamOutcome::Exception(error))) => {
                    append(index, false, error.into_value(py).into_bound(py).into_any())?;
                }
                // Ctrl-C while it was read, say. It can't be read twice.
                Err(error) => {
                    append(index, false, error.value(py).clone().into_any())?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The next outcome, or none when all have been handed out.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<StreamOutcome<'py>>> {
        if self.is_over() {
            return Ok(None);
        }
        let item = (self.parts == ResultParts::Items).then(|| self.first + u64::from(self.next));
        self.next += 1;
        let (reader, origin, attempts) = match &mut self.contents {
            Contents::Records(reader, origin) => (reader, origin, None),
            Contents::Exhausted {
                records,
                origin,
                attempts,
            } => (records, origin, Some(*attempts)),
            Contents::Refused(origin) => {
                let sender = Sender {
                    worker: &origin.worker,
                    item,
                };
                return Ok(Some(StreamOutcome::Exception(pickle_refused(py, &sender))));
            }
            Contents::WorkersLost { count, last_end } => {
                let error = workers_lost(py, item, *count, last_end.as_deref())?;
                return Ok(Some(StreamOutcome::Exception(error)));
            }
            Contents::TooLarge { bytes, maximum } => {
                let text = format!(
                    "got an item of {bytes} bytes, expected at most {maximum}, which is what its worker takes; send less, or start the worker with a larger --message-bytes-max"
                );
                let error = raise(py, ExceptionKind::SizeLimit, text);
                let error = with_note(py, error, item, "")?;
                return Ok(Some(StreamOutcome::Exception(error)));
            }
        };
        let mark = reader.position();
        if let Some((format, body)) = reader.next_small() {
            let value = match format {
                Format::Pickle => read_fast(py, body)?,
                Format::Data => data::read_small(py, body)?,
            };
            if let Some(value) = value {
                return Ok(Some(StreamOutcome::Value(value)));
            }
        }
        reader.rewind(mark);
        let sender = Sender {
            worker: &origin.worker,
            item,
        };
        let record = reader.next_record();
        let record = record.map_err(|error| {
            raise(
                py,
                ExceptionKind::Exoskel,
                format!("worker {}: {error}", origin.worker),
            )
        })?;
        let record = record.unwrap_or_default();
        if !origin.allows(record.format) {
            // The router has thrown such a record away; here is where it would do harm.
            return Ok(Some(StreamOutcome::Exception(pickle_refused(py, &sender))));
        }
        let outcome = if record.exception {
            let error = remote_exception(py, &record, &sender)?;
            if let Some(attempts) = attempts {
                note_attempts(py, &error, attempts)?;
            }
            StreamOutcome::Exception(error)
        } else {
            match decode(py, record, &sender.to_string(), true, &mut self.spent) {
                Ok(value) => StreamOutcome::Value(value),
                Err(error) => StreamOutcome::Exception(with_note(py, error, item, "")?),
            }
        };
        Ok(Some(outcome))
    }
}

/// Who sent what: for errors.
struct Sender<'a> {
    worker: &'a str,
    /// The item's number, where it has one.
    item: Option<u64>,
}

impl fmt::Display for Sender<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.worker.is_empty() {
            formatter.write_str("this manager for ")?;
        } else {
            write!(formatter, "worker {} for ", self.worker)?;
        }
        match self.item {
            Some(item) => write!(formatter, "item {item}"),
            None => formatter.write_str("this call"),
        }
    }
}

fn pickle_refused(py: Python<'_>, sender: &Sender<'_>) -> PyErr {
    data::rejected(
        py,
        &sender.to_string(),
        "got a pickle, expected plain data; it was not read. The worker doesn't keep to the rules, or its exoskel is damaged",
    )
}

/// The exception that a task raised, with its remote traceback as cause.
fn remote_exception(py: Python<'_>, record: &Record, sender: &Sender<'_>) -> PyResult<PyErr> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static FROM_DATA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let error = match record.format {
        Format::Pickle => {
            let decode = DECODE.import(py, "exoskel.outcome", "decode_pickled_exception")?;
            decode.call1((PyBytes::new(py, &record.body), sender.worker, sender.item))?
        }
        Format::Data => {
            let from_data = FROM_DATA.import(py, "exoskel.outcome", "exception_from_data")?;
            match data::decode_exception(py, &record.body, &sender.to_string()) {
                Ok((kind, text, lines, data)) => {
                    let (worker, item) = (sender.worker, sender.item);
                    let arguments = (kind, text, lines, data, worker, item, sender.to_string());
                    match from_data.call1(arguments) {
                        Ok(error) => error,
                        // A class of the program's that can't bear what a stranger makes of it: this item's affair alone.
                        Err(error) if error.is_instance_of::<PyException>(py) => return Ok(error),
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Ok(error),
            }
        }
    };
    Ok(PyErr::from_value(error))
}

/// Says at an exception for which its item runs again that this was the last time.
fn note_attempts(py: Python<'_>, error: &PyErr, attempts: u32) -> PyResult<()> {
    let note = format!("attempt {attempts} of {attempts} (retries={attempts})");
    let noted = error
        .value(py)
        .call_method1(intern!(py, "add_note"), (note,));
    match noted {
        // The class of the exception is the user's, and its notes may be as well.
        Err(fault) if fault.is_instance_of::<PyException>(py) => Ok(()),
        noted => noted.map(drop),
    }
}

fn workers_lost(
    py: Python<'_>,
    item: Option<u64>,
    count: u32,
    last_end: Option<&str>,
) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "exoskel.outcome", "workers_lost")?;
    Ok(PyErr::from_value(make.call1((item, count, last_end))?))
}

/// A stream without end, whose items are numbered and whose outcomes come as they complete.
#[pyclass(frozen)]
pub(crate) struct SubmitStream(Owned<Submit>);

struct Submit {
    stream: StreamHandle,
    notices: Arc<NoticePrinter>,
    feeder: Mutex<Feeder>,
    /// Outcomes that were taken and not handed out yet.
    taken: Mutex<VecDeque<Walk>>,
    /// Items handed over, and how many of them were taken back.
    submitted: AtomicU64,
    cancelled: AtomicU64,
}

impl Submit {
    /// How many items will have had outcomes.
    fn expected(&self) -> u64 {
        let submitted = self.submitted.load(Ordering::Acquire);
        submitted.saturating_sub(self.cancelled.load(Ordering::Acquire))
    }

    fn walks(&self) -> MutexGuard<'_, VecDeque<Walk>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends outcomes that were taken to a queue of Python's, as triples of number, whether it is a value, and the value or
    /// exception. Each is there before an exception can get in its way.
    fn hand_out(&self, py: Python<'_>, arrived: &Bound<'_, PyAny>) -> PyResult<()> {
        loop {
            let Some(mut walk) = self.walks().pop_front() else {
                return Ok(());
            };
            let handed_out = walk.append_to(py, arrived);
            if walk.is_over() {
                self.stream.taken(walk.first, walk.count);
                self.stream.recycle(&mut walk.spent);
            } else {
                self.walks().push_front(walk);
            }
            handed_out?;
        }
    }
}

impl SubmitStream {
    pub(crate) fn new(
        stream: StreamHandle,
        notices: Arc<NoticePrinter>,
        item_bytes_max: u64,
    ) -> PyResult<Self> {
        Ok(Self(Owned::new(Submit {
            stream,
            notices,
            feeder: Mutex::new(Feeder::new(item_bytes_max, Encoder::of_calls())),
            taken: Mutex::default(),
            submitted: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        })?))
    }
}

#[pymethods]
impl SubmitStream {
    /// Hands one item over and says its number. Never waits.
    fn submit(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<u64> {
        let own = fork::own(py, &self.0)?;
        let feeder = own.feeder.try_lock();
        let mut feeder =
            feeder.map_err(|_| PyValueError::new_err("this stream is used by another thread"))?;
        feeder.push(&own.stream, item)?;
        // What an item is made of may fork as well.
        fork::own(py, &self.0)?;
        feeder.leave(&own.stream);
        own.submitted.store(feeder.sent, Ordering::Release);
        Ok(feeder.sent - 1)
    }

    /// Takes an item back that no worker has begun.
    fn cancel(&self, py: Python<'_>, index: u64) -> PyResult<bool> {
        let own = fork::own(py, &self.0)?;
        let is_cancelled = py.detach(|| own.stream.cancel(index));
        own.cancelled
            .fetch_add(u64::from(is_cancelled), Ordering::AcqRel);
        Ok(is_cancelled)
    }

    /// Takes all items back that no worker has begun, and says which they are.
    fn cancel_waiting(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let own = fork::own(py, &self.0)?;
        let cancelled = py.detach(|| own.stream.cancel_waiting());
        own.cancelled
            .fetch_add(cancelled.len() as u64, Ordering::AcqRel);
        Ok(cancelled)
    }

    /// Whether no worker has an item, and it has no outcome.
    fn is_waiting(&self, py: Python<'_>, index: u64) -> PyResult<bool> {
        let own = fork::own(py, &self.0)?;
        Ok(py.detach(|| own.stream.is_waiting(index)))
    }

    /// The outcome of an item is wanted no more: it goes when it is there. A forked child wants nothing.
    fn forget(&self, index: u64) {
        if let Some(own) = self.0.get() {
            own.stream.forget(index);
        }
    }

    /// How many items have no outcome yet.
    fn pending(&self) -> u64 {
        let pending = |own: &Submit| own.expected().saturating_sub(own.stream.results.arrived());
        self.0.get().map_or(0, pending)
    }

    /// Appends the outcomes that are there to the queue `arrived`, as triples of number, whether it is a value, and the value or
    /// exception; waits up to `timeout` seconds for the first (in slices, so that Ctrl-C is seen), or, if `to_the_end`, until there
    /// is nothing to wait for. `wake` from another thread ends the wait. What has been appended stays when an exception is raised.
    fn collect(
        &self,
        py: Python<'_>,
        timeout: f64,
        to_the_end: bool,
        arrived: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = fork::own(py, &self.0)?;
        let patience = Duration::try_from_secs_f64(timeout.clamp(0.0, PATIENCE.as_secs_f64()))
            .unwrap_or(PATIENCE);
        let results = &own.stream.results;
        let mut taken = results.take();
        if matches!(taken, Taken::Nothing) && !patience.is_zero() && own.walks().is_empty() {
            taken = py.detach(|| match to_the_end {
                true => results.wait_for_all(patience, own.expected()),
                false => results.wait(patience, None),
            });
        }
        let mut ended = None;
        loop {
            match taken {
                Taken::Outcomes(outcomes) => {
                    let walk = Walk::new(outcomes, ResultParts::Calls);
                    own.walks().push_back(walk);
                }
                Taken::Nothing => break,
                Taken::Ended(end) => {
                    ended = Some(end);
                    break;
                }
            }
            taken = results.take();
        }
        let is_any = !own.walks().is_empty();
        own.hand_out(py, arrived)?;
        py.check_signals()?;
        own.notices.present(py)?;
        match ended {
            Some(end @ StreamEnd::Closed) if !is_any => {
                at_exit::leave(py, &end)?;
                let text = "the slots were ended before this call had an outcome; ask for results before terminate, and before the end of a Pool's block";
                Err(raise(py, ExceptionKind::NoWorker, text))
            }
            Some(end) if !is_any => Err(error::stream_end(py, &end)),
            _ => Ok(()),
        }
    }

    /// Ends the waits of other threads in `collect`.
    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0)?.stream.results.notify();
        Ok(())
    }

    /// Ends the stream: its items are forgotten.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0)?.stream.close();
        Ok(())
    }
}
