//! The acceptor: from a listening socket to a stream and a [`VerifiedIdentity`] in the hands of a handler.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use exoskel_identity::VerifiedIdentity;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls_pki_types::UnixTime;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::audit::{Audit, Line, Place, Verdict};
use crate::connections::{Admitted, Connection, Connections, Running, Transport};
use crate::door::{CONNECT, Door, Refused};
use crate::host::{HostCredential, HostCredentialError};
use crate::limits::{
    BACKLOG, BadLimit, DESCRIPTORS_PAUSE, Limits, REFUSAL_BYTES_MAX, REFUSAL_TIME, WATCH_INTERVAL,
};
use crate::metrics::{End, Metrics, Outcome};
use crate::places::Places;
use crate::renewal::{Renewable, still_good};
use crate::tls::{VERDICT, provider, server_config};
use exoskel_trust::Rules;

/// What a server is made of.
#[derive(Clone)]
pub struct Settings {
    /// Where to listen. Port 0 takes any free one.
    pub listen: SocketAddr,
    /// The certificate that clients see.
    pub host: HostCredential,
    /// Who judges the clients' chains.
    pub verifier: Arc<dyn Renewable>,
    /// Who may connect, as the action `connect`; everybody with a good identity where there are no rules.
    pub rules: Option<Arc<Rules>>,
    /// Whether clients may show certificates that are for servers only: their extended key usages, or those of an authority
    /// above, lack `clientAuth` (RFC 5280 section 4.2.1.12).
    pub server_certificates: bool,
    /// What strangers and slow clients may take.
    pub limits: Limits,
    /// Where decisions are written down.
    pub audit: Arc<Audit>,
    /// The calendar by which certificates are judged.
    pub time: Arc<dyn TimeProvider>,
}

impl Settings {
    /// Settings with default limits, this host's clock and no audit trail.
    pub fn new(listen: SocketAddr, host: HostCredential, verifier: Arc<dyn Renewable>) -> Self {
        Self {
            listen,
            host,
            verifier,
            rules: None,
            server_certificates: false,
            limits: Limits::default(),
            audit: Audit::nowhere(),
            time: Arc::new(DefaultTimeProvider),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("listen", &self.listen)
            .field("host", &self.host)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Why a server can't start. Its administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address.
    #[error("can't listen on {address}: {reason}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// The host certificate or its key.
    #[error(transparent)]
    Credential(#[from] HostCredentialError),
    /// The TLS engine refuses its settings.
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// A limit that can't work.
    #[error(transparent)]
    Limit(#[from] BadLimit),
}

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
    shared: Arc<Shared>,
}

impl Peer {
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
        let now = self.shared.now();
        let address = self.address();
        let line = Line::identified(&self.identity, address, now, action, verdict, reason);
        self.shared.audit.record(&line).await;
    }

    /// Waits until the server wants to stop. A connection that goes on is ended after
    /// [`Limits::shutdown_time`].
    pub async fn stopping(&self) {
        self.shared.stopping().await;
    }

    /// Whether the service has ended this connection.
    pub fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
pub struct Working(#[expect(dead_code, reason = "dropping it is what it is for")] Running);

/// A protected stream to a client whose identity is proven.
#[derive(Debug)]
pub struct Stream(TlsStream<Transport>);

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

/// What a server's tasks share.
pub(crate) struct Shared {
    pub(crate) connections: Arc<Connections>,
    pub(crate) door: Arc<Door>,
    host: Host,
    renewing: Mutex<()>,
    /// Grows with each change after which everybody is judged again.
    epoch: AtomicU64,
    pub(crate) places: Places,
    pub(crate) audit: Arc<Audit>,
    pub(crate) time: Arc<dyn TimeProvider>,
    stopping: watch::Sender<bool>,
}

/// The host's certificate, as new connections show it.
struct Host {
    files: HostCredential,
    provider: Arc<CryptoProvider>,
    current: Arc<ArcSwap<CertifiedKey>>,
}

impl Shared {
    /// Reads the host's certificate again.
    pub(crate) fn renew_host(&self) -> Result<(), HostCredentialError> {
        let new = self.host.files.load(&self.host.provider)?;
        if new.cert != self.host.current.load().cert {
            self.host.current.store(new);
        }
        Ok(())
    }

    /// Waits until the server is told to stop.
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this does, so there is no error.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// A verdict of an earlier epoch counts no longer.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Held by the one who renews.
    pub(crate) fn renewing(&self) -> MutexGuard<'_, ()> {
        self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> UnixTime {
        // A host without a calendar trusts nobody: everything has expired by then.
        self.time
            .current_time()
            .unwrap_or_else(|| UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::MAX)))
    }
}

/// A listening server.
pub struct Server {
    listener: TcpListener,
    settings: Settings,
    shared: Arc<Shared>,
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

impl Server {
    /// Listens. Clients wait in the kernel's queue until [`run`](Self::run).
    ///
    /// # Errors
    /// [`StartError`] says what the administrator must change.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(settings: Settings) -> Result<Self, StartError> {
        settings.limits.check()?;
        let provider = provider();
        let host = settings.host.load(&provider)?;
        let listener = listen(settings.listen).map_err(|reason| StartError::Listen {
            address: settings.listen,
            reason,
        })?;
        let metrics = Arc::new(Metrics::default());
        metrics.set_generation(settings.verifier.generation());
        let shared = Arc::new(Shared {
            connections: Arc::new(Connections::new(settings.limits.clone(), metrics)),
            door: Arc::new(Door::new(&settings)),
            host: Host {
                files: settings.host.clone(),
                provider,
                current: Arc::new(ArcSwap::new(host)),
            },
            renewing: Mutex::default(),
            epoch: AtomicU64::new(0),
            places: Places::new(&settings.limits),
            audit: settings.audit.clone(),
            time: settings.time.clone(),
            stopping: watch::Sender::new(false),
        });
        Ok(Self {
            listener,
            settings,
            shared,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system can't say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What steers and watches the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            shared: self.shared.clone(),
        }
    }

    /// Serves until [`ServerHandle::stop`], then lets connections finish for [`Limits::shutdown_time`].
    ///
    /// # Errors
    /// [`StartError`] when the TLS engine can't be set up.
    pub async fn run<H: Handler>(self, handler: H) -> Result<(), StartError> {
        let config = server_config(
            self.shared.host.provider.clone(),
            self.shared.door.clone(),
            self.shared.host.current.clone(),
            H::PROTOCOLS,
            self.settings.time.clone(),
        )?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let watchman = AbortOnDrop(tokio::spawn(watch_connections(self.shared.clone())));
        accept(&self.listener, &self.shared, &acceptor, Arc::new(handler)).await;
        drop(self.listener);
        let emptied = self.shared.connections.emptied();
        let time = self.settings.limits.shutdown_time;
        if tokio::time::timeout(time, emptied).await.is_err() {
            self.shared.connections.end_all(End::Shutdown);
            self.shared.connections.emptied().await;
        }
        drop(watchman);
        Ok(())
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Steers and watches a server.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServerHandle")
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    /// Stops accepting, and asks connections to finish.
    pub fn stop(&self) {
        self.shared.stopping.send_replace(true);
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopping(&self) -> bool {
        *self.shared.stopping.borrow()
    }

    /// The server's numbers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.shared.connections.metrics()
    }

    /// Connections now, and how many of them are in their handshake.
    pub fn open(&self) -> (usize, usize) {
        self.shared.connections.count()
    }

    /// Waits until [`stop`](Self::stop) is called.
    pub async fn stopping(&self) {
        self.shared.stopping().await;
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept<H: Handler>(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    acceptor: &TlsAcceptor,
    handler: Arc<H>,
) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                // A refused one is reset as its socket is dropped here.
                if let Ok(admitted) = shared.connections.open(socket, address) {
                    let served = serve(admitted, acceptor.clone(), shared.clone(), handler.clone());
                    tokio::spawn(served);
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::error!("can't accept connections for now: {error}");
                tokio::time::sleep(DESCRIPTORS_PAUSE).await;
            }
        }
    }
}

/// Whether only the connection that was just to be accepted is concerned.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

async fn serve<H: Handler>(
    admitted: Admitted,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    handler: Arc<H>,
) {
    let connection = admitted.connection().clone();
    let served = async {
        if let Some((stream, peer)) = welcome(&admitted, &acceptor, &shared).await {
            handler.handle(stream, peer).await;
        }
    };
    tokio::select! {
        biased;
        () = connection.ended() => {
            if !connection.is_identified() {
                shared.connections.metrics().count_handshake(Outcome::TimedOut, connection.age());
            }
        }
        () = served => {}
    }
    drop(connection);
}

/// Runs the handshake and writes down how it came out.
async fn welcome(
    admitted: &Admitted,
    acceptor: &TlsAcceptor,
    shared: &Arc<Shared>,
) -> Option<(Stream, Peer)> {
    let metrics = shared.connections.metrics();
    let connection = admitted.connection();
    // Before anything is decided: a verdict that the client learns in the handshake has its line, even if the time of the
    // connection ends while the disk can't follow. The alert itself fits into any socket's buffer.
    let place = shared.audit.reserve().await;
    let epoch = shared.epoch();
    let handshake = async {
        let result = acceptor.accept(admitted.transport()).into_fallible().await;
        (result, VERDICT.with(Cell::take))
    };
    let (result, verdict) = VERDICT.scope(Cell::new(None), handshake).await;
    let now = shared.now();
    match (result, verdict) {
        (Ok(stream), Some(Ok(identity))) => {
            admitted.identify(identity.clone());
            // Who judged everybody again meanwhile did not see this connection.
            if shared.epoch() != epoch {
                let again = shared.door.judge(identity.chain(), now);
                match still_good(&identity, &again) {
                    Ok(again) => connection.confirm(again),
                    Err(reason) => {
                        metrics.count_handshake(Outcome::Refused, connection.age());
                        let (address, refused) = (connection.address(), Verdict::Refused);
                        let line =
                            Line::identified(&identity, address, now, CONNECT, refused, reason);
                        place.write(&line);
                        return None;
                    }
                }
            }
            metrics.count_handshake(Outcome::Accepted, connection.age());
            let line = Line::identified(
                &identity,
                connection.address(),
                now,
                CONNECT,
                Verdict::Accepted,
                "",
            );
            place.write(&line);
            let protocol = stream.get_ref().1.alpn_protocol().map(Box::from);
            let peer = Peer {
                identity,
                protocol,
                connection: connection.clone(),
                shared: shared.clone(),
            };
            Some((Stream(stream), peer))
        }
        (result, Some(Err(refused))) => {
            metrics.count_handshake(Outcome::Refused, connection.age());
            record_refusal(place, connection, &refused, now);
            if let Err((_, transport)) = result {
                let _ = tokio::time::timeout(REFUSAL_TIME, drain(transport)).await;
            }
            None
        }
        (result, verdict) => {
            let outcome = match &result {
                Err((error, _)) => match refused_by_engine(error, verdict) {
                    Some(refused) => {
                        record_refusal(place, connection, &refused, now);
                        Outcome::Refused
                    }
                    None => {
                        tracing::debug!(address = %connection.address(), "handshake failed: {error}");
                        Outcome::Failed
                    }
                },
                Ok(_) => Outcome::Failed,
            };
            metrics.count_handshake(outcome, connection.age());
            if let (Outcome::Refused, Err((_, transport))) = (outcome, result) {
                let _ = tokio::time::timeout(REFUSAL_TIME, drain(transport)).await;
            }
            None
        }
    }
}

/// Whether the engine found that the client has no identity to be judged by.
fn refused_by_engine(
    error: &io::Error,
    verdict: Option<Result<VerifiedIdentity, Box<Refused>>>,
) -> Option<Refused> {
    let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
    match (error, verdict) {
        (rustls::Error::NoCertificatesPresented, _) => Some(Refused::without_certificate()),
        (rustls::Error::InvalidCertificate(_), Some(Ok(identity))) => {
            Some(Refused::without_key(&identity))
        }
        _ => None,
    }
}

fn record_refusal(place: Place, connection: &Connection, refused: &Refused, now: UnixTime) {
    let line = Line::refused(refused, connection.address(), now, CONNECT);
    place.write(&line);
}

/// Lets the client read the alert: closing on unread bytes would send a reset that overtakes it.
async fn drain(mut transport: Transport) -> io::Result<()> {
    transport.shutdown().await?;
    let mut buffer = [0; 2048];
    let mut left = REFUSAL_BYTES_MAX;
    while left > 0 {
        let count = transport.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count);
    }
    Ok(())
}

/// Two loops: reading files may take as long as a disk or a network lets it, and slow clients must not profit from that.
async fn watch_connections(shared: Arc<Shared>) {
    let watching = async {
        let mut ticks = watch_ticks();
        loop {
            ticks.tick().await;
            shared.connections.watch(shared.now());
        }
    };
    let handle = ServerHandle {
        shared: shared.clone(),
    };
    let reading = async {
        let mut ticks = watch_ticks();
        loop {
            ticks.tick().await;
            for fault in handle.renew_rules().await.faults {
                tracing::error!("{fault}");
            }
        }
    };
    tokio::join!(watching, reading);
}

fn watch_ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}
