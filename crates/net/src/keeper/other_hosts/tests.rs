//! What others are told of losses, whoever has seen them first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use exoskel_identity::Role;
use exoskel_link::Limits;
use exoskel_link::handshake::ProcessNumber;
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Policy;
use exoskel_transfer::Loss;
use rustls::pki_types::UnixTime;

use super::*;
use crate::establish::NodeConfig;
use crate::links::LinkNodeConfig;
use crate::pki::ThrowAwayAuthority;

/// A node that nobody drives.
fn node() -> Arc<LinkNode> {
    let now = UnixTime::now();
    let authority = ThrowAwayAuthority::new(now).unwrap();
    let credential = authority.issue(Role::Peer, "head", now).unwrap();
    let terms = NodeConfig {
        verifier: Arc::new(credential.authority(1).unwrap()),
        credential: Arc::new(credential),
        policy: Arc::new(Policy::builtin()),
        peer_roles: vec![Role::Peer],
        minimum: Protection::Plain,
        asks_for_each_link: true,
        limits: Limits::default(),
        dead_after: Duration::from_secs(5),
        handshake_time: Duration::from_secs(5),
        versions: Vec::new(),
        same_versions: Vec::new(),
        keys: KeyStore::in_ordinary_memory(8),
        job: 0,
        process: ProcessNumber::new([5; 16]),
        shared_memory: false,
        properties: Vec::new(),
    };
    let config = LinkNodeConfig {
        terms,
        renewal: None,
        listen: Vec::new(),
        gateways: Vec::new(),
        hints: Vec::new(),
        patience: Duration::ZERO,
        via: Vec::new(),
        dialler: None,
        status: None,
    };
    Arc::new(LinkNode::without_thread(config).unwrap().0)
}

/// Aim: who was given up hears what was lost first, also where the coupler's own host has seen it first, and didn't know that yet.
#[test]
fn who_was_given_up_hears_what_was_lost_first() {
    let mut others = OtherHosts::of_coupler(node(), 1).unwrap();
    let startpoint = others.startpoint.clone();
    let bind = || others.node.bind(startpoint.clone());
    let (stay, words) = (bind(), bind());
    let staying = others.node.request(stay, STAY, contents(&0)).unwrap();
    others.keepers.insert(
        1,
        OtherKeeper {
            name: "other".to_owned(),
            startpoint,
            words,
            stay: (stay, staying),
            versions: None,
            lost: None,
            has_ended: false,
        },
    );
    assert!(others.give_up(1, GivenUp::alone("no answer")));
    let given_up = GivenUp {
        why: "no answer".to_owned(),
        first_lost: Some(Loss {
            program: "ocean".to_owned(),
            rank: 3,
            why: "killed".to_owned(),
        }),
    };
    others.tell_lost(1, given_up.clone());
    assert_eq!(others.keepers[&1].lost, Some(given_up));
}
