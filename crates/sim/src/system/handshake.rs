//! The handshake's deterministic engine, which stands in the place of TLS: that the peers are who they say they are is
//! given. What is said and judged is `exoskel_link`'s.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use exoskel_identity::{Identity, Role};
use exoskel_link::handshake::{
    Agreement, AnswerError, Chains, EXPORTER_BYTES, HandshakeError, HelloSent, MinimumProtections,
    Offer, PROCESS_NUMBER_BYTES, Path, ProcessNumber, Refuse, Statement,
};
use exoskel_link::keys::KeyStore;
use exoskel_link::{CipherSuite, Limits, Protection, Protections, Session, SessionConfig};

use super::scenario::Scenario;
use exoskel_determinism::SplitMix64;

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

    /// A session's end after this exchange. The chains are the names: nobody judges them here.
    fn session(
        &self,
        agreement: &Agreement,
        (own, peer): (&Identity, &Identity),
        keys: &KeyStore,
        now: Duration,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Session {
        let chains = Chains {
            own: &[own.to_string().into_bytes()],
            peer: &[peer.to_string().into_bytes()],
        };
        agreement.session(chains, &self.exporter, keys, now, |config| {
            // Not sent: each side's own affair.
            config.limits.queued_bytes_max = Limits::default().queued_bytes_max;
            change(config);
        })
    }

    /// The client's session, when the server has answered.
    pub(super) fn answered(
        &self,
        hello: HelloSent,
        answer: Vec<u8>,
        keys: &KeyStore,
        now: Duration,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Result<Session, HandshakeError> {
        let agreement = hello.answered(answer, &self.server)?;
        let names = (&self.client, &self.server);
        Ok(self.session(&agreement, names, keys, now, change))
    }

    /// The server's answer to a Hello, and its session. `judge` may refuse the client.
    pub(super) fn answer(
        &self,
        hello: Vec<u8>,
        offer: Offer,
        keys: &KeyStore,
        now: Duration,
        judge: impl FnOnce() -> Result<(), Refuse>,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Result<(Vec<u8>, Session), AnswerError> {
        let agreement = Agreement::answer(offer, hello, &self.client, Ok(()), |_| judge())?;
        let names = (&self.server, &self.client);
        let session = self.session(&agreement, names, keys, now, change);
        Ok((agreement.answer_bytes().to_vec(), session))
    }
}

/// What a node of this scenario brings to a handshake.
pub(super) fn offer(
    scenario: &Scenario,
    identity: Identity,
    minimum: Protections,
    ciphers: Vec<CipherSuite>,
    path: Path,
    job: u32,
) -> Offer {
    Offer {
        statement: Statement {
            limits: scenario.limits,
            dead_after: scenario.dead_after,
            versions: Vec::new(),
            path,
            policy_generation: 1,
            job,
            process: process_of(&identity),
            identity,
            properties: Vec::new(),
        },
        minimum: MinimumProtections {
            proven: minimum,
            unproven: minimum.stricter(Protections::default()),
        },
        ciphers,
        same_versions: Vec::new(),
    }
}

/// A number that a name always has.
fn process_of(identity: &Identity) -> ProcessNumber {
    let mut number = [0; PROCESS_NUMBER_BYTES];
    for (place, byte) in number.iter_mut().zip(identity.name.bytes()) {
        *place = byte;
    }
    ProcessNumber::new(number)
}

/// What two minimum protections come to between hosts, found another way than the handshake finds it.
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
        control: stricter(one.control, other.control, Protection::Encrypted),
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
