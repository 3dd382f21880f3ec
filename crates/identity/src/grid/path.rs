//! From the certificates that a peer presents to a path that holds, or to the rule that it breaks.
//!
//! The proxies come first, in one line from the leaf to the end entity; what stands above is found by
//! [`authorities`]. Rules that cost nothing are checked before signatures.

use rustls_pki_types::{CertificateDer, UnixTime};

use super::authorities::{self, Search, SignatureBudget};
use super::error::ProxyFault;
use super::presented::which;
use super::proxy::{self, Inheritance, Proxy, ProxyKind};
use super::settings::GridSettings;
use crate::distinguished_name::DistinguishedName;
use crate::error::IdentityError;
use crate::limits::{GRID_CHAIN_CERTIFICATES_MAX, PROXY_DEPTH_MAX};
use crate::peer_text::PeerText;
use crate::trust_store::TrustStore;
use crate::which_certificate::WhichCertificate;
use crate::x509::{Certificate, Purposes};

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
    /// What all certificates of the path allow, the authorities' too.
    pub(crate) purposes: Purposes,
    /// The authority nearest to the end entity whose extended key usages leave out TLS clients.
    unfit_authority: Option<WhichCertificate>,
}

impl JudgedPath {
    pub(crate) fn leaf(&self) -> &Certificate {
        &self.presented[0]
    }

    /// Whom the peer acts as.
    pub(crate) fn subject(&self) -> &DistinguishedName {
        &self.presented[self.entities[self.subject_index]].subject
    }

    /// Who issued the proxies that the peer acts as, the nearest one first: empty but for an independent proxy, whose
    /// end entity stands last.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &DistinguishedName> {
        self.entities[self.subject_index + 1..]
            .iter()
            .map(|&position| &self.presented[position].subject)
    }

    /// The certificate nearest to the leaf whose extended key usages leave out TLS clients (RFC 5280 section 4.2.1.12).
    /// Nothing can have more uses than who issued it, so all of them count.
    pub(crate) fn unfit_for_clients(&self) -> Option<WhichCertificate> {
        let mut entities = self.entities.iter().copied();
        entities
            .find(|&position| !self.presented[position].purposes().client)
            .map(|position| self.which(position))
            .or_else(|| self.unfit_authority.clone())
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
    judge_read(store, settings, settings.proxy_depth_max, read(chain)?, now)
}

/// Judges the chain of somebody who signs attribute certificates: an end entity of its own, never a proxy. `chain` has at
/// least one certificate, the signer's first.
pub(crate) fn judge_signer(
    store: &TrustStore,
    settings: &GridSettings,
    chain: Vec<Certificate>,
    now: UnixTime,
) -> Result<JudgedPath, IdentityError> {
    check_length(chain.len())?;
    judge_read(store, settings, 0, chain, now)
}

fn judge_read(
    store: &TrustStore,
    settings: &GridSettings,
    proxy_depth_max: usize,
    presented: Vec<Certificate>,
    now: UnixTime,
) -> Result<JudgedPath, IdentityError> {
    let is_authority = |name: &DistinguishedName| !store.indexes_named(&name.key()).is_empty();
    let mut budget = SignatureBudget::default();
    let (entities, kind) = find_entities(&presented, proxy_depth_max, &mut budget, &is_authority)?;
    let inheritances = check_proxies(&presented, &entities, kind, settings)?;
    let mut search = Search::new(store, settings, &presented, budget, now);
    // The proxies' own times are looked at before anything is computed for them.
    let mut ends = UnixTime::since_unix_epoch(std::time::Duration::MAX);
    let (end_entity, proxies) = entities.split_last().ok_or(IdentityError::NoCertificate)?;
    check_end_entity(&presented, *end_entity)?;
    let mut purposes = Purposes::ALL;
    for &position in &entities {
        search.check_entity(position)?;
        ends = ends.min(presented[position].not_after);
        purposes = purposes.and(presented[position].purposes());
        if purposes.allow_neither() {
            return Err(IdentityError::WrongUsage {
                certificate: which(&presented, position),
                expected: "the extended key usage of the proxies below it",
            });
        }
    }
    let above = search.find(*end_entity, purposes)?;
    for (index, &position) in proxies.iter().enumerate() {
        let issuer = entities[index + 1];
        search.budget.take()?;
        check_signature(&presented, position, issuer)?;
    }
    let subject_index = subject_index(&inheritances);
    let proxy = kind.map(|kind| Proxy {
        depth: proxies.len(),
        limited: inheritances.contains(&Inheritance::Limited),
        independent: inheritances.contains(&Inheritance::Independent),
        kind,
    });
    Ok(JudgedPath {
        authorities: above.names,
        ends: ends.min(above.ends),
        purposes: above.purposes,
        unfit_authority: above.unfit_for_clients,
        entities,
        proxy,
        subject_index,
        presented,
    })
}

fn check_length(got: usize) -> Result<(), IdentityError> {
    match got {
        0 => Err(IdentityError::NoCertificate),
        1..=GRID_CHAIN_CERTIFICATES_MAX => Ok(()),
        _ => Err(IdentityError::ChainTooLong {
            got,
            max: GRID_CHAIN_CERTIFICATES_MAX,
        }),
    }
}

fn read(chain: &[CertificateDer<'_>]) -> Result<Vec<Certificate>, IdentityError> {
    check_length(chain.len())?;
    let read = chain.iter().enumerate().map(|(position, certificate)| {
        Certificate::read(certificate).map_err(|reason| IdentityError::Malformed {
            certificate: WhichCertificate::unread(
                position,
                Certificate::read_subject(certificate)
                    .map(|subject| PeerText::new(&subject.slash())),
            ),
            reason,
        })
    });
    read.collect()
}

/// The positions from the leaf to the end entity, and of which kind the proxies on that way are.
fn find_entities(
    presented: &[Certificate],
    proxy_depth_max: usize,
    budget: &mut SignatureBudget,
    is_authority: &dyn Fn(&DistinguishedName) -> bool,
) -> Result<(Vec<usize>, Option<ProxyKind>), IdentityError> {
    let mut entities = vec![0];
    let mut first_kind: Option<ProxyKind> = None;
    loop {
        let position = entities[entities.len() - 1];
        let certificate = &presented[position];
        let issuer = find_issuer(presented, &entities, budget)?;
        let issued_by_entity = issuer.is_some_and(|issuer| !presented[issuer].is_authority());
        let Some(kind) = proxy::kind_of(certificate, issued_by_entity) else {
            return Ok((entities, first_kind));
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
        if entities.len() > proxy_depth_max {
            return fault(ProxyFault::TooDeep {
                max: proxy_depth_max,
            });
        }
        match issuer {
            Some(issuer) => entities.push(issuer),
            None => {
                let issuer = PeerText::new(&certificate.issuer.slash());
                return fault(if is_authority(&certificate.issuer) {
                    ProxyFault::IssuedByAuthority { issuer }
                } else {
                    ProxyFault::IssuerNotInChain { issuer }
                });
            }
        }
    }
}

/// The issuer of the last of the entities: by its name, and where several bear that name (a user's old and new
/// certificate), by its key. In TLS each certificate certifies the one before it, so the next one is most likely it.
fn find_issuer(
    presented: &[Certificate],
    entities: &[usize],
    budget: &mut SignatureBudget,
) -> Result<Option<usize>, IdentityError> {
    let Some(&position) = entities.last() else {
        return Ok(None);
    };
    let certificate = &presented[position];
    let mut candidates = (position + 1..presented.len())
        .chain(0..position)
        .filter(|candidate| !entities.contains(candidate))
        .filter(|&candidate| presented[candidate].subject.matches(&certificate.issuer));
    let Some(first) = candidates.next() else {
        return Ok(None);
    };
    let others: Vec<_> = candidates
        .filter(|&candidate| presented[candidate].der != presented[first].der)
        .collect();
    if others.is_empty() {
        return Ok(Some(first));
    }
    for candidate in std::iter::once(first).chain(others) {
        budget.take()?;
        if certificate
            .verify_signature(&presented[candidate].key)
            .is_ok()
        {
            return Ok(Some(candidate));
        }
    }
    Ok(Some(first))
}

/// The index in the entities of the one whose subject the peer acts as: the independent proxy that is nearest to the
/// leaf, or the end entity behind the proxies.
fn subject_index(inheritances: &[Inheritance]) -> usize {
    inheritances
        .iter()
        .position(|one| *one == Inheritance::Independent)
        .unwrap_or(inheritances.len())
}

/// Whom a chain of our own would act as, and whether as a proxy. Kinds that only a setting opens are not refused here:
/// whether peers take them is theirs to say.
pub(super) fn claimed_subject(
    chain: &[Certificate],
) -> Result<(&DistinguishedName, bool), IdentityError> {
    check_length(chain.len())?;
    let settings = GridSettings {
        legacy_proxies: true,
        draft_proxies: true,
        ..GridSettings::default()
    };
    let (entities, kind) = find_entities(
        chain,
        PROXY_DEPTH_MAX,
        &mut SignatureBudget::default(),
        &|_| false,
    )?;
    let inheritances = check_proxies(chain, &entities, kind, &settings)?;
    let position = entities[subject_index(&inheritances)];
    Ok((&chain[position].subject, kind.is_some()))
}

/// The rules of RFC 3820 that need no signature. Returns what each proxy inherits, the leaf's first.
fn check_proxies(
    presented: &[Certificate],
    entities: &[usize],
    kind: Option<ProxyKind>,
    settings: &GridSettings,
) -> Result<Vec<Inheritance>, IdentityError> {
    let Some(kind) = kind else {
        return Ok(Vec::new());
    };
    let mut inheritances: Vec<Inheritance> = Vec::with_capacity(entities.len());
    let fault = |position: usize, fault| IdentityError::Proxy {
        certificate: which(presented, position),
        fault,
    };
    // What is wrong with a proxy itself is told before what is wrong with its being an issuer.
    let proxies = &entities[..entities.len() - 1];
    for (below, &position) in proxies.iter().enumerate() {
        let inheritance = proxy::check_alone(&presented[position], kind, below, settings)
            .map_err(|found| fault(position, found))?;
        if inheritance == Inheritance::Limited && inheritances.last() == Some(&Inheritance::All) {
            return Err(fault(entities[below - 1], ProxyFault::FullBelowLimited));
        }
        inheritances.push(inheritance);
    }
    for (&position, &issuer) in proxies.iter().zip(&entities[1..]) {
        proxy::check_issuer(&presented[position], &presented[issuer])
            .map_err(|found| fault(position, found))?;
    }
    Ok(inheritances)
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
