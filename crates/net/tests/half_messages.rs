//! Messages that have begun to arrive and never end: what is here of them is bounded for all sessions of a certificate together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};
use exoskel_net::establish::NodeConfig;
use exoskel_net::links::{LinkNode, LinkNodeConfig, MessageContents, RequestAnswer};
use exoskel_net::listening::Listening;

use wire::{Site, terms};

const PATIENCE: Duration = Duration::from_secs(60);
const ENDPOINT: &str = "station";
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// What passes of a message before the rest is withheld.
const PASSED_BYTES: usize = 900 << 10;

/// A wire that can withhold what its client goes on to say.
struct Wire {
    address: SocketAddr,
    is_withheld: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Wire {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_withheld = Arc::new(AtomicBool::new(false));
        let withheld = is_withheld.clone();
        // For one connection.
        let thread = std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let server = TcpStream::connect(target).unwrap();
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let back = std::thread::spawn(move || carry(from, to, &AtomicBool::new(false)));
            carry(client, server, &withheld);
            back.join().unwrap();
        });
        Self {
            address,
            is_withheld,
            thread,
        }
    }
}

/// Carries bytes to their end; once they are withheld, [`PASSED_BYTES`] more.
fn carry(mut from: TcpStream, mut to: TcpStream, is_withheld: &AtomicBool) {
    let mut left = PASSED_BYTES;
    let mut piece = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let passing = match is_withheld.load(Ordering::SeqCst) {
            true => count.min(left),
            false => count,
        };
        if is_withheld.load(Ordering::SeqCst) {
            left -= passing;
        }
        if to.write_all(&piece[..passing]).is_err() {
            break;
        }
    }
    // One of the two may be closed already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn peer_terms(site: &Site, name: &str) -> NodeConfig {
    let mut terms = terms(site.credential(Role::Peer, name), &[Role::Peer]);
    terms.asks_for_each_link = true;
    terms.limits.message_bytes_max = MESSAGE_BYTES_MAX;
    terms.dead_after = Duration::from_secs(600);
    terms
}

fn start(terms: NodeConfig, listen: Vec<Listening>) -> LinkNode {
    LinkNode::start(LinkNodeConfig {
        terms,
        renewal: None,
        listen,
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: Duration::ZERO,
        via: Vec::new(),
        dialler: None,
        status: None,
    })
    .unwrap()
}

/// Makes a request, and gives what comes of it when the owner has handled it.
fn request(node: &LinkNode, owner: &LinkNode, startpoint: &Startpoint) {
    let binding = node.bind(startpoint.clone());
    let request = node
        .request(binding, "take", MessageContents::default())
        .unwrap();
    let call = owner.take_call(ENDPOINT, PATIENCE).unwrap();
    owner
        .handled(&call, MessageContents::default(), false)
        .unwrap();
    let answer = node.wait(binding, request, PATIENCE);
    assert!(matches!(answer, Some(RequestAnswer::Reply { .. })));
}

/// Aim: four processes of one certificate send most of a message each, and never the rest. What is here of all is held to what one session may
/// have, and the process that goes over is told which limit that is.
#[test]
fn half_messages_of_one_certificate_are_bounded_together() {
    let site = Site::new();
    let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let place = listening.address().to_string();
    let target = place.trim_start_matches("tcp://").parse().unwrap();
    let owner = start(peer_terms(&site, "ocean"), vec![listening]);
    owner
        .offer(ENDPOINT, Protection::Plain, [1; 16], [2; 32])
        .unwrap();
    owner.add_handler(ENDPOINT, "take").unwrap();
    let caveats = vec![Caveat::holder("*").unwrap()];
    let startpoint = owner.startpoint(ENDPOINT, false, caveats).unwrap();
    let terms = peer_terms(&site, "atmosphere");
    let mut peers = Vec::new();
    for number in 1..=4 {
        let wire = Wire::to(target);
        let process = ProcessNumber::new([number; PROCESS_NUMBER_BYTES]);
        let terms = NodeConfig {
            process,
            ..terms.clone()
        };
        let node = start(terms, Vec::new());
        let hints = vec![wire.address.to_string()];
        let startpoint = startpoint.clone().with_hints(hints).unwrap();
        request(&node, &owner, &startpoint);
        wire.is_withheld.store(true, Ordering::SeqCst);
        let binding = node.bind(startpoint);
        let contents = MessageContents {
            head: Bytes::new(),
            bulk: vec![Bytes::from(vec![7; MESSAGE_BYTES_MAX as usize - 4096])],
            is_gathered: false,
        };
        let request = node.request(binding, "take", contents).unwrap();
        peers.push((wire, node, binding, request));
    }
    let begin = Instant::now();
    let lost = 'lost: loop {
        for (_, node, binding, request) in &peers {
            match node.wait(*binding, *request, Duration::from_millis(10)) {
                Some(RequestAnswer::Lost(error)) => break 'lost error.to_string(),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        assert!(begin.elapsed() < PATIENCE, "all of them are kept");
    };
    let expected = format!(
        "twice message_bytes_max in messages that are half here, in all sessions of one certificate: got {}",
        2 * MESSAGE_BYTES_MAX / 1_000_000
    );
    assert!(lost.contains(&expected), "{lost}");
    for (wire, node, ..) in peers {
        node.close();
        wire.thread.join().unwrap();
    }
    owner.close();
}
