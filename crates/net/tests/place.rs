//! Where a peer is, and what its wire gets for it: an address alone proves nothing, and the stricter end wins.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::{Arc, Mutex};

use exoskel_identity::Role;
use exoskel_link::handshake::{Answer, ProcessNumber};
use exoskel_link::policy::{PlaceProof, Policy};
use exoskel_link::{Protection, Protections};
use exoskel_net::establish::{NodeConfig, welcome};

use wire::raw::{RawClient, stranger};
use wire::relay::{Direction, Move, Relay};
use wire::{Site, anybody, meet, part, run, sessions, socketpair, soon, tcp, text, with_policy};

/// A site whose whole wire is this machine's loopback.
const TRUSTING: &str = r#"
[domain.here]
addresses = ["127.0.0.0/8"]
names = ["*"]
results = "pickle"

[[rule]]
from = "here"
to = "here"
protection = "plain"
"#;

/// What a trusted domain gives between hosts: data in clear, never what is executed, and nobody reads what steers.
const DATA_IN_CLEAR: Protections = Protections {
    control: Protection::Encrypted,
    code: Protection::Integrity,
    data: Protection::Plain,
};

fn trusting(site: &Site) -> (NodeConfig, NodeConfig) {
    let manager = with_policy(site.manager(), TRUSTING);
    (manager, with_policy(site.worker("lab1"), TRUSTING))
}

#[test]
fn a_direct_wire_in_a_trusted_domain_is_plain() {
    run(async {
        let (manager, worker) = trusting(&Site::new());
        let (client, server) = meet(tcp().await, &manager, None, &worker).await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::Direct);
            assert_eq!(end.protections, DATA_IN_CLEAR);
            assert_eq!(end.domain.as_deref(), Some("here"));
            assert!(end.trusted_results);
        }
    });
}

#[test]
fn through_a_relay_nobody_is_near() {
    run(async {
        let (manager, worker) = trusting(&Site::new());
        let (_relay, sockets) = Relay::tcp().await;
        let (client, server) = meet(sockets, &manager, None, &worker).await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::Unproven);
            assert_eq!(end.protections, Protections::all(Protection::Encrypted));
            assert_eq!(end.domain, None);
            assert!(!end.trusted_results);
        }
    });
}

#[test]
fn nothing_of_the_data_can_be_read_at_a_relay() {
    run(async {
        let (manager, worker) = trusting(&Site::new());
        let (relay, sockets) = Relay::tcp().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorder = seen.clone();
        relay.set(move |record| {
            recorder.lock().unwrap().extend_from_slice(&record.bytes);
            Move::Pass(record.bytes)
        });
        let (client, mut server) = sessions(sockets, &manager, &worker).await;
        let secret = b"a secret of some length ".repeat(1000);
        let link = client.open();
        client.post(link, &secret, &secret).unwrap();
        let (head, bulk) = server.message().await;
        assert_eq!((&head, &bulk), (&secret, &secret));
        part(client, server).await;
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 2 * secret.len());
        let needle = b"a secret of some length";
        assert!(!seen.windows(needle.len()).any(|window| window == needle));
    });
}

/// A wire of a trusted domain, on which somebody listens after all.
#[test]
fn a_plain_wire_shows_bulk_parts() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let (relay, sockets) = Relay::unseen();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorder = seen.clone();
        relay.set(move |record| {
            recorder.lock().unwrap().extend_from_slice(&record.bytes);
            Move::Pass(record.bytes)
        });
        let (client, mut server) = sessions(sockets, &manager, &worker).await;
        let bulk = b"measured voltages ".repeat(1000);
        let link = client.open();
        client.post(link, b"head", &bulk).unwrap();
        assert_eq!(server.message().await.1, bulk);
        part(client, server).await;
        let needle = b"measured voltages ";
        let seen = seen.lock().unwrap();
        assert!(seen.windows(needle.len()).any(|window| window == needle));
    });
}

#[test]
fn a_socketpair_is_this_host_and_plain() {
    run(async {
        let site = Site::new();
        let (client, server) =
            meet(socketpair(), &site.manager(), None, &site.worker("local-1")).await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::SameHost);
            assert_eq!(end.protections.data, Protection::Plain);
        }
    });
}

#[test]
fn loopback_without_a_policy_is_encrypted() {
    run(async {
        let site = Site::new();
        let (client, server) = meet(tcp().await, &site.manager(), None, &site.worker("lab1")).await;
        let expected = Protections::all(Protection::Encrypted);
        assert_eq!(client.unwrap().protections, expected);
        assert_eq!(server.unwrap().protections, expected);
    });
}

#[test]
fn one_strict_end_is_enough() {
    run(async {
        let site = Site::new();
        for strict_client in [true, false] {
            let (mut manager, mut worker) = trusting(&site);
            let strict = if strict_client {
                &mut manager
            } else {
                &mut worker
            };
            strict.policy = Arc::new(Policy::builtin());
            let (client, server) = meet(tcp().await, &manager, None, &worker).await;
            for end in [client.unwrap(), server.unwrap()] {
                assert_eq!(end.proof, PlaceProof::Direct);
                assert_eq!(end.protections, Protections::all(Protection::Encrypted));
            }
        }
    });
}

#[test]
fn a_minimum_wins_over_a_trusting_policy() {
    run(async {
        let site = Site::new();
        for strict_client in [true, false] {
            let (mut manager, mut worker) = trusting(&site);
            let strict = if strict_client {
                &mut manager
            } else {
                &mut worker
            };
            strict.minimum = Protection::Integrity;
            let (client, server) = meet(tcp().await, &manager, None, &worker).await;
            for end in [client.unwrap(), server.unwrap()] {
                let integrity = Protections::all(Protection::Integrity);
                let expected = Protections {
                    control: Protection::Encrypted,
                    ..integrity
                };
                assert_eq!(end.protections, expected);
            }
        }
    });
}

/// A verified peer that asks for nothing but `plain`, and lies about what it sees, gets what the other end's policy
/// says.
#[test]
fn claims_of_a_peer_make_nothing_easier() {
    use exoskel_identity::Identity;
    use exoskel_link::handshake::{Hello, MinimumProtections, PROTOCOL, Path, Purpose, Statement};
    use exoskel_link::{CipherSuite, Limits};
    run(async {
        let site = Site::new();
        let credential = site.credential(Role::Manager, "head");
        let server = site.worker("lab1");
        let (stream, socket) = stranger().await;
        let mut hello = Hello {
            protocol: PROTOCOL,
            statement: Statement {
                identity: Identity::new(Role::Manager, "head").unwrap(),
                limits: Limits::default(),
                dead_after: server.dead_after,
                versions: vec![("python".into(), "3.11".into())],
                path: Path::same_host(b"this one, really", b""),
                policy_generation: 0,
                job: 0,
                process: ProcessNumber::new([5; 16]),
                properties: Vec::new(),
            },
            minimum: MinimumProtections {
                proven: Protections::all(Protection::Plain),
                unproven: Protections::all(Protection::Plain),
            },
            ciphers: CipherSuite::ALL.to_vec(),
            purpose: Purpose::Session,
        };
        let client = async {
            let mut raw = RawClient::connect(stream, &credential, Role::Worker).await;
            hello.minimum.proven.control = Protection::Plain;
            raw.send(&hello.encode().unwrap()).await;
            Answer::read(&raw.receive().await.unwrap()).unwrap()
        };
        let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
        let (answer, welcomed) = soon("the answer", both).await;
        let Answer::Accept(accepted) = answer else {
            panic!("refused");
        };
        assert_eq!(
            accepted.protections,
            Protections::all(Protection::Encrypted)
        );
        assert_eq!(welcomed.unwrap().proof, PlaceProof::Unproven);
    });
}

/// Hello and Accept travel inside TLS: to change one of their bits is to break the handshake.
#[test]
fn a_bit_changed_in_hello_or_accept_ends_the_handshake() {
    run(async {
        let (manager, worker) = trusting(&Site::new());
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (relay, sockets) = Relay::tcp().await;
            let mut encrypted = [0, 0];
            relay.set(move |mut record| {
                if record.bytes[0] == 23 {
                    encrypted[record.direction as usize] += 1;
                }
                // The client's Hello is what follows its certificate; the answer is the first record after Hello.
                let answered = encrypted[Direction::ToServer as usize] > 1;
                let is_meant = record.bytes[0] == 23 && answered && record.direction == direction;
                if is_meant {
                    let last = record.bytes.len() - 20;
                    record.bytes[last] ^= 1;
                }
                Move::Pass(record.bytes)
            });
            let (client, server) = meet(sockets, &manager, None, &worker).await;
            assert!(client.is_err());
            if direction == Direction::ToServer {
                let said = text(server);
                assert!(said.contains("TLS failed"), "{said}");
            }
        }
    });
}
