//! The authorities above an end entity: found in the trust directory and among what the peer sent, and judged by
//! RFC 5280 section 6, their name spaces, and their revocation lists.

use std::sync::Arc;

use rustls_pki_types::UnixTime;

use super::error::NameSpaceRule;
use super::presented::{check_uses, which};
use super::settings::{GridSettings, NameSpaces, Revocation};
use crate::distinguished_name::{DistinguishedName, NameKey};
use crate::error::IdentityError;
use crate::hex::hex;
use crate::limits::{AUTHORITIES_MAX, SIGNATURE_CHECKS_MAX};
use crate::peer_text::PeerText;
use crate::revocation::RevocationList;
use crate::signature::{PublicKey, SignatureFault};
use crate::slash_name::normal_form;
use crate::trust_store::{Authority, AuthorityKind, Forbidding, IssuerRules, TrustStore};
use crate::which_certificate::WhichCertificate;
use crate::x509::{Certificate, KeyUsage, NameConstraints, Purposes};

/// What was found above an end entity.
pub(super) struct Above {
    /// The authorities' names, the trust anchor's last.
    pub(super) names: Vec<DistinguishedName>,
    /// The earliest end of a certificate or a list.
    pub(super) ends: UnixTime,
    /// What all certificates of the path allow.
    pub(super) purposes: Purposes,
    /// The authority nearest to the end entity that leaves out TLS clients.
    pub(super) unfit_for_clients: Option<WhichCertificate>,
}

/// A certificate of a path in the making.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathNode {
    /// At that position of what the peer presented.
    Presented(usize),
    /// Of the trust directory, by its index there.
    Directory(usize),
}

/// How many signatures may still be checked for one chain.
pub(super) struct SignatureBudget(usize);

impl Default for SignatureBudget {
    fn default() -> Self {
        Self(SIGNATURE_CHECKS_MAX)
    }
}

impl SignatureBudget {
    /// Takes one check out of the budget.
    pub(super) fn take(&mut self) -> Result<(), IdentityError> {
        self.0 = self
            .0
            .checked_sub(1)
            .ok_or(IdentityError::TooManySignatures)?;
        Ok(())
    }
}

/// The search for a path, with its budget.
pub(super) struct Search<'a> {
    store: &'a TrustStore,
    settings: &'a GridSettings,
    presented: &'a [Certificate],
    now: UnixTime,
    pub(super) budget: SignatureBudget,
    /// What the end entity and its proxies allow.
    purposes: Purposes,
}

/// What the authorities above say about the certificate that is next on the way down.
struct Descent<'a> {
    /// How many authorities that aren't self-issued may still follow.
    path_length: Option<u32>,
    constraints: Vec<(&'a NameConstraints, &'a DistinguishedName)>,
    rules: Option<&'a Arc<IssuerRules>>,
    ends: UnixTime,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        store: &'a TrustStore,
        settings: &'a GridSettings,
        presented: &'a [Certificate],
        budget: SignatureBudget,
        now: UnixTime,
    ) -> Self {
        Self {
            store,
            settings,
            presented,
            now,
            budget,
            purposes: Purposes::ALL,
        }
    }

    /// What a proxy or an end entity must be good for by itself.
    pub(super) fn check_entity(&self, position: usize) -> Result<(), IdentityError> {
        let certificate = &self.presented[position];
        self.check_certificate(certificate, PathNode::Presented(position))?;
        check_uses(certificate).map_err(|expected| IdentityError::WrongUsage {
            certificate: which(self.presented, position),
            expected,
        })
    }

    /// Finds a path from the end entity at that position to a trust anchor. `purposes` are what it and its proxies allow.
    pub(super) fn find(
        &mut self,
        end_entity: usize,
        purposes: Purposes,
    ) -> Result<Above, IdentityError> {
        self.purposes = purposes;
        self.climb(&mut vec![PathNode::Presented(end_entity)])
    }

    /// Tries the issuers of the last node, those of the directory first. Of the reasons why none will do, the first
    /// that says more than "unknown" is returned.
    fn climb(&mut self, path: &mut Vec<PathNode>) -> Result<Above, IdentityError> {
        let node = path[path.len() - 1];
        let issuer = self.certificate(node).issuer.key();
        let mut refusal = None;
        for index in self.directory_candidates(node, &issuer) {
            let next = PathNode::Directory(index);
            match self.step(path, node, next) {
                Ok(Some(above)) => return Ok(above),
                Ok(None) => {}
                Err(error @ IdentityError::TooManySignatures) => return Err(error),
                Err(error) => keep_telling(&mut refusal, error),
            }
        }
        for position in self.presented_candidates(&issuer) {
            let next = PathNode::Presented(position);
            match self.step(path, node, next) {
                Ok(Some(above)) => return Ok(above),
                Ok(None) => {}
                Err(error @ IdentityError::TooManySignatures) => return Err(error),
                Err(error) => keep_telling(&mut refusal, error),
            }
        }
        Err(refusal.unwrap_or_else(|| self.unknown(node)))
    }

    /// Why no issuer was found for a node.
    fn unknown(&self, node: PathNode) -> IdentityError {
        let certificate = self.certificate(node);
        match node {
            PathNode::Directory(index) if self.authority(index).has_weak_signature => {
                signature_error(SignatureFault::Weak, certificate, self.which(node))
            }
            _ => IdentityError::UnknownAuthority {
                certificate: self.which(node),
                issuer: PeerText::new(&certificate.issuer.slash()),
                anchors: self.store.anchors(),
            },
        }
    }

    /// Goes up from `node` to `next`, if that is its issuer, and on to an anchor.
    fn step(
        &mut self,
        path: &mut Vec<PathNode>,
        node: PathNode,
        next: PathNode,
    ) -> Result<Option<Above>, IdentityError> {
        if path.contains(&next) {
            return Ok(None);
        }
        if !self.has_issued(next, node)? {
            return Ok(None);
        }
        self.check_issuer(next, node)?;
        if path.len() > AUTHORITIES_MAX {
            return Err(IdentityError::TooManyAuthorities);
        }
        path.push(next);
        let found = match next {
            PathNode::Directory(index) if self.authority(index).kind == AuthorityKind::Anchor => {
                self.descend(path)
            }
            _ => self.climb(path),
        };
        path.pop();
        found.map(Some)
    }

    fn directory_candidates(&self, node: PathNode, issuer: &NameKey) -> Vec<usize> {
        match node {
            PathNode::Directory(index) => self.authority(index).issuers.clone(),
            PathNode::Presented(_) => {
                let mut candidates = self.store.indexes_named(issuer).to_vec();
                // An anchor ends the search, so it is asked first.
                candidates
                    .sort_by_key(|&index| self.authority(index).kind != AuthorityKind::Anchor);
                candidates
            }
        }
    }

    fn presented_candidates(&self, issuer: &NameKey) -> Vec<usize> {
        (0..self.presented.len())
            .filter(|&position| {
                let certificate = &self.presented[position];
                certificate.subject.key() == *issuer
                    // What the directory has too was tried as such.
                    && !self
                        .store
                        .indexes_named(issuer)
                        .iter()
                        .any(|&index| self.authority(index).certificate.der == certificate.der)
            })
            .collect()
    }

    /// Whether the key of `issuer` signed `node`.
    fn has_issued(&mut self, issuer: PathNode, node: PathNode) -> Result<bool, IdentityError> {
        if let (PathNode::Directory(_), PathNode::Directory(_)) = (issuer, node) {
            return Ok(true);
        }
        if let PathNode::Directory(index) = issuer
            && !self.authority(index).has_key_to_check()
        {
            // Nothing that such a key signs can be checked; `check_issuer` says so.
            return Ok(true);
        }
        if let PathNode::Presented(_) = issuer
            && !self.certificate(issuer).key.is_strong()
        {
            return Err(self.weak_key(issuer));
        }
        self.budget.take()?;
        let signed = self
            .certificate(node)
            .verify_signature(&self.certificate(issuer).key);
        match signed {
            Ok(()) => Ok(true),
            Err(SignatureFault::Wrong) => Ok(false),
            Err(fault @ SignatureFault::Weak) => Err(signature_error(
                fault,
                self.certificate(node),
                self.which(node),
            )),
        }
    }

    /// Whether `issuer` may sign certificates at all.
    fn check_issuer(&self, issuer: PathNode, node: PathNode) -> Result<(), IdentityError> {
        let certificate = self.certificate(issuer);
        match issuer {
            PathNode::Directory(index) if self.authority(index).kind == AuthorityKind::Unusable => {
                Err(IdentityError::UntrustedAuthority {
                    certificate: self.which(node),
                    authority: PeerText::new(&certificate.subject.slash()),
                })
            }
            PathNode::Directory(_) => Ok(()),
            // RFC 5280 section 6.1.4 (k) and (n).
            PathNode::Presented(position) if !certificate.is_authority() => {
                Err(IdentityError::LeafAsAuthority {
                    certificate: which(self.presented, position),
                })
            }
            PathNode::Presented(position) if !certificate.allows(KeyUsage::CertificateSigning) => {
                Err(IdentityError::WrongUsage {
                    certificate: which(self.presented, position),
                    expected: "key usage for signing certificates",
                })
            }
            PathNode::Presented(_) => Ok(()),
        }
    }

    /// Judges a whole path, whose signatures are good, from the anchor down (RFC 5280 section 6.1).
    fn descend(&mut self, path: &[PathNode]) -> Result<Above, IdentityError> {
        let (&anchor, below) = path.split_last().ok_or(IdentityError::NoCertificate)?;
        let certificate = self.certificate(anchor);
        self.check_anchor_dates(certificate)?;
        let (purposes, unfit_for_clients) = self.check_purposes(&path[1..])?;
        let mut descent = Descent {
            path_length: certificate
                .extensions
                .basic_constraints
                .and_then(|constraints| constraints.path_length),
            constraints: Vec::new(),
            rules: None,
            ends: certificate.not_after,
        };
        let mut issuer = anchor;
        for (level, &node) in below.iter().enumerate().rev() {
            self.go_below(&mut descent, issuer, node)?;
            self.check_issued(&mut descent, issuer, node, level == 0)?;
            issuer = node;
        }
        Ok(Above {
            names: path[1..]
                .iter()
                .map(|&node| self.certificate(node).subject.clone())
                .collect(),
            ends: descent.ends,
            purposes,
            unfit_for_clients,
        })
    }

    /// What the authorities of a path leave of the end entity's purposes, and the first that leaves out TLS clients. As OpenSSL has it,
    /// each binds all that is below it, and the anchor is one of them.
    fn check_purposes(
        &self,
        authorities: &[PathNode],
    ) -> Result<(Purposes, Option<WhichCertificate>), IdentityError> {
        let mut allowed = self.purposes;
        let mut unfit_for_clients = None;
        for &node in authorities {
            let got = self.certificate(node).purposes();
            let expected = allowed;
            allowed = expected.and(got);
            if allowed.allow_neither() {
                return Err(IdentityError::AuthorityPurpose {
                    certificate: self.which(node),
                    got,
                    expected,
                });
            }
            if unfit_for_clients.is_none() && !got.client {
                unfit_for_clients = Some(self.which(node));
            }
        }
        Ok((allowed, unfit_for_clients))
    }

    /// Takes up what `issuer` says about everything below it.
    fn go_below(
        &self,
        descent: &mut Descent<'a>,
        issuer: PathNode,
        node: PathNode,
    ) -> Result<(), IdentityError> {
        let certificate = self.certificate(issuer);
        if let Some(constraints) = &certificate.extensions.name_constraints {
            descent
                .constraints
                .push((constraints, &certificate.subject));
        }
        let own = match issuer {
            PathNode::Directory(index) => self.authority(index).rules.as_ref(),
            PathNode::Presented(_) => self.store.rules_for(&certificate.subject),
        };
        // A file that can't be read is no file that is absent: nobody knows what it would forbid.
        let is_broken = own.is_none()
            && matches!(issuer, PathNode::Directory(index)
                if self.store.has_broken_rules(self.authority(index)));
        // An issuer of which no file speaks is bound by what binds its own issuer.
        descent.rules = own.or(descent.rules);
        if is_broken || descent.rules.is_none() && self.settings.name_spaces == NameSpaces::Require
        {
            return Err(IdentityError::NoNameSpace {
                certificate: self.which(node),
                authority: PeerText::new(&certificate.subject.slash()),
            });
        }
        Ok(())
    }

    /// Judges a certificate that `issuer` signed.
    fn check_issued(
        &mut self,
        descent: &mut Descent<'a>,
        issuer: PathNode,
        node: PathNode,
        is_end_entity: bool,
    ) -> Result<(), IdentityError> {
        let certificate = self.certificate(node);
        // The end entity was looked at with the proxies.
        if !is_end_entity {
            self.check_certificate(certificate, node)?;
        }
        descent.ends = descent.ends.min(certificate.not_after);
        self.check_revocation(descent, issuer, node)?;
        let is_self_issued = certificate.is_self_issued();
        if is_end_entity || !is_self_issued {
            self.check_names(descent, issuer, node)?;
        }
        if !is_end_entity {
            // RFC 5280 section 6.1.4 (l) and (m).
            if !is_self_issued {
                descent.path_length = match descent.path_length {
                    Some(0) => {
                        return Err(IdentityError::PathLength {
                            certificate: self.which(node),
                        });
                    }
                    Some(left) => Some(left - 1),
                    None => None,
                };
            }
            if let Some(own) = certificate
                .extensions
                .basic_constraints
                .and_then(|constraints| constraints.path_length)
            {
                descent.path_length = Some(descent.path_length.map_or(own, |left| left.min(own)));
            }
        }
        Ok(())
    }

    /// Dates, extensions and key: what no other certificate is needed for.
    fn check_certificate(
        &self,
        certificate: &Certificate,
        node: PathNode,
    ) -> Result<(), IdentityError> {
        let now = self.now;
        if now > certificate.not_after {
            return Err(IdentityError::Expired {
                certificate: self.which(node),
                not_after: certificate.not_after,
                now,
            });
        }
        if self.with_skew() < certificate.not_before {
            return Err(IdentityError::NotYetValid {
                certificate: self.which(node),
                not_before: certificate.not_before,
                now,
            });
        }
        // RFC 5280 section 4.2: what is critical and not understood refuses the certificate.
        if let Some(extension) = &certificate.extensions.unknown_critical {
            return Err(IdentityError::UnknownCriticalExtension {
                certificate: self.which(node),
                extension: extension.clone(),
            });
        }
        if !certificate.key.is_strong() {
            return Err(self.weak_key(node));
        }
        Ok(())
    }

    fn weak_key(&self, node: PathNode) -> IdentityError {
        IdentityError::WeakKey {
            certificate: self.which(node),
            got: self.certificate(node).key.kind().to_string(),
        }
    }

    fn check_anchor_dates(&self, anchor: &Certificate) -> Result<(), IdentityError> {
        if self.now > anchor.not_after || self.with_skew() < anchor.not_before {
            return Err(IdentityError::AuthorityOutOfDate {
                authority: PeerText::new(&anchor.subject.slash()),
                not_before: anchor.not_before,
                not_after: anchor.not_after,
                now: self.now,
            });
        }
        Ok(())
    }

    /// RFC 5280 section 6.3, with lists that the directory holds: the newest one that is about the certificate.
    fn check_revocation(
        &mut self,
        descent: &mut Descent<'_>,
        issuer: PathNode,
        node: PathNode,
    ) -> Result<(), IdentityError> {
        let authority = self.certificate(issuer);
        let certificate = self.certificate(node);
        let quoted = || PeerText::new(&authority.subject.slash());
        let key = match issuer {
            PathNode::Directory(index) => &self.authority(index).name,
            PathNode::Presented(_) => &authority.subject.key(),
        };
        let list = if authority.allows(KeyUsage::RevocationListSigning) {
            self.revocation_list(key, &authority.key, certificate)?
        } else {
            None
        };
        let Some(list) = list else {
            let known = match issuer {
                PathNode::Directory(index) => Some(self.authority(index)),
                PathNode::Presented(_) => None,
            };
            return match self.settings.revocation {
                Revocation::WhereListed if !self.store.has_broken_list(known) => Ok(()),
                _ => Err(IdentityError::NoRevocationList {
                    certificate: self.which(node),
                    issuer: quoted(),
                }),
            };
        };
        let now = self.now;
        if now > list.next_update {
            return Err(IdentityError::RevocationListStale {
                certificate: self.which(node),
                file: self
                    .store
                    .files_of_list(list)
                    .first()
                    .map(|&name| name.into()),
                next_update: list.next_update,
                now,
            });
        }
        if self.with_skew() < list.this_update {
            return Err(IdentityError::RevocationListFromFuture {
                certificate: self.which(node),
                this_update: list.this_update,
                now,
            });
        }
        if list.revokes(certificate.serial()) {
            return Err(IdentityError::Revoked {
                certificate: self.which(node),
                serial: hex(certificate.serial()),
            });
        }
        descent.ends = descent.ends.min(list.next_update);
        Ok(())
    }

    /// The newest list about a certificate by the authority with that name and key. Of an authority that isn't in the directory
    /// the signature tells, which is one of those that are counted.
    fn revocation_list(
        &mut self,
        issuer: &NameKey,
        key: &PublicKey,
        certificate: &Certificate,
    ) -> Result<Option<&'a RevocationList>, IdentityError> {
        for coverage in self.store.revocation_lists(issuer) {
            let list = &coverage.list;
            if !list.covers(certificate) {
                continue;
            }
            let is_of = match coverage.is_known_to_be_of(key) {
                Some(known) => known,
                None => {
                    self.budget.take()?;
                    list.verify_signature(key).is_ok()
                }
            };
            if is_of {
                return Ok(Some(list));
            }
        }
        Ok(None)
    }

    fn check_names(
        &self,
        descent: &Descent<'_>,
        issuer: PathNode,
        node: PathNode,
    ) -> Result<(), IdentityError> {
        let certificate = self.certificate(node);
        let refused = |authority: &DistinguishedName, rule| {
            Err(IdentityError::NameNotPermitted {
                certificate: self.which(node),
                authority: PeerText::new(&authority.slash()),
                rule,
            })
        };
        if let Some(rules) = descent.rules
            && let Err(forbidding) = rules.check(&normal_form(&certificate.subject.slash()))
        {
            let rule = match forbidding {
                Forbidding::SigningPolicy => NameSpaceRule::SigningPolicy,
                Forbidding::Namespaces => NameSpaceRule::Namespaces,
            };
            return refused(&self.certificate(issuer).subject, rule);
        }
        for (constraints, authority) in &descent.constraints {
            if !certificate.has_names_within(constraints) {
                return refused(authority, NameSpaceRule::NameConstraints);
            }
        }
        Ok(())
    }

    /// Now, as a host would see it whose clock is ahead by what is tolerated.
    fn with_skew(&self) -> UnixTime {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            self.now
                .as_secs()
                .saturating_add(self.settings.clock_skew_seconds),
        ))
    }

    fn certificate(&self, node: PathNode) -> &'a Certificate {
        match node {
            PathNode::Presented(position) => &self.presented[position],
            PathNode::Directory(index) => &self.store.authority(index).certificate,
        }
    }

    fn authority(&self, index: usize) -> &'a Authority {
        self.store.authority(index)
    }

    fn which(&self, node: PathNode) -> WhichCertificate {
        match node {
            PathNode::Presented(position) => which(self.presented, position),
            PathNode::Directory(index) => WhichCertificate {
                position: None,
                subject: PeerText::new(&self.authority(index).certificate.subject.slash()),
            },
        }
    }
}

/// The first reason that says more than that an authority is unknown is the one to tell.
fn keep_telling(kept: &mut Option<IdentityError>, error: IdentityError) {
    match kept {
        Some(IdentityError::UnknownAuthority { .. }) | None => *kept = Some(error),
        Some(_) => {}
    }
}

/// What a fault of a certificate's signature is called.
pub(super) fn signature_error(
    fault: SignatureFault,
    certificate: &Certificate,
    which: WhichCertificate,
) -> IdentityError {
    match fault {
        SignatureFault::Weak => IdentityError::WeakSignature {
            certificate: which,
            got: certificate.signed.algorithm.to_string(),
        },
        SignatureFault::Wrong => IdentityError::WrongSignature {
            certificate: which,
            issuer: PeerText::new(&certificate.issuer.slash()),
        },
    }
}
