//! The server behind the front.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

use super::upload::Upload;
use crate::limits::UPSTREAM_CONNECT_TIME;

/// Where the server behind listens. On this host: what is said to it is neither encrypted nor authenticated but by the
/// front's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// `unix:/run/app.sock`: file permissions say who may connect.
    Unix(PathBuf),
    /// `tcp://127.0.0.1:8000`: any process of the host may connect.
    Tcp(SocketAddr),
}

impl FromStr for Upstream {
    type Err = BadUpstream;

    fn from_str(text: &str) -> Result<Self, BadUpstream> {
        let bad = || BadUpstream {
            got: text.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(bad())
            };
        }
        let address = text.strip_prefix("tcp://").ok_or_else(bad)?;
        let address: SocketAddr = address.trim_end_matches('/').parse().map_err(|_| bad())?;
        if address.ip().is_loopback() {
            Ok(Self::Tcp(address))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
        }
    }
}

/// An address that is none of a server behind a front.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "got upstream {got:?}, expected \"unix:/path/of/socket\" or \"tcp://127.0.0.1:port\" (an address of this host: the way there is not protected)"
)]
pub struct BadUpstream {
    /// What stood there.
    pub got: String,
}

pub(super) type UpstreamClient = hyper_util::client::legacy::Client<Connector, Upload>;

pub(super) fn client(upstream: Upstream, idle: Duration) -> UpstreamClient {
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle)
        // The head is made by us: what the client calls its host stands in it already.
        .set_host(false)
        .build(Connector(Arc::new(upstream)))
}

#[derive(Clone, Debug)]
pub(super) struct Connector(Arc<Upstream>);

impl Service<Uri> for Connector {
    type Response = TokioIo<UpstreamSocket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<UpstreamSocket>>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let upstream = self.0.clone();
        Box::pin(async move {
            let connected = async {
                Ok(match &*upstream {
                    Upstream::Unix(path) => UpstreamSocket::Unix(UnixStream::connect(path).await?),
                    Upstream::Tcp(address) => {
                        let socket = TcpStream::connect(address).await?;
                        socket.set_nodelay(true)?;
                        UpstreamSocket::Tcp(socket)
                    }
                })
            };
            tokio::time::timeout(UPSTREAM_CONNECT_TIME, connected)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
                .map(TokioIo::new)
        })
    }
}

/// A connection to the server behind.
#[derive(Debug)]
pub(super) enum UpstreamSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection for UpstreamSocket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

macro_rules! either {
    ($self:expr, $socket:ident => $call:expr) => {
        match $self.get_mut() {
            UpstreamSocket::Unix($socket) => $call,
            UpstreamSocket::Tcp($socket) => $call,
        }
    };
}

impl AsyncRead for UpstreamSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, socket => Pin::new(socket).poll_read(context, buffer))
    }
}

impl AsyncWrite for UpstreamSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, socket => Pin::new(socket).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, socket => Pin::new(socket).poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, socket => Pin::new(socket).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, socket => Pin::new(socket).poll_shutdown(context))
    }
}
