//! Why attributes don't count. The identity that carries them is as good as before.

use std::fmt;

use rustls_pki_types::UnixTime;
use thiserror::Error;

use super::fqan::BadFqan;
use crate::date::Date;
use crate::der::NotDer;
use crate::error::IdentityError;
use crate::limits::{SIGNER_CHAIN_NAMES_MAX, SIGNER_CHAINS_MAX};
use crate::peer_text::PeerText;
use crate::which_certificate::WhichCertificate;

/// An attribute certificate (or all that one proxy carries) that counts for nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeFault {
    /// The proxy that carries it.
    pub certificate: WhichCertificate,
    /// Which of the proxy's attribute certificates, from 0; nothing, when their list can't be read.
    pub position: Option<usize>,
    /// The virtual organisation that it claims to come from, once that could be read.
    pub vo: Option<PeerText>,
    /// The rule that it breaks.
    pub problem: AttributeProblem,
}

impl fmt::Display for AttributeFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(formatter, "attribute certificate {position}")?,
            None => formatter.write_str("the attribute certificates")?,
        }
        if let Some(vo) = &self.vo {
            write!(formatter, " of the virtual organisation {vo}")?;
        }
        write!(formatter, " in {}: {}", self.certificate, self.problem)
    }
}

impl std::error::Error for AttributeFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

/// The rule that an attribute certificate breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttributeProblem {
    /// RFC 3820 section 3.8.2: an independent proxy is somebody of its own.
    #[error(
        "it belongs to a certificate above an independent proxy, which has none of its issuer's rights and none of its attributes"
    )]
    NotInherited,
    /// Another certificate nearer to the leaf carries some.
    #[error(
        "a certificate nearer to the leaf carries attributes, and only the nearest one's count: whoever delegates can \
         narrow them"
    )]
    NotNearest,
    /// Not the structure of RFC 5755 section 4.1 with the contents of GFD.182.
    #[error("its {field} is malformed: its VOMS server must issue another one")]
    Malformed {
        /// Where reading ended.
        field: &'static str,
    },
    /// RFC 5755 section 4.1: it is signed in DER.
    #[error("it is not DER: {0}: its VOMS server must issue another one")]
    NotDer(#[from] NotDer),
    /// A list beyond its limit.
    #[error("got {got} {what}, expected at most {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// RFC 5755 section 4.2.4: the algorithm stands twice, once under the signature.
    #[error(
        "it states two signature algorithms, one inside and another one outside of what is signed"
    )]
    TwoAlgorithms,
    /// RFC 5755 section 4.3: what we don't know and must not ignore.
    #[error("it has the critical extension {oid}, which is not known here and must not be ignored")]
    UnknownCriticalExtension {
        /// The extension.
        oid: String,
    },
    /// RFC 5755 section 4.2.2: it was given to somebody else.
    #[error(
        "its holder is {got} with serial number {got_serial}, expected {expected} with serial number {expected_serial}"
    )]
    OtherHolder {
        /// The issuer (or the subject) of the certificate to which it belongs.
        got: PeerText,
        /// That certificate's serial number.
        got_serial: String,
        /// The subject of the end entity that presents it.
        expected: PeerText,
        /// That certificate's serial number.
        expected_serial: String,
    },
    /// RFC 5755 section 4.2.6.
    #[error("it is valid from {} on, now is {}: check the clocks of this host and of the VOMS server", Date(*.not_before), Date(*.now))]
    NotYetValid {
        /// When it starts.
        not_before: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// RFC 5755 section 4.2.6.
    #[error("it expired on {}, now is {}: its owner must run voms-proxy-init again", Date(*.not_after), Date(*.now))]
    Expired {
        /// When it ended.
        not_after: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// RFC 5755 section 4.3.2: it is for other servers.
    #[error("it is meant for {got}, expected one of this server's names: {expected}")]
    OtherTarget {
        /// The servers that it names.
        got: PeerText,
        /// What this server is called by its settings.
        expected: PeerText,
    },
    /// GFD.182 section 3.4.1: the authority is written as `VO://HOST:PORT`.
    #[error("its policy authority is {got}, expected VO://HOST:PORT")]
    BadPolicyAuthority {
        /// What stood there.
        got: PeerText,
    },
    /// An attribute certificate without attributes.
    #[error("it has no attribute names")]
    NoAttributes,
    /// An attribute that is no name.
    #[error("an attribute in it: {0}")]
    BadFqan(#[from] BadFqan),
    /// Attributes of one organisation, signed by another one's server.
    #[error("it states {fqan}, but a server of {vo} may only state attributes of {vo}")]
    ForeignFqan {
        /// The attribute.
        fqan: PeerText,
        /// Whose server it is.
        vo: PeerText,
    },
    /// Nobody here trusts that organisation.
    #[error(
        "the vomsdir has neither {vo}/{host}.lsc nor a certificate in {vo}/ that bears the name of its signer {signer}: \
         this site's administrators add one if the site serves {vo}"
    )]
    UnknownServer {
        /// The organisation.
        vo: String,
        /// Its server.
        host: String,
        /// Who signed.
        signer: PeerText,
    },
    /// A `.lsc` file needs the signer's certificate from the attribute certificate.
    #[error(
        "it carries no certificate of its signer, and {vo}/{host}.lsc states names only: \
         this site's administrators can put the certificate into {vo}/{host}.pem"
    )]
    NoSignerCertificate {
        /// The organisation.
        vo: String,
        /// Its server.
        host: String,
    },
    /// The certificate that comes along is another one's.
    #[error("it is issued by {issuer}, but carries the certificate of {signer}")]
    OtherSigner {
        /// Who says to have issued it.
        issuer: PeerText,
        /// Whose certificate stands first.
        signer: PeerText,
    },
    /// The chain is not one of those that the site's administrator wrote down.
    #[error(
        "its signer's chain is {}, which is none of the chains in {vo}/{host}.lsc: \
         this site's administrators correct that file if the VOMS server has a new certificate",
        joined(.got)
    )]
    OtherChain {
        /// The names, as far as they are known: the signer's, its issuer's, and so on up.
        got: Vec<PeerText>,
        /// The organisation.
        vo: String,
        /// Its server.
        host: String,
    },
    /// RFC 5755 section 4.5.
    #[error("its signer {signer} is not made for this: expected {expected}")]
    SignerUsage {
        /// Who signed.
        signer: PeerText,
        /// What it should be.
        expected: &'static str,
    },
    /// The signer's own path, by RFC 5280.
    #[error("its signer can't be trusted: {0}")]
    Signer(Box<IdentityError>),
    /// The site has another certificate of that name.
    #[error(
        "its signature is not by the certificate of {signer} in the vomsdir, or by an algorithm that counts ({algorithm}): \
         this site's administrators renew that certificate if the server's is new"
    )]
    OtherThanPinned {
        /// Whose certificate that is.
        signer: PeerText,
        /// The algorithm that it states.
        algorithm: String,
    },
    /// The signature was made by somebody else, or over something else.
    #[error(
        "its signature is not one of {signer}, or not by an algorithm that counts ({algorithm})"
    )]
    Signature {
        /// Who should have signed.
        signer: PeerText,
        /// The algorithm that it states.
        algorithm: String,
    },
}

fn joined(names: &[PeerText]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    names.join(" below ")
}

/// Why a `.lsc` file can't be used. The site's administrator must act.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SignerChainsError {
    /// Not a text.
    #[error("it is not a text in UTF-8")]
    NotText,
    /// A line of an `.lsc` file that is no name.
    #[error(
        "line {line}: got {got}, expected a name like /DC=org/CN=voms.example.org, a comment (#), or \"------ NEXT CHAIN ------\""
    )]
    NoName {
        /// The line, from 1.
        line: usize,
        /// What stands there.
        got: PeerText,
    },
    /// The signer's name alone would let any authority name somebody so.
    #[error(
        "the chain that ends at line {line} has {got} name(s), expected the VOMS server's name first and then its issuer's"
    )]
    ShortChain {
        /// The line, from 1.
        line: usize,
        /// How many names.
        got: usize,
    },
    /// Nobody would be trusted, which an empty or half-written file can't mean.
    #[error("it states no chain of names, expected at least one")]
    NoChain,
    /// Beyond a limit.
    #[error(
        "it states more than {SIGNER_CHAINS_MAX} chains, or more than {SIGNER_CHAIN_NAMES_MAX} names in one"
    )]
    TooMany,
}
