//! The keys of a process's sessions.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use aws_lc_rs::rand;
use exoskel_link::keys::{Geometry, ReadyKeys, room_for_sessions};
use exoskel_net::fork::OwnProcess;
use exoskel_net::key_memory::{MemoryProtection, NodeKeys};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{ExceptionKind, raise};

/// The most keys that are held ready: about 700 MB of expanded contexts.
const READY_KEYS_MAX: usize = 1 << 20;

/// What the managers of this process share, by the number of keys that they asked for: they run on the same processor.
/// A forked child has its own. (While this is locked nobody forks: its user has the interpreter's lock.)
static SHARED: Mutex<Vec<(OwnProcess, usize, Weak<ReadyKeys>)>> = Mutex::new(Vec::new());

/// The ready keys that all managers of this process share that asked for so many.
pub(crate) fn shared(most: usize) -> PyResult<Arc<ReadyKeys>> {
    if !(1..=READY_KEYS_MAX).contains(&most) {
        return Err(PyValueError::new_err(format!(
            "got ready_keys={most}, expected 1 .. {READY_KEYS_MAX}"
        )));
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|(process, _, ready)| process.is_this() && ready.strong_count() > 0);
    let known = shared.iter().filter(|(_, number, _)| *number == most);
    if let Some(ready) = known.filter_map(|(_, _, ready)| ready.upgrade()).next() {
        return Ok(ready);
    }
    let room = Geometry::fully_associative(most)
        .map_err(|error| PyValueError::new_err(format!("ready_keys: {error}")))?;
    let ready = ReadyKeys::new(room);
    shared.push((OwnProcess::this()?, most, Arc::downgrade(&ready)));
    Ok(ready)
}

/// The ready keys of a process that has one session at a time.
pub(crate) fn of_one_session() -> Arc<ReadyKeys> {
    ReadyKeys::new(room_for_sessions(1))
}

/// The keys of a node with so many sessions at a time, in memory of the kind that the user demands, if any.
pub(crate) fn keys(
    py: Python<'_>,
    ready: &Arc<ReadyKeys>,
    sessions: usize,
    demanded: Option<&str>,
) -> PyResult<NodeKeys> {
    let demanded = demanded
        .map(str::parse::<MemoryProtection>)
        .transpose()
        .map_err(|error| PyValueError::new_err(format!("key_memory: {error}")))?;
    NodeKeys::new(ready, sessions, demanded)
        .map_err(|error| raise(py, ExceptionKind::KeyMemory, error.to_string()))
}

/// A number for a job, so that no two are likely to have the same; never 0, which is none.
pub(crate) fn new_job() -> PyResult<u32> {
    let mut bytes = [0; 4];
    rand::fill(&mut bytes)
        .map_err(|_| PyRuntimeError::new_err("the system gave no random bytes"))?;
    Ok(u32::from_be_bytes(bytes).max(1))
}

/// Whether there is memory of this kind for keys: once, before each of many slots finds out.
///
/// # Errors
/// ``KeyMemoryError`` says why there is none, ``ValueError`` that there is no such kind.
#[pyfunction]
pub(crate) fn check_key_memory(py: Python<'_>, kind: &str) -> PyResult<()> {
    keys(py, &of_one_session(), 1, Some(kind)).map(drop)
}
