//! Items that only functions are called with: most are, and most are small. What is the same for all of a frame is looked up once.

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

/// What items pass here that only functions are called with.
pub(super) struct Calls<'py> {
    stream: u32,
    from: u16,
    to: u16,
    /// In their order.
    functions: Vec<(Bound<'py, PyAny>, FunctionPlace)>,
}

impl Calls<'_> {
    /// Whether this item passes the same.
    fn are_those_of(&self, item: &Item) -> bool {
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
    pub(super) fn calls_of(&self, py: Python<'py>, item: &Item) -> Option<Calls<'py>> {
        let Item { key, from, .. } = *item;
        if !is_plain(item) || self.beyond(key).is_some() {
            return None;
        }
        let program = self.programs.get(&key.stream)?;
        let mut functions = Vec::new();
        for number in from..=key.to {
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
        Some(Calls {
            stream: key.stream,
            from,
            to: key.to,
            functions,
        })
    }

    /// Runs an item, and those behind it that pass the same. Gives what came next, or nothing if that wasn't taken.
    pub(super) fn call_items(
        &mut self,
        py: Python<'py>,
        calls: &Calls<'py>,
        item: Item,
    ) -> Result<Work, LoopEnd> {
        let mut record = std::mem::take(&mut self.scratch);
        let work = self.call_items_with(py, calls, item, &mut record);
        self.scratch = record;
        work
    }

    fn call_items_with(
        &mut self,
        py: Python<'py>,
        calls: &Calls<'py>,
        mut item: Item,
        record: &mut RecordWriter,
    ) -> Result<Work, LoopEnd> {
        drop_sent();
        loop {
            let key = item.key;
            let format = self.answer_to(item.record.format);
            let value = self.read(py, item.record)?;
            let interruptible = Interruptible::begin();
            let written = value
                .map_err(Box::from)
                .and_then(|value| self.call_and_write(calls, value, (key, format), record));
            drop(interruptible);
            if let Err(failure) = written {
                self.finish_with(py, key, format, Err(failure), record)?;
                return Ok(Work::Nothing);
            }
            let node = self.node()?;
            match node.finish_and_next(key, |writer| writer.append(record)) {
                Ok(Work::Item(next)) if calls.are_those_of(&next) => item = next,
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
        calls: &Calls<'py>,
        mut value: Bound<'py, PyAny>,
        (key, format): (ItemKey, Format),
        record: &mut RecordWriter,
    ) -> Result<(), Box<TaskFailure<'py>>> {
        for (function, place) in &calls.functions {
            value = call_function(function, *place, value)?;
        }
        let reader = Reader::OfItem(key, key.to.saturating_add(1));
        self.write(&value, reader, format, record).map_err(|error| {
            let subject = Subject::Result(value);
            Box::new(TaskFailure { error, subject })
        })
    }
}
