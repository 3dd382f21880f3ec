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
use crate::wake_up::WakeUp;

/// What a task is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Nothing.
    Nothing,
    /// That the socket has something to read.
    Bytes,
    /// As before, and once in any case: something is there already.
    Now,
}

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
        Ok(Self {
            set: watched(set, Interest::READABLE)?,
        })
    }

    /// Waits as a task. The guard is to be cleared when a read found nothing more.
    pub(crate) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.set.readable().await
    }

    /// Waits as a task until something has come since it was last told.
    pub(crate) async fn heard(&self) -> io::Result<()> {
        self.readable().await?.clear_ready();
        Ok(())
    }

    /// Says what the task is told of from now on.
    pub(crate) fn tell(&self, socket: &Socket, telling: Telling) -> io::Result<()> {
        let wanted = match telling {
            Telling::Nothing => epoll::EventFlags::empty(),
            Telling::Bytes => epoll::EventFlags::IN,
            // There is room in the socket, or there will be when the peer has read. The runtime looks for changes only, so this
            // doesn't go on telling.
            Telling::Now => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        };
        let data = epoll::EventData::new_u64(0);
        if telling == Telling::Now {
            // The end of a peer may have put it on the set's list of what is ready, and kept it there.
            epoll::delete(&self.set, socket)?;
            epoll::add(&self.set, socket, data, wanted)?;
            return Ok(());
        }
        epoll::modify(&self.set, socket, data, wanted)?;
        if telling == Telling::Nothing {
            // Takes the socket off the set's list of what is ready: the kernel tells of what is ready again only when it puts it there.
            let mut ready = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }];
            epoll::wait(&self.set, &mut ready[..], Some(&Timespec::default()))?;
        }
        Ok(())
    }
}

/// A descriptor of which the current runtime hears.
pub(crate) fn watched(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe code, which this crate has none of, to ask for what an OwnedFd gives"
    )]
    AsyncFd::with_interest(descriptor, interest)
}

/// Waits on the calling thread until the socket has something to read or has ended, for at most `patience`, less when a
/// signal comes or the wake-up is raised.
pub(crate) fn wait_here(
    socket: &Socket,
    patience: Duration,
    wake_up: Option<&WakeUp>,
) -> io::Result<()> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let socket = PollFd::new(socket, PollFlags::IN);
    let woken = match wake_up {
        None => poll(&mut [socket], Some(&patience)),
        Some(wake_up) => {
            let wake_up = PollFd::new(wake_up, PollFlags::IN);
            poll(&mut [socket, wake_up], Some(&patience))
        }
    };
    match woken {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// As [`wait_here`], at several sockets. Says which of them have something to read or have ended.
pub(crate) fn wait_at(
    sockets: &[&Socket],
    patience: Duration,
    wake_up: &WakeUp,
) -> io::Result<Vec<bool>> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    let sockets = sockets.iter().map(|one| PollFd::new(*one, PollFlags::IN));
    let mut waits: Vec<_> = sockets
        .chain([PollFd::new(wake_up, PollFlags::IN)])
        .collect();
    match poll(&mut waits, Some(&patience)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    waits.pop();
    Ok(waits.iter().map(|one| !one.revents().is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    async fn is_told(set: &EpollSet) {
        let told = tokio::time::timeout(Duration::from_secs(10), set.readable());
        told.await.expect("the task is told").unwrap().clear_ready();
    }

    #[tokio::test]
    async fn a_task_is_told_of_what_came_while_a_thread_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut reading = ours.try_clone().unwrap();
        let ours = Socket::unix(ours).unwrap();
        let set = EpollSet::new(&ours).unwrap();
        for _ in 0..3 {
            theirs.write_all(b"1").unwrap();
            is_told(&set).await;
            set.tell(&ours, Telling::Nothing).unwrap();
            reading.read_exact(&mut [0]).unwrap();
            theirs.write_all(b"2").unwrap();
            set.tell(&ours, Telling::Bytes).unwrap();
            is_told(&set).await;
            reading.read_exact(&mut [0]).unwrap();
        }
    }
}
