//! Chains whose makers hold good certificates and want more than these give them.

use rcgen::DnValue;
use rustls_pki_types::CertificateDer;

use super::fixture::*;
use super::*;
use crate::authorization::Authorization;
use crate::x509::Certificate;

/// `proxyCertInfo` with the policy language independent.
fn independent(mut parameters: rcgen::CertificateParams) -> rcgen::CertificateParams {
    let content = [0x30, 12, 0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 21, 2];
    let mut information =
        rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 14], content.to_vec());
    information.set_criticality(true);
    parameters.custom_extensions = vec![information];
    parameters
}

const RULES: &str = r#"
[allow]
managers = ["/O=Grid/*", "*"]
[deny]
banned = ["/O=Grid/OU=mallory"]
[[allow.rule]]
action = "any"
dn = "*"
"#;

/// The owner of an independent proxy chooses its name, and how the letters of the name above it are written.
#[test]
fn an_independent_proxy_is_banned_with_its_owner_however_it_is_spelled() {
    let root = authority("CA");
    let mallory = issue(user_parameters("mallory"), &root);
    let verifier = verifier(directory(&root));
    let bmp = |text: &str| DnValue::BmpString(text.try_into().unwrap());
    let mut wide = proxy_parameters("mallory", &["1"]);
    wide.distinguished_name
        .push(rcgen::DnType::OrganizationalUnitName, bmp("mallory"));
    for below in [
        proxy_parameters("mallory", &["1"]),
        proxy_parameters("mallory", &["1/O=somebody else"]),
        proxy_parameters("mallory", &["1/x"]),
        wide,
    ] {
        let proxy = issue(independent(below), &mallory);
        let peer = present(&verifier, &[&proxy, &mallory]).unwrap();
        assert!(peer.proxy().unwrap().independent);
        let rules = Authorization::parse(RULES).unwrap();
        let decision = rules.decide(&peer, "submit");
        assert!(!decision.allowed, "{decision}");
        let admission = rules.admission(&peer, true);
        assert!(!admission.is_allowed(), "{admission}");
        let rules = Authorization::parse(&RULES.replace(
            "banned = [\"/O=Grid/OU=mallory\"]",
            "managers = [\"/O=Grid/OU=mal*\"]\n[[deny.rule]]\naction = \"any\"\ndn = \"/O=Grid/OU=mal*\"",
        ))
        .unwrap();
        let decision = rules.decide(&peer, "submit");
        assert!(!decision.allowed, "{decision}");
        let admission = rules.admission(&peer, true);
        assert!(!admission.is_allowed(), "{admission}");
    }
}

/// Host certificates of some authorities have no subject but their DNS names.
#[test]
fn a_host_without_a_subject_is_let_in_by_a_list_only() {
    let root = authority("CA");
    let mut parameters = host_parameters(&["lab1.example.org"]);
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let host = issue(parameters, &root);
    let mut files = directory(&root);
    files.retain(|file| !file.name.ends_with("signing_policy"));
    let settings = GridSettings {
        name_spaces: NameSpaces::WherePresent,
        ..GridSettings::default()
    };
    let peer = present(&with(files, settings), &[&host]).unwrap();
    assert_eq!(peer.to_string(), "worker lab1.example.org");
    let admission = Authorization::default().admission(&peer, false);
    assert!(!admission.is_allowed(), "{admission}");
}

fn der(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let length = u16::try_from(content.len()).unwrap();
    let [high, low] = length.to_be_bytes();
    let mut whole = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    whole.extend(content);
    whole
}

/// An attribute certificate of `server` for the holder of that name and serial number.
fn attributes(server: &Issuer, holder: &[u8], serial: &[u8]) -> Vec<u8> {
    use rcgen::SigningKey as _;
    let name = |certificate: &CertificateDer<'static>| {
        Certificate::read(certificate)
            .unwrap()
            .subject
            .as_der()
            .to_vec()
    };
    let general = |name: &[u8]| der(0x30, &[&der(0xa4, &[name])]);
    // ecdsa-with-SHA256
    let algorithm = der(0x30, &[&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]]);
    assert!(server.key().algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256);
    let fqans = [6, 10, 0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 4];
    let values = der(
        0x30,
        &[
            &der(0xa0, &[&der(0x86, &[b"vo://voms.example.org:15000"])]),
            &der(0x30, &[&der(4, &[b"/vo/Role=production"])]),
        ],
    );
    let signed = der(
        0x30,
        &[
            &[2, 1, 1],
            &der(0x30, &[&der(0xa0, &[&general(holder), &der(2, &[serial])])]),
            &der(0xa0, &[&general(&name(server.der()))]),
            &algorithm,
            &[2, 1, 9],
            &der(
                0x30,
                &[
                    &der(0x18, &[b"20270101000000Z"]),
                    &der(0x18, &[b"20280101000000Z"]),
                ],
            ),
            &der(0x30, &[&der(0x30, &[&fqans, &der(0x31, &[&values])])]),
        ],
    );
    let signature = server.key().sign(&signed).unwrap();
    let one = der(0x30, &[&signed, &algorithm, &der(3, &[&[0], &signature])]);
    der(0x30, &[&der(0x30, &[&one])])
}

/// The directories of a grid whose organisation `vo` is served by `server`.
fn with_organisation(root: &Issuer, server: &Issuer) -> GridVerifier {
    let vomsdir = vec![file("vo/voms.pem", server.pem())];
    let (store, _) = TrustStore::load(directory(root), vomsdir, None, 1);
    GridVerifier::new(Arc::new(store), Arc::default()).unwrap()
}

fn carrying(mut parameters: rcgen::CertificateParams, list: Vec<u8>) -> rcgen::CertificateParams {
    const VOMS: [u64; 10] = [1, 3, 6, 1, 4, 1, 8005, 100, 100, 5];
    let extension = rcgen::CustomExtension::from_oid_content(&VOMS, list);
    parameters.custom_extensions.push(extension);
    parameters
}

/// VOMS names the holder by its own name and serial number. Whoever makes a proxy chooses the proxy's serial number, and
/// the proxy's issuer is the holder's name.
#[test]
fn attributes_of_the_owner_are_not_handed_to_an_independent_proxy() {
    let root = authority("CA");
    let server = issue(user_parameters("voms"), &root);
    let alice = issue(user_parameters("alice"), &root);
    let verifier = with_organisation(&root, &server);
    let read = Certificate::read(alice.der()).unwrap();
    let list = attributes(&server, read.subject.as_der(), read.serial_der());
    let own = issue(
        carrying(proxy_parameters("alice", &["1"]), list.clone()),
        &alice,
    );
    let peer = present(&verifier, &[&own, &alice]).unwrap();
    assert_eq!(peer.vo(), Some("vo"), "{:?}", peer.attribute_faults());

    let mut parameters = independent(proxy_parameters("alice", &["1"]));
    parameters.serial_number = Some(rcgen::SerialNumber::from_slice(read.serial_der()));
    let other = issue(carrying(parameters, list), &alice);
    let peer = present(&verifier, &[&other, &alice]).unwrap();
    assert_eq!(peer.vo(), None, "{peer:?}");
    assert_eq!(peer.attribute_faults().len(), 1);
}
