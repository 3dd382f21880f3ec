//! What a revocation list states.

use rustls_pki_types::{CertificateRevocationListDer, UnixTime};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::certificate::{unix_time, without_leading_zeros};
use crate::error::Malformed;
use crate::limits::REVOCATION_LIST_BYTES_MAX;
use crate::quote::Quoted;

/// What a signed revocation list states. Its signature is checked where it is used, not here.
#[derive(Clone, Debug)]
pub struct RevocationListDetails {
    /// Who issued it, for people.
    pub issuer: Quoted,
    /// Its number, which grows with each list of the issuer; 0 when it has none, at most
    /// [`u64::MAX`].
    pub number: u64,
    /// When it was made.
    pub this_update: UnixTime,
    /// When the next one is due. From then on it is stale.
    pub next_update: UnixTime,
    /// What it revokes.
    pub revoked: Vec<RevokedCertificate>,
    pub(crate) issuer_der: Vec<u8>,
}

/// One line of a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedCertificate {
    /// The certificate's serial number, big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// When it was revoked.
    pub time: UnixTime,
}

impl RevocationListDetails {
    /// Reads a revocation list.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than [`REVOCATION_LIST_BYTES_MAX`], no X.509 revocation list, without the time
    /// of the next one, or followed by other bytes.
    pub fn read(list: &CertificateRevocationListDer<'_>) -> Result<Self, Malformed> {
        if list.len() > REVOCATION_LIST_BYTES_MAX {
            return Err(Malformed::TooLong {
                what: "revocation list",
                got: list.len(),
                max: REVOCATION_LIST_BYTES_MAX,
            });
        }
        let (rest, parsed) =
            CertificateRevocationList::from_der(list).map_err(|_| Malformed::NoRevocationList)?;
        if !rest.is_empty() {
            return Err(Malformed::TrailingBytes {
                what: "revocation list",
                got: rest.len(),
            });
        }
        let revoked = parsed
            .iter_revoked_certificates()
            .map(|entry| RevokedCertificate {
                serial: without_leading_zeros(entry.raw_serial()).to_vec(),
                time: unix_time(entry.revocation_date),
            });
        Ok(Self {
            issuer: Quoted::new(&parsed.issuer().to_string()),
            number: parsed
                .crl_number()
                .map_or(0, |number| u64::try_from(number).unwrap_or(u64::MAX)),
            this_update: unix_time(parsed.last_update()),
            next_update: unix_time(parsed.next_update().ok_or(Malformed::NoNextUpdate)?),
            revoked: revoked.collect(),
            issuer_der: parsed.issuer().as_raw().to_vec(),
        })
    }

    /// Whether it revokes the certificate with this serial number (big-endian).
    pub fn revokes(&self, serial: &[u8]) -> bool {
        let serial = without_leading_zeros(serial);
        self.revoked.iter().any(|entry| entry.serial == serial)
    }
}
