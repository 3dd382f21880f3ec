//! Segments that carry a state: a function gets the state and an item, and what it returns goes with the results.

use exoskel_flow::SegmentStep;
use exoskel_link::SessionError;
use exoskel_net::message::{Digest, SegmentEnding, SegmentFunctions};
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::slot::{Item, ItemKey, StateBefore, Work};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use super::answers::{Reader, result_not_sent};
use super::{LoopEnd, SlotInterpreter, TaskFailure};
use crate::interrupt::Interruptible;
use crate::item_note::Subject;
use crate::pickle::{result_over_limit, state_over_limit};

/// The state behind the items of a frame that have run here.
pub(super) struct StateAtSlot<'py> {
    frame: u64,
    /// The item that would follow.
    next: u64,
    /// None as long as there is none.
    value: Option<Bound<'py, PyAny>>,
    /// How it must be written, and all that is made of it: what was made of data is no better than data.
    format: Format,
}

/// The next state and the result of an item.
type Carried<'py> = Result<(Bound<'py, PyAny>, Bound<'py, PyAny>), Box<TaskFailure<'py>>>;

/// Whether a segment carries a state. Such a segment has one step.
pub(super) fn is_carrying(segment: &SegmentFunctions) -> bool {
    matches!(
        segment.steps[..],
        [SegmentStep::Carry | SegmentStep::Scan | SegmentStep::ScanInitial]
    )
}

impl<'py> SlotInterpreter<'py> {
    pub(super) fn carries(&self, stream: u32, segment: u16) -> bool {
        let program = self.programs.get(&stream);
        let carries = program.and_then(|program| program.carry.get(usize::from(segment)));
        carries.is_some_and(|carries| *carries)
    }

    /// Runs an item of a segment that carries a state. An item that raises leaves the state to the next one.
    pub(super) fn carry_item(&mut self, py: Python<'py>, mut item: Item) -> Result<(), LoopEnd> {
        let (key, segment) = (item.key, item.from);
        let format = self.answer_to(item.record.format);
        let given = std::mem::take(&mut item.state);
        let before = match self.state_before(py, key, segment, given)? {
            Ok(before) => before,
            Err(error) => {
                // The next item needs that state as well, and another slot may be able to read it.
                self.answer_alone(py, key, format, error)?;
                return Ok(self.node()?.give_back_rest(key.frame)?);
            }
        };
        let format = match before.format {
            Format::Data => Format::Data,
            Format::Pickle => format,
        };
        let passing = self.start(py, item)?;
        let interruptible = Interruptible::begin();
        let made = passing
            .and_then(|passage| Ok(passage.into_value()?))
            .and_then(|value| self.call_carried(py, key.stream, segment, &before, value));
        let mut scratch = std::mem::take(&mut self.scratch);
        let made = made.and_then(|(state, result)| {
            let reader = self.reader_behind(key);
            match self.write(&result, reader, format, &mut scratch) {
                Ok(()) => Ok(state),
                Err(error) => {
                    let subject = Subject::Result(result);
                    Err(Box::new(TaskFailure { error, subject }))
                }
            }
        });
        drop(interruptible);
        let answered = self.take_carried(py, (key, segment), format, before, made, &mut scratch);
        self.scratch = scratch;
        if answered? {
            self.end_carrying(py)?;
        }
        Ok(())
    }

    /// The state that comes to an item.
    fn state_before(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        segment: u16,
        given: StateBefore,
    ) -> Result<PyResult<StateAtSlot<'py>>, LoopEnd> {
        let ItemKey { frame, index, .. } = key;
        let here = self.carried.remove(&(key.stream, segment));
        let first = |value, format| StateAtSlot {
            frame,
            next: index,
            value,
            format,
        };
        let found = match given {
            StateBefore::OfItemBefore => {
                here.filter(|here| (here.frame, here.next) == (frame, index))
            }
            StateBefore::Kept(last) => here
                .filter(|here| here.frame == last)
                .map(|here| first(here.value, here.format)),
            StateBefore::Nothing => Some(first(None, Format::Pickle)),
            StateBefore::Sent(record) => {
                let format = record.format;
                let value = self.read(py, *record)?;
                return Ok(value.map(|value| first(Some(value), format)));
            }
        };
        Ok(found
            .ok_or_else(|| PyRuntimeError::new_err("got an item without the state that it needs")))
    }

    fn call_carried(
        &mut self,
        py: Python<'py>,
        stream: u32,
        segment: u16,
        before: &StateAtSlot<'py>,
        value: Bound<'py, PyAny>,
    ) -> Carried<'py> {
        let (step, digest) = self
            .carried_step(stream, segment)
            .ok_or_else(|| PyRuntimeError::new_err("got an item of a stream that is over"))?;
        let function = self.function(py, &digest)?;
        let Some(state) = &before.value else {
            // What stands before all others is the first state, and its own result.
            return match step {
                SegmentStep::Scan => Ok((value.clone(), value)),
                _ => Err(PyRuntimeError::new_err("got an item without a state").into()),
            };
        };
        let made = function.call1((state, &value)).and_then(|made| match step {
            SegmentStep::Carry => pair_of(&made, &function),
            _ => Ok((made.clone(), made)),
        });
        made.map_err(|error| {
            let subject = match segment {
                0 => Subject::Item(value),
                _ => Subject::Argument { function, value },
            };
            Box::new(TaskFailure { error, subject })
        })
    }

    fn carried_step(&self, stream: u32, segment: u16) -> Option<(SegmentStep, Digest)> {
        let program = self.programs.get(&stream)?;
        let segment = program.segments.get(usize::from(segment))?;
        Some((*segment.steps.first()?, *segment.functions.first()?))
    }

    /// Who reads the results of such a segment.
    fn reader_behind(&self, key: ItemKey) -> Reader {
        let program = self.programs.get(&key.stream);
        let segment = program.and_then(|program| program.segments.get(usize::from(key.to)));
        match segment.map(|segment| segment.ending) {
            Some(SegmentEnding::Expand { .. }) => Reader::OfParts(key),
            _ => Reader::OfItem(key, key.to.saturating_add(1)),
        }
    }

    /// Takes what came of an item, whose result is written if there is one. Says whether it is time to tell of it.
    fn take_carried(
        &mut self,
        py: Python<'py>,
        (key, segment): (ItemKey, u16),
        format: Format,
        before: StateAtSlot<'py>,
        made: Result<Bound<'py, PyAny>, Box<TaskFailure<'py>>>,
        scratch: &mut RecordWriter,
    ) -> Result<bool, LoopEnd> {
        let mut value = before.value.clone();
        match made {
            Ok(state) => value = Some(state),
            Err(mut failure) => {
                if self.ends_process(py, &failure.error) {
                    return Err(failure.error.into());
                }
                if self.is_retriable(py, key.stream, &failure.error)? {
                    return self.run_again(py, (key, segment), format, before, *failure, scratch);
                }
                if matches!(failure.subject, Subject::Result(_)) {
                    let function = self.last_function(py, key);
                    failure.error = result_not_sent(py, failure.error, function)?;
                }
                self.write_exception(py, format, scratch, *failure)?;
            }
        }
        let mut is_due = false;
        if value.is_some() {
            let taken = self.node()?.carry(key, |writer| writer.append(scratch));
            is_due = match taken {
                Err(SessionError::Limit { got, maximum, .. }) => {
                    let error = result_over_limit(py, got, maximum);
                    self.write_exception(py, format, scratch, error.into())?;
                    value = before.value.clone();
                    match value {
                        Some(_) => self.node()?.carry(key, |writer| writer.append(scratch))?,
                        None => false,
                    }
                }
                taken => taken?,
            };
        }
        if value.is_none() {
            // An exception before the first state: there is nothing that it could wait for.
            self.node()?.finish(key, |writer| writer.append(scratch))?;
        } else {
            self.carrying = Some(key);
        }
        let state = StateAtSlot {
            frame: key.frame,
            next: key.index.saturating_add(1),
            value,
            format,
        };
        let place = (key.stream, segment);
        self.carried.insert(place, state);
        Ok(is_due || self.told_one_by_one.contains(&place))
    }

    /// The item runs again, and those behind it wait for that. What ran before it is told of, with the state that it found: if that can't be sent, it
    /// has found a state that nobody will have, and nothing is said of it.
    fn run_again(
        &mut self,
        py: Python<'py>,
        (key, segment): (ItemKey, u16),
        format: Format,
        before: StateAtSlot<'py>,
        failure: TaskFailure<'py>,
        scratch: &mut RecordWriter,
    ) -> Result<bool, LoopEnd> {
        let place = (key.stream, segment);
        let _ = scratch.take();
        self.carried.insert(place, before);
        self.end_carrying(py)?;
        let is_told = self.carried.remove(&place).is_some();
        if is_told {
            self.write_exception(py, format, scratch, failure)?;
            let node = self.node()?;
            node.finish_retriable(key, |writer| writer.append(scratch))?;
        } else {
            self.node()?.give_back_running(key)?;
        }
        self.node()?.give_back_rest(key.frame)?;
        Ok(false)
    }

    /// What has been carried is told of, unless more of the same frame comes.
    pub(super) fn end_carrying_before(
        &mut self,
        py: Python<'py>,
        work: &Work,
    ) -> Result<(), LoopEnd> {
        match (&self.carrying, work) {
            (Some(last), Work::Item(Item { key, .. })) if key.frame == last.frame => Ok(()),
            (None, _) => Ok(()),
            _ => self.end_carrying(py),
        }
    }

    /// Tells of all items that wait for the state behind them.
    fn end_carrying(&mut self, py: Python<'py>) -> Result<(), LoopEnd> {
        let Some(key) = self.carrying.take() else {
            return Ok(());
        };
        let place = (key.stream, key.to);
        let Some(state) = self.carried.get(&place) else {
            return Ok(());
        };
        let (value, format) = (state.value.clone(), state.format);
        let mut scratch = RecordWriter::default();
        let interruptible = Interruptible::begin();
        let written = value.map_or(Ok(()), |value| {
            self.write(&value, Reader::Slots, format, &mut scratch)
        });
        drop(interruptible);
        let error = match written {
            Ok(()) => {
                let node = self.node()?;
                match node.finish_carried(key, |writer| writer.append(&mut scratch)) {
                    Err(SessionError::Limit { got, maximum, .. }) => {
                        state_over_limit(py, got, maximum)
                    }
                    sent => return Ok(sent?),
                }
            }
            Err(error) if self.ends_process(py, &error) => return Err(error.into()),
            Err(error) => {
                let function = self.last_function(py, key);
                state_not_sent(py, error, function)?
            }
        };
        // The next item needs the state that the manager has.
        self.carried.remove(&place);
        let is_alone = self.node()?.carried() == 1;
        self.told_one_by_one.insert(place);
        if is_alone {
            // The others have no part in it.
            self.node()?.forget_carried();
            self.answer_alone(py, key, format, error)?;
            return Ok(self.node()?.give_back_rest(key.frame)?);
        }
        Ok(self.node()?.give_back_carried()?)
    }

    /// Answers for an item by an exception, which leaves the state as it is.
    fn answer_alone(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        error: PyErr,
    ) -> Result<(), LoopEnd> {
        let mut scratch = RecordWriter::default();
        self.write_exception(py, format, &mut scratch, error.into())?;
        Ok(self
            .node()?
            .finish(key, |writer| writer.append(&mut scratch))?)
    }
}

/// The state and the result that a function has returned.
fn pair_of<'py>(
    made: &Bound<'py, PyAny>,
    function: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(pair) = made.cast_exact::<PyTuple>()
        && pair.len() == 2
    {
        return Ok((pair.get_item(0)?, pair.get_item(1)?));
    }
    // It says what is wrong with it. Few slots ever need that.
    static PAIR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let pair = PAIR.import(made.py(), "exoskel.sequential", "pair_of")?;
    pair.call1((made, function))?.extract()
}

/// What items end with behind which there is a state that can't be sent.
fn state_not_sent(
    py: Python<'_>,
    error: PyErr,
    function: Option<Bound<'_, PyAny>>,
) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "exoskel.outcome", "state_not_sent")?;
    Ok(PyErr::from_value(make.call1((error.value(py), function))?))
}
