//! Credentials and revocation lists in files.

use std::path::{Path, PathBuf};

use exoskel_identity::limits::CREDENTIAL_BYTES_MAX;
use exoskel_identity::{Credential, CredentialError, revocation_lists_from_pem};
use rustls_pki_types::CertificateRevocationListDer;
use zeroize::Zeroizing;

use crate::file::{FileError, read_private, read_public};

/// Why a file is no credential, or holds no revocation lists. No message holds key material.
#[derive(Debug, thiserror::Error)]
pub enum CredentialFileError {
    /// It can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It holds no certificate or no key at all.
    #[error(
        "{} is no credential, expected a file that \"exoskel pki issue\" wrote, or a certificate of a grid with its private key: {source}",
        path.display()
    )]
    NoCredential {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        source: Box<CredentialError>,
    },
    /// What it holds is not in order.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<CredentialError>,
    },
}

/// Reads a credential from a file.
///
/// # Errors
/// [`CredentialFileError`] when others can read the file, when it is no regular file, or when it holds no good credential.
pub fn read_credential(path: impl AsRef<Path>) -> Result<Credential, CredentialFileError> {
    let path = path.as_ref();
    let text = match read_private(path, CREDENTIAL_BYTES_MAX) {
        // A wrong file is no leak: nobody is to get a new key because of the mode of a text without one.
        Err(FileError::NotPrivate { path, mode }) => {
            let text = read_public(&path, CREDENTIAL_BYTES_MAX)?;
            if holds_key(&text) {
                return Err(FileError::NotPrivate { path, mode }.into());
            }
            text
        }
        other => other?,
    };
    Credential::from_pem(&text).map_err(|source| content(path, source))
}

/// Reads a credential whose key stands in a file of its own, as the host certificates of grids do.
///
/// # Errors
/// [`CredentialFileError`] when others can read the key, when either is no regular file, or when they are no good credential
/// together.
pub fn read_credential_and_key(
    certificate: impl AsRef<Path>,
    key: impl AsRef<Path>,
) -> Result<Credential, CredentialFileError> {
    let path = certificate.as_ref();
    let certificate = read_public(path, CREDENTIAL_BYTES_MAX)?;
    let key = read_private(key.as_ref(), CREDENTIAL_BYTES_MAX)?;
    // Room for both at once: a buffer that grows leaves copies of the key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(certificate.len() + 1 + key.len()));
    text.extend_from_slice(&certificate);
    text.push(b'\n');
    text.extend_from_slice(&key);
    Credential::from_pem(&text).map_err(|source| content(path, source))
}

/// Reads the revocation lists of a PEM file, such as an authority's `revoked.crl`. They are signed and no secret.
///
/// # Errors
/// [`CredentialFileError`] when the file can't be read or holds no list.
pub fn read_revocation_lists(
    path: impl AsRef<Path>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialFileError> {
    let path = path.as_ref();
    let text = read_public(path, CREDENTIAL_BYTES_MAX)?;
    revocation_lists_from_pem(&text).map_err(|source| content(path, source))
}

/// Whether a text has what stands around every kind of private key.
fn holds_key(text: &[u8]) -> bool {
    const LABEL: &[u8] = b"PRIVATE KEY-----";
    text.windows(LABEL.len()).any(|window| window == LABEL)
}

fn content(path: &Path, source: CredentialError) -> CredentialFileError {
    let (path, source) = (path.to_owned(), Box::new(source));
    match *source {
        CredentialError::NoCertificate | CredentialError::NoKey => {
            CredentialFileError::NoCredential { path, source }
        }
        _ => CredentialFileError::Content { path, source },
    }
}
