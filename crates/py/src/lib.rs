//! The extension module `exoskel._core`: the only crate that knows Python.
//!
//! - `manager`, `stream`: a running manager and its streams as Python sees them.
//! - `recording`: a trace of its messages.
//! - `slot`: the loop of a worker's process; `listener`: where its supervisor listens.
//! - `pickle`, `buffer`: objects to records and back, without copies where it can be; `memory`: where large ones go.
//! - `data`: the same for answers of machines that aren't trusted, as plain data.
//! - `pki`, `policy`: certificates and policies for the command line; `identity`: grid credentials and whom a
//!   site trusts; `service`: servers that let grid users in.
//! - `sim`: the study of session-key caches; `import_trace`: traces of other tools for it.
//! - `error`: exceptions; `fork`: what a forked child is told.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![allow(unsafe_code)]

mod buffer;
mod data;
mod error;
mod fork;
mod identity;
mod import_trace;
mod keys;
mod listener;
mod manager;
mod memory;
mod options;
mod pickle;
mod pki;
mod policy;
mod recording;
mod service;
mod sim;
mod slot;
mod stream;
mod time;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<manager::Manager>()?;
    module.add_class::<stream::MapStream>()?;
    module.add_class::<stream::SubmitStream>()?;
    module.add_class::<slot::SlotOutput>()?;
    module.add_function(wrap_pyfunction!(slot::serve_slot, module)?)?;
    module.add_function(wrap_pyfunction!(keys::check_key_memory, module)?)?;
    module.add_function(wrap_pyfunction!(fork::end_descendants, module)?)?;
    pki::add(module)?;
    policy::add(module)?;
    identity::add(module)?;
    service::add(module)?;
    sim::add(module)?;
    import_trace::add(module)?;
    data::add(module)
}
