//! Hello, the answer, what they agree on, and that nobody in between can weaken it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use core::net::SocketAddr;
use core::time::Duration;

use exoskel_identity::{Identity, PeerText, Role};
use exoskel_link::handshake::{
    Accept, Agreement, Answer, AnswerError, Chains, GatewayCall, HANDSHAKE_BYTES_MAX, HOPS_MAX,
    HandshakeError, Hello, HelloSent, MinimumProtections, Offer, PROTOCOL, Path, ProcessNumber,
    Purpose, Refuse, RefuseReason, Statement, Ticket, accept, check_accept, session_config,
    session_secret,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::PlaceProof;
use exoskel_link::{
    CipherSuite, Endpoint, Limits, Message, MessageKind, Protection, Protections, Session,
    SessionError, Side, TrafficClass,
};
use proptest::collection::vec;
use proptest::prelude::*;

const TRUSTED: Protections = Protections {
    control: Protection::Encrypted,
    code: Protection::Integrity,
    data: Protection::Plain,
};

/// The policy of a side that trusts the wire when it is proven.
const TRUSTING: MinimumProtections = MinimumProtections {
    proven: TRUSTED,
    unproven: Protections {
        control: Protection::Encrypted,
        code: Protection::Encrypted,
        data: Protection::Encrypted,
    },
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
        statement: Statement {
            identity: manager(),
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
            job: 9,
            process: ProcessNumber::new([4; 16]),
            properties: vec![("slots".into(), "4".into())],
        },
        minimum: TRUSTING,
        ciphers: CipherSuite::ALL.to_vec(),
        purpose: Purpose::Session,
    }
}

/// The same over another way.
fn hello_over(path: Path) -> Hello {
    let mut hello = hello();
    hello.statement.path = path;
    hello
}

/// The same with other properties.
fn hello_with(properties: Vec<(PeerText, PeerText)>) -> Hello {
    let mut hello = hello();
    hello.statement.properties = properties;
    hello
}

fn offer(path: Path) -> Offer {
    Offer {
        statement: Statement {
            identity: worker(),
            limits: Limits {
                queued_bytes_max: 0,
                ..Limits::default()
            },
            dead_after: Duration::from_secs(8),
            versions: vec![],
            path,
            policy_generation: 1,
            job: 0,
            process: ProcessNumber::new([5; 16]),
            properties: vec![],
        },
        minimum: TRUSTING,
        ciphers: CipherSuite::ALL.to_vec(),
        same_versions: vec![],
    }
}

/// An offer with the same minimum whatever is proven.
fn offer_of(path: Path, minimum: Protections) -> Offer {
    let minimum = MinimumProtections {
        proven: minimum,
        unproven: minimum,
    };
    Offer {
        minimum,
        ..offer(path)
    }
}

fn direct() -> Path {
    network("10.0.0.2:7601", "10.0.0.1:5000")
}

/// A Unix socket of this machine.
fn here() -> Path {
    Path::same_host(b"a machine", b"/run/x.sock")
}

fn accepted(hello: &Hello, path: Path) -> Accept {
    let (accept, _) = accept(hello, &hello.statement.identity, offer(path)).unwrap();
    accept
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
    assert!(hello_with(many).encode().is_err());
    let large: Vec<_> = (0..40)
        .map(|index| (index.to_string().into(), "x".repeat(900).into()))
        .collect();
    assert!(hello_with(large).encode().is_err());
    let twice = vec![("a".into(), "".into()); 2];
    let bytes = hello_with(twice).encode().unwrap();
    assert!(Hello::read(&bytes).is_err());
    assert!(Hello::read(&vec![0; HANDSHAKE_BYTES_MAX + 1]).is_err());
}

#[test]
fn both_ends_seeing_the_same_way_gets_the_trusted_protections() {
    let hello = hello();
    let accept = accepted(&hello, direct());
    assert_eq!(accept.protections, TRUSTED);
    assert_eq!(
        check_accept(&hello, &accept, &worker()),
        Ok(PlaceProof::Direct)
    );
    let config = session_config(Side::Server, &hello, &accept);
    for side in [Side::Server, Side::Client] {
        // The server stated 8 seconds, the client 5: both hold to the smaller one.
        let config = session_config(side, &hello, &accept);
        assert_eq!(
            (config.dead_after, config.heartbeat_every),
            (Duration::from_secs(5), Duration::from_millis(1250))
        );
    }
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
            Ok(PlaceProof::Unproven)
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
    assert_eq!(Path::Relayed.proof(Path::Relayed), PlaceProof::Unproven);
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
    assert_eq!(here().proof(here()), PlaceProof::SameHost);
    let local = hello_over(here());
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
        assert_eq!(here().proof(view), PlaceProof::Unproven, "{view:?}");
        assert_eq!(view.proof(here()), PlaceProof::Unproven, "{view:?}");
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

/// Between hosts control stays encrypted and code authenticated, even if both policies were to say plain.
#[test]
fn no_policy_shows_what_steers_or_lets_what_is_executed_be_altered_between_hosts() {
    let plain = Protections::all(Protection::Plain);
    let minimum = MinimumProtections {
        proven: plain,
        unproven: plain,
    };
    let hello = Hello { minimum, ..hello() };
    let (decided, _) = accept(&hello, &manager(), offer_of(direct(), plain)).unwrap();
    assert_eq!(decided.protections, TRUSTED);
    // Attack: a server that takes less, or whoever speaks for it.
    for weak in [
        plain,
        Protections {
            control: Protection::Integrity,
            ..TRUSTED
        },
        Protections {
            code: Protection::Plain,
            ..TRUSTED
        },
    ] {
        let weak = Accept {
            protections: weak,
            ..decided.clone()
        };
        assert!(matches!(
            check_accept(&hello, &weak, &worker()),
            Err(HandshakeError::Downgrade { .. })
        ));
    }
    let local = Hello {
        minimum,
        ..hello_over(here())
    };
    let (decided, _) = accept(&local, &manager(), offer_of(here(), plain)).unwrap();
    assert_eq!(decided.protections, plain);
}

#[test]
fn the_stricter_side_wins() {
    let strict = Hello {
        minimum: MinimumProtections {
            proven: Protections::default(),
            ..TRUSTING
        },
        ..hello()
    };
    assert_eq!(
        accepted(&strict, direct()).protections,
        Protections::default()
    );
    let strict = offer_of(direct(), Protections::default());
    let (decided, _) = accept(&hello(), &manager(), strict).unwrap();
    assert_eq!(decided.protections, Protections::default());
}

/// Peers have a number of their own on the wire.
#[test]
fn every_role_is_stated_in_hello() {
    let mut codes = Vec::new();
    for role in Role::ALL {
        let mut hello = hello();
        hello.statement.identity = Identity::new(role, "desk.example.org").unwrap();
        let bytes = hello.encode().unwrap();
        codes.push(bytes[10]);
        assert_eq!(Hello::read(&bytes), Ok(hello));
    }
    assert_eq!(codes, [1, 2, 3, 4, 5]);
    let mut unknown = hello().encode().unwrap();
    unknown[10] = 6;
    assert!(matches!(
        Hello::read(&unknown),
        Err(HandshakeError::Codec(_))
    ));
}

#[test]
fn nobody_passes_for_another() {
    let other = Identity::new(Role::Worker, "lab1.example.org").unwrap();
    let refusal = accept(&hello(), &other, offer(direct())).unwrap_err();
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
        let offer = Offer {
            ciphers: server.to_vec(),
            ..offer(direct())
        };
        accept(&hello, &manager(), offer)
            .map(|(accept, _)| accept.cipher)
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

/// Who belongs to no job works for the peer's, on either side; of two that belong to one, each keeps its own.
#[test]
fn a_node_without_a_job_works_for_its_peers() {
    for (client, server, expected) in [
        (9, 0, [9, 9]),
        (0, 7, [7, 7]),
        (9, 7, [9, 7]),
        (0, 0, [0, 0]),
    ] {
        let mut hello = hello();
        hello.statement.job = client;
        let mut accept = accepted(&hello, direct());
        accept.statement.job = server;
        let jobs = [Side::Client, Side::Server].map(|side| session_config(side, &hello, &accept));
        assert_eq!(jobs.map(|config| config.job), expected);
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
            is_gathered: false,
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

    let mut weaker = hello.clone();
    weaker.minimum.proven = Protections::all(Protection::Plain);
    let weaker = weaker.encode().unwrap();
    assert!(first_bytes_arrive(sessions([&sent, &answer], [&weaker, &answer], same)).is_err());
    let mut other = accept;
    other.statement.policy_generation = 7;
    let other = Answer::Accept(other).encode().unwrap();
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

/// What both sides bring; the client's is a manager's.
fn offers() -> (Offer, Offer) {
    let client = Offer {
        statement: hello().statement,
        ..offer(direct())
    };
    let mut server = offer(direct());
    server.statement.versions = client.statement.versions.clone();
    (client, server)
}

/// Aim: an agreement of the two sides begins one session at both. Method: they agree, and the first record is opened.
#[test]
fn two_offers_become_one_session() {
    let (client, server) = offers();
    let chains = [vec![b"client leaf".to_vec()], vec![b"server leaf".to_vec()]];
    let hello = HelloSent::new(client).unwrap();
    let said = hello.bytes().to_vec();
    let judge = |hello: &Hello| {
        assert_eq!(hello.statement.identity, manager());
        Ok(())
    };
    let answered = Agreement::answer(server, said, &manager(), Ok(()), judge).unwrap();
    let answer = answered.answer_bytes().to_vec();
    let agreed = hello.answered(answer, &worker()).unwrap();
    assert_eq!(agreed.peer().identity, worker());
    assert_eq!(answered.peer().identity, manager());
    for side in [&agreed, &answered] {
        assert_eq!(
            (side.proof(), side.protections()),
            (PlaceProof::Direct, TRUSTED)
        );
    }
    let session = |agreement: &Agreement, own: usize| {
        let chains = Chains {
            own: &chains[own],
            peer: &chains[1 - own],
        };
        let keys = KeyStore::in_ordinary_memory(1);
        agreement.session(chains, &[5; 32], &keys, Duration::ZERO, |_| ())
    };
    let mut server = session(&answered, 1);
    server.offer(Endpoint::new("echo", &["only"])).unwrap();
    assert_eq!(first_bytes_arrive((session(&agreed, 0), server)), Ok(()));
}

/// Aim: versions that must agree are compared on both sides, and the difference stays typed.
#[test]
fn versions_that_must_agree_are_told() {
    for (own, expected) in [(Some("3.13"), "3.13"), (None, "none")] {
        let versions = own.map(|own| ("python".into(), own.into()));
        // The server wants it.
        let (client, mut server) = offers();
        server.statement.versions = versions.clone().into_iter().collect();
        server.same_versions = vec!["python".to_owned()];
        let said = HelloSent::new(client).unwrap().bytes().to_vec();
        let refused = Agreement::answer(server, said, &manager(), Ok(()), |_| Ok(()));
        let Err(AnswerError::Refused(refuse)) = refused else {
            panic!("expected a refusal");
        };
        assert_eq!(
            refuse.reason,
            RefuseReason::Version {
                of: "python".into(),
                expected: expected.into(),
                got: "3.11".into(),
            }
        );
        // The client wants it.
        let (mut client, server) = offers();
        client.statement.versions = versions.into_iter().collect();
        client.same_versions = vec!["python".to_owned()];
        let hello = HelloSent::new(client).unwrap();
        let said = hello.bytes().to_vec();
        let answered = Agreement::answer(server, said, &manager(), Ok(()), |_| Ok(())).unwrap();
        let error = hello.answered(answered.answer_bytes().to_vec(), &worker());
        assert!(matches!(
            error,
            Err(HandshakeError::Version { of, got, expected: wanted })
                if of == "python" && got.is("3.11") && wanted == expected
        ));
    }
}

/// Aim: who is refused by `judge` or can't be read is told why, and the reason comes through.
#[test]
fn a_refusal_comes_through() {
    let (client, server) = offers();
    let hello = HelloSent::new(client).unwrap();
    let busy = Refuse {
        reason: RefuseReason::Busy,
        text: "come back later".into(),
    };
    let said = hello.bytes().to_vec();
    let refused = Agreement::answer(server.clone(), said, &manager(), Ok(()), |_| {
        Err(busy.clone())
    });
    let Err(AnswerError::Refused(refuse)) = refused else {
        panic!("expected a refusal");
    };
    let answer = Answer::Refuse(refuse).encode().unwrap();
    assert!(matches!(
        hello.answered(answer, &worker()),
        Err(HandshakeError::Refused(refuse)) if refuse == busy
    ));
    let nonsense = Agreement::answer(server, vec![7; 20], &manager(), Ok(()), |_| {
        panic!("nobody is judged by what can't be read")
    });
    assert!(matches!(
        nonsense,
        Err(AnswerError::Refused(refuse)) if refuse.reason == RefuseReason::Malformed
    ));
}

fn purposes() -> Vec<Purpose> {
    let gate = Identity::new(Role::Gateway, "gate.lab.example.org").unwrap();
    let connect = |process, on_behalf_of| Purpose::Connect {
        node: "gpu3.cloud.example.org".to_owned(),
        process,
        on_behalf_of,
    };
    vec![
        Purpose::Session,
        connect(None, vec![]),
        connect(Some(ProcessNumber::new([6; 16])), vec![]),
        connect(None, vec![worker(), gate]),
        Purpose::Register,
        Purpose::Callback {
            ticket: Ticket([7; 16]),
        },
    ]
}

#[test]
fn every_purpose_is_read_as_it_was_written() {
    for purpose in purposes() {
        let hello = Hello { purpose, ..hello() };
        let bytes = hello.encode().unwrap();
        assert_eq!(Hello::read(&bytes), Ok(hello));
        for cut in 0..bytes.len() {
            assert!(Hello::read(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
    let call = GatewayCall {
        ticket: Ticket([9; 16]),
        asked_by: worker(),
    };
    let bytes = call.encode().unwrap();
    assert_eq!(GatewayCall::read(&bytes), Ok(call.clone()));
    for cut in 0..bytes.len() {
        assert!(GatewayCall::read(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(!format!("{call:?}").contains('9'), "a ticket is no text");
}

#[test]
fn purposes_that_nobody_has_are_refused() {
    let start = hello().encode().unwrap();
    let start = &start[..start.len() - 1];
    let name = |text: &str| [&[0, text.len() as u8][..], text.as_bytes()].concat();
    let hop = [&[2][..], &name("lab1")].concat();
    for (what, rest) in [
        ("unknown", vec![4]),
        (
            "a name with a star",
            [&[1][..], &name("*.lab"), &[0, 0]].concat(),
        ),
        ("an empty name", [&[1][..], &name(""), &[0, 0]].concat()),
        (
            "neither a process nor none",
            [&[1][..], &name("lab1"), &[2], &[7; 16], &[0]].concat(),
        ),
        (
            "half a process number",
            [&[1][..], &name("lab1"), &[1], &[7; 8], &[0]].concat(),
        ),
        (
            "too many hops",
            [&[1][..], &name("lab1"), &[0, 5], &hop.repeat(5)].concat(),
        ),
        ("bytes behind", vec![2, 0]),
    ] {
        let error = Hello::read(&[start, &rest].concat());
        assert!(matches!(error, Err(HandshakeError::Codec(_))), "{what}");
    }
    let four = [
        &[1][..],
        &name("lab1"),
        &[0, HOPS_MAX as u8],
        &hop.repeat(HOPS_MAX),
    ]
    .concat();
    assert!(Hello::read(&[start, &four].concat()).is_ok());
}

/// A slot or manager that takes sessions only must not take a tunnel's request for one.
#[test]
fn only_sessions_are_agreed_on_without_a_gateway() {
    for purpose in purposes().into_iter().skip(1) {
        let (client, server) = offers();
        let said = HelloSent::to(purpose, client).unwrap().bytes().to_vec();
        let answer = Agreement::answer(server, said, &manager(), Ok(()), |_| panic!("not judged"));
        let Err(AnswerError::Refused(refuse)) = answer else {
            panic!("agreed");
        };
        assert_eq!(refuse.reason, RefuseReason::NotAllowed);
        assert!(refuse.text.sentence().contains("no gateway"));
    }
}
