//! Grid credentials and whom a site trusts, for Python: what a chain says, whether it is good, what a trust directory holds.

use std::path::PathBuf;
use std::time::Duration;

use exoskel_identity::authorization::{Authorization, IdentityPattern};
use exoskel_identity::limits::{CREDENTIAL_BYTES_MAX, GRID_CHAIN_CERTIFICATES_MAX};
use exoskel_identity::{
    AttributeCertificateDetails, AuthorityReport, CertificateDetails, CertificateKind,
    ChainCertificate, ChainDetails, Credential, CredentialKind, DecisionCacheLimits, Expected,
    Fqan, GenericAttribute, GridSettings, NameSpaces, PeerVerifier as _, PolicyLanguage, Proxy,
    ProxyKind, Revocation, RevocationListReport, Role, SelfSignature, VerifiedIdentity,
    VomsAttributes, hex,
};
use exoskel_trust::{Rules, Trust, TrustDirectories, read_credential};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::error::{ExceptionKind, raise};
use crate::time::now;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GridTrust>()?;
    module.add_function(wrap_pyfunction!(certificates_of, module)?)?;
    module.add_function(wrap_pyfunction!(chain_details, module)?)?;
    module.add_function(wrap_pyfunction!(read_grid_credential, module)?)?;
    module.add_function(wrap_pyfunction!(states_role, module)?)?;
    module.add_function(wrap_pyfunction!(decide_by_credential, module)?)?;
    module.add_function(wrap_pyfunction!(matching_attribute, module)?)
}

/// By which rules chains are judged; the keys are those of `exoskel_identity::GridSettings`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct JudgementOptions {
    revocation: String,
    name_spaces: String,
    legacy_proxies: bool,
    draft_proxies: bool,
    proxy_depth_max: usize,
    policy_languages: Vec<String>,
    attribute_targets: Vec<String>,
}

impl JudgementOptions {
    pub(crate) fn settings(self) -> PyResult<GridSettings> {
        let unknown = |option: &str, got: &str, expected: &str| {
            PyValueError::new_err(format!("got {got:?} for {option}, expected {expected}"))
        };
        Ok(GridSettings {
            revocation: match self.revocation.as_str() {
                "require" => Revocation::Require,
                "where-listed" => Revocation::WhereListed,
                got => {
                    return Err(unknown(
                        "revocation",
                        got,
                        "\"require\" or \"where-listed\"",
                    ));
                }
            },
            name_spaces: match self.name_spaces.as_str() {
                "require" => NameSpaces::Require,
                "where-present" => NameSpaces::WherePresent,
                got => {
                    return Err(unknown(
                        "name_spaces",
                        got,
                        "\"require\" or \"where-present\"",
                    ));
                }
            },
            legacy_proxies: self.legacy_proxies,
            draft_proxies: self.draft_proxies,
            proxy_depth_max: self.proxy_depth_max,
            policy_languages: self.policy_languages,
            attribute_targets: self.attribute_targets,
            ..GridSettings::default()
        })
    }
}

/// The trust directories of a site, read once.
#[pyclass(frozen)]
pub(crate) struct GridTrust {
    trust: std::sync::Arc<Trust>,
    settings: GridSettings,
}

#[pymethods]
impl GridTrust {
    #[new]
    fn new(
        py: Python<'_>,
        anchors: PathBuf,
        vomsdir: Option<PathBuf>,
        judgement: JudgementOptions,
    ) -> PyResult<Self> {
        let settings = judgement.settings()?;
        let directories = TrustDirectories { anchors, vomsdir };
        let asked = settings.clone();
        let trust = py
            .detach(|| Trust::open(directories, asked, DecisionCacheLimits::OFF))
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { trust, settings })
    }

    /// Judges a chain (DER, leaf first) at a time, now without one.
    fn judge<'py>(
        &self,
        py: Python<'py>,
        chain: Vec<Vec<u8>>,
        at: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let chain: Vec<CertificateDer<'_>> = chain.into_iter().map(CertificateDer::from).collect();
        let verifier = self.trust.current();
        let verdict = py.detach(|| verifier.judge(&chain, time(at)));
        match verdict {
            Ok(identity) => identity_fields(py, &identity),
            Err(error) => Err(raise(py, ExceptionKind::Authentication, error.to_string())),
        }
    }

    /// Judges a chain as [`judge`](Self::judge) does, and whether its owner may do something by the rules of a policy file with
    /// its ban list and its grid-mapfile.
    fn decide<'py>(
        &self,
        py: Python<'py>,
        chain: Vec<Vec<u8>>,
        at: Option<u64>,
        policy: PathBuf,
        action: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let chain: Vec<CertificateDer<'_>> = chain.into_iter().map(CertificateDer::from).collect();
        let verifier = self.trust.current();
        let rules = Rules::open(&policy)
            .map_err(|error| raise(py, ExceptionKind::Policy, error.to_string()))?
            .current();
        let identity = py
            .detach(|| verifier.judge(&chain, time(at)))
            .map_err(|error| raise(py, ExceptionKind::Authentication, error.to_string()))?;
        decision_fields(py, &rules, &identity, action)
    }

    /// What was loaded, and what would be refused at a time, now without one.
    fn report<'py>(&self, py: Python<'py>, at: Option<u64>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.trust.report();
        let at = time(at);
        let found = PyDict::new(py);
        found.set_item("time", at.as_secs())?;
        let authorities = report
            .authorities
            .iter()
            .map(|one| authority(py, one, &self.settings, at));
        found.set_item("authorities", authorities.collect::<PyResult<Vec<_>>>()?)?;
        let bad_files = report.bad_files.iter().map(|bad| {
            let row = PyDict::new(py);
            row.set_item("name", &bad.name)?;
            row.set_item("reason", bad.reason.to_string())?;
            Ok(row)
        });
        found.set_item("bad_files", bad_files.collect::<PyResult<Vec<_>>>()?)?;
        let strays = report.lists_without_authority.iter();
        let strays = strays.map(|list| revocation_list(py, list, at));
        let strays = strays.collect::<PyResult<Vec<_>>>()?;
        found.set_item("lists_without_authority", strays)?;
        found.set_item("stale_lists", report.stale_lists(at))?;
        found.set_item("voms_files", report.voms_files)?;
        Ok(found)
    }
}

/// The certificates of a PEM text, in their order. A key in it is skipped and erased.
#[pyfunction]
fn certificates_of<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    if text.len() > CREDENTIAL_BYTES_MAX {
        let got = text.len();
        let text = format!("got {got} bytes, expected at most {CREDENTIAL_BYTES_MAX}");
        return Err(raise(py, ExceptionKind::Credential, text));
    }
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text) {
        // The library's own message repeats the line, which can be one of a key.
        let certificate = certificate.map_err(|_| {
            raise(
                py,
                ExceptionKind::Credential,
                "not well-formed PEM: a block is broken or cut off",
            )
        })?;
        if found.len() > GRID_CHAIN_CERTIFICATES_MAX {
            break;
        }
        found.push(PyBytes::new(py, &certificate));
    }
    if found.is_empty() {
        let text = "got no block CERTIFICATE, expected the leaf's and those behind it";
        return Err(raise(py, ExceptionKind::Credential, text));
    }
    Ok(found)
}

/// What a chain says of itself. Nothing of it is proven.
#[pyfunction]
fn chain_details(py: Python<'_>, chain: Vec<Vec<u8>>) -> PyResult<Bound<'_, PyDict>> {
    let chain: Vec<CertificateDer<'_>> = chain.into_iter().map(CertificateDer::from).collect();
    let details = ChainDetails::read(&chain);
    let found = PyDict::new(py);
    let rows = details.certificates.iter().map(|read| match read {
        Ok(one) => certificate(py, one),
        Err(reason) => {
            let row = PyDict::new(py);
            row.set_item("unreadable", reason.to_string())?;
            Ok(row)
        }
    });
    found.set_item("certificates", rows.collect::<PyResult<Vec<_>>>()?)?;
    let subject = details.subject.as_ref();
    found.set_item("identity", subject.map(|name| name.slash()))?;
    set_proxy(&found, details.proxy.as_ref())?;
    let attributes = details.attributes.iter().map(|one| claimed(py, one));
    found.set_item("attributes", attributes.collect::<PyResult<Vec<_>>>()?)?;
    Ok(found)
}

/// The chain of a credential file that is ready for use: private, its key plain and the leaf's own.
#[pyfunction]
fn read_grid_credential(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Bound<'_, PyBytes>>> {
    let credential = read_credential(path)
        .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))?;
    if credential.kind() != CredentialKind::Grid {
        let text = "got a credential of a private authority (exoskel pki), expected a grid's";
        return Err(raise(py, ExceptionKind::Credential, text));
    }
    let chain = credential.chain().iter();
    Ok(chain.map(|one| PyBytes::new(py, one)).collect())
}

/// Whether a certificate states a role and a name of ours, as those of private authorities do.
#[pyfunction]
fn states_role(certificate: &[u8]) -> bool {
    CertificateDetails::read(&CertificateDer::from(certificate))
        .is_ok_and(|details| details.claim.is_ok())
}

/// The first of some attributes that a pattern of them means, as policies write it; none, when it means none of them.
#[pyfunction]
fn matching_attribute(pattern: &str, attributes: Vec<String>) -> PyResult<Option<String>> {
    let wrong = |why: String| {
        PyValueError::new_err(format!(
            "got {pattern:?}, expected an attribute like \"/vo/group/Role=production\": {why}"
        ))
    };
    let parsed = IdentityPattern::parse(pattern).map_err(|problem| wrong(problem.to_string()))?;
    if !parsed.is_of_attributes() {
        return Err(wrong("this is no attribute's name".to_owned()));
    }
    let mut matching = attributes
        .into_iter()
        .filter_map(|text| text.parse::<Fqan>().ok())
        .map(|fqan| fqan.to_string());
    Ok(matching.find(|fqan| parsed.matches_attribute(fqan)))
}

/// The fields of `exoskel.identity.Identity`.
pub(crate) fn identity_fields<'py>(
    py: Python<'py>,
    identity: &VerifiedIdentity,
) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let subject = identity.subject();
    fields.set_item("dn", subject.slash())?;
    fields.set_item("rfc2253", subject.rfc2253())?;
    fields.set_item("role", identity.role().as_str())?;
    fields.set_item("name", identity.name())?;
    fields.set_item("vo", identity.vo())?;
    fields.set_item("fqans", fqans(identity.fqans()))?;
    set_proxy(&fields, identity.proxy())?;
    let attributes = identity.attributes().iter().map(|one| proven(py, one));
    fields.set_item("attributes", attributes.collect::<PyResult<Vec<_>>>()?)?;
    let faults = identity.attribute_faults().iter();
    let faults: Vec<String> = faults.map(ToString::to_string).collect();
    fields.set_item("attribute_faults", faults)?;
    fields.set_item("expires", identity.not_after().as_secs())?;
    let serials: Vec<String> = identity.serials().iter().map(|one| hex(one)).collect();
    fields.set_item("serials", serials)?;
    let chain = identity.chain().iter();
    let chain: Vec<_> = chain.map(|one| PyBytes::new(py, one)).collect();
    fields.set_item("chain", chain)?;
    Ok(fields)
}

fn set_proxy(fields: &Bound<'_, PyDict>, proxy: Option<&Proxy>) -> PyResult<()> {
    let kind = proxy.map_or("end-entity", |proxy| word(proxy.kind));
    fields.set_item("type", kind)?;
    fields.set_item("depth", proxy.map_or(0, |proxy| proxy.depth))?;
    fields.set_item("limited", proxy.is_some_and(|proxy| proxy.limited))?;
    fields.set_item("independent", proxy.is_some_and(|proxy| proxy.independent))
}

fn word(kind: ProxyKind) -> &'static str {
    match kind {
        ProxyKind::Rfc3820 => "rfc3820",
        ProxyKind::Draft => "draft",
        ProxyKind::Legacy => "legacy",
    }
}

fn certificate<'py>(py: Python<'py>, one: &ChainCertificate) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("subject", one.subject.slash())?;
    row.set_item("issuer", one.issuer.slash())?;
    row.set_item("serial", hex(&one.serial))?;
    row.set_item("not_before", one.not_before.as_secs())?;
    row.set_item("not_after", one.not_after.as_secs())?;
    row.set_item("key", &one.key)?;
    match &one.kind {
        CertificateKind::Authority => row.set_item("type", "authority")?,
        CertificateKind::EndEntity => row.set_item("type", "end-entity")?,
        CertificateKind::Proxy {
            kind,
            language,
            path_length,
        } => {
            row.set_item("type", word(*kind))?;
            let inherits = match language {
                PolicyLanguage::InheritAll => "all",
                PolicyLanguage::Independent => "nothing",
                PolicyLanguage::Limited => "limited",
                PolicyLanguage::Other(language) => language,
            };
            row.set_item("inherits", inherits)?;
            row.set_item("path_length", *path_length)?;
        }
    }
    Ok(row)
}

fn claimed<'py>(
    py: Python<'py>,
    one: &AttributeCertificateDetails,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("vo", &one.vo)?;
    row.set_item("server", &one.server)?;
    row.set_item("fqans", fqans(one.fqans.iter()))?;
    row.set_item("generic", generic(py, &one.generic)?)?;
    row.set_item("issuer", one.issuer.slash())?;
    row.set_item("serial", hex(&one.serial))?;
    row.set_item("not_before", one.not_before.as_secs())?;
    row.set_item("not_after", one.not_after.as_secs())?;
    row.set_item("targets", &one.targets)?;
    Ok(row)
}

fn proven<'py>(py: Python<'py>, one: &VomsAttributes) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("vo", one.vo())?;
    row.set_item("server", one.server())?;
    row.set_item("fqans", fqans(one.fqans().iter()))?;
    row.set_item("generic", generic(py, one.generic())?)?;
    row.set_item("issuer", one.issuer().slash())?;
    row.set_item("serial", hex(one.serial()))?;
    row.set_item("not_after", one.not_after().as_secs())?;
    Ok(row)
}

fn generic<'py>(
    py: Python<'py>,
    attributes: &[GenericAttribute],
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let rows = attributes.iter().map(|one| {
        let row = PyDict::new(py);
        row.set_item("name", &one.name)?;
        row.set_item("value", &one.value)?;
        row.set_item("qualifier", &one.qualifier)?;
        Ok(row)
    });
    rows.collect()
}

fn fqans<'a>(fqans: impl Iterator<Item = &'a Fqan>) -> Vec<String> {
    fqans.map(ToString::to_string).collect()
}

fn authority<'py>(
    py: Python<'py>,
    one: &AuthorityReport,
    settings: &GridSettings,
    at: UnixTime,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("subject", one.subject.slash())?;
    row.set_item("files", &one.files)?;
    row.set_item("key", &one.key)?;
    row.set_item("not_before", one.not_before.as_secs())?;
    row.set_item("not_after", one.not_after.as_secs())?;
    let (signature, issuer) = match &one.self_signature {
        SelfSignature::Good { algorithm } => (algorithm.clone(), None),
        SelfSignature::Unchecked => ("unchecked".to_owned(), None),
        SelfSignature::ByAnother { issuer } => ("by another".to_owned(), Some(issuer.slash())),
    };
    row.set_item("self_signature", signature)?;
    row.set_item("issuer", issuer)?;
    row.set_item("usable", one.is_usable)?;
    row.set_item("weaknesses", &one.weaknesses)?;
    row.set_item("refused_because", one.refusals(settings, at))?;
    let list = one.revocation_list.as_ref();
    let list = list.map(|list| revocation_list(py, list, at)).transpose()?;
    row.set_item("revocation_list", list)?;
    row.set_item("signing_policy", one.has_signing_policy)?;
    row.set_item("namespaces", one.has_namespaces)?;
    Ok(row)
}

fn revocation_list<'py>(
    py: Python<'py>,
    list: &RevocationListReport,
    at: UnixTime,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("issuer", list.issuer.slash())?;
    row.set_item("files", &list.files)?;
    row.set_item("this_update", list.this_update.as_secs())?;
    row.set_item("next_update", list.next_update.as_secs())?;
    let age = at.as_secs().saturating_sub(list.this_update.as_secs());
    row.set_item("age_seconds", age)?;
    row.set_item("revoked", list.revoked)?;
    Ok(row)
}

/// Judges a chain as somebody with this credential (PEM) does, by the authority in it, and whether its owner may do something by the rules
/// of a policy file.
#[pyfunction]
fn decide_by_credential<'py>(
    py: Python<'py>,
    pem: &[u8],
    chain: Vec<Vec<u8>>,
    at: Option<u64>,
    policy: PathBuf,
    action: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let credential = Credential::from_pem(pem)
        .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))?;
    let authority = credential
        .authority(0)
        .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))?;
    let rules = Rules::open(&policy)
        .map_err(|error| raise(py, ExceptionKind::Policy, error.to_string()))?
        .current();
    // What a peer presents ends below the authority, which its file holds, too.
    let is_presented = |one: &CertificateDer<'_>| {
        !CertificateDetails::read(one).is_ok_and(|read| read.is_authority && read.is_self_issued)
    };
    let mut presented: Vec<CertificateDer<'_>> =
        chain.into_iter().map(CertificateDer::from).collect();
    presented.retain(is_presented);
    let anybody = Expected {
        roles: &Role::ALL,
        name: None,
    };
    let identity = authority
        .verify(&presented, time(at), &anybody)
        .map_err(|error| raise(py, ExceptionKind::Authentication, error.to_string()))?;
    decision_fields(py, &rules, &identity, action)
}

/// What a policy says of somebody's action, and of the code of that somebody.
fn decision_fields<'py>(
    py: Python<'py>,
    rules: &Authorization,
    identity: &VerifiedIdentity,
    action: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let decision = rules.decide(identity, action);
    let answer = PyDict::new(py);
    answer.set_item("identity", identity.name())?;
    answer.set_item("allowed", decision.allowed)?;
    let rule = decision.rule.map(|rule| rule.to_string());
    answer.set_item("rule", rule)?;
    answer.set_item("reason", decision.reason)?;
    answer.set_item("account", rules.account(identity))?;
    let sandbox = rules.sandbox_of(identity);
    let sandbox = sandbox.map(|(allowed, why)| format!("{why}: {allowed}"));
    answer.set_item("sandbox", sandbox)?;
    Ok(answer)
}

fn time(at: Option<u64>) -> UnixTime {
    at.map_or_else(now, |seconds| {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    })
}
