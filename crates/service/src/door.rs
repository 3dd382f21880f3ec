//! Who may come in: one verdict for each connection.

use std::fmt;
use std::sync::Arc;

use exoskel_identity::{
    CertificateDetails, Expected, IdentityError, PeerVerifier, Role, VerifiedIdentity, hex,
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// Judges chains for one server.
pub(crate) struct Door {
    verifier: Arc<dyn PeerVerifier>,
}

impl Door {
    pub(crate) fn new(verifier: Arc<dyn PeerVerifier>) -> Self {
        Self { verifier }
    }

    /// Judges a chain as it was presented, leaf first.
    pub(crate) fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, Refused> {
        // Any role: what the client may do is for the rules and for the service behind to say.
        let anybody = Expected {
            roles: &Role::ALL,
            name: None,
        };
        self.verifier
            .verify(chain, now, &anybody)
            .map_err(|error| Refused::identity(error, chain))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.verifier.generation()
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Door").finish_non_exhaustive()
    }
}

/// A client that may not come in.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The fault in its chain; none where the identity is good and the rules say no.
    pub(crate) error: Option<IdentityError>,
    pub(crate) reason: String,
    /// What the leaf calls itself. Nothing of it is proven.
    pub(crate) claimed: Option<String>,
    pub(crate) serials: Vec<String>,
}

impl Refused {
    fn identity(error: IdentityError, chain: &[CertificateDer<'_>]) -> Self {
        let mut serials = Vec::new();
        let mut claimed = None;
        for certificate in chain
            .iter()
            .take(exoskel_identity::limits::CHAIN_CERTIFICATES_MAX)
        {
            let Ok(details) = CertificateDetails::read(certificate) else {
                break;
            };
            claimed.get_or_insert_with(|| details.subject.as_str().to_owned());
            serials.push(hex(&details.serial));
        }
        Self {
            reason: error.to_string(),
            error: Some(error),
            claimed,
            serials,
        }
    }
}
