//! What is wrong with a credential.

use thiserror::Error;

use crate::claim::ClaimError;
use crate::error::IdentityError;
use crate::limits::CREDENTIAL_BYTES_MAX;
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::private_authority::TrustError;

/// Why a credential can't be used. Its owner must act. No message holds key material.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CredentialError {
    /// Longer than its limit.
    #[error("the credential has {got} bytes, expected at most {CREDENTIAL_BYTES_MAX}")]
    TooLong {
        /// Its bytes.
        got: usize,
    },
    /// The armour around a block is broken.
    #[error("the credential is not well-formed PEM: {reason}")]
    BadPem {
        /// What is wrong; never the text itself.
        reason: &'static str,
    },
    /// A block that has no place in a credential.
    #[error(
        "the credential holds a block {got}, expected CERTIFICATE, PRIVATE KEY, RSA PRIVATE KEY, EC PRIVATE KEY and X509 CRL only"
    )]
    UnexpectedBlock {
        /// The label of the block.
        got: &'static str,
    },
    /// Every credential has a leaf.
    #[error("the credential holds no CERTIFICATE, expected the leaf as the first one")]
    NoCertificate,
    /// A key that needs a pass phrase, which nobody could type.
    #[error(
        "the private key is encrypted, expected a plain key in a file that only its owner can read"
    )]
    EncryptedKey,
    /// A certificate alone proves nothing.
    #[error("the credential holds no PRIVATE KEY, expected exactly one")]
    NoKey,
    /// Which one would be meant?
    #[error("the credential holds several private keys, expected exactly one")]
    SeveralKeys,
    /// The key can't be used.
    #[error(
        "the private key is none of a known kind, expected ECDSA P-256, P-384 or P-521, Ed25519 or RSA"
    )]
    UnknownKey,
    /// The key belongs to another certificate.
    #[error(
        "the private key does not belong to the leaf certificate {leaf}: the file mixes two credentials"
    )]
    KeyMismatch {
        /// The leaf's subject.
        leaf: PeerText,
    },
    /// More certificates than peers look at.
    #[error("the credential's chain has {got} certificates, expected at most {max}")]
    ChainTooLong {
        /// How many there are.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// One of the certificates can't be read.
    #[error("certificate {position} of the credential: {reason}")]
    BadCertificate {
        /// Which one, from 0.
        position: usize,
        /// What is wrong with it.
        reason: Malformed,
    },
    /// The first certificate is an authority's.
    #[error("the first certificate {leaf} is an authority's, expected the leaf")]
    AuthorityAsLeaf {
        /// Its subject.
        leaf: PeerText,
    },
    /// A certificate that is neither the leaf nor able to sign it.
    #[error(
        "certificate {position} of the credential, {subject}, is no authority: expected the leaf first, then authorities only"
    )]
    StrayLeaf {
        /// Which one, from 0.
        position: usize,
        /// Its subject.
        subject: PeerText,
    },
    /// The leaf doesn't say who this is.
    #[error("the leaf certificate {leaf}: {reason}")]
    Claim {
        /// The leaf's subject.
        leaf: PeerText,
        /// What is wrong with its statements.
        reason: ClaimError,
    },
    /// The certificates of a grid credential don't lead from its leaf to an end entity.
    #[error("the credential's chain: {0}")]
    Chain(#[from] IdentityError),
    /// The authorities or their revocation lists can't be used.
    #[error("the credential's trust: {0}")]
    Trust(#[from] TrustError),
}
