//! Hello, the answer, what they agree on, and that nobody in between can weaken it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use core::net::SocketAddr;
use core::time::Duration;

use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::{
    Accept, Answer, HANDSHAKE_BYTES_MAX, HandshakeError, Hello, PROTOCOL, Path, Refuse,
    RefuseReason, ServerTerms, accept, check_accept, session_config, session_secret,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Proof;
use exoskel_link::{
    CipherSuite, Endpoint, Limits, Message, MessageKind, Protection, Protections, Session,
    SessionError, Side, TrafficClass,
};
use proptest::collection::vec;
use proptest::prelude::*;

const TRUSTED: Protections = Protections {
    control: Protection::Integrity,
    code: Protection::Integrity,
    data: Protection::Plain,
};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn network(local: &str, remote: &str) -> Path {
    Path::Network {
        local: address(local),
        remote: address(remote),
    }
}

fn worker() -> Identity {
    Identity::new(Role::Worker, "lab1.example.org").unwrap()
}

fn manager() -> Identity {
    Identity::new(Role::Manager, "desk.example.org").unwrap()
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        identity: manager(),
        floors: TRUSTED,
        floors_unproven: Protections::default(),
        ciphers: CipherSuite::ALL.to_vec(),
        limits: Limits {
            queued_bytes_max: 0,
            ..Limits::default()
        },
        dead_after: Duration::from_secs(5),
        versions: vec![
            ("exoskel".into(), "0.1.0".into()),
            ("python".into(), "3.11".into()),
        ],
        path: network("10.0.0.1:5000", "10.0.0.2:7601"),
        policy_generation: 3,
        group: 9,
        properties: vec![("slots".into(), "4".into())],
    }
}

fn terms(path: Path) -> ServerTerms {
    ServerTerms {
        identity: worker(),
        path,
        ciphers: CipherSuite::ALL.to_vec(),
        limits: Limits {
            queued_bytes_max: 0,
            ..Limits::default()
        },
        dead_after: Duration::from_secs(8),
        versions: vec![],
        policy_generation: 1,
        group: 0,
        properties: vec![],
    }
}

fn direct() -> Path {
    network("10.0.0.2:7601", "10.0.0.1:5000")
}

/// The policy of a server that trusts the wire when it is proven.
fn trusting(proof: Proof) -> Protections {
    if proof == Proof::Unproven {
        Protections::default()
    } else {
        TRUSTED
    }
}

/// A Unix socket of this machine.
fn here() -> Path {
    Path::same_host(b"a machine", b"/run/x.sock")
}

fn accepted(hello: &Hello, path: Path) -> Accept {
    accept(hello, &hello.identity, terms(path), trusting).unwrap()
}

#[test]
fn hello_and_answers_read_back() {
    let hello = hello();
    assert_eq!(Hello::read(&hello.encode().unwrap()), Ok(hello.clone()));
    for path in [
        here(),
        Path::Relayed,
        direct(),
        network("[2001:db8::1]:1", "[::1]:2"),
    ] {
        let answer = Answer::Accept(accepted(&hello, path));
        assert_eq!(Answer::read(&answer.encode().unwrap()), Ok(answer));
    }
    let reasons = [
        RefuseReason::Version {
            of: "python".into(),
            expected: "3.11".into(),
            got: "3.13".into(),
        },
        RefuseReason::Role,
        RefuseReason::NotAllowed,
        RefuseReason::Certificate,
        RefuseReason::Busy,
        RefuseReason::Limit,
        RefuseReason::Malformed,
        RefuseReason::Cipher,
    ];
    for reason in reasons {
        let answer = Answer::Refuse(Refuse {
            reason,
            text: "come back later".into(),
        });
        assert_eq!(Answer::read(&answer.encode().unwrap()), Ok(answer));
    }
}

proptest! {
    /// No change of bytes makes reading panic, and what still reads has one spelling.
    #[test]
    fn bent_hellos_are_read_or_refused(changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut: prop::sample::Index) {
        let mut bytes = hello().encode().unwrap();
        for (index, byte) in changes {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(read) = Hello::read(&bytes) {
            let again = read.encode().unwrap();
            // Mapped and plain IPv4 addresses are the same; everything else is as it was.
            prop_assert_eq!(Hello::read(&again), Ok(read));
        }
        prop_assert!(Hello::read(&bytes[..cut.index(bytes.len())]).is_err());
        let _ = Answer::read(&bytes);
    }

    #[test]
    fn any_bytes_are_refused(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Hello::read(&bytes).is_err());
        prop_assert!(Answer::read(&bytes).is_err());
    }
}

#[test]
fn another_version_is_told_from_nonsense() {
    let mut bytes = hello().encode().unwrap();
    bytes[8..10].copy_from_slice(&[0, 2]);
    bytes.truncate(10);
    let error = Hello::read(&bytes).unwrap_err();
    assert_eq!(
        error,
        HandshakeError::Protocol {
            got: 2,
            expected: 1
        }
    );
    let refusal = error.refusal();
    assert!(matches!(&refusal.reason, RefuseReason::Version { of, .. } if of.is("protocol")));
    assert!(
        refusal
            .text
            .own_sentence()
            .contains("got protocol version 2, expected 1"),
        "{}",
        refusal.text
    );
}

#[test]
fn messages_over_their_limits_are_not_made_and_not_read() {
    let many: Vec<_> = (0..65)
        .map(|index| (index.to_string().into(), "".into()))
        .collect();
    assert!(
        Hello {
            properties: many,
            ..hello()
        }
        .encode()
        .is_err()
    );
    let large: Vec<_> = (0..40)
        .map(|index| (index.to_string().into(), "x".repeat(900).into()))
        .collect();
    assert!(
        Hello {
            properties: large,
            ..hello()
        }
        .encode()
        .is_err()
    );
    let twice = vec![("a".into(), "".into()); 2];
    let bytes = Hello {
        properties: twice,
        ..hello()
    }
    .encode()
    .unwrap();
    assert!(Hello::read(&bytes).is_err());
    assert!(Hello::read(&vec![0; HANDSHAKE_BYTES_MAX + 1]).is_err());
}

#[test]
fn both_ends_seeing_the_same_way_gets_the_trusted_protections() {
    let hello = hello();
    let accept = accepted(&hello, direct());
    assert_eq!(accept.protections, TRUSTED);
    assert_eq!(check_accept(&hello, &accept, &worker()), Ok(Proof::Direct));
    let config = session_config(Side::Server, &hello, &accept);
    assert_eq!(
        (config.dead_after, config.heartbeat_every),
        (Duration::from_secs(8), Duration::from_millis(1250))
    );
    assert_eq!(config.protections, TRUSTED);
    let mapped = network("[::ffff:10.0.0.2]:7601", "[::ffff:10.0.0.1]:5000");
    assert_eq!(accepted(&hello, mapped).protections, TRUSTED);
}

/// A relay in between makes a far peer look near to one end or to both; the two views do not fit together.
#[test]
fn a_relay_makes_nobody_look_near() {
    let hello = hello();
    let views = [
        network("10.0.0.2:7601", "10.0.0.3:5000"),
        network("10.0.0.2:7601", "10.0.0.1:5001"),
        network("10.0.0.9:7601", "10.0.0.1:5000"),
        network("10.0.0.1:5000", "10.0.0.2:7601"),
        Path::Relayed,
        here(),
    ];
    for view in views {
        let accept = accepted(&hello, view);
        assert_eq!(accept.protections, Protections::default(), "{view:?}");
        assert_eq!(
            check_accept(&hello, &accept, &worker()),
            Ok(Proof::Unproven)
        );
        // A server that trusts regardless is overruled by the client.
        let weak = Accept {
            protections: TRUSTED,
            ..accept
        };
        assert!(matches!(
            check_accept(&hello, &weak, &worker()),
            Err(HandshakeError::Downgrade { .. })
        ));
    }
    assert_eq!(Path::Relayed.proof(Path::Relayed), Proof::Unproven);
}

/// As docs/protocol.md has it, computed by other means.
#[test]
fn a_witness_is_a_digest_of_machine_and_socket() {
    let Path::SameHost { witness } = here() else {
        panic!("expected the same host");
    };
    let hexadecimal: String = witness.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hexadecimal,
        "493e51b12ebb54a0bc7315fdc6982dedb5cf0c23b2a1987de192a1c00caa0612"
    );
}

/// A tunnel between Unix sockets (`ssh -L`) runs under our own account at both of its ends, so each kernel vouches for
/// its own end of it; only that the two kernels are not the same gives it away.
#[test]
fn a_tunnel_between_unix_sockets_makes_nobody_look_near() {
    assert_eq!(here().proof(here()), Proof::SameHost);
    let local = Hello {
        path: here(),
        ..hello()
    };
    let views = [
        Path::same_host(b"another machine", b"/run/x.sock"),
        Path::same_host(b"a machine", b"/run/y.sock"),
        // Where one name ends and the next begins is part of both.
        Path::same_host(b"a machine/run", b"/x.sock"),
        Path::same_host(b"a machine", b""),
        direct(),
        Path::Relayed,
    ];
    for view in views {
        assert_eq!(here().proof(view), Proof::Unproven, "{view:?}");
        assert_eq!(view.proof(here()), Proof::Unproven, "{view:?}");
        let accept = accepted(&local, view);
        assert_eq!(accept.protections, Protections::default(), "{view:?}");
        let weak = Accept {
            protections: TRUSTED,
            ..accept
        };
        assert!(matches!(
            check_accept(&local, &weak, &worker()),
            Err(HandshakeError::Downgrade { .. })
        ));
    }
}

/// Code and control stay authenticated between hosts, even if both policies were to say plain.
#[test]
fn nothing_that_is_executed_is_plain_between_hosts() {
    let plain = Protections::all(Protection::Plain);
    let hello = Hello {
        floors: plain,
        floors_unproven: plain,
        ..hello()
    };
    let decided = accept(&hello, &manager(), terms(direct()), |_| plain).unwrap();
    assert_eq!(decided.protections, TRUSTED);
    let weak = Accept {
        protections: plain,
        ..decided
    };
    assert!(check_accept(&hello, &weak, &worker()).is_err());
    let local = Hello {
        path: here(),
        ..hello
    };
    let decided = accept(&local, &manager(), terms(here()), |_| plain).unwrap();
    assert_eq!(decided.protections, plain);
}

#[test]
fn the_stricter_side_wins() {
    let strict = Hello {
        floors: Protections::default(),
        ..hello()
    };
    assert_eq!(
        accepted(&strict, direct()).protections,
        Protections::default()
    );
    let decided = accept(&hello(), &manager(), terms(direct()), |_| {
        Protections::default()
    })
    .unwrap();
    assert_eq!(decided.protections, Protections::default());
}

#[test]
fn nobody_passes_for_another() {
    let other = Identity::new(Role::Worker, "lab1.example.org").unwrap();
    let refusal = accept(&hello(), &other, terms(direct()), trusting).unwrap_err();
    assert_eq!(refusal.reason, RefuseReason::Certificate);
    let decided = accepted(&hello(), direct());
    let another = Identity::new(Role::Worker, "lab2.example.org").unwrap();
    assert!(matches!(
        check_accept(&hello(), &decided, &another),
        Err(HandshakeError::Identity { .. })
    ));
}

#[test]
fn the_cipher_is_one_that_both_can_use_fast() {
    use CipherSuite::{Aes256Gcm, ChaCha20Poly1305};
    let choose = |client: &[CipherSuite], server: &[CipherSuite]| {
        let hello = Hello {
            ciphers: client.to_vec(),
            ..hello()
        };
        let terms = ServerTerms {
            ciphers: server.to_vec(),
            ..terms(direct())
        };
        accept(&hello, &manager(), terms, trusting)
            .map(|accept| accept.cipher)
            .map_err(|refusal| refusal.reason)
    };
    let [fast, slow] = [[Aes256Gcm, ChaCha20Poly1305], [ChaCha20Poly1305, Aes256Gcm]];
    assert_eq!(choose(&fast, &fast), Ok(Aes256Gcm));
    assert_eq!(choose(&fast, &slow), Ok(ChaCha20Poly1305));
    assert_eq!(choose(&slow, &fast), Ok(ChaCha20Poly1305));
    assert_eq!(choose(&[Aes256Gcm], &slow), Ok(Aes256Gcm));
    assert_eq!(
        choose(&[Aes256Gcm], &[ChaCha20Poly1305]),
        Err(RefuseReason::Cipher)
    );
    assert_eq!(choose(&[], &fast), Err(RefuseReason::Cipher));
    let decided = Accept {
        cipher: ChaCha20Poly1305,
        ..accepted(&hello(), direct())
    };
    let hello = Hello {
        ciphers: vec![Aes256Gcm],
        ..hello()
    };
    assert_eq!(
        check_accept(&hello, &decided, &worker()),
        Err(HandshakeError::CipherNotOffered)
    );
}

/// Who belongs to no group works for the peer's, on either side; of two that belong to one, each keeps its own.
#[test]
fn a_node_without_a_group_works_for_its_peers() {
    for (client, server, expected) in [
        (9, 0, [9, 9]),
        (0, 7, [7, 7]),
        (9, 7, [9, 7]),
        (0, 0, [0, 0]),
    ] {
        let hello = Hello {
            group: client,
            ..hello()
        };
        let accept = Accept {
            group: server,
            ..accepted(&hello, direct())
        };
        let groups = [Side::Client, Side::Server].map(|side| session_config(side, &hello, &accept));
        assert_eq!(groups.map(|config| config.group), expected);
    }
}

/// The two sides of a session that derive their secrets from what each of them saw.
fn sessions(
    client_saw: [&[u8]; 2],
    server_saw: [&[u8]; 2],
    exporters: [[u8; 32]; 2],
) -> (Session, Session) {
    let chains: [&[&[u8]]; 2] = [&[b"client leaf"], &[b"server leaf"]];
    let session = |side, [hello, answer]: [&[u8]; 2], exporter| {
        let secret = session_secret(hello, answer, chains[0], chains[1], exporter);
        let hello = Hello::read(hello).unwrap();
        let Answer::Accept(accept) = Answer::read(answer).unwrap() else {
            panic!()
        };
        Session::new(
            session_config(side, &hello, &accept),
            secret,
            &KeyStore::in_ordinary_memory(1),
            Duration::ZERO,
        )
    };
    let mut server = session(Side::Server, server_saw, &exporters[1]);
    server.offer(Endpoint::new("echo", &["only"])).unwrap();
    (session(Side::Client, client_saw, &exporters[0]), server)
}

fn first_bytes_arrive((mut client, mut server): (Session, Session)) -> Result<(), SessionError> {
    let link = client.open_link("echo", TrafficClass::Code).unwrap();
    let kind = MessageKind::Post;
    let _ = client.send(
        link,
        Message {
            handler: 0,
            kind,
            head: bytes::Bytes::new(),
            bulk: vec![],
        },
    );
    client.prepare(Duration::ZERO).unwrap();
    let bytes: Vec<u8> = client.outgoing().flatten().copied().collect();
    server.receive_buffer()[..bytes.len()].copy_from_slice(&bytes);
    server.received(bytes.len(), Duration::ZERO)
}

/// Whatever is altered in Hello or Accept on the way, however harmless: the secrets differ and the first record fails.
/// Weakened protections are found twice, by the check of Accept and by this.
#[test]
fn an_altered_handshake_gives_no_session() {
    let hello = hello();
    let sent = hello.encode().unwrap();
    let accept = accepted(&hello, direct());
    let answer = Answer::Accept(accept.clone()).encode().unwrap();
    let same = [[5; 32]; 2];
    assert_eq!(
        first_bytes_arrive(sessions([&sent, &answer], [&sent, &answer], same)),
        Ok(())
    );

    let weaker = Hello {
        floors: Protections::all(Protection::Plain),
        ..hello.clone()
    }
    .encode()
    .unwrap();
    assert!(first_bytes_arrive(sessions([&sent, &answer], [&weaker, &answer], same)).is_err());
    let other = Answer::Accept(Accept {
        policy_generation: 7,
        ..accept
    })
    .encode()
    .unwrap();
    assert!(first_bytes_arrive(sessions([&sent, &other], [&sent, &answer], same)).is_err());
    let two_connections = [[5; 32], [6; 32]];
    assert!(
        first_bytes_arrive(sessions(
            [&sent, &answer],
            [&sent, &answer],
            two_connections
        ))
        .is_err()
    );
}
