//! What a load of the trust directories found, for the people who keep them.

use std::collections::BTreeSet;

use rustls_pki_types::UnixTime;
use thiserror::Error;

use super::authority::{Authority, AuthorityKind, may_sign};
use super::bad_file::BadFile;
use crate::date::Date;
use crate::distinguished_name::DistinguishedName;
use crate::grid::{GridSettings, NameSpaces, Revocation};

/// What is said of an authority without a list.
const WITHOUT_LIST: &str = "it has no revocation list (HASH.r0): run fetch-crl";

/// What a load of the trust directories found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustReport {
    /// The generation of the trust that was loaded.
    pub generation: u64,
    /// Every certificate of the directory of authorities, trusted or not.
    pub authorities: Vec<AuthorityReport>,
    /// The files that could not be used.
    pub bad_files: Vec<BadFile>,
    /// The newest revocation list of each issuer whose certificate is not in the directory.
    pub lists_without_authority: Vec<RevocationListReport>,
    /// How many files of the vomsdir are in use.
    pub voms_files: usize,
    /// The virtual organisations that have such a file. Attributes of others count for nothing.
    pub organisations: BTreeSet<String>,
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

/// A revocation list of the directory of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationListReport {
    /// Who issued it.
    pub issuer: DistinguishedName,
    /// The files that hold it.
    pub files: Vec<String>,
    /// When it was made.
    pub this_update: UnixTime,
    /// When the next one is due.
    pub next_update: UnixTime,
    /// How many certificates it revokes.
    pub revoked: usize,
}

impl RevocationListReport {
    /// Why nobody whom it covers is accepted at that time, with the names of its files; nothing while it is current.
    pub fn stale(&self, now: UnixTime) -> Option<String> {
        (now > self.next_update).then(|| {
            format!(
                "its revocation list {} is stale since {}: run fetch-crl",
                self.files.join(" "),
                Date(self.next_update)
            )
        })
    }
}

/// A revocation list for whose sake everybody whom it covers is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{authority}: {fault}")]
pub struct ListFault {
    /// The authority, in slash form.
    pub authority: String,
    /// What is wrong with its list, and what to do.
    pub fault: String,
}

impl TrustReport {
    /// The lists that are stale at that time, each in words with its issuer and its files. Of an authority that isn't usable or is out
    /// of date no list is missed.
    pub fn stale_lists(&self, now: UnixTime) -> Vec<String> {
        let stale = self.stale(now);
        stale.map(|one| one.to_string()).collect()
    }

    fn stale(&self, now: UnixTime) -> impl Iterator<Item = ListFault> {
        let of_authorities = self
            .authorities
            .iter()
            .filter(move |one| one.is_usable && one.out_of_date(now).is_none())
            .filter_map(|one| one.revocation_list.as_ref());
        of_authorities
            .chain(&self.lists_without_authority)
            .filter_map(move |list| {
                Some(ListFault {
                    authority: list.issuer.slash(),
                    fault: list.stale(now)?,
                })
            })
    }

    /// The lists for whose sake everybody whom they cover is refused at that time by these settings: those
    /// of [`stale_lists`](Self::stale_lists), and those that are missing or can't be used.
    pub fn list_faults(&self, settings: &GridSettings, now: UnixTime) -> Vec<ListFault> {
        let without = self.authorities.iter().filter(|one| {
            one.is_usable && one.out_of_date(now).is_none() && one.revocation_list.is_none()
        });
        let without = without.filter_map(|authority| {
            let fault = match (self.bad_list_of(authority), settings.revocation) {
                (Some(bad), _) => format!(
                    "its revocation list {} can't be used: {}: run fetch-crl",
                    bad.name, bad.reason
                ),
                (None, Revocation::Require) => WITHOUT_LIST.to_owned(),
                (None, Revocation::WhereListed) => return None,
            };
            Some(ListFault {
                authority: authority.subject.slash(),
                fault,
            })
        });
        self.stale(now).chain(without).collect()
    }

    fn bad_list_of(&self, authority: &AuthorityReport) -> Option<&BadFile> {
        let hash = |file: &str| file.split('.').next().map(str::to_owned);
        self.bad_files.iter().find(|bad| {
            let of = hash(&bad.name);
            let kind = bad.name.split_once('.').map(|(_, kind)| kind);
            kind.is_some_and(|kind| kind.starts_with('r'))
                && authority.files.iter().any(|file| hash(file) == of)
        })
    }
}

impl AuthorityReport {
    /// What there is to say about an authority, and about the list in use that it has signed, if there is one.
    pub(super) fn of(authority: &Authority, list: Option<RevocationListReport>) -> Self {
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
            revocation_list: list,
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
                lacking.push(WITHOUT_LIST.to_owned());
            }
            Some(list) => lacking.extend(list.stale(now)),
            None => {}
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
