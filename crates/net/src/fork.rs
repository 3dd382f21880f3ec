//! Which process something belongs to. A forked child has the parent's memory and none of its threads: it must not seal a record, or the
//! parent's number would be sealed twice; and a lock that a thread of the parent held when the child was made is never opened there.
#![allow(unsafe_code, reason = "pthread_atfork has no safe wrapper")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A process, among its forebears. Process identifiers are given again, these are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnProcess {
    forks: u64,
}

/// The forks that lie between this process and the one that asked first.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

impl OwnProcess {
    /// This one.
    ///
    /// # Errors
    /// If the system can't tell us of forks, for want of memory.
    pub fn this() -> io::Result<Self> {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler counts, which is allowed at any time, and stays for as long as the process.
        let code =
            *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(count_fork)) });
        match code {
            0 => Ok(Self {
                forks: FORKS.load(Relaxed),
            }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// Whether it is the one that runs this.
    #[must_use]
    pub fn is_this(self) -> bool {
        self.forks == FORKS.load(Relaxed)
    }
}

/// What only one process may use. In its forked children it can't be reached, and isn't dropped either.
pub struct Owned<T> {
    process: OwnProcess,
    /// Away only while it is dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    /// This process's own.
    ///
    /// # Errors
    /// As [`OwnProcess::this`].
    pub fn new(value: T) -> io::Result<Self> {
        let process = OwnProcess::this()?;
        Ok(Self {
            process,
            value: Some(value),
        })
    }

    /// The value, in the process that it belongs to.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process.is_this())
    }

    /// As [`Self::get`], to change it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.process.is_this())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            std::mem::forget(self.value.take());
        }
    }
}
