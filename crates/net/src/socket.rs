//! A connected byte stream: TCP, or a Unix socket inside a host.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags, Shutdown, getpeername, getsockname, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use crate::epoll_set::watched;
use crate::ring::passing;

/// How long nothing is said before the kernel asks whether the peer's host is there, and between two such questions. Firewalls keep
/// what is said more often than each minute.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);

/// So many questions without an answer, and the host is gone.
const KEEPALIVE_PROBES: u32 = 3;

/// A connected stream socket, non-blocking, usable from any thread of the process that made it.
#[derive(Debug)]
pub struct Socket {
    kind: SocketKind,
    /// See [`unix_path`](Self::unix_path).
    path: Option<PathBuf>,
    descriptor: SocketDescriptor,
}

/// A descriptor, and whether the runtime hears of it.
#[derive(Debug)]
enum SocketDescriptor {
    Watched(AsyncFd<OwnedFd>),
    Unwatched(OwnedFd),
}

impl SocketDescriptor {
    fn watched(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        match self {
            Self::Watched(descriptor) => Ok(descriptor),
            // Nobody waits for a doorbell in this way.
            Self::Unwatched(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn into_inner(self) -> OwnedFd {
        match self {
            Self::Watched(descriptor) => descriptor.into_inner(),
            Self::Unwatched(descriptor) => descriptor,
        }
    }
}

/// What a socket is, and what leads over it to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP, with small messages sent at once (`TCP_NODELAY`).
    Tcp,
    /// TCP to a gateway, which has connected us with somebody else.
    Relayed,
    /// A Unix stream socket or one end of a socketpair.
    Unix,
    /// Input and output of a command that leads to the peer. Where the peer is, nobody but the command knows.
    Command,
}

impl Socket {
    fn new(kind: SocketKind, descriptor: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Self {
            kind,
            path: None,
            descriptor: SocketDescriptor::Watched(watched(descriptor, interest)?),
        })
    }

    /// Takes over a connected TCP socket.
    ///
    /// # Errors
    /// When the options can't be set: the peer has gone already.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = Self::new(SocketKind::Tcp, stream.into_std()?.into())?;
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
        if inside {
            // Another one is slower, not wrong.
            let _ = rustix::net::sockopt::set_tcp_congestion(self, "reno");
        }
    }

    /// The same connection, once a gateway has connected it with somebody else: its addresses say nothing about the peer any more.
    pub(crate) fn relayed(self) -> Self {
        match self.kind {
            SocketKind::Tcp => Self {
                kind: SocketKind::Relayed,
                ..self
            },
            SocketKind::Relayed | SocketKind::Unix | SocketKind::Command => self,
        }
    }

    /// The same connection for a session: the runtime hears that it takes more, and no longer that something comes. Whoever reads is
    /// told of that by the kernel (see [`EpollSet`](crate::epoll_set::EpollSet)), and no other thread is to be woken for it.
    ///
    /// # Errors
    /// When the system's memory for it is at its end.
    pub(crate) fn watched_for_room(self) -> io::Result<Self> {
        let descriptor = watched(self.descriptor.into_inner(), Interest::WRITABLE)?;
        let descriptor = SocketDescriptor::Watched(descriptor);
        Ok(Self { descriptor, ..self })
    }

    /// The same connection as a doorbell, of which the runtime hears nothing: whatever it wanted to hear of, each byte that comes or is taken
    /// would wake its thread. Whoever waits for the doorbell is told by the kernel.
    pub(crate) fn unwatched(self) -> Self {
        let descriptor = SocketDescriptor::Unwatched(self.descriptor.into_inner());
        Self { descriptor, ..self }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> SocketKind {
        self.kind
    }

    /// The bare descriptor, non-blocking, of which the runtime knows nothing more.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor.into_inner()
    }

    /// Takes over an inherited descriptor's Unix stream.
    ///
    /// # Errors
    /// When the socket can't be made non-blocking or no runtime is running.
    pub fn unix(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let path = |name: std::os::unix::net::SocketAddr| Some(name.as_pathname()?.to_owned());
        let path = match stream.local_addr()? {
            own if own.is_unnamed() => stream.peer_addr().ok().and_then(path),
            own => path(own),
        };
        let socket = Self::new(SocketKind::Unix, stream.into())?;
        Ok(Self { path, ..socket })
    }

    /// Takes over one end of a socketpair, whose other end a command has.
    ///
    /// # Errors
    /// As [`unix`](Self::unix).
    pub(crate) fn command(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(SocketKind::Command, stream.into())
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
        if !self.is_tcp() {
            return Ok(());
        }
        sockopt::set_socket_keepalive(self, true)?;
        sockopt::set_tcp_keepidle(self, KEEPALIVE_TIME)?;
        sockopt::set_tcp_keepintvl(self, KEEPALIVE_TIME)?;
        Ok(sockopt::set_tcp_keepcnt(self, KEEPALIVE_PROBES)?)
    }

    fn is_tcp(&self) -> bool {
        matches!(self.kind, SocketKind::Tcp | SocketKind::Relayed)
    }

    /// The kind of transport, in a word for tables.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        match self.kind {
            SocketKind::Tcp => "tcp",
            SocketKind::Relayed => "gateway",
            SocketKind::Command => "command",
            SocketKind::Unix if self.unix_path().is_some() => "unix",
            SocketKind::Unix => "socketpair",
        }
    }

    /// The address pair (ours, the peer's) as this side observes it; none for Unix sockets and behind a gateway.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        if self.kind != SocketKind::Tcp {
            return None;
        }
        let ours = SocketAddr::try_from(getsockname(self).ok()?).ok()?;
        Some((canonical(ours), self.peer_address()?))
    }

    /// The address of whoever is at the other end of a TCP connection, if it is still there.
    fn peer_address(&self) -> Option<SocketAddr> {
        let peer = SocketAddr::try_from(getpeername(self).ok()??).ok()?;
        Some(canonical(peer))
    }

    /// The path at which the one of us listens whom the other has dialled; none for TCP and for a socketpair.
    ///
    /// Who dials may have given its own end a name as well, which says nothing.
    #[must_use]
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// Where the peer is, for messages to people: the kernel's word on who that is, for a Unix socket.
    #[must_use]
    pub fn peer_text(&self) -> String {
        let peer = self.peer_address();
        match self.kind {
            SocketKind::Tcp => peer.map_or_else(
                || "an address that is gone".to_owned(),
                |peer| peer.to_string(),
            ),
            SocketKind::Relayed => peer.map_or_else(
                || "a gateway that is gone".to_owned(),
                |gateway| format!("the gateway at {gateway}"),
            ),
            SocketKind::Command => "the other end of a command".to_owned(),
            SocketKind::Unix => {
                let Some(path) = self.unix_path() else {
                    return "a socketpair".to_owned();
                };
                let who = socket_peercred(self).ok().map(|peer| {
                    let process = peer.pid.as_raw_nonzero();
                    format!(" (process {process} of account {})", peer.uid.as_raw())
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
        let own = rustix::process::geteuid().as_raw();
        self.kind == SocketKind::Unix
            && socket_peercred(self).is_ok_and(|peer| is_own_account(peer.uid.as_raw(), own))
    }

    /// Waits as a task until the runtime takes it to be ready. A session's socket is never ready to read.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<()> {
        // What is tried then and finds nothing says so to the runtime.
        let descriptor = self.descriptor.watched()?;
        descriptor.ready(interest).await?.retain_ready();
        Ok(())
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
        self.descriptor.watched()?.try_io(interest, |_| act())
    }

    /// Sends a descriptor with one byte, over a Unix socket.
    pub(crate) async fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.passes_descriptors()?;
        self.descriptor
            .watched()?
            .async_io(Interest::WRITABLE, |socket| {
                passing::send(socket.as_fd(), descriptor)
            })
            .await
    }

    /// Receives one byte, and the descriptor that came with it, if one did.
    pub(crate) async fn receive_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.passes_descriptors()?;
        self.descriptor
            .watched()?
            .async_io(Interest::READABLE, |socket| {
                passing::receive(socket.as_fd())
            })
            .await
    }

    fn passes_descriptors(&self) -> io::Result<()> {
        match self.kind {
            SocketKind::Unix => Ok(()),
            // Nobody is proven to be on the same host there.
            SocketKind::Tcp | SocketKind::Relayed | SocketKind::Command => {
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_io(Interest::READABLE, || {
            let (_, count) = rustix::net::recv(self, buffer, RecvFlags::DONTWAIT)?;
            Ok(count)
        })
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

    /// Writes what the kernel takes now. Behind a [`io::ErrorKind::WouldBlock`] the runtime tells when it takes more.
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.write_vectored(slices) {
            // The runtime may not have heard yet of a new socket, and takes nothing for full that wasn't tried under its eyes.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.try_io(Interest::WRITABLE, || self.write_vectored(slices))
            }
            written => written,
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
        if self.is_tcp() {
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
        match &self.descriptor {
            SocketDescriptor::Watched(descriptor) => descriptor.get_ref().as_fd(),
            SocketDescriptor::Unwatched(descriptor) => descriptor.as_fd(),
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
    use crate::epoll_set::EpollSet;

    #[tokio::test]
    async fn tcp_inside_a_host_is_not_paced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::tcp_from_std(stream).unwrap();
        let control = rustix::net::sockopt::tcp_congestion(&socket).unwrap();
        assert_eq!(control, "reno");
    }

    /// Else each message would wake the runtime's thread beside the one that reads.
    #[tokio::test]
    async fn what_comes_to_a_session_is_not_told_to_the_runtime() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let ours = Socket::unix(ours).unwrap().watched_for_room().unwrap();
        let readiness = EpollSet::new(&ours).unwrap();
        io::Write::write_all(&mut theirs, &[1]).unwrap();
        readiness.heard().await.unwrap();
        let told = ours.try_io(Interest::READABLE, || Ok(()));
        assert_eq!(told.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        ours.ready(Interest::WRITABLE).await.unwrap();
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
