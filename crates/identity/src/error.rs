//! Why a peer was refused. Each error names the certificate, the rule, and who has to act; what is about one part of the crate
//! only stands beside that part.

use rustls_pki_types::UnixTime;
use thiserror::Error;

use crate::claim::{ClaimError, Identity, Role};
use crate::date::Date;
use crate::grid::error::{NameSpaceRule, ProxyFault};
use crate::limits::{AUTHORITIES_MAX, RSA_EXPONENT_BITS_MAX, SIGNATURE_CHECKS_MAX};
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::which_certificate::WhichCertificate;
use crate::x509::Purposes;

/// Why a peer's chain of certificates was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// The peer has to present a certificate.
    #[error("the peer sent no certificate, expected a chain of a trusted authority")]
    NoCertificate,
    /// More certificates than we look at.
    #[error("the peer sent {got} certificates, expected at most {max}")]
    ChainTooLong {
        /// How many came.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// A certificate that can't be read.
    #[error("{certificate} is {reason}")]
    Malformed {
        /// Which one.
        certificate: WhichCertificate,
        /// What is wrong with it.
        reason: Malformed,
    },
    /// No trusted authority signed it, or one of that name did not.
    #[error(
        "{certificate} comes from {issuer}, which is none of the {anchors} trusted authorities (or its signature is wrong): issue it by a trusted one, or trust that authority"
    )]
    UnknownAuthority {
        /// The certificate whose issuer is unknown.
        certificate: WhichCertificate,
        /// Who it says signed it.
        issuer: PeerText,
        /// How many authorities are trusted.
        anchors: usize,
    },
    /// Its time is over.
    #[error("{certificate} expired on {}, now is {}: its owner needs a new one", Date(*.not_after), Date(*.now))]
    Expired {
        /// Which one.
        certificate: WhichCertificate,
        /// When it ended.
        not_after: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// Its time has not come.
    #[error("{certificate} is valid from {} on, now is {}: check the clocks of both hosts", Date(*.not_before), Date(*.now))]
    NotYetValid {
        /// Which one.
        certificate: WhichCertificate,
        /// When it starts.
        not_before: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// The authority that signed it is not valid now.
    #[error(
        "the authority {authority} is valid from {} to {}, now is {}: make a new authority, or check the clock of this host",
        Date(*.not_before), Date(*.not_after), Date(*.now)
    )]
    AuthorityOutOfDate {
        /// The authority's subject.
        authority: PeerText,
        /// When it starts.
        not_before: UnixTime,
        /// When it ends.
        not_after: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// Its authority took it back.
    #[error("{certificate} with serial number {serial} is revoked: its owner needs another one")]
    Revoked {
        /// Which one.
        certificate: WhichCertificate,
        /// Its serial number in hexadecimal digits.
        serial: String,
    },
    /// The revocation list is past its next update, so nobody knows who is revoked.
    #[error(
        "the revocation list {}that covers {certificate} is stale since {}, now is {}: fetch the authority's current list",
        name_of(.file.as_deref()), Date(*.next_update), Date(*.now)
    )]
    RevocationListStale {
        /// The certificate that could not be checked.
        certificate: WhichCertificate,
        /// The list's file, where the verifier has it from a trust directory.
        file: Option<Box<str>>,
        /// When the next list was due.
        next_update: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// The revocation list is not signed by the authority whose name it bears.
    #[error(
        "the revocation list that covers {certificate} is not signed by {issuer}: fetch the authority's current list"
    )]
    RevocationListForged {
        /// The certificate that could not be checked.
        certificate: WhichCertificate,
        /// Who should have signed the list.
        issuer: PeerText,
    },
    /// The authority has no revocation list in the trust directory, and the settings require one.
    #[error(
        "{certificate} comes from {issuer}, which has no usable revocation list here, expected one (HASH.r0): run fetch-crl"
    )]
    NoRevocationList {
        /// The certificate that could not be checked.
        certificate: WhichCertificate,
        /// Whose list is missing.
        issuer: PeerText,
    },
    /// The revocation list was made later than now.
    #[error(
        "the revocation list that covers {certificate} was made on {}, now is {}: check the clock of this host",
        Date(*.this_update), Date(*.now)
    )]
    RevocationListFromFuture {
        /// The certificate that could not be checked.
        certificate: WhichCertificate,
        /// When the list was made.
        this_update: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// RFC 5280 section 4.2.
    #[error(
        "{certificate} has the critical extension {extension}, expected none that is unknown here (RFC 5280 section 4.2)"
    )]
    UnknownCriticalExtension {
        /// Which one.
        certificate: WhichCertificate,
        /// The extension's dotted object identifier.
        extension: String,
    },
    /// Its key could be broken.
    #[error(
        "{certificate} has a weak key: got {got}, expected RSA of 2048 to 8192 bits with an odd exponent from 3 to {RSA_EXPONENT_BITS_MAX} bits, ECDSA P-256, P-384 or P-521, or Ed25519"
    )]
    WeakKey {
        /// Which one.
        certificate: WhichCertificate,
        /// Its key, for people.
        got: String,
    },
    /// Its signature could be forged.
    #[error(
        "{certificate} is signed by {got}, expected SHA-256 or better with RSA or ECDSA, or Ed25519"
    )]
    WeakSignature {
        /// Which one.
        certificate: WhichCertificate,
        /// How it is signed.
        got: String,
    },
    /// The certificate of that name did not sign it.
    #[error(
        "{certificate} is not signed by the certificate of {issuer} in the chain: it was damaged or forged"
    )]
    WrongSignature {
        /// Which one.
        certificate: WhichCertificate,
        /// Who should have signed it.
        issuer: PeerText,
    },
    /// Its authority is in the trust directory, but not to be trusted.
    #[error(
        "{certificate} comes from {authority}, which is in the trust directory, but may not sign certificates, or is too weak to be trusted: ask that authority"
    )]
    UntrustedAuthority {
        /// The certificate that it signed.
        certificate: WhichCertificate,
        /// The authority.
        authority: PeerText,
    },
    /// RFC 5280 section 4.2.1.9.
    #[error(
        "{certificate} is an authority below one that allows no more of them, expected an end entity (RFC 5280 section 4.2.1.9)"
    )]
    PathLength {
        /// The authority that is one too many.
        certificate: WhichCertificate,
    },
    /// More authorities than a path may have.
    #[error("the path goes over more than {AUTHORITIES_MAX} authorities")]
    TooManyAuthorities,
    /// The chain makes more work than a stranger may ask for.
    #[error("the chain needs more than {SIGNATURE_CHECKS_MAX} checks of signatures")]
    TooManySignatures,
    /// Its authority may not sign such a name.
    #[error("{certificate} has a name that {authority} may not sign: {rule}")]
    NameNotPermitted {
        /// Which one.
        certificate: WhichCertificate,
        /// The authority that the rule binds.
        authority: PeerText,
        /// Which rule.
        rule: NameSpaceRule,
    },
    /// No file says what the authority may sign, and the settings require one.
    #[error(
        "{certificate} comes from {authority}, for which no file says what it may sign, expected a readable HASH.signing_policy or HASH.namespaces"
    )]
    NoNameSpace {
        /// The certificate that it signed.
        certificate: WhichCertificate,
        /// The authority.
        authority: PeerText,
    },
    /// A rule of proxy certificates.
    #[error("{certificate}: {fault}")]
    Proxy {
        /// Which one.
        certificate: WhichCertificate,
        /// Which rule.
        fault: ProxyFault,
    },
    /// An authority's certificate where a leaf should stand.
    #[error("{certificate} is an authority's, expected a leaf")]
    AuthorityAsLeaf {
        /// Which one.
        certificate: WhichCertificate,
    },
    /// A leaf that signed another certificate.
    #[error("{certificate} signed another one, but is no authority")]
    LeafAsAuthority {
        /// Which one.
        certificate: WhichCertificate,
    },
    /// The key is for something else.
    #[error("{certificate} is not made for this use, expected {expected}")]
    WrongUsage {
        /// Which one.
        certificate: WhichCertificate,
        /// The uses it should allow.
        expected: &'static str,
    },
    /// RFC 5280 section 4.2.1.12: an authority's extended key usages bind what it signs, as OpenSSL has it.
    #[error(
        "{certificate} is an authority whose extended key usages allow {got}, expected {expected}, or no extended key usages: ask that authority"
    )]
    AuthorityPurpose {
        /// The authority.
        certificate: WhichCertificate,
        /// What they allow.
        got: Purposes,
        /// What everything below it allows.
        expected: Purposes,
    },
    /// Another rule of RFC 5280.
    #[error("{certificate} breaks a rule of certificate paths: {rule}")]
    PathRule {
        /// The leaf of the path.
        certificate: WhichCertificate,
        /// The rule, in the words of the path check.
        rule: String,
    },
    /// The chain is good, but doesn't say who this is.
    #[error("{certificate}: {reason}")]
    Claim {
        /// The leaf.
        certificate: WhichCertificate,
        /// What is wrong with its statements.
        reason: ClaimError,
    },
    /// Somebody proven, in a place where only others may stand.
    #[error("the peer is {got}, expected role {}", alternatives(.expected))]
    WrongRole {
        /// Who it is.
        got: Identity,
        /// The roles that may stand here.
        expected: Vec<Role>,
    },
    /// Somebody proven, but not the one that was meant to be reached.
    #[error(
        "the peer is {got}, expected name {expected:?}: check the address, or issue the certificate for that name"
    )]
    WrongName {
        /// Who it is.
        got: Identity,
        /// The name that was meant to be reached.
        expected: String,
    },
}

fn alternatives(roles: &[Role]) -> String {
    match roles {
        [] => "of nobody".to_owned(),
        roles => roles
            .iter()
            .map(|role| role.as_str())
            .collect::<Vec<_>>()
            .join(" or "),
    }
}

/// The name of a file, before what follows in a sentence.
fn name_of(file: Option<&str>) -> String {
    file.map_or_else(String::new, |file| format!("{file} "))
}
