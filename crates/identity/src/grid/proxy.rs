//! Proxy certificates: RFC 3820, and the two kinds before it.

use std::fmt;

use super::error::ProxyFault;
use super::settings::GridSettings;
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
