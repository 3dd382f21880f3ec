//! The handshake, with a deterministic engine in the place of TLS: Hello and the answer, what they agree on and the key
//! schedule are the real ones; that the peers are who they say they are is given.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::{
    Accept, Answer, EXPORTER_BYTES, HandshakeError, Hello, PROTOCOL, Path, ServerTerms, accept,
    check_accept, session_config, session_secret,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::Proof;
use exoskel_link::{CipherSuite, Limits, Protection, Protections, Session, SessionConfig, Side};

use exoskel_determinism::SplitMix64;

/// What a node brings to a handshake.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) identity: Identity,
    pub(super) floors: Protections,
    pub(super) ciphers: Vec<CipherSuite>,
    pub(super) limits: Limits,
    pub(super) dead_after: Duration,
    pub(super) path: Path,
    /// Of links that it opens.
    pub(super) group: u32,
    /// Where it has the keys of its sessions.
    pub(super) keys: KeyStore,
}

/// A client that waits for the answer.
#[derive(Clone)]
pub(super) struct Greeting {
    hello: Hello,
    bytes: Vec<u8>,
    keys: KeyStore,
}

/// What `TLS` would give both ends: who the other one is, and a secret that nobody else has.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub(super) client: Identity,
    pub(super) server: Identity,
    pub(super) exporter: [u8; EXPORTER_BYTES],
}

impl Channel {
    pub(super) fn new(client: Identity, server: Identity, random: &mut SplitMix64) -> Self {
        let mut exporter = [0; EXPORTER_BYTES];
        exporter
            .iter_mut()
            .for_each(|byte| *byte = random.next_u64() as u8);
        Self {
            client,
            server,
            exporter,
        }
    }

    /// Both ends' session after this exchange. The chains are the names: nobody judges them here.
    fn session(
        &self,
        side: Side,
        hello: (&Hello, &[u8]),
        accept: (&Accept, &[u8]),
        keys: &KeyStore,
        now: Duration,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Session {
        let (client, server) = (self.client.to_string(), self.server.to_string());
        let secret = session_secret(
            hello.1,
            accept.1,
            &[client.as_bytes()],
            &[server.as_bytes()],
            &self.exporter,
        );
        let mut config = session_config(side, hello.0, accept.0);
        // Not sent: each side's own affair.
        config.limits.queued_bytes_max = Limits::default().queued_bytes_max;
        change(&mut config);
        Session::new(config, secret, keys, now)
    }
}

impl Greeting {
    /// The client's first word.
    pub(super) fn new(terms: &Terms) -> Result<Self, HandshakeError> {
        let hello = Hello {
            protocol: PROTOCOL,
            identity: terms.identity.clone(),
            floors: terms.floors,
            floors_unproven: terms.floors.stricter(Protections::default()),
            ciphers: terms.ciphers.clone(),
            limits: terms.limits,
            dead_after: terms.dead_after,
            versions: Vec::new(),
            path: terms.path,
            policy_generation: 1,
            group: terms.group,
            properties: Vec::new(),
        };
        let bytes = hello.encode()?;
        let keys = terms.keys.clone();
        Ok(Self { hello, bytes, keys })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The server has answered.
    pub(super) fn answered(
        &self,
        answer: &[u8],
        channel: &Channel,
        now: Duration,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Result<Session, HandshakeError> {
        let accepted = match Answer::read(answer)? {
            Answer::Accept(accepted) => accepted,
            Answer::Refuse(refuse) => return Err(HandshakeError::Refused(refuse)),
        };
        check_accept(&self.hello, &accepted, &channel.server)?;
        let hello = (&self.hello, &self.bytes[..]);
        let accept = (&accepted, answer);
        Ok(channel.session(Side::Client, hello, accept, &self.keys, now, change))
    }
}

/// The server's answer to a Hello, and its session.
pub(super) fn welcome(
    bytes: &[u8],
    terms: &Terms,
    channel: &Channel,
    now: Duration,
    change: impl FnOnce(&mut SessionConfig),
) -> Result<(Vec<u8>, Session), HandshakeError> {
    let hello = Hello::read(bytes)?;
    let own = ServerTerms {
        identity: terms.identity.clone(),
        path: terms.path,
        ciphers: terms.ciphers.clone(),
        limits: terms.limits,
        dead_after: terms.dead_after,
        versions: Vec::new(),
        policy_generation: 1,
        group: terms.group,
        properties: Vec::new(),
    };
    let floors = |proof| match proof {
        Proof::Unproven => terms.floors.stricter(Protections::default()),
        Proof::Direct | Proof::SameHost => terms.floors,
    };
    let accepted = accept(&hello, &channel.client, own, floors).map_err(HandshakeError::Refused)?;
    let answer = Answer::Accept(accepted.clone()).encode()?;
    let session = channel.session(
        Side::Server,
        (&hello, bytes),
        (&accepted, &answer),
        &terms.keys,
        now,
        change,
    );
    Ok((answer, session))
}

/// What two floors come to between hosts, found another way than the handshake finds it.
pub(super) fn agreed(one: Protections, other: Protections, is_relayed: bool) -> Protections {
    let stricter = |one: Protection, other: Protection, least: Protection| {
        let relayed = if is_relayed {
            Protection::Encrypted
        } else {
            least
        };
        one.max(other).max(relayed)
    };
    Protections {
        control: stricter(one.control, other.control, Protection::Integrity),
        code: stricter(one.code, other.code, Protection::Integrity),
        data: stricter(one.data, other.data, Protection::Plain),
    }
}

/// How the manager (false) or a worker sees the way between them.
pub(super) fn path(worker: usize, is_worker: bool, is_relayed: bool) -> Path {
    if is_relayed && is_worker {
        return Path::Relayed;
    }
    let place = |last: usize, port| {
        let [high, low] = ((last % 65_000) as u16).to_be_bytes();
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, high, low)), port)
    };
    let (manager, worker) = (place(0, 7777), place(1 + worker, 40_000));
    let (local, remote) = if is_worker {
        (worker, manager)
    } else {
        (manager, worker)
    };
    Path::Network { local, remote }
}

/// The manager's name.
pub(super) fn manager() -> Identity {
    Identity {
        role: Role::Manager,
        name: "manager".to_owned(),
    }
}

/// A worker's.
pub(super) fn worker(number: usize) -> Identity {
    Identity {
        role: Role::Worker,
        name: format!("worker{number}"),
    }
}
