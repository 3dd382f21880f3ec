//! What a certificate states. Nothing here is proven: this is for messages, for lists, and for the checks that a
//! verifier makes once the signatures have been found good.

use std::borrow::Cow;
use std::fmt;

use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use crate::claim::Identity;
use crate::error::{ClaimError, Malformed};
use crate::limits::CERTIFICATE_BYTES_MAX;
use crate::quote::Quoted;

/// What a certificate states about itself.
///
/// # Security
/// Anybody can write a certificate. Only [`PeerVerifier::verify`](crate::PeerVerifier::verify) proves one.
#[derive(Clone, Debug)]
pub struct CertificateDetails {
    /// The subject, for people.
    pub subject: Quoted,
    /// The issuer, for people.
    pub issuer: Quoted,
    /// The common name in the subject, if there is one.
    pub common_name: Option<String>,
    /// The serial number, big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// From when on it is valid.
    pub not_before: UnixTime,
    /// Until when it is valid.
    pub not_after: UnixTime,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
    /// Whether issuer and subject are the same, as in the certificate of a root.
    pub is_self_issued: bool,
    /// The role and the name that its URIs state, or why they state none.
    pub claim: Result<Identity, ClaimError>,
    /// The public key's bits, as they stand in the certificate.
    pub public_key: Vec<u8>,
    pub(crate) usage: Usage,
    /// The serial number as it is encoded, which is how a revocation list is searched.
    pub(crate) serial_der: Vec<u8>,
    pub(crate) subject_der: Vec<u8>,
    pub(crate) issuer_der: Vec<u8>,
}

/// What the key may be used for. An absent extension allows everything, as RFC 5280 has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) signs_handshakes: bool,
    pub(crate) signs_certificates: bool,
    pub(crate) names_client_and_server: bool,
}

impl CertificateDetails {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than [`CERTIFICATE_BYTES_MAX`], no X.509 certificate, followed by other bytes, or
    /// holds one of the extensions that we read twice.
    pub fn read(certificate: &CertificateDer<'_>) -> Result<Self, Malformed> {
        if certificate.len() > CERTIFICATE_BYTES_MAX {
            return Err(Malformed::TooLong {
                what: "certificate",
                got: certificate.len(),
                max: CERTIFICATE_BYTES_MAX,
            });
        }
        let (rest, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| Malformed::NoCertificate)?;
        if !rest.is_empty() {
            return Err(Malformed::TrailingBytes {
                what: "certificate",
                got: rest.len(),
            });
        }
        let extension = |_: X509Error| Malformed::BadExtension;
        let is_authority = parsed
            .basic_constraints()
            .map_err(extension)?
            .is_some_and(|found| found.value.ca);
        Ok(Self {
            subject: Quoted::new(&parsed.subject().to_string()),
            issuer: Quoted::new(&parsed.issuer().to_string()),
            common_name: parsed
                .subject()
                .iter_common_name()
                .find_map(|name| name.as_str().ok())
                .map(str::to_owned),
            serial: without_leading_zeros(parsed.raw_serial()).to_vec(),
            not_before: unix_time(parsed.validity().not_before),
            not_after: unix_time(parsed.validity().not_after),
            is_authority,
            is_self_issued: parsed.subject().as_raw() == parsed.issuer().as_raw(),
            claim: claim(&parsed)?,
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            usage: usage(&parsed)?,
            serial_der: parsed.raw_serial().to_vec(),
            subject_der: parsed.subject().as_raw().to_vec(),
            issuer_der: parsed.issuer().as_raw().to_vec(),
        })
    }

    /// The serial number in hexadecimal digits, as people and file names have it.
    pub fn serial_hex(&self) -> String {
        hex(&self.serial)
    }
}

fn claim(parsed: &X509Certificate<'_>) -> Result<Result<Identity, ClaimError>, Malformed> {
    let names = parsed
        .subject_alternative_name()
        .map_err(|_| Malformed::BadExtension)?;
    let uris = names
        .iter()
        .flat_map(|found| &found.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    Ok(Identity::from_uris(uris))
}

fn usage(parsed: &X509Certificate<'_>) -> Result<Usage, Malformed> {
    let key = parsed.key_usage().map_err(|_| Malformed::BadExtension)?;
    let purposes = parsed
        .extended_key_usage()
        .map_err(|_| Malformed::BadExtension)?;
    Ok(Usage {
        signs_handshakes: key
            .as_ref()
            .is_none_or(|found| found.value.digital_signature()),
        signs_certificates: key.as_ref().is_none_or(|found| found.value.key_cert_sign()),
        names_client_and_server: purposes
            .is_some_and(|found| found.value.client_auth && found.value.server_auth),
    })
}

/// A certificate in a message: where it stands in the chain and what it calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhichCertificate {
    /// 0 is the leaf.
    pub position: usize,
    /// What it calls itself.
    pub subject: Quoted,
}

impl fmt::Display for WhichCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind: Cow<'_, str> = match self.position {
            0 => "the leaf certificate".into(),
            position => format!("intermediate certificate {position}").into(),
        };
        write!(formatter, "{kind} {}", self.subject)
    }
}

/// A time in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(pub UnixTime);

impl fmt::Display for Date {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0.as_secs()).ok();
        match seconds.and_then(|seconds| ASN1Time::from_timestamp(seconds).ok()) {
            Some(time) => {
                let time = time.to_datetime();
                let (year, month, day) = time.to_calendar_date();
                let (hour, minute, second) = time.to_hms();
                let month = u8::from(month);
                write!(
                    formatter,
                    "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
                )
            }
            None => write!(formatter, "{} s after 1970", self.0.as_secs()),
        }
    }
}

pub(crate) fn unix_time(time: ASN1Time) -> UnixTime {
    // Nothing valid ends before 1970; a time before it counts as 1970 and so as past.
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        u64::try_from(time.timestamp()).unwrap_or(0),
    ))
}

pub(crate) fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// Bytes as hexadecimal digits in small letters.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing into a string does not fail");
            text
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_written_for_people() {
        let date =
            |seconds| Date(UnixTime::since_unix_epoch(Duration::from_secs(seconds))).to_string();
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(date(u64::MAX), "18446744073709551615 s after 1970");
    }

    #[test]
    fn serials_have_one_form() {
        assert_eq!(without_leading_zeros(&[0, 0, 1, 0]), [1, 0]);
        assert_eq!(without_leading_zeros(&[0, 0]), []);
        assert_eq!(hex(&[0, 0xab, 0x10]), "00ab10");
    }
}
