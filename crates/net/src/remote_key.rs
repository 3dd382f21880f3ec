//! A key in another process, as the TLS engine signs with it.

use std::fmt;
use std::sync::Arc;

use exoskel_identity::RemoteKey;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// The schemes of TLS 1.3 that keys of ours sign by, in the order in which one key prefers them.
const SCHEMES: [SignatureScheme; 7] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
];

/// The schemes that a key of this process can sign by, as their numbers.
pub(crate) fn schemes_of(key: &dyn SigningKey) -> Vec<u16> {
    let known = SCHEMES.into_iter();
    let known = known.filter(|scheme| key.choose_scheme(&[*scheme]).is_some());
    known.map(u16::from).collect()
}

/// Signs by a key of this process.
///
/// # Errors
/// When it isn't a key for that scheme, or can't sign.
pub(crate) fn sign(key: &dyn SigningKey, scheme: u16, message: &[u8]) -> Result<Vec<u8>, String> {
    let scheme = SignatureScheme::from(scheme);
    let signer = key
        .choose_scheme(&[scheme])
        .ok_or_else(|| format!("the key doesn't sign by {scheme:?}"))?;
    signer.sign(message).map_err(|error| error.to_string())
}

/// What rustls asks in the place of a key.
pub(crate) struct SigningElsewhere(pub(crate) Arc<dyn RemoteKey>);

impl SigningKey for SigningElsewhere {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let known = self.0.schemes().iter();
        let mut known = known.map(|number| SignatureScheme::from(*number));
        let scheme = known.find(|scheme| offered.contains(scheme))?;
        Some(Box::new(ChosenScheme {
            key: self.0.clone(),
            scheme,
        }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        let first = self.0.schemes().first();
        match first.map(|number| SignatureScheme::from(*number)) {
            Some(SignatureScheme::ED25519) => SignatureAlgorithm::ED25519,
            Some(
                SignatureScheme::ECDSA_NISTP256_SHA256
                | SignatureScheme::ECDSA_NISTP384_SHA384
                | SignatureScheme::ECDSA_NISTP521_SHA512,
            ) => SignatureAlgorithm::ECDSA,
            _ => SignatureAlgorithm::RSA,
        }
    }
}

impl fmt::Debug for SigningElsewhere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SigningElsewhere")
            .finish_non_exhaustive()
    }
}

/// With the scheme that both ends know.
struct ChosenScheme {
    key: Arc<dyn RemoteKey>,
    scheme: SignatureScheme,
}

impl Signer for ChosenScheme {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signed = self.key.sign(self.scheme.into(), message);
        signed.map_err(Error::General)
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

impl fmt::Debug for ChosenScheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChosenScheme")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
