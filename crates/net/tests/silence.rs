//! Hundreds of connections that say nothing, at a manager that listens: a worker gets in all the same, and the log stays short.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::SchedulerConfig;
use exoskel_net::address::Address;
use exoskel_net::establish::{NodeConfig, dial};
use exoskel_net::listening::Listening;
use exoskel_net::manager::{ManagerConfig, ManagerNode, Notice, Readiness, Recruiting};
use exoskel_net::slot::SlotNode;
use exoskel_net::socket::Socket;

use wire::{Site, run, soon};

/// More than places and backlog together.
const SILENT: usize = 300;

/// Each address has a few lines, and one for all others.
const LINES_MAX: usize = 8;

/// Strangers who would outlast every manager's patience.
fn patient(mut terms: NodeConfig) -> NodeConfig {
    terms.handshake_time = Duration::from_secs(600);
    terms
}

/// Connections that say nothing, held open. The backlog may be full meanwhile: whoever listens makes room.
fn silent(address: SocketAddr) -> Vec<TcpStream> {
    (0..SILENT)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect()
}

#[test]
fn silent_connections_keep_no_worker_from_its_manager() {
    run(async {
        let site = Site::new();
        let listening = Listening::bind(&Address::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let Address::Tcp(address) = listening.address().clone() else {
            panic!("no address");
        };
        let address: SocketAddr = address.parse().unwrap();
        let manager = ManagerNode::start(ManagerConfig {
            at_end: || (),
            terms: patient(site.manager()),
            renewal: None,
            observer: None,
            scheduler: SchedulerConfig::default(),
            recruiting: Recruiting {
                slots: 1,
                contract: None,
                local: None,
                hosts: Vec::new(),
                listen: Some(listening),
                host_file: None,
                hearing: None,
                patience: Duration::from_secs(60),
            },
            setup_local: Bytes::new(),
            setup_remote: Bytes::new(),
            has_initializer: false,
            shared: Arc::default(),
        })
        .unwrap();
        let crowd = tokio::task::spawn_blocking(move || silent(address));
        let crowd = crowd.await.unwrap();
        let socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let worker = patient(site.worker("lab1"));
        let established = dial(Socket::tcp(socket).unwrap(), &worker, None);
        let established = soon("the session", established).await.unwrap();
        let connection = established.connection.clone();
        for endpoint in SlotNode::endpoints() {
            connection.with(|session| session.offer(endpoint)).unwrap();
        }
        let slot = SlotNode::start(connection, established.message_bytes_max).unwrap();
        slot.ready(Vec::new(), Vec::new()).unwrap();
        let serving = slot.clone();
        let serve = tokio::spawn(async move { serving.run().await });
        let notices = tokio::task::spawn_blocking(move || {
            let mut seen = Readiness::default();
            while seen.ready < 1 {
                seen = manager.wait_readiness(&seen, Duration::from_secs(1));
            }
            let notices = manager.take_notices();
            manager.shutdown();
            notices
        });
        let notices = soon("the slot's work", notices).await.unwrap();
        soon("the session's end", serve).await.unwrap();
        let refused = |notice: &&Notice| matches!(notice, Notice::Audit(line) if line.starts_with("no session"));
        let written = notices.iter().filter(refused).count();
        assert!(written > 0 && written <= LINES_MAX, "{written} lines");
        drop(crowd);
    });
}
