//! Streams as Python sees them: an iterator for `map`, and in `calls` a queue of numbered outcomes for `submit`.

mod calls;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_journal::ItemNumbers;
use exoskel_net::fork::{OwnProcess, Owned};
use exoskel_net::manager::StreamHandle;
use exoskel_net::payload::{BatchBuilder, Format, Record, RecordReader};
use exoskel_net::result_queue::{Contents, Origin, Outcomes, Taken};
use pyo3::exceptions::{PyException, PyRecursionError, PyStopIteration, PyTypeError};
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
use crate::run::{self, JournalledRun, early_record};
use crate::turn::TurnTaking;

pub(crate) use calls::SubmitStream;

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
    /// What shows how far the stream is, told when outcomes arrive and at the end.
    display: Mutex<Option<Py<PyAny>>>,
}

struct MapState {
    input: Option<Py<PyAny>>,
    /// Each item has one outcome.
    keeps_number: bool,
    feeder: Feeder,
    current: Option<Walk>,
    delivered: u64,
    slow_input: bool,
    outcomes: OutcomeForm,
    /// Why items that can't be sent can't, until it is their turn.
    unsent: BTreeMap<u64, PyErr>,
    /// What ended the input; it is raised behind the outcomes of all items before it.
    input_error: Option<PyErr>,
    /// Where the outcomes of further items end, if the run wants to know.
    ends: VecDeque<u64>,
    /// How many items have handed out all of their outcomes, if the run wants to know.
    ended: u64,
    /// The run that takes the outcomes, if one does. It says which item each of the stream is, and whose turn it is.
    run: Option<Py<JournalledRun>>,
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
    /// Which item each of the stream is, where it isn't the same number.
    numbers: Option<Arc<ItemNumbers>>,
    /// The item that the next outcome is one of, where items have any number.
    owner: Option<u64>,
    contents: Contents,
    /// Memory that the outcomes so far no longer need.
    spent: Vec<Vec<u8>>,
}

/// One outcome.
enum StreamOutcome<'py> {
    Value(Bound<'py, PyAny>),
    /// A value as it came, which has its turn later.
    Early(Vec<u8>),
    Exception(PyErr),
}

impl MapStream {
    /// Of an input each of whose items has one outcome, or not.
    pub(crate) fn new(
        stream: StreamHandle,
        notices: Arc<NoticePrinter>,
        (input, keeps_number): (Py<PyAny>, bool),
        outcomes: OutcomeForm,
        run: Option<Py<JournalledRun>>,
        manager: Py<PyAny>,
        item_bytes_max: u64,
    ) -> PyResult<Self> {
        let state = MapState {
            input: Some(input),
            keeps_number,
            feeder: Feeder::new(item_bytes_max, Encoder::default()),
            current: None,
            delivered: 0,
            slow_input: false,
            outcomes,
            unsent: BTreeMap::new(),
            input_error: None,
            ends: VecDeque::new(),
            ended: 0,
            run,
            manager: Some(manager),
            over: false,
        };
        Ok(Self(Owned::new(Map {
            process: OwnProcess::this()?,
            stream,
            notices,
            is_closed: AtomicBool::new(false),
            state: TurnTaking::new(state),
            display: Mutex::new(None),
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
        while state.feeder.admitted() < admissible
            && pulled < PULL_ITEMS_MAX
            && state.may_run_ahead()
        {
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
                let error = with_note(py, error, Some(state.item_of(index)), &about)?;
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
            // The clock costs more than a fast iterable, so that isn't timed after each item.
            let is_timed = state.slow_input || pulled.is_power_of_two() || pulled % 16 == 0;
            if is_timed && start.elapsed() > PULL_TIME_MAX {
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
        if state.run.is_some() {
            return self.hand_to_run(py, state, index, outcome);
        }
        let value = match outcome {
            StreamOutcome::Value(value) => value,
            StreamOutcome::Early(record) => PyBytes::new(py, &record).into_any(),
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

    /// An outcome as [`JournalledRun`] takes it: the item's index, which kind it is, and what it is.
    fn hand_to_run<'py>(
        &self,
        py: Python<'py>,
        state: &mut MapState,
        index: u64,
        outcome: StreamOutcome<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_ordered = state.is_ordered();
        let index = if is_ordered { state.ended } else { index };
        state.follow_ends(&self.stream);
        let item = match is_ordered {
            true => state.item_of(state.ended),
            false => state.item_of(index),
        };
        let handed = match outcome {
            StreamOutcome::Value(value) => (item, run::NOW, value),
            StreamOutcome::Early(record) => {
                (item, run::EARLY, PyBytes::new(py, &record).into_any())
            }
            StreamOutcome::Exception(error) => {
                let error = state.unsent.remove(&index).unwrap_or(error);
                if !state.outcomes.return_errors {
                    self.finish(state);
                    return Err(error);
                }
                (
                    item,
                    run::SKIPPED,
                    error.into_value(py).into_bound(py).into_any(),
                )
            }
        };
        Ok(handed.into_pyobject(py)?.into_any())
    }

    /// Whether all outcomes have been handed out.
    fn has_all(&self, state: &MapState) -> bool {
        if state.keeps_number {
            state.input.is_none() && state.delivered == state.feeder.admitted()
        } else {
            self.stream.results.total() == Some(state.delivered)
        }
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut state = self.state.enter(py)?;
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                self.finish(&mut state);
                return Err(PyStopIteration::new_err(()));
            }
            let turn = state.turn();
            let mut has_all = None;
            if state.is_ordered() {
                // Where there are all outcomes, it is known where those of each item end.
                has_all = Some(self.has_all(&state));
                if state.follow_ends(&self.stream) {
                    return state.pause(py);
                }
                let owner = state.item_of(state.ended);
                if let Some(walk) = &mut state.current {
                    walk.owner = Some(owner);
                }
            }
            if let Some(walk) = &mut state.current {
                if let Some(outcome) = walk.next_for(py, turn)? {
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
            if state.over || has_all.unwrap_or_else(|| self.has_all(&state)) {
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
                    let pulls = state.input.is_some() && state.may_run_ahead();
                    let admitted = pulls.then(|| state.feeder.admitted());
                    py.detach(|| self.stream.results.wait(PATIENCE, admitted))
                }
                taken => taken,
            };
            let pauses = matches!(taken, Taken::Nothing)
                && state.run.as_ref().is_some_and(|run| run.get().has_group());
            // Whoever is interrupted may come back for what is there.
            let ended = match taken {
                Taken::Outcomes(outcomes) => {
                    let run = state.run.as_ref();
                    let numbers = run.map(|run| run.get().numbers().clone());
                    let walk = Walk::new(outcomes, ResultParts::Items, numbers);
                    state.current = Some(walk);
                    None
                }
                Taken::Nothing => None,
                Taken::Ended(end) => Some(end),
            };
            py.check_signals()?;
            // What an item printed came before its result, and is to be seen before it.
            self.notices.present(py)?;
            let display = lock(&self.display)
                .as_ref()
                .map(|shown| shown.clone_ref(py));
            if let Some(display) = display {
                display.call_method1(py, "update", (state.delivered,))?;
            }
            if pauses {
                return state.pause(py);
            }
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

impl Map {
    /// Nothing more is to be shown.
    fn end_display(&self, py: Python<'_>, is_complete: bool) -> PyResult<()> {
        let display = lock(&self.display).take();
        if let Some(display) = display {
            display.call_method1(py, "end", (is_complete,))?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MapState {
    /// Which item the stream's is.
    fn item_of(&self, index: u64) -> u64 {
        match &self.run {
            Some(run) => run.get().numbers().index_of(index),
            None => index,
        }
    }

    /// Whether a run takes outcomes in order, of which items have any number.
    fn is_ordered(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.get().is_ordered())
    }

    /// The item whose turn it is, if later ones are handed to the run as they came.
    fn turn(&self) -> Option<u64> {
        let run = self.run.as_ref().map(Py::get);
        run.filter(|run| !run.is_ordered()).map(JournalledRun::next)
    }

    /// Finds out which items have handed out all of their outcomes. Says whether there are more of them than before.
    fn follow_ends(&mut self, stream: &StreamHandle) -> bool {
        let before = self.ended;
        if !self.is_ordered() {
            return false;
        }
        if self.keeps_number {
            self.ended = self.delivered;
        } else {
            if self.ends.is_empty() {
                self.ends.extend(stream.results.take_ends());
            }
            while self.ends.front().is_some_and(|end| *end <= self.delivered) {
                self.ends.pop_front();
                self.ended += 1;
            }
        }
        self.ended > before
    }

    /// What a run is told when there is no outcome yet: how many items have all of theirs.
    fn pause<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let paused = (self.item_of(self.ended), run::PAUSE, py.None());
        Ok(paused.into_pyobject(py)?.into_any())
    }

    /// Whether the next item is not too far after the one whose turn it is.
    fn may_run_ahead(&self) -> bool {
        match &self.run {
            Some(run) => run.get().may_run(self.item_of(self.feeder.admitted())),
            None => true,
        }
    }
}

#[pymethods]
impl MapStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let own = fork::own(py, &self.0)?;
        own.next(py).or_else(|error| {
            let is_complete = error.is_instance_of::<PyStopIteration>(py);
            own.end_display(py, is_complete && !own.is_closed.load(Ordering::Relaxed))?;
            Err(error)
        })
    }

    /// Has an object shown how far the stream is: its `update` gets the number of outcomes, its `end` whether there are all.
    fn show(&self, py: Python<'_>, display: Py<PyAny>) -> PyResult<()> {
        *lock(&fork::own(py, &self.0)?.display) = Some(display);
        Ok(())
    }

    /// Ends the stream: its items are forgotten, and threads that wait for its results are told that there are no more. A forked child
    /// may close its copy, to which nothing happens.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(own) = self.0.get() {
            own.is_closed.store(true, Ordering::Relaxed);
            match own.state.try_enter() {
                Some(mut state) => own.finish(&mut state),
                None => own.stream.close(),
            }
            own.end_display(py, false)?;
        }
        Ok(())
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
    fn new(outcomes: Outcomes, parts: ResultParts, numbers: Option<Arc<ItemNumbers>>) -> Self {
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
            numbers,
            owner: None,
            contents,
            spent: Vec::new(),
        }
    }

    /// The item of the outcome that comes next.
    fn item(&self) -> u64 {
        if let Some(owner) = self.owner {
            return owner;
        }
        let index = self.first + u64::from(self.next);
        match &self.numbers {
            Some(numbers) => numbers.index_of(index),
            None => index,
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
                Ok(None | Some(StreamOutcome::Early(_))) => {}
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

    /// The next outcome; as it came, if it is a value and has its turn later.
    fn next_for<'py>(
        &mut self,
        py: Python<'py>,
        turn: Option<u64>,
    ) -> PyResult<Option<StreamOutcome<'py>>> {
        let item = self.item();
        let Contents::Records(reader, origin) = &mut self.contents else {
            return self.next(py);
        };
        if turn.is_none_or(|turn| turn == item) || self.next >= self.count {
            return self.next(py);
        }
        self.next += 1;
        let sender = Sender {
            worker: &origin.worker,
            item: Some(item),
        };
        let record = next_record(py, reader, origin)?;
        if record.exception || !origin.allows(record.format) {
            return outcome_of(py, record, origin, &sender, None, &mut self.spent).map(Some);
        }
        Ok(Some(StreamOutcome::Early(early_record(origin, record))))
    }

    /// The next outcome, or none when all have been handed out.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<StreamOutcome<'py>>> {
        if self.is_over() {
            return Ok(None);
        }
        let item = (self.parts == ResultParts::Items).then(|| self.item());
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
            Contents::TooManyParts { maximum, recurs } => {
                let text = format!("got more than {maximum} parts of all items at a time");
                let advice = "split items into larger parts";
                let error = parts_refused(py, &text, *recurs, advice);
                let error = with_note(py, error, item, "")?;
                return Ok(Some(StreamOutcome::Exception(error)));
            }
            Contents::TooManyBytes { maximum, recurs } => {
                let text = format!("got more than {maximum} bytes of parts of all items at a time");
                let advice = "split items into fewer or smaller parts";
                let error = parts_refused(py, &text, *recurs, advice);
                let error = with_note(py, error, item, "")?;
                return Ok(Some(StreamOutcome::Exception(error)));
            }
            Contents::NothingToReduce => {
                let text = "got no items to reduce and no initial value, expected one of them";
                return Ok(Some(StreamOutcome::Exception(PyTypeError::new_err(text))));
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
        let record = next_record(py, reader, origin)?;
        outcome_of(py, record, origin, &sender, attempts, &mut self.spent).map(Some)
    }
}

fn next_record(py: Python<'_>, reader: &mut RecordReader, origin: &Origin) -> PyResult<Record> {
    let record = reader.next_record().map_err(|error| {
        raise(
            py,
            ExceptionKind::Exoskel,
            format!("worker {}: {error}", origin.worker),
        )
    })?;
    Ok(record.unwrap_or_default())
}

/// What a record says.
fn outcome_of<'py>(
    py: Python<'py>,
    record: Record,
    origin: &Origin,
    sender: &Sender<'_>,
    attempts: Option<u32>,
    spent: &mut Vec<Vec<u8>>,
) -> PyResult<StreamOutcome<'py>> {
    if !origin.allows(record.format) {
        // The router has thrown such a record away; here is where it would do harm.
        return Ok(StreamOutcome::Exception(pickle_refused(py, sender)));
    }
    if record.exception {
        let error = remote_exception(py, &record, sender)?;
        if let Some(attempts) = attempts {
            note_attempts(py, &error, attempts)?;
        }
        return Ok(StreamOutcome::Exception(error));
    }
    match decode(py, record, &sender.to_string(), true, spent) {
        Ok(value) => Ok(StreamOutcome::Value(value)),
        Err(error) => {
            let error = with_note(py, error, sender.item, "")?;
            Ok(StreamOutcome::Exception(error))
        }
    }
}

/// The value of a record that was kept until its turn.
pub(crate) fn value_of<'py>(
    py: Python<'py>,
    record: Record,
    origin: &Origin,
    item: u64,
) -> PyResult<Result<Bound<'py, PyAny>, PyErr>> {
    let sender = Sender {
        worker: &origin.worker,
        item: Some(item),
    };
    let outcome = outcome_of(py, record, origin, &sender, None, &mut Vec::new())?;
    Ok(match outcome {
        StreamOutcome::Value(value) => Ok(value),
        StreamOutcome::Early(record) => Ok(PyBytes::new(py, &record).into_any()),
        StreamOutcome::Exception(error) => Err(error),
    })
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

/// The outcome of an item that is made into more than the manager keeps.
fn parts_refused(py: Python<'_>, text: &str, recurs: bool, advice: &str) -> PyErr {
    match recurs {
        true => PyRecursionError::new_err(format!(
            "{text}: what is divided or fed back branches again and again; see that is_base is true of small parts, or that the function gives no Again at some time"
        )),
        false => raise(
            py,
            ExceptionKind::SizeLimit,
            format!("{text}, expected fewer: {advice}"),
        ),
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
