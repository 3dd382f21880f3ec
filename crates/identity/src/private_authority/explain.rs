//! From the path check's verdict to a message that names the certificate, the rule, and who must act.

use rustls_pki_types::UnixTime;

use super::{BOTH_USES, PrivateAuthority, which};
use crate::certificate::CertificateDetails;
use crate::error::IdentityError;
use crate::hex::hex;

impl PrivateAuthority {
    /// The path check says which rule was broken, not by which certificate. That is found again here, so the
    /// position in a message is for people and decides nothing.
    pub(super) fn explain(
        &self,
        error: webpki::Error,
        details: &[CertificateDetails],
        now: UnixTime,
    ) -> IdentityError {
        use webpki::Error as Rule;
        let first =
            |matches: &dyn Fn(&CertificateDetails) -> bool| details.iter().position(matches);
        match error {
            Rule::CertExpired { not_after, .. } => match first(&|one| one.not_after == not_after) {
                Some(position) => IdentityError::Expired {
                    certificate: which(details, position),
                    not_after,
                    now,
                },
                None => self.root_out_of_date(now, |root| root.not_after == not_after),
            },
            Rule::CertNotValidYet { not_before, .. } => {
                match first(&|one| one.not_before == not_before) {
                    Some(position) => IdentityError::NotYetValid {
                        certificate: which(details, position),
                        not_before,
                        now,
                    },
                    None => self.root_out_of_date(now, |root| root.not_before == not_before),
                }
            }
            Rule::CertRevoked => {
                let position = first(&|one| self.is_revoked(one)).unwrap_or(0);
                let serial = hex(&details[position].serial);
                IdentityError::Revoked {
                    certificate: which(details, position),
                    serial,
                }
            }
            Rule::CrlExpired { next_update, .. } => {
                let stale = |one: &CertificateDetails| {
                    self.coverage(one)
                        .is_some_and(|list| list.next_update == next_update)
                };
                let certificate = which(details, first(&stale).unwrap_or(0));
                IdentityError::RevocationListStale {
                    certificate,
                    file: None,
                    next_update,
                    now,
                }
            }
            Rule::InvalidCrlSignatureForPublicKey
            | Rule::UnsupportedCrlSignatureAlgorithmContext(_)
            | Rule::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_)
            | Rule::IssuerNotCrlSigner => {
                let position = first(&|one| self.coverage(one).is_some()).unwrap_or(0);
                let issuer = details[position].issuer.clone();
                IdentityError::RevocationListForged {
                    certificate: which(details, position),
                    issuer,
                }
            }
            Rule::CaUsedAsEndEntity => IdentityError::AuthorityAsLeaf {
                certificate: which(details, 0),
            },
            Rule::EndEntityUsedAsCa => {
                let position = details
                    .iter()
                    .skip(1)
                    .position(|one| !one.is_authority)
                    .map_or(0, |found| found + 1);
                IdentityError::LeafAsAuthority {
                    certificate: which(details, position),
                }
            }
            Rule::RequiredEkuNotFoundContext(_) | Rule::EmptyEkuExtension => {
                let position = first(&|one| one.usage.lacks_client_or_server()).unwrap_or(0);
                IdentityError::WrongUsage {
                    certificate: which(details, position),
                    expected: BOTH_USES,
                }
            }
            Rule::UnknownIssuer
            | Rule::InvalidSignatureForPublicKey
            | Rule::UnsupportedSignatureAlgorithmContext(_)
            | Rule::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                let position = end_of_path(details);
                IdentityError::UnknownAuthority {
                    certificate: which(details, position),
                    issuer: details[position].issuer.clone(),
                    anchors: self.anchors.len(),
                }
            }
            rule => IdentityError::PathRule {
                certificate: which(details, 0),
                rule: rule.to_string(),
            },
        }
    }

    fn root_out_of_date(
        &self,
        now: UnixTime,
        is_meant: impl Fn(&super::Root) -> bool,
    ) -> IdentityError {
        let root = self
            .roots
            .iter()
            .find(|root| is_meant(root))
            .unwrap_or(&self.roots[0]);
        IdentityError::AuthorityOutOfDate {
            authority: root.subject.clone(),
            not_before: root.not_before,
            not_after: root.not_after,
            now,
        }
    }

    fn coverage(&self, certificate: &CertificateDetails) -> Option<&super::ListScope> {
        self.coverage
            .iter()
            .find(|list| list.issuer_der == certificate.issuer_der)
    }

    fn is_revoked(&self, certificate: &CertificateDetails) -> bool {
        let mut covering = self.coverage.iter().zip(&self.lists);
        let list = covering.find(|(coverage, _)| coverage.issuer_der == certificate.issuer_der);
        list.is_some_and(|(_, list)| {
            matches!(list.find_serial(&certificate.serial_der), Ok(Some(_)))
        })
    }
}

/// Follows the issuers' names from the leaf to the last certificate that the peer sent on that way.
fn end_of_path(details: &[CertificateDetails]) -> usize {
    let mut position = 0;
    // A chain can name itself in a circle, so no more steps than certificates.
    for _ in details {
        let next = details
            .iter()
            .position(|one| one.subject_der == details[position].issuer_der);
        match next {
            Some(next) if next != position => position = next,
            _ => break,
        }
    }
    position
}
