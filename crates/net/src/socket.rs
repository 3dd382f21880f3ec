//! A connected byte stream: TCP, or a Unix socket inside a host.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

use crate::ring::passing;

/// How long nothing is said before the kernel asks whether the peer's host is there, and between two such questions. Firewalls keep
/// what is said more often than each minute.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);

/// So many questions without an answer, and the host is gone.
const KEEPALIVE_PROBES: u32 = 3;

/// A connected stream socket, non-blocking, usable from any thread of the process that made it.
#[derive(Debug)]
pub enum Socket {
    /// TCP, with small messages sent at once (`TCP_NODELAY`).
    Tcp(TcpStream),
    /// TCP to a gateway, which has connected us with somebody else.
    Relayed(TcpStream),
    /// A Unix stream socket or one end of a socketpair.
    Unix(UnixStream),
    /// Input and output of a command that leads to the peer. Where the peer is, nobody but the command knows.
    Command(UnixStream),
}

impl Socket {
    /// Takes over a connected TCP socket.
    ///
    /// # Errors
    /// When the options can't be set: the peer has gone already.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = Self::Tcp(stream);
        socket.choose_congestion_control();
        Ok(socket)
    }

    /// Inside a host there is no network to spare: a congestion control that paces (BBR, where it is the default) only
    /// makes processors wait, at less than half the speed. Reno, which every kernel has and every process may choose,
    /// does not pace.
    fn choose_congestion_control(&self) {
        let inside = self
            .addresses()
            .is_some_and(|(ours, peer)| ours.ip() == peer.ip() || peer.ip().is_loopback());
        if let (true, Self::Tcp(stream)) = (inside, self) {
            // Another one is slower, not wrong.
            let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
        }
    }

    /// The same connection, once a gateway has connected it with somebody else: its addresses say nothing about the peer any more.
    pub(crate) fn relayed(self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Relayed(stream),
            other => other,
        }
    }

    /// Takes over an inherited descriptor's Unix stream.
    ///
    /// # Errors
    /// When the socket can't be made non-blocking or no runtime is running.
    pub fn unix(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::Unix(UnixStream::from_std(stream)?))
    }

    /// Takes over a standard TCP stream.
    ///
    /// # Errors
    /// When the socket can't be made non-blocking or no runtime is running.
    pub fn tcp_from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::tcp(TcpStream::from_std(stream)?)
    }

    /// Has the kernel find out whether the peer's host is still there while nothing is said. A Unix socket needs none of that.
    ///
    /// # Errors
    /// When the options can't be set: the peer has gone already.
    pub(crate) fn keep_alive(&self) -> io::Result<()> {
        use rustix::net::sockopt;
        let (Self::Tcp(stream) | Self::Relayed(stream)) = self else {
            return Ok(());
        };
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_TIME)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_TIME)?;
        Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
    }

    /// The kind of transport, in a word for tables.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Relayed(_) => "gateway",
            Self::Command(_) => "command",
            Self::Unix(_) if self.unix_path().is_some() => "unix",
            Self::Unix(_) => "socketpair",
        }
    }

    /// The address pair (ours, the peer's) as this side observes it; none for Unix sockets and behind a gateway.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => {
                let ours = canonical(stream.local_addr().ok()?);
                Some((ours, canonical(stream.peer_addr().ok()?)))
            }
            Self::Relayed(_) | Self::Unix(_) | Self::Command(_) => None,
        }
    }

    /// The path at which the one of us listens whom the other has dialled; none for TCP and for a socketpair.
    ///
    /// Who dials may have given its own end a name as well, which says nothing.
    #[must_use]
    pub fn unix_path(&self) -> Option<PathBuf> {
        let Self::Unix(stream) = self else {
            return None;
        };
        let path = |name: io::Result<tokio::net::unix::SocketAddr>| {
            name.ok()?.as_pathname().map(ToOwned::to_owned)
        };
        match stream.local_addr() {
            Ok(own) if own.is_unnamed() => path(stream.peer_addr()),
            own => path(own),
        }
    }

    /// Where the peer is, for messages to people: the kernel's word on who that is, for a Unix socket.
    #[must_use]
    pub fn peer_text(&self) -> String {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or_else(
                |_| "an address that is gone".to_owned(),
                |peer| canonical(peer).to_string(),
            ),
            Self::Relayed(stream) => stream.peer_addr().map_or_else(
                |_| "a gateway that is gone".to_owned(),
                |gateway| format!("the gateway at {}", canonical(gateway)),
            ),
            Self::Command(_) => "the other end of a command".to_owned(),
            Self::Unix(stream) => {
                let Some(path) = self.unix_path() else {
                    return "a socketpair".to_owned();
                };
                let who = stream.peer_cred().ok().map(|peer| {
                    let process = peer.pid().unwrap_or_default();
                    format!(" (process {process} of account {})", peer.uid())
                });
                format!("unix:{}{}", path.display(), who.unwrap_or_default())
            }
        }
    }

    /// Whether the kernel vouches for the peer: a process on this machine of this account, or of root, whom nothing
    /// keeps out.
    ///
    /// It is the process that connected, or the one that listened. Whether that is the session's other end or a relay,
    /// the kernel can't know: see [`Path::same_host`](exoskel_link::handshake::Path::same_host).
    #[must_use]
    pub fn proven_same_host(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Relayed(_) | Self::Command(_) => false,
            Self::Unix(stream) => stream
                .peer_cred()
                .is_ok_and(|peer| is_own_account(peer.uid(), rustix::process::geteuid().as_raw())),
        }
    }

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) | Self::Relayed(stream) => stream.ready(interest).await,
            Self::Unix(stream) | Self::Command(stream) => stream.ready(interest).await,
        }
    }

    /// Waits until the peer has sent something, or ended; takes nothing. A new socket's readiness alone says neither.
    pub(crate) async fn heard(&self) -> io::Result<()> {
        let peek = |socket: BorrowedFd<'_>| {
            let (_, bytes) = rustix::net::recv(socket, &mut [0_u8; 1], RecvFlags::PEEK)?;
            Ok(bytes)
        };
        loop {
            self.ready(Interest::READABLE).await?;
            match self.try_io(Interest::READABLE, || peek(self.as_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                peeked => return peeked.map(drop),
            }
        }
    }

    /// Does what the kernel lets do now, as far as the runtime knows it to be ready.
    pub(crate) fn try_io<T>(
        &self,
        interest: Interest,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::Tcp(stream) | Self::Relayed(stream) => stream.try_io(interest, act),
            Self::Unix(stream) | Self::Command(stream) => stream.try_io(interest, act),
        }
    }

    /// Sends a descriptor with one byte, over a Unix socket.
    pub(crate) async fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let stream = self.unix_stream()?;
        stream
            .async_io(Interest::WRITABLE, || {
                passing::send(stream.as_fd(), descriptor)
            })
            .await
    }

    /// Receives one byte, and the descriptor that came with it, if one did.
    pub(crate) async fn receive_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        let stream = self.unix_stream()?;
        stream
            .async_io(Interest::READABLE, || passing::receive(stream.as_fd()))
            .await
    }

    fn unix_stream(&self) -> io::Result<&UnixStream> {
        match self {
            Self::Unix(stream) => Ok(stream),
            // Nobody is proven to be on the same host there.
            Self::Tcp(_) | Self::Relayed(_) | Self::Command(_) => {
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) | Self::Relayed(stream) => stream.try_read(buffer),
            Self::Unix(stream) | Self::Command(stream) => stream.try_read(buffer),
        }
    }

    /// Asks the kernel, whatever the runtime knows of the socket so far.
    pub(crate) fn read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let [empty, slice] = slices
            && empty.is_empty()
        {
            // Half the price of a vector.
            let (_, count) = rustix::net::recv(self, &mut slice[..], RecvFlags::DONTWAIT)?;
            return Ok(count);
        }
        Ok(rustix::io::readv(self, slices)?)
    }

    /// Asks the kernel, as above.
    pub(crate) fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let [slice] = slices {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            return Ok(rustix::net::send(self, slice, flags)?);
        }
        Ok(rustix::io::writev(self, slices)?)
    }

    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) | Self::Relayed(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) | Self::Command(stream) => stream.try_write_vectored(slices),
        }
    }

    /// Reads exactly `buffer.len()` bytes and not one more: what follows belongs to somebody else.
    pub(crate) async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.try_read(&mut buffer[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready(Interest::READABLE).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write_vectored(&[IoSlice::new(bytes)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready(Interest::WRITABLE).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the peer see a broken connection, and no end in order, when this is closed. The kernel forgets what it hasn't sent.
    pub(crate) fn reset_at_close(&self) {
        if let Self::Tcp(_) | Self::Relayed(_) = self {
            // An error means that it is broken already.
            let _ = rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO));
        }
    }

    /// Ends the writing side: the peer reads what was sent, then the end.
    pub(crate) fn shutdown_write(&self) {
        // An error here means that the peer has gone already: there is nobody to tell.
        let _ = shutdown(self, Shutdown::Write);
    }

    /// Ends the reading side: whoever waits for it on this side sees the end.
    pub(crate) fn shutdown_read(&self) {
        // As above.
        let _ = shutdown(self, Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) | Self::Relayed(stream) => stream.as_fd(),
            Self::Unix(stream) | Self::Command(stream) => stream.as_fd(),
        }
    }
}

/// What the kernel shows in the place of every account that has no number in this process's user namespace
/// (`/proc/sys/kernel/overflowuid`, unless an administrator has changed it).
const NOBODY_KNOWN: u32 = 65_534;

/// Whether a peer's account is as good as ours.
fn is_own_account(peer: u32, own: u32) -> bool {
    peer == 0 || (peer == own && peer != NOBODY_KNOWN)
}

/// IPv4 addresses that come mapped into IPv6 are IPv4 addresses: rules are written for those.
fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tcp_inside_a_host_is_not_paced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let Socket::Tcp(stream) = Socket::tcp_from_std(stream).unwrap() else {
            unreachable!("it is TCP");
        };
        let control = rustix::net::sockopt::tcp_congestion(&stream).unwrap();
        assert_eq!(control, "reno");
    }

    #[test]
    fn only_our_own_account_and_root_are_near() {
        for (peer, own, near) in [
            (1000, 1000, true),
            (0, 1000, true),
            (0, 0, true),
            (1000, 0, false),
            (1001, 1000, false),
            // Anybody at all, seen from a container.
            (NOBODY_KNOWN, NOBODY_KNOWN, false),
        ] {
            assert_eq!(is_own_account(peer, own), near, "{peer} seen by {own}");
        }
    }
}
