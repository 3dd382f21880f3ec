//! A peer that knows TLS but keeps to no rule of ours.

use std::sync::Arc;

use exoskel_identity::{Credential, PeerVerifier, Role};
use exoskel_net::tls::{Handshake, Tls, TlsError, TlsFault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A client's TLS engine on a socket of its own.
pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
    engine: Tls,
}

impl RawClient {
    /// Shakes hands with a server to the end of TLS.
    pub(crate) async fn connect(stream: TcpStream, credential: &Credential, peer: Role) -> Self {
        let verifier = Arc::new(credential.authority(1).unwrap());
        Self::connect_judging(stream, credential, verifier, peer).await
    }

    /// The same, with a judge of the server who isn't the credential's own authority.
    pub(crate) async fn connect_judging(
        stream: TcpStream,
        credential: &Credential,
        verifier: Arc<dyn PeerVerifier>,
        peer: Role,
    ) -> Self {
        let engine = Tls::client(credential, verifier, vec![peer], None).unwrap();
        let mut client = Self { stream, engine };
        client.write().await;
        while !client.engine.is_complete() {
            client.read().await.unwrap();
        }
        client
    }

    /// Sends one record of application data.
    pub(crate) async fn send(&mut self, plaintext: &[u8]) {
        self.engine.send(plaintext).unwrap();
        self.write().await;
    }

    /// Reads one record of application data.
    pub(crate) async fn receive(&mut self) -> Result<Vec<u8>, TlsError> {
        loop {
            if let Some(plaintext) = self.engine.take_plaintext()? {
                return Ok(plaintext);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), TlsError> {
        let gone = |error| TlsError::Protocol(TlsFault::Buffer(error));
        let mut record = vec![0; 5];
        self.stream.read_exact(&mut record).await.map_err(gone)?;
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(5 + length, 0);
        let read = self.stream.read_exact(&mut record[5..]).await;
        read.map_err(gone)?;
        let result = self.engine.receive(&record);
        self.write().await;
        result
    }

    async fn write(&mut self) {
        let mut out = Vec::new();
        self.engine.take_outgoing(&mut out);
        self.stream.write_all(&out).await.unwrap();
    }
}

/// A TCP connection over loopback: a bare stream, and the socket of who listened.
pub(crate) async fn stranger() -> (TcpStream, exoskel_net::socket::Socket) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let socket = exoskel_net::socket::Socket::tcp(accepted.unwrap().0).unwrap();
    (dialled.unwrap(), socket)
}
