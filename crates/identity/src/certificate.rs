//! What a certificate states. Nothing here is proven: this is for messages, for lists, and for the checks that a
//! verifier makes once the signatures have been found good.

use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use x509_parser::certificate::X509CertificateParser;
use x509_parser::nom::Parser as _;

use crate::claim::ClaimError;
use crate::claim::Identity;
use crate::hex::hex;
use crate::malformed::Malformed;
use crate::peer_text::PeerText;
use crate::x509::{AlternativeName, Certificate, KeyUsage, Purposes};

/// What a certificate states about itself.
///
/// # Security
/// Anybody can write a certificate. Only [`PeerVerifier::verify`](crate::PeerVerifier::verify) proves one.
#[derive(Clone, Debug)]
pub struct CertificateDetails {
    /// The subject, for people.
    pub subject: PeerText,
    /// The issuer, for people.
    pub issuer: PeerText,
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
    /// Whether clients let a server show it: no extended key usage, or `serverAuth` among it (RFC 5280 section 4.2.1.12).
    pub is_for_servers: bool,
    /// The public key's bits, as they stand in the certificate.
    pub public_key: Vec<u8>,
    /// Whether any URI is of our scheme, well formed or not.
    pub(crate) states_anything: bool,
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
    pub(crate) purposes: Option<Purposes>,
}

impl Usage {
    /// Whether extended key usages are there that allow both ends of a connection.
    pub(crate) fn names_client_and_server(&self) -> bool {
        self.purposes == Some(Purposes::ALL)
    }

    /// Whether extended key usages are there that leave out an end of a connection.
    pub(crate) fn lacks_client_or_server(&self) -> bool {
        self.purposes.is_some_and(|found| found != Purposes::ALL)
    }
}

impl CertificateDetails {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Malformed`] when it is longer than
    /// [`CERTIFICATE_BYTES_MAX`](crate::limits::CERTIFICATE_BYTES_MAX), no X.509 certificate, followed by other bytes, or
    /// holds an extension twice, or one that is too long or malformed.
    pub fn read(certificate: &CertificateDer<'_>) -> Result<Self, Malformed> {
        Ok(Self::of(&Certificate::read(certificate)?))
    }

    /// What a certificate that was read already states.
    pub(crate) fn of(certificate: &Certificate) -> Self {
        let extensions = &certificate.extensions;
        let uris = extensions
            .alternative_names
            .iter()
            .flatten()
            .filter_map(|name| match name {
                AlternativeName::Uri(uri) => Some(uri.as_str()),
                _ => None,
            });
        Self {
            subject: certificate.subject.quoted(),
            issuer: certificate.issuer.quoted(),
            common_name: certificate.subject.common_name(),
            serial: certificate.serial().to_vec(),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
            is_authority: certificate.is_authority(),
            is_self_issued: certificate.is_self_issued(),
            states_anything: uris.clone().any(Identity::is_statement),
            claim: Identity::from_uris(uris),
            is_for_servers: certificate.purposes().server,
            public_key: certificate.key.bits().to_vec(),
            usage: Usage {
                signs_handshakes: certificate.allows(KeyUsage::DigitalSignature),
                signs_certificates: certificate.allows(KeyUsage::CertificateSigning),
                purposes: extensions.purposes,
            },
            serial_der: certificate.serial_der().to_vec(),
            subject_der: certificate.subject.as_der().to_vec(),
            issuer_der: certificate.issuer.as_der().to_vec(),
        }
    }

    /// The serial number in hexadecimal digits, as people and file names have it.
    pub fn serial_hex(&self) -> String {
        hex(&self.serial)
    }
}

/// The `SubjectPublicKeyInfo` of a certificate, for an engine that checks a signature over its handshake by it. Extensions,
/// which are most of a proxy, are not read.
///
/// # Errors
/// [`Malformed::NoCertificate`]
///
/// # Security
/// Whose key it is must be judged by a verifier.
pub fn public_key_info<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<SubjectPublicKeyInfoDer<'a>, Malformed> {
    let (_, parsed) = X509CertificateParser::new()
        .with_deep_parse_extensions(false)
        .parse(certificate.as_ref())
        .map_err(|_| Malformed::NoCertificate)?;
    Ok(SubjectPublicKeyInfoDer::from(
        parsed.tbs_certificate.subject_pki.raw,
    ))
}
