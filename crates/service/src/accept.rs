//! From an accepted connection to a [`Stream`] and a [`Peer`] in the hands of a handler: the handshake, and what is written down of
//! it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use exoskel_identity::VerifiedIdentity;
use rustls_pki_types::UnixTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::admission::{CONNECT, Refused, still_good};
use crate::audit::{AuditLine, ReservedLine, Verdict};
use crate::connections::{Admitted, Connection, PeerTransport};
use crate::limits::{DESCRIPTORS_PAUSE, REFUSAL_BYTES_MAX, REFUSAL_TIME};
use crate::metrics::HandshakeOutcome;
use crate::peer::{Handler, Peer, Stream};
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
                if let Ok(admitted) = state.connections.open(socket, address) {
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
        if let Some((stream, peer)) = welcome(&admitted, &acceptor, &state).await {
            handler.handle(stream, peer).await;
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

/// Runs the handshake and writes down how it came out.
async fn welcome(
    admitted: &Admitted,
    acceptor: &TlsAcceptor,
    state: &Arc<ServerState>,
) -> Option<(Stream, Peer)> {
    let metrics = state.connections.metrics();
    let connection = admitted.connection();
    // Before anything is decided: a verdict that the client learns in the handshake has its line, even if the time of the
    // connection ends while the disk can't follow. The alert itself fits into any socket's buffer.
    let reserved = state.audit.reserve().await;
    let epoch = state.epoch();
    let handshake = async {
        let result = acceptor.accept(admitted.transport()).into_fallible().await;
        (result, VERDICT.with(Cell::take))
    };
    let (result, verdict) = VERDICT.scope(Cell::new(None), handshake).await;
    let now = state.now();
    match (result, verdict) {
        (Ok(stream), Some(Ok(identity))) => {
            admitted.identify(identity.clone());
            // Who judged everybody again meanwhile did not see this connection.
            if state.epoch() != epoch {
                let again = state.admission.judge(identity.chain(), now);
                match still_good(&identity, &again) {
                    Ok(again) => connection.confirm(again),
                    Err(reason) => {
                        metrics.count_handshake(HandshakeOutcome::Refused, connection.age());
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
            let protocol = stream.get_ref().1.alpn_protocol().map(Box::from);
            let peer = Peer::new(identity, protocol, connection.clone(), state.clone());
            Some((Stream(stream), peer))
        }
        (result, Some(Err(refused))) => {
            metrics.count_handshake(HandshakeOutcome::Refused, connection.age());
            record_refusal(reserved, connection, &refused, now);
            if let Err((_, transport)) = result {
                let _ = tokio::time::timeout(REFUSAL_TIME, drain(transport)).await;
            }
            None
        }
        (result, verdict) => {
            let outcome = match &result {
                Err((error, _)) => match refused_by_engine(error, verdict) {
                    Some(refused) => {
                        record_refusal(reserved, connection, &refused, now);
                        HandshakeOutcome::Refused
                    }
                    None => {
                        tracing::debug!(address = %connection.address(), "handshake failed: {error}");
                        HandshakeOutcome::Failed
                    }
                },
                Ok(_) => HandshakeOutcome::Failed,
            };
            metrics.count_handshake(outcome, connection.age());
            if let (HandshakeOutcome::Refused, Err((_, transport))) = (outcome, result) {
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

fn record_refusal(line: ReservedLine, connection: &Connection, refused: &Refused, now: UnixTime) {
    line.write(&AuditLine::refused(
        refused,
        connection.address(),
        now,
        CONNECT,
    ));
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
