//! What carries the bytes of one session: reading and writing, who is told that there is something to read, and where the
//! other end is.
//!
//! A socket is the only kind so far. Whoever drives a session asks nothing of it that another kind couldn't give.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use exoskel_link::handshake::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFdReadyGuard;

use crate::epoll_set::{EpollSet, wait_here};
use crate::socket::Socket;

/// Names the running kernel: a random number that it draws when it starts, the same in all of its containers.
const MACHINE: &str = "/proc/sys/kernel/random/boot_id";

/// A connected byte stream under a session.
#[derive(Debug)]
pub enum Transport {
    /// A connected socket.
    Stream(StreamTransport),
}

/// A socket, and who is told of what comes over it.
#[derive(Debug)]
pub struct StreamTransport {
    socket: Socket,
    readiness: EpollSet,
}

/// A task has been told that there is something to read. To be cleared when a read found nothing more.
pub(crate) enum Readable<'a> {
    Stream(AsyncFdReadyGuard<'a, OwnedFd>),
}

impl Readable<'_> {
    /// Nothing more is there: the next wait is for new bytes.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Stream(guard) => guard.clear_ready(),
        }
    }
}

impl Transport {
    /// Makes a transport of a connected socket.
    ///
    /// # Errors
    /// When the process is out of descriptors, or no runtime is running.
    pub fn stream(socket: Socket) -> io::Result<Self> {
        let readiness = EpollSet::new(&socket)?;
        Ok(Self::Stream(StreamTransport { socket, readiness }))
    }

    /// Its kind, in a word for tables.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Stream(stream) => stream.socket.transport(),
        }
    }

    /// Where the peer is, for messages to people: see [`Socket::peer_text`].
    #[must_use]
    pub fn peer_text(&self) -> String {
        match self {
            Self::Stream(stream) => stream.socket.peer_text(),
        }
    }

    /// The address pair (ours, the peer's) as this side observes it, if there is one.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Stream(stream) => stream.socket.addresses(),
        }
    }

    /// The path at which one of us listens, if there is one: see [`Socket::unix_path`].
    #[must_use]
    pub fn unix_path(&self) -> Option<PathBuf> {
        match self {
            Self::Stream(stream) => stream.socket.unix_path(),
        }
    }

    /// How this end sees the way to the other: the proof of place, as far as one end has it. Only the kernel's word about a Unix socket
    /// counts as the same host.
    #[must_use]
    pub fn path(&self) -> Path {
        let Self::Stream(StreamTransport { socket, .. }) = self;
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

    /// Reads exactly `buffer.len()` bytes and not one more: what follows belongs to somebody else.
    pub(crate) async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.socket.read_exact(buffer).await,
        }
    }

    /// Writes all of it, however long that takes.
    pub(crate) async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.socket.write_all(bytes).await,
        }
    }

    /// Waits as a task until there is something to read, or the peer has ended its direction.
    pub(crate) async fn readable(&self) -> io::Result<Readable<'_>> {
        match self {
            Self::Stream(stream) => stream.readiness.readable().await.map(Readable::Stream),
        }
    }

    /// Waits as a task until some bytes can be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.socket.ready(Interest::WRITABLE).await.map(drop),
        }
    }

    /// Says whether a task is told from now on that there is something to read, also of what is there already.
    pub(crate) fn tell_task(&self, told: bool) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.readiness.tell_task(&stream.socket, told),
        }
    }

    /// Waits on the calling thread until there is something to read or the peer has ended its direction, for at most `patience`, less
    /// when a signal comes.
    pub(crate) fn wait_here(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Stream(stream) => wait_here(&stream.socket, patience),
        }
    }

    /// Reads what is there now, whatever a task has been told so far.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is, and others when it is broken.
    pub fn read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.socket.read_vectored(slices),
        }
    }

    /// Writes what fits now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing does, and others when it is broken.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.socket.try_write_vectored(slices),
        }
    }

    /// Ends the writing side: the peer reads what was sent, then the end.
    pub(crate) fn shutdown_write(&self) {
        match self {
            Self::Stream(stream) => stream.socket.shutdown_write(),
        }
    }

    /// Ends the reading side: whoever waits for it on this side sees the end.
    pub(crate) fn shutdown_read(&self) {
        match self {
            Self::Stream(stream) => stream.socket.shutdown_read(),
        }
    }

    /// Ends the writing side, then reads and drops what comes until the peer ends its own, for at most `time` and `bytes_max`. So the peer
    /// reads what was written last: a close with unread bytes would reset the connection instead.
    pub(crate) async fn linger(&self, time: Duration, bytes_max: usize) {
        self.shutdown_write();
        let drain = async {
            // Not an array: that would be part of every future that may come to this.
            let mut sink = vec![0; 4096];
            let mut left = bytes_max;
            while left > 0 {
                let room = left.min(sink.len());
                match self.read_vectored(&mut [IoSliceMut::new(&mut sink[..room])]) {
                    Ok(0) => return,
                    // A peer that sends faster than this reads must not keep everybody else, and the clock, from their turn.
                    Ok(count) => {
                        left -= count;
                        tokio::task::yield_now().await;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let Ok(mut told) = self.readable().await else {
                            return;
                        };
                        told.clear();
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
        let transport = Transport::stream(Socket::unix(ours).unwrap()).unwrap();
        let Transport::Stream(StreamTransport { socket, .. }) = &transport;
        let mut left = 0;
        let other = async {
            left = rustix::io::ioctl_fionread(socket).unwrap();
            drop(theirs);
        };
        tokio::join!(transport.linger(Duration::MAX, usize::MAX), other);
        assert!(left > 0, "all was read before anybody else had a turn");
    }
}
