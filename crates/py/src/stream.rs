//! Streams as Python sees them: an iterator for `map`, a queue of numbered outcomes for `submit`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exoskel_net::fork::{OwnProcess, Owned};
use exoskel_net::manager::StreamHandle;
use exoskel_net::payload::{BatchBuilder, Format, Record};
use exoskel_net::result_queue::{Contents, Origin, Outcomes, StreamEnd, Taken};
use pyo3::exceptions::{PyException, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::data;
use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::manager::NoticePrinter;
use crate::pickle::{Encoder, decode, read_fast};

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
    state: Mutex<MapState>,
}

struct MapState {
    input: Option<Py<PyAny>>,
    feeder: Feeder,
    current: Option<Walk>,
    delivered: u64,
    slow_input: bool,
    return_errors: bool,
    over: bool,
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
        return_errors: bool,
        item_bytes_max: u64,
    ) -> PyResult<Self> {
        let state = MapState {
            input: Some(input),
            feeder: Feeder::new(item_bytes_max, Encoder::default()),
            current: None,
            delivered: 0,
            slow_input: false,
            return_errors,
            over: false,
        };
        Ok(Self(Owned::new(Map {
            process: OwnProcess::this()?,
            stream,
            notices,
            state: Mutex::new(state),
        })?))
    }
}

impl Map {
    /// As with a generator, two threads can't be inside at once.
    fn enter(&self) -> PyResult<MutexGuard<'_, MapState>> {
        self.state
            .try_lock()
            .map_err(|_| PyValueError::new_err("this stream is being iterated by another thread"))
    }

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
                    state.input = None;
                    self.finish(state);
                    return Err(error);
                }
            };
            pulled += 1;
            let pushed = state.feeder.push(&self.stream, &item);
            fork::check(py, self.process)?;
            if let Err(error) = pushed {
                if !state.return_errors {
                    self.finish(state);
                    return Err(error);
                }
                state.feeder.push_exception(py, error)?;
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

    fn finish(&self, state: &mut MapState) {
        if !std::mem::replace(&mut state.over, true) {
            state.input = None;
            state.current = None;
            self.stream.close();
        }
    }

    fn deliver<'py>(
        &self,
        py: Python<'py>,
        state: &mut MapState,
        outcome: StreamOutcome<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        state.delivered += 1;
        match outcome {
            StreamOutcome::Value(value) => Ok(value),
            StreamOutcome::Exception(error) if state.return_errors => {
                Ok(error.into_value(py).into_bound(py).into_any())
            }
            StreamOutcome::Exception(error) => {
                self.finish(state);
                Err(error)
            }
        }
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut state = self.enter()?;
        loop {
            if let Some(walk) = &mut state.current {
                if let Some(outcome) = walk.next(py)? {
                    let ended = walk.is_over();
                    if ended {
                        self.stream.taken(walk.first, walk.count);
                        self.stream.recycle(&mut walk.spent);
                        state.current = None;
                    }
                    return self.deliver(py, &mut state, outcome);
                }
                state.current = None;
            }
            if state.over || (state.input.is_none() && state.delivered == state.feeder.admitted()) {
                self.finish(&mut state);
                return Err(PyStopIteration::new_err(()));
            }
            self.notices.present(py)?;
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
                    let taken = py.detach(|| self.stream.results.wait(PATIENCE, admitted));
                    py.check_signals()?;
                    taken
                }
                taken => taken,
            };
            match taken {
                Taken::Outcomes(outcomes) => {
                    state.current = Some(Walk::new(outcomes, ResultParts::Items))
                }
                Taken::Nothing => {}
                Taken::Ended(end) => {
                    self.finish(&mut state);
                    self.notices.present(py)?;
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

    /// Ends the stream: its items are forgotten. A forked child may close its copy, to which nothing happens.
    fn close(&self) -> PyResult<()> {
        if let Some(own) = self.0.get() {
            own.finish(&mut *own.enter()?);
        }
        Ok(())
    }

    /// How many items were handed over and how many outcomes were taken, so far.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let state = fork::own(py, &self.0)?.enter()?;
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
    fn push_exception(&mut self, py: Python<'_>, error: PyErr) -> PyResult<()> {
        static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let encode = ENCODE.import(py, "exoskel.outcome", "encode_exception")?;
        let pickle = encode
            .call1((error.into_value(py), false))?
            .cast_into::<PyBytes>()?;
        self.batch.push_exception(Format::Pickle, pickle.as_bytes());
        Ok(())
    }

    fn admitted(&self) -> u64 {
        self.sent + u64::from(self.batch.count())
    }

    fn push(&mut self, stream: &StreamHandle, item: &Bound<'_, PyAny>) -> PyResult<()> {
        self.encoder
            .encode(item, &mut self.batch, self.item_bytes_max)?;
        if self.batch.count() >= BATCH_ITEMS_MAX || self.batch.bytes() >= BATCH_BYTES_MAX {
            self.flush(stream);
        }
        Ok(())
    }

    fn flush(&mut self, stream: &StreamHandle) {
        let count = self.batch.count();
        if count > 0 {
            self.sent += u64::from(count);
            stream.admit(self.batch.take(Origin::user()));
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

    /// The next outcome, or none when all have been handed out.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<StreamOutcome<'py>>> {
        if self.is_over() {
            return Ok(None);
        }
        let item = (self.parts == ResultParts::Items).then(|| self.first + u64::from(self.next));
        self.next += 1;
        let (reader, origin) = match &mut self.contents {
            Contents::Records(reader, origin) => (reader, origin),
            Contents::Refused(origin) => {
                let sender = Sender {
                    worker: &origin.worker,
                    item,
                };
                return Ok(Some(StreamOutcome::Exception(pickle_refused(py, &sender))));
            }
            Contents::WorkersLost(count) => {
                return Ok(Some(StreamOutcome::Exception(workers_lost(
                    py, item, *count,
                )?)));
            }
            Contents::TooLarge { bytes, maximum } => {
                let text = format!(
                    "got an item of {bytes} bytes, expected at most {maximum}, which is what its worker takes; send less, or start the worker with a larger --message-bytes-max"
                );
                let error = raise(py, ExceptionKind::SizeLimit, text);
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
            StreamOutcome::Exception(remote_exception(py, &record, &sender)?)
        } else {
            match decode(py, record, &sender.to_string(), true, &mut self.spent) {
                Ok(value) => StreamOutcome::Value(value),
                Err(error) => StreamOutcome::Exception(error),
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
            decode.call1((PyBytes::new(py, &record.body), sender.worker))?
        }
        Format::Data => {
            let from_data = FROM_DATA.import(py, "exoskel.outcome", "exception_from_data")?;
            match data::decode_exception(py, &record.body, &sender.to_string()) {
                Ok((kind, text, lines, data)) => {
                    let arguments = (kind, text, lines, data, sender.worker, sender.to_string());
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

fn workers_lost(py: Python<'_>, item: Option<u64>, count: u32) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "exoskel.outcome", "workers_lost")?;
    Ok(PyErr::from_value(make.call1((item, count))?))
}

/// A stream without end, whose items are numbered and whose outcomes come as they complete.
#[pyclass(frozen)]
pub(crate) struct SubmitStream(Owned<Submit>);

struct Submit {
    stream: StreamHandle,
    notices: Arc<NoticePrinter>,
    feeder: Mutex<Feeder>,
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
        })?))
    }
}

/// An outcome by its item's number: whether it is a value, and the value or exception.
type Numbered<'py> = (u64, bool, Bound<'py, PyAny>);

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
        feeder.flush(&own.stream);
        Ok(feeder.sent - 1)
    }

    /// Takes an item back that no worker has begun.
    fn cancel(&self, py: Python<'_>, index: u64) -> PyResult<bool> {
        let own = fork::own(py, &self.0)?;
        Ok(py.detach(|| own.stream.cancel(index)))
    }

    /// The outcomes that are there; waits up to `timeout` seconds for the first (in slices, so that Ctrl-C is seen).
    /// `wake` from another thread ends the wait.
    fn collect<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Vec<Numbered<'py>>> {
        let own = fork::own(py, &self.0)?;
        let patience = Duration::try_from_secs_f64(timeout.clamp(0.0, PATIENCE.as_secs_f64()))
            .unwrap_or(PATIENCE);
        let mut taken = own.stream.results.take();
        if matches!(taken, Taken::Nothing) && !patience.is_zero() {
            taken = py.detach(|| own.stream.results.wait(patience, None));
            py.check_signals()?;
        }
        own.notices.present(py)?;
        let mut collected = Vec::new();
        loop {
            let outcomes = match taken {
                Taken::Outcomes(outcomes) => outcomes,
                Taken::Nothing => return Ok(collected),
                Taken::Ended(StreamEnd::Closed) if collected.is_empty() => {
                    let text = "the executor was shut down before this call had an outcome";
                    return Err(raise(py, ExceptionKind::NoWorker, text));
                }
                Taken::Ended(end) if collected.is_empty() => {
                    return Err(error::stream_end(py, &end));
                }
                Taken::Ended(_) => return Ok(collected),
            };
            let mut walk = Walk::new(outcomes, ResultParts::Calls);
            while let Some(outcome) = walk.next(py)? {
                let index = walk.first + u64::from(walk.next) - 1;
                collected.push(match outcome {
                    StreamOutcome::Value(value) => (index, true, value),
                    StreamOutcome::Exception(error) => {
                        (index, false, error.into_value(py).into_bound(py).into_any())
                    }
                });
            }
            own.stream.taken(walk.first, walk.count);
            own.stream.recycle(&mut walk.spent);
            taken = own.stream.results.take();
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
