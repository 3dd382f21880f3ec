//! From the certificates that a peer presents to a path that holds, or to the rule that it breaks.
//!
//! The proxies come first, in one line from the leaf to the end entity; what stands above is found by
//! [`authorities`](super::authorities). Rules that cost nothing are checked before signatures.

use rustls_pki_types::{CertificateDer, UnixTime};

use super::GridSettings;
use super::authorities::{self, Search};
use super::proxy::{self, Inheritance, Proxy, ProxyFault, ProxyKind};
use crate::certificate::WhichCertificate;
use crate::distinguished_name::DistinguishedName;
use crate::error::IdentityError;
use crate::limits::{AUTHORITIES_MAX, PRESENTED_EXTRA_MAX};
use crate::quote::Quoted;
use crate::trust_store::TrustStore;
use crate::x509::{Certificate, KeyUsage};

/// A chain that was found good.
pub(crate) struct JudgedPath {
    /// Every certificate that was presented, in the order in which it came.
    pub(crate) presented: Vec<Certificate>,
    /// The positions in `presented` of the path from the leaf (first) over its proxies to the end entity (last).
    pub(crate) entities: Vec<usize>,
    /// The authorities above the end entity, the trust anchor last.
    pub(crate) authorities: Vec<DistinguishedName>,
    /// What the proxies amount to.
    pub(crate) proxy: Option<Proxy>,
    /// The index in `entities` of the certificate whose subject the peer acts as: the end entity's, or the
    /// independent proxy's that is nearest to the leaf. Attributes of certificates above it don't count.
    pub(crate) subject_index: usize,
    /// The earliest end of any certificate and revocation list that was used.
    pub(crate) ends: UnixTime,
}

impl JudgedPath {
    pub(crate) fn leaf(&self) -> &Certificate {
        &self.presented[0]
    }

    /// Whom the peer acts as.
    pub(crate) fn subject(&self) -> &DistinguishedName {
        &self.presented[self.entities[self.subject_index]].subject
    }

    /// The certificate at that position of the presented chain, for messages.
    pub(crate) fn which(&self, position: usize) -> WhichCertificate {
        which(&self.presented, position)
    }
}

/// Judges the chain of a peer.
pub(crate) fn judge(
    store: &TrustStore,
    settings: &GridSettings,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<JudgedPath, IdentityError> {
    let presented = read(chain, settings.proxy_depth_max)?;
    let entities = find_entities(&presented, settings)?;
    let inheritances = check_proxies(&presented, &entities, settings)?;
    let mut search = Search::new(store, settings, &presented, now);
    // The proxies' own times are looked at before anything is computed for them.
    let mut ends = UnixTime::since_unix_epoch(std::time::Duration::MAX);
    for &position in &entities {
        search.check_entity(position)?;
        ends = ends.min(presented[position].not_after);
    }
    let (end_entity, proxies) = entities.split_last().ok_or(IdentityError::NoCertificate)?;
    check_end_entity(&presented, *end_entity)?;
    let above = search.find(*end_entity)?;
    for (index, &position) in proxies.iter().enumerate() {
        let issuer = entities[index + 1];
        search.count_signature()?;
        check_signature(&presented, position, issuer)?;
    }
    let subject_index = inheritances
        .iter()
        .position(|one| *one == Inheritance::Independent)
        .unwrap_or(proxies.len());
    let proxy = proxies.first().map(|&position| Proxy {
        depth: proxies.len(),
        limited: inheritances.contains(&Inheritance::Limited),
        independent: inheritances.contains(&Inheritance::Independent),
        kind: proxy::kind_of(&presented[position]).unwrap_or(ProxyKind::Legacy),
    });
    Ok(JudgedPath {
        authorities: above.names,
        ends: ends.min(above.ends),
        entities,
        proxy,
        subject_index,
        presented,
    })
}

/// Judges the chain of somebody who signs attribute certificates: an end entity of its own, never a proxy.
pub(crate) fn judge_signer(
    store: &TrustStore,
    settings: &GridSettings,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<JudgedPath, IdentityError> {
    let settings = GridSettings {
        proxy_depth_max: 0,
        ..settings.clone()
    };
    judge(store, &settings, chain, now)
}

fn read(
    chain: &[CertificateDer<'_>],
    proxy_depth_max: usize,
) -> Result<Vec<Certificate>, IdentityError> {
    let max = proxy_depth_max + 1 + AUTHORITIES_MAX + PRESENTED_EXTRA_MAX;
    if chain.is_empty() {
        return Err(IdentityError::NoCertificate);
    }
    if chain.len() > max {
        return Err(IdentityError::ChainTooLong {
            got: chain.len(),
            max,
        });
    }
    let read = chain.iter().enumerate().map(|(position, certificate)| {
        Certificate::read(certificate).map_err(|reason| IdentityError::Malformed {
            certificate: WhichCertificate::unreadable(position),
            reason,
        })
    });
    read.collect()
}

/// The positions from the leaf to the end entity: as long as there are proxies, their issuers.
fn find_entities(
    presented: &[Certificate],
    settings: &GridSettings,
) -> Result<Vec<usize>, IdentityError> {
    let mut entities = vec![0];
    let mut first_kind: Option<ProxyKind> = None;
    loop {
        let position = entities[entities.len() - 1];
        let Some(kind) = proxy::kind_of(&presented[position]) else {
            return Ok(entities);
        };
        let fault = |fault| {
            Err(IdentityError::Proxy {
                certificate: which(presented, position),
                fault,
            })
        };
        let other = *first_kind.get_or_insert(kind);
        if kind != other {
            return fault(ProxyFault::Mixed { got: kind, other });
        }
        if entities.len() > settings.proxy_depth_max {
            return fault(ProxyFault::TooDeep {
                max: settings.proxy_depth_max,
            });
        }
        // In TLS each certificate certifies the one before it, so the next one is most likely it.
        let issuer = &presented[position].issuer;
        let found = (position + 1..presented.len())
            .chain(0..position)
            .filter(|candidate| !entities.contains(candidate))
            .find(|&candidate| presented[candidate].subject.matches(issuer));
        match found {
            Some(found) => entities.push(found),
            None => {
                return fault(ProxyFault::IssuerNotInChain {
                    issuer: Quoted::new(&issuer.slash()),
                });
            }
        }
    }
}

/// The rules of RFC 3820 that need no signature. Returns what each proxy inherits, the leaf's first.
fn check_proxies(
    presented: &[Certificate],
    entities: &[usize],
    settings: &GridSettings,
) -> Result<Vec<Inheritance>, IdentityError> {
    let pairs = entities.iter().zip(&entities[1..]).enumerate();
    let checked = pairs.map(|(below, (&position, &issuer))| {
        let proxy = &presented[position];
        let kind = proxy::kind_of(proxy).unwrap_or(ProxyKind::Legacy);
        proxy::check_alone(proxy, kind, below, settings)
            .and_then(|inheritance| {
                proxy::check_issuer(proxy, &presented[issuer])?;
                Ok(inheritance)
            })
            .map_err(|fault| IdentityError::Proxy {
                certificate: which(presented, position),
                fault,
            })
    });
    checked.collect()
}

fn check_end_entity(presented: &[Certificate], position: usize) -> Result<(), IdentityError> {
    let certificate = &presented[position];
    if certificate.is_authority() {
        return Err(IdentityError::AuthorityAsLeaf {
            certificate: which(presented, position),
        });
    }
    Ok(())
}

/// What every certificate of a path must be good for, whoever issued it.
pub(super) fn check_uses(certificate: &Certificate) -> Result<(), &'static str> {
    if !certificate.allows(KeyUsage::DigitalSignature) {
        return Err("key usage for digital signatures");
    }
    let purposes = certificate.extensions.purposes;
    if purposes.is_some_and(|found| !found.any && !found.client && !found.server) {
        return Err("extended key usage for client or server authentication");
    }
    Ok(())
}

fn check_signature(
    presented: &[Certificate],
    position: usize,
    issuer: usize,
) -> Result<(), IdentityError> {
    let certificate = &presented[position];
    certificate
        .verify_signature(&presented[issuer].key)
        .map_err(|fault| {
            authorities::signature_error(fault, certificate, which(presented, position))
        })
}

pub(super) fn which(presented: &[Certificate], position: usize) -> WhichCertificate {
    WhichCertificate {
        position: Some(position),
        subject: Quoted::new(&presented[position].subject.slash()),
    }
}
