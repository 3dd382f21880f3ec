//! A slot is told by SIGTERM to finish what runs and leave. Told twice, or by SIGHUP, it leaves at once. (The supervisor uses SIGHUP: of
//! two signals of one kind that follow closely, one may be lost.)
//!
//! The signals are taken by a handler that wakes the I/O thread, since the interpreter may be in the middle of a long call. A child that a
//! task has forked has no session to leave: there the signals do what they always do. The same holds for a task that ends its own
//! process by one. SIGINT does nothing here: it comes by the group of the user's processes, and whoever starts slots ends them.
#![allow(
    unsafe_code,
    reason = "signal handlers have no safe wrapper, nor has tokio's way to wait for a descriptor of ours"
)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often this process was told.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// As often as makes it leave at once.
const TWICE: u32 = 2;

/// What wakes the I/O thread.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// The number of the process that is a slot. A child that it has forked has another from its first moment on, when nothing else in it
/// says yet that it is one.
static SLOT: AtomicI32 = AtomicI32::new(0);

/// Waits for word that the slot is to leave.
pub(crate) struct LeaveSignal {
    wake: AsyncFd<OwnedFd>,
    seen: u32,
}

/// Takes the signals of this process, which runs tasks and nothing else. What it gives is for the runtime of
/// [`LeaveSignal::new`].
///
/// # Errors
/// When there is no descriptor left.
pub(crate) fn take_signals() -> io::Result<OwnedFd> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let own = rustix::process::getpid();
    SLOT.store(own.as_raw_nonzero().get(), Ordering::SeqCst);
    WAKE.store(wake.as_raw_fd(), Ordering::SeqCst);
    handle(libc::SIGTERM, on_terminate as *const () as usize)?;
    handle(libc::SIGHUP, on_terminate as *const () as usize)?;
    handle(libc::SIGINT, on_interrupt as *const () as usize)?;
    Ok(wake)
}

impl LeaveSignal {
    /// On the runtime that is entered.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn new(wake: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` stays valid and the same for as long as it is registered.
        let wake = unsafe { AsyncFd::register_with_interest(wake, Interest::READABLE)? };
        Ok(Self { wake, seen: 0 })
    }

    /// Waits until the slot is told once more. It may be cancelled: nothing is lost.
    pub(crate) async fn told(&mut self) {
        while self.seen == TOLD.load(Ordering::SeqCst) {
            match self.wake.readable().await {
                Ok(mut ready) => {
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    ready.clear_ready();
                }
                // The runtime is on its way out.
                Err(_) => std::future::pending().await,
            }
        }
        self.seen += 1;
    }
}

fn handle(signal: i32, handler: usize) -> io::Result<()> {
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // Calls of tasks go on where they were.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the structure is filled in, and the handlers do only what is allowed in one.
    match unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_interrupt(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

extern "C" fn on_terminate(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a handler of this kind a valid `info`. What is called here may be called in handlers, and the
    // interrupted code finds its error number as it was.
    unsafe {
        let error = *libc::__errno_location();
        let own = libc::getpid();
        if own == SLOT.load(Ordering::SeqCst) && own != (*info).si_pid() {
            let times = if signal == libc::SIGHUP { TWICE } else { 1 };
            TOLD.fetch_add(times, Ordering::SeqCst);
            let one = 1_u64;
            libc::write(WAKE.load(Ordering::SeqCst), (&raw const one).cast(), 8);
        } else {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        *libc::__errno_location() = error;
    }
}
