//! What carries the bytes of one session: reading and writing, who is told that there is something to read, and where the
//! other end is.
//!
//! Whoever drives a session doesn't see which kind it is.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use exoskel_link::Side;
use exoskel_link::handshake::Path;
use tokio::io::Interest;

use crate::epoll_set::{EpollSet, Telling, wait_here};
use crate::ring::MemoryRings;
use crate::ring::passing::PassedMemory;
use crate::socket::Socket;
use crate::wake_up::WakeUp;

/// Names the running kernel: a random number that it draws when it starts, the same in all of its containers.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";

/// A connected byte stream under a session.
#[derive(Debug)]
pub enum Transport {
    /// A connected socket.
    Stream(Socket),
    /// Shared memory, beside the Unix socket over which the two ends have met.
    Ring(Box<MemoryRings>),
}

impl Transport {
    /// Goes on as the transport of a session, through memory that the two ends share, where there is some. `side` is this end.
    ///
    /// # Errors
    /// When the system can't tell us of forks, or has no memory left to watch it.
    pub(crate) fn through(self, memory: Option<PassedMemory>, side: Side) -> io::Result<Self> {
        let Self::Stream(socket) = self else {
            return Ok(self);
        };
        Ok(match memory {
            Some(memory) => Self::Ring(Box::new(MemoryRings::new(
                socket.unwatched(),
                memory,
                side,
            )?)),
            None => Self::Stream(socket.watched_for_room()?),
        })
    }

    /// The socket that it is, or that stands beside it.
    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Self::Stream(socket) => socket,
            Self::Ring(ring) => ring.doorbell(),
        }
    }

    /// What tells a session's task that there is something to read. It takes a descriptor more, which nobody gets before it has proved who
    /// it is.
    ///
    /// # Errors
    /// When the process is out of descriptors, or no runtime is running.
    pub(crate) fn readiness(&self) -> io::Result<EpollSet> {
        EpollSet::new(self.socket())
    }

    /// Its kind, in a word for tables.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Stream(socket) => socket.transport(),
            Self::Ring(_) => "shared memory",
        }
    }

    /// Where the peer is, for messages to people: see [`Socket::peer_text`].
    #[must_use]
    pub fn peer_text(&self) -> String {
        self.socket().peer_text()
    }

    /// The address pair (ours, the peer's) as this side observes it, if there is one.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.socket().addresses()
    }

    /// The path at which one of us listens, if there is one: see [`Socket::unix_path`].
    #[must_use]
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.socket().unix_path()
    }

    /// How this end sees the way to the other: the proof of place, as far as one end has it. Only the kernel's word about a Unix socket
    /// counts as the same host.
    #[must_use]
    pub fn path(&self) -> Path {
        let socket = self.socket();
        if let Some((local, remote)) = socket.addresses() {
            return Path::Network { local, remote };
        }
        match std::fs::read(MACHINE) {
            Ok(machine) if socket.proven_same_host() => {
                let name = socket.unix_path().unwrap_or_default();
                Path::same_host(machine.trim_ascii_end(), name.as_os_str().as_bytes())
            }
            // A machine that can't be named is nobody's.
            _ => Path::Relayed,
        }
    }

    /// The socket, if that is all there is to it.
    pub(crate) fn into_socket(self) -> Option<Socket> {
        match self {
            Self::Stream(socket) => Some(socket),
            Self::Ring(_) => None,
        }
    }

    /// Reads exactly `buffer.len()` bytes of the socket and not one more: what follows belongs to somebody else. As what the next two do,
    /// this is for the handshake.
    pub(crate) async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        self.socket().read_exact(buffer).await
    }

    /// How many bytes of the socket can be read now.
    pub(crate) fn readable_bytes(&self) -> usize {
        let bytes = rustix::io::ioctl_fionread(self.socket());
        bytes.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Writes all of it to the socket, however long that takes.
    pub(crate) async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.socket().write_all(bytes).await
    }

    /// Waits until the peer has sent something over the socket, or ended; takes nothing.
    pub(crate) async fn heard(&self) -> io::Result<()> {
        self.socket().heard().await
    }

    /// Waits as a task until some bytes can be written. `readiness` tells it of what comes, which may have to do with that.
    pub(crate) async fn writable(&self, readiness: &EpollSet) -> io::Result<()> {
        match self {
            Self::Stream(socket) => socket.ready(Interest::WRITABLE).await,
            Self::Ring(ring) => ring.writable(readiness).await,
        }
    }

    /// Says what a task is told of from now on.
    pub(crate) fn tell_task(&self, readiness: &EpollSet, telling: Telling) -> io::Result<()> {
        match self {
            Self::Stream(socket) => readiness.tell(socket, telling),
            Self::Ring(ring) => ring.tell_task(readiness, telling),
        }
    }

    /// Waits on the calling thread until there is something to read or the peer has ended its direction, for at most `patience`, less
    /// when a signal comes or the wake-up is raised.
    pub(crate) fn wait_here(&self, patience: Duration, wake_up: Option<&WakeUp>) -> io::Result<()> {
        match self {
            Self::Stream(socket) => wait_here(socket, patience, wake_up),
            Self::Ring(ring) => ring.wait_here(patience, wake_up),
        }
    }

    /// For who waits here at several transports: from now on its socket tells of what comes. False when something is there already.
    pub(crate) fn fall_asleep(&self) -> io::Result<bool> {
        match self {
            Self::Stream(_) => Ok(true),
            Self::Ring(ring) => ring.fall_asleep(),
        }
    }

    /// Whoever has fallen asleep looks by itself again. `is_told`: its socket has told of something.
    pub(crate) fn wake(&self, is_told: bool) -> io::Result<()> {
        match self {
            Self::Stream(_) => Ok(()),
            Self::Ring(ring) => ring.wake(is_told),
        }
    }

    /// Reads what is there now, whatever a task has been told so far.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is, and others when it is broken.
    pub fn read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(socket) => socket.read_vectored(slices),
            Self::Ring(ring) => ring.read_vectored(slices),
        }
    }

    /// Writes what fits now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing does, and others when it is broken.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(socket) => socket.try_write_vectored(slices),
            Self::Ring(ring) => ring.try_write_vectored(slices),
        }
    }

    /// As [`read_vectored`](Self::read_vectored), for who asks again and again: nobody is told of what comes next.
    pub(crate) fn look_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(socket) => socket.read_vectored(slices),
            Self::Ring(ring) => ring.look_vectored(slices),
        }
    }

    /// As [`try_write_vectored`](Self::try_write_vectored), whatever the runtime knows of the socket so far.
    pub(crate) fn write_now(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(socket) => socket.write_vectored(slices),
            Self::Ring(ring) => ring.try_write_vectored(slices),
        }
    }

    /// Ends the writing side: the peer reads what was sent, then the end.
    pub(crate) fn shutdown_write(&self) {
        match self {
            Self::Stream(socket) => socket.shutdown_write(),
            Self::Ring(ring) => ring.shutdown_write(),
        }
    }

    /// Ends the reading side: whoever waits for it on this side sees the end.
    pub(crate) fn shutdown_read(&self) {
        match self {
            Self::Stream(socket) => socket.shutdown_read(),
            Self::Ring(ring) => ring.shutdown_read(),
        }
    }

    /// Ends the writing side, then reads and drops what comes until the peer ends its own, for at most `time` and `bytes_max`. So the peer
    /// reads what was written last: a close with unread bytes would reset the connection instead. `readiness` is a session's: its socket
    /// has nobody else to tell that something comes.
    pub(crate) async fn linger(
        &self,
        readiness: Option<&EpollSet>,
        time: Duration,
        bytes_max: usize,
    ) {
        self.shutdown_write();
        let Self::Stream(socket) = self else {
            // What was written stays in the memory for as long as the peer has it.
            return;
        };
        let drain = async {
            // Not an array: that would be part of every future that may come to this.
            let mut sink = vec![0; 4096];
            let mut left = bytes_max;
            while left > 0 {
                let room = left.min(sink.len());
                match socket.read_vectored(&mut [IoSliceMut::new(&mut sink[..room])]) {
                    Ok(0) => return,
                    // A peer that sends faster than this reads must not keep everybody else, and the clock, from their turn.
                    Ok(count) => {
                        left -= count;
                        tokio::task::yield_now().await;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let heard = match readiness {
                            Some(readiness) => readiness.heard().await,
                            None => socket.heard().await,
                        };
                        if heard.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(time, drain).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn who_sends_without_end_leaves_others_their_turn() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        while theirs.write(&[0; 1 << 16]).is_ok() {}
        let transport = Transport::Stream(Socket::unix(ours).unwrap());
        let socket = transport.socket();
        let mut left = 0;
        let other = async {
            left = rustix::io::ioctl_fionread(socket).unwrap();
            drop(theirs);
        };
        tokio::join!(transport.linger(None, Duration::MAX, usize::MAX), other);
        assert!(left > 0, "all was read before anybody else had a turn");
    }
}
