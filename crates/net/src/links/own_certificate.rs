//! This node's own certificate when it has expired: peers then refuse it, in words that read as if something were wrong with them.

use exoskel_identity::{Date, IdentityError};
use exoskel_link::handshake::NodeConfig;
use rustls::pki_types::UnixTime;

use super::LinkShared;
use super::lock;
use super::troubles::TroubleSubject;
use crate::establish::unix_time;

/// What is to be said of a certificate of our own that has expired.
pub(super) fn expiry_of(terms: &NodeConfig) -> Option<String> {
    let now = UnixTime::since_unix_epoch(unix_time());
    let own = terms.credential.verify_own(&*terms.verifier, now);
    // Whatever else peers may have against it, only they know.
    let Err(IdentityError::Expired { not_after, .. }) = own else {
        return None;
    };
    let name = &terms.credential.identity().name;
    Some(format!(
        "this node's own certificate, of {name}, expired on {}: renew its file (exoskel pki renew), which is read within seconds",
        Date(not_after)
    ))
}

impl LinkShared {
    /// A session or a handshake has come to nothing: if our own certificate has expired, that is why, and its owner has to act.
    pub(super) fn look_at_own_certificate(&self) -> Option<String> {
        let expiry = expiry_of(&lock(&self.terms).clone());
        if let Some(text) = &expiry {
            self.has_trouble(TroubleSubject::Certificate, text.clone());
        }
        expiry
    }
}
