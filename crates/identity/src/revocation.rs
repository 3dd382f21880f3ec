//! What a revocation list states.

use rustls_pki_types::{CertificateRevocationListDer, UnixTime};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::certificate::{unix_time, without_leading_zeros};
use crate::distinguished_name::DistinguishedName;
use crate::error::Malformed;
use crate::limits::REVOCATION_LIST_BYTES_MAX;
use crate::quote::Quoted;
use crate::signature::{PublicKey, SignatureAlgorithm, SignatureFault};
use crate::x509::Signed;

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
        let parsed = parse(list)?;
        let revoked = parsed
            .iter_revoked_certificates()
            .map(|entry| RevokedCertificate {
                serial: without_leading_zeros(entry.raw_serial()).to_vec(),
                time: unix_time(entry.revocation_date),
            });
        Ok(Self {
            issuer: Quoted::new(&parsed.issuer().to_string()),
            number: number(&parsed),
            this_update: unix_time(parsed.last_update()),
            next_update: next_update(&parsed)?,
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

/// A complete revocation list of one issuer, made for lookups.
#[derive(Debug)]
pub(crate) struct RevocationList {
    pub(crate) issuer: DistinguishedName,
    pub(crate) number: u64,
    pub(crate) this_update: UnixTime,
    pub(crate) next_update: UnixTime,
    /// Sorted, without leading zeros.
    serials: Box<[Box<[u8]>]>,
    signed: Signed,
    der: CertificateRevocationListDer<'static>,
}

impl RevocationList {
    /// Reads a list that covers all certificates of its issuer.
    ///
    /// # Errors
    /// [`Malformed`] as [`RevocationListDetails::read`] has it, and for a list that covers only a part of its issuer's
    /// certificates, changes another list, or has a critical extension that isn't understood (RFC 5280 section 5.2):
    /// such a list can't say that a certificate is good.
    pub(crate) fn read(list: CertificateRevocationListDer<'static>) -> Result<Self, Malformed> {
        let parsed = parse(&list)?;
        refuse_partial(&parsed)?;
        if parsed.signature_algorithm != parsed.tbs_cert_list.signature {
            return Err(Malformed::TwoSignatureAlgorithms);
        }
        let mut serials: Vec<Box<[u8]>> = parsed
            .iter_revoked_certificates()
            .map(|entry| without_leading_zeros(entry.raw_serial()).into())
            .collect();
        serials.sort_unstable();
        Ok(Self {
            issuer: DistinguishedName::from_parsed(parsed.issuer())?,
            number: number(&parsed),
            this_update: unix_time(parsed.last_update()),
            next_update: next_update(&parsed)?,
            serials: serials.into_boxed_slice(),
            signed: Signed::read(&list).ok_or(Malformed::NoRevocationList)?,
            der: list,
        })
    }

    /// How many certificates it revokes.
    pub(crate) fn len(&self) -> usize {
        self.serials.len()
    }

    /// Whether it revokes the certificate with this serial number (without leading zeros).
    pub(crate) fn revokes(&self, serial: &[u8]) -> bool {
        self.serials
            .binary_search_by(|entry| (**entry).cmp(serial))
            .is_ok()
    }

    pub(crate) fn signature_algorithm(&self) -> SignatureAlgorithm {
        self.signed.algorithm
    }

    /// Checks that `key` signed it.
    pub(crate) fn verify_signature(&self, key: &PublicKey) -> Result<(), SignatureFault> {
        self.signed.verify(&self.der, key)
    }
}

fn parse<'a>(
    list: &'a CertificateRevocationListDer<'_>,
) -> Result<CertificateRevocationList<'a>, Malformed> {
    if list.len() > REVOCATION_LIST_BYTES_MAX {
        return Err(Malformed::TooLong {
            what: "revocation list",
            got: list.len(),
            max: REVOCATION_LIST_BYTES_MAX,
        });
    }
    let (rest, parsed) =
        CertificateRevocationList::from_der(list).map_err(|_| Malformed::NoRevocationList)?;
    if rest.is_empty() {
        Ok(parsed)
    } else {
        Err(Malformed::TrailingBytes {
            what: "revocation list",
            got: rest.len(),
        })
    }
}

fn number(parsed: &CertificateRevocationList<'_>) -> u64 {
    parsed
        .crl_number()
        .map_or(0, |number| u64::try_from(number).unwrap_or(u64::MAX))
}

fn next_update(parsed: &CertificateRevocationList<'_>) -> Result<UnixTime, Malformed> {
    parsed
        .next_update()
        .map(unix_time)
        .ok_or(Malformed::NoNextUpdate)
}

fn refuse_partial(parsed: &CertificateRevocationList<'_>) -> Result<(), Malformed> {
    /// `deltaCRLIndicator` and `issuingDistributionPoint` (RFC 5280 sections 5.2.4 and 5.2.5)
    const PARTIAL: [&[u8]; 2] = [&[0x55, 0x1d, 27], &[0x55, 0x1d, 28]];
    /// `authorityKeyIdentifier` and `cRLNumber`
    const KNOWN: [&[u8]; 2] = [&[0x55, 0x1d, 35], &[0x55, 0x1d, 20]];
    /// `reasonCode` and `invalidityDate`
    const KNOWN_OF_ENTRIES: [&[u8]; 2] = [&[0x55, 0x1d, 21], &[0x55, 0x1d, 24]];

    let unusable = |reason: String| Err(Malformed::Unusable { reason });
    for extension in parsed.extensions() {
        let oid = extension.oid.as_bytes();
        if PARTIAL.contains(&oid) {
            return unusable(
                "it covers only a part of its issuer's certificates, expected a complete list"
                    .to_owned(),
            );
        }
        if extension.critical && !KNOWN.contains(&oid) {
            return unusable(format!("unknown critical extension {}", extension.oid));
        }
    }
    for entry in parsed.iter_revoked_certificates() {
        for extension in entry.extensions() {
            if extension.critical && !KNOWN_OF_ENTRIES.contains(&extension.oid.as_bytes()) {
                return unusable(format!(
                    "unknown critical extension {} of an entry",
                    extension.oid
                ));
            }
        }
    }
    Ok(())
}
