//! Verifiers whose trust data can be read again.

use exoskel_identity::{
    DecisionCacheStatistics, Expected, IdentityError, PeerVerifier, Role, VerifiedIdentity,
};
use exoskel_trust::{Renewal, Trust};
use rustls_pki_types::{CertificateDer, UnixTime};

/// A verifier whose trust data can be read again while it judges.
pub trait Renewable: PeerVerifier {
    /// Reads the trust data again. Verdicts made meanwhile use the old data, those made afterwards the new. What can't
    /// be read keeps its last good state.
    ///
    /// It reads files and may take long: not for a thread that moves data.
    fn renew(&self) -> Renewal;

    /// Judges a client, whatever its role. An implementation may remember what it said before.
    ///
    /// # Errors
    /// As [`PeerVerifier::verify`].
    fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        // Any role: what the client may do is for the rules and for the service behind to say.
        let anybody = Expected {
            roles: &Role::ALL,
            name: None,
        };
        self.verify(chain, now, &anybody)
    }

    /// What was remembered, for metrics; nothing where nothing is.
    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        None
    }
}

impl Renewable for Trust {
    fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        Self::judge(self, chain, now)
    }

    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        Some(Self::statistics(self))
    }

    fn renew(&self) -> Renewal {
        self.reload()
    }
}
