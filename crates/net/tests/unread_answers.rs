//! Peers that ask and read no answers: what waits for them is bounded, for all sessions of a certificate together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};
use exoskel_net::establish::NodeConfig;
use exoskel_net::links::{
    ArrayMemory, ArrayPart, BindingId, LinkDriver, LinkNode, LinkNodeConfig, MessageContents,
    RegionLayout,
};
use exoskel_net::listening::Listening;
use exoskel_node::links::{REGION_PIECE_BYTES_MAX, RegionMessage, StreamMessage};

use wire::{Site, terms};

const PATIENCE: Duration = Duration::from_secs(60);
const ENDPOINT: &str = "station";

/// What may wait for a peer before no more of a region is read for it.
const UNREAD_BYTES_MAX: u64 = 256 << 20;

/// What leaves a session without being read: as much as the credit of its link, and a piece.
const UNDER_WAY_BYTES_MAX: u64 = 16 << 20;

/// An array of one piece that counts how often it is read.
struct CountedCells {
    reads: Arc<AtomicUsize>,
}

impl ArrayMemory for CountedCells {
    fn length(&self) -> usize {
        REGION_PIECE_BYTES_MAX as usize
    }

    fn append_to(&self, _: usize, length: usize, bytes: &mut Vec<u8>) {
        self.reads.fetch_add(1, Ordering::SeqCst);
        bytes.resize(bytes.len() + length, 7);
    }

    fn write(&self, _: usize, _: &[u8]) {}
}

/// A node with a region, and what it sees of it.
struct Owner {
    node: LinkNode,
    startpoint: Startpoint,
    reads: Arc<AtomicUsize>,
}

/// A node that reads nothing unless it is driven, and its link.
struct MutePeer {
    node: LinkNode,
    _driver: LinkDriver,
    binding: BindingId,
}

fn config(terms: NodeConfig, listen: Vec<Listening>) -> LinkNodeConfig {
    LinkNodeConfig {
        terms,
        renewal: None,
        listen,
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: PATIENCE,
        via: Vec::new(),
        dialler: None,
        status: None,
    }
}

fn peer_terms(site: &Site, name: &str) -> NodeConfig {
    let mut terms = terms(site.credential(Role::Peer, name), &[Role::Peer]);
    terms.asks_for_each_link = true;
    // Who isn't driven sends no heartbeats.
    terms.dead_after = Duration::from_secs(600);
    terms
}

impl Owner {
    fn new(site: &Site) -> Self {
        let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let terms = peer_terms(site, "ocean");
        let node = LinkNode::start(config(terms, vec![listening])).unwrap();
        node.offer(ENDPOINT, Protection::Plain, [1; 16], [2; 32])
            .unwrap();
        let reads = Arc::new(AtomicUsize::new(0));
        let memory = CountedCells {
            reads: reads.clone(),
        };
        let layout = RegionLayout {
            type_text: "|u1".to_owned(),
            item_bytes: 1,
            shape: vec![REGION_PIECE_BYTES_MAX],
        };
        node.add_region(ENDPOINT, "field", layout, Box::new(memory), true)
            .unwrap();
        node.add_stream(ENDPOINT, "stream").unwrap();
        let caveats = vec![Caveat::holder("*").unwrap()];
        let startpoint = node.startpoint(ENDPOINT, false, caveats).unwrap();
        Self {
            node,
            startpoint,
            reads,
        }
    }
}

impl MutePeer {
    /// Opens its link, and is not driven any more.
    fn new(terms: NodeConfig, owner: &Owner) -> Self {
        let (node, parts) = LinkNode::without_thread(config(terms, Vec::new())).unwrap();
        let mut driver = parts.driver();
        let binding = node.bind(owner.startpoint.clone());
        let first = node.request(binding, "field.put", one_element()).unwrap();
        // Its link is open by then, so all that it asks for later goes out at once.
        while !node.has_answer(first) {
            assert!(driver.progress(Duration::from_millis(1)));
        }
        Self {
            node,
            _driver: driver,
            binding,
        }
    }

    /// Asks for the array so often.
    fn get(&self, count: usize) {
        let whole = ArrayPart::new(0, REGION_PIECE_BYTES_MAX, &[]).unwrap();
        let get = RegionMessage::Get(whole);
        for _ in 0..count {
            ask(&self.node, self.binding, "field.get", get.head(), vec![]);
        }
    }

    fn open_stream(&self, number: u64) {
        let open = StreamMessage::Open.head(number);
        ask(&self.node, self.binding, "stream", open, vec![]);
    }
}

fn one_element() -> MessageContents {
    let one = RegionMessage::Put(ArrayPart::new(0, 1, &[]).unwrap());
    MessageContents {
        head: one.head(),
        bulk: vec![Bytes::from_static(b"1")],
        is_gathered: false,
    }
}

/// Asks, and waits for no answer.
fn ask(node: &LinkNode, binding: BindingId, handler: &str, head: Bytes, bulk: Vec<Bytes>) {
    let contents = MessageContents {
        head,
        bulk,
        is_gathered: false,
    };
    // Its session may have been ended.
    if let Ok(request) = node.request(binding, handler, contents) {
        node.forget(binding, request);
    }
}

/// Aim: what two processes of one certificate leave unread counts together.
#[test]
fn what_a_certificate_leaves_unread_counts_together() {
    const PIECES: usize = 160;
    let site = Site::new();
    let owner = Owner::new(&site);
    let terms = peer_terms(&site, "atmosphere");
    let peers = [1, 2].map(|number| {
        let process = ProcessNumber::new([number; PROCESS_NUMBER_BYTES]);
        let terms = NodeConfig {
            process,
            ..terms.clone()
        };
        MutePeer::new(terms, &owner)
    });
    for peer in &peers {
        peer.get(PIECES);
        // What comes behind them is dealt with when they are.
        peer.open_stream(0);
        owner.node.take_stream(ENDPOINT, PATIENCE).unwrap();
    }
    let reads = owner.reads.load(Ordering::SeqCst);
    let most = (UNREAD_BYTES_MAX + 2 * UNDER_WAY_BYTES_MAX) / REGION_PIECE_BYTES_MAX + 1;
    assert!((PIECES..=most as usize).contains(&reads), "{reads}");
    drop(peers);
    owner.node.close();
}

/// Aim: a peer that reads nothing, and asks for what is answered at once, is ended.
#[test]
fn small_answers_that_nobody_reads_are_bounded() {
    const BATCH: usize = 4096;
    /// For these its link has credit.
    const BATCHES_MAX: u64 = 20;
    let site = Site::new();
    let owner = Owner::new(&site);
    let peer = MutePeer::new(peer_terms(&site, "atmosphere"), &owner);
    peer.get((UNREAD_BYTES_MAX + UNDER_WAY_BYTES_MAX).div_ceil(REGION_PIECE_BYTES_MAX) as usize);
    let is_ended = || {
        let lines = owner.node.take_audit();
        let ended = "ended the session with peer atmosphere: more than 65536 answers";
        lines.iter().any(|line| line.starts_with(ended))
    };
    let mut batches = 0;
    'asked: while batches < BATCHES_MAX {
        for _ in 0..BATCH {
            let none = Bytes::from_static(b"no message of a stream");
            ask(&peer.node, peer.binding, "stream", none, vec![]);
        }
        // What comes behind them is dealt with when they are.
        peer.open_stream(batches);
        batches += 1;
        let begin = Instant::now();
        while owner.node.take_stream(ENDPOINT, Duration::ZERO).is_none() {
            if is_ended() {
                break 'asked;
            }
            assert!(begin.elapsed() < PATIENCE, "nothing comes of it");
            std::thread::yield_now();
        }
    }
    // Many may wait, as long as it isn't too many.
    assert!((16..BATCHES_MAX).contains(&batches), "{batches}");
    drop(peer);
    owner.node.close();
}
