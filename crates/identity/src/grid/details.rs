//! What a chain says of itself, for people who look at a credential. Nothing here is proven.

use rustls_pki_types::{CertificateDer, UnixTime};

use super::path::claimed_subject;
use super::proxy::{Proxy, ProxyKind, kind_of};
use crate::distinguished_name::DistinguishedName;
use crate::limits::GRID_CHAIN_CERTIFICATES_MAX;
use crate::malformed::Malformed;
use crate::voms::AttributeCertificateDetails;
use crate::x509::{Certificate, PolicyLanguage};

/// What a chain of a grid says of itself, good or not.
///
/// # Security
/// Anybody can write a chain. Only [`GridVerifier::judge`](super::GridVerifier::judge) proves one.
#[derive(Clone, Debug)]
pub struct ChainDetails {
    /// The certificates, leaf first; those that can't be read say why. No more than
    /// [`GRID_CHAIN_CERTIFICATES_MAX`] are looked at.
    pub certificates: Vec<Result<ChainCertificate, Malformed>>,
    /// Whom the leaf would act as, were the chain good.
    pub subject: Option<DistinguishedName>,
    /// What the proxies amount to, were the chain good.
    pub proxy: Option<Proxy>,
    /// The attribute certificates that can be read, of the certificate nearest to the leaf that has any.
    pub attributes: Vec<AttributeCertificateDetails>,
}

/// What one certificate says of itself.
#[derive(Clone, Debug)]
pub struct ChainCertificate {
    /// Its subject.
    pub subject: DistinguishedName,
    /// Who says to have signed it.
    pub issuer: DistinguishedName,
    /// The serial number, big-endian, without leading zeros.
    pub serial: Box<[u8]>,
    /// From when on it is valid.
    pub not_before: UnixTime,
    /// Until when it is valid.
    pub not_after: UnixTime,
    /// Its key, for people: "RSA of 2048 bits".
    pub key: String,
    /// What it is made for.
    pub kind: CertificateKind,
}

/// What a certificate is made for, by its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// It signs certificates of others.
    Authority,
    /// A person, a robot or a host.
    EndEntity,
    /// A proxy of somebody.
    Proxy {
        /// By which rules it was made.
        kind: ProxyKind,
        /// What it inherits; nothing for a legacy one that is not limited.
        language: PolicyLanguage,
        /// How many proxies may follow below it.
        path_length: Option<u64>,
    },
}

impl ChainDetails {
    /// Reads a chain, leaf first.
    pub fn read(chain: &[CertificateDer<'_>]) -> Self {
        let chain = &chain[..chain.len().min(GRID_CHAIN_CERTIFICATES_MAX)];
        let read: Vec<_> = chain.iter().map(Certificate::read).collect();
        let whole: Vec<Certificate> = read.iter().flatten().cloned().collect();
        let kinds: Vec<_> = whole.iter().map(|one| kind(one, &whole)).collect();
        let acts_as = (!whole.is_empty() && whole.len() == read.len())
            .then(|| claimed_subject(&whole).ok())
            .flatten();
        let entity = kinds
            .iter()
            .position(|kind| *kind == CertificateKind::EndEntity)
            .map(|position| &whole[position].subject);
        let subject = acts_as.map(|(subject, _)| subject).or(entity).cloned();
        let proxy = proxy(&kinds);
        let attributes = whole
            .iter()
            .filter_map(|one| AttributeCertificateDetails::of_certificate(&one.der).ok())
            .find(|list| !list.is_empty())
            .map_or_else(Vec::new, |list| list.into_iter().flatten().collect());
        let mut kinds = kinds.into_iter();
        let certificates = read
            .into_iter()
            .map(|one| {
                let one = one?;
                Ok(ChainCertificate {
                    serial: one.serial().into(),
                    not_before: one.not_before,
                    not_after: one.not_after,
                    key: one.key.kind().to_string(),
                    kind: kinds.next().unwrap_or(CertificateKind::EndEntity),
                    subject: one.subject,
                    issuer: one.issuer,
                })
            })
            .collect();
        Self {
            certificates,
            subject,
            proxy,
            attributes,
        }
    }
}

fn kind(certificate: &Certificate, chain: &[Certificate]) -> CertificateKind {
    let by_entity = chain
        .iter()
        .any(|other| !other.is_authority() && other.subject.matches(&certificate.issuer));
    match kind_of(certificate, by_entity) {
        None if certificate.is_authority() => CertificateKind::Authority,
        None => CertificateKind::EndEntity,
        Some(kind) => {
            let information = certificate.extensions.proxy.as_ref();
            let is_limited_by_name = certificate
                .subject
                .common_name()
                .is_some_and(|name| name == "limited proxy");
            let by_name = if is_limited_by_name {
                PolicyLanguage::Limited
            } else {
                PolicyLanguage::InheritAll
            };
            CertificateKind::Proxy {
                kind,
                language: information.map_or(by_name, |found| found.language.clone()),
                path_length: information.and_then(|found| found.path_length),
            }
        }
    }
}

/// The proxies in front of the end entity together.
fn proxy(kinds: &[CertificateKind]) -> Option<Proxy> {
    let mut together: Option<Proxy> = None;
    for one in kinds {
        let CertificateKind::Proxy { kind, language, .. } = one else {
            break;
        };
        let proxy = together.get_or_insert(Proxy {
            depth: 0,
            limited: false,
            independent: false,
            kind: *kind,
        });
        proxy.depth += 1;
        proxy.limited |= *language == PolicyLanguage::Limited;
        proxy.independent |= *language == PolicyLanguage::Independent;
    }
    together
}
