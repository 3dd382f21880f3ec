//! Python objects to records and back.
//!
//! Every item is pickled by itself (protocol 5). Numbers, short strings and small tuples of them are written and read
//! here, as the very opcodes that `pickle` would use, because the call alone costs more than they do. Large `bytes`
//! and out-of-band buffers (PEP 574) become bulk parts and are not copied on the way out.

use bytes::Bytes;
use exoskel_net::message::ENVELOPE_BYTES_MAX;
use exoskel_net::payload::{BatchBuilder, Format, Record, RecordWriter};
use memchr::memmem;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::buffer::{BytesOwner, OwnedBuffer, ViewOwner};
use crate::data;
use crate::error::{ExceptionKind, raise};
use crate::memory;

/// From this size on a `bytes` object or a buffer travels beside the pickle instead of in it.
///
/// It is the frame size of `pickle`, from which on the C pickler hands objects over without a copy.
const BULK_BYTES_MIN: usize = 64 * 1024;

/// Buffers below this size are cheaper inside the pickle.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// Splices, and buffers, of one item at most; the others stay in the pickle. Far below what a message may have.
const PARTS_MAX: usize = 256;

/// How deep the fast path follows tuples.
const FAST_DEPTH_MAX: usize = 3;

/// Where an encoded item goes.
pub(crate) trait PickleSink {
    fn push(&mut self, pickle: &[u8], splices: &[u32], bulk: Vec<Bytes>);
}

/// Who will read a pickle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Slots, which have nothing of the user's script but what is sent to them.
    Slots,
    /// The manager, whose process has the script.
    Manager,
}

impl PickleSink for BatchBuilder {
    fn push(&mut self, pickle: &[u8], splices: &[u32], bulk: Vec<Bytes>) {
        Self::push(self, Format::Pickle, pickle, splices, bulk);
    }
}

/// Results are values; exceptions are pushed by the slot itself.
impl PickleSink for RecordWriter {
    fn push(&mut self, pickle: &[u8], splices: &[u32], bulk: Vec<Bytes>) {
        Self::push(self, Format::Pickle, false, pickle, splices, bulk);
    }
}

/// Turns objects into records. Keeps its scratch space between items.
#[derive(Default)]
pub(crate) struct Encoder {
    scratch: Vec<u8>,
    /// The classes that went to slots by value, with what was written of them.
    definitions: Option<Py<PyAny>>,
    /// Whether users know what is encoded as the arguments of a call.
    is_for_calls: bool,
}

impl Encoder {
    /// An encoder of the arguments of calls.
    pub(crate) fn of_calls() -> Self {
        Self {
            is_for_calls: true,
            ..Self::default()
        }
    }

    /// Appends `object` to `sink`; nothing is appended when it fails. Who reads it is asked for where it matters.
    ///
    /// # Errors
    /// What `pickle` and, after it, the pickler by value raise; `SizeLimitError` for more than `bytes_max`.
    pub(crate) fn encode(
        &mut self,
        object: &Bound<'_, PyAny>,
        sink: &mut impl PickleSink,
        destination: impl FnOnce() -> Destination,
        bytes_max: u64,
    ) -> PyResult<()> {
        self.scratch.clear();
        if write_fast(object, &mut self.scratch, 0) {
            self.scratch.push(b'.');
            sink.push(&self.scratch, &[], Vec::new());
            return Ok(());
        }
        if let Ok(bytes) = object.cast_exact::<PyBytes>()
            && bytes.as_bytes().len() >= BULK_BYTES_MIN
        {
            self.check_size(object.py(), bytes.as_bytes().len() as u64, bytes_max)?;
            let splice = self.write_large_bytes_head(bytes.as_bytes().len());
            sink.push(&self.scratch, &[splice], vec![BytesOwner::share(bytes)]);
            return Ok(());
        }
        let destination = destination();
        let mut pickled = match Pickled::dump_by_name(object) {
            // By name the slot would look for what it may not have.
            Ok(pickled) if destination == Destination::Slots && pickled.names_script() => {
                self.dump_by_value(object, destination)?
            }
            Ok(pickled) => pickled,
            Err(error) => self
                .dump_by_value(object, destination)
                .inspect_err(|second| add_cause(object.py(), second, error))?,
        };
        let bulk = pickled.take_bulk(object.py())?;
        let bytes =
            pickled.pickle.len() as u64 + bulk.iter().map(|part| part.len() as u64).sum::<u64>();
        self.check_size(object.py(), bytes, bytes_max)?;
        sink.push(&pickled.pickle, &pickled.splices, bulk);
        Ok(())
    }

    fn dump_by_value(
        &mut self,
        object: &Bound<'_, PyAny>,
        destination: Destination,
    ) -> PyResult<Pickled> {
        static FOR_SLOTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static FOR_MANAGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static DEFINITIONS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = object.py();
        let options = PyDict::new(py);
        if destination == Destination::Manager {
            let pickler = FOR_MANAGER.import(py, "exoskel.by_value", "HomePickler")?;
            return Pickled::dump(object, pickler, &options);
        }
        let definitions = match &self.definitions {
            Some(definitions) => definitions,
            None => {
                let make = DEFINITIONS.import(py, "exoskel.by_value", "definitions")?;
                self.definitions.insert(make.call0()?.unbind())
            }
        };
        options.set_item("definitions", definitions)?;
        let pickler = FOR_SLOTS.import(py, "exoskel.by_value", "ItemPickler")?;
        Pickled::dump(object, pickler, &options)
    }

    fn write_large_bytes_head(&mut self, length: usize) -> u32 {
        // BINBYTES8, its length, and behind the spliced contents STOP.
        self.scratch.push(0x8e);
        self.scratch
            .extend_from_slice(&(length as u64).to_le_bytes());
        self.scratch.push(b'.');
        9
    }

    fn check_size(&self, py: Python<'_>, bytes: u64, bytes_max: u64) -> PyResult<()> {
        if bytes <= bytes_max {
            return Ok(());
        }
        let what = match self.is_for_calls {
            true => "a call with arguments",
            false => "an item",
        };
        Err(over_limit(py, what, bytes, bytes_max))
    }
}

/// Has an error tell of the one before it, unless it says the same.
fn add_cause(py: Python<'_>, error: &PyErr, cause: PyErr) {
    if error.to_string() != cause.to_string() {
        error.set_cause(py, Some(cause));
    }
}

/// The error for what is larger than the manager's messages have room for: `message_bytes_max` less what is around the data.
fn over_limit(py: Python<'_>, what: &str, bytes: u64, room: u64) -> PyErr {
    let limit = room.saturating_add(ENVELOPE_BYTES_MAX);
    let text = format!(
        "got {what} of {bytes} bytes, expected at most {room}: message_bytes_max={limit}, less {ENVELOPE_BYTES_MAX} bytes that the \
         message itself may take; send less, or raise message_bytes_max"
    );
    raise(py, ExceptionKind::SizeLimit, text)
}

/// The error for a result that is larger than a message may be at both ends, less what is around the data.
pub(crate) fn result_over_limit(py: Python<'_>, bytes: u64, room: u64) -> PyErr {
    let limit = room.saturating_add(ENVELOPE_BYTES_MAX);
    let text = format!(
        "got a result of {bytes} bytes, expected at most {room}; return less, or raise the limit. The limit is {limit} bytes a message: \
         the smaller of the manager's (message_bytes_max) and its worker's (--message-bytes-max). The message itself may take \
         {ENVELOPE_BYTES_MAX} of them"
    );
    raise(py, ExceptionKind::SizeLimit, text)
}

/// A state that is larger than its limit, which is half of a message: it travels with results, and with items.
pub(crate) fn state_over_limit(py: Python<'_>, bytes: u64, room: u64) -> PyErr {
    let text = format!(
        "got a state of {bytes} bytes, expected at most {room}; keep less, or raise the limit. A state may take about half of a message: \
         the limit of that is the smaller of the manager's (message_bytes_max) and its worker's (--message-bytes-max)"
    );
    raise(py, ExceptionKind::SizeLimit, text)
}

/// Writes exact built-in scalars and small tuples of them; says whether it did.
fn write_fast(object: &Bound<'_, PyAny>, out: &mut Vec<u8>, depth: usize) -> bool {
    if let Ok(number) = object.cast_exact::<PyInt>() {
        return number.extract::<i64>().is_ok_and(|value| {
            write_int(value, out);
            true
        });
    }
    if object.is_none() {
        out.push(b'N');
        return true;
    }
    if let Ok(value) = object.cast_exact::<PyFloat>() {
        out.push(b'G');
        out.extend_from_slice(&value.value().to_be_bytes());
        return true;
    }
    if let Ok(value) = object.cast_exact::<PyBool>() {
        out.push(if value.is_true() { 0x88 } else { 0x89 });
        return true;
    }
    if let Ok(text) = object.cast_exact::<PyString>() {
        return text
            .to_str()
            .is_ok_and(|text| write_sized(text.as_bytes(), 0x8c, b'X', out));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return write_sized(bytes.as_bytes(), b'C', b'B', out);
    }
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        let close = match tuple.len() {
            0 => b')',
            1 => 0x85,
            2 => 0x86,
            3 => 0x87,
            _ => return false,
        };
        let complete = depth < FAST_DEPTH_MAX
            && tuple
                .iter_borrowed()
                .all(|item| write_fast(&item, out, depth + 1));
        out.push(close);
        return complete;
    }
    if let Ok(dictionary) = object.cast_exact::<PyDict>() {
        out.push(b'}');
        return dictionary.is_empty();
    }
    false
}

fn write_int(value: i64, out: &mut Vec<u8>) {
    if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[b'K', value]);
    } else if let Ok(value) = u16::try_from(value) {
        out.push(b'M');
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(b'J');
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        out.extend_from_slice(&[0x8a, 8]);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn write_sized(bytes: &[u8], short: u8, long: u8, out: &mut Vec<u8>) -> bool {
    if bytes.len() >= BULK_BYTES_MIN {
        return false;
    }
    if let Ok(length) = u8::try_from(bytes.len()) {
        out.extend_from_slice(&[short, length]);
    } else {
        out.push(long);
        // Below BULK_BYTES_MIN, so it fits.
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    }
    out.extend_from_slice(bytes);
    true
}

/// What the real pickler made of an object.
#[derive(Default)]
struct Pickled {
    pickle: Vec<u8>,
    splices: Vec<u32>,
    spliced: Vec<Bytes>,
    buffers: Vec<Py<PyAny>>,
}

impl Pickled {
    fn dump_by_name(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        static PICKLER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let pickler = PICKLER.import(object.py(), "pickle", "Pickler")?;
        Self::dump(object, pickler, &PyDict::new(object.py()))
    }

    /// Pickles with a class of picklers, which takes `options` besides those of all picklers.
    fn dump(
        object: &Bound<'_, PyAny>,
        pickler: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let py = object.py();
        let file = Bound::new(py, PickleFile::default())?;
        options.set_item("protocol", 5)?;
        options.set_item("buffer_callback", file.getattr("take_buffer")?)?;
        let pickler = pickler.call((&file,), Some(options))?;
        pickler.call_method1("dump", (object,))?;
        Ok(std::mem::take(&mut file.borrow_mut().pickled))
    }

    /// Whether it may name something of `__main__`, or of the `__mp_main__` of a child of multiprocessing.
    fn names_script(&self) -> bool {
        memmem::find(&self.pickle, b"_main__").is_some()
    }

    fn take_bulk(&mut self, py: Python<'_>) -> PyResult<Vec<Bytes>> {
        let mut bulk = std::mem::take(&mut self.spliced);
        for buffer in self.buffers.drain(..) {
            bulk.push(ViewOwner::share(buffer.bind(py))?);
        }
        Ok(bulk)
    }
}

/// The file that the pickler writes into.
#[pyclass]
#[derive(Default)]
struct PickleFile {
    pickled: Pickled,
}

#[pymethods]
impl PickleFile {
    fn write(&mut self, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            let contents = bytes.as_bytes();
            let large = contents.len() >= BULK_BYTES_MIN && self.pickled.splices.len() < PARTS_MAX;
            if large && self.is_announced(contents) {
                let offset = u32::try_from(self.pickled.pickle.len());
                self.pickled.splices.push(offset.map_err(|_| {
                    PyValueError::new_err("the pickle without its bulk parts is larger than 4 GiB")
                })?);
                self.pickled.spliced.push(BytesOwner::share(bytes));
            } else {
                self.pickled.pickle.extend_from_slice(contents);
            }
            return Ok(contents.len());
        }
        let view = pyo3::buffer::PyBuffer::<u8>::get(data)?;
        let contents = view.to_vec(data.py())?;
        self.pickled.pickle.extend_from_slice(&contents);
        Ok(contents.len())
    }

    /// The pickler's `buffer_callback`: false keeps the buffer out of the pickle.
    fn take_buffer(&mut self, buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(raw) = buffer.call_method0("raw") else {
            // Not contiguous: the pickler makes it so inside the stream.
            return Ok(true);
        };
        if self.pickled.buffers.len() >= PARTS_MAX
            || raw.getattr("nbytes")?.extract::<usize>()? < BUFFER_BYTES_MIN
        {
            return Ok(true);
        }
        self.pickled.buffers.push(raw.unbind());
        Ok(false)
    }
}

impl PickleFile {
    /// Whether `contents` is what the opcode written last announces, rather than opcodes.
    ///
    /// A plain link carries splices in clear, so nothing may become one that is executed on arrival. Large writes are
    /// either the contents of a `bytes` object behind its head, or whole frames, which begin with the FRAME opcode;
    /// contents that begin like a frame stay in the pickle.
    fn is_announced(&self, contents: &[u8]) -> bool {
        let pickle = &self.pickled.pickle;
        let long = pickle.len().checked_sub(9).map(|start| &pickle[start..]);
        let short = pickle.len().checked_sub(5).map(|start| &pickle[start..]);
        let length = contents.len() as u64;
        let announced = long
            .is_some_and(|head| head[0] == 0x8e && head[1..] == length.to_le_bytes())
            || short.is_some_and(|head| {
                head[0] == b'B'
                    && u64::from(u32::from_le_bytes([head[1], head[2], head[3], head[4]])) == length
            });
        announced && contents[0] != 0x95
    }
}

/// Decodes a record's value, each in its own format. Memory that is not part of it goes to `spent`, and for a result
/// (`is_result`) fresh memory in place of what is. `sender` is who made it, for errors.
///
/// # Security
/// A pickle is run: the caller has made sure that the record's origin allows one.
///
/// # Errors
/// What unpickling raises; `ResultRejectedError` when data isn't taken.
pub(crate) fn decode<'py>(
    py: Python<'py>,
    mut record: Record,
    sender: &str,
    is_result: bool,
    spent: &mut Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyAny>> {
    if record.format == Format::Data {
        return data::decode(py, &record.body, record.bulk, sender, spent);
    }
    if record.bulk.is_empty()
        && let Some(value) = read_fast(py, &record.body)?
    {
        return Ok(value);
    }
    if record.splices.len() == 1
        && record.bulk.len() == 1
        && record.splices[0] == 9
        && record.body.len() == 10
        && record.body[0] == 0x8e
        && record.body[1..9] == (record.bulk[0].len() as u64).to_le_bytes()
    {
        let value = memory::bytes_of(py, &record.bulk[0])?;
        spent.append(&mut record.bulk);
        return Ok(value.into_any());
    }
    let buffers: Vec<Vec<u8>> = record
        .bulk
        .split_off(record.splices.len().min(record.bulk.len()));
    if is_result {
        // The user keeps these; who receives the next ones shouldn't wait for the kernel to find as much again.
        spent.extend(buffers.iter().map(|buffer| memory::buffer_of(buffer.len())));
    }
    let buffers = PyList::new(
        py,
        buffers
            .into_iter()
            .map(OwnedBuffer::new)
            .collect::<Vec<_>>(),
    )?;
    let options = PyDict::new(py);
    options.set_item("buffers", buffers)?;
    if record.splices.is_empty() {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let loads = LOADS.import(py, "pickle", "loads")?;
        return loads.call((PyBytes::new(py, &record.body),), Some(&options));
    }
    static UNPICKLER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let unpickler = UNPICKLER.import(py, "pickle", "Unpickler")?;
    record
        .bulk
        .iter()
        .for_each(|part| memory::expect(part.len()));
    let file = Bound::new(py, SplicedFile::new(record))?;
    unpickler
        .call((file,), Some(&options))?
        .call_method0("load")
}

/// Reads what [`write_fast`] writes; none when the pickle needs the real unpickler.
pub(crate) fn read_fast<'py>(
    py: Python<'py>,
    pickle: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut reader = FastReader {
        pickle,
        position: 0,
    };
    // The common case, one scalar, needs no stack.
    let Some(first) = reader.value(py)? else {
        return Ok(None);
    };
    if reader.pickle.get(reader.position) == Some(&b'.') {
        return Ok((reader.position + 1 == pickle.len()).then_some(first));
    }
    let mut stack = vec![first];
    loop {
        match reader.pickle.get(reader.position) {
            Some(b'.') if stack.len() == 1 && reader.position + 1 == pickle.len() => {
                return Ok(stack.pop());
            }
            Some(code @ 0x85..=0x87) => {
                reader.position += 1;
                let size = usize::from(code - 0x84);
                let Some(start) = stack.len().checked_sub(size) else {
                    return Ok(None);
                };
                let tuple = PyTuple::new(py, stack.drain(start..).collect::<Vec<_>>())?;
                stack.push(tuple.into_any());
            }
            Some(_) => match reader.value(py)? {
                Some(value) => stack.push(value),
                None => return Ok(None),
            },
            None => return Ok(None),
        }
    }
}

struct FastReader<'a> {
    pickle: &'a [u8],
    position: usize,
}

impl<'a> FastReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self
            .pickle
            .get(self.position..self.position.checked_add(count)?)?;
        self.position += count;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn sized(&mut self, short: bool) -> Option<&'a [u8]> {
        let length = if short {
            usize::from(self.array::<1>()?[0])
        } else {
            u32::from_le_bytes(self.array()?) as usize
        };
        self.take(length)
    }

    /// One scalar; none when the opcode is another's business.
    fn value<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some([code]) = self.array::<1>() else {
            return Ok(None);
        };
        let number = match code {
            b'K' => self.array::<1>().map(|bytes| i64::from(bytes[0])),
            b'M' => self
                .array()
                .map(|bytes| i64::from(u16::from_le_bytes(bytes))),
            b'J' => self
                .array()
                .map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            0x8a if self.pickle.get(self.position) == Some(&8) => {
                self.position += 1;
                self.array().map(i64::from_le_bytes)
            }
            b'N' => return Ok(Some(py.None().into_bound(py))),
            b'G' => {
                let value = self.array().map(f64::from_be_bytes);
                return Ok(value.map(|value| PyFloat::new(py, value).into_any()));
            }
            0x88 | 0x89 => return Ok(Some(PyBool::new(py, code == 0x88).to_owned().into_any())),
            0x8c | b'X' => {
                let text = self
                    .sized(code == 0x8c)
                    .and_then(|bytes| std::str::from_utf8(bytes).ok());
                return Ok(text.map(|text| PyString::new(py, text).into_any()));
            }
            b'C' | b'B' => {
                return Ok(self
                    .sized(code == b'C')
                    .map(|bytes| PyBytes::new(py, bytes).into_any()));
            }
            b')' => return Ok(Some(PyTuple::empty(py).into_any())),
            b'}' => return Ok(Some(PyDict::new(py).into_any())),
            _ => return Ok(None),
        };
        number
            .map(|number| Ok(number.into_pyobject(py)?.into_any()))
            .transpose()
    }
}

/// The file that the unpickler reads: pickle and splices in turn, the latter straight into the objects they become.
#[pyclass]
struct SplicedFile {
    record: Record,
    /// Position in the pickle.
    position: usize,
    /// The splice that comes next, and how much of it has been read.
    splice: usize,
    spliced: usize,
}

impl SplicedFile {
    fn new(record: Record) -> Self {
        Self {
            record,
            position: 0,
            splice: 0,
            spliced: 0,
        }
    }

    /// Up to `wanted` bytes that lie together.
    fn chunk(&mut self, wanted: usize) -> &[u8] {
        while let Some(offset) = self.record.splices.get(self.splice) {
            let offset = *offset as usize;
            if self.position < offset {
                let end = offset.min(self.position + wanted);
                let start = std::mem::replace(&mut self.position, end);
                return &self.record.body[start..end];
            }
            let length = self.record.bulk[self.splice].len();
            if self.spliced < length {
                let end = length.min(self.spliced + wanted);
                let start = std::mem::replace(&mut self.spliced, end);
                return &self.record.bulk[self.splice][start..end];
            }
            self.splice += 1;
            self.spliced = 0;
        }
        let end = self.record.body.len().min(self.position + wanted);
        let start = std::mem::replace(&mut self.position, end);
        &self.record.body[start..end]
    }

    fn collect(&mut self, size: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(size.min(BULK_BYTES_MIN));
        while out.len() < size {
            let chunk = self.chunk(size - out.len());
            if chunk.is_empty() {
                break;
            }
            out.extend_from_slice(chunk);
        }
        out
    }
}

#[pymethods]
impl SplicedFile {
    fn read<'py>(&mut self, py: Python<'py>, size: usize) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.collect(size))
    }

    fn readinto(&mut self, target: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = pyo3::buffer::PyBuffer::<u8>::get(target)?;
        let wanted = buffer.len_bytes();
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "got a read-only buffer, expected a writable one",
            ));
        }
        let address = buffer.buf_ptr().cast::<u8>();
        let mut filled = 0;
        while filled < wanted {
            let chunk = self.chunk(wanted - filled);
            if chunk.is_empty() {
                break;
            }
            // SAFETY: the exported buffer is writable, contiguous and `wanted` bytes long, and `chunk` is at most what
            // is left of it; the chunk is memory of our own, so the two don't overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), address.add(filled), chunk.len())
            };
            filled += chunk.len();
        }
        Ok(filled)
    }

    fn readline<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut line = Vec::new();
        loop {
            let chunk = self.chunk(1);
            let Some(byte) = chunk.first().copied() else {
                break;
            };
            line.push(byte);
            if byte == b'\n' {
                break;
            }
        }
        PyBytes::new(py, &line)
    }
}
