//! A certificate, read once and owned: the only reader of certificates in this crate.
//!
//! What stands here is what the certificate says. Whether any of it is true is judged in [`crate::grid`] and
//! [`crate::private_authority`].

use std::ops::Range;
use std::sync::OnceLock;

use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::{X509Certificate, X509CertificateParser};
use x509_parser::nom::Parser as _;
use x509_parser::x509::X509Version;

use crate::date::unix_time;
use crate::der;
use crate::der::without_leading_zeros;
use crate::distinguished_name::DistinguishedName;
use crate::limits::CERTIFICATE_BYTES_MAX;
use crate::malformed::Malformed;
use crate::signature::{self, DetachedSignature, PublicKey, SignatureAlgorithm, SignatureFault};

mod alternative_name;
mod extensions;
mod name_constraints;
mod proxy_information;

pub(crate) use alternative_name::AlternativeName;
pub use extensions::Purposes;
pub(crate) use extensions::{Extensions, KeyUsage, repeated};
pub(crate) use name_constraints::NameConstraints;
pub use proxy_information::PolicyLanguage;
pub(crate) use proxy_information::ProxyInformation;

/// A parsed certificate that owns its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    pub(crate) der: CertificateDer<'static>,
    /// X.509 version 3; older ones can't have extensions.
    pub(crate) is_version_3: bool,
    pub(crate) subject: DistinguishedName,
    pub(crate) issuer: DistinguishedName,
    pub(crate) not_before: UnixTime,
    pub(crate) not_after: UnixTime,
    pub(crate) key: PublicKey,
    pub(crate) extensions: Extensions,
    pub(crate) signed: Signed,
    serial: Range<usize>,
    /// Whether it was signed with its own key, once that was asked: for each generation of a trust directory it is asked thrice.
    self_signature: OnceLock<Result<(), SignatureFault>>,
}

/// The parts of something signed: a certificate, a revocation list or an attribute certificate.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    pub(crate) algorithm: SignatureAlgorithm,
    message: Range<usize>,
    signature: Range<usize>,
}

impl Signed {
    /// Finds the parts of `SEQUENCE { message, AlgorithmIdentifier, BIT STRING }` in DER.
    ///
    /// All but the message is outside of what is signed. Other spellings of it than DER are refused here, so that nobody can
    /// give something signed a second form, with another fingerprint.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (whole, []) = der::value(der, der::SEQUENCE)? else {
            return None;
        };
        let (_, rest) = der::value(whole, der::SEQUENCE)?;
        let message = &whole[..whole.len() - rest.len()];
        let (algorithm, rest) = der::value(rest, der::SEQUENCE)?;
        let (signature, []) = der::whole_bits(rest)? else {
            return None;
        };
        Some(Self {
            algorithm: SignatureAlgorithm::read(algorithm),
            message: der::range_in(der, message),
            signature: der::range_in(der, signature),
        })
    }

    /// Checks that `key` signed this part of `der`.
    pub(crate) fn verify(&self, der: &[u8], key: &PublicKey) -> Result<(), SignatureFault> {
        signature::verify(
            key,
            self.algorithm,
            &der[self.message.clone()],
            &der[self.signature.clone()],
        )
    }

    /// What is needed to check the signature later, without `der`.
    pub(crate) fn detach(&self, der: &[u8]) -> DetachedSignature {
        DetachedSignature::new(
            self.algorithm,
            &der[self.message.clone()],
            &der[self.signature.clone()],
        )
    }

    /// As [`verify`](Self::verify); for a trust anchor's signature over itself only.
    fn verify_even_if_weak(&self, der: &[u8], key: &PublicKey) -> Result<(), SignatureFault> {
        signature::verify_even_if_weak(
            key,
            self.algorithm,
            &der[self.message.clone()],
            &der[self.signature.clone()],
        )
    }
}

impl Certificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than [`CERTIFICATE_BYTES_MAX`], no X.509 certificate, followed by other bytes, not DER,
    /// signed by another algorithm than it says inside (RFC 5280 section 4.1.1.2), or holds an extension that is
    /// repeated, too long, or malformed where this crate reads it.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self, Malformed> {
        if certificate.len() > CERTIFICATE_BYTES_MAX {
            return Err(Malformed::TooLong {
                what: "certificate",
                got: certificate.len(),
                max: CERTIFICATE_BYTES_MAX,
            });
        }
        let (rest, parsed) = X509CertificateParser::new()
            .with_deep_parse_extensions(false)
            .parse(certificate)
            .map_err(|_| Malformed::NoCertificate)?;
        if !rest.is_empty() {
            return Err(Malformed::TrailingBytes {
                what: "certificate",
                got: rest.len(),
            });
        }
        der::check(certificate, "certificate")?;
        if parsed.signature_algorithm != parsed.tbs_certificate.signature {
            return Err(Malformed::TwoSignatureAlgorithms);
        }
        Self::take(certificate, &parsed)
    }

    /// The subject of a certificate that need not be one that [`read`](Self::read) takes, for messages.
    pub(crate) fn read_subject(certificate: &CertificateDer<'_>) -> Option<DistinguishedName> {
        if certificate.len() > CERTIFICATE_BYTES_MAX {
            return None;
        }
        let (_, parsed) = X509CertificateParser::new()
            .with_deep_parse_extensions(false)
            .parse(certificate)
            .ok()?;
        DistinguishedName::from_parsed(parsed.subject()).ok()
    }

    fn take(der: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> Result<Self, Malformed> {
        let is_version_3 = parsed.version() == X509Version::V3;
        if !is_version_3 && !parsed.extensions().is_empty() {
            return Err(Malformed::BadExtension);
        }
        Ok(Self {
            is_version_3,
            subject: DistinguishedName::from_parsed(parsed.subject())?,
            issuer: DistinguishedName::from_parsed(parsed.issuer())?,
            not_before: unix_time(parsed.validity().not_before),
            not_after: unix_time(parsed.validity().not_after),
            key: PublicKey::read(parsed.public_key())?,
            extensions: Extensions::read(der, parsed.extensions())?,
            signed: Signed::read(der).ok_or(Malformed::NoCertificate)?,
            serial: der::range_in(der, parsed.raw_serial()),
            der: der.clone().into_owned(),
            self_signature: OnceLock::new(),
        })
    }

    /// The serial number as it is encoded.
    pub(crate) fn serial_der(&self) -> &[u8] {
        &self.der[self.serial.clone()]
    }

    /// The serial number, big-endian, without leading zeros.
    pub(crate) fn serial(&self) -> &[u8] {
        without_leading_zeros(self.serial_der())
    }

    /// Whether issuer and subject are the same name.
    pub(crate) fn is_self_issued(&self) -> bool {
        self.subject.matches(&self.issuer)
    }

    /// Whether it may be an issuer of certificates: `basicConstraints` with `cA`.
    pub(crate) fn is_authority(&self) -> bool {
        self.extensions
            .basic_constraints
            .as_ref()
            .is_some_and(|found| found.is_authority)
    }

    /// The uses of its key. Without the extension every use is allowed (RFC 5280 section 4.2.1.3).
    pub(crate) fn allows(&self, use_of_key: KeyUsage) -> bool {
        self.extensions
            .key_usage
            .is_none_or(|usage| usage.contains(use_of_key))
    }

    /// What it allows by its extended key usages.
    pub(crate) fn purposes(&self) -> Purposes {
        self.extensions.purposes.unwrap_or(Purposes::ALL)
    }

    /// Whether the subject and the alternative names are all allowed by an authority's name constraints.
    pub(crate) fn has_names_within(&self, constraints: &NameConstraints) -> bool {
        let alternative = self.extensions.alternative_names.as_deref();
        constraints.allow(&self.subject, alternative)
    }

    /// Checks that `key` signed it.
    pub(crate) fn verify_signature(&self, key: &PublicKey) -> Result<(), SignatureFault> {
        self.signed.verify(&self.der, key)
    }

    /// Checks that a self-issued certificate was signed with its own key, in whatever way.
    pub(crate) fn verify_self_signature(&self) -> Result<(), SignatureFault> {
        *self
            .self_signature
            .get_or_init(|| self.signed.verify_even_if_weak(&self.der, &self.key))
    }

    /// The content of the VOMS extension, which holds attribute certificates.
    pub(crate) fn attribute_certificates(&self) -> Option<&[u8]> {
        self.extensions
            .attribute_certificates
            .clone()
            .map(|range| &self.der[range])
    }
}
