//! A connected byte stream: TCP, or a Unix socket inside a host.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

/// A connected stream socket, non-blocking, usable from any thread of the process that made it.
#[derive(Debug)]
pub enum Socket {
    /// TCP, with small messages sent at once (`TCP_NODELAY`).
    Tcp(TcpStream),
    /// A Unix stream socket or one end of a socketpair.
    Unix(UnixStream),
}

impl Socket {
    /// Takes over a connected TCP socket.
    ///
    /// # Errors
    /// When the options can't be set: the peer has gone already.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
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

    /// The kind of transport, in a word for tables.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "socketpair",
        }
    }

    /// The address pair (ours, the peer's) as this side observes it; none for Unix sockets.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => {
                let ours = canonical(stream.local_addr().ok()?);
                Some((ours, canonical(stream.peer_addr().ok()?)))
            }
            Self::Unix(_) => None,
        }
    }

    /// Where the peer is, for messages to people.
    #[must_use]
    pub fn peer_text(&self) -> String {
        self.addresses()
            .map_or_else(|| "a socketpair".to_owned(), |(_, peer)| peer.to_string())
    }

    /// Whether the kernel proves that the peer is a process of this machine under this account (or root).
    #[must_use]
    pub fn proven_same_host(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Unix(stream) => stream.peer_cred().is_ok_and(|peer| {
                peer.uid() == rustix::process::geteuid().as_raw() || peer.uid() == 0
            }),
        }
    }

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(stream) => stream.try_read(buffer),
        }
    }

    pub(crate) fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_vectored(slices),
            Self::Unix(stream) => stream.try_read_vectored(slices),
        }
    }

    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
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

    /// Ends the writing side: the peer reads what was sent, then the end.
    pub(crate) fn shutdown_write(&self) {
        use rustix::net::{Shutdown, shutdown};
        // An error here means that the peer has gone already: there is nobody to tell.
        let _ = match self {
            Self::Tcp(stream) => shutdown(stream, Shutdown::Write),
            Self::Unix(stream) => shutdown(stream, Shutdown::Write),
        };
    }
}

/// IPv4 addresses that come mapped into IPv6 are IPv4 addresses: rules are written for those.
fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}
