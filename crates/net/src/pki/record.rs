//! What an authority has issued, one certificate in a file each.

use std::collections::HashMap;
use std::path::Path;

use exoskel_identity::limits::CREDENTIAL_BYTES_MAX;
use exoskel_identity::{CertificateDetails, Identity, Malformed, RevokedCertificate};
use exoskel_trust::read_public;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::PkiError;
use super::file::file_error;

/// One certificate that the authority has issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// Its serial number in hexadecimal digits.
    pub serial: String,
    /// Whom it names.
    pub identity: Identity,
    /// From when on it is valid.
    pub not_before: UnixTime,
    /// Until when it is valid.
    pub not_after: UnixTime,
    /// When it was revoked, if it was.
    pub revoked: Option<UnixTime>,
}

/// What stands in one file of `issued`.
pub(super) struct Recorded {
    pub(super) issued: IssuedCertificate,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) serial: Vec<u8>,
}

/// Reads every certificate in `folder` and notes which of them are among the revoked.
pub(super) fn recorded(
    folder: &Path,
    revoked: Vec<RevokedCertificate>,
) -> Result<Vec<Recorded>, PkiError> {
    let revoked: HashMap<_, _> = revoked
        .into_iter()
        .map(|one| (one.serial, one.time))
        .collect();
    let failed = |source| file_error("list", folder, source);
    let mut recorded = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // A write that was interrupted leaves a hidden file, which counts for nothing.
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden || path.extension().is_none_or(|extension| extension != "pem") {
            continue;
        }
        let (certificate, details) = read_certificate(&path)?;
        let serial_hex = details.serial_hex();
        let CertificateDetails {
            serial,
            not_before,
            not_after,
            claim,
            ..
        } = details;
        let revoked = revoked.get(&serial).copied();
        let issued = IssuedCertificate {
            serial: serial_hex,
            identity: claim?,
            not_before,
            not_after,
            revoked,
        };
        recorded.push(Recorded {
            issued,
            certificate,
            serial,
        });
    }
    Ok(recorded)
}

/// Reads one certificate in PEM.
pub(super) fn read_certificate(
    path: &Path,
) -> Result<(CertificateDer<'static>, CertificateDetails), PkiError> {
    let text = read_public(path, CREDENTIAL_BYTES_MAX)?;
    let damaged = |reason| PkiError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let certificate =
        CertificateDer::from_pem_slice(&text).map_err(|_| damaged(Malformed::NoCertificate))?;
    let details = CertificateDetails::read(&certificate).map_err(damaged)?;
    Ok((certificate, details))
}
