//! Items that pass rows of functions and nothing else: most do, and most are small. The functions are looked up once for items that come one behind
//! the other.

use exoskel_flow::Lease;
use exoskel_link::SessionError;
use exoskel_net::payload::{Format, RecordWriter};
use exoskel_net::slot::{Item, ItemKey, Work};
use pyo3::prelude::*;

use super::answers::Reader;
use super::steps::{FunctionPlace, call_function, drop_sent};
use super::{LoopEnd, SlotInterpreter, TaskFailure};
use crate::interrupt::Interruptible;
use crate::item_note::Subject;

/// The functions of all segments that items pass here.
pub(super) struct FunctionRow<'py> {
    stream: u32,
    from: u16,
    to: u16,
    functions: Vec<(Bound<'py, PyAny>, FunctionPlace)>,
}

impl FunctionRow<'_> {
    fn is_passed_by(&self, item: &Item) -> bool {
        let Item { key, from, .. } = item;
        (key.stream, *from, key.to) == (self.stream, self.from, self.to) && is_plain(item)
    }
}

/// Whether an item is one value, and keeps no other waiting.
fn is_plain(item: &Item) -> bool {
    item.lease == Lease::None && item.list.is_none()
}

impl<'py> SlotInterpreter<'py> {
    /// What an item passes here, if that is functions alone, all of which are loaded.
    pub(super) fn row_of(&self, py: Python<'py>, item: &Item) -> Option<FunctionRow<'py>> {
        let Item { key, from, .. } = *item;
        if !is_plain(item) || self.beyond(key).is_some() {
            return None;
        }
        let program = self.programs.get(&key.stream)?;
        let mut functions = Vec::new();
        for number in from..=key.to {
            // As in `pass`: behind the last segment there is nothing to do.
            let Some(segment) = program.segments.get(usize::from(number)) else {
                break;
            };
            if !*program.rows.get(usize::from(number))? {
                return None;
            }
            for (position, digest) in segment.functions.iter().enumerate() {
                let function = self.functions.get(digest)?.as_ref().ok()?;
                let place = FunctionPlace {
                    is_first: number == 0 && position == 0,
                    call: program.call,
                };
                functions.push((function.bind(py).clone(), place));
            }
        }
        Some(FunctionRow {
            stream: key.stream,
            from,
            to: key.to,
            functions,
        })
    }

    /// Runs an item, and those behind it that pass the same row. Gives what came next; nothing if the queue wasn't asked for that.
    pub(super) fn pass_row(
        &mut self,
        py: Python<'py>,
        row: &FunctionRow<'py>,
        item: Item,
    ) -> Result<Work, LoopEnd> {
        let mut record = std::mem::take(&mut self.scratch);
        let work = self.pass_row_with(py, row, item, &mut record);
        self.scratch = record;
        work
    }

    fn pass_row_with(
        &mut self,
        py: Python<'py>,
        row: &FunctionRow<'py>,
        mut item: Item,
        record: &mut RecordWriter,
    ) -> Result<Work, LoopEnd> {
        loop {
            drop_sent();
            let key = item.key;
            let format = self.answer_to(item.record.format);
            let value = self.read(py, item.record)?;
            let interruptible = Interruptible::begin();
            let written = value
                .map_err(Box::from)
                .and_then(|value| self.call_and_write(row, value, (key, format), record));
            drop(interruptible);
            if let Err(failure) = written {
                self.finish_with(py, key, format, Err(failure), record)?;
                return Ok(Work::Nothing);
            }
            let node = self.node()?;
            match node.finish_and_next(key, |writer| writer.append(record)) {
                Ok(Work::Item(next)) if row.is_passed_by(&next) => item = next,
                Err(SessionError::Limit { got, maximum, .. }) => {
                    self.finish_over_limit(py, key, format, (got, maximum), record)?;
                    return Ok(Work::Nothing);
                }
                next => return Ok(next?),
            }
        }
    }

    /// Writes what the functions make of a value.
    fn call_and_write(
        &mut self,
        row: &FunctionRow<'py>,
        mut value: Bound<'py, PyAny>,
        (key, format): (ItemKey, Format),
        record: &mut RecordWriter,
    ) -> Result<(), Box<TaskFailure<'py>>> {
        for (function, place) in &row.functions {
            value = call_function(function, *place, value)?;
        }
        let reader = Reader::OfItem(key, key.to.saturating_add(1));
        self.write(&value, reader, format, record).map_err(|error| {
            let subject = Subject::Result(value);
            Box::new(TaskFailure { error, subject })
        })
    }
}
