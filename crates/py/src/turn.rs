//! One thread at a time: others wait for their turn, and the thread that has it is refused a second one.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// What only the thread may touch whose turn it is.
#[derive(Debug)]
pub(crate) struct TurnTaking<T> {
    value: Mutex<T>,
    /// The thread that has the turn, 0 if none has.
    holder: AtomicUsize,
    waiting: AtomicU32,
    gate: Mutex<()>,
    freed: Condvar,
}

/// A turn, until it is dropped.
pub(crate) struct HeldTurn<'a, T> {
    of: &'a TurnTaking<T>,
    /// Taken when the turn ends.
    value: Option<MutexGuard<'a, T>>,
}

impl<T: Send> TurnTaking<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            holder: AtomicUsize::new(0),
            waiting: AtomicU32::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        }
    }

    /// Waits for the turn of this thread.
    ///
    /// # Errors
    /// `ValueError` when this thread has it already, and what Ctrl-C raises.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<HeldTurn<'_, T>> {
        loop {
            if let Some(turn) = self.try_enter() {
                return Ok(turn);
            }
            if self.holder.load(Ordering::Relaxed) == this_thread() {
                return Err(PyValueError::new_err(
                    "this stream is being iterated by the same thread: its items can't ask for its results",
                ));
            }
            py.detach(|| self.wait());
            py.check_signals()?;
        }
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_enter(&self) -> Option<HeldTurn<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(HeldTurn {
            of: self,
            value: Some(value),
        })
    }

    /// Waits until the turn is free, or for a while.
    fn wait(&self) {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if matches!(self.value.try_lock(), Err(TryLockError::WouldBlock)) {
            drop(self.freed.wait_timeout(gate, PATIENCE));
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Drop for HeldTurn<'_, T> {
    fn drop(&mut self) {
        self.of.holder.store(0, Ordering::Relaxed);
        drop(self.value.take());
        if self.of.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.of.gate.lock());
            self.of.freed.notify_one();
        }
    }
}

impl<T> std::ops::Deref for HeldTurn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
            .as_ref()
            .expect("a turn has its value until it is dropped")
    }
}

impl<T> std::ops::DerefMut for HeldTurn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
            .as_mut()
            .expect("a turn has its value until it is dropped")
    }
}

/// A number that no other thread has while this one runs.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}
