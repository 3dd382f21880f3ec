//! What callers see of a judgement: identities, roles and names, ends, settings, messages. Each rule of paths and proxies
//! has its vectors in `tests/vectors.rs`.

use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use super::*;
use crate::claim::{ClaimError, Role};

pub(crate) mod fixture;
mod hostile;

use fixture::*;

fn meet(
    verifier: &GridVerifier,
    chain: &[&Issuer],
    roles: &[Role],
    name: Option<&str>,
) -> Result<VerifiedIdentity, IdentityError> {
    verifier.verify(&ders(chain), at(NOW), &Expected { roles, name })
}

#[test]
fn a_user_and_his_proxies_are_one_manager() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let first = issue(proxy_parameters("alice", &["1"]), &alice);
    let second = issue(proxy_parameters("alice", &["1", "2"]), &first);
    let verifier = verifier(directory(&root));
    assert_eq!(
        (verifier.generation(), verifier.store().generation()),
        (1, 1)
    );
    for (chain, depth) in [
        (&[&alice][..], 0),
        (&[&first, &alice], 1),
        (&[&second, &first, &alice], 2),
        (&[&second, &alice, &root, &first], 2),
    ] {
        let peer = present(&verifier, chain).unwrap();
        assert_eq!(peer.to_string(), "manager /O=Grid/OU=alice");
        assert_eq!(peer.subject().slash(), "/O=Grid/OU=alice");
        assert_eq!(peer.chain(), ders(chain));
        assert_eq!(peer.serials().len(), chain.len());
        assert_eq!(peer.fingerprint(), crate::fingerprint(chain[0].der()));
        assert_eq!(peer.generation(), 1);
        assert_eq!(peer.proxy().map_or(0, |proxy| proxy.depth), depth);
    }
    assert_eq!(present(&verifier, &[&alice]).unwrap().serial(), [0x91, 2]);
    let peer = meet(&verifier, &[&first, &alice], &[Role::Manager], None).unwrap();
    assert_eq!(peer.role(), Role::Manager);
    let error = meet(&verifier, &[&first, &alice], &[Role::Worker], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer is manager /O=Grid/OU=alice, expected role worker"
    );
}

/// A person may be a manager or a peer, a host a worker, gateway, agent or peer. What is expected decides; of several roles, what the
/// peer states.
#[test]
fn anybody_of_a_grid_may_be_a_peer_and_nobody_any_role() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let host = issue(host_parameters(&["lab1.example.org"]), &root);
    let verifier = verifier(directory(&root));
    for (chain, name, roles) in [
        (&alice, "/O=Grid/OU=alice", &Role::OF_PERSONS[..]),
        (&host, "lab1.example.org", &Role::OF_HOSTS[..]),
    ] {
        for expected in Role::ALL {
            let met = meet(&verifier, &[chain], &[expected], None);
            match roles.contains(&expected) {
                true => assert_eq!(met.unwrap().to_string(), format!("{expected} {name}")),
                false => assert!(matches!(met, Err(IdentityError::WrongRole { .. }))),
            }
        }
        let peer = meet(&verifier, &[chain], &Role::ALL, None).unwrap();
        assert_eq!(
            peer.role(),
            roles[0],
            "the one that is meant if nobody says"
        );
        for role in Role::ALL {
            let stated = peer.in_role(role);
            assert_eq!(stated.is_some(), roles.contains(&role), "{name} {role}");
            if let Some(stated) = stated {
                assert_eq!((stated.role(), stated.name()), (role, name));
                assert_eq!(stated.subject(), peer.subject());
                assert_eq!(stated.fingerprint(), peer.fingerprint());
            }
        }
    }
}

#[test]
fn an_identity_ends_with_the_first_thing_that_proves_it() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let proxy = issue(proxy_parameters("alice", &["1"]), &alice);
    let verifier = verifier(directory(&root));
    let ends = |chain: &[&Issuer]| present(&verifier, chain).unwrap().not_after();
    assert_eq!(ends(&[&proxy, &alice]), at(NOW + DAY), "the proxy");
    assert_eq!(ends(&[&alice]), at(NOW + 10 * DAY), "the list");
    let settings = GridSettings {
        revocation: Revocation::WhereListed,
        ..GridSettings::default()
    };
    let mut files = directory(&root);
    files.retain(|file| !file.name.ends_with(".r0"));
    let unlisted = with(files, settings);
    assert_eq!(
        present(&unlisted, &[&alice]).unwrap().not_after(),
        at(NOW + 30 * DAY),
        "the user"
    );
}

#[test]
fn a_host_is_a_worker_by_each_of_its_names() {
    let root = authority("CA");
    let host = issue(
        host_parameters(&["*.example.org", "Lab1.example.org.", "lab2.example.org"]),
        &root,
    );
    let verifier = verifier(directory(&root));
    let peer = present(&verifier, &[&host]).unwrap();
    assert_eq!(peer.to_string(), "worker lab1.example.org");
    assert_eq!(peer.subject().slash(), "/O=Grid/OU=host");
    for name in ["lab1.example.org", "LAB2.example.org"] {
        let peer = meet(&verifier, &[&host], &[Role::Worker], Some(name)).unwrap();
        assert_eq!(peer.name(), name.to_ascii_lowercase());
    }
    for name in ["lab3.example.org", "example.org", "/O=Grid/OU=host", ""] {
        let error = meet(&verifier, &[&host], &[Role::Worker], Some(name)).unwrap_err();
        assert!(matches!(error, IdentityError::WrongName { .. }), "{error}");
    }
    let gateway = meet(&verifier, &[&host], &[Role::Gateway], None).unwrap();
    assert_eq!(gateway.to_string(), "gateway lab1.example.org");
    let error = meet(&verifier, &[&host], &[Role::Manager], None).unwrap_err();
    assert!(matches!(error, IdentityError::WrongRole { .. }), "{error}");

    let only_pattern = issue(host_parameters(&["*.example.org"]), &root);
    let error = present(&verifier, &[&only_pattern]).unwrap_err();
    assert!(
        matches!(
            &error,
            IdentityError::Claim {
                reason: ClaimError::BadName { .. },
                ..
            }
        ),
        "{error}"
    );
}

/// A proxy of a host is no host, and neither is a certificate that may not serve, whatever names it has.
#[test]
fn only_a_host_certificate_itself_is_a_worker() {
    let root = authority("CA");
    let host = issue(host_parameters(&["lab1.example.org"]), &root);
    let proxy = issue(proxy_parameters("host", &["1"]), &host);
    let verifier = verifier(directory(&root));
    assert_eq!(
        present(&verifier, &[&proxy, &host]).unwrap().to_string(),
        "manager /O=Grid/OU=host"
    );
    let mut client = host_parameters(&["lab1.example.org"]);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client = issue(client, &root);
    assert_eq!(
        present(&verifier, &[&client]).unwrap().role(),
        Role::Manager
    );
    let mut neither = host_parameters(&["lab1.example.org"]);
    neither.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    let error = present(&verifier, &[&issue(neither, &root)]).unwrap_err();
    assert!(matches!(error, IdentityError::WrongUsage { .. }), "{error}");
}

/// What an authority is not for, nobody below it is.
#[test]
fn an_authority_bounds_what_its_certificates_are_for() {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, EmailProtection, ServerAuth};
    let mut parameters = host_parameters(&["lab1.example.org"]);
    parameters.extended_key_usages = Vec::new();
    let judged = |uses: &[ExtendedKeyUsagePurpose]| {
        let root = authority_for("CA", uses);
        present(
            &verifier(directory(&root)),
            &[&issue(parameters.clone(), &root)],
        )
    };
    for (uses, role, is_client) in [
        (&[][..], Role::Worker, true),
        (&[ClientAuth, ServerAuth], Role::Worker, true),
        (&[ServerAuth, Any], Role::Worker, false),
        (&[ClientAuth, EmailProtection], Role::Manager, true),
    ] {
        let peer = judged(uses).unwrap();
        assert_eq!(peer.role(), role, "{uses:?}");
        let unfit = peer.unfit_for_clients().map(ToString::to_string);
        let authority = "the trust directory's certificate \"/O=Grid/CN=CA\"".to_owned();
        assert_eq!(unfit, (!is_client).then_some(authority), "{uses:?}");
    }
    for uses in [EmailProtection, Any] {
        assert_eq!(
            judged(&[uses]).unwrap_err().to_string(),
            "the trust directory's certificate \"/O=Grid/CN=CA\" is an authority whose extended key usages allow neither \
             clientAuth nor serverAuth, expected clientAuth and serverAuth, or no extended key usages: ask that authority"
        );
    }
    let root = authority_for("CA", &[ServerAuth]);
    let alice = issue(user_parameters("alice"), &root);
    let error = present(&verifier(directory(&root)), &[&alice]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("allow serverAuth only, expected clientAuth only"),
        "{error}"
    );
}

/// A proxy and its issuer have to be for one use.
#[test]
fn a_chain_is_for_what_all_of_its_certificates_are_for() {
    let root = authority("CA");
    let host = issue(host_parameters(&["lab1.example.org"]), &root);
    let mut client = proxy_parameters("host", &["1"]);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let proxy = issue(client, &host);
    let error = present(&verifier(directory(&root)), &[&proxy, &host]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "certificate 1 of the chain \"/O=Grid/OU=host\" is not made for this use, expected the extended key usage of the proxies below it"
    );
}

#[test]
fn each_message_names_the_certificate_the_rule_and_what_was_expected() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let proxy = issue(proxy_parameters("alice", &["1"]), &alice);
    let verifier = verifier(directory(&root));
    let stranger = authority("Stranger");
    let said = |verifier: &GridVerifier, chain: &[&Issuer]| {
        present(verifier, chain).unwrap_err().to_string()
    };
    assert_eq!(
        said(&verifier, &[&proxy]),
        "the leaf certificate \"/O=Grid/OU=alice/CN=1\": its issuer \"/O=Grid/OU=alice\" is not in the chain: the peer must \
         send the end entity's certificate and every proxy"
    );
    let revoked = [file(
        "00000001.r0",
        list(&root, 2, NOW + DAY, &[&[0x91, 2]]),
    )];
    let mut files = directory(&root);
    files.retain(|file| !file.name.ends_with(".r0"));
    assert_eq!(
        said(
            &with(files.clone(), GridSettings::default()),
            &[&proxy, &alice]
        ),
        "certificate 1 of the chain \"/O=Grid/OU=alice\" comes from \"/O=Grid/CN=CA\", which has no usable revocation list \
         here, expected one (HASH.r0): run fetch-crl"
    );
    files.extend(revoked);
    assert_eq!(
        said(&with(files, GridSettings::default()), &[&proxy, &alice]),
        "certificate 1 of the chain \"/O=Grid/OU=alice\" with serial number 9102 is revoked: its owner needs another one"
    );
    let of_stranger = issue(user_parameters("alice"), &stranger);
    assert_eq!(
        said(&verifier, &[&of_stranger]),
        "the leaf certificate \"/O=Grid/OU=alice\" comes from \"/O=Grid/CN=Stranger\", which is none of the 1 trusted \
         authorities (or its signature is wrong): issue it by a trusted one, or trust that authority"
    );
    let settings = GridSettings {
        proxy_depth_max: 0,
        ..GridSettings::default()
    };
    assert_eq!(
        said(&with(directory(&root), settings), &[&proxy, &alice]),
        "the leaf certificate \"/O=Grid/OU=alice/CN=1\": got more than 0 proxies in the chain, the most that the setting \
         proxy_depth_max allows"
    );
}

/// A clock that is ahead by little is tolerated where something begins, never where it ends.
#[test]
fn only_beginnings_are_stretched() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let verifier = verifier(directory(&root));
    let begin = NOW - DAY;
    let judge = |seconds| verifier.judge(&ders(&[&alice]), at(seconds));
    assert!(judge(begin - 60).is_ok());
    assert!(matches!(
        judge(begin - 61),
        Err(IdentityError::NotYetValid { .. })
    ));
    assert!(judge(NOW + 10 * DAY).is_ok());
    assert!(matches!(
        judge(NOW + 10 * DAY + 1),
        Err(IdentityError::RevocationListStale { .. })
    ));
}

/// An intermediate of the peer's own: its list is checked with its own key when it first comes.
#[test]
fn an_intermediate_from_the_peer_needs_a_list_of_its_own() {
    let root = authority("CA");
    let mut parameters = user_parameters("department");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        rcgen::KeyUsagePurpose::KeyCertSign,
        rcgen::KeyUsagePurpose::CrlSign,
    ];
    let department = issue(parameters.clone(), &root);
    let namesake =
        CertifiedIssuer::signed_by(parameters, KeyPair::generate().unwrap(), &root).unwrap();
    let alice = issue(user_parameters("alice"), &department);
    let mut files = directory(&root);
    let chain = [&alice, &department];
    let error = present(&verifier(files.clone()), &chain).unwrap_err();
    assert!(
        matches!(error, IdentityError::NoRevocationList { .. }),
        "{error}"
    );
    files.push(file("00000002.r0", list(&namesake, 1, NOW + DAY, &[])));
    let error = present(&verifier(files.clone()), &chain).unwrap_err();
    assert!(
        matches!(error, IdentityError::NoRevocationList { .. }),
        "{error}"
    );
    files.push(file("00000002.r1", list(&department, 1, NOW + DAY, &[])));
    let both = verifier(files.clone());
    for _ in 0..2 {
        assert_eq!(present(&both, &chain).unwrap().name(), "/O=Grid/OU=alice");
    }
    files.pop();
    files.push(file(
        "00000002.r1",
        list(&department, 1, NOW + DAY, &[&[0x91, 2]]),
    ));
    let error = present(&verifier(files), &chain).unwrap_err();
    assert!(matches!(error, IdentityError::Revoked { .. }), "{error}");
}

/// RFC 5280 section 6.1 with any policy as the initial set and none required: policies exclude nothing, and what could is refused.
#[test]
fn critical_policies_exclude_nobody_unless_one_is_required() {
    let critical = |identifier: &[u64], content: &[u8]| {
        let mut extension = rcgen::CustomExtension::from_oid_content(identifier, content.to_vec());
        extension.set_criticality(true);
        extension
    };
    // SEQUENCE { SEQUENCE { 1.2.3 } }
    let policies = critical(&[2, 5, 29, 32], &[0x30, 6, 0x30, 4, 6, 2, 0x2a, 3]);
    // SEQUENCE { SEQUENCE { 1.2.3, 1.2.4 } }
    let mappings = critical(
        &[2, 5, 29, 33],
        &[0x30, 10, 0x30, 8, 6, 2, 0x2a, 3, 6, 2, 0x2a, 4],
    );
    let no_any_policy = critical(&[2, 5, 29, 54], &[2, 1, 0]);
    // SEQUENCE { inhibitPolicyMapping [1] 0 }
    let no_mapping = critical(&[2, 5, 29, 36], &[0x30, 3, 0x81, 1, 0]);
    // SEQUENCE { requireExplicitPolicy [0] 0 }
    let explicit = critical(&[2, 5, 29, 36], &[0x30, 3, 0x80, 1, 0]);
    let both = critical(&[2, 5, 29, 36], &[0x30, 6, 0x80, 1, 3, 0x81, 1, 0]);

    let root = authority("CA");
    let present_with = |above: &[&rcgen::CustomExtension], own: &[&rcgen::CustomExtension]| {
        let mut parameters = user_parameters("department");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            rcgen::KeyUsagePurpose::KeyCertSign,
            rcgen::KeyUsagePurpose::CrlSign,
        ];
        parameters.custom_extensions = above.iter().map(|one| (*one).clone()).collect();
        let department = issue(parameters, &root);
        let mut parameters = user_parameters("alice");
        parameters.custom_extensions = own.iter().map(|one| (*one).clone()).collect();
        let alice = issue(parameters, &department);
        let mut files = directory(&root);
        files.push(file("00000002.r0", list(&department, 1, NOW + DAY, &[])));
        present(&verifier(files), &[&alice, &department])
    };
    let harmless = [&policies, &mappings, &no_any_policy, &no_mapping];
    assert!(present_with(&harmless, &[&policies]).is_ok());
    for required in [&explicit, &both] {
        for (above, own) in [(vec![required], vec![]), (vec![], vec![required])] {
            let error = present_with(&above, &own).unwrap_err();
            assert!(
                matches!(&error, IdentityError::UnknownCriticalExtension { extension, .. } if extension == "2.5.29.36"),
                "{error}"
            );
        }
    }
}

/// Whether an authority that isn't in the directory signed a list takes a check of a signature, for each list anew, so the
/// lists of its namesakes are bounded like everything else that a stranger makes us compute.
#[test]
fn the_lists_that_are_tried_for_a_peers_intermediate_are_bounded() {
    let root = authority("CA");
    let mut parameters = user_parameters("department");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        rcgen::KeyUsagePurpose::KeyCertSign,
        rcgen::KeyUsagePurpose::CrlSign,
    ];
    let department = issue(parameters.clone(), &root);
    let namesake = issue(parameters, &root);
    let alice = issue(user_parameters("alice"), &department);
    let verifier_with = |foreign: usize| {
        let mut files = directory(&root);
        for number in 0..foreign {
            files.push(file(
                &format!("00000002.r{number}"),
                list(&namesake, 2, NOW + DAY, &[]),
            ));
        }
        files.push(file("00000003.r0", list(&department, 1, NOW + DAY, &[])));
        verifier(files)
    };
    assert!(present(&verifier_with(20), &[&alice, &department]).is_ok());
    assert_eq!(
        present(&verifier_with(60), &[&alice, &department]).unwrap_err(),
        IdentityError::TooManySignatures
    );
    // Whoever comes first leaves nothing behind that is in another one's way.
    let both = verifier_with(1);
    let bob = issue(user_parameters("bob"), &namesake);
    for _ in 0..2 {
        assert!(present(&both, &[&bob, &namesake]).is_ok());
        assert!(present(&both, &[&alice, &department]).is_ok());
    }
}

#[test]
fn settings_are_bounded() {
    let root = authority("CA");
    let store = Arc::new(load(directory(&root)).0);
    let refused = |settings| GridVerifier::new(Arc::clone(&store), Arc::new(settings)).unwrap_err();
    let defaults = GridSettings::default;
    assert_eq!(
        refused(GridSettings {
            proxy_depth_max: 21,
            ..defaults()
        })
        .to_string(),
        "got 21 for proxy_depth_max, expected at most 20"
    );
    for settings in [
        GridSettings {
            clock_skew_seconds: 301,
            ..defaults()
        },
        GridSettings {
            policy_languages: vec!["1.2.3".into(); 65],
            ..defaults()
        },
        GridSettings {
            attribute_targets: vec!["a".into(); 65],
            ..defaults()
        },
    ] {
        assert!(matches!(refused(settings), SettingsError::TooLarge { .. }));
    }
    for language in ["", "1", "1.2", "1..3", "1.2.x", "1.2.3 "] {
        let settings = GridSettings {
            policy_languages: vec![language.into()],
            ..defaults()
        };
        assert!(
            matches!(refused(settings), SettingsError::BadLanguage { .. }),
            "{language}"
        );
    }
}

/// Many certificates of one name and one issuer ask for a search without end; it has one.
#[test]
fn the_search_for_a_path_is_bounded() {
    let root = authority("CA");
    let loops: Vec<Issuer> = (0..30)
        .map(|_| {
            let mut parameters = user_parameters("loop");
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            parameters.key_usages.clear();
            CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
        })
        .collect();
    let alice = issue(user_parameters("alice"), &loops[29]);
    let mut chain = vec![&alice];
    chain.extend(&loops);
    let verifier = verifier(directory(&root));
    let error = present(&verifier, &chain).unwrap_err();
    assert!(
        matches!(
            error,
            IdentityError::TooManySignatures | IdentityError::UnknownAuthority { .. }
        ),
        "{error}"
    );
    chain.push(&root);
    chain.push(&root);
    assert_eq!(
        present(&verifier, &chain).unwrap_err(),
        IdentityError::ChainTooLong { got: 33, max: 32 }
    );
}

/// A user's old certificate beside the new one: the key tells which of them issued the proxy.
#[test]
fn of_two_issuers_of_one_name_the_one_that_signed_counts() {
    let root = authority("CA");
    let old = issue(user_parameters("alice"), &root);
    let new = issue(user_parameters("alice"), &root);
    let proxy = issue(proxy_parameters("alice", &["1"]), &new);
    let verifier = verifier(directory(&root));
    for chain in [[&proxy, &old, &new], [&proxy, &new, &old]] {
        let peer = present(&verifier, &chain).unwrap();
        assert_eq!(peer.proxy().unwrap().depth, 1);
    }
    let error = present(&verifier, &[&proxy, &old]).unwrap_err();
    assert!(
        matches!(error, IdentityError::WrongSignature { .. }),
        "{error}"
    );
    let strangers: Vec<_> = (0..30)
        .map(|_| issue(user_parameters("alice"), &root))
        .collect();
    let mut chain = vec![&proxy];
    chain.extend(&strangers);
    assert!(present(&verifier, &chain).is_err());
}

#[test]
fn a_changed_byte_anywhere_is_refused() {
    let root = authority("CA");
    let alice = issue(user_parameters("alice"), &root);
    let proxy = issue(proxy_parameters("alice", &["1"]), &alice);
    let verifier = verifier(directory(&root));
    let chain = ders(&[&proxy, &alice]);
    assert!(verifier.judge(&chain, at(NOW)).is_ok());
    for certificate in 0..2 {
        for position in 0..chain[certificate].len() {
            let mut changed = chain.clone();
            let mut bytes = chain[certificate].to_vec();
            bytes[position] ^= 1;
            changed[certificate] = bytes.into();
            assert!(
                verifier.judge(&changed, at(NOW)).is_err(),
                "byte {position} of {certificate}"
            );
        }
    }
}

/// One change to a chain: bytes, order, or number of certificates.
#[derive(Clone, Debug)]
enum Change {
    Byte(prop::sample::Index, prop::sample::Index, u8),
    Cut(prop::sample::Index, prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Remove(prop::sample::Index),
    Double(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), index(), any::<u8>()).prop_map(|(a, b, c)| Change::Byte(a, b, c)),
        (index(), index()).prop_map(|(a, b)| Change::Cut(a, b)),
        (index(), index()).prop_map(|(a, b)| Change::Swap(a, b)),
        index().prop_map(Change::Remove),
        index().prop_map(Change::Double),
    ]
}

fn apply(chain: &mut Vec<CertificateDer<'static>>, change: &Change) {
    if chain.is_empty() {
        return;
    }
    match change {
        Change::Byte(certificate, position, byte) => {
            let certificate = certificate.index(chain.len());
            let mut bytes = chain[certificate].to_vec();
            if !bytes.is_empty() {
                *position.get_mut(&mut bytes) = *byte;
            }
            chain[certificate] = bytes.into();
        }
        Change::Cut(certificate, length) => {
            let certificate = certificate.index(chain.len());
            let bytes = chain[certificate].to_vec();
            let length = length.index(bytes.len() + 1);
            chain[certificate] = bytes[..length].to_vec().into();
        }
        Change::Swap(one, other) => {
            let count = chain.len();
            chain.swap(one.index(count), other.index(count));
        }
        Change::Remove(one) => {
            chain.remove(one.index(chain.len()));
        }
        Change::Double(one) => chain.push(one.get(chain).clone()),
    }
}

proptest! {
    /// Whatever is done to a good chain, it is refused, or it is still the same person.
    #[test]
    fn a_changed_chain_is_refused_or_the_same(changes in prop::collection::vec(change(), 1..6)) {
        let (verifier, chain) = good_chain();
        let mut changed = chain.clone();
        for change in &changes {
            apply(&mut changed, change);
        }
        if let Ok(peer) = verifier.judge(&changed, at(NOW)) {
            prop_assert_eq!(peer.name(), "/O=Grid/OU=alice");
            prop_assert!(chain.contains(&changed[0]));
        }
    }
}

fn good_chain() -> &'static (GridVerifier, Vec<CertificateDer<'static>>) {
    static GOOD: std::sync::OnceLock<(GridVerifier, Vec<CertificateDer<'static>>)> =
        std::sync::OnceLock::new();
    GOOD.get_or_init(|| {
        let root = authority("CA");
        let alice = issue(user_parameters("alice"), &root);
        let first = issue(proxy_parameters("alice", &["1"]), &alice);
        let second = issue(proxy_parameters("alice", &["1", "2"]), &first);
        let chain = ders(&[&second, &first, &alice]);
        (verifier(directory(&root)), chain)
    })
}
