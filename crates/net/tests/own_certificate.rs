//! A node whose own certificate has expired: it is told that the fault is its own, and how to mend it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_link::capability::Caveat;
use exoskel_net::establish::NodeConfig;
use exoskel_net::links::{LinkNode, LinkNodeConfig, MessageContents, RequestAnswer};
use exoskel_net::listening::Listening;

use wire::networks::{DAY, Networks};
use wire::{terms, unix_now};

const PATIENCE: Duration = Duration::from_secs(60);
const ENDPOINT: &str = "station";

fn start(mut terms: NodeConfig, listen: Vec<Listening>) -> LinkNode {
    terms.asks_for_each_link = true;
    LinkNode::start(LinkNodeConfig {
        terms,
        renewal: None,
        listen,
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: Duration::ZERO,
        via: Vec::new(),
        status: None,
    })
    .unwrap()
}

/// Aim: who dials with a certificate that has expired hears that it is its own, with the command that renews it, from the request and from
/// the log.
#[test]
fn an_own_certificate_that_has_expired_is_said_to_be_ones_own() {
    let networks = Networks::new();
    let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let ocean = networks.credential(Role::Peer, "ocean");
    let owner = start(terms(ocean, &[Role::Peer]), vec![listening]);
    owner
        .offer(ENDPOINT, Protection::Plain, [1; 16], [2; 32])
        .unwrap();
    owner.add_handler(ENDPOINT, "take").unwrap();
    let caveats = vec![Caveat::holder("*").unwrap()];
    let startpoint = owner.startpoint(ENDPOINT, false, caveats).unwrap();
    let long_ago = rustls::pki_types::UnixTime::since_unix_epoch(
        Duration::from_secs(unix_now().as_secs()) - 10 * DAY,
    );
    let expired = networks
        .authority
        .issue(Role::Peer, "atmosphere", DAY, long_ago)
        .unwrap();
    let node = start(terms(expired, &[Role::Peer]), Vec::new());
    let binding = node.bind(startpoint);
    let request = node
        .request(binding, "take", MessageContents::default())
        .unwrap();
    let Some(RequestAnswer::Lost(error)) = node.wait(binding, request, PATIENCE) else {
        panic!("it was taken");
    };
    let expected = "this node's own certificate, of atmosphere, expired on ";
    for said in [error.to_string(), node.take_warnings().concat()] {
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("exoskel pki renew"), "{said}");
    }
    assert!(node.troubles().concat().contains(expected));
    // The other end has nothing to mend.
    assert!(owner.troubles().is_empty());
    node.close();
    owner.close();
}
