//! A load generator: connections with mutual TLS, one request on each unless told otherwise.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example load -- 127.0.0.1:8443 proxy.pem ca.pem \
//!     seconds=5 connections=100 expect="/CN=Ada"
//! ```
//! `connections` clients ask one after the other, each when it has its answer (a closed loop), so the load adapts to the
//! server. With `rate`, requests begin that often per second whether or not earlier ones were answered (an open loop): then
//! `connections` is how many may be under way, and what finds no room is counted as `unsent`.
//!
//! - `seconds`: how long requests begin;
//! - `requests`: how many are sent on one connection, 1 by default; a closed loop only;
//! - `expect`: what a good answer holds, head included; may be given several times;
//! - `timeout`: seconds for one connection, from dialling to its last byte;
//! - `sources`: from how many addresses of 127.0.0.0/8 connections come, as from so many hosts.
//!
//! It prints one JSON object: counts by outcome, and percentiles of the time from dialling to the last byte (from the
//! request's first byte, for those after the first of a connection), in milliseconds.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const LAST_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What was asked for on the command line.
struct Plan {
    address: SocketAddr,
    connector: TlsConnector,
    seconds: f64,
    connections: usize,
    requests: usize,
    rate: Option<f64>,
    timeout: Duration,
    sources: u32,
    expect: Vec<String>,
    next_source: AtomicU32,
}

/// How requests came out.
#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    /// Answered with 503.
    overloaded: usize,
    /// The connection was reset or closed before an answer.
    reset: usize,
    timed_out: usize,
    /// Anything else, with what it was.
    failed: usize,
    fault: Option<String>,
    unsent: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.overloaded += other.overloaded;
        self.reset += other.reset;
        self.timed_out += other.timed_out;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.fault = self.fault.take().or(other.fault);
    }

    fn count(&mut self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::ResourceBusy => self.overloaded += 1,
            io::ErrorKind::TimedOut => self.timed_out += 1,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => self.reset += 1,
            _ => {
                self.failed += 1;
                self.fault.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

impl Plan {
    fn read(words: &[String]) -> Result<Self, Box<dyn Error>> {
        let [address, credential, authority, settings @ ..] = words else {
            return Err("expected ADDRESS CREDENTIAL AUTHORITY [NAME=VALUE ..]".into());
        };
        let mut plan = Self {
            address: address.parse()?,
            connector: connector(credential, authority)?,
            seconds: 5.0,
            connections: 16,
            requests: 1,
            rate: None,
            timeout: Duration::from_secs(30),
            sources: 1,
            expect: Vec::new(),
            next_source: AtomicU32::new(0),
        };
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or("expected NAME=VALUE")?;
            match name {
                "seconds" => plan.seconds = value.parse()?,
                "connections" => plan.connections = value.parse()?,
                "requests" => plan.requests = value.parse()?,
                "rate" => plan.rate = Some(value.parse()?),
                "timeout" => plan.timeout = Duration::from_secs_f64(value.parse()?),
                "sources" => plan.sources = value.parse()?,
                "expect" => plan.expect.push(value.to_owned()),
                _ => return Err(format!("got {name}, expected a setting").into()),
            }
        }
        Ok(plan)
    }

    /// One connection with all its requests.
    async fn connect_and_ask(&self) -> Tally {
        let mut tally = Tally::default();
        let asked = self.ask_all(&mut tally);
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tally.count(&error),
            Err(_) => tally.timed_out += 1,
        }
        tally
    }

    async fn ask_all(&self, tally: &mut Tally) -> io::Result<()> {
        let mut begin = Instant::now();
        let mut stream = self.dial().await?;
        for left in (0..self.requests).rev() {
            let request = if left == 0 { LAST_REQUEST } else { REQUEST };
            stream.write_all(request).await?;
            self.read_answer(&mut stream, left == 0).await?;
            tally.times.push(begin.elapsed());
            begin = Instant::now();
        }
        Ok(())
    }

    async fn dial(&self) -> io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        if self.sources > 1 {
            let number = self.next_source.fetch_add(1, Ordering::Relaxed) % self.sources;
            let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 1, 1)) + number);
            socket.bind(SocketAddr::new(IpAddr::V4(source), 0))?;
        }
        let socket = socket.connect(self.address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        self.connector.connect(name, socket).await
    }

    /// Reads one answer, to the end of the stream if it is the last one.
    async fn read_answer(
        &self,
        stream: &mut TlsStream<TcpStream>,
        is_last: bool,
    ) -> io::Result<()> {
        let mut answer = Vec::with_capacity(2048);
        loop {
            let whole = length(&answer).is_some_and(|length| answer.len() >= length);
            if whole && !is_last {
                break;
            }
            if answer.len() > ANSWER_BYTES_MAX {
                return Err(io::Error::other("an answer that is too long"));
            }
            match stream.read_buf(&mut answer).await {
                Ok(0) if whole => break,
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                // Apache, unlike us, may reset after its last byte.
                Err(_) if whole => break,
                Err(error) => return Err(error),
            }
        }
        if answer.starts_with(b"HTTP/1.1 503") {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let good = text.starts_with("HTTP/1.1 200")
            && self.expect.iter().all(|part| text.contains(part.as_str()));
        good.then_some(())
            .ok_or_else(|| io::Error::other(format!("not the answer that was expected: {text}")))
    }

    async fn closed_loop(self: Arc<Self>) -> Result<Tally, Box<dyn Error>> {
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            let plan = self.clone();
            tasks.spawn(async move {
                let mut tally = Tally::default();
                while Instant::now() < end {
                    tally.add(plan.connect_and_ask().await);
                }
                tally
            });
        }
        join(tasks).await
    }

    async fn open_loop(self: Arc<Self>, rate: f64) -> Result<Tally, Box<dyn Error>> {
        let room = Arc::new(Semaphore::new(self.connections));
        let start = tokio::time::Instant::now();
        let mut tasks = JoinSet::new();
        let mut done = Tally::default();
        for number in 0_u32.. {
            let due = f64::from(number) / rate;
            if due >= self.seconds {
                break;
            }
            tokio::time::sleep_until(start + Duration::from_secs_f64(due)).await;
            // Their results are many; they don't wait for the end.
            while let Some(tally) = tasks.try_join_next() {
                done.add(tally?);
            }
            match room.clone().try_acquire_owned() {
                Ok(place) => {
                    let plan = self.clone();
                    tasks.spawn(async move {
                        let tally = plan.connect_and_ask().await;
                        drop(place);
                        tally
                    });
                }
                Err(_) => done.unsent += 1,
            }
        }
        done.add(join(tasks).await?);
        Ok(done)
    }
}

async fn join(mut tasks: JoinSet<Tally>) -> Result<Tally, Box<dyn Error>> {
    let mut tally = Tally::default();
    while let Some(done) = tasks.join_next().await {
        tally.add(done?);
    }
    Ok(tally)
}

/// Where an answer ends, once its head is there.
fn length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&answer[..head]).ok()?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    })?;
    Some(head + body)
}

fn connector(credential: &str, authority: &str) -> Result<TlsConnector, Box<dyn Error>> {
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
    Ok(TlsConnector::from(Arc::new(config)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let plan = Arc::new(Plan::read(&words)?);
    let start = Instant::now();
    let mut tally = match plan.rate {
        Some(rate) => plan.open_loop(rate).await?,
        None => plan.closed_loop().await?,
    };
    let took = start.elapsed().as_secs_f64();
    tally.times.sort_unstable();
    let times = &tally.times;
    let at = |part: usize| {
        let time = times.get((times.len() * part / 1000).min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let report = json!({
        "served": times.len(),
        "overloaded": tally.overloaded,
        "reset": tally.reset,
        "timed_out": tally.timed_out,
        "failed": tally.failed,
        "unsent": tally.unsent,
        "fault": tally.fault,
        "seconds": took,
        "p50_ms": at(500),
        "p90_ms": at(900),
        "p99_ms": at(990),
        "max_ms": at(1000),
    });
    println!("{report}");
    Ok(())
}
