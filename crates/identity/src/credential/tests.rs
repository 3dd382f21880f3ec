//! Credentials read, written, and refused for each reason.

use std::time::Duration;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    SanType, SignatureAlgorithm, date_time_ymd,
};

use super::*;
use crate::claim::ClaimError;

struct Parts {
    root: CertifiedIssuer<'static, KeyPair>,
    leaf: String,
    key: KeyPair,
}

fn parts_for(algorithm: &'static SignatureAlgorithm, uris: &[&str]) -> Parts {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
        .distinguished_name
        .push(DnType::CommonName, "root");
    let root = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
    let mut parameters = CertificateParams::default();
    parameters
        .distinguished_name
        .push(DnType::CommonName, "lab1");
    parameters.not_before = date_time_ymd(2026, 1, 1);
    parameters.not_after = date_time_ymd(2027, 1, 1);
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    parameters.subject_alt_names = uris
        .iter()
        .map(|uri| SanType::URI((*uri).try_into().unwrap()))
        .collect();
    let key = KeyPair::generate_for(algorithm).unwrap();
    let leaf = parameters.signed_by(&key, &root).unwrap().pem();
    Parts { root, leaf, key }
}

fn parts() -> Parts {
    parts_for(
        &PKCS_ECDSA_P256_SHA256,
        &["exoskel:role:worker", "exoskel:name:lab1"],
    )
}

fn read(blocks: &[&str]) -> Result<Credential, CredentialError> {
    Credential::from_pem(blocks.concat().as_bytes())
}

#[test]
fn a_credential_of_every_key_kind_reads_back() {
    for algorithm in [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
        &PKCS_RSA_SHA256,
    ] {
        let Parts { root, leaf, key } =
            parts_for(algorithm, &["exoskel:role:worker", "exoskel:name:lab1"]);
        let credential = read(&["some text\n", &leaf, &key.serialize_pem(), &root.pem()]).unwrap();
        assert_eq!(credential.identity().to_string(), "worker lab1");
        assert_eq!(
            (credential.chain().len(), credential.trust_anchors()),
            (1, [root.der().clone()].as_slice())
        );
        assert_eq!(
            credential.key().unwrap().secret_pkcs8_der(),
            key.serialized_der()
        );
        let text = credential.to_pem();
        let again = Credential::from_pem(&text).unwrap();
        assert_eq!(*again.to_pem(), *text);
        assert_eq!(again.chain(), credential.chain());
    }
}

struct Distant;

impl RemoteKey for Distant {
    fn schemes(&self) -> &[u16] {
        &[0x0403]
    }

    fn sign(&self, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        Err("nobody is there".to_owned())
    }
}

#[test]
fn what_is_public_of_a_credential_reads_back_with_a_key_elsewhere() {
    let Parts { root, leaf, key } = parts();
    let own = read(&[&leaf, &key.serialize_pem(), &root.pem()]).unwrap();
    let public = own.public_pem();
    assert!(!public.windows(11).any(|one| one == b"PRIVATE KEY"));
    let other = Credential::from_public_pem(&public, Arc::new(Distant)).unwrap();
    assert_eq!(
        (other.identity(), other.chain(), other.trust_anchors()),
        (own.identity(), own.chain(), own.trust_anchors())
    );
    assert!(other.key().is_none());
    assert_eq!(*other.to_pem(), public);
    let error = Credential::from_public_pem(&own.to_pem(), Arc::new(Distant)).unwrap_err();
    assert_eq!(error, CredentialError::SeveralKeys);
    assert_eq!(
        Credential::from_pem(&public).unwrap_err(),
        CredentialError::NoKey
    );
}

#[test]
fn the_own_certificate_is_judged_as_peers_would() {
    let Parts { root, leaf, key } = parts();
    let credential = read(&[&leaf, &key.serialize_pem(), &root.pem()]).unwrap();
    let authority = credential.authority(3).unwrap();
    let when = |seconds| {
        credential.verify_own(
            &authority,
            UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
        )
    };
    assert_eq!(when(1_780_000_000).unwrap().name(), "lab1");
    assert!(matches!(
        when(1_900_000_000),
        Err(IdentityError::Expired { .. })
    ));
    assert_eq!(authority.generation(), 3);
}

#[test]
fn the_key_is_never_shown() {
    let Parts { root, leaf, key } = parts();
    let credential = read(&[&leaf, &key.serialize_pem(), &root.pem()]).unwrap();
    let shown = format!("{credential:?}");
    assert_eq!(
        shown,
        "Credential { identity: worker lab1, certificates: 1, trust_anchors: 1, revocation_lists: 0, .. }"
    );
    let broken = key.serialize_pem().replace("-----END PRIVATE KEY-----", "");
    let error = read(&[&leaf, &broken]).unwrap_err().to_string();
    let secret = key.serialize_pem().lines().nth(1).unwrap().to_owned();
    assert!(
        !error.contains(&secret[..8]) && !shown.contains(&secret[..8]),
        "{error}"
    );
}

#[test]
fn each_fault_has_its_own_error() {
    let Parts { root, leaf, key } = parts();
    let (key, root) = (key.serialize_pem(), root.pem());
    let other = parts();
    let relabelled = |label: &str| key.replace("PRIVATE KEY", label);
    let fault = |blocks: &[&str]| read(blocks).unwrap_err();

    assert!(matches!(
        fault(&[&leaf, &other.key.serialize_pem(), &root]),
        CredentialError::KeyMismatch { .. }
    ));
    assert_eq!(fault(&[]), CredentialError::NoKey);
    assert_eq!(fault(&[&leaf, &root]), CredentialError::NoKey);
    assert_eq!(fault(&[&key]), CredentialError::NoCertificate);
    assert_eq!(
        fault(&[&leaf, &key, &key, &root]),
        CredentialError::SeveralKeys
    );
    assert_eq!(
        fault(&[&leaf, &relabelled("ENCRYPTED PRIVATE KEY"), &root]),
        CredentialError::EncryptedKey
    );
    assert_eq!(
        fault(&[&leaf, &relabelled("EC PRIVATE KEY"), &root]),
        CredentialError::UnknownKey
    );
    assert!(matches!(
        fault(&[&leaf, &key, &relabelled("PUBLIC KEY")]),
        CredentialError::UnexpectedBlock { .. }
    ));
    assert_eq!(
        fault(&[&leaf, &root.replace("CERTIFICATE", "PRIVATE KEY"), &root]),
        CredentialError::UnknownKey
    );
    assert_eq!(
        fault(&[&leaf, &key]),
        CredentialError::Trust(TrustError::NoAuthority)
    );
    assert!(matches!(
        fault(&[&root, &key, &leaf]),
        CredentialError::AuthorityAsLeaf { .. }
    ));
    assert!(matches!(
        fault(&[&leaf, &key, &root, &other.leaf]),
        CredentialError::StrayLeaf { position: 2, .. }
            | CredentialError::StrayLeaf { position: 1, .. }
    ));
    assert!(matches!(
        fault(&[&key.replace("PRIVATE KEY", "CERTIFICATE"), &key, &root]),
        CredentialError::BadCertificate { position: 0, .. }
    ));
    assert!(matches!(
        fault(&[&leaf, &key, &key.replace("PRIVATE KEY", "CERTIFICATE")]),
        CredentialError::BadCertificate { position: 1, .. }
    ));
    assert!(matches!(
        fault(&[&leaf, &key, &root, &key.replace("PRIVATE KEY", "X509 CRL")]),
        CredentialError::Trust(TrustError::BadRevocationList { .. })
    ));
    assert!(matches!(
        fault(&[&leaf, &key.replace("-----END", "----END")]),
        CredentialError::BadPem { .. }
    ));
    assert!(matches!(
        fault(&["-----BEGIN CERTIFICATE\n"]),
        CredentialError::BadPem { .. }
    ));
    assert!(matches!(
        fault(&["-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"]),
        CredentialError::BadPem { .. }
    ));
    assert!(matches!(
        fault(&[&" ".repeat(crate::limits::CREDENTIAL_BYTES_MAX + 1)]),
        CredentialError::TooLong { .. }
    ));

    let nameless = parts_for(&PKCS_ED25519, &["exoskel:role:worker"]);
    let error = fault(&[&nameless.leaf, &nameless.key.serialize_pem(), &root]);
    assert!(
        matches!(
            error,
            CredentialError::Claim {
                reason: ClaimError::MissingName,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn revocation_lists_are_added_whole_or_not_at_all() {
    let Parts { root, leaf, key } = parts();
    let mut credential = read(&[&leaf, &key.serialize_pem(), &root.pem()]).unwrap();
    assert!(
        credential
            .add_revocation_lists([vec![1, 2, 3].into()])
            .is_err()
    );
    assert!(credential.revocation_lists().is_empty());
    let list = rcgen::CertificateRevocationListParams {
        this_update: date_time_ymd(2026, 1, 1),
        next_update: date_time_ymd(2028, 1, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&root).unwrap();
    let lists = revocation_lists_from_pem(list.pem().unwrap().as_bytes()).unwrap();
    assert_eq!(lists, [list.der().clone()]);
    credential.add_revocation_lists(lists).unwrap();
    assert_eq!(
        Credential::from_pem(&credential.to_pem())
            .unwrap()
            .revocation_lists(),
        credential.revocation_lists()
    );
    assert!(revocation_lists_from_pem(leaf.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn arbitrary_text_is_refused(text in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Credential::from_pem(&text).is_err());
    }

    /// Damage never panics, and what it changes in a certificate is noticed at the latest when that is verified.
    #[test]
    fn a_damaged_file_does_not_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let Parts { root, leaf, key } = parts();
        let mut text = [leaf, key.serialize_pem(), root.pem()].concat().into_bytes();
        for (position, byte) in changes {
            *position.get_mut(&mut text) = byte;
        }
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_780_000_000));
        if let Ok(read) = Credential::from_pem(&text)
            && let Ok(authority) = read.authority(0)
            && let Ok(peer) = read.verify_own(&authority, now)
        {
            prop_assert_eq!(peer.to_string(), "worker lab1");
        }
    }

    #[test]
    fn arbitrary_der_in_blocks_is_refused(der in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut text = Vec::new();
        for label in ["CERTIFICATE", "PRIVATE KEY", "CERTIFICATE", "X509 CRL"] {
            let body = data_encoding::BASE64.encode(&der);
            text.extend(format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n").into_bytes());
        }
        prop_assert!(Credential::from_pem(&text).is_err());
    }
}

/// A proxy file as `voms-proxy-init` writes it: the proxy, its key in a form of before PKCS#8, the user.
mod of_a_grid {
    use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der};
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};

    use super::*;
    use crate::grid::GridVerifier;
    use crate::grid::fixture::{self, NOW, at, authority, directory, issue, user_parameters};

    fn armoured(label: &str, der: &[u8]) -> String {
        let mut text = Vec::new();
        pem::armour(label, der, &mut text);
        String::from_utf8(text).unwrap()
    }

    fn sec1(key: &KeyPair) -> String {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.serialized_der());
        let der: EcPrivateKeyRfc5915Der<'_> = key.unwrap().private_key().as_der().unwrap();
        armoured("EC PRIVATE KEY", der.as_ref())
    }

    #[test]
    fn a_proxy_file_is_read_as_it_is() {
        let root = authority("CA");
        let alice = issue(user_parameters("alice"), &root);
        let proxy = issue(fixture::proxy_parameters("alice", &["1"]), &alice);
        let parameters = armoured(
            "EC PARAMETERS",
            &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7],
        );
        let sec1 = sec1(proxy.key());
        for key in [proxy.key().serialize_pem(), parameters + &sec1, sec1] {
            let text = [proxy.pem(), key, alice.pem()].concat();
            let credential = Credential::from_pem(text.as_bytes()).unwrap();
            assert_eq!(credential.kind(), CredentialKind::Grid);
            assert_eq!(
                credential.identity().to_string(),
                "manager /O=Grid/OU=alice"
            );
            assert_eq!(credential.chain(), fixture::ders(&[&proxy, &alice]));
            assert_eq!(
                credential.authority(1).unwrap_err(),
                TrustError::NoAuthority
            );
            let verifier = fixture::verifier(directory(&root));
            let own = credential.verify_own(&verifier, at(NOW)).unwrap();
            assert_eq!(own.identity(), &credential.identity());
            let again = Credential::from_pem(&credential.to_pem()).unwrap();
            assert_eq!(
                again.key().unwrap().secret_pkcs8_der(),
                credential.key().unwrap().secret_pkcs8_der()
            );
        }
        let text = [proxy.pem(), proxy.key().serialize_pem()].concat();
        let error = Credential::from_pem(text.as_bytes()).unwrap_err();
        assert!(matches!(error, CredentialError::Chain(_)), "{error}");
        let text = [proxy.pem(), alice.key().serialize_pem(), alice.pem()].concat();
        let error = Credential::from_pem(text.as_bytes()).unwrap_err();
        assert!(
            matches!(error, CredentialError::KeyMismatch { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_host_certificate_and_its_rsa_key_are_a_worker() {
        let root = authority("CA");
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
        let host = fixture::host_parameters(&["Lab1.example.org"])
            .signed_by(&key, &root)
            .unwrap();
        // PKCS#8 has the older form at its end, in an octet string.
        let pkcs8 = key.serialized_der();
        let old = &pkcs8[26..];
        assert_eq!(old[0], 0x30);
        let text = [host.pem(), armoured("RSA PRIVATE KEY", old), root.pem()].concat();
        let credential = Credential::from_pem(text.as_bytes()).unwrap();
        assert_eq!(credential.identity().to_string(), "worker lab1.example.org");
        assert_eq!(credential.key().unwrap().secret_pkcs8_der(), pkcs8);
        assert_eq!(credential.chain().len(), 1, "peers have their own roots");
        let verifier: GridVerifier = fixture::verifier(directory(&root));
        assert!(credential.verify_own(&verifier, at(NOW)).is_ok());
    }

    #[test]
    fn an_encrypted_key_of_before_pkcs8_is_named_so() {
        let root = authority("CA");
        let alice = issue(user_parameters("alice"), &root);
        let text = [
            alice.pem(),
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
                .to_owned(),
        ]
        .concat();
        assert_eq!(
            Credential::from_pem(text.as_bytes()).unwrap_err(),
            CredentialError::EncryptedKey
        );
    }
}
