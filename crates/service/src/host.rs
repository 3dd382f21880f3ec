//! The certificate and key that the service shows to its clients.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoskel_identity::{CertificateDetails, Date};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use zeroize::Zeroizing;

use crate::limits::CREDENTIAL_FILE_BYTES_MAX;
use crate::tls::provider;

/// Where a host certificate and its key are kept, most often `/etc/grid-security/hostcert.pem` and `hostkey.pem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCredential {
    /// The certificate, and after it the intermediate ones that clients may lack.
    pub certificate: PathBuf,
    /// Its key: PKCS#8, PKCS#1 or SEC 1, not encrypted, readable by its owner only.
    pub key: PathBuf,
}

impl HostCredential {
    /// Reads both files.
    ///
    /// # Errors
    /// [`HostCredentialError`] names the file and what its owner must do.
    pub(crate) fn load(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Arc<CertifiedKey>, HostCredentialError> {
        let certificates = read(&self.certificate, false)?;
        let chain = CertificateDer::pem_slice_iter(&certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| HostCredentialError::Pem {
                file: self.certificate.clone(),
                reason: error.to_string(),
            })?;
        if chain.is_empty() {
            return Err(HostCredentialError::NoCertificate {
                file: self.certificate.clone(),
            });
        }
        let text = read(&self.key, true)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|_| HostCredentialError::NoKey {
            file: self.key.clone(),
        })?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|error| {
            HostCredentialError::Mismatch {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                reason: error.to_string(),
            }
        })?;
        Ok(Arc::new(key))
    }

    /// Whether both files can be used, and what their owner should know about the certificate.
    ///
    /// # Errors
    /// [`HostCredentialError`] for what would keep a service from running.
    pub(crate) fn check(&self, now: UnixTime) -> Result<Vec<String>, HostCredentialError> {
        let key = self.load(&provider())?;
        let mut notes = Vec::new();
        if let Some(Ok(details)) = key.cert.first().map(CertificateDetails::read) {
            let file = self.certificate.display();
            if details.not_after <= now {
                let end = Date(details.not_after);
                notes.push(format!(
                    "host: {file} expired on {end}: renew it, clients will refuse it"
                ));
            }
            if !details.is_for_servers {
                notes.push(format!(
                    "host: {file} has an extended key usage without serverAuth: clients will refuse it, get one for servers"
                ));
            }
        }
        Ok(notes)
    }
}

/// Reads a file that is no longer than it may be. A secret one must belong to its owner alone.
pub(crate) fn read(path: &Path, secret: bool) -> Result<Zeroizing<Vec<u8>>, HostCredentialError> {
    let failed = |error: std::io::Error| HostCredentialError::File {
        file: path.to_owned(),
        reason: error.to_string(),
    };
    let file = File::open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if secret && facts.mode() & 0o077 != 0 {
        return Err(HostCredentialError::Exposed {
            file: path.to_owned(),
            mode: facts.mode() & 0o7777,
        });
    }
    let mut content = Zeroizing::new(Vec::with_capacity(
        usize::try_from(facts.len().min(CREDENTIAL_FILE_BYTES_MAX)).unwrap_or(0) + 1,
    ));
    file.take(CREDENTIAL_FILE_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > CREDENTIAL_FILE_BYTES_MAX {
        return Err(HostCredentialError::TooLong {
            file: path.to_owned(),
        });
    }
    Ok(content)
}

/// Why the service has nothing to show to its clients. Its administrator must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostCredentialError {
    /// The file can't be read.
    #[error("{} can't be read: {reason}", file.display())]
    File {
        /// Which one.
        file: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// More bytes than such a file has.
    #[error("{} has more than {CREDENTIAL_FILE_BYTES_MAX} bytes", file.display())]
    TooLong {
        /// Which one.
        file: PathBuf,
    },
    /// Others can read a secret.
    #[error(
        "{} holds a secret and has mode {mode:04o}, expected 0600 or 0400: run chmod 600 on it, and renew it if others could read it", file.display()
    )]
    Exposed {
        /// Which one.
        file: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The armour is broken.
    #[error("{} is not well-formed PEM: {reason}", file.display())]
    Pem {
        /// Which one.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// No certificate.
    #[error("{} holds no CERTIFICATE, expected the host's certificate first", file.display())]
    NoCertificate {
        /// Which one.
        file: PathBuf,
    },
    /// No key that can be used.
    #[error("{} holds no plain PRIVATE KEY (an encrypted one can't be used by a service)", file.display())]
    NoKey {
        /// Which one.
        file: PathBuf,
    },
    /// They don't belong together, or are of a kind that TLS doesn't use.
    #[error("{} and {} can't be used together: {reason}", certificate.display(), key.display())]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// What the TLS engine says.
        reason: String,
    },
}
