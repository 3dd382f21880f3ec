//! Why nobody can be judged by a set of authorities.

use thiserror::Error;

use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::x509::Purposes;

/// Why a set of trusted authorities can't be used. Its owner must act.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrustError {
    /// Nobody would be trusted.
    #[error("got no certificate of an authority, expected at least one")]
    NoAuthority,
    /// More than a limit allows.
    #[error("got {got} {what}, expected at most {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The certificate of an authority can't be read.
    #[error("authority certificate {position}: {reason}")]
    BadAuthority {
        /// Which one, from 0.
        position: usize,
        /// What is wrong with it.
        reason: Malformed,
    },
    /// A leaf can't be trusted to sign others.
    #[error("{subject} is no authority: its certificate does not allow it to sign others")]
    NotAnAuthority {
        /// What it calls itself.
        subject: PeerText,
    },
    /// A root whose extended key usages leave out clients or servers: a node is both.
    #[error(
        "{subject} signs for other uses: its extended key usages allow {got}, expected clientAuth and serverAuth, or no extended key usages"
    )]
    PurposeOfAuthority {
        /// What it calls itself.
        subject: PeerText,
        /// What they allow.
        got: Purposes,
    },
    /// A revocation list can't be read.
    #[error("revocation list {position}: {reason}")]
    BadRevocationList {
        /// Which one, from 0.
        position: usize,
        /// What is wrong with it.
        reason: Malformed,
    },
}
