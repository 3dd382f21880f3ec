//! Who is at the other end of a connection, the stream to them, and who serves it.

use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use exoskel_identity::VerifiedIdentity;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::audit::{AuditLine, Verdict};
use crate::connections::{Connection, PeerTransport, RunningRequest};
use crate::server_state::ServerState;

/// Takes a connection whose client proved who it is.
///
/// The connection ends when the future does. A panic in it costs this connection.
pub trait Handler: Send + Sync + 'static {
    /// What ALPN offers, best first. A client that offers something else only is refused; one that offers nothing is not.
    const PROTOCOLS: &'static [&'static [u8]];

    /// Serves one connection.
    fn handle(&self, stream: Stream, peer: Peer) -> impl Future<Output = ()> + Send;
}

impl<F, R> Handler for F
where
    F: Fn(Stream, Peer) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send,
{
    const PROTOCOLS: &'static [&'static [u8]] = &[];

    fn handle(&self, stream: Stream, peer: Peer) -> impl Future<Output = ()> + Send {
        self(stream, peer)
    }
}

/// Who is at the other end of a connection.
#[derive(Clone)]
pub struct Peer {
    identity: VerifiedIdentity,
    protocol: Option<Box<[u8]>>,
    connection: Arc<Connection>,
    state: Arc<ServerState>,
}

impl Peer {
    pub(crate) fn new(
        identity: VerifiedIdentity,
        protocol: Option<Box<[u8]>>,
        connection: Arc<Connection>,
        state: Arc<ServerState>,
    ) -> Self {
        Self {
            identity,
            protocol,
            connection,
            state,
        }
    }

    /// Whom the chain proved. It is judged again when trust changes; the connection ends when it is no longer good.
    pub fn identity(&self) -> &VerifiedIdentity {
        &self.identity
    }

    /// Where the client's packets come from.
    pub fn address(&self) -> SocketAddr {
        self.connection.address()
    }

    /// What ALPN agreed on, if anything.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.protocol.as_deref()
    }

    /// States that the service works for this client until the guard is dropped, so that the silence meanwhile does
    /// not count as idle.
    pub fn working(&self) -> Working {
        Working(self.connection.run())
    }

    /// Writes a decision about this client into the server's audit trail.
    pub async fn record(&self, action: &str, verdict: Verdict, reason: &str) {
        let now = self.state.now();
        let address = self.address();
        let line = AuditLine::identified(&self.identity, address, now, action, verdict, reason);
        self.state.audit.record(&line).await;
    }

    /// Waits until the server wants to stop. A connection that goes on is ended after
    /// [`Limits::shutdown_time`].
    pub async fn stopping(&self) {
        self.state.stopping().await;
    }

    /// Whether the service has ended this connection.
    pub fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn state(&self) -> &Arc<ServerState> {
        &self.state
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Peer")
            .field("identity", &self.identity)
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// Keeps a connection from being idle. See [`Peer::working`].
#[derive(Debug)]
pub struct Working(#[expect(dead_code, reason = "dropping it is what it is for")] RunningRequest);

/// A protected stream to a client whose identity is proven.
#[derive(Debug)]
pub struct Stream(pub(crate) TlsStream<PeerTransport>);

impl Stream {
    /// Writes the last bytes and says goodbye, in one packet where they fit into one. The connection closes as this returns.
    ///
    /// # Errors
    /// When the client is gone.
    pub async fn finish(mut self, last: &[u8]) -> io::Result<()> {
        let taken = self.0.get_mut().1.writer().write(last)?;
        if taken < last.len() {
            self.0.write_all(&last[taken..]).await?;
        }
        self.0.get_mut().1.send_close_notify();
        self.0.flush().await
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
