//! An item that runs for too long, or that nobody needs any more, is interrupted: its thread gets a signal, whose handler asks here whether to raise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use exoskel_net::fork::Owned;
use exoskel_net::slot::SlotNode;
use pyo3::prelude::*;

/// The interpreter's thread; 0 if it is not known.
static THREAD: AtomicU64 = AtomicU64::new(0);

/// Whether the interpreter is in something that belongs to an item and that an exception can end. Only its own thread knows and
/// asks: handlers of signals run there.
static IS_INTERRUPTIBLE: AtomicBool = AtomicBool::new(false);

/// As long as it lives the running item can be interrupted.
pub(crate) struct Interruptible(());

impl Interruptible {
    pub(crate) fn begin() -> Self {
        IS_INTERRUPTIBLE.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        IS_INTERRUPTIBLE.store(false, Ordering::Relaxed);
    }
}

/// What the handler of the signal asks.
#[pyclass(frozen)]
pub(crate) struct OverdueItem(pub(crate) Owned<Arc<SlotNode>>);

#[pymethods]
impl OverdueItem {
    /// How many seconds the running item could run, if an exception must be raised in it now, or 0 if nobody needs it any more; only once for each.
    fn take(&self) -> Option<f64> {
        if !IS_INTERRUPTIBLE.load(Ordering::Relaxed) {
            return None;
        }
        let timeout = self.0.get()?.overdue_after()?;
        IS_INTERRUPTIBLE.store(false, Ordering::Relaxed);
        Some(timeout.as_secs_f64())
    }
}

/// This is the interpreter's thread.
pub(crate) fn prepare() {
    // SAFETY: a call without arguments that can't fail.
    let thread = unsafe { libc::pthread_self() };
    THREAD.store(thread, Ordering::Relaxed);
}

/// Interrupts what the interpreter's thread waits for, and has it run the signal's handler. Takes no lock and waits for nobody.
pub(crate) fn interrupt() {
    let thread = THREAD.load(Ordering::Relaxed);
    if thread != 0 {
        // SAFETY: the interpreter's thread is the process's first one, which is there as long as the process.
        unsafe { libc::pthread_kill(thread, libc::SIGRTMAX()) };
    }
}
