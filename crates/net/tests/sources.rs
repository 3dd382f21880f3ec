//! What a node brings to its handshakes, made of files: what has to be there, and what a change of each file does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::fs;
use std::path::Path;
use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::keys::KeyStore;
use exoskel_link::{Limits, Protection};
use exoskel_net::pki::{AuthorityDirectory, write_credential};
use exoskel_net::sources::{NodeConfigError, NodeSources, SessionSettings};
use exoskel_trust::{
    CredentialFileError, CredentialSourceError, Document, FileError, PolicyFile, Sources,
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
        limits: Limits::default(),
        dead_after: Duration::from_secs(5),
        patience: Duration::from_secs(5),
        versions: Vec::new(),
        same_versions: Vec::new(),
        properties: Vec::new(),
        keys: KeyStore::in_ordinary_memory(8),
        job: 0,
    };
    let files = Sources {
        credential: Document::File(folder.join("worker.pem")),
        key: None,
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
    assert!(
        matches!(
            error,
            NodeConfigError::Credential(CredentialSourceError::Role {
                got: Role::Worker,
                expected: Role::Manager
            })
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
