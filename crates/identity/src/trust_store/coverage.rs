//! Revocation lists, and whose certificates they cover.

use std::sync::OnceLock;

use crate::revocation::RevocationList;
use crate::signature::{PublicKey, SignatureFault};

/// A revocation list and the key that signed it.
///
/// Authorities of one name can have several keys. A list covers the certificates that the same key signed.
pub(crate) struct Coverage {
    pub(crate) list: RevocationList,
    /// Set when the store is loaded, if the authority is in the directory. Never by what a peer presents: another key can be made
    /// that fits a signature, and must not stand in the place of the right one.
    signer: OnceLock<PublicKey>,
}

impl Coverage {
    pub(super) fn new(list: RevocationList) -> Self {
        Self {
            list,
            signer: OnceLock::new(),
        }
    }

    /// Whether that key signed the list, where its signer is in the directory. Else only the signature can tell.
    pub(crate) fn is_known_to_be_of(&self, key: &PublicKey) -> Option<bool> {
        self.signer.get().map(|signer| signer == key)
    }

    /// Checks that an authority of the directory signed the list, once.
    pub(super) fn signed_by(&self, key: &PublicKey) -> Result<(), SignatureFault> {
        match self.is_known_to_be_of(key) {
            Some(true) => return Ok(()),
            Some(false) => return Err(SignatureFault::Wrong),
            None => self.list.verify_signature(key)?,
        }
        // Two loads can get here with the same verdict; the first one is kept.
        let _ = self.signer.set(key.clone());
        Ok(())
    }
}
