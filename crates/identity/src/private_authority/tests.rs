//! Each rule of the verifier, once accepted and once refused.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256,
    PublicKeyData, SanType, SignatureAlgorithm, date_time_ymd,
};

use self::fixture::*;
use super::*;
use crate::claim::ClaimError;
use crate::claim::{Identity, Role};

mod fixture;
mod hostile;
mod revocation;

#[test]
fn a_good_leaf_of_every_key_kind_is_accepted() {
    let root = authority("root");
    let verifier = trusting(&[&authority("another root"), &root], &[]);
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
        let leaf = issue_for(&worker(), &root, algorithm);
        let peer = verify(&verifier, std::slice::from_ref(&leaf)).unwrap();
        assert_eq!(
            (peer.role(), peer.name()),
            (Role::Worker, "lab1.example.org")
        );
        assert_eq!(
            peer.identity(),
            &Identity::new(Role::Worker, "lab1.example.org").unwrap()
        );
        assert_eq!(peer.not_after(), at(NOW + 30 * DAY));
        assert_eq!(peer.serial(), [0x91, 0x02]);
        assert_eq!(peer.fingerprint(), crate::fingerprint(&leaf));
        assert_eq!((peer.generation(), verifier.generation()), (7, 7));
        assert!(format!("{peer:?}").contains("worker lab1.example.org"));
    }
    let ed25519_root = CertifiedIssuer::self_signed(
        authority_parameters("ed"),
        KeyPair::generate_for(&PKCS_ED25519).unwrap(),
    )
    .unwrap();
    verify(
        &trusting(&[&ed25519_root], &[]),
        &[issue(&worker(), &ed25519_root)],
    )
    .unwrap();
}

#[test]
fn an_unknown_authority_is_refused_even_if_it_bears_a_trusted_name() {
    let (root, stranger, namesake) = (authority("root"), authority("stranger"), authority("root"));
    let verifier = trusting(&[&root], &[]);
    for issuer in [&stranger, &namesake] {
        let error =
            verify(&verifier, &[issue(&worker(), issuer), issuer.der().clone()]).unwrap_err();
        let IdentityError::UnknownAuthority { anchors: 1, .. } = error else {
            panic!("{error}")
        };
    }
    let error = verify(&verifier, &[issue(&worker(), &stranger)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the leaf certificate \"/CN=lab1\" comes from \"/CN=stranger\", which is none of the 1 trusted authorities (or its \
         signature is wrong): issue it by a trusted one, or trust that authority"
    );
}

#[test]
fn dates_are_checked_at_both_ends() {
    let root = authority("root");
    let verifier = trusting(&[&root], &[]);
    let chain = [issue(&worker(), &root)];
    let when = |seconds| verifier.verify(&chain, at(seconds), &ANY_WORKER);
    assert!(when(NOW - DAY).is_ok());
    assert!(when(NOW + 30 * DAY).is_ok());
    let early = when(NOW - DAY - 1).unwrap_err();
    assert!(
        matches!(&early, IdentityError::NotYetValid { certificate, .. } if certificate.position == Some(0)),
        "{early}"
    );
    assert!(
        early
            .to_string()
            .ends_with("check the clocks of both hosts"),
        "{early}"
    );
    let late = when(NOW + 30 * DAY + 1).unwrap_err();
    assert!(
        matches!(&late, IdentityError::Expired { certificate, .. } if certificate.position == Some(0)),
        "{late}"
    );
    assert!(
        late.to_string().contains("its owner needs a new one"),
        "{late}"
    );
}

/// A path check by itself never looks at the dates of a root.
#[test]
fn a_root_has_dates_too() {
    let mut short = authority_parameters("root");
    short.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(NOW + DAY);
    let root = CertifiedIssuer::self_signed(short, KeyPair::generate().unwrap()).unwrap();
    let verifier = trusting(&[&root], &[]);
    let mut long = worker();
    long.not_before = date_time_ymd(1990, 1, 1);
    let chain = [issue(&long, &root)];
    let peer = verify(&verifier, &chain).unwrap();
    assert_eq!(peer.not_after(), at(NOW + DAY), "the earliest end counts");
    for seconds in [NOW + DAY + 1, NOW - 10 * DAY - 1] {
        let error = verifier
            .verify(&chain, at(seconds), &ANY_WORKER)
            .unwrap_err();
        assert!(
            matches!(error, IdentityError::AuthorityOutOfDate { .. }),
            "{error}"
        );
    }
}

/// A worker signs a manager's certificate with its own key: the attack that a missing check of the basic constraints
/// would let through.
#[test]
fn a_leaf_cannot_pose_as_an_authority() {
    let root = authority("root");
    let worker = intermediate(worker(), &root);
    let forged = issue(
        &leaf_parameters(&["exoskel:role:manager", "exoskel:name:boss"]),
        &worker,
    );
    let expected = Expected {
        roles: &[Role::Manager],
        name: None,
    };
    let chain = [forged, worker.der().clone()];
    let error = trusting(&[&root], &[])
        .verify(&chain, at(NOW), &expected)
        .unwrap_err();
    assert!(
        matches!(&error, IdentityError::LeafAsAuthority { certificate } if certificate.position == Some(1)),
        "{error}"
    );
    let roots = [worker.der().clone()];
    assert!(matches!(
        PrivateAuthority::new(&roots, &[], 0),
        Err(TrustError::NotAnAuthority { .. })
    ));
}

#[test]
fn an_authority_cannot_pose_as_a_leaf() {
    let root = authority("root");
    let mut parameters = worker();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let error = verify(&trusting(&[&root], &[]), &[issue(&parameters, &root)]).unwrap_err();
    assert!(
        matches!(error, IdentityError::AuthorityAsLeaf { .. }),
        "{error}"
    );
    assert!(verify(&trusting(&[&root], &[]), &[root.der().clone()]).is_err());
}

#[test]
fn a_leaf_must_be_made_for_both_ends_of_a_handshake() {
    let cases: [fn(&mut CertificateParams); 4] = [
        |leaf| leaf.extended_key_usages.clear(),
        |leaf| leaf.extended_key_usages.truncate(1),
        |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning],
        |leaf| leaf.key_usages = vec![KeyUsagePurpose::KeyAgreement],
    ];
    for change in cases {
        let mut leaf = worker();
        change(&mut leaf);
        let error = verify_leaf(&leaf).unwrap_err();
        assert!(matches!(error, IdentityError::WrongUsage { .. }), "{error}");
    }
}

/// Whoever proves that they hold such a key proves nothing.
#[test]
fn a_leaf_has_a_key_that_keeps_others_out() {
    struct Key(Vec<u8>);
    impl PublicKeyData for Key {
        fn der_bytes(&self) -> &[u8] {
            &self.0
        }
        fn algorithm(&self) -> &'static SignatureAlgorithm {
            &PKCS_RSA_SHA256
        }
    }
    let root = authority("root");
    let verifier = trusting(&[&root], &[]);
    let judged = |size: u8, last: u8, exponent: &[u8]| {
        let length = u8::try_from(exponent.len()).unwrap();
        let mut key = vec![0x30, 0x82, size, 7 + length, 2, 0x82, size, 1, 0, 0x80];
        key.resize(8 + usize::from(size) * 256, 0);
        key.push(last);
        key.extend([2, length]);
        key.extend(exponent);
        let leaf = worker().signed_by(&Key(key), &root).unwrap();
        verify(&verifier, &[leaf.der().clone()])
    };
    assert!(judged(1, 1, &[3]).is_ok());
    assert!(judged(1, 1, &[1, 0, 1]).is_ok());
    for (size, last, exponent, got) in [
        (1, 1, &[1][..], "RSA with the exponent 0x01"),
        (1, 1, &[0], "RSA with the exponent 0"),
        (1, 1, &[0x10], "RSA with the exponent 0x10"),
        (1, 1, &[2, 0, 0, 0, 1], "RSA with an exponent of 34 bits"),
        (1, 0, &[3], "RSA with an even or negative modulus"),
        (5, 1, &[3], "RSA of 10240 bits"),
    ] {
        let error = judged(size, last, exponent).unwrap_err();
        assert!(matches!(error, IdentityError::WeakKey { .. }), "{error}");
        assert!(error.to_string().contains(got), "{error}");
    }
    let error = judged(1, 1, &[0, 1]).unwrap_err();
    assert!(matches!(error, IdentityError::Malformed { .. }), "{error}");
}

/// The path check asks intermediates, and leaves the root to us.
#[test]
fn an_authority_must_be_for_both_ends_of_a_handshake() {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, EmailProtection, ServerAuth};
    for (uses, is_good) in [
        (&[][..], true),
        (&[ClientAuth, ServerAuth, EmailProtection], true),
        (&[ServerAuth], false),
        (&[EmailProtection], false),
        (&[Any], false),
    ] {
        let mut parameters = authority_parameters("bound");
        parameters.extended_key_usages = uses.to_vec();
        let own = CertifiedIssuer::self_signed(parameters.clone(), KeyPair::generate().unwrap());
        let loaded = PrivateAuthority::new(&[own.unwrap().der().clone()], &[], 0);
        match loaded {
            Ok(_) => assert!(is_good, "{uses:?}"),
            Err(error) => {
                assert!(!is_good, "{error}");
                let expected = "expected clientAuth and serverAuth, or no extended key usages";
                assert!(error.to_string().ends_with(expected), "{error}");
            }
        }
        let root = authority("root");
        let between = intermediate(parameters, &root);
        let chain = [issue(&worker(), &between), between.der().clone()];
        match verify(&trusting(&[&root], &[]), &chain) {
            Ok(_) => assert!(is_good, "{uses:?}"),
            Err(IdentityError::WrongUsage { certificate, .. }) => {
                assert_eq!(
                    (is_good, certificate.position),
                    (false, Some(1)),
                    "{uses:?}"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_unknown_critical_extension_is_refused() {
    let mut leaf = worker();
    let mut extension =
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    leaf.custom_extensions = vec![extension.clone()];
    assert!(verify_leaf(&leaf).is_ok(), "not critical");
    extension.set_criticality(true);
    leaf.custom_extensions = vec![extension];
    let error = verify_leaf(&leaf).unwrap_err();
    assert!(matches!(error, IdentityError::PathRule { .. }), "{error}");
    assert!(
        error.to_string().contains("UnsupportedCriticalExtension"),
        "{error}"
    );
}

#[test]
fn the_role_and_the_name_must_be_the_expected_ones() {
    let root = authority("root");
    let verifier = trusting(&[&root], &[]);
    let chain = [issue(&worker(), &root)];
    let meet = |roles, name| verifier.verify(&chain, at(NOW), &Expected { roles, name });
    assert!(meet(&[Role::Manager, Role::Worker], Some("LAB1.example.org")).is_ok());
    let error = meet(&[Role::Manager, Role::Gateway], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer is worker lab1.example.org, expected role manager or gateway"
    );
    assert!(matches!(
        meet(&[], None),
        Err(IdentityError::WrongRole { .. })
    ));
    for other in [
        "lab2.example.org",
        "lab1.example.org.evil.org",
        "lab1",
        "",
        "*",
    ] {
        let error = meet(&[Role::Worker], Some(other)).unwrap_err();
        assert!(matches!(error, IdentityError::WrongName { .. }), "{error}");
    }
}

#[test]
fn exactly_one_role_and_one_name_must_be_stated() {
    let cases: [(&[&str], ClaimError); 4] = [
        (&[], ClaimError::MissingRole),
        (&LAB1[..1], ClaimError::MissingName),
        (
            &[LAB1[0], LAB1[1], "exoskel:role:manager"],
            ClaimError::SeveralRoles,
        ),
        (
            &[LAB1[0], LAB1[1], "exoskel:name:lab2"],
            ClaimError::SeveralNames,
        ),
    ];
    for (uris, expected) in cases {
        let error = verify_leaf(&leaf_parameters(uris)).unwrap_err();
        assert!(
            matches!(&error, IdentityError::Claim { reason, .. } if *reason == expected),
            "{error}"
        );
    }
    let mut names_only = leaf_parameters(&[]);
    names_only.subject_alt_names = vec![SanType::DnsName("lab1.example.org".try_into().unwrap())];
    assert!(
        verify_leaf(&names_only).is_err(),
        "a DNS name is no name of ours"
    );
    let mut with_others = worker();
    with_others
        .subject_alt_names
        .push(SanType::DnsName("lab1.example.org".try_into().unwrap()));
    with_others
        .subject_alt_names
        .push(SanType::URI("https://example.org".try_into().unwrap()));
    assert!(verify_leaf(&with_others).is_ok());
}
