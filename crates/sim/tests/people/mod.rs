//! People who have proven who they are, for the programs of the simulation.

use std::sync::LazyLock;
use std::time::Duration;

use exoskel_identity::{
    Expected, Identity, PeerVerifier, PrivateAuthority, Role, VerifiedIdentity,
};
use exoskel_sim::peers::names;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls_pki_types::UnixTime;

const NOW: u64 = 1_800_000_000;

/// Those who take part, and the last one, who doesn't.
pub(crate) static PEOPLE: LazyLock<Vec<VerifiedIdentity>> = LazyLock::new(people);

fn people() -> Vec<VerifiedIdentity> {
    let mut parameters = valid();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    let verifier = PrivateAuthority::new(&[issuer.der().clone()], &[], 1).unwrap();
    let named = |name: String| {
        let identity = Identity::new(Role::Peer, &name).unwrap();
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
        let leaf = parameters.signed_by(&key, &issuer).unwrap();
        let expected = Expected {
            roles: &Role::ALL,
            name: None,
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
        let chain = [leaf.der().clone()];
        verifier.verify(&chain, now, &expected).unwrap()
    };
    names().into_iter().map(named).collect()
}

fn valid() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let epoch = date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + Duration::from_secs(NOW - 86_400);
    parameters.not_after = epoch + Duration::from_secs(NOW + 86_400);
    parameters
}
