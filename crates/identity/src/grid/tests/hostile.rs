//! Chains whose makers hold good certificates and want more than these give them.

use rcgen::DnValue;

use super::fixture::*;
use super::*;
use crate::authorization::Authorization;

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
