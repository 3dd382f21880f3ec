//! The verifier for grids: trust directories, proxy certificates, revocation, name spaces.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::claim::Identity;
use crate::error::IdentityError;
use crate::trust_store::TrustStore;
use crate::verified::{Expected, PeerVerifier, VerifiedIdentity};
use crate::voms;
use crate::x509::Certificate;

mod authorities;
mod details;
pub(crate) mod error;
pub(crate) mod naming;
pub(crate) mod path;
mod presented;
pub(crate) mod proxy;
mod settings;

pub use details::{CertificateKind, ChainCertificate, ChainDetails};
pub use error::{NameSpaceRule, ProxyFault};
pub(crate) use path::{JudgedPath, judge, judge_signer};
pub use proxy::{Proxy, ProxyKind};
pub use settings::{GridSettings, NameSpaces, Revocation, SettingsError};

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
    /// the slash form of its subject as name. [`PeerVerifier::verify`] finds other roles that they may have, where those are expected.
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

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::fixture;
