//! The commonest arrays of NumPy to plain data, without a line of Python: whole numbers, floats, complex numbers and booleans of this machine's
//! order, the last index varying fastest. What isn't one of these, `exoskel.result_arrays` describes.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::buffer::ViewOwner;

/// An array's elements, shape and memory.
pub(super) struct PlainArray {
    /// As NumPy writes a type.
    pub(super) elements: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) contents: ViewOwner,
}

/// Takes an array apart, if it is one of these; none otherwise.
///
/// # Errors
/// What Python says, which is nothing of the array.
pub(super) fn plain_array(value: &Bound<'_, PyAny>) -> PyResult<Option<PlainArray>> {
    let py = value.py();
    if cfg!(target_endian = "big") || !is_array(value)? || has_form_of_its_own(py)? {
        return Ok(None);
    }
    // SAFETY: `value` is an object; it is a new reference, or null with an exception set.
    let view = unsafe {
        let view = ffi::PyMemoryView_FromObject(value.as_ptr());
        Bound::from_owned_ptr_or_opt(py, view)
    };
    let Some(view) = view else {
        // Of dates, for example, there is no view.
        drop(PyErr::take(py));
        return Ok(None);
    };
    // One of no dimensions has no shape.
    let Ok(buffer) = PyUntypedBuffer::get(&view) else {
        return Ok(None);
    };
    let elements = elements_of(buffer.format().to_bytes(), buffer.item_size());
    let is_plain = buffer.is_c_contiguous() && buffer.len_bytes() > 0;
    let Some(elements) = elements.filter(|_| is_plain) else {
        return Ok(None);
    };
    let shape = buffer.shape().to_vec();
    let (address, length) = (buffer.buf_ptr(), buffer.len_bytes());
    buffer.release(py);
    // SAFETY: the view is ours alone and keeps the array's memory exported, `length` bytes from this address on.
    let contents = unsafe { ViewOwner::of(view, address.cast_const().cast(), length) };
    Ok(Some(PlainArray {
        elements,
        shape,
        contents,
    }))
}

/// The elements by the words of the buffer protocol.
fn elements_of(format: &[u8], size: usize) -> Option<&'static str> {
    Some(match (format, size) {
        (b"?", 1) => "|b1",
        (b"b", 1) => "|i1",
        (b"B", 1) => "|u1",
        (b"h" | b"i" | b"l" | b"q", 2) => "<i2",
        (b"h" | b"i" | b"l" | b"q", 4) => "<i4",
        (b"h" | b"i" | b"l" | b"q", 8) => "<i8",
        (b"H" | b"I" | b"L" | b"Q", 2) => "<u2",
        (b"H" | b"I" | b"L" | b"Q", 4) => "<u4",
        (b"H" | b"I" | b"L" | b"Q", 8) => "<u8",
        (b"e", 2) => "<f2",
        (b"f", 4) => "<f4",
        (b"d", 8) => "<f8",
        (b"Zf", 8) => "<c8",
        (b"Zd", 16) => "<c16",
        _ => return None,
    })
}

/// Whether it is an array of NumPy, and nothing that is derived from one.
fn is_array(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (py, kind) = (value.py(), value.get_type());
    if let Some(array) = ARRAY.get(py) {
        return Ok(kind.is(array));
    }
    if kind.module()? != "numpy" || kind.name()? != "ndarray" {
        return Ok(false);
    }
    Ok(kind.is(ARRAY.import(py, "numpy", "ndarray")?))
}

/// Whether the program has said how arrays travel.
fn has_form_of_its_own(py: Python<'_>) -> PyResult<bool> {
    static TABLES: PyOnceLock<[Py<PyDict>; 2]> = PyOnceLock::new();
    let tables = TABLES.get_or_try_init(py, || {
        let results = py.import("exoskel.results")?;
        let table = |name| Ok::<_, PyErr>(results.getattr(name)?.cast_into::<PyDict>()?.unbind());
        Ok::<_, PyErr>([
            table(intern!(py, "_registered"))?,
            table(intern!(py, "_installed"))?,
        ])
    })?;
    for table in tables {
        let table = table.bind(py);
        if !table.is_empty() && table.contains(("numpy", "ndarray"))? {
            return Ok(true);
        }
    }
    Ok(false)
}
