//! Writes the files of `vectors/`: transcripts of the protocol for other implementations to check.
//!
//! `cargo run -p exoskel-link --example vectors` from the top of the repository. Everything is fixed, so the files come
//! out the same each time; a test compares them with what is made now.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool, not the sans-IO library: it writes files, and stops when it cannot"
)]

#[path = "vectors/capabilities.rs"]
mod capabilities;

use core::fmt::Write;
use core::time::Duration;

use aws_lc_rs::hmac;
use bytes::Bytes;
use exoskel_identity::{Identity, PeerText, Role};
use exoskel_link::handshake::{
    Accept, Answer, GatewayCall, Hello, MinimumProtections, Offer, PROTOCOL, Path, ProcessNumber,
    Purpose, Refuse, RefuseReason, Statement, Ticket, accept, session_config, session_secret,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::vectors::{epoch_secret, record_key, resumption, transcript_hash};
use exoskel_link::{
    CipherSuite, CloseReason, Endpoint, Limits, Message, MessageKind, Protection, Protections,
    Session, SessionConfig, SessionSecret, Side, TrafficClass,
};

const PROVENANCE: &str = "made by crates/link/examples/vectors.rs from fixed secrets; checked by \
                          tests/test_protocol_vectors.py with an implementation of its own (pyca/cryptography)";

const TRUSTED: Protections = Protections {
    control: Protection::Integrity,
    code: Protection::Integrity,
    data: Protection::Plain,
};

#[allow(
    dead_code,
    reason = "the test that includes this file calls `files` only"
)]
fn main() {
    for (name, content) in files() {
        std::fs::write(std::path::Path::new("vectors").join(name), content).unwrap();
    }
}

/// Names and contents of all files.
pub(crate) fn files() -> [(&'static str, String); 4] {
    [
        ("key_schedule.json", key_schedule()),
        ("handshake.json", handshake()),
        ("records.json", records()),
        ("capabilities.json", capabilities::capabilities()),
    ]
}

fn key_schedule() -> String {
    let secret: [u8; 32] = pattern(32, 0xa5).try_into().unwrap();
    let mut cases = Vec::new();
    for sender in [Side::Client, Side::Server] {
        for epoch in 0..3 {
            let mut keys = Vec::new();
            for cipher in CipherSuite::ALL {
                for protection in Protection::ALL {
                    let (key, iv) = record_key(&secret, sender, epoch, cipher, protection);
                    keys.push(object(&[
                        ("cipher", text(cipher.name())),
                        ("protection", text(protection.name())),
                        ("key", hex(&key)),
                        ("iv", hex(&iv)),
                    ]));
                }
            }
            cases.push(object(&[
                (
                    "sender",
                    text(if sender == Side::Client {
                        "client"
                    } else {
                        "server"
                    }),
                ),
                ("epoch", epoch.to_string()),
                ("secret", hex(&epoch_secret(&secret, sender, epoch))),
                ("keys", array(&keys)),
            ]));
        }
    }
    let (later, name) = (pattern(32, 0xa6).try_into().unwrap(), 0x0102_0304_0506_0708);
    let (binding, proof) = resumption(&secret, &later, 7, name, 3, 258);
    let resumption = object(&[
        ("resumed_in", hex(&later)),
        ("link", "7".to_owned()),
        ("name", name.to_string()),
        ("attempt", "3".to_owned()),
        ("received", "258".to_owned()),
        ("binding", hex(&binding)),
        ("proof", hex(&proof)),
    ]);
    file(&[
        ("session_secret", hex(&secret)),
        ("epochs", array(&cases)),
        ("resumption", resumption),
    ])
}

fn identity(role: Role, name: &str) -> Identity {
    Identity::new(role, name).unwrap()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(PeerText, PeerText)> {
    list.iter()
        .map(|&(name, value)| (name.into(), value.into()))
        .collect()
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        statement: Statement {
            identity: identity(Role::Manager, "desk.example.org"),
            limits: Limits {
                message_bytes_max: 1 << 30,
                bulk_parts_max: 1024,
                links_max: 256,
                credit_bytes: 8 << 20,
                queued_bytes_max: 0,
            },
            dead_after: Duration::from_secs(5),
            versions: pairs(&[("exoskel", "0.1.0"), ("python", "3.11")]),
            path: Path::Network {
                local: "10.0.0.1:50000".parse().unwrap(),
                remote: "10.0.0.2:7601".parse().unwrap(),
            },
            policy_generation: 3,
            job: 7,
            process: ProcessNumber::new(pattern(16, 0x21).try_into().unwrap()),
            properties: pairs(&[("slots", "4"), ("größe", "ü")]),
        },
        minimum: MinimumProtections {
            proven: TRUSTED,
            unproven: Protections::default(),
        },
        ciphers: CipherSuite::ALL.to_vec(),
        purpose: Purpose::Session,
    }
}

fn accepted() -> Accept {
    let offer = Offer {
        statement: Statement {
            identity: identity(Role::Worker, "lab1.example.org"),
            limits: Limits {
                links_max: 16,
                ..hello().statement.limits
            },
            dead_after: Duration::from_millis(7500),
            versions: pairs(&[("exoskel", "0.1.0")]),
            path: Path::Network {
                local: "[::ffff:10.0.0.2]:7601".parse().unwrap(),
                remote: "[::ffff:10.0.0.1]:50000".parse().unwrap(),
            },
            policy_generation: 1,
            job: 0,
            process: ProcessNumber::new(pattern(16, 0x22).try_into().unwrap()),
            properties: vec![],
        },
        minimum: MinimumProtections {
            proven: TRUSTED,
            unproven: TRUSTED,
        },
        ciphers: CipherSuite::ALL.to_vec(),
        same_versions: vec![],
    };
    let (accept, _) = accept(&hello(), &hello().statement.identity, offer).unwrap();
    accept
}

fn handshake() -> String {
    let hello_bytes = hello().encode().unwrap();
    let accept_bytes = Answer::Accept(accepted()).encode().unwrap();
    let refuse = Refuse {
        reason: RefuseReason::Version {
            of: "python".into(),
            expected: "3.11".into(),
            got: "3.13".into(),
        },
        text: "got python 3.13, expected 3.11".into(),
    };
    let refuse_bytes = Answer::Refuse(refuse).encode().unwrap();
    let client_chain = [pattern(700, 1), pattern(500, 2)];
    let server_chain = [pattern(650, 3)];
    let chains = [&client_chain[..], &server_chain[..]]
        .map(|chain| chain.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let exporter: [u8; 32] = pattern(32, 0x3c).try_into().unwrap();
    let hash = transcript_hash(&hello_bytes, &accept_bytes, &chains[0], &chains[1]);
    let secret = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &hash), &exporter);

    // The first record of a session that starts from this handshake binds all of it.
    let config = session_config(Side::Client, &hello(), &accepted());
    let derived = session_secret(
        &hello_bytes,
        &accept_bytes,
        &chains[0],
        &chains[1],
        &exporter,
    );
    let mut session = Session::new(
        config,
        derived,
        &KeyStore::in_ordinary_memory(1),
        Duration::ZERO,
    );
    session.open_link("echo", TrafficClass::Data).unwrap();
    let chain = |chain: &[Vec<u8>]| {
        array(
            &chain
                .iter()
                .map(|certificate| hex(certificate))
                .collect::<Vec<_>>(),
        )
    };
    file(&[
        ("hello", hex(&hello_bytes)),
        ("hello_fields", hello_fields()),
        ("purposes", purpose_cases()),
        ("call", call()),
        ("accept", hex(&accept_bytes)),
        ("accept_fields", accept_fields()),
        ("refuse", hex(&refuse_bytes)),
        ("refuse_fields", refuse_fields()),
        ("client_chain", chain(&client_chain)),
        ("server_chain", chain(&server_chain)),
        ("exporter", hex(&exporter)),
        ("transcript_hash", hex(&hash)),
        ("session_secret", hex(secret.as_ref())),
        ("first_client_record", hex(&outgoing(&mut session))),
    ])
}

/// The same Hello for the other purposes, and a call.
fn purposes() -> [(&'static str, Purpose, &'static str); 4] {
    let gate = identity(Role::Gateway, "gate.example.org");
    let on_behalf_of = vec![identity(Role::Worker, "lab1.example.org"), gate];
    let connect = Purpose::Connect {
        node: "gpu3.example.net".to_owned(),
        process: None,
        on_behalf_of,
    };
    let connect_process = Purpose::Connect {
        node: "gpu3.example.net".to_owned(),
        process: Some(ProcessNumber::new(pattern(16, 6).try_into().unwrap())),
        on_behalf_of: Vec::new(),
    };
    let ticket = Ticket(pattern(16, 5).try_into().unwrap());
    [
        (
            "connect",
            connect,
            r#"{"wants": "connect", "node": "gpu3.example.net", "process": null, "on_behalf_of": [["worker", "lab1.example.org"], ["gateway", "gate.example.org"]]}"#,
        ),
        (
            "connect_process",
            connect_process,
            r#"{"wants": "connect", "node": "gpu3.example.net", "process": "NUMBER", "on_behalf_of": []}"#,
        ),
        ("register", Purpose::Register, r#"{"wants": "register"}"#),
        (
            "callback",
            Purpose::Callback { ticket },
            r#"{"wants": "callback", "ticket": "TICKET"}"#,
        ),
    ]
}

fn purpose_cases() -> String {
    let cases = purposes().map(|(_, purpose, fields)| {
        let fields = match &purpose {
            Purpose::Callback { ticket } => fields.replace("\"TICKET\"", &hex(&ticket.0)),
            Purpose::Connect {
                process: Some(process),
                ..
            } => fields.replace("\"NUMBER\"", &hex(process.bytes())),
            _ => fields.to_owned(),
        };
        let hello = Hello { purpose, ..hello() };
        object(&[
            ("hello", hex(&hello.encode().unwrap())),
            ("purpose", fields),
        ])
    });
    array(&cases)
}

fn call() -> String {
    let call = GatewayCall {
        ticket: Ticket(pattern(16, 5).try_into().unwrap()),
        asked_by: identity(Role::Worker, "lab1.example.org"),
    };
    hex(&call.encode().unwrap())
}

fn hello_fields() -> String {
    r#"{
   "role": "manager", "name": "desk.example.org",
   "floors": ["integrity", "integrity", "plain"], "floors_unproven": ["encrypted", "encrypted", "encrypted"],
   "ciphers": ["aes-256-gcm", "chacha20-poly1305"],
   "message_bytes_max": 1073741824, "credit_bytes": 8388608, "bulk_parts_max": 1024, "links_max": 256,
   "dead_after_milliseconds": 5000,
   "path": ["10.0.0.1", 50000, "10.0.0.2", 7601],
   "policy_generation": 3, "group": 7, "process": PROCESS,
   "versions": [["exoskel", "0.1.0"], ["python", "3.11"]],
   "properties": [["slots", "4"], ["größe", "ü"]],
   "purpose": {"wants": "session"}
  }"#
    .replace("PROCESS", &hex(hello().statement.process.bytes()))
}

fn accept_fields() -> String {
    r#"{
   "role": "worker", "name": "lab1.example.org",
   "protections": ["encrypted", "integrity", "plain"], "cipher": "aes-256-gcm",
   "message_bytes_max": 1073741824, "credit_bytes": 8388608, "bulk_parts_max": 1024, "links_max": 16,
   "dead_after_milliseconds": 7500,
   "path": ["10.0.0.2", 7601, "10.0.0.1", 50000],
   "policy_generation": 1, "group": 0, "process": PROCESS,
   "versions": [["exoskel", "0.1.0"]],
   "properties": []
  }"#
    .replace("PROCESS", &hex(accepted().statement.process.bytes()))
}

fn refuse_fields() -> String {
    r#"{"reason": "version", "of": "python", "expected": "3.11", "got": "3.13", "text": "got python 3.13, expected 3.11"}"#
        .to_owned()
}

fn records() -> String {
    let mut cases = Vec::new();
    for cipher in CipherSuite::ALL {
        for protections in [
            TRUSTED,
            Protections::all(Protection::Integrity),
            Protections::default(),
        ] {
            cases.push(conversation(cipher, protections));
        }
    }
    cases.push(large_message());
    file(&[("cases", array(&cases))])
}

/// One conversation with everything small: a link, a request with bulk, its reply, a refused link, a heartbeat, new keys,
/// raised protections, and the end.
fn conversation(cipher: CipherSuite, protections: Protections) -> String {
    let secret: [u8; 32] = pattern(32, 0x11).try_into().unwrap();
    let session = |side| {
        let mut config = SessionConfig::new(side);
        (config.cipher, config.protections, config.job) = (cipher, protections, 7);
        config.segment_bytes = 1024;
        if side == Side::Client {
            config.epoch.records_max = 12;
        }
        Session::new(
            config,
            SessionSecret::from_bytes(&secret),
            &KeyStore::in_ordinary_memory(1),
            Duration::ZERO,
        )
    };
    let (mut client, mut server) = (session(Side::Client), session(Side::Server));
    server
        .offer(Endpoint::new("echo", &["first", "second"]))
        .unwrap();
    let (mut forth, mut back) = (Vec::new(), Vec::new());
    let mut both = |client: &mut Session, server: &mut Session, now| {
        pass(client, server, &mut forth, now);
        pass(server, client, &mut back, now);
    };

    let link = client.open_link("echo", TrafficClass::Data).unwrap();
    client.open_link("nobody", TrafficClass::Code).unwrap();
    let parts = [pattern(40, 1), vec![], pattern(2500, 2)];
    client
        .send(link, message(1, MessageKind::Request(9), b"head", &parts))
        .unwrap();
    both(&mut client, &mut server, 0);
    server
        .send(link, message(0, MessageKind::Reply(9), b"answer", &[]))
        .unwrap();
    server
        .send(
            link,
            message(0, MessageKind::Failure(10), b"", &[pattern(5, 3)]),
        )
        .unwrap();
    both(&mut client, &mut server, 0);
    // Two seconds of silence ask for a heartbeat of each side.
    both(&mut client, &mut server, 2);
    for _ in 0..3 {
        client
            .send(link, message(0, MessageKind::Post, b"posted", &[]))
            .unwrap();
    }
    both(&mut client, &mut server, 2);
    server.raise_protections(Protections::default());
    both(&mut client, &mut server, 2);
    client
        .send(link, message(0, MessageKind::Post, b"", &[pattern(100, 4)]))
        .unwrap();
    client.close_link(link).unwrap();
    both(&mut client, &mut server, 2);
    client.close(CloseReason::NotAllowed("policy".into()));
    both(&mut client, &mut server, 2);
    both(&mut client, &mut server, 2);
    assert!(client.is_closed() && server.is_closed());

    let name = format!("conversation, {cipher}, data {}", protections.data);
    case(
        &name,
        cipher,
        protections,
        &secret,
        &[
            ("client_stream", hex(&forth)),
            ("server_stream", hex(&back)),
        ],
    )
}

/// A message whose head and bulk need several records each; only the stream's hash is given.
fn large_message() -> String {
    let secret: [u8; 32] = pattern(32, 0x22).try_into().unwrap();
    let mut config = SessionConfig::new(Side::Client);
    config.protections = TRUSTED;
    let mut session = Session::new(
        config,
        SessionSecret::from_bytes(&secret),
        &KeyStore::in_ordinary_memory(1),
        Duration::ZERO,
    );
    let link = session.open_link("echo", TrafficClass::Data).unwrap();
    let sizes = [(300_000, 5), (262_144, 6), (262_145, 7)];
    let parts = [pattern(262_144, 6), pattern(262_145, 7)];
    session
        .send(
            link,
            message(0, MessageKind::Post, &pattern(300_000, 5), &parts),
        )
        .unwrap();
    let stream = outgoing(&mut session);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &stream);
    let patterns: Vec<_> = sizes
        .iter()
        .map(|(size, seed)| format!("[{size}, {seed}]"))
        .collect();
    let fields = [
        ("head_and_bulk_patterns", array(&patterns)),
        ("client_stream_bytes", stream.len().to_string()),
        ("client_stream_sha256", hex(hash.as_ref())),
    ];
    case(
        "large message",
        CipherSuite::Aes256Gcm,
        TRUSTED,
        &secret,
        &fields,
    )
}

fn case(
    name: &str,
    cipher: CipherSuite,
    protections: Protections,
    secret: &[u8],
    fields: &[(&str, String)],
) -> String {
    let protections = TrafficClass::ALL.map(|class| text(protections.of(class).name()));
    let mut all = vec![
        ("name", text(name)),
        ("cipher", text(cipher.name())),
        ("protections", array(&protections)),
        ("session_secret", hex(secret)),
    ];
    all.extend_from_slice(fields);
    object(&all)
}

fn message(handler: u16, kind: MessageKind, head: &[u8], bulk: &[Vec<u8>]) -> Message {
    Message {
        handler,
        kind,
        head: Bytes::copy_from_slice(head),
        bulk: bulk
            .iter()
            .map(|part| Bytes::copy_from_slice(part))
            .collect(),
        is_gathered: false,
    }
}

/// Moves what one session has to say to the other, and keeps a copy.
fn pass(from: &mut Session, to: &mut Session, stream: &mut Vec<u8>, seconds: u64) {
    let now = Duration::from_secs(seconds);
    from.prepare(now).unwrap();
    let bytes: Vec<u8> = from.outgoing().flatten().copied().collect();
    from.sent(bytes.len());
    stream.extend_from_slice(&bytes);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let room = to.receive_buffer();
        let count = room.len().min(rest.len());
        room[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        to.received(count, now).unwrap();
    }
}

fn outgoing(session: &mut Session) -> Vec<u8> {
    let mut stream = Vec::new();
    loop {
        session.prepare(Duration::ZERO).unwrap();
        let before = stream.len();
        session
            .outgoing()
            .for_each(|slice| stream.extend_from_slice(slice));
        session.sent(stream.len() - before);
        if stream.len() == before {
            return stream;
        }
    }
}

/// Bytes that are not all alike; the checker makes the same.
fn pattern(count: usize, seed: u8) -> Vec<u8> {
    (0..count)
        .map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ seed)
        .collect()
}

fn text(value: &str) -> String {
    format!("\"{value}\"")
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for byte in bytes {
        write!(out, "{byte:02x}").unwrap();
    }
    out + "\""
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("\"{name}\": {value}"))
        .collect();
    format!("{{{}}}", fields.join(",\n  "))
}

fn array(values: &[String]) -> String {
    format!("[{}]", values.join(",\n  "))
}

fn file(fields: &[(&str, String)]) -> String {
    let mut all = vec![("provenance", text(PROVENANCE))];
    all.extend_from_slice(fields);
    object(&all) + "\n"
}
