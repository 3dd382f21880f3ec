//! Handshakes with a gateway, on either side: they begin no session. Behind the answer, the connection is a tunnel's or waits for
//! calls.

use std::io;
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use exoskel_link::handshake::{
    Accept, Answer, Hello, NodeConfig, ProcessNumber, Purpose, Refuse, RefuseReason, accept,
};

use super::{
    Asked, CUT_OFF, EstablishError, HandshakeWire, ciphers, client_engine, hear_hello,
    within_handshake_time,
};
use crate::socket::Socket;
use crate::tls::Handshake;
use crate::transport::Transport;

/// A connection that has a gateway's answer: its TLS goes on for calls, or is left behind for the tunnel's own bytes.
pub(crate) struct AnsweredConnection {
    transport: Transport,
    /// Away only while it works, and for good when that was cut off.
    engine: Option<Box<dyn Handshake>>,
}

impl AnsweredConnection {
    /// The connection without its TLS.
    pub(crate) fn into_socket(self) -> Option<Socket> {
        self.transport.into_socket()
    }

    /// Waits until the other side has sent something, or ended; takes nothing.
    pub(crate) async fn heard(&self) -> io::Result<()> {
        self.transport.heard().await
    }

    /// Sends a message as one TLS record. If this is dropped before its end, the connection is of no use any more.
    pub(crate) async fn send(&mut self, message: &[u8]) -> Result<(), EstablishError> {
        let engine = self.engine.take().ok_or(CUT_OFF)?;
        let mut wire = HandshakeWire::new(&self.transport, engine);
        let sent = wire.send(message).await;
        self.engine = wire.engine.take();
        sent
    }

    /// Receives a message. If this is dropped before its end, the connection is of no use any more.
    pub(crate) async fn receive(&mut self) -> Result<Vec<u8>, EstablishError> {
        let engine = self.engine.take().ok_or(CUT_OFF)?;
        let mut wire = HandshakeWire::new(&self.transport, engine);
        let received = wire.receive().await;
        self.engine = wire.engine.take();
        received
    }
}

/// Shakes hands with the gateway of this name and says what we want. Its answer may take `patience`.
pub(crate) async fn ask(
    socket: Socket,
    config: &NodeConfig,
    name: &str,
    purpose: Purpose,
    patience: Duration,
) -> Result<AnsweredConnection, EstablishError> {
    socket.keep_alive()?;
    let engine = client_engine(config, Some(name.to_owned()))?;
    let transport = Transport::Stream(socket);
    let asked = Box::pin(Asked::ask(&transport, engine, config, true, purpose));
    let mut asked = within_handshake_time(config, asked).await?;
    let answer = tokio::time::timeout(patience, asked.wire.receive()).await;
    let answer = answer.map_err(|_| EstablishError::Silent(patience))??;
    let Asked {
        wire, hello, peer, ..
    } = *asked;
    // It is checked as if a session followed: an Accept that doesn't fit comes from nobody whom we understand.
    hello.answered(answer, peer.identity.identity())?;
    let engine = wire.engine;
    Ok(AnsweredConnection { transport, engine })
}

/// A client that has proved who it is, said what it wants of this gateway, and waits for the answer.
pub(crate) struct WaitingClient {
    transport: Transport,
    engine: Option<Box<dyn Handshake>>,
    accept: Accept,
    /// What it wants.
    pub(crate) purpose: Purpose,
    /// Who it is.
    pub(crate) identity: VerifiedIdentity,
    /// Which process of that node, as it says.
    pub(crate) process: ProcessNumber,
    /// Its certificates, by which it is judged again.
    pub(crate) chain: Vec<Vec<u8>>,
}

/// Hears what somebody wants who dialled us, a gateway.
pub(crate) async fn hear(
    socket: Socket,
    config: &NodeConfig,
) -> Result<WaitingClient, EstablishError> {
    socket.keep_alive()?;
    let transport = Transport::Stream(socket);
    let heard = Box::pin(async {
        let (mut wire, peer, hello) = hear_hello(&transport, config).await?;
        let judged = judge(config, &transport, &hello, &peer.identity);
        if let Err(refuse) = &judged {
            wire.refuse(refuse).await?;
        }
        let (accept, asked) = judged.map_err(EstablishError::Refused)?;
        Ok((wire.engine.take(), accept, asked, peer))
    });
    let (engine, accept, (process, purpose), peer) = within_handshake_time(config, heard).await?;
    Ok(WaitingClient {
        transport,
        engine,
        accept,
        purpose,
        identity: peer.identity,
        process,
        chain: peer.chain,
    })
}

fn judge(
    config: &NodeConfig,
    transport: &Transport,
    hello: &[u8],
    peer: &VerifiedIdentity,
) -> Result<(Accept, (ProcessNumber, Purpose)), Refuse> {
    let hello = Hello::read(hello).map_err(|error| error.refusal())?;
    config.admit(peer, false).map_err(|error| Refuse {
        reason: RefuseReason::NotAllowed,
        text: error.to_string().into(),
    })?;
    let offer = config.offer(transport.path(), ciphers(), peer);
    let (accept, _) = accept(&hello, peer.identity(), offer)?;
    Ok((accept, (hello.statement.process, hello.purpose)))
}

impl WaitingClient {
    /// Returns when it has left, or says something although it is not its turn.
    pub(crate) async fn left(&self) {
        // An error is an end, too.
        let _ = self.transport.heard().await;
    }

    /// Says yes.
    pub(crate) async fn accept(
        mut self,
        config: &NodeConfig,
    ) -> Result<AnsweredConnection, EstablishError> {
        let answer = Answer::Accept(self.accept).encode()?;
        let engine = self.engine.take().ok_or(CUT_OFF)?;
        let mut wire = HandshakeWire::new(&self.transport, engine);
        within_handshake_time(config, Box::pin(wire.send(&answer))).await?;
        let engine = wire.engine.take();
        Ok(AnsweredConnection {
            transport: self.transport,
            engine,
        })
    }

    /// Says no, and lets it read why.
    pub(crate) async fn refuse(mut self, config: &NodeConfig, refuse: &Refuse) {
        if let Some(engine) = self.engine.take() {
            let mut wire = HandshakeWire::new(&self.transport, engine);
            // Who doesn't listen isn't told.
            let _ = within_handshake_time(config, Box::pin(wire.refuse(refuse))).await;
        }
    }
}
