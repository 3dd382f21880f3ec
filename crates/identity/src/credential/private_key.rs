//! Where the key of a credential is: in this process, or in another one that signs with it.

use std::sync::Arc;

use zeroize::Zeroizing;

/// A private key that another process holds. What signs with it here never has the key.
pub trait RemoteKey: Send + Sync {
    /// The signature schemes that it knows, as numbers of TLS (RFC 8446, section 4.2.3), the best first.
    fn schemes(&self) -> &[u16];

    /// Has a message signed.
    ///
    /// # Errors
    /// Why whoever holds the key hasn't signed, in words.
    fn sign(&self, scheme: u16, message: &[u8]) -> Result<Vec<u8>, String>;
}

/// The key of a credential's leaf.
#[derive(Clone)]
pub enum PrivateKey {
    /// The key itself, in PKCS#8. It is erased from memory when the last of its copies is dropped.
    Here(Arc<Zeroizing<Vec<u8>>>),
    /// Another process has it.
    Elsewhere(Arc<dyn RemoteKey>),
}
