//! The rules of grids that a certificate can break.

use thiserror::Error;

use super::proxy::ProxyKind;
use crate::peer_text::PeerText;

/// Which rule of proxy certificates is broken. Whoever made the proxy must make another one, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProxyFault {
    /// RFC 3820 section 3.8.
    #[error(
        "its extension proxyCertInfo is not critical, expected it to be (RFC 3820 section 3.8)"
    )]
    NotCritical,
    /// RFC 3820 section 3.5.
    #[error("it has a subject alternative name, expected none in a proxy (RFC 3820 section 3.5)")]
    AlternativeName,
    /// RFC 3820 section 3.2.
    #[error("it has an issuer alternative name, expected none in a proxy (RFC 3820 section 3.2)")]
    IssuerAlternativeName,
    /// RFC 3820 section 3.7.
    #[error(
        "it is an authority too, expected basicConstraints without CA:TRUE in a proxy (RFC 3820 section 3.7)"
    )]
    IsAuthority,
    /// RFC 3820 section 3.6.
    #[error(
        "its key usage allows to sign certificates as an authority, which a proxy must not (RFC 3820 section 3.6)"
    )]
    SignsCertificates,
    /// RFC 3820 section 3.1.
    #[error(
        "it is issued by {issuer}, which is an authority, expected an end entity or another proxy (RFC 3820 section 3.1)"
    )]
    IssuedByAuthority {
        /// The issuer.
        issuer: PeerText,
    },
    /// RFC 3820 section 3.1 and 4.1.3.
    #[error(
        "its issuer {issuer} is not in the chain: the peer must send the end entity's certificate and every proxy"
    )]
    IssuerNotInChain {
        /// The issuer.
        issuer: PeerText,
    },
    /// RFC 3820 section 3.6.
    #[error(
        "its issuer's key usage lacks digitalSignature, expected it in a certificate that issues proxies (RFC 3820 section 3.6)"
    )]
    IssuerMayNotSign,
    /// RFC 3820 section 3.4.
    #[error(
        "expected its subject to be the issuer's and one common name more (RFC 3820 section 3.4); the issuer is {issuer}"
    )]
    Subject {
        /// The issuer.
        issuer: PeerText,
    },
    /// RFC 3820 section 3.8.1.
    #[error("got {got} proxies below a proxy that allows {max} (RFC 3820 section 3.8.1)")]
    PathLength {
        /// How many follow.
        got: usize,
        /// How many may.
        max: u64,
    },
    /// Rights that were taken away don't come back (RFC 3820 section 3.8.2; Globus refuses it likewise).
    #[error(
        "it is a full proxy below a limited one, expected a limited or an independent one there"
    )]
    FullBelowLimited,
    /// RFC 3820 section 3.8.2.
    #[error(
        "got the policy language {language}, expected a known one, or one of the setting policy_languages (RFC 3820 section 3.8.2)"
    )]
    UnknownLanguage {
        /// The dotted object identifier.
        language: String,
    },
    /// RFC 3820 section 3.8.2.
    #[error(
        "it has a policy text, expected none with a policy language that needs none (RFC 3820 section 3.8.2)"
    )]
    UnexpectedPolicy,
    /// A kind that a setting opens.
    #[error(
        "it is a {kind}, expected an RFC 3820 proxy: make one, or turn on the setting {setting}"
    )]
    KindOff {
        /// Its kind.
        kind: ProxyKind,
        /// The field of [`GridSettings`].
        setting: &'static str,
    },
    /// Kinds are never mixed: the rules of one say nothing about the other.
    #[error("it is a {got} in a chain with a {other}, expected one kind only")]
    Mixed {
        /// Its kind.
        got: ProxyKind,
        /// The kind of another one.
        other: ProxyKind,
    },
    /// The setting `proxy_depth_max`.
    #[error(
        "got more than {max} proxies in the chain, the most that the setting proxy_depth_max allows"
    )]
    TooDeep {
        /// The setting.
        max: usize,
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
