//! What a slot answers: results, parts, what was folded, exceptions.

use std::collections::HashMap;
use std::rc::Rc;

use exoskel_link::SessionError;
use exoskel_net::message::{Digest, SegmentEnding};
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::slot::{Item, ItemKey, Work};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use super::steps::{Intermediate, Passing};
use super::{Folding, LoadedProgram, LoopEnd, SlotInterpreter, TaskFailure};
use crate::interrupt::Interruptible;
use crate::item_note::Subject;
use crate::pickle::{Destination, result_over_limit};

/// What was written of an item.
#[derive(Clone, Copy)]
enum WrittenAnswer {
    /// A result.
    Result,
    /// A result for another segment than the next one.
    At(u16),
    /// Parts, and maybe something before them.
    Parts { has_state: bool },
}

/// Who reads what is written.
#[derive(Clone, Copy)]
pub(super) enum Reader {
    Slots,
    /// Who reads the result of an item that has reached this segment.
    OfItem(ItemKey, u16),
    /// Who reads what an item was made into.
    OfParts(ItemKey),
}

impl Reader {
    /// The manager reads outcomes of a program, slots all else. Few values are written in another way for one of them.
    fn destination(self, programs: &HashMap<u32, Rc<LoadedProgram>>) -> Destination {
        let segments = |key: ItemKey| Some(&programs.get(&key.stream)?.segments);
        let is_for_user = match self {
            Self::Slots => None,
            Self::OfItem(key, reached) => segments(key).and_then(|segments| {
                let last = segments.last()?;
                Some(usize::from(reached) >= segments.len() && last.for_user)
            }),
            Self::OfParts(key) => segments(key).and_then(|segments| {
                let segment = segments.get(usize::from(key.to))?;
                let waits = segment.ending != SegmentEnding::Expand { after: None };
                Some(segment.for_user && !waits)
            }),
        };
        match is_for_user {
            Some(true) => Destination::Manager,
            _ => Destination::Slots,
        }
    }
}

impl<'py> SlotInterpreter<'py> {
    pub(super) fn finish(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        passing: Passing<'py>,
    ) -> Result<(), LoopEnd> {
        if let Ok(Intermediate::Folding(operator, value)) = passing {
            return self.fold_item(py, key, format, operator, value);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let sent = self.finish_or_go_on(py, key, format, passing, &mut scratch);
        self.scratch = scratch;
        sent
    }

    /// What has passed a serial segment alone, and can't travel, passes the parallel one behind it here: whether that is so must not depend on
    /// where the manager ends a frame.
    fn finish_or_go_on(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        passing: Passing<'py>,
        scratch: &mut RecordWriter,
    ) -> Result<(), LoopEnd> {
        let (Ok(Intermediate::Value(halfway)), Some(to)) = (&passing, self.beyond(key)) else {
            return self.finish_with(py, key, format, passing, scratch);
        };
        let interruptible = Interruptible::begin();
        let written = self.write(halfway, Reader::Slots, format, scratch);
        drop(interruptible);
        if written.is_ok() {
            let sent = self.node()?.finish(key, |writer| writer.append(scratch));
            if !matches!(sent, Err(SessionError::Limit { .. })) {
                return Ok(sent?);
            }
        }
        let _ = scratch.take();
        let key = ItemKey { to, ..key };
        let passing = self.apply(py, key, to..=to, passing);
        self.finish(py, key, format, passing)
    }

    /// The parallel segment behind the last one that an item passes here, if that is serial.
    pub(super) fn beyond(&self, key: ItemKey) -> Option<u16> {
        let segments = &self.programs.get(&key.stream)?.segments;
        let next = key.to.checked_add(1)?;
        let goes_on =
            segments.get(usize::from(key.to))?.serial && !segments.get(usize::from(next))?.serial;
        goes_on.then_some(next)
    }

    pub(super) fn finish_with(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        passing: Passing<'py>,
        scratch: &mut RecordWriter,
    ) -> Result<(), LoopEnd> {
        let interruptible = Interruptible::begin();
        let encoded = passing.and_then(|passage| self.encode(passage, key, format, scratch));
        drop(interruptible);
        let written = match encoded {
            Ok(written) => written,
            Err(mut failure) => {
                if self.ends_process(py, &failure.error) {
                    return Err(failure.error.into());
                }
                let retriable = self.is_retriable(py, key.stream, &failure.error)?;
                if matches!(failure.subject, Subject::Result(_)) {
                    let function = self.last_function(py, key);
                    failure.error = result_not_sent(py, failure.error, function)?;
                }
                self.write_exception(py, format, scratch, *failure)?;
                if retriable {
                    let node = self.node()?;
                    return Ok(node.finish_retriable(key, |writer| writer.append(scratch))?);
                }
                WrittenAnswer::Result
            }
        };
        let node = self.node()?;
        let sent = match written {
            WrittenAnswer::Result => node.finish(key, |writer| writer.append(scratch)),
            WrittenAnswer::At(reached) => {
                node.finish_at(key, reached, |writer| writer.append(scratch))
            }
            WrittenAnswer::Parts { has_state } => {
                node.finish_expanded(key, has_state, |writer| writer.append(scratch))
            }
        };
        match sent {
            Err(SessionError::Limit { got, maximum, .. }) => {
                self.finish_over_limit(py, key, format, (got, maximum), scratch)
            }
            other => Ok(other?),
        }
    }

    /// Takes an item whose result has more bytes than it may have.
    pub(super) fn finish_over_limit(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        (got, maximum): (u64, u64),
        scratch: &mut RecordWriter,
    ) -> Result<(), LoopEnd> {
        let error = result_over_limit(py, got, maximum);
        self.write_exception(py, format, scratch, error.into())?;
        Ok(self.node()?.finish(key, |writer| writer.append(scratch))?)
    }

    /// Writes what an item came to in its last segment here.
    fn encode<'a>(
        &mut self,
        passage: Intermediate<'a>,
        key: ItemKey,
        format: Format,
        record: &mut RecordWriter,
    ) -> Result<WrittenAnswer, Box<TaskFailure<'a>>> {
        let not_sent = |error, value| {
            let subject = Subject::Result(value);
            Box::new(TaskFailure { error, subject })
        };
        let next = Reader::OfItem(key, key.to.saturating_add(1));
        match passage {
            Intermediate::Parts(parts, state) => {
                let has_state = state.is_some();
                if let Some(state) = state {
                    let written = self.write(&state, Reader::Slots, format, record);
                    written.map_err(|error| not_sent(error, state))?;
                }
                let reader = Reader::OfParts(key);
                for part in parts {
                    let written = self.write(&part, reader, format, record);
                    written.map_err(|error| not_sent(error, part))?;
                }
                Ok(WrittenAnswer::Parts { has_state })
            }
            Intermediate::At(reached, value) => {
                let reader = Reader::OfItem(key, reached);
                let written = self.write(&value, reader, format, record);
                written.map_err(|error| not_sent(error, value))?;
                Ok(WrittenAnswer::At(reached))
            }
            Intermediate::Value(value) | Intermediate::Folding(_, value) => {
                let written = self.write(&value, next, format, record);
                written.map_err(|error| not_sent(error, value))?;
                Ok(WrittenAnswer::Result)
            }
            Intermediate::List(values, _) => {
                let written = self.write(values.as_any(), next, format, record);
                written.map_err(|error| not_sent(error, values.into_any()))?;
                Ok(WrittenAnswer::Result)
            }
        }
    }

    /// Writes a value for who will read it.
    pub(super) fn write(
        &mut self,
        value: &Bound<'_, PyAny>,
        reader: Reader,
        format: Format,
        record: &mut RecordWriter,
    ) -> PyResult<()> {
        match format {
            Format::Pickle => {
                let programs = &self.programs;
                let destination = || reader.destination(programs);
                self.encoder.encode(value, record, destination, u64::MAX)
            }
            Format::Data => self.data.encode(value).map(|()| {
                let bulk = self.data.take_bulk();
                record.push(Format::Data, false, self.data.body(), &[], bulk);
            }),
        }
    }

    /// An item ends in what is made of it and those before it.
    fn fold_item(
        &mut self,
        py: Python<'py>,
        key: ItemKey,
        format: Format,
        operator: Digest,
        value: Bound<'py, PyAny>,
    ) -> Result<(), LoopEnd> {
        let follows = self
            .folding
            .as_ref()
            .is_some_and(|folding| folding.key.frame == key.frame && folding.next == key.index);
        if !follows {
            self.end_folding(py)?;
        }
        let folding = match self.folding.take() {
            None => Folding {
                key,
                next: key.index + 1,
                format,
                value,
            },
            Some(before) => {
                let interruptible = Interruptible::begin();
                let folded = self.fold(py, &operator, before.value.clone(), value);
                drop(interruptible);
                let value = match folded {
                    Ok(value) => value,
                    Err(failure) => {
                        self.folding = Some(before);
                        return self.finish(py, key, format, Err(failure));
                    }
                };
                let format = match before.format {
                    Format::Data => Format::Data,
                    Format::Pickle => format,
                };
                Folding {
                    next: key.index + 1,
                    format,
                    value,
                    ..before
                }
            }
        };
        self.folding = Some(folding);
        if self.node()?.absorb(key) {
            self.end_folding(py)?;
        }
        Ok(())
    }

    /// What has been folded is told of, unless more of the same frame comes.
    pub(super) fn end_folding_before(
        &mut self,
        py: Python<'py>,
        work: &Work,
    ) -> Result<(), LoopEnd> {
        let Some(folding) = &self.folding else {
            return Ok(());
        };
        match work {
            Work::Item(Item { key, .. }) if key.frame == folding.key.frame => Ok(()),
            _ => self.end_folding(py),
        }
    }

    fn end_folding(&mut self, py: Python<'py>) -> Result<(), LoopEnd> {
        let Some(folding) = self.folding.take() else {
            return Ok(());
        };
        let Folding {
            key, format, value, ..
        } = folding;
        let mut scratch = std::mem::take(&mut self.scratch);
        let interruptible = Interruptible::begin();
        let written = self.write(&value, Reader::Slots, format, &mut scratch);
        drop(interruptible);
        if let Err(error) = written {
            if self.ends_process(py, &error) {
                return Err(error.into());
            }
            let function = self.last_function(py, key);
            let error = result_not_sent(py, error, function)?;
            let subject = Subject::Result(value);
            self.write_exception(py, format, &mut scratch, TaskFailure { error, subject })?;
        }
        let mut sent = self
            .node()?
            .finish_folded(key, |writer| writer.append(&mut scratch));
        if let Err(SessionError::Limit { got, maximum, .. }) = sent {
            let error = result_over_limit(py, got, maximum);
            self.write_exception(py, format, &mut scratch, error.into())?;
            sent = self
                .node()?
                .finish_folded(key, |writer| writer.append(&mut scratch));
        }
        self.scratch = scratch;
        Ok(sent?)
    }

    /// The function whose result an item has, if it could be loaded.
    pub(super) fn last_function<'a>(
        &self,
        py: Python<'a>,
        key: ItemKey,
    ) -> Option<Bound<'a, PyAny>> {
        let segments = &self.programs.get(&key.stream)?.segments;
        let segment = segments.get(usize::from(key.to))?;
        let loaded = self.functions.get(segment.functions.last()?)?;
        let function = loaded.as_ref().ok()?;
        Some(function.bind(py).clone())
    }

    pub(super) fn write_exception(
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

/// What an item ends with whose result can't be sent, so that nobody takes it for an exception of the function.
pub(super) fn result_not_sent(
    py: Python<'_>,
    error: PyErr,
    function: Option<Bound<'_, PyAny>>,
) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "exoskel.outcome", "result_not_sent")?;
    Ok(PyErr::from_value(make.call1((error.value(py), function))?))
}
