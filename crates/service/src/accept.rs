//! From an accepted connection to a [`Stream`] and a [`Peer`] in the hands of a handler: the handshake, and what is written down of
//! it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use exoskel_identity::VerifiedIdentity;
use rustls_pki_types::UnixTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::admission::{CONNECT, Refused, Who, still_good};
use crate::audit::{AuditLine, ReservedLine, Verdict};
use crate::balancers::{ProxyHeaderError, read_header};
use crate::connections::{Admitted, Connection, PeerTransport};
use crate::limits::{DESCRIPTORS_PAUSE, REFUSAL_BYTES_MAX, REFUSAL_TIME};
use crate::metrics::{HandshakeOutcome, Refusal, RefusalCause};
use crate::peer::{Handler, Peer, Stranger, Strangers, Stream, Visit};
use crate::plain_http::{self, PlainHttp};
use crate::request_slots::HeldPart;
use crate::server_state::ServerState;
use crate::tls::VERDICT;

pub(crate) async fn accept<H: Handler>(
    listener: &TcpListener,
    state: &Arc<ServerState>,
    acceptor: &TlsAcceptor,
    handler: Arc<H>,
) {
    let mut stopping = state.stopping.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                // A refused one is reset as its socket is dropped here.
                let is_balancer = state.is_balancer(address.ip());
                if let Ok(admitted) = state.connections.open(socket, address, is_balancer) {
                    let served = serve(admitted, acceptor.clone(), state.clone(), handler.clone());
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
    state: Arc<ServerState>,
    handler: Arc<H>,
) {
    let connection = admitted.connection().clone();
    let served = async {
        match welcome(&admitted, &acceptor, handler.strangers(), &state).await {
            Some(Welcomed::Peer(stream, peer)) => handler.handle(stream, peer).await,
            Some(Welcomed::Stranger(stream, stranger)) => {
                handler.handle_stranger(stream, stranger).await;
            }
            None => {}
        }
    };
    tokio::select! {
        biased;
        () = connection.ended() => {
            if !connection.is_identified() {
                state.connections.metrics().count_handshake(HandshakeOutcome::TimedOut, connection.age());
            }
        }
        () = served => {}
    }
    drop(connection);
}

/// Who is to be served.
enum Welcomed {
    Peer(Stream, Peer),
    Stranger(Stream, Stranger),
}

/// Learns from a load balancer where the client is.
async fn locate(admitted: &Admitted, state: &ServerState) -> Option<()> {
    let neighbour = admitted.connection().address();
    if !state.is_balancer(neighbour.ip()) {
        return Some(());
    }
    match read_header(&mut admitted.transport()).await {
        Ok(Some(client)) => admitted.is_from(client).ok(),
        Ok(None) => Some(()),
        // Balancers look in this way whether somebody listens.
        Err(ProxyHeaderError::Transport(_)) => None,
        Err(error) => {
            tracing::warn!("a connection of the balancer {neighbour} is refused: {error}");
            state.connections.metrics().count_refused(Refusal::Balancer);
            None
        }
    }
}

/// Runs the handshake and writes down how it came out.
async fn welcome(
    admitted: &Admitted,
    acceptor: &TlsAcceptor,
    strangers: Strangers,
    state: &Arc<ServerState>,
) -> Option<Welcomed> {
    locate(admitted, state).await?;
    let metrics = state.connections.metrics();
    let connection = admitted.connection();
    // Before anything is decided: a verdict that the client learns in the handshake has its line, even if the time of the
    // connection ends while the disk can't follow. The alert itself fits into any socket's buffer.
    let reserved = state.audit.reserve().await;
    let epoch = state.epoch();
    let handshake = async {
        let result = acceptor
            .accept(admitted.transport_of_handshake())
            .into_fallible()
            .await;
        (result, VERDICT.with(Cell::take))
    };
    let (result, verdict) = VERDICT.scope(Cell::new(None), handshake).await;
    let now = state.now();
    match (result, verdict) {
        (Ok(stream), Some(Ok(identity))) => {
            admitted.identify(Some(identity.clone()));
            // Who judged everybody again meanwhile did not see this connection.
            if state.epoch() != epoch {
                let again = state.admission.judge(identity.chain(), now);
                match still_good(&identity, &again) {
                    Ok(again) => connection.confirm(again),
                    Err(reason) => {
                        metrics.count_handshake(HandshakeOutcome::Refused, connection.age());
                        metrics.count_identity_refused(RefusalCause::Rules);
                        let (address, refused) = (connection.address(), Verdict::Refused);
                        let line = AuditLine::identified(
                            &identity, address, now, CONNECT, refused, reason,
                        );
                        reserved.write(&line);
                        return None;
                    }
                }
            }
            metrics.count_handshake(HandshakeOutcome::Accepted, connection.age());
            let line = AuditLine::identified(
                &identity,
                connection.address(),
                now,
                CONNECT,
                Verdict::Accepted,
                "",
            );
            reserved.write(&line);
            let peer = Peer::new(identity, visit(&stream, connection, state));
            Some(Welcomed::Peer(Stream(stream), peer))
        }
        (Ok(stream), Some(Err(refused))) => {
            metrics.count_handshake(HandshakeOutcome::Refused, connection.age());
            metrics.count_identity_refused(refused.cause);
            record_refusal(reserved, connection, &refused, now);
            stranger(stream, Some(refused), admitted, state)
        }
        (Ok(stream), None) => {
            // No decision was made about anybody: the place of its line is given back.
            drop(reserved);
            metrics.count_handshake(HandshakeOutcome::WithoutCertificate, connection.age());
            stranger(stream, None, admitted, state)
        }
        (Err((error, transport)), _) if is_plain_http(&error) => {
            tracing::debug!(address = %connection.address(), "{error}");
            metrics.count_handshake(HandshakeOutcome::Failed, connection.age());
            let _ = tokio::time::timeout(REFUSAL_TIME, answer_plain_http(transport)).await;
            None
        }
        (Err((error, transport)), verdict) => {
            let refused = match verdict {
                // Nothing of a faulty chain was to be proven, so whatever else went wrong doesn't matter.
                Some(Err(refused))
                    if !strangers.take(&refused) || matches!(refused.who, Who::Claimed { .. }) =>
                {
                    Some(*refused)
                }
                verdict => refused_by_engine(&error, verdict),
            };
            let Some(refused) = refused else {
                tracing::debug!(address = %connection.address(), "handshake failed: {error}");
                metrics.count_handshake(HandshakeOutcome::Failed, connection.age());
                return None;
            };
            metrics.count_handshake(HandshakeOutcome::Refused, connection.age());
            metrics.count_identity_refused(refused.cause);
            record_refusal(reserved, connection, &refused, now);
            let _ = tokio::time::timeout(REFUSAL_TIME, drain(transport)).await;
            None
        }
    }
}

fn visit(
    stream: &TlsStream<PeerTransport>,
    connection: &Arc<Connection>,
    state: &Arc<ServerState>,
) -> Visit {
    Visit {
        protocol: stream.get_ref().1.alpn_protocol().map(Box::from),
        connection: connection.clone(),
        state: state.clone(),
    }
}

/// A client that is told by the handler why it may not come in, if there is a place for it.
fn stranger(
    stream: TlsStream<PeerTransport>,
    refused: Option<Box<Refused>>,
    admitted: &Admitted,
    state: &Arc<ServerState>,
) -> Option<Welcomed> {
    let Some(place) = stranger_place(admitted, state) else {
        let metrics = state.connections.metrics();
        metrics.count_refused(Refusal::Strangers);
        return None;
    };
    admitted.identify(None);
    let stranger = Stranger {
        refused,
        visit: visit(&stream, admitted.connection(), state),
        _place: place,
    };
    Some(Welcomed::Stranger(Stream(stream), stranger))
}

fn stranger_place(
    admitted: &Admitted,
    state: &ServerState,
) -> Option<(OwnedSemaphorePermit, HeldPart)> {
    let address = admitted.connection().address();
    let part = state.stranger_shares.of_stranger(address.ip()).take()?;
    let place = state.strangers.clone().try_acquire_owned().ok()?;
    Some((place, part))
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
        (rustls::Error::InvalidCertificate(_), Some(Err(refused))) => match &refused.who {
            Who::Proven(identity) => Some(Refused::without_key(identity)),
            Who::Claimed { .. } => Some(*refused),
        },
        _ => None,
    }
}

fn record_refusal(line: ReservedLine, connection: &Connection, refused: &Refused, now: UnixTime) {
    line.write(&AuditLine::refused(
        refused,
        connection.address(),
        now,
        CONNECT,
    ));
}

fn is_plain_http(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<PlainHttp>())
}

async fn answer_plain_http(mut transport: PeerTransport) -> io::Result<()> {
    transport.write_all(plain_http::ANSWER).await?;
    drain(transport).await
}

/// Lets the client read the alert: closing on unread bytes would send a reset that overtakes it.
async fn drain(mut transport: PeerTransport) -> io::Result<()> {
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
