//! The verifier for a private authority: a few roots, signed revocation lists, roles and names in URIs.

use std::fmt;

use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, TrustAnchor, UnixTime};
use webpki::{
    ALL_VERIFICATION_ALGS, CertRevocationList, EndEntityCert, ExpirationPolicy,
    ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, OwnedCertRevocationList,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};

use crate::certificate::CertificateDetails;
use crate::error::IdentityError;
use crate::limits::{CHAIN_CERTIFICATES_MAX, REVOCATION_LISTS_MAX, TRUST_ANCHORS_MAX};
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::revocation::RevocationListDetails;
use crate::verified::{Expected, PeerVerifier, VerifiedIdentity};
use crate::which_certificate::WhichCertificate;
use crate::x509::Certificate;

mod error;
mod explain;

pub use error::TrustError;

const BOTH_USES: &str =
    "extended key usage for client and server authentication, since a node dials and listens";

/// The [`PeerVerifier`] for a private authority: its roots and its revocation lists.
///
/// Every certificate of a path whose issuer has a revocation list here is checked against that list. A list that is
/// past its next update refuses everybody it covers, because it no longer says who is revoked.
pub struct PrivateAuthority {
    /// `roots` and `anchors` describe the same certificates in the same order.
    roots: Vec<Root>,
    anchors: Vec<TrustAnchor<'static>>,
    /// `coverage` and `lists` describe the same lists in the same order, one for each issuer.
    coverage: Vec<ListScope>,
    lists: Vec<CertRevocationList<'static>>,
    generation: u64,
}

/// What the path check doesn't look at in a root.
struct Root {
    subject: PeerText,
    not_before: UnixTime,
    not_after: UnixTime,
}

/// What the path check doesn't tell about a revocation list.
struct ListScope {
    issuer_der: Vec<u8>,
    next_update: UnixTime,
    /// Which one it was of the lists that the caller gave.
    position: usize,
}

/// A revocation list that no longer says who is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleList {
    /// Which one it was of the lists that [`PrivateAuthority::new`] got, from 0.
    pub position: usize,
    /// When the next list was due.
    pub next_update: UnixTime,
}

impl PrivateAuthority {
    /// Trusts these roots, and of the revocation lists the newest of each issuer. `generation` is the caller's count
    /// of reloads; it comes back in every [`VerifiedIdentity`].
    ///
    /// # Errors
    /// [`TrustError`] when there is no root, too many of either, something unreadable, a root that may not sign
    /// certificates, or a revocation list that covers only a part of an issuer's certificates.
    pub fn new(
        roots: &[CertificateDer<'_>],
        revocation_lists: &[CertificateRevocationListDer<'_>],
        generation: u64,
    ) -> Result<Self, TrustError> {
        if roots.is_empty() {
            return Err(TrustError::NoAuthority);
        }
        at_most("authority certificates", roots.len(), TRUST_ANCHORS_MAX)?;
        at_most(
            "revocation lists",
            revocation_lists.len(),
            REVOCATION_LISTS_MAX,
        )?;
        let roots = roots.iter().enumerate().map(|(position, certificate)| {
            read_root(certificate)
                .map_err(|reason| TrustError::BadAuthority { position, reason })?
                .may_sign()
        });
        let (roots, anchors) = roots.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let mut lists = Vec::with_capacity(revocation_lists.len());
        for (position, list) in revocation_lists.iter().enumerate() {
            let (details, list) = read_list(list)
                .map_err(|reason| TrustError::BadRevocationList { position, reason })?;
            lists.push((position, details, list));
        }
        let (coverage, lists) = newest_of_each_issuer(lists).into_iter().unzip();
        Ok(Self {
            roots,
            anchors,
            coverage,
            lists,
            generation,
        })
    }

    /// The first list in use that is past its next update at that time.
    pub fn stale_list(&self, now: UnixTime) -> Option<StaleList> {
        // At the very second that it names, the path check takes a list for stale.
        let stale = self.coverage.iter().find(|list| now >= list.next_update)?;
        Some(StaleList {
            position: stale.position,
            next_update: stale.next_update,
        })
    }

    /// The path check knows nothing of a root's own dates, so this adds it to the rules of a path.
    fn check_root(&self, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), webpki::Error> {
        let Root {
            not_before,
            not_after,
            ..
        } = *self.root(path.anchor());
        if now < not_before {
            return Err(webpki::Error::CertNotValidYet {
                time: now,
                not_before,
            });
        }
        if now > not_after {
            return Err(webpki::Error::CertExpired {
                time: now,
                not_after,
            });
        }
        Ok(())
    }

    fn root(&self, anchor: &TrustAnchor<'_>) -> &Root {
        let position = self
            .anchors
            .iter()
            .position(|candidate| std::ptr::eq(candidate, anchor));
        &self.roots[position.expect("the path check returns one of the anchors it was given")]
    }

    /// The signatures, dates, revocations and uses of one path. Returns when the first of its certificates ends.
    fn check_path(
        &self,
        chain: &[CertificateDer<'_>],
        details: &[CertificateDetails],
        now: UnixTime,
    ) -> Result<UnixTime, IdentityError> {
        let leaf = EndEntityCert::try_from(&chain[0])
            .map_err(|error| self.explain(error, details, now))?;
        let lists: Vec<_> = self.lists.iter().collect();
        // The builder refuses an empty list of lists: then there is nothing to check.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|builder| {
            builder
                // Issuers without a list are not covered; those with one are, to the end of the path.
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        let path = leaf
            .verify_for_usage(
                ALL_VERIFICATION_ALGS,
                &self.anchors,
                &chain[1..],
                now,
                BothUses,
                revocation,
                Some(&|path| self.check_root(path, now)),
            )
            .map_err(|error| self.explain(error, details, now))?;

        let mut used = vec![0];
        for issuer in path.intermediate_certificates() {
            used.extend(
                chain
                    .iter()
                    .position(|certificate| *certificate == issuer.der()),
            );
        }
        check_uses(details, &used)?;
        let ends = used.iter().map(|position| details[*position].not_after);
        Ok(ends.fold(self.root(path.anchor()).not_after, UnixTime::min))
    }
}

impl PeerVerifier for PrivateAuthority {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        let read = read_chain(chain)?;
        let details: Vec<_> = read.iter().map(CertificateDetails::of).collect();
        // The path check looks at the keys of issuers only, when it checks what they signed.
        if !read[0].key.is_strong() {
            return Err(IdentityError::WeakKey {
                certificate: which(&details, 0),
                got: read[0].key.kind().to_string(),
            });
        }
        let not_after = self.check_path(chain, &details, now)?;
        let identity = details[0]
            .claim
            .clone()
            .map_err(|reason| IdentityError::Claim {
                certificate: which(&details, 0),
                reason,
            })?;
        expected.check(&identity)?;
        Ok(VerifiedIdentity::of_authority(
            identity,
            &read,
            not_after,
            self.generation,
        ))
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for PrivateAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PrivateAuthority")
            .field(
                "roots",
                &self
                    .roots
                    .iter()
                    .map(|root| root.subject.unquoted())
                    .collect::<Vec<_>>(),
            )
            .field("revocation_lists", &self.lists.len())
            .field("generation", &self.generation)
            .finish()
    }
}

fn at_most(what: &'static str, got: usize, max: usize) -> Result<(), TrustError> {
    if got <= max {
        Ok(())
    } else {
        Err(TrustError::TooMany { what, got, max })
    }
}

struct ReadRoot {
    details: CertificateDetails,
    anchor: TrustAnchor<'static>,
}

fn read_root(certificate: &CertificateDer<'_>) -> Result<ReadRoot, Malformed> {
    let details = CertificateDetails::read(certificate)?;
    let anchor = webpki::anchor_from_trusted_cert(certificate)
        .map_err(|error| Malformed::Unusable {
            reason: error.to_string(),
        })?
        .to_owned();
    Ok(ReadRoot { details, anchor })
}

impl ReadRoot {
    fn may_sign(self) -> Result<(Root, TrustAnchor<'static>), TrustError> {
        let CertificateDetails {
            subject,
            not_before,
            not_after,
            is_authority,
            usage,
            ..
        } = self.details;
        if !is_authority || !usage.signs_certificates {
            Err(TrustError::NotAnAuthority { subject })
        } else if let Some(got) = usage.purposes.filter(|_| usage.lacks_client_or_server()) {
            // The path check asks everybody but the root.
            Err(TrustError::PurposeOfAuthority { subject, got })
        } else {
            Ok((
                Root {
                    subject,
                    not_before,
                    not_after,
                },
                self.anchor,
            ))
        }
    }
}

/// A list, and which one it was of the caller's.
type ReadList = (usize, RevocationListDetails, CertRevocationList<'static>);

fn read_list(
    list: &CertificateRevocationListDer<'_>,
) -> Result<(RevocationListDetails, CertRevocationList<'static>), Malformed> {
    let details = RevocationListDetails::read(list)?;
    let unusable = |reason: String| Malformed::Unusable { reason };
    let parsed =
        OwnedCertRevocationList::from_der(list).map_err(|error| unusable(error.to_string()))?;
    let parsed = CertRevocationList::from(parsed);
    if parsed.issuing_distribution_point().is_some() {
        // Certificates outside such a list's scope would silently count as not covered.
        return Err(unusable(
            "it covers only a part of its issuer's certificates, expected a complete list"
                .to_owned(),
        ));
    }
    Ok((details, parsed))
}

/// The path check asks the first list of an issuer only, so an older list must not stand before a newer one. Numbers
/// only ever grow; an issuer's clock can go back.
fn newest_of_each_issuer(
    mut lists: Vec<ReadList>,
) -> Vec<(ListScope, CertRevocationList<'static>)> {
    lists.sort_by_key(|(_, details, _)| std::cmp::Reverse((details.number, details.this_update)));
    let mut newest: Vec<(ListScope, CertRevocationList<'static>)> = Vec::with_capacity(lists.len());
    for (
        position,
        RevocationListDetails {
            issuer_der,
            next_update,
            ..
        },
        list,
    ) in lists
    {
        if newest
            .iter()
            .all(|(coverage, _)| coverage.issuer_der != issuer_der)
        {
            newest.push((
                ListScope {
                    issuer_der,
                    next_update,
                    position,
                },
                list,
            ));
        }
    }
    newest
}

fn read_chain(chain: &[CertificateDer<'_>]) -> Result<Vec<Certificate>, IdentityError> {
    if chain.is_empty() {
        return Err(IdentityError::NoCertificate);
    }
    if chain.len() > CHAIN_CERTIFICATES_MAX {
        return Err(IdentityError::ChainTooLong {
            got: chain.len(),
            max: CHAIN_CERTIFICATES_MAX,
        });
    }
    let read = chain.iter().enumerate().map(|(position, certificate)| {
        Certificate::read(certificate).map_err(|reason| IdentityError::Malformed {
            certificate: WhichCertificate::unread(
                position,
                Certificate::read_subject(certificate).map(|subject| subject.quoted()),
            ),
            reason,
        })
    });
    read.collect()
}

fn which(details: &[CertificateDetails], position: usize) -> WhichCertificate {
    WhichCertificate {
        position: Some(position),
        subject: details[position].subject.clone(),
    }
}

/// What the path check leaves to its caller: key usage, and a leaf without any extended key usage.
fn check_uses(details: &[CertificateDetails], used: &[usize]) -> Result<(), IdentityError> {
    for &position in used {
        let usage = details[position].usage;
        let expected = match position {
            0 if !usage.signs_handshakes => "key usage for digital signatures",
            0 if !usage.names_client_and_server() => BOTH_USES,
            0 => continue,
            _ if usage.signs_certificates => continue,
            _ => "key usage for signing certificates",
        };
        return Err(IdentityError::WrongUsage {
            certificate: which(details, position),
            expected,
        });
    }
    Ok(())
}

/// An extended key usage, where there is one, must allow both ends of a connection.
struct BothUses;

impl ExtendedKeyUsageValidator for BothUses {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut found = Vec::new();
        for purpose in purposes {
            found.push(purpose?.to_decoded_oid());
        }
        let names =
            |wanted: &[usize]| found.is_empty() || found.iter().any(|purpose| purpose == wanted);
        if names(KeyUsage::CLIENT_AUTH_REPR) && names(KeyUsage::SERVER_AUTH_REPR) {
            Ok(())
        } else {
            Err(webpki::Error::RequiredEkuNotFoundContext(
                webpki::RequiredEkuNotFoundContext {
                    required: KeyUsage::client_auth(),
                    present: found,
                },
            ))
        }
    }
}

#[cfg(test)]
mod tests;
