//! Every case of `vectors/identity`, which OpenSSL and voms-proxy-fake made, judged at its fixed time.

#![expect(
    clippy::disallowed_methods,
    reason = "the cases are files, and a test may read them"
)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{
    GridSettings, GridVerifier, IdentityError, NameSpaceRule, NameSpaces, ProxyFault, ProxyKind,
    Revocation, TrustFile, TrustStore, VerifiedIdentity,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde::Deserialize;

#[derive(Deserialize)]
struct Manifest {
    time: u64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    chain: String,
    trust: String,
    vomsdir: String,
    settings: Settings,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    revocation: Option<String>,
    name_spaces: Option<String>,
    legacy_proxies: Option<bool>,
    draft_proxies: Option<bool>,
    proxy_depth_max: Option<usize>,
    policy_languages: Option<Vec<String>>,
    attribute_targets: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Expect {
    accepted: bool,
    reason: Option<String>,
    identity: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    limited: Option<bool>,
    independent: Option<bool>,
    depth: Option<usize>,
}

impl Settings {
    fn read(&self) -> GridSettings {
        let defaults = GridSettings::default();
        GridSettings {
            revocation: match self.revocation.as_deref() {
                Some("where-listed") => Revocation::WhereListed,
                None | Some("require") => Revocation::Require,
                Some(other) => panic!("revocation {other}"),
            },
            name_spaces: match self.name_spaces.as_deref() {
                Some("where-present") => NameSpaces::WherePresent,
                None | Some("require") => NameSpaces::Require,
                Some(other) => panic!("name_spaces {other}"),
            },
            legacy_proxies: self.legacy_proxies.unwrap_or(defaults.legacy_proxies),
            draft_proxies: self.draft_proxies.unwrap_or(defaults.draft_proxies),
            proxy_depth_max: self.proxy_depth_max.unwrap_or(defaults.proxy_depth_max),
            policy_languages: self.policy_languages.clone().unwrap_or_default(),
            attribute_targets: self.attribute_targets.clone().unwrap_or_default(),
            clock_skew_seconds: 0,
        }
    }
}

/// The rules of the manifest that an error can stand for.
fn reasons(error: &IdentityError) -> &'static [&'static str] {
    match error {
        IdentityError::WrongRole { .. }
        | IdentityError::WrongName { .. }
        | IdentityError::RevocationListForged { .. }
        | IdentityError::PathRule { .. }
        | IdentityError::TooManyAuthorities
        | IdentityError::TooManySignatures
        | IdentityError::Claim { .. } => &[],
        // A file without a block.
        IdentityError::NoCertificate => &["encoding"],
        IdentityError::ChainTooLong { .. } => &["chain-length"],
        IdentityError::Malformed { .. } => &[
            "encoding",
            "extension-once",
            "certificate-size",
            "extension-size",
            "proxy-info",
        ],
        IdentityError::UnknownAuthority { .. } => &["trust-anchor", "signature"],
        IdentityError::Expired { .. }
        | IdentityError::NotYetValid { .. }
        | IdentityError::AuthorityOutOfDate { .. } => &["validity"],
        IdentityError::Revoked { .. } => &["revoked"],
        IdentityError::RevocationListStale { .. }
        | IdentityError::RevocationListFromFuture { .. } => &["crl-current"],
        // A list that can't be used never gets into the store, which reports it.
        IdentityError::NoRevocationList { .. } => {
            &["crl-missing", "crl-issuer", "crl-extensions", "digest"]
        }
        IdentityError::UnknownCriticalExtension { .. } => &["critical-extension"],
        IdentityError::WeakKey { .. } => &["key-strength"],
        IdentityError::WeakSignature { .. } => &["digest"],
        IdentityError::WrongSignature { .. } => &["signature"],
        IdentityError::UntrustedAuthority { .. } => {
            &["ca-key-usage", "key-strength", "ca-basic-constraints"]
        }
        IdentityError::PathLength { .. } => &["ca-path-length"],
        IdentityError::NameNotPermitted { rule, .. } => match rule {
            NameSpaceRule::NameConstraints => &["name-constraints"],
            NameSpaceRule::SigningPolicy => &["signing-policy"],
            NameSpaceRule::Namespaces => &["namespaces"],
        },
        IdentityError::NoNameSpace { .. } => &["signing-policy"],
        IdentityError::AuthorityAsLeaf { .. } => &["end-entity"],
        IdentityError::LeafAsAuthority { .. } => &["ca-basic-constraints", "end-entity"],
        IdentityError::WrongUsage { expected, .. } => match *expected {
            "key usage for digital signatures" => &["key-usage", "proxy-usage"],
            "key usage for signing certificates" => &["ca-key-usage"],
            _ => &["extended-key-usage"],
        },
        IdentityError::Proxy { fault, .. } => proxy_reasons(fault),
    }
}

fn proxy_reasons(fault: &ProxyFault) -> &'static [&'static str] {
    match fault {
        ProxyFault::NotCritical => &["proxy-info"],
        ProxyFault::AlternativeName | ProxyFault::IssuerAlternativeName => {
            &["proxy-alternative-names"]
        }
        ProxyFault::IsAuthority => &["proxy-not-ca"],
        ProxyFault::SignsCertificates | ProxyFault::IssuerMayNotSign => &["proxy-usage"],
        ProxyFault::IssuedByAuthority { .. } => &["proxy-issuer"],
        ProxyFault::IssuerNotInChain { .. } => &["trust-anchor"],
        ProxyFault::Subject { .. } => &["proxy-name"],
        ProxyFault::PathLength { .. } => &["proxy-path-length"],
        ProxyFault::UnknownLanguage { .. } | ProxyFault::UnexpectedPolicy => &["proxy-language"],
        ProxyFault::FullBelowLimited => &["proxy-limited"],
        ProxyFault::KindOff { kind, .. } => match kind {
            ProxyKind::Draft => &["proxy-draft"],
            _ => &["proxy-legacy"],
        },
        ProxyFault::Mixed { .. } => &["proxy-mixed"],
        ProxyFault::TooDeep { .. } => &["proxy-depth"],
        ProxyFault::NoProxy { .. } => &["proxy-issuer"],
    }
}

fn differences(expect: &Expect, verdict: &Result<VerifiedIdentity, IdentityError>) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |what: &str, got: String, expected: String| {
        if got != expected {
            differences.push(format!("{what}: got {got}, expected {expected}"));
        }
    };
    match verdict {
        Err(error) if expect.accepted => compare("verdict", error.to_string(), "accepted".into()),
        Ok(peer) if !expect.accepted => compare(
            "verdict",
            format!("accepted as {peer}"),
            format!("{:?}", expect.reason),
        ),
        Err(error) => {
            let expected = expect.reason.as_deref().unwrap_or_default();
            if !reasons(error).contains(&expected) {
                compare("reason", error.to_string(), expected.to_owned());
            }
        }
        Ok(peer) => {
            let proxy = peer.proxy();
            let kind = match proxy.map(|proxy| proxy.kind) {
                None => "end-entity",
                Some(ProxyKind::Rfc3820) => "rfc3820",
                Some(ProxyKind::Draft) => "draft",
                Some(ProxyKind::Legacy) => "legacy",
            };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            compare("identity", peer.subject().slash(), text(&expect.identity));
            compare("type", kind.to_owned(), text(&expect.kind));
            let leaf = exoskel_identity::CertificateDetails::read(&peer.chain()[0]).unwrap();
            assert_eq!(leaf.serial, peer.serial());
            compare(
                "depth",
                proxy.map_or(0, |proxy| proxy.depth).to_string(),
                expect.depth.unwrap_or_default().to_string(),
            );
            compare(
                "limited",
                proxy.is_some_and(|proxy| proxy.limited).to_string(),
                expect.limited.unwrap_or_default().to_string(),
            );
            compare(
                "independent",
                proxy.is_some_and(|proxy| proxy.independent).to_string(),
                expect.independent.unwrap_or_default().to_string(),
            );
        }
    }
    differences
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity")
}

/// The files below a directory, named as a trust directory's are.
fn files(directory: &Path) -> Vec<TrustFile> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap();
                found.push(TrustFile {
                    name: name.to_str().unwrap().to_owned(),
                    content: fs::read(&path).unwrap(),
                });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[test]
fn every_vector_is_judged_as_its_rule_says() {
    let root = vectors();
    let manifest: Manifest =
        serde_json::from_slice(&fs::read(root.join("manifest.json")).unwrap()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(manifest.time));
    let mut stores: HashMap<(String, String), Arc<TrustStore>> = HashMap::new();
    let mut failures = Vec::new();
    for case in &manifest.cases {
        let key = (case.trust.clone(), case.vomsdir.clone());
        let store = stores.entry(key).or_insert_with(|| {
            let (anchors, voms) = (root.join(&case.trust), root.join(&case.vomsdir));
            Arc::new(TrustStore::load(files(&anchors), files(&voms), None, 1).0)
        });
        let settings = Arc::new(case.settings.read());
        let verifier = GridVerifier::new(Arc::clone(store), settings).unwrap();
        let chain: Vec<_> = CertificateDer::pem_file_iter(root.join(&case.chain))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let found = differences(&case.expect, &verifier.judge(&chain, now));
        failures.extend(found.into_iter().map(|one| format!("{}: {one}", case.name)));
    }
    assert!(manifest.cases.len() > 100, "{}", manifest.cases.len());
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
