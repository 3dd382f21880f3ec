//! `vectors/identity/manifest.json`, and the files that it speaks of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use exoskel_identity::{
    GridSettings, GridVerifier, IdentityError, NameSpaces, Revocation, TrustFile, TrustStore,
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
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) chain: String,
    pub(crate) trust: String,
    pub(crate) vomsdir: String,
    #[serde(default)]
    pub(crate) settings: Settings,
    pub(crate) expect: Expect,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) revocation: Option<String>,
    pub(crate) name_spaces: Option<String>,
    pub(crate) legacy_proxies: Option<bool>,
    pub(crate) draft_proxies: Option<bool>,
    pub(crate) proxy_depth_max: Option<usize>,
    pub(crate) policy_languages: Option<Vec<String>>,
    pub(crate) attribute_targets: Option<Vec<String>>,
}

#[derive(Deserialize)]
pub(crate) struct Expect {
    pub(crate) accepted: bool,
    pub(crate) reason: Option<String>,
    pub(crate) identity: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) limited: Option<bool>,
    pub(crate) independent: Option<bool>,
    pub(crate) depth: Option<usize>,
    pub(crate) vo: Option<String>,
    #[serde(default)]
    pub(crate) fqans: Vec<String>,
    #[serde(default)]
    pub(crate) attribute_reasons: Vec<String>,
    #[serde(default)]
    pub(crate) generic: Vec<(String, String)>,
    pub(crate) expires: Option<u64>,
}

/// All cases, read once for all tests.
pub(crate) static VECTORS: LazyLock<Vectors> = LazyLock::new(Vectors::read);

/// What is judged, by name.
pub(crate) struct Vectors {
    manifest: Manifest,
    stores: BTreeMap<(String, String), Arc<TrustStore>>,
}

impl Vectors {
    fn read() -> Self {
        let text = std::fs::read_to_string(root().join("manifest.json")).unwrap();
        let manifest: Manifest = serde_json::from_str(&text).unwrap();
        let mut stores = BTreeMap::new();
        for case in &manifest.cases {
            stores
                .entry((case.trust.clone(), case.vomsdir.clone()))
                .or_insert_with(|| Arc::new(case.load(1)));
        }
        Self { manifest, stores }
    }

    pub(crate) fn cases(&self) -> &[Case] {
        &self.manifest.cases
    }

    pub(crate) fn case(&self, name: &str) -> &Case {
        let mut cases = self.cases().iter();
        cases.find(|case| case.name == name).unwrap()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(self.manifest.time))
    }

    /// By the trust and the settings of the case.
    pub(crate) fn verifier(&self, case: &Case) -> GridVerifier {
        let store = &self.stores[&(case.trust.clone(), case.vomsdir.clone())];
        GridVerifier::new(Arc::clone(store), Arc::new(case.settings.read())).unwrap()
    }

    pub(crate) fn judge(&self, case: &Case) -> Result<VerifiedIdentity, IdentityError> {
        self.verifier(case).judge(&case.chain(), self.now())
    }
}

impl Case {
    /// What the peer presents, leaf first.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let certificates = CertificateDer::pem_file_iter(root().join(&self.chain)).unwrap();
        certificates.map(Result::unwrap).collect()
    }

    /// The files of its trust directory.
    pub(crate) fn trust_files(&self) -> Vec<TrustFile> {
        files(&root().join(&self.trust))
    }

    /// The files of its vomsdir.
    pub(crate) fn voms_files(&self) -> Vec<TrustFile> {
        files(&root().join(&self.vomsdir))
    }

    /// The trust of the case, as a generation of that number.
    pub(crate) fn load(&self, generation: u64) -> TrustStore {
        TrustStore::load(self.trust_files(), self.voms_files(), None, generation).0
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity")
}

/// The files below a directory, named as a trust directory's are.
pub(crate) fn files(root: &Path) -> Vec<TrustFile> {
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
                name: path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned(),
                content: std::fs::read(&path).unwrap(),
            });
        }
    }
    files
}

impl Settings {
    fn read(&self) -> GridSettings {
        let plain = GridSettings::default();
        GridSettings {
            revocation: match self.revocation.as_deref() {
                None | Some("require") => Revocation::Require,
                Some("where-listed") => Revocation::WhereListed,
                Some(other) => panic!("{other}"),
            },
            name_spaces: match self.name_spaces.as_deref() {
                None | Some("require") => NameSpaces::Require,
                Some("where-present") => NameSpaces::WherePresent,
                Some(other) => panic!("{other}"),
            },
            legacy_proxies: self.legacy_proxies.unwrap_or(plain.legacy_proxies),
            draft_proxies: self.draft_proxies.unwrap_or(plain.draft_proxies),
            proxy_depth_max: self.proxy_depth_max.unwrap_or(plain.proxy_depth_max),
            policy_languages: self.policy_languages.clone().unwrap_or_default(),
            attribute_targets: self.attribute_targets.clone().unwrap_or_default(),
            clock_skew_seconds: 0,
        }
    }
}
