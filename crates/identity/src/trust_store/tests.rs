//! Directories read, reloaded, broken, and reported.

use proptest::prelude::*;
use rcgen::KeyPair;

use super::*;
use crate::date::Date;
use crate::error::IdentityError;
use crate::grid::fixture::*;
use crate::grid::{GridSettings, GridVerifier};
use crate::verified::VerifiedIdentity;

fn reload(files: Vec<TrustFile>, previous: &TrustStore) -> (TrustStore, TrustReport) {
    TrustStore::load(files, Vec::new(), Some(previous), previous.generation() + 1)
}

fn judge_by(store: TrustStore, user: &Issuer) -> Result<VerifiedIdentity, IdentityError> {
    let verifier = GridVerifier::new(Arc::new(store), Arc::default()).unwrap();
    present(&verifier, &[user])
}

/// The directory of `root` with another content for one file; without it, if there is none.
fn replaced(root: &Issuer, name: &str, content: Option<Vec<u8>>) -> Vec<TrustFile> {
    let mut files = directory(root);
    files.retain(|file| file.name != name);
    files.extend(content.map(|content| file(name, content)));
    files
}

#[test]
fn a_directory_is_read_and_reported() {
    let root = authority("CA");
    let (store, report) = load(directory(&root));
    assert_eq!(
        format!("{store:?}"),
        "TrustStore { generation: 1, authorities: 1, files: 3, .. }"
    );
    assert_eq!((report.generation, report.voms_files), (1, 0));
    assert_eq!(
        (report.bad_files.len(), report.lists_without_authority.len()),
        (0, 0)
    );
    let [authority] = &report.authorities[..] else {
        panic!("{report:?}")
    };
    assert_eq!(authority.subject.slash(), "/O=Grid/CN=CA");
    assert_eq!(authority.files, ["00000001.0"]);
    assert_eq!(authority.key, "ECDSA P-256");
    assert_eq!(
        authority.self_signature,
        SelfSignature::Good {
            algorithm: "ECDSA with SHA-256".to_owned()
        }
    );
    assert!(authority.is_usable && authority.has_signing_policy && !authority.has_namespaces);
    assert_eq!(
        authority.revocation_list.as_ref().unwrap().next_update,
        at(NOW + 10 * DAY)
    );
    assert_eq!(authority.problems(at(NOW)), Vec::<String>::new());
    assert_eq!(
        authority.problems(at(NOW + 2000 * DAY)),
        [
            format!("it expired on {}", Date(at(NOW + 1000 * DAY))),
            format!(
                "its revocation list 00000001.r0 is stale since {}: run fetch-crl",
                Date(at(NOW + 10 * DAY))
            ),
        ]
    );
}

/// The old and the new kind of hash name the same file, in PEM and in DER.
#[test]
fn files_of_two_hashes_are_one_authority() {
    let root = authority("CA");
    let mut files = directory(&root);
    files.push(file("0000000a.0", root.der().to_vec()));
    files.push(file(
        "0000000a.r0",
        pem("X509 CRL", &list(&root, 1, NOW + 10 * DAY, &[])),
    ));
    files.push(file("0000000a.signing_policy", policy("CA")));
    let (store, report) = load(files);
    assert_eq!(report.bad_files, []);
    assert_eq!(report.authorities.len(), 1);
    assert_eq!(report.authorities[0].files, ["00000001.0", "0000000a.0"]);
    assert!(judge_by(store, &issue(user_parameters("alice"), &root)).is_ok());
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "text for people\n-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        data_encoding::BASE64.encode(der)
    )
}

#[test]
fn a_bad_file_keeps_what_was_there_and_is_reported() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let revoking = list(&root, 2, NOW + 10 * DAY, &[&[0x91, 2]]);
    let (before, _) = load(replaced(&root, "00000001.r0", Some(revoking.clone())));
    let forged = list(&authority("CA"), 3, NOW + 10 * DAY, &[]);
    let half = revoking[..revoking.len() / 2].to_vec();
    for (name, content) in [
        ("00000001.r0", Vec::new()),
        ("00000001.r0", b"\n".to_vec()),
        ("00000001.r0", half),
        ("00000001.r0", forged),
        ("00000001.r0", b"<html>404</html>".to_vec()),
        ("00000001.r0", pem("CERTIFICATE", &revoking).into_bytes()),
        ("00000001.0", Vec::new()),
        ("00000001.0", root.der()[..100].to_vec()),
        (
            "00000001.0",
            root.pem().replace("-----END", "---").into_bytes(),
        ),
        ("00000001.0", damaged(root.der())),
        ("00000001.signing_policy", Vec::new()),
        (
            "00000001.signing_policy",
            b"access_id_CA X509 '/O=Grid/CN=CA'\npos_ri".to_vec(),
        ),
        ("00000001.signing_policy", vec![0xff; 100]),
        (
            "00000001.signing_policy",
            vec![b' '; POLICY_FILE_BYTES_MAX + 1],
        ),
    ] {
        let mut files = directory(&root);
        files[1].content.clone_from(&revoking);
        for file in &mut files {
            if file.name == name {
                file.content.clone_from(&content);
            }
        }
        let (store, report) = reload(files, &before);
        let [bad] = &report.bad_files[..] else {
            panic!("{name}: {report:?}")
        };
        assert!(bad.name == name && bad.kept_previous, "{bad:?}");
        let error = judge_by(store, &alice).unwrap_err();
        assert!(
            matches!(error, IdentityError::Revoked { .. }),
            "{name}: {error}"
        );
    }
}

use crate::limits::POLICY_FILE_BYTES_MAX;

/// The same certificate with another last byte, which belongs to the signature.
fn damaged(der: &[u8]) -> Vec<u8> {
    let mut der = der.to_vec();
    let last = der.len() - 1;
    der[last] ^= 1;
    der
}

#[test]
fn without_a_good_one_before_a_bad_file_gives_nothing() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    for (name, is_refused) in [
        (
            "00000001.r0",
            (|error| matches!(error, IdentityError::NoRevocationList { .. })) as fn(_) -> bool,
        ),
        ("00000001.0", |error| {
            matches!(error, IdentityError::UnknownAuthority { .. })
        }),
        ("00000001.signing_policy", |error| {
            matches!(error, IdentityError::NoNameSpace { .. })
        }),
    ] {
        for content in [None, Some(Vec::new())] {
            let is_gone = content.is_none();
            let (store, report) = load(replaced(&root, name, content));
            assert_eq!(report.bad_files.is_empty(), is_gone);
            assert!(report.bad_files.iter().all(|bad| !bad.kept_previous));
            let error = judge_by(store, &alice).unwrap_err();
            assert!(is_refused(error.clone()), "{name}: {error}");
        }
    }
}

#[test]
fn a_deleted_file_is_gone_and_a_new_one_counts() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let (before, _) = load(directory(&root));
    let (store, report) = reload(replaced(&root, "00000001.r0", None), &before);
    assert_eq!(report.bad_files, []);
    assert_eq!(store.generation(), 2);
    assert_eq!(
        report.authorities[0].problems(at(NOW)),
        ["it has no revocation list (HASH.r0): run fetch-crl"]
    );
    let error = judge_by(store, &alice).unwrap_err();
    assert!(
        matches!(error, IdentityError::NoRevocationList { .. }),
        "{error}"
    );

    let revoking = list(&root, 2, NOW + 10 * DAY, &[&[0x91, 2]]);
    let (store, _) = reload(replaced(&root, "00000001.r0", Some(revoking)), &before);
    let error = judge_by(store, &alice).unwrap_err();
    assert!(matches!(error, IdentityError::Revoked { .. }), "{error}");
}

#[test]
fn of_several_lists_the_newest_counts() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let revoking = list(&root, 7, NOW + DAY, &[&[0x91, 2]]);
    for name in ["00000001.r1", "00000000.r0"] {
        let mut files = directory(&root);
        files.push(file(name, revoking.clone()));
        assert!(judge_by(load(files).0, &alice).is_err());
    }
}

/// Two authorities of one name, each with its own key and list: an old root beside its successor.
#[test]
fn a_list_covers_what_its_own_key_signed() {
    let (old, new) = (authority("CA"), authority("CA"));
    let (of_old, of_new) = (
        issue(user_parameters("alice"), &old),
        issue(user_parameters("alice"), &new),
    );
    let mut files = directory(&old);
    files.push(file("00000001.1", new.pem()));
    let (store, report) = load(files.clone());
    assert_eq!(report.authorities.len(), 2);
    let verifier = GridVerifier::new(Arc::new(store), Arc::default()).unwrap();
    assert!(present(&verifier, &[&of_old]).is_ok());
    let error = present(&verifier, &[&of_new]).unwrap_err();
    assert!(
        matches!(error, IdentityError::NoRevocationList { .. }),
        "{error}"
    );
    files.push(file("00000001.r1", list(&new, 9, NOW + DAY, &[&[0x91, 2]])));
    let (store, report) = load(files);
    assert_eq!(report.bad_files, []);
    let verifier = GridVerifier::new(Arc::new(store), Arc::default()).unwrap();
    assert!(present(&verifier, &[&of_old]).is_ok());
    let error = present(&verifier, &[&of_new]).unwrap_err();
    assert!(matches!(error, IdentityError::Revoked { .. }), "{error}");
}

#[test]
fn authorities_of_one_name_are_bounded() {
    let roots: Vec<_> = (0..=SAME_NAME_AUTHORITIES_MAX)
        .map(|_| authority("CA"))
        .collect();
    let files = roots
        .iter()
        .enumerate()
        .map(|(number, root)| file(&format!("00000001.{number}"), root.pem()));
    let (_, report) = load(files.collect());
    assert_eq!(report.authorities.len(), SAME_NAME_AUTHORITIES_MAX);
    assert_eq!(report.bad_files.len(), 1);
    assert_eq!(
        report.bad_files[0].reason.to_string(),
        "got something that is 9 authorities of one name, expected at most 8"
    );
}

use crate::limits::SAME_NAME_AUTHORITIES_MAX;

#[test]
fn a_certificate_that_may_not_sign_is_reported_and_not_trusted() {
    let root = authority("CA");
    let user = issue(user_parameters("alice"), &root);
    let (_, report) = load(vec![file("00000001.0", user.pem())]);
    assert!(!report.authorities[0].is_usable);
    assert_eq!(
        report.authorities[0].problems(at(NOW))[0],
        "it may not sign certificates"
    );
    let mail = authority_for("CA", &[rcgen::ExtendedKeyUsagePurpose::EmailProtection]);
    let (_, report) = load(directory(&mail));
    assert!(!report.authorities[0].is_usable);
    assert_eq!(
        report.authorities[0].refusals(&GridSettings::default(), at(NOW)),
        [
            "its extended key usages allow neither clientAuth nor serverAuth, expected one of them, or no extended key usages"
        ]
    );
    let mut parameters = rcgen::CertificateParams::default();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let orphan =
        rcgen::CertifiedIssuer::signed_by(parameters, KeyPair::generate().unwrap(), &root).unwrap();
    let (_, report) = load(vec![file("00000001.0", orphan.pem())]);
    assert_eq!(
        report.authorities[0].weaknesses,
        ["its issuer /O=Grid/CN=CA is not in the directory, or did not sign it"]
    );
    assert!(matches!(
        report.authorities[0].self_signature,
        SelfSignature::ByAnother { .. }
    ));
}

#[test]
fn a_list_without_its_authority_is_reported() {
    let root = authority("CA");
    let (_, report) = load(vec![file("00000001.r0", list(&root, 1, NOW + DAY, &[]))]);
    assert_eq!(report.bad_files, []);
    assert_eq!(
        report.lists_without_authority[0].issuer.slash(),
        "/O=Grid/CN=CA"
    );
}

#[test]
fn names_of_files_say_what_they_are() {
    let kind = |name| FileKind::of(Directory::Anchors, name);
    assert_eq!(kind("0123abcd.0"), Some(FileKind::Authorities));
    assert_eq!(kind("0123ABCD.12"), Some(FileKind::Authorities));
    assert_eq!(kind("0123abcd.r0"), Some(FileKind::RevocationList));
    assert_eq!(
        kind("0123abcd.signing_policy"),
        Some(FileKind::SigningPolicy)
    );
    assert_eq!(kind("0123abcd.namespaces"), Some(FileKind::Namespaces));
    for name in [
        "CERN-GridCA.pem",
        "CERN-GridCA.info",
        "CERN-GridCA.signing_policy",
        "0123abcd",
        "0123abcd.",
        "0123abcd.r",
        "0123abcd.0.bak",
        "0123abcd.x0",
        "0123abcd.crl_url",
        "sub/0123abcd.0",
        "0123abcg.0",
        "0123abcd.r0.tmp",
        "",
        "0123abcd.1234",
    ] {
        assert_eq!(kind(name), None, "{name}");
    }
    let kind = |name| FileKind::of(Directory::Voms, name);
    assert_eq!(kind("vo/host.lsc"), Some(FileKind::VomsChains));
    assert_eq!(kind("vo/host.pem"), Some(FileKind::VomsCertificates));
    for name in ["host.lsc", "vo/host", "vo/host.txt"] {
        assert_eq!(kind(name), None, "{name}");
    }
}

proptest! {
    /// Files with the right names and any contents: nothing panics, and nothing is trusted.
    #[test]
    fn arbitrary_files_are_refused(contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 4)) {
        let names = ["00000001.0", "00000001.r0", "00000001.signing_policy", "00000001.namespaces"];
        let files = names.iter().zip(contents).map(|(name, content)| file(name, content)).collect();
        let (_, report) = load(files);
        prop_assert_eq!(report.authorities.len(), 0);
        prop_assert_eq!(report.bad_files.len(), 4);
    }

    /// Damage to a file is noticed, or the file says the same as before.
    #[test]
    fn damaged_files_do_not_panic(
        which in 0_usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (files, alice) = sound();
        let mut files = files.clone();
        for (position, byte) in changes {
            *position.get_mut(&mut files[which].content) = byte;
        }
        let (store, _) = load(files);
        if let Ok(peer) = judge_by(store, alice) {
            prop_assert_eq!(peer.name(), "/O=Grid/OU=alice");
        }
    }
}

fn sound() -> &'static (Vec<TrustFile>, Issuer) {
    static SOUND: std::sync::OnceLock<(Vec<TrustFile>, Issuer)> = std::sync::OnceLock::new();
    SOUND.get_or_init(|| {
        let root = authority("CA");
        (directory(&root), issue(user_parameters("alice"), &root))
    })
}

/// Settings that let something be absent don't let it be broken: nobody knows what the file would have forbidden.
#[test]
fn a_file_that_cannot_be_read_is_not_an_absent_one() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let settings = GridSettings {
        revocation: crate::Revocation::WhereListed,
        name_spaces: NameSpaces::WherePresent,
        ..GridSettings::default()
    };
    let present_to = |files: Vec<TrustFile>| {
        let verifier = with(files, settings.clone());
        verifier.judge(&ders(&[&alice]), at(NOW))
    };
    let half = list(&root, 2, NOW + 10 * DAY, &[&[0x91, 2]])[..99].to_vec();
    let forged = list(&authority("CA"), 2, NOW + 10 * DAY, &[]);
    let armoured = |serials: &[&[u8]]| {
        let list = list(&root, 2, NOW + 10 * DAY, serials);
        let text = data_encoding::BASE64.encode(&list);
        format!("-----BEGIN X509 CRL-----\n{text}\n-----END X509 CRL-----\n").into_bytes()
    };
    let two = [armoured(&[]), armoured(&[&[0x91, 2]])].concat();
    for (name, bad) in [
        ("00000001.r0", Vec::new()),
        ("00000001.r0", half),
        ("00000001.r0", forged),
        ("00000001.r0", two),
        ("00000001.signing_policy", Vec::new()),
        ("00000001.signing_policy", b"access_id_CA".to_vec()),
    ] {
        assert!(present_to(replaced(&root, name, None)).is_ok());
        let error = present_to(replaced(&root, name, Some(bad))).unwrap_err();
        assert!(
            matches!(
                error,
                IdentityError::NoRevocationList { .. } | IdentityError::NoNameSpace { .. }
            ),
            "{name}: {error}"
        );
    }
}

/// An intermediate of the peer's is in no file, so that no hash says which broken list is about it.
#[test]
fn a_broken_list_of_nobody_known_may_be_an_intermediates() {
    let root = authority("CA");
    let mut parameters = user_parameters("between");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        rcgen::KeyUsagePurpose::KeyCertSign,
        rcgen::KeyUsagePurpose::CrlSign,
    ];
    parameters.extended_key_usages = Vec::new();
    let between = issue(parameters, &root);
    let alice = issue(user_parameters("alice"), &between);
    let settings = GridSettings {
        revocation: crate::Revocation::WhereListed,
        ..GridSettings::default()
    };
    let present_to = |files: Vec<TrustFile>| {
        let verifier = with(files, settings.clone());
        verifier.judge(&ders(&[&alice, &between]), at(NOW))
    };
    let mut files = directory(&root);
    present_to(files.clone()).unwrap();
    files.push(file("00000002.r0", "half"));
    let error = present_to(files).unwrap_err();
    assert!(
        matches!(error, IdentityError::NoRevocationList { .. }),
        "{error}"
    );
}
