//! Text that comes again and again: the keys of dicts above all. What is found here is neither made nor hashed once more.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Longer texts are seldom keys.
const BYTES_MAX: usize = 32;

/// Texts that are remembered by a thread; a power of two.
const TEXTS_MAX: usize = 1024;

thread_local! {
    static TEXTS: RefCell<Vec<Option<Known>>> = const { RefCell::new(Vec::new()) };
}

struct Known {
    bytes: Box<[u8]>,
    text: Py<PyString>,
}

/// Text that is made once, used and gone.
pub(super) fn text<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyAny> {
    PyString::new(py, text).into_any()
}

/// Text that is likely to come again.
pub(super) fn key<'py>(py: Python<'py>, text: &str) -> Bound<'py, PyAny> {
    if text.len() > BYTES_MAX {
        return self::text(py, text);
    }
    TEXTS.with_borrow_mut(|texts| {
        if texts.is_empty() {
            texts.resize_with(TEXTS_MAX, || None);
        }
        let known = &mut texts[place(text.as_bytes())];
        if let Some(known) = known
            && *known.bytes == *text.as_bytes()
        {
            return known.text.bind(py).clone().into_any();
        }
        let made = PyString::new(py, text);
        *known = Some(Known {
            bytes: text.as_bytes().into(),
            text: made.clone().unbind(),
        });
        made.into_any()
    })
}

/// FNV-1a. Who makes texts collide only has them made anew each time, as without this table.
fn place(bytes: &[u8]) -> usize {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The upper half is mixed best; the remainder is below the table's length.
    (hash >> 32) as usize % TEXTS_MAX
}
