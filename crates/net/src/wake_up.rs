//! Wakes threads that wait for a socket, for another reason than the socket's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Looked at by threads that wait, beside their sockets.
#[derive(Debug)]
pub(crate) struct WakeUp {
    event: OwnedFd,
    is_raised: AtomicBool,
}

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let is_raised = AtomicBool::new(false);
        Ok(Self { event, is_raised })
    }

    /// Wakes all who wait, and whoever waits from now on, until it is taken.
    pub(crate) fn raise(&self) {
        if !self.is_raised.swap(true, Ordering::SeqCst) {
            // It is raised already when it can't count further.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes it back. What it was raised for is to be looked at afterwards.
    pub(crate) fn take(&self) {
        if self.is_raised.load(Ordering::SeqCst) {
            // Another thread may have taken it.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            self.is_raised.store(false, Ordering::SeqCst);
        }
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn wakes(wake_up: &WakeUp) -> bool {
        let mut waits = [PollFd::new(wake_up, PollFlags::IN)];
        poll(&mut waits, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn it_wakes_until_it_is_taken() {
        let wake_up = WakeUp::new().unwrap();
        assert!(!wakes(&wake_up));
        wake_up.raise();
        wake_up.raise();
        assert!(wakes(&wake_up));
        wake_up.take();
        assert!(!wakes(&wake_up));
        wake_up.take();
        wake_up.raise();
        assert!(wakes(&wake_up));
    }
}
