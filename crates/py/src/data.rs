//! Python objects to plain data and back: how answers travel that come from, or were touched by, a machine that isn't trusted.
//!
//! - `encode`: at a worker. What can't be sent is said there, with the way to it and what to return instead. `arrays`: the commonest arrays.
//! - `build`: at whoever reads. `exoskel_data` has read and weighed all of it by then; objects are made from the innermost outwards.
//! - `keys`: keys that are meant to collide; `texts`: keys that come again and again.

mod arrays;
mod build;
mod encode;
mod keys;
mod texts;

use std::collections::BTreeMap;

use bytes::Bytes;
use exoskel_data::reader::{CommonItem, utf8};
use exoskel_data::{Checked, CheckedException, DataItem, Reader, tags};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyList, PyString};

pub(crate) use build::ObjectBuilder;
pub(crate) use encode::DataEncoder;

use self::keys::Collisions;
use crate::error::{ExceptionKind, raise};

/// Values of more bytes are checked without the GIL.
const CHECKED_AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// A value by itself that needs no limits: a number, a short text, none. Anything else is none here.
pub(crate) fn read_small<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut reader = Reader::new(body);
    if let Some(CommonItem::Integer(value)) = reader.common_ahead()
        && reader.remaining() == 0
    {
        return Ok(Some(value.into_pyobject(py)?.into_any()));
    }
    let mut reader = Reader::new(body);
    let Ok(item) = reader.next_item() else {
        return Ok(None);
    };
    if reader.remaining() > 0 {
        return Ok(None);
    }
    Ok(Some(match item {
        DataItem::Null => py.None().into_bound(py),
        DataItem::Boolean(value) => pyo3::types::PyBool::new(py, value).to_owned().into_any(),
        DataItem::Integer(value) => value.into_pyobject(py)?.into_any(),
        DataItem::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        DataItem::Float(value) => PyFloat::new(py, value).into_any(),
        // What is no text is the whole reader's to refuse.
        DataItem::Text(bytes) => match utf8(bytes, 0) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => return Ok(None),
        },
        DataItem::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        DataItem::Negative(_) | DataItem::Array(_) | DataItem::Map(_) | DataItem::Tag(_) => {
            return Ok(None);
        }
    }))
}

/// Reads a value whole, then makes it. Parts that became bytes are left in `spent`.
///
/// # Errors
/// `ResultRejectedError`, whatever is wrong.
pub(crate) fn decode<'py>(
    py: Python<'py>,
    body: &[u8],
    parts: Vec<Vec<u8>>,
    sender: &str,
    spent: &mut Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyAny>> {
    decode_sent(py, body, parts, None, sender, spent)
}

/// The same for what may have been compressed, to so many bytes.
///
/// # Errors
/// `ResultRejectedError`, whatever is wrong.
pub(crate) fn decode_sent<'py>(
    py: Python<'py>,
    body: &[u8],
    parts: Vec<Vec<u8>>,
    compressed_bytes: Option<u64>,
    sender: &str,
    spent: &mut Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyAny>> {
    let check = || Checked::sent_as(body, &parts, compressed_bytes);
    let bulk: usize = parts.iter().map(Vec::len).sum();
    let checked = if body.len().saturating_add(bulk) > CHECKED_AT_ONCE_BYTES_MAX {
        py.detach(check)
    } else {
        check()
    };
    let checked = checked.map_err(|fault| rejected(py, sender, &fault.to_string()))?;
    let mut builder = ObjectBuilder::new(py, checked.reader(), parts, spent);
    builder.value().map_err(|error| outward(py, sender, error))
}

/// Reads an exception: its class, text and traceback lines, and what the program's own function made of it.
///
/// # Errors
/// `ResultRejectedError`, whatever is wrong.
pub(crate) fn decode_exception<'py>(
    py: Python<'py>,
    body: &[u8],
    sender: &str,
) -> PyResult<(String, String, Vec<String>, Bound<'py, PyAny>)> {
    let exception =
        CheckedException::new(body).map_err(|fault| rejected(py, sender, &fault.to_string()))?;
    let mut spent = Vec::new();
    let mut builder = ObjectBuilder::new(py, exception.data.reader(), Vec::new(), &mut spent);
    let data = builder
        .value()
        .map_err(|error| outward(py, sender, error))?;
    let lines = exception.traceback.iter().map(|line| (*line).to_owned());
    Ok((
        exception.kind.to_owned(),
        exception.text.to_owned(),
        lines.collect(),
        data,
    ))
}

/// The error for an answer that isn't taken.
pub(crate) fn rejected(py: Python<'_>, sender: &str, why: &str) -> PyErr {
    raise(
        py,
        ExceptionKind::ResultRejected,
        format!("the answer of {sender} isn't taken: {why}"),
    )
}

/// What making an object raised is a fault of the answer, and its text is ours; but what ends the program ends it.
fn outward(py: Python<'_>, sender: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<pyo3::exceptions::PyException>(py)
        || error.is_instance_of::<pyo3::exceptions::PyMemoryError>(py)
    {
        return error;
    }
    let text = error.value(py).to_string();
    let kind = error.get_type(py).name().map(|name| name.to_string());
    let why = format!(
        "{}: {}",
        kind.unwrap_or_default(),
        exoskel_identity::PeerText::new(&text)
    );
    let outer = rejected(py, sender, &why);
    // A traceback shows the texts of causes as they are: one that a stranger may have written stays here.
    if is_shown_as_it_is(py, &error) {
        outer.set_cause(py, Some(error));
    }
    outer
}

/// Whether an error, what it came of, and what it happened in, have texts that drive no terminal.
fn is_shown_as_it_is(py: Python<'_>, error: &PyErr) -> bool {
    const CAUSES_MAX: usize = 16;
    let is_plain = |value: &Bound<'_, PyAny>| {
        let printable = value
            .str()
            .and_then(|text| text.call_method0(intern!(py, "isprintable")));
        printable.is_ok_and(|printable| printable.is_truthy().unwrap_or(false))
    };
    let mut next = Some(error.value(py).clone().into_any());
    for _ in 0..CAUSES_MAX {
        let Some(value) = next else {
            return true;
        };
        let notes = value.getattr(intern!(py, "__notes__")).ok();
        if !is_plain(&value) || notes.is_some_and(|notes| !is_plain(&notes)) {
            return false;
        }
        let of = |name| value.getattr(name).ok().filter(|cause| !cause.is_none());
        next = of(intern!(py, "__cause__")).or_else(|| of(intern!(py, "__context__")));
    }
    false
}

/// Encodes values for the tests and benchmarks of this format: the record's body and its bulk parts.
///
/// # Errors
/// `ResultRejectedError` when the value can't be plain data.
#[pyfunction]
fn data_encode<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
    let mut encoder = DataEncoder::default();
    encoder.encode(value)?;
    let parts: Vec<Bytes> = encoder.take_bulk();
    Ok((
        PyBytes::new(py, encoder.body()),
        parts.iter().map(|part| PyBytes::new(py, part)).collect(),
    ))
}

/// Decodes what `data_encode` returns, or a stranger sent.
///
/// # Errors
/// `ResultRejectedError`, whatever is wrong.
#[pyfunction]
#[pyo3(signature = (body, parts=Vec::new(), sender="a worker"))]
fn data_decode<'py>(
    py: Python<'py>,
    body: &[u8],
    parts: Vec<Vec<u8>>,
    sender: &str,
) -> PyResult<Bound<'py, PyAny>> {
    if parts.is_empty()
        && let Some(value) = read_small(py, body)?
    {
        return Ok(value);
    }
    decode(py, body, parts, sender, &mut Vec::new())
}

/// The numbers of the tags that Python takes apart and puts together, by name.
#[pyfunction]
fn data_tags() -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("RANGE", tags::RANGE),
        ("SLICE", tags::SLICE),
        ("CONSTANT", tags::CONSTANT),
        ("DATE", tags::DATE),
        ("TIME", tags::TIME),
        ("DATE_TIME", tags::DATE_TIME),
        ("DURATION", tags::DURATION),
        ("TIME_ZONE", tags::TIME_ZONE),
        ("DECIMAL", tags::DECIMAL),
        ("FRACTION", tags::FRACTION),
        ("UUID", tags::UUID),
        ("PATH", tags::PATH),
        ("COUNTER", tags::COUNTER),
        ("ORDERED_MAP", tags::ORDERED_MAP),
        ("DEFAULT_MAP", tags::DEFAULT_MAP),
        ("DEQUE", tags::DEQUE),
        ("ARRAY", tags::ARRAY),
        ("SCALAR", tags::SCALAR),
        ("OBJECT_ARRAY", tags::OBJECT_ARRAY),
        ("REGISTERED", tags::REGISTERED),
        ("LIBRARY", tags::LIBRARY),
        ("EXCEPTION", tags::EXCEPTION),
    ])
}

/// Whether values can be put into a set one by one without colliding more than an honest program's do.
///
/// # Errors
/// What hashing raises.
#[pyfunction]
fn data_spreads(values: &Bound<'_, PyList>) -> PyResult<bool> {
    let mut collisions = Collisions::new(keys::KeyedContainer::Set);
    for value in values.iter() {
        if !collisions.insert(value.hash()?) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(data_tags, module)?)?;
    module.add_function(wrap_pyfunction!(data_spreads, module)?)?;
    module.add_function(wrap_pyfunction!(data_encode, module)?)?;
    module.add_function(wrap_pyfunction!(data_decode, module)?)
}
