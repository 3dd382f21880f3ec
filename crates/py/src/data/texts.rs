//! Text that comes again and again: the keys of dicts above all. What is found here is neither made nor hashed once more.

use std::cell::Cell;

use pyo3::ffi;
use pyo3::prelude::*;

/// Longer texts are seldom keys.
const BYTES_MAX: usize = 32;

/// Texts that a thread remembers; a power of two.
const TEXTS_MAX: usize = 1024;

thread_local! {
    static TEXTS: Cell<Vec<Option<KnownTexts>>> = const { Cell::new(Vec::new()) };
}

struct KnownTexts {
    length: u8,
    bytes: [u8; BYTES_MAX],
    text: Py<PyAny>,
}

impl KnownTexts {
    fn is(&self, utf8: &[u8]) -> bool {
        self.bytes.get(..usize::from(self.length)) == Some(utf8)
    }
}

/// The texts that this thread remembers, while one value is made; they go back when it is dropped.
pub(super) struct Texts(Vec<Option<KnownTexts>>);

impl Texts {
    /// None are known if a value is made within the making of another one.
    pub(super) fn take() -> Self {
        Self(TEXTS.take())
    }

    /// Text that is likely to come again. (Values are not looked for: that costs as much as making them.)
    pub(super) fn key<'py>(&mut self, py: Python<'py>, utf8: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        if utf8.len() > BYTES_MAX {
            return text(py, utf8);
        }
        if self.0.is_empty() {
            self.0.resize_with(TEXTS_MAX, || None);
        }
        let known = &mut self.0[place(utf8)];
        if let Some(known) = known
            && known.is(utf8)
        {
            return Ok(known.text.bind(py).clone());
        }
        let made = text(py, utf8)?;
        let mut bytes = [0; BYTES_MAX];
        bytes[..utf8.len()].copy_from_slice(utf8);
        *known = Some(KnownTexts {
            // At most BYTES_MAX.
            length: utf8.len() as u8,
            bytes,
            text: made.clone().unbind(),
        });
        Ok(made)
    }
}

impl Drop for Texts {
    fn drop(&mut self) {
        TEXTS.set(std::mem::take(&mut self.0));
    }
}

/// Text that is made once, used and gone.
pub(super) fn text<'py>(py: Python<'py>, utf8: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // A slice is never longer than `isize` can say.
    let length = utf8.len() as ffi::Py_ssize_t;
    // SAFETY: the bytes are there for as long as the call takes; what is no UTF-8 is an error.
    unsafe {
        let text = ffi::PyUnicode_FromStringAndSize(utf8.as_ptr().cast(), length);
        Bound::from_owned_ptr_or_err(py, text)
    }
}

/// A multiplicative hash, eight bytes at a time. Who makes texts collide only has them made anew each time, as without this table.
fn place(bytes: &[u8]) -> usize {
    let mut hash = bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = mixed(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The upper half is mixed best; the remainder is below the table's length.
    (mixed(hash, u64::from_le_bytes(last)) >> 32) as usize % TEXTS_MAX
}

fn mixed(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}
