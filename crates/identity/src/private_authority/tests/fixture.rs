//! Authorities, leaves and lists, made for the purpose.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    RevokedCertParams, SanType, SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};

use crate::claim::Role;
use crate::error::IdentityError;
use crate::private_authority::PrivateAuthority;
use crate::verified::{Expected, PeerVerifier, VerifiedIdentity};

pub(super) const NOW: u64 = 1_800_000_000;
pub(super) const DAY: u64 = 86_400;

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(super) fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub(super) fn parameters(common_name: &str, from: u64, to: u64) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.remove(DnType::CommonName);
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    parameters.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(from);
    parameters.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(to);
    parameters
}

pub(super) fn authority_parameters(common_name: &str) -> CertificateParams {
    let mut parameters = parameters(common_name, NOW - 10 * DAY, NOW + 1000 * DAY);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

pub(super) fn authority(common_name: &str) -> Authority {
    CertifiedIssuer::self_signed(
        authority_parameters(common_name),
        KeyPair::generate().unwrap(),
    )
    .unwrap()
}

pub(super) fn leaf_parameters(uris: &[&str]) -> CertificateParams {
    let mut parameters = parameters("lab1", NOW - DAY, NOW + 30 * DAY);
    parameters.serial_number = Some(SerialNumber::from_slice(&[0x00, 0x91, 0x02]));
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    parameters.subject_alt_names = uris
        .iter()
        .map(|uri| SanType::URI((*uri).try_into().unwrap()))
        .collect();
    parameters
}

pub(super) const LAB1: [&str; 2] = ["exoskel:role:worker", "exoskel:name:lab1.example.org"];

pub(super) fn worker() -> CertificateParams {
    leaf_parameters(&LAB1)
}

pub(super) fn issue(parameters: &CertificateParams, issuer: &Authority) -> CertificateDer<'static> {
    issue_for(parameters, issuer, &PKCS_ECDSA_P256_SHA256)
}

pub(super) fn issue_for(
    parameters: &CertificateParams,
    issuer: &Authority,
    algorithm: &'static SignatureAlgorithm,
) -> CertificateDer<'static> {
    parameters
        .signed_by(&KeyPair::generate_for(algorithm).unwrap(), issuer)
        .unwrap()
        .der()
        .clone()
}

pub(super) fn list(
    issuer: &Authority,
    made: u64,
    next: u64,
    serials: &[&[u8]],
) -> CertificateRevocationListDer<'static> {
    let epoch = date_time_ymd(1970, 1, 1);
    let revoked = serials.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: epoch + Duration::from_secs(made),
        reason_code: None,
        invalidity_date: None,
    });
    let parameters = CertificateRevocationListParams {
        this_update: epoch + Duration::from_secs(made),
        next_update: epoch + Duration::from_secs(next),
        crl_number: SerialNumber::from(made),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    parameters.signed_by(issuer).unwrap().der().clone()
}

pub(super) fn trusting(
    roots: &[&Authority],
    lists: &[CertificateRevocationListDer<'_>],
) -> PrivateAuthority {
    let roots: Vec<_> = roots.iter().map(|root| root.der().clone()).collect();
    PrivateAuthority::new(&roots, lists, 7).unwrap()
}

pub(super) const ANY_WORKER: Expected<'_> = Expected {
    roles: &[Role::Worker],
    name: None,
};

pub(super) fn verify(
    verifier: &PrivateAuthority,
    chain: &[CertificateDer<'_>],
) -> Result<VerifiedIdentity, IdentityError> {
    verifier.verify(chain, at(NOW), &ANY_WORKER)
}

/// A chain of one leaf under a fresh root without lists.
pub(super) fn verify_leaf(
    parameters: &CertificateParams,
) -> Result<VerifiedIdentity, IdentityError> {
    let root = authority("root");
    verify(&trusting(&[&root], &[]), &[issue(parameters, &root)])
}

pub(super) fn intermediate(parameters: CertificateParams, issuer: &Authority) -> Authority {
    CertifiedIssuer::signed_by(parameters, KeyPair::generate().unwrap(), issuer).unwrap()
}
