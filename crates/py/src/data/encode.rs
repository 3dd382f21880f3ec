//! Python objects to plain data.

use bytes::Bytes;
use exoskel_data::limits::NESTING_MAX;
use exoskel_data::{Checked, Writer, tags};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet,
    PyString, PyTuple, PyType,
};

use super::arrays::{PlainArray, plain_array};
use crate::buffer::{BytesOwner, ViewOwner};
use crate::error::{self, ExceptionKind, raise};

/// From this size on a `bytes` object travels beside the record instead of in it.
const BULK_BYTES_MIN: usize = 64 * 1024;

/// Buffers below this size are cheaper in the record.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// Parts beside one record at most; the others stay in it. Far below what a message may have.
const PARTS_MAX: usize = 256;

/// Shorter records pass no limit that matters.
const UNCHECKED_BYTES_MAX: usize = 512;

/// Turns objects into plain data. Keeps its memory between values.
#[derive(Default)]
pub(crate) struct DataEncoder {
    writer: Writer,
    bulk: Vec<Bytes>,
    /// Nothing may travel beside the record.
    in_band: bool,
    /// What a value of a link is called. There, no policy can trust the other end more.
    of_link: Option<&'static str>,
}

/// Why a value can't be sent, and where in the result it is, the innermost first.
struct Unsendable {
    error: PyErr,
    path: Vec<String>,
}

impl From<PyErr> for Unsendable {
    fn from(error: PyErr) -> Self {
        Self {
            error,
            path: Vec::new(),
        }
    }
}

impl Unsendable {
    /// The same, seen from one level further out.
    fn within(mut self, step: impl FnOnce() -> String) -> Self {
        // A deep way says nothing that its beginning and end don't.
        if self.path.len() < PATH_STEPS_MAX {
            self.path.push(step());
        }
        self
    }
}

/// Steps of the way to a value that are told.
const PATH_STEPS_MAX: usize = 8;

impl DataEncoder {
    /// One for the arguments or the answer of a call between programs, as errors call it.
    pub(crate) fn of_link(what: &'static str) -> Self {
        Self {
            of_link: Some(what),
            ..Self::default()
        }
    }

    /// Encodes one value in place of what was there before.
    ///
    /// # Errors
    /// `ResultRejectedError` when something in it can't be plain data: where, and what to return instead. What the program's own
    /// functions raise.
    pub(crate) fn encode(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(value)?;
        if self.writer.len() < UNCHECKED_BYTES_MAX && self.bulk.is_empty() {
            return Ok(());
        }
        // What the reader would refuse is refused before it is sent.
        match Checked::new(self.body(), &self.bulk) {
            Ok(_) => Ok(()),
            Err(fault) => Err(raise(
                value.py(),
                ExceptionKind::ResultRejected,
                fault.to_string(),
            )),
        }
    }

    fn write(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.writer.clear();
        self.bulk.clear();
        self.value(value, 0)
            .map_err(|Unsendable { error, mut path }| {
                let py = value.py();
                if path.is_empty() || !error::is(py, ExceptionKind::ResultRejected, &error) {
                    return error;
                }
                path.reverse();
                let text = format!(
                    "at {}{}: {}",
                    self.of_link.unwrap_or("result"),
                    path.concat(),
                    error.value(py)
                );
                raise(py, ExceptionKind::ResultRejected, text)
            })
    }

    /// The same with all bytes in the record itself, as exceptions travel.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub(crate) fn encode_in_band(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.in_band = true;
        let encoded = self.encode(value);
        self.in_band = false;
        encoded
    }

    /// What was encoded.
    pub(crate) fn body(&self) -> &[u8] {
        self.writer.as_bytes()
    }

    /// The parts beside it.
    pub(crate) fn take_bulk(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.bulk)
    }

    fn value(&mut self, value: &Bound<'_, PyAny>, depth: u32) -> Result<(), Unsendable> {
        if let Ok(number) = value.cast_exact::<PyInt>() {
            return Ok(self.integer(number)?);
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            return Ok(self.text(text)?);
        }
        if let Ok(number) = value.cast_exact::<PyFloat>() {
            self.writer.float(number.value());
        } else if value.is_none() {
            self.writer.null();
        } else if let Ok(value) = value.cast_exact::<PyBool>() {
            self.writer.boolean(value.is_true());
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            self.bytes(bytes);
        } else if let Ok(list) = value.cast_exact::<PyList>() {
            self.writer.array(list.len() as u64);
            self.items(list.iter(), list.len(), deeper(value, depth)?)?;
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            self.writer.tag(tags::TUPLE);
            self.writer.array(tuple.len() as u64);
            self.items(tuple.iter(), tuple.len(), deeper(value, depth)?)?;
        } else if let Ok(dict) = value.cast_exact::<PyDict>() {
            self.writer.map(dict.len() as u64);
            self.pairs(dict, deeper(value, depth)?)?;
        } else if let Ok(set) = value.cast_exact::<PySet>() {
            self.writer.tag(tags::SET);
            self.members(set, deeper(value, depth)?)?;
        } else if let Ok(set) = value.cast_exact::<PyFrozenSet>() {
            self.writer.tag(tags::FROZEN_SET);
            self.members(set, deeper(value, depth)?)?;
        } else if let Ok(number) = value.cast_exact::<PyComplex>() {
            self.writer.tag(tags::COMPLEX);
            self.writer.array(2);
            self.writer.float(number.real());
            self.writer.float(number.imag());
        } else if let Ok(bytes) = value.cast_exact::<PyByteArray>() {
            self.writer.tag(tags::BYTE_ARRAY);
            self.writer.bytes(&bytes.to_vec());
        } else if value.get_type().is(pickle_buffer(value.py())?) {
            self.buffer(value)?;
        } else {
            self.described(value, depth)?;
        }
        Ok(())
    }

    /// What Python knows how to take apart: a tag, and content that is plain data.
    fn described(&mut self, value: &Bound<'_, PyAny>, depth: u32) -> Result<(), Unsendable> {
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = value.py();
        if let Some(array) = plain_array(value)? {
            return self.array(value, array, depth);
        }
        let describe = DESCRIBE.import(py, "exoskel.results", "describe")?;
        let described = if self.of_link.is_some() {
            describe.call1((value, true))?
        } else {
            describe.call1((value,))?
        };
        let (tag, content): (u64, Bound<'_, PyAny>) = described.extract()?;
        self.writer.tag(tag);
        // Its own list is no level that anybody sees, but one that the reader counts.
        self.value(&content, deeper(value, depth)?)
    }

    /// As `exoskel.result_arrays.describe` has it.
    fn array(
        &mut self,
        value: &Bound<'_, PyAny>,
        array: PlainArray,
        depth: u32,
    ) -> Result<(), Unsendable> {
        let inner = deeper(value, deeper(value, depth)?)?;
        self.writer.tag(tags::ARRAY);
        self.writer.array(4);
        self.writer.text(array.elements);
        deeper(value, inner)?;
        self.writer.array(array.shape.len() as u64);
        for length in array.shape {
            self.writer.unsigned(length as u64);
        }
        // The last index varies fastest.
        self.writer.unsigned(0);
        self.contents(array.contents.into());
        Ok(())
    }

    fn items<'py>(
        &mut self,
        items: impl Iterator<Item = Bound<'py, PyAny>>,
        announced: usize,
        depth: u32,
    ) -> Result<(), Unsendable> {
        let mut count = 0;
        for item in items {
            self.value(&item, depth)
                .map_err(|fault| fault.within(|| format!("[{count}]")))?;
            count += 1;
        }
        unchanged(count, announced)
    }

    fn members(&mut self, set: &Bound<'_, PyAny>, depth: u32) -> Result<(), Unsendable> {
        let members = set
            .py()
            .get_type::<PyList>()
            .call1((set,))?
            .cast_into::<PyList>()
            .map_err(PyErr::from)?;
        self.writer.array(members.len() as u64);
        for member in members.iter() {
            self.value(&member, depth)
                .map_err(|fault| fault.within(|| " (in a set)".to_owned()))?;
        }
        Ok(())
    }

    fn pairs(&mut self, dict: &Bound<'_, PyDict>, depth: u32) -> Result<(), Unsendable> {
        let (py, announced) = (dict.py(), dict.len());
        let (mut place, mut count) = (0, 0);
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // What is encoded may be a class of the user's with functions that change this very dict; then it ends here.
        while dict.len() == announced && count < announced {
            // SAFETY: `dict` is a dict, the places are our own, and both references are taken before anything else runs.
            let (key, value) = unsafe {
                if ffi::PyDict_Next(dict.as_ptr(), &mut place, &mut key, &mut value) == 0 {
                    break;
                }
                (
                    Bound::from_borrowed_ptr(py, key),
                    Bound::from_borrowed_ptr(py, value),
                )
            };
            self.value(&key, depth)
                .map_err(|fault| fault.within(|| ".keys()".to_owned()))?;
            self.value(&value, depth).map_err(|fault| {
                fault.within(|| {
                    let key = key.repr().map(|key| key.to_string()).unwrap_or_default();
                    let shown: String = key.chars().take(40).collect();
                    format!("[{shown}]")
                })
            })?;
            count += 1;
        }
        unchanged(count, announced)
    }

    fn integer(&mut self, number: &Bound<'_, PyInt>) -> PyResult<()> {
        if let Ok(value) = number.extract::<i64>() {
            self.writer.integer(value);
            return Ok(());
        }
        if let Ok(value) = number.extract::<u64>() {
            self.writer.unsigned(value);
            return Ok(());
        }
        let is_negative = number.lt(0)?;
        let magnitude = if is_negative {
            number.call_method0("__invert__")?
        } else {
            number.clone().into_any()
        };
        let bits: usize = magnitude.call_method0("bit_length")?.extract()?;
        let bytes = magnitude.call_method1("to_bytes", (bits.div_ceil(8).max(1), "big"))?;
        self.writer.tag(if is_negative {
            tags::BIG_NEGATIVE
        } else {
            tags::BIG_POSITIVE
        });
        self.writer.bytes(bytes.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }

    fn text(&mut self, text: &Bound<'_, PyString>) -> PyResult<()> {
        if let Ok(text) = text.to_str() {
            self.writer.text(text);
            return Ok(());
        }
        // Lone surrogates: file names with bytes that are no text, for example.
        let encoded = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
        self.writer.tag(tags::SURROGATE_TEXT);
        self.writer.bytes(encoded.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }

    fn bytes(&mut self, bytes: &Bound<'_, PyBytes>) {
        let contents = bytes.as_bytes();
        if contents.len() < BULK_BYTES_MIN || self.in_band || self.bulk.len() >= PARTS_MAX {
            return self.writer.bytes(contents);
        }
        self.part(contents.len());
        self.bulk.push(BytesOwner::share(bytes));
    }

    /// A contiguous buffer, of an array that stays as it is until it is sent.
    fn buffer(&mut self, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let raw = buffer.call_method0("raw")?;
        self.contents(ViewOwner::share(&raw)?);
        Ok(())
    }

    fn contents(&mut self, contents: Bytes) {
        if contents.len() < BUFFER_BYTES_MIN || self.in_band || self.bulk.len() >= PARTS_MAX {
            self.writer.bytes(&contents);
        } else {
            self.part(contents.len());
            self.bulk.push(contents);
        }
    }

    fn part(&mut self, length: usize) {
        self.writer.tag(tags::PART);
        self.writer.unsigned(length as u64);
    }
}

fn pickle_buffer(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static PICKLE_BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    PICKLE_BUFFER.import(py, "pickle", "PickleBuffer")
}

fn deeper(value: &Bound<'_, PyAny>, depth: u32) -> PyResult<u32> {
    if depth < NESTING_MAX {
        return Ok(depth + 1);
    }
    let text = format!(
        "got values within values deeper than {NESTING_MAX} levels, or one that holds itself: return a flatter result"
    );
    Err(raise(value.py(), ExceptionKind::ResultRejected, text))
}

/// A container that another thread changed meanwhile would be announced wrong.
fn unchanged(count: usize, announced: usize) -> Result<(), Unsendable> {
    if count == announced {
        return Ok(());
    }
    Err(pyo3::exceptions::PyRuntimeError::new_err("a result changed while it was sent").into())
}
