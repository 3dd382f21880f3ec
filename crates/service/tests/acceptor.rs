//! The acceptor through real TLS: who comes in, who doesn't, and what it costs the others.
#![allow(missing_docs)]

mod peers;

use exoskel_service::{Outcome, Peer, Stream};
use peers::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Answers with the client's name.
async fn name(mut stream: Stream, peer: Peer) {
    let _ = stream.write_all(peer.identity().name().as_bytes()).await;
    let _ = stream.shutdown().await;
}

#[tokio::test]
async fn a_client_comes_in_with_either_version_of_tls() {
    let server = Running::start(name, |_| ());
    let card = server.authority.user("ada");
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = server.client(&card, &[], &[version]);
        let socket = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let mut stream = peers::connect(config, socket).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "ada");
    }
    assert_eq!(server.handle.metrics().handshakes(Outcome::Accepted), 2);
    server.stop().await;
}
