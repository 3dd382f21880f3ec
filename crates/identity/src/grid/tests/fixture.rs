//! A grid made for the purpose: an authority, its directory, a user, and proxies.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::error::IdentityError;
use crate::grid::{GridSettings, GridVerifier};
use crate::trust_store::{TrustFile, TrustReport, TrustStore};
use crate::verified::VerifiedIdentity;

pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const DAY: u64 = 86_400;

pub(crate) type Issuer = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn parameters(parts: &[(DnType, &str)], to: u64) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Grid");
    for (kind, part) in parts {
        name.push(kind.clone(), *part);
    }
    parameters.distinguished_name = name;
    parameters.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(NOW - DAY);
    parameters.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(to);
    parameters
}

pub(crate) fn authority(name: &str) -> Issuer {
    authority_with(name, KeyPair::generate().unwrap())
}

pub(crate) fn authority_with(name: &str, key: KeyPair) -> Issuer {
    CertifiedIssuer::self_signed(authority_parameters(name), key).unwrap()
}

/// An authority with these extended key usages.
pub(crate) fn authority_for(name: &str, uses: &[ExtendedKeyUsagePurpose]) -> Issuer {
    let mut parameters = authority_parameters(name);
    parameters.extended_key_usages = uses.to_vec();
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

fn authority_parameters(name: &str) -> CertificateParams {
    let mut parameters = parameters(&[(DnType::CommonName, name)], NOW + 1000 * DAY);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

pub(crate) fn user_parameters(name: &str) -> CertificateParams {
    let mut parameters = parameters(&[(DnType::OrganizationalUnitName, name)], NOW + 30 * DAY);
    parameters.serial_number = Some(SerialNumber::from_slice(&[0x00, 0x91, 0x02]));
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters
}

pub(crate) fn host_parameters(names: &[&str]) -> CertificateParams {
    let mut parameters = user_parameters("host");
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.subject_alt_names = names
        .iter()
        .map(|name| SanType::DnsName((*name).try_into().unwrap()))
        .collect();
    parameters
}

pub(crate) fn issue(parameters: CertificateParams, issuer: &Issuer) -> Issuer {
    CertifiedIssuer::signed_by(parameters, KeyPair::generate().unwrap(), issuer).unwrap()
}

/// The parameters of a proxy of `user` with so many common names.
pub(crate) fn proxy_parameters(user: &str, names: &[&str]) -> CertificateParams {
    // The library keeps one value of each type, but takes the two ways to write this one for two types.
    let kinds = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])];
    let mut parts = vec![(DnType::OrganizationalUnitName, user)];
    parts.extend(kinds.into_iter().zip(names.iter().copied()));
    let mut parameters = parameters(&parts, NOW + DAY);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.custom_extensions = vec![proxy_information()];
    parameters
}

/// `proxyCertInfo` with the policy language inheritAll.
pub(crate) fn proxy_information() -> CustomExtension {
    let content = [0x30, 12, 0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1];
    let mut extension =
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 14], content.to_vec());
    extension.set_criticality(true);
    extension
}

pub(crate) fn list(issuer: &Issuer, number: u64, next: u64, serials: &[&[u8]]) -> Vec<u8> {
    let epoch = date_time_ymd(1970, 1, 1);
    let parameters = CertificateRevocationListParams {
        this_update: epoch + Duration::from_secs(NOW - DAY),
        next_update: epoch + Duration::from_secs(next),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: serials
            .iter()
            .map(|serial| RevokedCertParams {
                serial_number: SerialNumber::from_slice(serial),
                revocation_time: epoch + Duration::from_secs(NOW - DAY),
                reason_code: None,
                invalidity_date: None,
            })
            .collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    parameters.signed_by(issuer).unwrap().der().to_vec()
}

pub(crate) fn policy(name: &str) -> Vec<u8> {
    format!(
        "access_id_CA X509 '/O=Grid/CN={name}'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n"
    )
    .into_bytes()
}

pub(crate) fn file(name: &str, content: impl Into<Vec<u8>>) -> TrustFile {
    TrustFile {
        name: name.to_owned(),
        content: content.into(),
    }
}

/// The directory of one authority called `CA`, with a clean list that ends after ten days.
pub(crate) fn directory(root: &Issuer) -> Vec<TrustFile> {
    vec![
        file("00000001.0", root.pem()),
        file("00000001.r0", list(root, 1, NOW + 10 * DAY, &[])),
        file("00000001.signing_policy", policy("CA")),
        file("00000001.info", "anything"),
        file("CA.pem", "anything"),
    ]
}

pub(crate) fn load(files: Vec<TrustFile>) -> (TrustStore, TrustReport) {
    TrustStore::load(files, Vec::new(), None, 1)
}

pub(crate) fn verifier(files: Vec<TrustFile>) -> GridVerifier {
    GridVerifier::new(Arc::new(load(files).0), Arc::default()).unwrap()
}

pub(crate) fn with(files: Vec<TrustFile>, settings: GridSettings) -> GridVerifier {
    GridVerifier::new(Arc::new(load(files).0), Arc::new(settings)).unwrap()
}

pub(crate) fn ders(chain: &[&Issuer]) -> Vec<CertificateDer<'static>> {
    chain.iter().map(|one| one.der().clone()).collect()
}

pub(crate) fn present(
    verifier: &GridVerifier,
    chain: &[&Issuer],
) -> Result<VerifiedIdentity, IdentityError> {
    verifier.judge(&ders(chain), at(NOW))
}
