//! The handshake's own part: Hello and the answer, what they agree on, and the secret that follows.

mod agreement;
mod encoding;
mod fields;
mod negotiation;
mod node_config;
mod path;
mod process;
mod purpose;
mod shared_memory;
mod transcript;

use core::time::Duration;

use exoskel_identity::{Identity, PeerText};
use thiserror::Error;

use crate::error::CodecError;
use crate::keys::CipherSuite;
use crate::limits::Limits;
use crate::protection::Protections;

pub(crate) use fields::{put_identity, read_identity};

pub use agreement::{Agreement, AnswerError, Chains, HelloSent};
pub(crate) use encoding::stated_role;
pub use negotiation::{MinimumProtections, Offer, accept, check_accept, session_config};
pub use node_config::{NoLongerGood, NodeConfig, NotAllowed, PeerRecord};
pub use path::{Path, WITNESS_BYTES};
pub use process::{PROCESS_NUMBER_BYTES, ProcessNumber};
pub use purpose::{GatewayCall, HOPS_MAX, Purpose, TICKET_BYTES, Ticket};
pub use shared_memory::MemoryName;
pub use transcript::{session_secret, transcript_hash};

/// The version of the protocol that this crate speaks.
pub const PROTOCOL: u16 = 1;
/// The application protocol that both sides name in TLS.
pub const ALPN: &[u8] = b"exoskel/1";
/// The label of the TLS exporter.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-exoskel/1";
/// The bytes that the exporter gives.
pub const EXPORTER_BYTES: usize = 32;
/// The most bytes of a Hello or an answer; each fits in one TLS record.
pub const HANDSHAKE_BYTES_MAX: usize = 16 * 1024 - 256;

/// What a node says of itself, as client in Hello and as server in Accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Who it claims to be; has to agree with its certificate.
    pub identity: Identity,
    /// What it is willing to hold. [`Limits::queued_bytes_max`] is not sent and reads as 0.
    pub limits: Limits,
    /// The longest silence of the other side that it bears. The smaller of the two statements holds for both sides.
    pub dead_after: Duration,
    /// Software versions by name, such as ("python", "3.11").
    pub versions: Vec<(PeerText, PeerText)>,
    /// How it sees the way.
    pub path: Path,
    /// The generation of its policy.
    pub policy_generation: u64,
    /// The job that it belongs to; 0: none.
    pub job: u32,
    /// Which process of its node it is.
    pub process: ProcessNumber,
    /// Anything else by name, such as ("slots", "4").
    pub properties: Vec<(PeerText, PeerText)>,
}

/// The client's one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u16,
    /// What the client says of itself.
    pub statement: Statement,
    /// The least protections that the client's policy allows.
    pub minimum: MinimumProtections,
    /// The ciphers it can use, the preferred one first.
    pub ciphers: Vec<CipherSuite>,
    /// What the client wants.
    pub purpose: Purpose,
}

/// The server's yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// What the server says of itself.
    pub statement: Statement,
    /// The protections that hold.
    pub protections: Protections,
    /// The cipher that is used.
    pub cipher: CipherSuite,
}

/// The server's no, with a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// Why.
    pub reason: RefuseReason,
    /// For people: what to do.
    pub text: PeerText,
}

/// Why a server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// It speaks other versions of the protocol, or of software that has to agree.
    Version {
        /// What has to agree, such as "protocol" or "python".
        of: PeerText,
        /// The server's version.
        expected: PeerText,
        /// The client's.
        got: PeerText,
    },
    /// The client's role cannot dial here.
    Role,
    /// The rules do not allow this client.
    NotAllowed,
    /// The client's certificate is not accepted.
    Certificate,
    /// No place at the moment; a retry may help.
    Busy,
    /// A limit cannot be met.
    Limit,
    /// Hello could not be read.
    Malformed,
    /// No cipher in common.
    Cipher,
    /// A gateway has no way to the node; a retry may help.
    Unreachable,
    /// A gateway has no way to the process of the node that was asked for, and knows others of that node; a retry may help, if the process
    /// lives.
    OtherProcess,
}

/// The server's one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    Accept(Accept),
    /// No.
    Refuse(Refuse),
}

/// What ends a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The message cannot be read.
    #[error("cannot read the peer's handshake message: {0}")]
    Codec(#[from] CodecError),
    /// The peer speaks another version.
    #[error(
        "got protocol version {got}, expected {expected}: update the older of the two installations"
    )]
    Protocol {
        /// The peer's.
        got: u16,
        /// Ours.
        expected: u16,
    },
    /// Versions that must agree don't.
    #[error(
        "got {of} {got} at the peer, expected {expected}: both need the same minor version of {of}; install it on one of the machines"
    )]
    Version {
        /// What has to agree.
        of: String,
        /// The peer's.
        got: PeerText,
        /// Ours.
        expected: String,
    },
    /// The server refused.
    #[error("the peer refused the session: {}", .0.text.sentence())]
    Refused(Refuse),
    /// Accept is weaker than this side's policy demands.
    #[error(
        "the peer accepted with protections ({got}), expected at least ({expected}): a downgrade is tried, or the \
         peer's software is at fault"
    )]
    Downgrade {
        /// Accept's.
        got: Protections,
        /// This side's.
        expected: Protections,
    },
    /// Accept names a cipher that was not offered.
    #[error("the peer chose a cipher that was not offered")]
    CipherNotOffered,
    /// The claim in the message and the certificate disagree.
    #[error("the peer claims to be {claimed}, its certificate says {certified}")]
    Identity {
        /// What the message says.
        claimed: Identity,
        /// What the certificate proves.
        certified: Identity,
    },
}

impl HandshakeError {
    /// What a server answers to a Hello that it cannot take.
    pub fn refusal(&self) -> Refuse {
        let reason = match self {
            Self::Protocol { got, expected } => RefuseReason::Version {
                of: "protocol".into(),
                expected: expected.to_string().into(),
                got: got.to_string().into(),
            },
            Self::Version { of, got, expected } => RefuseReason::Version {
                of: of.as_str().into(),
                expected: expected.as_str().into(),
                got: got.clone(),
            },
            Self::Identity { .. } => RefuseReason::Certificate,
            Self::CipherNotOffered => RefuseReason::Cipher,
            _ => RefuseReason::Malformed,
        };
        let text = match self {
            // For the client "the peer" would be the server.
            Self::Version { of, got, expected } => format!(
                "got {of} {got}, expected {expected}: both need the same minor version of {of}; install it on one of the machines"
            ),
            _ => self.to_string(),
        };
        Refuse {
            reason,
            text: text.into(),
        }
    }
}
