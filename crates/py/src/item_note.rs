//! The note of an exception that says which item it belongs to.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What an exception is about.
pub(crate) enum Subject<'py> {
    /// Nothing to show.
    Unknown,
    /// The item, as the first function got it.
    Item(Bound<'py, PyAny>),
    /// A call: its function and its arguments, positional and by name.
    Call {
        function: Bound<'py, PyAny>,
        arguments: Bound<'py, PyAny>,
    },
    /// What a later function got.
    Argument {
        function: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    },
    /// A result that can't be sent.
    Result(Bound<'py, PyAny>),
}

impl Subject<'_> {
    /// The note, in which the item has no index yet.
    pub(crate) fn describe(self, py: Python<'_>) -> PyResult<String> {
        static DESCRIBE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (kind, value, function) = match self {
            Self::Unknown => return Ok(String::new()),
            Self::Item(value) => ("item", value, None),
            Self::Argument { function, value } => ("argument", value, Some(function)),
            Self::Call {
                function,
                arguments,
            } => ("call", arguments, Some(function)),
            Self::Result(value) => ("result", value, None),
        };
        let describe = DESCRIBE.import(py, "exoskel.short_text", "describe_subject")?;
        describe.call1((kind, value, function))?.extract()
    }
}

/// An exception with a note that names its item or its call.
pub(crate) fn with_note(
    py: Python<'_>,
    error: PyErr,
    item: Option<u64>,
    about: &str,
) -> PyResult<PyErr> {
    static ADD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let add = ADD.import(py, "exoskel.outcome", "add_item_note")?;
    add.call1((error.value(py), item, about))?;
    Ok(error)
}
