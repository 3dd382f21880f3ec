//! Who may come in: one verdict for each connection.

use std::fmt;
use std::sync::Arc;

use exoskel_identity::{
    CertificateDetails, DecisionCacheStatistics, IdentityError, VerifiedIdentity, hex,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::limits::CLAIMED_CERTIFICATES_MAX;
use crate::renewal::Renewable;
use crate::server::Settings;
use exoskel_trust::{Renewal, Rules};

/// The action that a connection as such asks for.
pub(crate) const CONNECT: &str = "connect";

/// Judges chains for one server.
pub(crate) struct Door {
    verifier: Arc<dyn Renewable>,
    rules: Option<Arc<Rules>>,
    server_certificates: bool,
}

impl Door {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            verifier: settings.verifier.clone(),
            rules: settings.rules.clone(),
            server_certificates: settings.server_certificates,
        }
    }

    /// Judges a chain as it was presented, leaf first, and asks the rules whether its owner may come in.
    pub(crate) fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, Box<Refused>> {
        let identity = self
            .verifier
            .judge(chain, now)
            .map_err(|error| Box::new(Refused::chain(error, chain)))?;
        if let Some(unfit) = identity
            .unfit_for_clients()
            .filter(|_| !self.server_certificates)
        {
            return Err(Box::new(Refused {
                reason: format!(
                    "{unfit}: expected the extended key usage clientAuth: ask the authority for it, or set trust.server_certificates"
                ),
                who: Who::Proven(identity),
            }));
        }
        if let Some(rules) = &self.rules {
            let decision = rules.current().decide(&identity, CONNECT);
            if !decision.allowed {
                return Err(Box::new(Refused {
                    reason: decision.reason,
                    who: Who::Proven(identity),
                }));
            }
        }
        Ok(identity)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.verifier.generation()
    }

    pub(crate) fn statistics(&self) -> Option<DecisionCacheStatistics> {
        self.verifier.statistics()
    }

    /// Reads trust data and rules again.
    pub(crate) fn renew(&self) -> Renewal {
        let mut renewal = self.verifier.renew();
        if let Some(rules) = self.renew_rules() {
            renewal.changed |= rules.changed;
            renewal.faults.extend(rules.faults);
        }
        renewal
    }

    /// Reads the rules again if they have changed; nothing where there are none.
    pub(crate) fn renew_rules(&self) -> Option<Renewal> {
        Some(self.rules.as_ref()?.renew())
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Door").finish_non_exhaustive()
    }
}

/// A client that may not come in.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) who: Who,
}

/// Whom a refusal concerns.
#[derive(Debug)]
pub(crate) enum Who {
    /// The identity is good, the rules say no.
    Proven(VerifiedIdentity),
    /// There is a fault in the chain. Nothing of what it says is proven.
    Claimed {
        error: IdentityError,
        subject: Option<String>,
        serials: Vec<String>,
    },
}

impl Refused {
    /// A client that shows no certificate at all.
    pub(crate) fn without_certificate() -> Self {
        Self::chain(IdentityError::NoCertificate, &[])
    }

    /// A client that shows somebody's chain and does not hold the leaf's key.
    pub(crate) fn without_key(identity: &VerifiedIdentity) -> Self {
        Self {
            reason: "the client did not prove that it holds the key of its certificate".to_owned(),
            ..Self::chain(IdentityError::NoCertificate, identity.chain())
        }
    }

    fn chain(error: IdentityError, chain: &[CertificateDer<'_>]) -> Self {
        let mut serials = Vec::new();
        let mut subject = None;
        for certificate in chain.iter().take(CLAIMED_CERTIFICATES_MAX) {
            let Ok(details) = CertificateDetails::read(certificate) else {
                break;
            };
            subject.get_or_insert_with(|| details.subject.unquoted());
            serials.push(hex(&details.serial));
        }
        Self {
            reason: error.to_string(),
            who: Who::Claimed {
                error,
                subject,
                serials,
            },
        }
    }
}
