//! Verifiers whose trust data can be read again.

use std::collections::BTreeSet;

use exoskel_identity::{
    DecisionCacheStatistics, Expected, IdentityError, ListFault, PeerVerifier, Role,
    VerifiedIdentity,
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

    /// When the lists of authorities were made and are due, for metrics.
    fn revocation_lists(&self) -> Vec<RevocationListDates> {
        Vec::new()
    }

    /// The lists for whose sake everybody whom they cover is refused at that time.
    fn list_faults(&self, now: UnixTime) -> Vec<ListFault> {
        let _ = now;
        Vec::new()
    }

    /// The virtual organisations whose attributes count; nothing where nobody can tell.
    fn organisations(&self) -> Option<BTreeSet<String>> {
        None
    }

    /// Whether somebody may have a distinguished name that a pattern of rules means.
    fn may_sign_some(&self, pattern: &str) -> bool {
        let _ = pattern;
        true
    }

    /// What was remembered, for metrics; nothing where nothing is.
    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        None
    }
}

/// When the revocation list of an authority was made, and when the next one is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationListDates {
    /// The authority's subject in slash form.
    pub authority: String,
    /// When the list was made.
    pub this_update: UnixTime,
    /// When the next one is due.
    pub next_update: UnixTime,
}

impl Renewable for Trust {
    fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        Self::judge(self, chain, now)
    }

    fn list_faults(&self, now: UnixTime) -> Vec<ListFault> {
        Self::list_faults(self, now)
    }

    fn organisations(&self) -> Option<BTreeSet<String>> {
        Some(self.report().organisations.clone())
    }

    fn may_sign_some(&self, pattern: &str) -> bool {
        Self::may_sign_some(self, pattern)
    }

    fn statistics(&self) -> Option<DecisionCacheStatistics> {
        Some(Self::statistics(self))
    }

    fn revocation_lists(&self) -> Vec<RevocationListDates> {
        let report = self.report();
        let dates = report.authorities.iter().filter_map(|authority| {
            let list = authority.revocation_list.as_ref()?;
            Some(RevocationListDates {
                authority: authority.subject.slash(),
                this_update: list.this_update,
                next_update: list.next_update,
            })
        });
        dates.collect()
    }

    fn renew(&self) -> Renewal {
        self.reload()
    }
}
