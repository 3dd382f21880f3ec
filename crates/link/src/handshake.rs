//! The handshake's own part: Hello and the answer, what they agree on, and the secret that follows.

mod encoding;
mod fields;
mod negotiation;
mod transcript;

use core::net::SocketAddr;
use core::time::Duration;

use exoskel_identity::{Identity, PeerText};
use thiserror::Error;

use crate::error::CodecError;
use crate::keys::CipherSuite;
use crate::limits::Limits;
use crate::protection::Protections;

pub use negotiation::{ServerTerms, accept, check_accept, session_config};
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

/// The bytes of a witness of [`Path::SameHost`].
pub const WITNESS_BYTES: usize = 32;

/// How one end sees the way to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A socketpair or Unix socket whose peer the kernel vouches for; [`Path::same_host`] makes it.
    SameHost {
        /// A digest of which machine and which socket that is, as this end's kernel says. Two ends with different ones
        /// have a relay between them.
        witness: [u8; WITNESS_BYTES],
    },
    /// A network connection between these two addresses, as this end sees them.
    Network {
        /// This end's address.
        local: SocketAddr,
        /// The other end's address.
        remote: SocketAddr,
    },
    /// Known to lead through a relay, gateway or tunnel, or not known.
    Relayed,
}

/// The client's one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u16,
    /// Who the client claims to be; has to agree with its certificate.
    pub identity: Identity,
    /// The least protection by class if both ends prove to see the same way.
    pub floors: Protections,
    /// The least protection by class if they don't.
    pub floors_unproven: Protections,
    /// The ciphers it can use, the preferred one first.
    pub ciphers: Vec<CipherSuite>,
    /// What it is willing to hold. [`Limits::queued_bytes_max`] is not sent and reads as 0.
    pub limits: Limits,
    /// After how long a silence it declares the other side dead.
    pub dead_after: Duration,
    /// Software versions by name, such as ("python", "3.11").
    pub versions: Vec<(PeerText, PeerText)>,
    /// How it sees the way.
    pub path: Path,
    /// The generation of its policy.
    pub policy_generation: u64,
    /// The group (process or job) that it belongs to.
    pub group: u32,
    /// Anything else by name, such as ("slots", "4").
    pub properties: Vec<(PeerText, PeerText)>,
}

/// The server's yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Who the server claims to be; has to agree with its certificate.
    pub identity: Identity,
    /// The protections that hold.
    pub protections: Protections,
    /// The cipher that is used.
    pub cipher: CipherSuite,
    /// What the server is willing to hold.
    pub limits: Limits,
    /// After how long a silence it declares the other side dead.
    pub dead_after: Duration,
    /// Software versions by name.
    pub versions: Vec<(PeerText, PeerText)>,
    /// How it sees the way.
    pub path: Path,
    /// The generation of its policy.
    pub policy_generation: u64,
    /// The group (process or job) that it belongs to.
    pub group: u32,
    /// Anything else by name.
    pub properties: Vec<(PeerText, PeerText)>,
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
            Self::Identity { .. } => RefuseReason::Certificate,
            Self::CipherNotOffered => RefuseReason::Cipher,
            _ => RefuseReason::Malformed,
        };
        Refuse {
            reason,
            text: self.to_string().into(),
        }
    }
}
