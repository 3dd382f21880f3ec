//! Metrics and health from outside, and the calendar of renewals.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use exoskel_service::{Audit, LogTarget, Peer, Stream};
use peers::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn nothing(_stream: Stream, _peer: Peer) {}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn metrics_and_health_are_told() {
    let server = Running::start(nothing, |_| ());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handle = server.handle.clone();
    let monitor = tokio::spawn(async move { handle.monitor(listener).await });
    let card = server.authority.user("ada");
    let mut stream = server.connect(&card).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    server.handle.renew().await;
    let metrics = get(address, "/metrics").await;
    for line in [
        "exoskel_handshakes_total{reason=\"accepted\"} 1",
        "exoskel_trust_reloads_total 1",
        "exoskel_trust_generation 1",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(get(address, "/health").await.ends_with("ok\n"));
    assert!(get(address, "/").await.starts_with("HTTP/1.1 404"));
    server.stop().await;
    monitor.await.unwrap().unwrap();
}

#[tokio::test]
async fn audit_lines_that_the_disk_refuses_are_counted() {
    let full = LogTarget::File("/dev/full".into());
    let server = Running::start(nothing, |settings| {
        settings.audit = Audit::open(&full).unwrap()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handle = server.handle.clone();
    let monitor = tokio::spawn(async move { handle.monitor(listener).await });
    let card = server.authority.user("ada");
    let mut stream = server.connect(&card).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    while !get(address, "/metrics")
        .await
        .contains("exoskel_audit_lines_lost 1")
    {
        tokio::task::yield_now().await;
    }
    server.stop().await;
    monitor.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_hangup_renews() {
    let server = Running::start(nothing, |_| ());
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
    let handle = server.handle.clone();
    let keeper = tokio::spawn(async move {
        handle
            .keep_current(std::time::Duration::from_secs(3600), hangup)
            .await;
    });
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
    while !server
        .handle
        .metrics()
        .text()
        .contains("trust_reloads_total 1")
    {
        tokio::task::yield_now().await;
    }
    server.stop().await;
    keeper.await.unwrap();
}
