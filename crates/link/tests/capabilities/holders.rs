//! People who have proven who they are, by an authority made for the purpose.

use std::sync::LazyLock;
use std::time::Duration;

use exoskel_identity::{
    Expected, Identity, PeerVerifier, PrivateAuthority, Role, VerifiedIdentity,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls_pki_types::UnixTime;

use super::NOW;

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    verifier: PrivateAuthority,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let mut parameters = valid();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    let verifier = PrivateAuthority::new(&[issuer.der().clone()], &[], 1).unwrap();
    Authority { issuer, verifier }
});

fn valid() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let epoch = date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + Duration::from_secs(NOW - 86_400);
    parameters.not_after = epoch + Duration::from_secs(NOW + 86_400);
    parameters
}

/// Somebody of that name.
pub(crate) fn named(name: &str) -> VerifiedIdentity {
    let identity = Identity::new(Role::Worker, name).unwrap();
    let mut parameters = valid();
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    parameters.subject_alt_names = identity
        .to_uris()
        .map(|uri| SanType::URI(uri.try_into().unwrap()))
        .to_vec();
    let key = KeyPair::generate().unwrap();
    let leaf = parameters.signed_by(&key, &AUTHORITY.issuer).unwrap();
    let expected = Expected {
        roles: &Role::ALL,
        name: None,
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    let chain = [leaf.der().clone()];
    AUTHORITY.verifier.verify(&chain, now, &expected).unwrap()
}
