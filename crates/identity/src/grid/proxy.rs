//! Proxy certificates: RFC 3820, and the two kinds before it.

use std::fmt;

use thiserror::Error;

use super::GridSettings;
use crate::peer_text::PeerText;
use crate::x509::{Certificate, KeyUsage, PolicyLanguage, ProxyInformation};

/// What a chain of proxy certificates amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// How many proxies stand between the end entity and the peer.
    pub depth: usize,
    /// Whether any of them is a limited one, which must not start jobs.
    pub limited: bool,
    /// Whether any of them is an independent one. Then the subject is that proxy's own, and nothing is inherited from
    /// the end entity.
    pub independent: bool,
    /// By which rules they were made; never mixed in one chain.
    pub kind: ProxyKind,
}

/// The kinds of proxy certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// RFC 3820.
    Rfc3820,
    /// The draft before it (Globus Toolkit 3).
    Draft,
    /// Globus Toolkit 2: nothing but the common name `proxy` or `limited proxy`.
    Legacy,
}

impl fmt::Display for ProxyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Rfc3820 => "RFC 3820 proxy",
            Self::Draft => "draft proxy (Globus Toolkit 3)",
            Self::Legacy => "legacy proxy (Globus Toolkit 2)",
        })
    }
}

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

/// What one certificate inherits, by its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inheritance {
    All,
    Limited,
    Independent,
}

/// Which kind of proxy a certificate is; nothing for one that isn't a proxy. A legacy proxy is known by its name alone,
/// so it matters who issued it: from an authority, the same name is an end entity's.
pub(super) fn kind_of(certificate: &Certificate, issued_by_entity: bool) -> Option<ProxyKind> {
    match &certificate.extensions.proxy {
        Some(ProxyInformation { is_draft: true, .. }) => Some(ProxyKind::Draft),
        Some(_) => Some(ProxyKind::Rfc3820),
        None if issued_by_entity => legacy_inheritance(certificate).map(|_| ProxyKind::Legacy),
        None => None,
    }
}

/// Globus Toolkit 2 knows a proxy by its common name alone.
fn legacy_inheritance(certificate: &Certificate) -> Option<Inheritance> {
    let name = certificate.subject.common_name_below(&certificate.issuer)?;
    match &*name {
        b"proxy" => Some(Inheritance::All),
        b"limited proxy" => Some(Inheritance::Limited),
        _ => None,
    }
}

/// The rules that need no other certificate than the proxy itself. `below` is how many proxies stand between it and the
/// peer.
pub(super) fn check_alone(
    proxy: &Certificate,
    kind: ProxyKind,
    below: usize,
    settings: &GridSettings,
) -> Result<Inheritance, ProxyFault> {
    let extensions = &proxy.extensions;
    let off = |setting| Err(ProxyFault::KindOff { kind, setting });
    match kind {
        ProxyKind::Legacy if !settings.legacy_proxies => return off("legacy_proxies"),
        ProxyKind::Draft if !settings.draft_proxies => return off("draft_proxies"),
        _ => {}
    }
    if proxy.is_authority() {
        return Err(ProxyFault::IsAuthority);
    }
    if extensions.key_usage.is_some() && proxy.allows(KeyUsage::CertificateSigning) {
        return Err(ProxyFault::SignsCertificates);
    }
    if extensions.alternative_names.is_some() {
        return Err(ProxyFault::AlternativeName);
    }
    if extensions.has_issuer_alternative_name {
        return Err(ProxyFault::IssuerAlternativeName);
    }
    match &extensions.proxy {
        Some(information) => check_information(information, below, settings),
        None => Ok(legacy_inheritance(proxy).unwrap_or(Inheritance::Limited)),
    }
}

fn check_information(
    information: &ProxyInformation,
    below: usize,
    settings: &GridSettings,
) -> Result<Inheritance, ProxyFault> {
    if !information.is_critical {
        return Err(ProxyFault::NotCritical);
    }
    if let Some(max) = information.path_length
        && below as u64 > max
    {
        return Err(ProxyFault::PathLength { got: below, max });
    }
    let inheritance = match &information.language {
        PolicyLanguage::InheritAll => Inheritance::All,
        PolicyLanguage::Independent => Inheritance::Independent,
        PolicyLanguage::Limited => return Ok(Inheritance::Limited),
        PolicyLanguage::Other(language) => {
            return if settings.policy_languages.contains(language) {
                Ok(Inheritance::All)
            } else {
                Err(ProxyFault::UnknownLanguage {
                    language: language.clone(),
                })
            };
        }
    };
    // These two say everything by themselves.
    if information.has_policy {
        return Err(ProxyFault::UnexpectedPolicy);
    }
    Ok(inheritance)
}

/// The rules between a proxy and its issuer, signatures aside.
pub(super) fn check_issuer(proxy: &Certificate, issuer: &Certificate) -> Result<(), ProxyFault> {
    let quoted = || PeerText::new(&issuer.subject.slash());
    if issuer.is_authority() {
        return Err(ProxyFault::IssuedByAuthority { issuer: quoted() });
    }
    if proxy.subject.common_name_below(&issuer.subject).is_none() {
        return Err(ProxyFault::Subject { issuer: quoted() });
    }
    if !issuer.allows(KeyUsage::DigitalSignature) {
        return Err(ProxyFault::IssuerMayNotSign);
    }
    Ok(())
}
