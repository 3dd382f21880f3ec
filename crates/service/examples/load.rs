//! A load generator: one new connection with mutual TLS for each request, as many at once as asked for.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example load -- 127.0.0.1:8443 proxy.pem ca.pem SECONDS CONNECTIONS
//! ```
//! It prints requests, failures, and percentiles of the time from dialling to the last byte, in milliseconds.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

async fn ask(connector: &TlsConnector, address: SocketAddr) -> std::io::Result<bool> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
    let mut stream = connector.connect(name, socket).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::with_capacity(1024);
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, credential, authority, seconds, connections] = words.as_slice() else {
        return Err("expected ADDRESS CREDENTIAL AUTHORITY SECONDS CONNECTIONS".into());
    };
    let address: SocketAddr = address.parse()?;
    let credential = std::fs::read(credential)?;
    let chain = CertificateDer::pem_slice_iter(&credential).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&credential)?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.kx_groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
    // Unchecked: the engine does not read proxy certificates.
    let signer = provider.key_provider.load_private_key(key)?;
    let credential = SingleCertAndKey::from(CertifiedKey::new(chain, signer));
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(credential));
    config.resumption = rustls::client::Resumption::disabled();
    let connector = TlsConnector::from(Arc::new(config));
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds.parse()?);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..connections.parse()? {
        let connector = connector.clone();
        tasks.spawn(async move {
            let (mut times, mut failed) = (Vec::new(), 0_usize);
            while Instant::now() < end {
                let begin = Instant::now();
                match ask(&connector, address).await {
                    Ok(true) => times.push(begin.elapsed()),
                    _ => failed += 1,
                }
            }
            (times, failed)
        });
    }
    let (mut times, mut failed) = (Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        let (more, faults) = done?;
        times.extend(more);
        failed += faults;
    }
    let took = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |part: usize| {
        let time = times.get((times.len() * part / 1000).min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let count = times.len();
    println!(
        "requests {count} failed {failed} seconds {took:.2} per_second {:.0} p50 {:.1} p90 {:.1} p99 {:.1}",
        count as f64 / took,
        at(500),
        at(900),
        at(990)
    );
    Ok(())
}
