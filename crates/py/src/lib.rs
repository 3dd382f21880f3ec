//! The extension module exoskel._core: the only crate that knows Python.
