//! The verifier for grids: trust directories, proxy certificates, revocation, name spaces.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, UnixTime};
use thiserror::Error;

use crate::claim::{Identity, Role};
use crate::error::IdentityError;
use crate::limits::{
    ATTRIBUTE_TARGETS_MAX, CLOCK_SKEW_SECONDS_MAX, POLICY_LANGUAGES_MAX, PROXY_DEPTH_MAX,
};
use crate::peer_text::PeerText;
use crate::trust_store::TrustStore;
use crate::verified::{Expected, PeerVerifier, VerifiedIdentity};
use crate::voms;
use crate::x509::Certificate;

mod authorities;
mod details;
mod naming;
mod path;
mod proxy;

pub use details::{CertificateKind, ChainCertificate, ChainDetails};
pub(crate) use path::{JudgedPath, judge, judge_signer};
pub use proxy::{Proxy, ProxyFault, ProxyKind};

/// What to do about a certificate whose issuer has no revocation list in the trust directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Revocation {
    /// Refuse it: nobody knows whether it is revoked.
    #[default]
    Require,
    /// Accept it. A list that is there counts as ever, and refuses everybody when it is stale, or when it can't be read and
    /// nothing older is known.
    WhereListed,
}

/// What to do about an authority for which neither a `signing_policy` nor a `namespaces` file says what it may sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NameSpaces {
    /// Refuse what it signed. An intermediate without a file of its own is bound by its issuer's.
    #[default]
    Require,
    /// Let it sign any name. One whose only file can't be read may sign none.
    WherePresent,
}

/// By which rules a [`GridVerifier`] judges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridSettings {
    /// About missing revocation lists.
    pub revocation: Revocation,
    /// About missing `signing_policy` and `namespaces` files.
    pub name_spaces: NameSpaces,
    /// Whether proxies of Globus Toolkit 2 are accepted (`CN=proxy`, no extension). They say nothing about path lengths.
    pub legacy_proxies: bool,
    /// Whether proxies of the draft before RFC 3820 (Globus Toolkit 3) are accepted.
    pub draft_proxies: bool,
    /// How many proxies may stand in a chain; 0 refuses all of them.
    pub proxy_depth_max: usize,
    /// Policy languages of proxies that are accepted besides the known ones, as dotted object identifiers.
    ///
    /// # Security
    /// Such a policy takes rights away in a way that nobody here reads. Allowing its language means that the proxy counts
    /// as a full one.
    pub policy_languages: Vec<String>,
    /// The names of this host that attribute certificates with targets may mean.
    pub attribute_targets: Vec<String>,
    /// By how much other hosts' clocks may be ahead, in seconds: something may have begun that much later than now. Ends
    /// are never stretched.
    pub clock_skew_seconds: u64,
}

impl Default for GridSettings {
    fn default() -> Self {
        Self {
            revocation: Revocation::Require,
            name_spaces: NameSpaces::Require,
            legacy_proxies: false,
            draft_proxies: false,
            proxy_depth_max: 10,
            policy_languages: Vec::new(),
            attribute_targets: Vec::new(),
            clock_skew_seconds: 60,
        }
    }
}

/// A setting that can't be used. Whoever wrote the configuration must act.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A number beyond its limit.
    #[error("got {got} for {setting}, expected at most {max}")]
    TooLarge {
        /// The field.
        setting: &'static str,
        /// Its value.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// A policy language that is no object identifier.
    #[error(
        "got the policy language {got}, expected a dotted object identifier such as \"1.3.6.1.5.5.7.21.1\""
    )]
    BadLanguage {
        /// What stood there.
        got: PeerText,
    },
}

impl GridSettings {
    /// Whether every value is within its limits.
    ///
    /// # Errors
    /// [`SettingsError`] names the field, its value and the limit.
    pub fn check(&self) -> Result<(), SettingsError> {
        let counts = [
            (
                "proxy_depth_max",
                self.proxy_depth_max as u64,
                PROXY_DEPTH_MAX as u64,
            ),
            (
                "clock_skew_seconds",
                self.clock_skew_seconds,
                CLOCK_SKEW_SECONDS_MAX,
            ),
            (
                "policy_languages",
                self.policy_languages.len() as u64,
                POLICY_LANGUAGES_MAX as u64,
            ),
            (
                "attribute_targets",
                self.attribute_targets.len() as u64,
                ATTRIBUTE_TARGETS_MAX as u64,
            ),
        ];
        for (setting, got, max) in counts {
            if got > max {
                return Err(SettingsError::TooLarge { setting, got, max });
            }
        }
        for language in &self.policy_languages {
            let is_number =
                |arc: &str| !arc.is_empty() && arc.bytes().all(|byte| byte.is_ascii_digit());
            if language.split('.').count() < 3 || !language.split('.').all(is_number) {
                return Err(SettingsError::BadLanguage {
                    got: PeerText::new(language),
                });
            }
        }
        Ok(())
    }
}

/// The [`PeerVerifier`] for certificates of a grid.
///
/// It is cheap to clone; all clones share one [`TrustStore`] and one set of settings, which never change. New trust data
/// make a new verifier.
#[derive(Clone, Debug)]
pub struct GridVerifier {
    store: Arc<TrustStore>,
    settings: Arc<GridSettings>,
    fingerprint: [u8; 32],
}

impl GridVerifier {
    /// Judges by this trust and these settings.
    ///
    /// # Errors
    /// [`SettingsError`] when a setting is beyond its limit.
    pub fn new(store: Arc<TrustStore>, settings: Arc<GridSettings>) -> Result<Self, SettingsError> {
        settings.check()?;
        let fingerprint = fingerprint(&store, &settings);
        Ok(Self {
            store,
            settings,
            fingerprint,
        })
    }

    /// Whom it trusts.
    pub fn store(&self) -> &Arc<TrustStore> {
        &self.store
    }

    /// Stands for all that a verdict depends on but the chain and the time.
    pub(crate) fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// By which rules it judges.
    pub fn settings(&self) -> &Arc<GridSettings> {
        &self.settings
    }

    /// Judges `chain` (leaf first, as presented) at the time `now`: RFC 5280 for the authorities and the end entity,
    /// RFC 3820 for proxies, RFC 5755 for attribute certificates of VOMS. An attribute certificate that breaks a rule is one
    /// of the [`attribute_faults`](VerifiedIdentity::attribute_faults) and changes nothing else.
    ///
    /// The role is [`Role::Worker`] for a host certificate (an end entity with DNS names; `serverAuth`, where it or an authority above it
    /// has extended key usages) and its name the first of these; everybody else, and every proxy, is a [`Role::Manager`] with
    /// the slash form of its subject as name.
    ///
    /// # Errors
    /// [`IdentityError`] names the certificate, the rule and what was expected.
    ///
    /// # Security
    /// As for [`PeerVerifier::verify`]: that the peer holds the leaf's key must be proven by the TLS engine.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        self.judge_as(chain, now, |names| names.identity())
    }

    fn judge_as(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        identify: impl FnOnce(&naming::Names) -> Result<Identity, IdentityError>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        let path = judge(&self.store, &self.settings, chain, now)?;
        let identity = identify(&naming::Names::of(&path))?;
        let attributes = voms::judge(&path, &self.store, &self.settings, now);
        Ok(VerifiedIdentity::of_grid(
            identity,
            path,
            attributes,
            self.store.generation(),
        ))
    }
}

impl PeerVerifier for GridVerifier {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        self.judge_as(chain, now, |names| {
            let identity = names.identity_for(expected)?;
            expected.check(&identity)?;
            Ok(identity)
        })
    }

    fn generation(&self) -> u64 {
        self.store.generation()
    }
}

/// Whom the chain of an own credential would be taken for, if it were found good.
pub(crate) fn claimed_identity(chain: &[Certificate]) -> Result<Identity, IdentityError> {
    let (subject, is_proxy) = path::claimed_subject(chain)?;
    let leaf = &chain[0];
    // What the authorities leave of it is for peers to find: an own credential need not hold them.
    naming::Names::of_leaf(leaf, subject, is_proxy, leaf.purposes()).identity()
}

fn fingerprint(store: &TrustStore, settings: &GridSettings) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&store.fingerprint());
    // Debug shows every field with its name, and quotes texts.
    context.update(format!("{settings:?}").as_bytes());
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(context.finish().as_ref());
    fingerprint
}

/// The roles that a host certificate may stand for.
const HOST_ROLES: [Role; 3] = [Role::Worker, Role::Gateway, Role::Agent];

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::fixture;
