//! What is wrong with bytes that should be a certificate, a list or a name.

use thiserror::Error;

use crate::der::NotDer;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Longer than its limit.
    #[error("{what} of {got} bytes, expected at most {max}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// A certificate with an extension beyond its limit.
    #[error("a certificate whose extension {extension} has {got} bytes, expected at most {max}")]
    LongExtension {
        /// Its object identifier, and what it is for if that is known.
        extension: String,
        /// Its bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// More parts than a limit allows.
    #[error("{got} {what}, expected at most {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// Not a distinguished name.
    #[error("not a distinguished name")]
    NoDistinguishedName,
    /// The algorithm inside the signed part is another one than outside (RFC 5280 sections 4.1.1.2 and 5.1.1.2).
    #[error("signed by another algorithm than it states inside")]
    TwoSignatureAlgorithms,
    /// Not an X.509 certificate.
    #[error("not an X.509 certificate")]
    NoCertificate,
    /// Not an X.509 revocation list.
    #[error("not an X.509 revocation list")]
    NoRevocationList,
    /// More bytes than the structure.
    #[error("{got} bytes after the end of the {what}")]
    TrailingBytes {
        /// What should have been alone.
        what: &'static str,
        /// How many bytes follow.
        got: usize,
    },
    /// Bytes that have another form in DER.
    #[error("not DER: {0}")]
    NotDer(#[from] NotDer),
    /// An extension that we read is malformed.
    #[error("not well-formed: a malformed extension")]
    BadExtension,
    /// RFC 5280 section 4.2: two extensions of one kind would be believed by one reader each.
    #[error(
        "not well-formed: got the extension {extension} twice in {place}, expected it once (RFC 5280 section 4.2)"
    )]
    RepeatedExtension {
        /// Its object identifier.
        extension: String,
        /// What holds it.
        place: &'static str,
    },
    /// RFC 5280 section 4.2.1.6: there is a name, and none is empty.
    #[error(
        "not well-formed: got {got} among the subject's alternative names, expected at least one name, and none that is empty (RFC 5280 section 4.2.1.6)"
    )]
    EmptyAlternativeName {
        /// What is empty.
        got: &'static str,
    },
    /// A revocation list that never becomes stale can't be told from an old one.
    #[error("a revocation list without the time of its next update")]
    NoNextUpdate,
    /// The structure is sound for one reader but not for the one that checks paths.
    #[error("not usable: {reason}")]
    Unusable {
        /// What the path check said.
        reason: String,
    },
}
