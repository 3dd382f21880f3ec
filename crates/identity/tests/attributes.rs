//! What virtual organisations say about the owners of the chains in `vectors/identity`. What the chains themselves
//! amount to is tested in `vectors.rs`.

#![expect(
    clippy::disallowed_methods,
    reason = "the cases are files, and a test may read them"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::{
    AttributeProblem, GridSettings, GridVerifier, NameSpaces, Revocation, TrustFile, TrustStore,
    VerifiedIdentity,
};
use rustls_pki_types::pem::PemObject;
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
    #[serde(default)]
    settings: Settings,
    expect: Expect,
}

#[derive(Default, Deserialize)]
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
    vo: Option<String>,
    #[serde(default)]
    fqans: Vec<String>,
    #[serde(default)]
    attribute_reasons: Vec<String>,
    #[serde(default)]
    generic: Vec<(String, String)>,
    expires: Option<u64>,
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity")
}

fn files(root: &Path) -> Vec<TrustFile> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            files.push(TrustFile {
                name: path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(),
                content: std::fs::read(&path).unwrap(),
            });
        }
    }
    files
}

fn settings(written: Settings) -> GridSettings {
    let plain = GridSettings::default();
    GridSettings {
        revocation: match written.revocation.as_deref() {
            None | Some("require") => Revocation::Require,
            Some("where-listed") => Revocation::WhereListed,
            Some(other) => panic!("{other}"),
        },
        name_spaces: match written.name_spaces.as_deref() {
            None | Some("require") => NameSpaces::Require,
            Some("where-present") => NameSpaces::WherePresent,
            Some(other) => panic!("{other}"),
        },
        legacy_proxies: written.legacy_proxies.unwrap_or(plain.legacy_proxies),
        draft_proxies: written.draft_proxies.unwrap_or(plain.draft_proxies),
        proxy_depth_max: written.proxy_depth_max.unwrap_or(plain.proxy_depth_max),
        policy_languages: written.policy_languages.unwrap_or_default(),
        attribute_targets: written.attribute_targets.unwrap_or_default(),
        clock_skew_seconds: 0,
    }
}

/// The rules of the manifest that a problem can stand for.
fn rules(problem: &AttributeProblem) -> &'static [&'static str] {
    use AttributeProblem as Problem;
    match problem {
        Problem::NotInherited | Problem::NotNearest => &["ac-place"],
        Problem::Malformed { field: "holder" } => &["ac-holder"],
        Problem::Malformed { .. } | Problem::TooMany { .. } => &["ac-encoding"],
        Problem::TwoAlgorithms | Problem::Signature { .. } => &["ac-signature"],
        Problem::OtherThanPinned { .. } => &["ac-signer-pinned"],
        Problem::UnknownCriticalExtension { .. } => &["ac-extensions"],
        Problem::OtherHolder { .. } => &["ac-holder"],
        Problem::NotYetValid { .. } | Problem::Expired { .. } => &["ac-validity"],
        Problem::OtherTarget { .. } => &["ac-targets"],
        Problem::BadPolicyAuthority { .. } => &["ac-vo"],
        Problem::NoAttributes | Problem::BadFqan(_) | Problem::ForeignFqan { .. } => {
            &["ac-attributes"]
        }
        // Neither a list nor a pinned certificate that can be used: which of them is missing is for the site to say.
        Problem::UnknownServer { .. } => &["ac-vo", "ac-signer-list", "ac-signer-pinned"],
        Problem::NoSignerCertificate { .. } | Problem::OtherChain { .. } => &["ac-signer-list"],
        Problem::OtherSigner { .. } => &["ac-issuer"],
        Problem::SignerUsage { .. } | Problem::Signer(_) => &["ac-signer-path"],
    }
}

/// Says how the attributes differ from what the manifest expects, if they do.
fn difference(who: &VerifiedIdentity, expect: &Expect) -> Option<String> {
    let fqans: Vec<String> = who.fqans().map(ToString::to_string).collect();
    let faults: Vec<String> = who.attribute_faults().iter().map(ToString::to_string).collect();
    if who.vo() != expect.vo.as_deref() || fqans != expect.fqans {
        return Some(format!("got {:?} {fqans:?}; {faults:?}", who.vo()));
    }
    let reasons_fit = who.attribute_faults().len() == expect.attribute_reasons.len()
        && who
            .attribute_faults()
            .iter()
            .zip(&expect.attribute_reasons)
            .all(|(fault, reason)| rules(&fault.problem).contains(&reason.as_str()));
    if !reasons_fit {
        return Some(format!("got {faults:?}, expected {:?}", expect.attribute_reasons));
    }
    let generic: Vec<(String, String)> = who
        .attributes()
        .iter()
        .flat_map(|one| one.generic())
        .map(|one| (one.name.clone(), one.value.clone()))
        .collect();
    if generic != expect.generic {
        return Some(format!("got {generic:?}"));
    }
    let ends = who.not_after().as_secs();
    expect
        .expires
        .filter(|expires| *expires != ends)
        .map(|expires| format!("ends at {ends}, expected {expires}"))
}

#[test]
fn every_chain_gives_the_attributes_that_the_manifest_states() {
    let text = std::fs::read_to_string(vectors().join("manifest.json")).unwrap();
    let manifest: Manifest = serde_json::from_str(&text).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(manifest.time));
    let mut stores: BTreeMap<(String, String), Arc<TrustStore>> = BTreeMap::new();
    let (mut judged, mut with_attributes, mut with_faults) = (0, 0, 0);
    let mut wrong = Vec::new();
    for case in manifest.cases {
        if !case.expect.accepted {
            continue;
        }
        let place = (case.trust.clone(), case.vomsdir.clone());
        let store = stores.entry(place).or_insert_with(|| {
            let anchors = files(&vectors().join(&case.trust));
            let vomsdir = files(&vectors().join(&case.vomsdir));
            Arc::new(TrustStore::load(anchors, vomsdir, None, 1).0)
        });
        let verifier = GridVerifier::new(store.clone(), Arc::new(settings(case.settings))).unwrap();
        let chain: Vec<_> = CertificateDer::pem_file_iter(vectors().join(&case.chain))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        judged += 1;
        match verifier.judge(&chain, now) {
            Ok(who) => {
                with_attributes += usize::from(who.vo().is_some());
                with_faults += usize::from(!who.attribute_faults().is_empty());
                if let Some(difference) = difference(&who, &case.expect) {
                    wrong.push(format!("{}: {difference}", case.name));
                }
            }
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {judged}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(with_attributes > 30 && with_faults > 40, "{with_attributes} {with_faults}");
}
