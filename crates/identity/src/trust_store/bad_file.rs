//! Files of a trust directory that can't be used, and why.

use thiserror::Error;

use crate::limits::{CERTIFICATES_IN_FILE_MAX, TRUST_BYTES_MAX, TRUST_FILES_MAX};
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::voms::SignerChainsError;

/// A file that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// Its name relative to its directory.
    pub name: String,
    /// What is wrong with it.
    pub reason: BadFileReason,
    /// Whether what stood under this name before is still in use.
    pub kept_previous: bool,
}

/// Why a file of a trust directory can't be used. Whoever keeps the directory must act.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadFileReason {
    /// Nothing in it: most likely its writer stopped, or the disk is full.
    #[error("got an empty file")]
    Empty,
    /// The armour of PEM is broken, or the block in it is another one.
    #[error("got no PEM block {expected}, and no DER")]
    NoBlock {
        /// The label that should be there.
        expected: &'static str,
    },
    /// More blocks than are read.
    #[error("got more than {CERTIFICATES_IN_FILE_MAX} certificates in one file")]
    TooManyBlocks,
    /// More than one revocation list.
    #[error(
        "got several revocation lists in one file, expected one: put each into a file HASH.r0, HASH.r1 of its own"
    )]
    SeveralLists,
    /// The contents can't be read.
    #[error("got something that is {0}")]
    Malformed(#[from] Malformed),
    /// The authority's signature over its own certificate is wrong: the file is damaged.
    #[error("the certificate {subject} is not signed with its own key: the file is damaged")]
    BadSelfSignature {
        /// Whose certificate it is.
        subject: PeerText,
    },
    /// None of the authorities of that name signed the list.
    #[error("the revocation list is not signed by {issuer}")]
    ForgedList {
        /// Who should have signed it.
        issuer: PeerText,
    },
    /// The revocation list is signed in a way that nobody should trust.
    #[error("the revocation list of {issuer} is signed by {algorithm}, expected SHA-256 or better")]
    WeakList {
        /// Who signed it.
        issuer: PeerText,
        /// How.
        algorithm: String,
    },
    /// A line of a text file.
    #[error("line {line}: {reason}")]
    BadLine {
        /// Which one, from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A pattern of names with something that other readers take for more than text. Taken literally, it would forbid too
    /// little or permit too little, and nobody would know.
    #[error(
        "line {line}: got {construct} in {pattern}, expected text, and {wildcard} as the only wildcard"
    )]
    UnknownPattern {
        /// Which one, from 1.
        line: usize,
        /// What isn't understood.
        construct: &'static str,
        /// Where it stands.
        pattern: PeerText,
        /// What is.
        wildcard: &'static str,
    },
    /// A `.lsc` file that names no signer, or not whom.
    #[error(transparent)]
    SignerChains(#[from] SignerChainsError),
    /// Longer than a file of its kind may be.
    #[error("got {got} bytes, expected at most {max}")]
    TooLong {
        /// Its bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The directories hold more files than are read.
    #[error("the trust directories hold more than {TRUST_FILES_MAX} files")]
    TooManyFiles,
    /// The directories hold more bytes than are read.
    #[error("the trust directories hold more than {TRUST_BYTES_MAX} bytes")]
    TooManyBytes,
}
