//! A TCP service that tells each client who it is: distinguished name, virtual organisation, attributes.
//!
//! It speaks just enough HTTP for load generators that speak nothing else: one request for each connection, which must
//! fit into one read.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example generic -- service.toml
//! ```

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use exoskel_service::{Configuration, Peer, Stream, run};
use tokio::io::AsyncReadExt as _;

/// Bytes of a request that are looked at.
const REQUEST_BYTES_MAX: usize = 4096;

async fn whoami(mut stream: Stream, peer: Peer) {
    let mut request = [0; REQUEST_BYTES_MAX];
    let mut length = 0;
    while !request[..length].ends_with(b"\r\n\r\n") {
        match stream.read(&mut request[length..]).await {
            Ok(count) if count > 0 => length += count,
            _ => return,
        }
    }
    let answer = answer(&peer);
    // A client that has gone needs no answer.
    let _ = stream.finish(answer.as_bytes()).await;
}

fn answer(peer: &Peer) -> String {
    let identity = peer.identity();
    let mut body = format!("DN: {}\n", identity.grid_subject().unwrap_or_default());
    if let Some(vo) = identity.vo() {
        let _ = writeln!(body, "VO: {vo}");
    }
    for fqan in identity.fqans() {
        let _ = writeln!(body, "FQAN: {fqan}");
    }
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("expected the path of a configuration file")?;
    let configuration = Configuration::read(Path::new(&file))?;
    run(&configuration, whoami).await?;
    Ok(())
}
