//! One file for a service: what it may say, and what is said about it.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::fs;
use std::path::Path;

use exoskel_service::{Configuration, ConfigurationError};
use peers::{Authority, Scratch};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::UnixTime;

/// A configuration of which everything can be read, with these lines more.
fn written(scratch: &Scratch, more: &str) -> Configuration {
    let host = Authority::new().host(scratch.path());
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity");
    let text = format!(
        "listen = \"127.0.0.1:0\"\naudit = \"audit\"\n{more}\n[host]\ncertificate = {:?}\nkey = \"hostkey.pem\"\n\
         [trust]\nanchors = {:?}\nvomsdir = {:?}\n",
        host.certificate,
        vectors.join("trust/default"),
        vectors.join("vomsdir/default"),
    );
    let file = scratch.path().join("service.toml");
    fs::write(&file, text).unwrap();
    Configuration::read(&file).unwrap()
}

#[test]
fn the_shipped_example_can_be_read() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/exoskel-front.toml");
    let configuration = Configuration::read(&file).unwrap();
    assert!(configuration.upstream.is_some());
    assert_eq!(configuration.interval().unwrap().as_secs(), 60);
}

#[test]
fn a_check_opens_nothing_and_tells_what_will_go_wrong() {
    let scratch = Scratch::new();
    let configuration = written(&scratch, "");
    let notes = configuration.check(UnixTime::now()).unwrap();
    assert!(
        notes.iter().any(|note| note.starts_with("trust: ")),
        "{notes:?}"
    );
    assert!(!scratch.path().join("audit").exists());
    configuration.settings().unwrap();
    assert!(scratch.path().join("audit").exists());
}

#[test]
fn a_certificate_that_is_not_for_servers_is_told() {
    let scratch = Scratch::new();
    let configuration = written(&scratch, "");
    let about_purpose = || {
        let notes = configuration.check(UnixTime::now()).unwrap();
        notes.iter().any(|note| note.contains("without serverAuth"))
    };
    assert!(!about_purpose());
    Authority::new().host_for(scratch.path(), &[ExtendedKeyUsagePurpose::ClientAuth]);
    assert!(about_purpose());
    Authority::new().host_for(scratch.path(), &[]);
    assert!(!about_purpose());
}

#[test]
fn faults_name_the_line_and_what_to_do() {
    let scratch = Scratch::new();
    let fault = |more: &str| {
        written(&scratch, more)
            .check(UnixTime::now())
            .unwrap_err()
            .to_string()
    };
    let limits = fault("limits = { handshakes_max = 0 }");
    assert!(
        limits.contains("handshakes_max") && limits.contains("more than 0"),
        "{limits}"
    );
    let assured = fault("limits = { handshake_seconds = 1 }");
    assert!(assured.contains("handshake_time_assured"), "{assured}");
    let elsewhere = fault("upstream = { address = \"tcp://192.0.2.1:80\" }");
    assert!(elsewhere.contains("expected \"unix:"), "{elsewhere}");
    let open = fault("upstream = { address = \"tcp://127.0.0.1:8000\" }");
    assert!(open.contains("openssl rand -hex 32"), "{open}");
    let policy = fault("policy = \"missing.toml\"");
    assert!(policy.contains("missing.toml"), "{policy}");
    let unknown = Configuration::parse("listen = \"[::]:1\"\nlisten_too = 1\n").unwrap_err();
    assert!(matches!(unknown, ConfigurationError::Toml(_)));
    assert!(unknown.to_string().contains("listen_too"), "{unknown}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new();
    let configuration = written(&scratch, "");
    let key = scratch.path().join("hostkey.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let fault = configuration
        .check(UnixTime::now())
        .unwrap_err()
        .to_string();
    assert!(fault.contains("chmod 600"), "{fault}");
}
