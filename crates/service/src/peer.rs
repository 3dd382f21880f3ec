//! Who is at the other end of a connection, the stream to them, and who serves it.

use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use exoskel_identity::VerifiedIdentity;
use exoskel_identity::authorization::Decision;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

use crate::admission::{Authorizer, Refused, Who};
use crate::audit::{AuditLine, Verdict};
use crate::connections::{Connection, PeerTransport, RunningRequest};
use crate::request_slots::HeldPart;
use crate::server_state::ServerState;

/// Takes a connection whose client proved who it is.
///
/// The connection ends when the future does. A panic in it costs this connection.
pub trait Handler: Send + Sync + 'static {
    /// What ALPN offers, best first. A client that offers something else only is refused; one that offers nothing is not.
    const PROTOCOLS: &'static [&'static [u8]];

    /// Serves one connection.
    fn handle(&self, stream: Stream, peer: Peer) -> impl Future<Output = ()> + Send;

    /// Which strangers it takes too; none by default.
    fn strangers(&self) -> Strangers {
        Strangers::default()
    }

    /// Serves one connection of a stranger.
    fn handle_stranger(
        &self,
        stream: Stream,
        stranger: Stranger,
    ) -> impl Future<Output = ()> + Send {
        drop((stream, stranger));
        std::future::ready(())
    }
}

/// Clients that end their handshake although they may not come in. All others are refused by an alert of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Those that proved who they are, and whom the rules refuse.
    pub refused: bool,
    /// Those that show no certificate; if `refused` is set too, also those that show one in which there is a fault, which is as good as none.
    pub without_certificate: bool,
}

impl Strangers {
    /// Whether a refused client is to end its handshake, and be told by the handler.
    pub(crate) fn take(self, refused: &Refused) -> bool {
        self.refused && (self.without_certificate || matches!(refused.who, Who::Proven(_)))
    }
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

/// A connection whose handshake is over, whoever the client is.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) protocol: Option<Box<[u8]>>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) state: Arc<ServerState>,
}

/// A client that may not come in, and whose handler tells it so.
pub struct Stranger {
    /// Why the rules refuse it; nothing for a client without a certificate.
    pub(crate) refused: Option<Box<Refused>>,
    pub(crate) visit: Visit,
    /// One of the places that strangers have, and of its host's share of them.
    pub(crate) _place: (OwnedSemaphorePermit, HeldPart),
}

impl Stranger {
    /// Whom the chain proved, of somebody whom the rules refuse.
    pub(crate) fn identity(&self) -> Option<&VerifiedIdentity> {
        match &self.refused.as_ref()?.who {
            Who::Proven(identity) => Some(identity),
            Who::Claimed { .. } => None,
        }
    }

    /// What a client with a faulty chain calls itself.
    pub(crate) fn claimed_subject(&self) -> Option<&str> {
        match &self.refused.as_ref()?.who {
            Who::Proven(_) => None,
            Who::Claimed { subject, .. } => subject.as_deref(),
        }
    }
}

impl fmt::Debug for Stranger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stranger")
            .field("refused", &self.refused)
            .field("address", &self.visit.connection.address())
            .finish_non_exhaustive()
    }
}

/// Who is at the other end of a connection.
#[derive(Clone)]
pub struct Peer {
    identity: VerifiedIdentity,
    visit: Visit,
}

impl Peer {
    pub(crate) fn new(identity: VerifiedIdentity, visit: Visit) -> Self {
        Self { identity, visit }
    }

    /// Whom the chain proved. It is judged again when trust changes; the connection ends when it is no longer good.
    pub fn identity(&self) -> &VerifiedIdentity {
        &self.identity
    }

    /// Where the client's packets come from.
    pub fn address(&self) -> SocketAddr {
        self.visit.connection.address()
    }

    /// What ALPN agreed on, if anything.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.visit.protocol.as_deref()
    }

    /// States that the service works for this client until the guard is dropped, so that the silence meanwhile does
    /// not count as idle.
    pub fn working(&self) -> Working {
        Working(self.visit.connection.run())
    }

    /// Writes a decision about this client into the server's audit trail.
    pub async fn record(&self, action: &str, verdict: Verdict, reason: &str) {
        let state = &self.visit.state;
        let (now, address) = (state.now(), self.address());
        let line = AuditLine::identified(&self.identity, address, now, action, verdict, reason);
        state.audit.record(&line).await;
    }

    /// Whether the server's rules allow this client an action now. Without rules nobody is allowed any.
    pub fn decide(&self, action: &str) -> Decision {
        self.visit.state.admission.decide(&self.identity, action)
    }

    /// What says the same once the connection is over, and to threads that may wait.
    pub fn authorizer(&self) -> Authorizer {
        let state = &self.visit.state;
        Authorizer {
            admission: state.admission.clone(),
            audit: Arc::downgrade(&state.audit),
            time: state.time.clone(),
            identity: self.identity.clone(),
            address: self.address(),
        }
    }

    /// The local account of this client, by the server's rules.
    pub fn account(&self) -> Option<String> {
        self.visit.state.admission.account(&self.identity)
    }

    /// Waits until the server wants to stop. A connection that goes on is ended after
    /// [`Limits::shutdown_time`].
    pub async fn stopping(&self) {
        self.visit.state.stopping().await;
    }

    /// Whether the service has ended this connection.
    pub fn has_ended(&self) -> bool {
        self.visit.connection.has_ended()
    }

    pub(crate) fn visit(&self) -> &Visit {
        &self.visit
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
