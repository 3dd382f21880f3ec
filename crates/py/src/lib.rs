//! The extension module `exoskel._core`: the only crate that knows Python.
//!
//! - `manager`, `stream`: a running manager and its streams as Python sees them; `turn`: threads that share one.
//! - `run`: how results go to a sink, each exactly once, with a journal on a file.
//! - `recording`: a trace of its messages.
//! - `shared_contents`: constants that many tasks use, sent once for each host.
//! - `slot`: the loop of a worker's process; `interrupt`: how an item is ended that runs for too long; `listener`: where its
//!   supervisor listens.
//! - `links`: a node of a program's own links; `job`: the authority of a job, and what its creator and agents decide.
//! - `pickle`, `buffer`: objects to records and back, without copies where it can be; `memory`: where large ones go.
//! - `data`: the same for answers of machines that aren't trusted, as plain data.
//! - `pki`, `policy`: certificates and policies for the command line; `identity`: grid credentials and whom a
//!   site trusts; `service`: servers that let grid users in; `gateway`: a node that connects networks.
//! - `discovery`: workers that announce themselves, and who hears them.
//! - `redistribution`: layouts of arrays, and plans of what moves between two.
//! - `sim`: the study of session-key caches; `import_trace`: traces of other tools for it.
//! - `confinement`: what holds a process of foreign code.
//! - `error`: exceptions; `fork`: what a forked child is told; `sibling`: forks children of the parent; `spawn`: starts programs; `at_exit`: threads that the interpreter leaves behind.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![allow(unsafe_code)]

mod at_exit;
mod buffer;
mod confinement;
mod data;
mod discovery;
mod error;
mod fork;
mod gateway;
mod identity;
mod import_trace;
mod interrupt;
mod item_note;
mod job;
mod keys;
mod links;
mod listener;
mod manager;
mod member;
mod memory;
mod options;
mod pickle;
mod pki;
mod policy;
mod recording;
mod redistribution;
mod run;
mod service;
mod shared_contents;
mod sibling;
mod sim;
mod skeleton;
mod slot;
mod spawn;
mod stream;
mod time;
mod turn;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<links::NodeHandle>()?;
    module.add_class::<links::StartpointHandle>()?;
    module.add_class::<links::PendingCall>()?;
    module.add_class::<links::LinkDriverHandle>()?;
    module.add_class::<links::LinkReloadHandle>()?;
    module.add_class::<links::LinkInboxHandle>()?;
    module.add_class::<links::LinkStreamHandle>()?;
    module.add_class::<links::LinkRegionHandle>()?;
    module.add_class::<links::LinkTransferHandle>()?;
    module.add_class::<links::LinkContentsHandle>()?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<manager::Manager>()?;
    module.add_class::<stream::MapStream>()?;
    module.add_class::<stream::SubmitStream>()?;
    module.add_class::<run::JournalledRun>()?;
    module.add_class::<slot::SlotOutput>()?;
    module.add_class::<interrupt::OverdueItem>()?;
    module.add_function(wrap_pyfunction!(manager::function_digest, module)?)?;
    module.add_function(wrap_pyfunction!(slot::check_worker, module)?)?;
    module.add_function(wrap_pyfunction!(slot::serve_signer, module)?)?;
    module.add_function(wrap_pyfunction!(slot::serve_slot, module)?)?;
    module.add_function(wrap_pyfunction!(keys::check_key_memory, module)?)?;
    module.add_function(wrap_pyfunction!(fork::adopt_orphans, module)?)?;
    module.add_function(wrap_pyfunction!(fork::end_descendants, module)?)?;
    module.add_function(wrap_pyfunction!(fork::follow_parent, module)?)?;
    module.add_function(wrap_pyfunction!(fork::name_process, module)?)?;
    module.add_function(wrap_pyfunction!(fork::hide_process, module)?)?;
    module.add_function(wrap_pyfunction!(spawn::spawn_program, module)?)?;
    module.add_function(wrap_pyfunction!(sibling::fork_sibling, module)?)?;
    module.add_function(wrap_pyfunction!(sibling::overwrite_environment, module)?)?;
    module.add_function(wrap_pyfunction!(listener::read_host, module)?)?;
    module.add_function(wrap_pyfunction!(confinement::confine, module)?)?;
    module.add_function(wrap_pyfunction!(confinement::prepare_confinement, module)?)?;
    discovery::add(module)?;
    job::add(module)?;
    pki::add(module)?;
    policy::add(module)?;
    identity::add(module)?;
    service::add(module)?;
    gateway::add(module)?;
    shared_contents::add(module)?;
    redistribution::add(module)?;
    member::add(module)?;
    sim::add(module)?;
    import_trace::add(module)?;
    data::add(module)
}
