//! Plain data to Python objects, from the innermost outwards. The value was read whole before (`exoskel_data::Checked`), so
//! what goes wrong here is what Python alone knows: a date that isn't in the calendar, keys that are equal.

use exoskel_data::reader::Common;
use exoskel_data::{Fault, Item, Reader, tags};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PySet, PyString, PyTuple};

use super::keys::{Collisions, Kind, UNCOUNTED_MAX, UNCOUNTED_TEXTS_MAX};
use super::texts::Texts;
use crate::buffer::OwnedBuffer;
use crate::memory;

/// Makes one value.
pub(crate) struct Builder<'py, 'a> {
    py: Python<'py>,
    reader: Reader<'a>,
    parts: std::vec::IntoIter<Vec<u8>>,
    /// Memory of parts that were copied, or fresh memory in place of what the value keeps.
    spent: &'a mut Vec<Vec<u8>>,
    texts: Texts,
    /// Immutable sets that are being filled, one within the other.
    frozen: usize,
    /// Why there is no value, unless the interpreter knows.
    failure: Option<PyErr>,
}

impl<'py, 'a> Builder<'py, 'a> {
    /// A builder of the value that `reader` is at; `parts` are its bulk parts in order.
    pub(crate) fn new(
        py: Python<'py>,
        reader: Reader<'a>,
        parts: Vec<Vec<u8>>,
        spent: &'a mut Vec<Vec<u8>>,
    ) -> Self {
        Self {
            py,
            reader,
            parts: parts.into_iter(),
            spent,
            texts: Texts::take(),
            frozen: 0,
            failure: None,
        }
    }

    /// The next value. Recurses no deeper than the value was found to be nested.
    ///
    /// # Errors
    /// What Python says of a value that it can't make.
    pub(crate) fn value(&mut self) -> PyResult<Bound<'py, PyAny>> {
        match self.object() {
            Some(object) => Ok(object),
            None => Err(self.failure.take().unwrap_or_else(|| PyErr::fetch(self.py))),
        }
    }

    /// The next value, or none when `failure` or the interpreter has an error: a pointer goes from call to call in a register,
    /// a `Result` with an exception doesn't.
    fn object(&mut self) -> Option<Bound<'py, PyAny>> {
        let py = self.py;
        let item = match self.reader.next_item() {
            Ok(item) => item,
            Err(fault) => return self.fail(unexpected(fault)),
        };
        // SAFETY: each call gives a new reference, or null with an exception set.
        let made = unsafe {
            match item {
                Item::Integer(value) => ffi::PyLong_FromLongLong(value),
                Item::Float(value) => ffi::PyFloat_FromDouble(value),
                Item::Text(utf8) => {
                    // A slice is never longer than `isize` can say.
                    ffi::PyUnicode_FromStringAndSize(
                        utf8.as_ptr().cast(),
                        utf8.len() as ffi::Py_ssize_t,
                    )
                }
                Item::Null => return Some(py.None().into_bound(py)),
                Item::Boolean(value) => return Some(PyBool::new(py, value).to_owned().into_any()),
                Item::Array(count) => return self.list(count),
                Item::Map(count) => return self.map(count),
                Item::Unsigned(value) => ffi::PyLong_FromUnsignedLongLong(value),
                Item::Bytes(bytes) => ffi::PyBytes_FromStringAndSize(
                    bytes.as_ptr().cast(),
                    bytes.len() as ffi::Py_ssize_t,
                ),
                Item::Negative(value) => match (-1 - i128::from(value)).into_pyobject(py) {
                    Ok(value) => return Some(value.into_any()),
                    Err(error) => return self.fail(error),
                },
                Item::Tag(tag) => match self.tagged(tag) {
                    Ok(value) => return Some(value),
                    Err(error) => return self.fail(error),
                },
            }
        };
        // SAFETY: as above.
        unsafe { Bound::from_owned_ptr_or_opt(py, made) }
    }

    /// The next value as `object` has it, as a new reference: the commonest of all have the shortest way.
    #[inline(always)]
    fn quick(&mut self) -> Option<*mut ffi::PyObject> {
        let Some(item) = self.reader.common_ahead() else {
            return self.object().map(Bound::into_ptr);
        };
        // SAFETY: each gives a new reference, or null with an exception set.
        let made = unsafe {
            match item {
                Common::Float(value) => ffi::PyFloat_FromDouble(value),
                Common::Integer(value) => ffi::PyLong_FromLongLong(value),
                Common::Text(utf8) => {
                    // Less than 256 bytes.
                    let length = utf8.len() as ffi::Py_ssize_t;
                    ffi::PyUnicode_FromStringAndSize(utf8.as_ptr().cast(), length)
                }
            }
        };
        (!made.is_null()).then_some(made)
    }

    #[cold]
    fn fail<T>(&mut self, error: impl Into<PyErr>) -> Option<T> {
        self.failure = Some(error.into());
        None
    }

    fn next_item(&mut self) -> PyResult<Item<'a>> {
        self.reader.next_item().map_err(unexpected)
    }

    fn list(&mut self, count: u64) -> Option<Bound<'py, PyAny>> {
        let length = match length(count) {
            Ok(length) => length,
            Err(error) => return self.fail(error),
        };
        // SAFETY: a new list with room for `length` items, which are set before anybody else sees it; a list that isn't full
        // yet may be dropped. `PyList_SetItem` takes the reference, and fails for no index within the length.
        unsafe {
            let list = Bound::from_owned_ptr_or_opt(self.py, ffi::PyList_New(length))?;
            for index in 0..length {
                let item = self.quick()?;
                ffi::PyList_SetItem(list.as_ptr(), index, item);
            }
            Some(list)
        }
    }

    fn tuple(&mut self, count: u64) -> Option<Bound<'py, PyAny>> {
        let length = match length(count) {
            Ok(length) => length,
            Err(error) => return self.fail(error),
        };
        // SAFETY: as for lists.
        unsafe {
            let tuple = Bound::from_owned_ptr_or_opt(self.py, ffi::PyTuple_New(length))?;
            for index in 0..length {
                let item = self.quick()?;
                ffi::PyTuple_SetItem(tuple.as_ptr(), index, item);
            }
            Some(tuple)
        }
    }

    fn map(&mut self, count: u64) -> Option<Bound<'py, PyAny>> {
        let dict = PyDict::new(self.py);
        let mut watch = Watch::new(Kind::Dict, count);
        for _ in 0..count {
            let key = match self.key() {
                Ok(key) => key,
                Err(error) => return self.fail(error),
            };
            if let Err(error) = watch.look(&key) {
                return self.fail(error);
            }
            let value = self.quick()?;
            // SAFETY: both are objects of ours, the dict is new; it takes references of its own, and ours to the value is given back.
            let is_set = unsafe {
                let status = ffi::PyDict_SetItem(dict.as_ptr(), key.as_ptr(), value);
                ffi::Py_DECREF(value);
                status == 0
            };
            if !is_set {
                return None;
            }
        }
        if dict.len() as u64 != count {
            return self.fail(twice());
        }
        Some(dict.into_any())
    }

    fn key(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let mut ahead = self.reader.clone();
        match ahead.next_item() {
            Ok(Item::Text(utf8)) => {
                self.reader = ahead;
                self.texts.key(self.py, utf8)
            }
            _ => self.value(),
        }
    }

    /// Puts the members that follow into a new set of either kind. A frozen one isn't made of a set that can change: the copy
    /// would have a table of another size, and members that nobody has counted would collide there.
    fn members(&mut self, set: &Bound<'py, PyAny>) -> PyResult<()> {
        let count = self.reader.array().map_err(unexpected)?;
        let mut watch = Watch::new(Kind::Set, count);
        for _ in 0..count {
            let member = self.key()?;
            watch.look(&member)?;
            // SAFETY: both are objects of ours; a frozen set may be filled as long as nobody else has seen it.
            if unsafe { ffi::PySet_Add(set.as_ptr(), member.as_ptr()) } != 0 {
                return Err(PyErr::fetch(self.py));
            }
        }
        if set.len()? as u64 != count {
            return Err(twice());
        }
        Ok(())
    }

    fn tagged(&mut self, tag: u64) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        Ok(match tag {
            tags::TUPLE => {
                let count = self.reader.array().map_err(unexpected)?;
                match self.tuple(count) {
                    Some(tuple) => tuple,
                    None => return Err(self.failure.take().unwrap_or_else(|| PyErr::fetch(py))),
                }
            }
            tags::SET => {
                let set = PySet::empty(py)?.into_any();
                self.members(&set)?;
                set
            }
            tags::FROZEN_SET => {
                // SAFETY: without an argument it is a new, empty frozen set.
                let set = unsafe {
                    Bound::from_owned_ptr_or_err(py, ffi::PyFrozenSet_New(std::ptr::null_mut()))?
                };
                self.frozen += 1;
                if self.frozen > FROZEN_MAX {
                    return Err(PyValueError::new_err(
                        "got immutable sets within immutable sets of more than 2 levels, expected fewer: comparing them takes the power of their levels",
                    ));
                }
                self.members(&set)?;
                self.frozen -= 1;
                set
            }
            tags::BIG_POSITIVE | tags::BIG_NEGATIVE => self.big_integer(tag)?,
            tags::PART => {
                let part = self.part()?;
                let bytes = memory::bytes_of(py, &part)?;
                self.spent.push(part);
                bytes.into_any()
            }
            tags::BYTE_ARRAY => PyByteArray::new(py, &self.contents()?).into_any(),
            tags::COMPLEX => {
                self.reader.array().map_err(unexpected)?;
                let real = self.reader.float().map_err(unexpected)?;
                let imaginary = self.reader.float().map_err(unexpected)?;
                PyComplex::from_doubles(py, real, imaginary).into_any()
            }
            tags::SURROGATE_TEXT => {
                let bytes = self.reader.bytes().map_err(unexpected)?;
                PyString::from_encoded_object(
                    &PyBytes::new(py, bytes),
                    Some(c"utf-8"),
                    Some(c"surrogatepass"),
                )?
                .into_any()
            }
            tags::ARRAY => self.array()?,
            tags::SCALAR => {
                self.reader.array().map_err(unexpected)?;
                let elements = self.elements()?;
                let contents = self.reader.bytes().map_err(unexpected)?.to_vec();
                let array = self.numpy_array(&elements, &PyTuple::empty(py), 0, contents)?;
                array.get_item(PyTuple::empty(py))?
            }
            other => {
                static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let content = self.value()?;
                let make = MAKE.import(py, "exoskel.results", "make")?;
                make.call1((other, content))?
            }
        })
    }

    fn big_integer(&mut self, tag: u64) -> PyResult<Bound<'py, PyAny>> {
        static FROM_BYTES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = self.py;
        let from_bytes = FROM_BYTES.get_or_try_init(py, || {
            Ok::<_, PyErr>(
                py.get_type::<pyo3::types::PyInt>()
                    .getattr("from_bytes")?
                    .unbind(),
            )
        })?;
        let bytes = self.reader.bytes().map_err(unexpected)?;
        let value = from_bytes
            .bind(py)
            .call1((PyBytes::new(py, bytes), "big"))?;
        if tag == tags::BIG_NEGATIVE {
            return value.bitnot();
        }
        Ok(value)
    }

    fn array(&mut self) -> PyResult<Bound<'py, PyAny>> {
        self.reader.array().map_err(unexpected)?;
        let elements = self.elements()?;
        let dimensions = self.reader.array().map_err(unexpected)?;
        let shape = (0..dimensions)
            .map(|_| self.reader.length().map_err(unexpected))
            .collect::<PyResult<Vec<u64>>>()?;
        let shape = PyTuple::new(self.py, shape)?;
        let order = self.reader.length().map_err(unexpected)?;
        let contents = self.contents()?;
        self.numpy_array(&elements, &shape, order, contents)
    }

    /// An array over memory of its own, which was found to fit.
    fn numpy_array(
        &self,
        elements: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyTuple>,
        order: u64,
        contents: Vec<u8>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = self.py;
        let array = ARRAY.import(py, "numpy", "ndarray")?;
        let order = if order == 0 { "C" } else { "F" };
        if contents.is_empty() {
            // NumPy takes no buffer without bytes.
            let options = PyDict::new(py);
            options.set_item("order", order)?;
            return array.call((shape, elements), Some(&options));
        }
        let buffer = Bound::new(py, OwnedBuffer::new(contents))?;
        array.call1((shape, elements, buffer, 0, py.None(), order))
    }

    /// The type of an array's elements.
    fn elements(&mut self) -> PyResult<Bound<'py, PyAny>> {
        static ELEMENTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static KNOWN: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        let py = self.py;
        let description = self.key()?;
        let known = KNOWN.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
        let is_text = description.cast_exact::<PyString>().is_ok();
        if is_text && let Some(elements) = known.get_item(&description)? {
            return Ok(elements);
        }
        let elements = ELEMENTS
            .import(py, "exoskel.result_arrays", "elements")?
            .call1((&description,))?;
        // A stranger must not be able to fill memory with descriptions.
        if is_text && known.len() < DESCRIPTIONS_MAX {
            known.set_item(&description, &elements)?;
        }
        Ok(elements)
    }

    /// Bytes that stand here or beside the record, as memory of our own.
    fn contents(&mut self) -> PyResult<Vec<u8>> {
        match self.next_item()? {
            Item::Bytes(bytes) => Ok(bytes.to_vec()),
            Item::Tag(tags::PART) => {
                let part = self.part()?;
                // The user keeps it; who receives the next one shouldn't wait for the kernel to find as much again.
                self.spent.push(memory::buffer_of(part.len()));
                Ok(part)
            }
            other => Err(PyValueError::new_err(format!(
                "got {}, expected bytes",
                other.kind()
            ))),
        }
    }

    fn part(&mut self) -> PyResult<Vec<u8>> {
        self.reader.length().map_err(unexpected)?;
        self.parts
            .next()
            .ok_or_else(|| PyValueError::new_err("got fewer bulk parts than places for them"))
    }
}

/// Immutable sets within immutable sets. Two that collide are compared member by member, and so are the sets in them: each level
/// multiplies the time by more than it does the bytes.
const FROZEN_MAX: usize = 2;

/// Descriptions of elements that are kept.
const DESCRIPTIONS_MAX: usize = 256;

/// Looks at the keys of one container as they come.
struct Watch {
    kind: Kind,
    /// As many keys as need no counting have come, or the container is so small that none does.
    is_counted: bool,
    collisions: Option<Collisions>,
    is_large: bool,
}

impl Watch {
    fn new(kind: Kind, count: u64) -> Self {
        Self {
            kind,
            is_counted: count > UNCOUNTED_MAX as u64,
            collisions: None,
            is_large: count > UNCOUNTED_TEXTS_MAX as u64,
        }
    }

    #[inline]
    fn look(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if !self.is_counted
            || !self.is_large
                && (key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyBytes>())
        {
            return Ok(());
        }
        let kind = self.kind;
        let collisions = self.collisions.get_or_insert_with(|| Collisions::new(kind));
        if collisions.insert(key.hash()?) {
            return Ok(());
        }
        Err(PyValueError::new_err(
            "got keys of a dict or members of a set that collide too often, expected what an honest program makes: use text as keys",
        ))
    }
}

fn twice() -> PyErr {
    PyValueError::new_err("got the same key of a dict or member of a set twice")
}

fn length(count: u64) -> PyResult<ffi::Py_ssize_t> {
    ffi::Py_ssize_t::try_from(count)
        .map_err(|_| PyValueError::new_err("got a container larger than the address space"))
}

/// The value was read before, so this doesn't happen; and if it does, it is an error like any other.
fn unexpected(fault: Fault) -> PyErr {
    PyValueError::new_err(fault.to_string())
}
