//! An authority that lives as long as the process that made it.

use std::fmt;

use exoskel_identity::{Credential, Identity, Role};
use rcgen::{CertifiedIssuer, KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, UnixTime};
use zeroize::Zeroizing;

use super::{PkiError, THROW_AWAY_VALIDITY, form};

/// Makes credentials for the processes that a manager starts on its own machine. Nobody else trusts it, and with the
/// manager its key is gone.
pub struct ThrowAwayAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    not_after: UnixTime,
}

impl ThrowAwayAuthority {
    /// Makes a fresh authority, valid for [`THROW_AWAY_VALIDITY`].
    ///
    /// # Errors
    /// [`PkiError`] when the clock is absurd or the library can't make a key.
    pub fn new(now: UnixTime) -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let parameters = form::root(
            "Exoskel throw-away authority",
            &key,
            now,
            THROW_AWAY_VALIDITY,
        )?;
        let issuer = CertifiedIssuer::self_signed(parameters, key)?;
        Ok(Self {
            issuer,
            not_after: form::later(now, THROW_AWAY_VALIDITY),
        })
    }

    /// Issues a credential that is valid as long as the authority.
    ///
    /// # Errors
    /// [`PkiError`] when the name can't stand in a certificate or the clock is absurd.
    pub fn issue(&self, role: Role, name: &str, now: UnixTime) -> Result<Credential, PkiError> {
        let key = KeyPair::generate()?;
        let leaf = self.sign(&Identity::new(role, name)?, &key, now)?;
        let key = Zeroizing::new(key.serialize_der());
        Ok(Credential::new(
            vec![leaf],
            key,
            vec![self.root().clone()],
            Vec::new(),
        )?)
    }

    /// The certificate of the authority itself.
    pub(super) fn root(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// Signs a certificate for somebody else's key, valid as long as the authority.
    pub(super) fn sign(
        &self,
        identity: &Identity,
        key: &impl PublicKeyData,
        now: UnixTime,
    ) -> Result<CertificateDer<'static>, PkiError> {
        let leaf = form::leaf(identity, now, self.not_after)?.signed_by(key, &self.issuer)?;
        Ok(leaf.der().clone())
    }
}

impl fmt::Debug for ThrowAwayAuthority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ThrowAwayAuthority")
            .finish_non_exhaustive()
    }
}
