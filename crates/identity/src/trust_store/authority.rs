//! The certificates of a trust directory, and how they hang together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::bad_file::{BadFile, BadFileReason};
use super::file::{Kept, certificates};
use super::name_space::IssuerRules;
use crate::distinguished_name::NameKey;
use crate::limits::SAME_NAME_AUTHORITIES_MAX;
use crate::signature::SignatureFault;
use crate::slash_name::normal_form;
use crate::x509::{Certificate, KeyUsage};

/// A certificate of the trust directory.
pub(crate) struct Authority {
    pub(crate) certificate: Arc<Certificate>,
    pub(crate) kind: AuthorityKind,
    pub(crate) name: NameKey,
    /// For an intermediate: the authorities of this directory whose key signed it. Checked once, when it was loaded.
    pub(crate) issuers: Vec<usize>,
    /// For an intermediate: whether it names an authority of this directory, but is signed by SHA-1 or the like.
    pub(crate) has_weak_signature: bool,
    /// What the files say about the names that it may sign.
    pub(crate) rules: Option<Arc<IssuerRules>>,
    /// The files that hold it.
    pub(super) files: Vec<String>,
}

/// What a certificate of the directory may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorityKind {
    /// It issued itself: paths may end here.
    Anchor,
    /// Another authority issued it: paths may lead through here.
    Intermediate,
    /// It may not sign certificates, or its own signature or key is too weak to be trusted.
    Unusable,
}

impl Authority {
    /// Whether its key is strong enough for its signatures to be checked at all. One that isn't makes it unusable.
    pub(crate) fn has_key_to_check(&self) -> bool {
        self.kind != AuthorityKind::Unusable || self.certificate.key.is_strong_enough_for_anchor()
    }

    /// The hashes that its files are named by.
    pub(super) fn hashes(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter_map(|file| file.split('.').next())
    }
}

pub(super) fn collect(
    files: &BTreeMap<String, Arc<Kept>>,
    bad: &mut Vec<BadFile>,
) -> (Vec<Authority>, HashMap<NameKey, Vec<usize>>) {
    let mut authorities: Vec<Authority> = Vec::new();
    let mut by_name: HashMap<NameKey, Vec<usize>> = HashMap::new();
    for (file, certificate) in certificates(files) {
        let name = certificate.subject.key();
        let namesakes = by_name.entry(name.clone()).or_default();
        let known = namesakes
            .iter()
            .find(|&&index| authorities[index].certificate.der == certificate.der);
        if let Some(&known) = known {
            authorities[known].files.push(file.to_owned());
            continue;
        }
        if namesakes.len() == SAME_NAME_AUTHORITIES_MAX {
            bad.push(BadFile {
                name: file.to_owned(),
                reason: BadFileReason::Malformed(crate::malformed::Malformed::TooMany {
                    what: "authorities of one name",
                    got: namesakes.len() + 1,
                    max: SAME_NAME_AUTHORITIES_MAX,
                }),
                kept_previous: false,
            });
            continue;
        }
        namesakes.push(authorities.len());
        authorities.push(Authority {
            kind: kind(certificate),
            certificate: Arc::clone(certificate),
            name,
            issuers: Vec::new(),
            has_weak_signature: false,
            rules: None,
            files: vec![file.to_owned()],
        });
    }
    (authorities, by_name)
}

fn kind(certificate: &Certificate) -> AuthorityKind {
    if !may_sign(certificate) {
        AuthorityKind::Unusable
    } else if !certificate.is_self_issued() {
        AuthorityKind::Intermediate
    } else if certificate.key.is_strong_enough_for_anchor()
        && certificate.verify_self_signature().is_ok()
    {
        AuthorityKind::Anchor
    } else {
        AuthorityKind::Unusable
    }
}

/// Finds who issued the intermediates, and what each authority may sign.
pub(super) fn link(
    authorities: &mut [Authority],
    by_name: &HashMap<NameKey, Vec<usize>>,
    files: &BTreeMap<String, Arc<Kept>>,
    rules: &HashMap<String, Arc<IssuerRules>>,
) {
    for index in 0..authorities.len() {
        let authority = &authorities[index];
        let certificate = &authority.certificate;
        let mut issuers = Vec::new();
        let mut has_weak_signature = false;
        if authority.kind == AuthorityKind::Intermediate {
            for &candidate in by_name.get(&certificate.issuer.key()).into_iter().flatten() {
                let issuer = &authorities[candidate];
                if issuer.kind == AuthorityKind::Unusable {
                    continue;
                }
                match certificate.verify_signature(&issuer.certificate.key) {
                    Ok(()) => issuers.push(candidate),
                    Err(fault) => has_weak_signature |= fault == SignatureFault::Weak,
                }
            }
        }
        let rules = rules_of(files, rules, authority);
        authorities[index].issuers = issuers;
        authorities[index].has_weak_signature = has_weak_signature;
        authorities[index].rules = rules;
    }
}

/// The rules for the authority of these hashes: what is said about it anywhere, and that a file of its own which doesn't
/// speak of it permits it nothing.
fn rules_of(
    files: &BTreeMap<String, Arc<Kept>>,
    rules: &HashMap<String, Arc<IssuerRules>>,
    authority: &Authority,
) -> Option<Arc<IssuerRules>> {
    let mut found = rules
        .get(&normal_form(&authority.certificate.subject.slash()))
        .map_or_else(IssuerRules::default, |rules| (**rules).clone());
    for hash in authority.hashes() {
        if files.contains_key(&format!("{hash}.signing_policy")) {
            found.signing_policy.get_or_insert_default();
        }
        if files.contains_key(&format!("{hash}.namespaces")) {
            found.namespaces.get_or_insert_default();
        }
    }
    (found != IssuerRules::default()).then(|| Arc::new(found))
}

/// Whether a certificate may sign others at all, whatever stands above it.
pub(super) fn may_sign(certificate: &Certificate) -> bool {
    // Roots from before version 3 have no extensions to say so with; that they were put into the directory must do.
    let is_authority =
        certificate.is_authority() || (!certificate.is_version_3 && certificate.is_self_issued());
    is_authority && certificate.allows(KeyUsage::CertificateSigning)
}
