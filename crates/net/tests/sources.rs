//! What a node brings to its handshakes, made of files: what has to be there, and what a change of each file does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::fs;
use std::path::Path;
use std::time::Duration;

use exoskel_identity::{CertificateDetails, Role};
use exoskel_link::keys::KeyStore;
use exoskel_link::{Limits, Protection};
use exoskel_net::pki::{AuthorityDirectory, write_credential};
use exoskel_net::sources::{NodeConfigError, NodeSources, SessionSettings};
use exoskel_trust::{
    CredentialFileError, CredentialSourceError, Document, FileError, PolicyFile, Sources,
    read_credential,
};
use rcgen::{
    CertificateParams, CertificateRevocationListParams, DnType, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, SerialNumber, date_time_ymd,
};

use wire::folder::Folder;
use wire::unix_now;

const DAY: Duration = Duration::from_secs(86_400);

/// A worker of an authority in `folder`, whose credential and policy stand beside it.
fn worker(folder: &Path) -> (AuthorityDirectory, NodeSources) {
    let authority = AuthorityDirectory::initialise(folder.join("ca"), unix_now()).unwrap();
    let credential = authority
        .issue(Role::Worker, "lab1", 30 * DAY, unix_now())
        .unwrap();
    write_credential(folder.join("worker.pem"), &credential).unwrap();
    fs::write(
        folder.join("policy.toml"),
        "[deny]\nban_list = \"banned\"\n",
    )
    .unwrap();
    fs::write(folder.join("banned"), "# nobody\n").unwrap();
    let settings = SessionSettings {
        peer_roles: vec![Role::Manager],
        minimum: Protection::Plain,
        asks_for_each_link: false,
        limits: Limits::default(),
        dead_after: Duration::from_secs(5),
        handshake_time: Duration::from_secs(5),
        versions: Vec::new(),
        same_versions: Vec::new(),
        properties: Vec::new(),
        keys: KeyStore::in_ordinary_memory(8),
        shared_memory: false,
        job: 0,
        process: exoskel_link::handshake::ProcessNumber::new([5; 16]),
    };
    let files = Sources {
        credential: Document::File(folder.join("worker.pem")),
        key: None,
        holder: None,
        revocation_list: None,
        trust: None,
        policy: Some(PolicyFile::new(Document::File(folder.join("policy.toml")))),
    };
    let role = Role::Worker;
    let sources = NodeSources {
        files,
        settings,
        role,
    };
    (authority, sources)
}

#[test]
fn files_make_terms() {
    let folder = Folder::new();
    let (_, sources) = worker(&folder.0);
    let terms = sources.terms().unwrap();
    assert_eq!(terms.credential.identity().to_string(), "worker lab1");
    assert_eq!(terms.policy.authorization().ban_list(), Some("banned"));
    let pid = ("pid".to_owned(), std::process::id().to_string());
    assert_eq!(terms.properties, [pid]);
}

#[test]
fn each_fault_has_its_own_error_and_names_its_file() {
    let folder = Folder::new();
    let (_, sources) = worker(&folder.0);

    let wrong = NodeSources {
        role: Role::Manager,
        ..sources.clone()
    };
    let error = wrong.terms().err().unwrap();
    let own = folder.0.join("worker.pem").display().to_string();
    assert!(
        matches!(
            &error,
            NodeConfigError::Credential(CredentialSourceError::Role {
                file,
                got: Role::Worker,
                expected: Role::Manager
            }) if *file == own
        ),
        "{error}"
    );

    let list = folder.0.join("banned");
    fs::remove_file(&list).unwrap();
    let error = sources.terms().err().unwrap();
    assert!(
        matches!(&error, NodeConfigError::PolicyFile(file) if file.path == list),
        "{error}"
    );
    fs::write(&list, "").unwrap();
    let error = sources.terms().err().unwrap();
    assert!(matches!(error, NodeConfigError::Policy { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with(&format!("the ban list {}: ", list.display())),
        "{error}"
    );

    fs::write(folder.0.join("policy.toml"), "[[rule]]\n").unwrap();
    let error = sources.terms().err().unwrap();
    assert!(matches!(error, NodeConfigError::Policy { .. }), "{error}");

    let credential = folder.0.join("worker.pem");
    fs::remove_file(&credential).unwrap();
    let error = sources.terms().err().unwrap();
    assert!(
        matches!(
            &error,
            NodeConfigError::Credential(CredentialSourceError::File(CredentialFileError::File(
                FileError::Read { path, .. }
            ))) if *path == credential
        ),
        "{error}"
    );
}

#[test]
fn new_terms_are_made_only_when_a_file_has_changed() {
    let folder = Folder::new();
    let (authority, sources) = worker(&folder.0);
    let mut renewal = sources.renewal();
    assert!(renewal.renew().is_none());

    fs::write(folder.0.join("banned"), "somebody.example.org\n").unwrap();
    assert!(renewal.renew().unwrap().is_ok());
    assert!(renewal.renew().is_none());

    fs::write(folder.0.join("policy.toml"), "not a policy").unwrap();
    let error = renewal.renew().unwrap().err().unwrap();
    assert!(matches!(error, NodeConfigError::Policy { .. }), "{error}");
    // The next handshake says so again; a renewal has nothing new to say.
    assert!(renewal.renew().is_none());
    fs::write(folder.0.join("policy.toml"), "").unwrap();
    assert!(renewal.renew().is_some());
    fs::write(folder.0.join("policy.toml"), "[allow]\n").unwrap();
    assert!(renewal.renew().unwrap().is_ok());

    authority.revoke("lab1", unix_now()).unwrap();
    let other = authority
        .issue(Role::Worker, "lab2", 30 * DAY, unix_now())
        .unwrap();
    write_credential(folder.0.join("worker.pem"), &other).unwrap();
    let terms = renewal.renew().unwrap().ok().unwrap();
    assert_eq!(terms.credential.identity().to_string(), "worker lab2");
}

/// A list that was due before now, with the authority's key and a number above all others.
fn stale_list(authority: &AuthorityDirectory) -> String {
    let root = CertificateDetails::read(authority.root()).unwrap();
    let key = fs::read_to_string(authority.path().join("ca.key")).unwrap();
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.remove(DnType::CommonName);
    parameters
        .distinguished_name
        .push(DnType::CommonName, root.common_name.unwrap());
    parameters.key_usages = vec![KeyUsagePurpose::CrlSign];
    let issuer = Issuer::new(parameters, KeyPair::from_pem(&key).unwrap());
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2020, 2, 1),
        crl_number: SerialNumber::from(1000u64),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

/// Nobody could be judged by it, so that a node does not start with it; the message names the file to replace.
#[test]
fn a_list_past_its_date_is_named_with_its_file() {
    let folder = Folder::new();
    let (authority, mut sources) = worker(&folder.0);
    let list = folder.0.join("lists.pem");
    fs::write(&list, stale_list(&authority)).unwrap();
    sources.files.revocation_list = Some(list.clone());
    let fault = |sources: &NodeSources| sources.terms().err().unwrap().to_string();
    let said = fault(&sources);
    let expected = format!(
        "{}: the revocation list in it is stale since 2020-02-01 00:00:00 UTC",
        list.display()
    );
    assert!(said.starts_with(&expected), "{said}");
    assert!(said.contains("exoskel pki renew --list"), "{said}");

    let file = folder.0.join("worker.pem");
    let both = fs::read_to_string(&file).unwrap() + &fs::read_to_string(&list).unwrap();
    fs::write(&file, both).unwrap();
    sources.files.revocation_list = None;
    let said = fault(&sources);
    assert!(said.starts_with(&format!("{}: ", file.display())), "{said}");
}

/// A process that runs takes up a renewed credential as it takes up any other change of the file.
#[test]
fn a_renewed_credential_is_taken_up() {
    let folder = Folder::new();
    let (authority, sources) = worker(&folder.0);
    let file = folder.0.join("worker.pem");
    let mut renewal = sources.renewal();
    assert!(renewal.renew().is_none());
    let old = read_credential(&file).unwrap();
    let renewed = authority.renew(&old, None, unix_now()).unwrap();
    write_credential(&file, &renewed).unwrap();
    let terms = renewal.renew().unwrap().unwrap();
    assert_eq!(terms.credential.chain(), renewed.chain());
    assert_ne!(terms.credential.chain(), old.chain());
}
