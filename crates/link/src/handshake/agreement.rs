//! From two offers to one session, on either side: what is said, judged and kept.
//!
//! The client says Hello ([`HelloSent`]) and checks the answer; the server judges the Hello ([`Agreement::answer`]). Both then
//! have an [`Agreement`], which begins the session. Whoever drives this moves the messages inside of TLS.

use core::time::Duration;

use exoskel_identity::Identity;
use thiserror::Error;

use crate::error::CodecError;
use crate::handshake::{
    Accept, Answer, EXPORTER_BYTES, HandshakeError, Hello, NotAllowed, Offer, PROTOCOL, Purpose,
    Refuse, RefuseReason, Statement, accept, check_accept, session_config, session_secret,
    shared_memory,
};
use crate::keys::KeyStore;
use crate::policy::PlaceProof;
use crate::protection::Protections;
use crate::session::{Session, SessionConfig, Side};

/// A client that has said Hello and waits for the answer.
#[derive(Clone, Debug)]
pub struct HelloSent {
    offer: Offer,
    hello: Hello,
    bytes: Vec<u8>,
}

impl HelloSent {
    /// Says what this side offers for a session.
    ///
    /// # Errors
    /// [`CodecError`] when something in the offer is over its limit.
    pub fn new(offer: Offer) -> Result<Self, CodecError> {
        Self::to(Purpose::Session, offer)
    }

    /// Says what this side wants and offers.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn to(purpose: Purpose, offer: Offer) -> Result<Self, CodecError> {
        let hello = Hello {
            protocol: PROTOCOL,
            statement: offer.statement.clone(),
            minimum: offer.minimum,
            ciphers: offer.ciphers.clone(),
            purpose,
        };
        let bytes = hello.encode()?;
        Ok(Self {
            offer,
            hello,
            bytes,
        })
    }

    /// The message to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Checks the server's answer. `certified` is the server's identity as its certificate proves it.
    ///
    /// # Errors
    /// [`HandshakeError`]: the answer is no, can't be read, or doesn't fit to what was offered.
    pub fn answered(
        self,
        answer_bytes: Vec<u8>,
        certified: &Identity,
    ) -> Result<Agreement, HandshakeError> {
        let accept = match Answer::read(&answer_bytes)? {
            Answer::Accept(accept) => accept,
            Answer::Refuse(refuse) => return Err(HandshakeError::Refused(refuse)),
        };
        let proof = check_accept(&self.hello, &accept, certified)?;
        self.offer.mismatch(&accept.statement)?;
        Ok(Agreement {
            side: Side::Client,
            hello: self.hello,
            hello_bytes: self.bytes,
            accept,
            answer_bytes,
            proof,
        })
    }
}

/// Why a server has no agreement with a client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// We refuse the client. It has to be told.
    #[error("refused: {}", .0.text.own_sentence())]
    Refused(Refuse),
    /// Our own answer is too large to be sent.
    #[error("our own handshake message can't be sent: {0}")]
    Own(#[from] CodecError),
}

/// The certificates that both ends presented in TLS, in DER, leaf first.
#[derive(Clone, Copy, Debug)]
pub struct Chains<'a> {
    /// This side's.
    pub own: &'a [Vec<u8>],
    /// The peer's.
    pub peer: &'a [Vec<u8>],
}

/// What both sides have said, found good by this one.
#[derive(Clone, Debug)]
pub struct Agreement {
    side: Side,
    hello: Hello,
    hello_bytes: Vec<u8>,
    accept: Accept,
    answer_bytes: Vec<u8>,
    proof: PlaceProof,
}

impl Agreement {
    /// The server's part, for a session: judges a Hello. `certified` is the client's identity as its certificate proves it, `admitted` what our policy
    /// says of it; `judge` may refuse a client whom the policy allows and whose versions fit.
    ///
    /// # Errors
    /// [`AnswerError`], above all the refusal to send.
    pub fn answer(
        offer: Offer,
        hello_bytes: Vec<u8>,
        certified: &Identity,
        admitted: Result<(), NotAllowed>,
        judge: impl FnOnce(&Hello) -> Result<(), Refuse>,
    ) -> Result<Self, AnswerError> {
        let judged = Hello::read(&hello_bytes).map_err(|error| error.refusal());
        let judged = judged.and_then(|hello| {
            admitted.map_err(|error| Refuse {
                reason: RefuseReason::NotAllowed,
                text: error.to_string().into(),
            })?;
            // Not earlier: who isn't admitted has no say in what stands in our log.
            offer
                .mismatch(&hello.statement)
                .map_err(|error| error.refusal())?;
            if hello.purpose != Purpose::Session {
                return Err(no_gateway());
            }
            judge(&hello)?;
            let (accept, proof) = accept(&hello, certified, offer)?;
            Ok((hello, accept, proof))
        });
        let (hello, accept, proof) = judged.map_err(AnswerError::Refused)?;
        Ok(Self {
            side: Side::Server,
            answer_bytes: Answer::Accept(accept.clone()).encode()?,
            hello,
            hello_bytes,
            accept,
            proof,
        })
    }

    /// The answer as it travels.
    pub fn answer_bytes(&self) -> &[u8] {
        &self.answer_bytes
    }

    /// The protections that hold.
    pub fn protections(&self) -> Protections {
        self.accept.protections
    }

    /// What the two ends' views of the way prove.
    pub fn proof(&self) -> PlaceProof {
        self.proof
    }

    /// Whether the session goes through shared memory, if there is any: both ends are willing, and each has the kernel's word that the
    /// other is on the same host.
    pub fn shares_memory(&self) -> bool {
        let statements = [&self.hello.statement, &self.accept.statement];
        self.proof == PlaceProof::SameHost
            && statements
                .into_iter()
                .all(|statement| shared_memory::is_willing(&statement.properties))
    }

    /// What the peer said of itself.
    pub fn peer(&self) -> &Statement {
        match self.side {
            Side::Client => &self.accept.statement,
            Side::Server => &self.hello.statement,
        }
    }

    /// The largest message that both sides take, in bytes.
    pub fn message_bytes_max(&self) -> u64 {
        let (client, server) = (&self.hello.statement.limits, &self.accept.statement.limits);
        client.message_bytes_max.min(server.message_bytes_max)
    }

    /// Begins the session that follows. `change` sets what each side decides alone.
    ///
    /// # Security
    /// The exporter must be that of the TLS session that carried both messages, and the chains those that it has proven: the
    /// session's secret is bound to all of them.
    pub fn session(
        &self,
        chains: Chains<'_>,
        exporter: &[u8; EXPORTER_BYTES],
        keys: &KeyStore,
        now: Duration,
        change: impl FnOnce(&mut SessionConfig),
    ) -> Session {
        // The chains stand in the transcript as client's and server's, whoever we are.
        let (client, server) = match self.side {
            Side::Client => (chains.own, chains.peer),
            Side::Server => (chains.peer, chains.own),
        };
        let secret = session_secret(
            &self.hello_bytes,
            &self.answer_bytes,
            &as_slices(client),
            &as_slices(server),
            exporter,
        );
        let mut config = session_config(self.side, &self.hello, &self.accept);
        change(&mut config);
        Session::new(config, secret, keys, now)
    }
}

/// Sessions are all that ordinary nodes have.
fn no_gateway() -> Refuse {
    Refuse {
        reason: RefuseReason::NotAllowed,
        text: "this node is no gateway: it connects nobody, and takes no registrations".into(),
    }
}

fn as_slices(chain: &[Vec<u8>]) -> Vec<&[u8]> {
    chain.iter().map(Vec::as_slice).collect()
}
