//! Why an identity was refused. Each error names the certificate, the rule, and who has to act.

use rustls_pki_types::UnixTime;
use thiserror::Error;

use crate::certificate::{Date, WhichCertificate};
use crate::claim::{Identity, Role};
use crate::der::NotDer;
use crate::grid::ProxyFault;
use crate::limits::{
    AUTHORITIES_MAX, CREDENTIAL_BYTES_MAX, NAME_BYTES_MAX, RSA_EXPONENT_BITS_MAX,
    SIGNATURE_CHECKS_MAX, SUBJECT_BYTES_MAX,
};
use crate::peer_text::PeerText;
use crate::x509::Purposes;

/// A certificate's URIs don't state exactly one role and one name. Its issuer must issue another one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// No URI states a role.
    #[error("no role is stated: got no URI \"exoskel:role:...\", expected exactly one")]
    MissingRole,
    /// No URI states a name.
    #[error("no name is stated: got no URI \"exoskel:name:...\", expected exactly one")]
    MissingName,
    /// Two URIs state a role.
    #[error("got several roles, expected exactly one")]
    SeveralRoles,
    /// Two URIs state a name.
    #[error("got several names, expected exactly one")]
    SeveralNames,
    /// The role is none of ours.
    #[error("got role {got}, expected manager, worker, gateway or agent")]
    UnknownRole {
        /// What stood there.
        got: PeerText,
    },
    /// The name could mean something else, to a pattern, a path or a terminal.
    #[error(
        "got name {got}, expected 1 to {NAME_BYTES_MAX} small letters, digits and . - _ : @ + (not starting with - or ., not ending with .)"
    )]
    BadName {
        /// What stood there.
        got: PeerText,
    },
    /// A distinguished name that can't be somebody's name here.
    #[error(
        "got the subject {got}, expected a distinguished name like \"/DC=org/CN=alice\" of at most {SUBJECT_BYTES_MAX} printable ASCII characters"
    )]
    BadSubject {
        /// What stood there.
        got: PeerText,
    },
    /// A URI of our scheme that this version doesn't know. It could be a restriction, so it can't be ignored.
    #[error("got the statement {got}, expected only \"exoskel:role:...\" and \"exoskel:name:...\"")]
    UnknownStatement {
        /// The URI.
        got: PeerText,
    },
}

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
    #[error("{certificate} expired on {}, now is {}: its owner must renew it", Date(*.not_after), Date(*.now))]
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
        "the revocation list that covers {certificate} is stale since {}, now is {}: fetch the authority's current list",
        Date(*.next_update), Date(*.now)
    )]
    RevocationListStale {
        /// The certificate that could not be checked.
        certificate: WhichCertificate,
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

/// A rule about the names that an authority may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameSpaceRule {
    /// RFC 5280 section 4.2.1.10.
    #[error("its name constraints don't permit it (RFC 5280 section 4.2.1.10)")]
    NameConstraints,
    /// A Globus `signing_policy` file.
    #[error("its signing_policy file doesn't permit it")]
    SigningPolicy,
    /// An EUGridPMA `namespaces` file.
    #[error("its namespaces file doesn't permit it")]
    Namespaces,
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
