//! Where a node can be reached: a host and a port, or the path of a Unix socket.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use tokio::net::{TcpStream, UnixStream};

use crate::beside::beside;
use crate::socket::Socket;

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// What may stand before a host and a port.
const TCP: &str = "tcp://";

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`; the host is a name or an address, one of IPv6 in brackets.
    Tcp(String),
    /// The absolute path of a Unix stream socket on this machine.
    Unix(PathBuf),
}

/// Text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// A path that depends on where the process happens to be.
    #[error("got the address {0:?}, expected an absolute path: unix:/path")]
    RelativePath(String),
    /// A host without a port.
    #[error("got the address {0:?}, expected host:port or unix:/path")]
    NoPort(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return if path.starts_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(AddressError::RelativePath(text.to_owned()))
            };
        }
        let place = text.strip_prefix(TCP).unwrap_or(text);
        let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::Tcp(place.to_owned())),
            _ => Err(AddressError::NoPort(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(place) => formatter.write_str(place),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

impl Address {
    /// Connects to whoever listens there. The caller limits the time.
    ///
    /// # Errors
    /// When nobody does, or the socket can't be had.
    pub async fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(place) => Socket::tcp(connect(place).await?),
            Self::Unix(path) => Socket::unix(UnixStream::connect(path).await?.into_std()?),
        }
    }
}

/// Connects to the first address of a place that takes it.
async fn connect(place: &str) -> io::Result<TcpStream> {
    let addresses = match place.parse::<SocketAddr>() {
        Ok(address) => vec![address],
        Err(_) => {
            let place = place.to_owned();
            let looked_up = beside(move || place.to_socket_addrs()).await;
            let found = looked_up.unwrap_or_else(|| Err(io::ErrorKind::Other.into()));
            found?.collect()
        }
    };
    let mut refused = io::Error::new(
        io::ErrorKind::NotFound,
        "the name of the host has no address",
    );
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
