//! What a load of the trust directories found, for the people who keep them.

use rustls_pki_types::UnixTime;

use super::authority::{Authority, AuthorityKind, may_sign};
use super::bad_file::BadFile;
use crate::date::Date;
use crate::distinguished_name::DistinguishedName;
use crate::grid::{GridSettings, NameSpaces, Revocation};
use crate::revocation::RevocationList;

/// What a load of the trust directories found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustReport {
    /// The generation of the trust that was loaded.
    pub generation: u64,
    /// Every certificate of the directory of authorities, trusted or not.
    pub authorities: Vec<AuthorityReport>,
    /// The files that could not be used.
    pub bad_files: Vec<BadFile>,
    /// Names of the issuers of revocation lists that no certificate of the directory belongs to.
    pub lists_without_authority: Vec<DistinguishedName>,
    /// How many files of the vomsdir are in use.
    pub voms_files: usize,
}

/// One certificate of the directory of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityReport {
    /// Its subject.
    pub subject: DistinguishedName,
    /// The files that hold it.
    pub files: Vec<String>,
    /// Its key, for people: "RSA of 4096 bits".
    pub key: String,
    /// How it is signed.
    pub self_signature: SelfSignature,
    /// From when on it is valid.
    pub not_before: UnixTime,
    /// Until when it is valid.
    pub not_after: UnixTime,
    /// Whether paths may end here or lead through here, its dates aside.
    pub is_usable: bool,
    /// Why it isn't usable, or where a path through it would end.
    pub weaknesses: Vec<String>,
    /// Its revocation list.
    pub revocation_list: Option<RevocationListReport>,
    /// Whether a `signing_policy` says what it may sign.
    pub has_signing_policy: bool,
    /// Whether a `namespaces` file says what it may sign.
    pub has_namespaces: bool,
}

/// How a certificate of the directory is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfSignature {
    /// With its own key, by that algorithm.
    Good {
        /// The algorithm, for people.
        algorithm: String,
    },
    /// With its own key, as it says, but by an algorithm that isn't checked.
    Unchecked,
    /// By another authority.
    ByAnother {
        /// Which one.
        issuer: DistinguishedName,
    },
}

/// The revocation list of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationListReport {
    /// When it was made.
    pub this_update: UnixTime,
    /// When the next one is due.
    pub next_update: UnixTime,
    /// How many certificates it revokes.
    pub revoked: usize,
}

impl AuthorityReport {
    /// What there is to say about an authority, and about the list in use that it has signed, if there is one.
    pub(super) fn of(authority: &Authority, list: Option<&RevocationList>) -> Self {
        let certificate = &authority.certificate;
        let self_signature = if !certificate.is_self_issued() {
            SelfSignature::ByAnother {
                issuer: certificate.issuer.clone(),
            }
        } else if certificate.verify_self_signature().is_ok() {
            SelfSignature::Good {
                algorithm: certificate.signed.algorithm.to_string(),
            }
        } else {
            SelfSignature::Unchecked
        };
        Self {
            subject: certificate.subject.clone(),
            files: authority.files.clone(),
            key: certificate.key.kind().to_string(),
            weaknesses: weaknesses(authority, &self_signature),
            self_signature,
            not_before: certificate.not_before,
            not_after: certificate.not_after,
            is_usable: authority.kind != AuthorityKind::Unusable
                && !certificate.purposes().allow_neither(),
            revocation_list: list.map(|list| RevocationListReport {
                this_update: list.this_update,
                next_update: list.next_update,
                revoked: list.len(),
            }),
            has_signing_policy: authority
                .rules
                .as_ref()
                .is_some_and(|rules| rules.has_signing_policy()),
            has_namespaces: authority
                .rules
                .as_ref()
                .is_some_and(|rules| rules.has_namespaces()),
        }
    }

    /// What is wrong with it at that time, in words for the administrator; nothing for a sound one.
    pub fn problems(&self, now: UnixTime) -> Vec<String> {
        let mut problems = self.weaknesses.clone();
        problems.extend(self.out_of_date(now));
        problems.extend(self.lacking(&GridSettings::default(), now));
        problems
    }

    /// Why everybody whose path leads over it would be refused at that time by these settings; nothing, when it is no
    /// reason to refuse anybody.
    pub fn refusals(&self, settings: &GridSettings, now: UnixTime) -> Vec<String> {
        let mut refusals = if self.is_usable {
            Vec::new()
        } else {
            self.weaknesses.clone()
        };
        refusals.extend(self.out_of_date(now));
        refusals.extend(self.lacking(settings, now));
        refusals
    }

    fn out_of_date(&self, now: UnixTime) -> Option<String> {
        if now > self.not_after {
            Some(format!("it expired on {}", Date(self.not_after)))
        } else if now < self.not_before {
            Some(format!("it is valid from {} on", Date(self.not_before)))
        } else {
            None
        }
    }

    /// What an authority needs besides its certificate.
    fn lacking(&self, settings: &GridSettings, now: UnixTime) -> Vec<String> {
        let mut lacking = Vec::new();
        match &self.revocation_list {
            None if settings.revocation == Revocation::Require => {
                lacking.push("it has no revocation list (HASH.r0): run fetch-crl".to_owned());
            }
            Some(list) if now > list.next_update => lacking.push(format!(
                "its revocation list is stale since {}: run fetch-crl",
                Date(list.next_update)
            )),
            _ => {}
        }
        // An intermediate without files of its own is bound by its issuer's.
        let is_bound = self.has_signing_policy
            || self.has_namespaces
            || matches!(self.self_signature, SelfSignature::ByAnother { .. });
        if settings.name_spaces == NameSpaces::Require && !is_bound {
            lacking.push(
                "no signing_policy or namespaces file says which names it may sign".to_owned(),
            );
        }
        lacking
    }
}

fn weaknesses(authority: &Authority, self_signature: &SelfSignature) -> Vec<String> {
    let certificate = &authority.certificate;
    let mut weaknesses = Vec::new();
    if !may_sign(certificate) {
        weaknesses.push("it may not sign certificates".to_owned());
    }
    let purposes = certificate.purposes();
    if purposes.allow_neither() {
        weaknesses.push(format!(
            "its extended key usages allow {purposes}, expected one of them, or no extended key usages"
        ));
    }
    let is_anchor = certificate.is_self_issued();
    let key = certificate.key.kind();
    if is_anchor && !certificate.key.is_strong_enough_for_anchor() {
        weaknesses.push(format!(
            "its key is too weak: got {key}, expected RSA of 1024 bits, P-256 or better"
        ));
    } else if !certificate.key.is_strong() {
        weaknesses.push(format!(
            "its key is weak: got {key}, expected RSA of 2048 bits, P-256 or better{}",
            if is_anchor {
                "; it counts for a trust anchor"
            } else {
                ""
            }
        ));
    }
    if *self_signature == SelfSignature::Unchecked {
        weaknesses
            .push("its signature over itself is of a kind that nobody should trust".to_owned());
    }
    if authority.kind == AuthorityKind::Intermediate && authority.issuers.is_empty() {
        weaknesses.push(format!(
            "its issuer {} is not in the directory, or did not sign it",
            certificate.issuer
        ));
    }
    weaknesses
}
