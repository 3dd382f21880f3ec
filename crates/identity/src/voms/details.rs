//! What an attribute certificate states. Nothing here is proven: this is for people who look at a proxy.

use rustls_pki_types::{CertificateDer, UnixTime};

use super::attribute_certificate::{AttributeCertificate, read_list};
use super::attributes::{GenericAttribute, name};
use super::error::AttributeProblem;
use super::fqan::Fqan;
use super::policy_authority::PolicyAuthority;
use crate::der::without_leading_zeros;
use crate::distinguished_name::DistinguishedName;
use crate::malformed::Malformed;
use crate::x509::Certificate;

/// What an attribute certificate states about itself.
///
/// # Security
/// Anybody can write one. Only those that [`VerifiedIdentity::attributes`](crate::VerifiedIdentity::attributes) lists
/// were found good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeCertificateDetails {
    /// The virtual organisation.
    pub vo: String,
    /// The host name of its server.
    pub server: String,
    /// The attributes in their order.
    pub fqans: Vec<Fqan>,
    /// Attributes with values.
    pub generic: Vec<GenericAttribute>,
    /// Who says to have signed it.
    pub issuer: DistinguishedName,
    /// The serial number, big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// From when on it is valid.
    pub not_before: UnixTime,
    /// Until when it is valid.
    pub not_after: UnixTime,
    /// The servers for which it is meant; nothing, when it is for all.
    pub targets: Option<Vec<String>>,
}

impl AttributeCertificateDetails {
    /// Reads the attribute certificates that a proxy certificate carries, in their order; there are none in most
    /// certificates. One that can't be read says why.
    ///
    /// # Errors
    /// [`Malformed`] when the certificate, or the list in it, can't be read.
    pub fn of_certificate(
        certificate: &CertificateDer<'_>,
    ) -> Result<Vec<Result<Self, AttributeProblem>>, Malformed> {
        let certificate = Certificate::read(certificate)?;
        let Some(extension) = certificate.attribute_certificates() else {
            return Ok(Vec::new());
        };
        let list = read_list(extension).map_err(|_| Malformed::BadExtension)?;
        Ok(list.into_iter().map(Self::read).collect())
    }

    /// Reads one attribute certificate in DER.
    ///
    /// # Errors
    /// [`AttributeProblem`] names the field that can't be read, the name that is none, or the critical extension that
    /// isn't known.
    pub fn read(der: &[u8]) -> Result<Self, AttributeProblem> {
        let read = AttributeCertificate::read(der)?;
        let authority = PolicyAuthority::parse(read.policy_authority)?;
        let fqans = read.fqans.iter().map(|text| text.parse());
        let targets = read.extensions.targets.as_ref();
        Ok(Self {
            vo: authority.vo.to_owned(),
            server: authority.host.to_owned(),
            fqans: fqans.collect::<Result<_, _>>()?,
            issuer: name(read.issuer, "issuer")?,
            serial: without_leading_zeros(read.serial).to_vec(),
            not_before: read.not_before,
            not_after: read.not_after,
            targets: targets.map(|names| names.iter().map(ToString::to_string).collect()),
            generic: read.extensions.generic,
        })
    }
}
