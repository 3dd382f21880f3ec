//! Who is told that a socket has something to read: the connection's task, or a thread that waits for it by itself.
//!
//! A thread that waits anyway is better woken by the kernel at once than by the task, which would have to be woken first.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::socket::Socket;

/// Tells a task of one socket's bytes.
///
/// It is an epoll set of its own inside the runtime's: whether the task is told is then a state in the kernel, which any
/// thread can change without waking the task.
#[derive(Debug)]
pub(crate) struct EpollSet {
    set: AsyncFd<OwnedFd>,
}

impl EpollSet {
    /// Begins to tell the task, which runs in the current runtime.
    pub(crate) fn new(socket: &Socket) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &set,
            socket,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe code, which this crate has none of, to ask for what an OwnedFd gives"
        )]
        let set = AsyncFd::with_interest(set, Interest::READABLE)?;
        Ok(Self { set })
    }

    /// Waits as a task. The guard is to be cleared when a read found nothing more.
    pub(crate) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.set.readable().await
    }

    /// Says whether the task is told from now on, also of what is there already.
    pub(crate) fn tell_task(&self, socket: &Socket, told: bool) -> io::Result<()> {
        let wanted = if told {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::empty()
        };
        epoll::modify(&self.set, socket, epoll::EventData::new_u64(0), wanted)?;
        Ok(())
    }
}

/// Waits on the calling thread until the socket has something to read or has ended, for at most `patience`, less when a
/// signal comes.
pub(crate) fn wait_here(socket: &Socket, patience: Duration) -> io::Result<()> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut sockets = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut sockets, Some(&patience)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
