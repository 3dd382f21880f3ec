//! The certificate and key that the service shows to its clients.

use std::path::PathBuf;
use std::sync::Arc;

use exoskel_identity::{CertificateDetails, Date};
use exoskel_trust::{FileError, read_private, read_public};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

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
        let certificates = read_public(&self.certificate, CREDENTIAL_FILE_BYTES_MAX)?;
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
        let text = read_private(&self.key, CREDENTIAL_FILE_BYTES_MAX)?;
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
            if let Some(problem) = out_of_date(&details, now) {
                let file = self.certificate.clone();
                return Err(HostCredentialError::OutOfDate { file, problem });
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

/// Why clients refuse a certificate at that time, and what its owner must do; nothing while it is in date.
pub(crate) fn out_of_date(details: &CertificateDetails, now: UnixTime) -> Option<String> {
    if details.not_after <= now {
        let end = Date(details.not_after);
        Some(format!("expired on {end}, so clients refuse it: renew it"))
    } else if now < details.not_before {
        let begin = Date(details.not_before);
        Some(format!(
            "is valid from {begin} on, now is {}, so clients refuse it: check this host's clock",
            Date(now)
        ))
    } else {
        None
    }
}

/// Why the service has nothing to show to its clients. Its administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum HostCredentialError {
    /// One of the files can't be read, or others can read the key.
    #[error(transparent)]
    File(#[from] FileError),
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
    /// A certificate that no client accepts now.
    #[error("{} {problem}", file.display())]
    OutOfDate {
        /// Which one.
        file: PathBuf,
        /// Since or until when.
        problem: String,
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
