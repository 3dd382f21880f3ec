//! One file for a service: what it may say, and what is said about it.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::fs;
use std::path::Path;
use std::time::Duration;

use exoskel_service::{Configuration, ConfigurationError};
use peers::{Authority, Scratch};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::UnixTime;

/// A configuration of which everything can be read, with these lines more.
fn written(scratch: &Scratch, more: &str) -> Configuration {
    let authority = Authority::new();
    let host = authority.host(scratch.path());
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity");
    let text = format!(
        "listen = \"127.0.0.1:0\"\naudit = \"audit\"\n{more}\n[host]\ncertificate = {:?}\nkey = \"hostkey.pem\"\n\
         [trust]\nanchors = {:?}\nvomsdir = {:?}\n",
        host.certificate,
        authority.trust_directory(scratch.path()),
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

/// Everybody whom such a list covers would be refused. The file to replace is named.
#[test]
fn a_check_fails_on_a_stale_list() {
    let scratch = Scratch::new();
    let configuration = written(&scratch, "");
    let in_two_days = UnixTime::now().as_secs() + 2 * 86_400;
    let fault = configuration
        .check(UnixTime::since_unix_epoch(Duration::from_secs(in_two_days)))
        .unwrap_err()
        .to_string();
    let directory = scratch.path().join("certificates");
    assert!(
        fault.starts_with(&directory.display().to_string()),
        "{fault}"
    );
    assert!(
        fault.contains("/CN=test authority: its revocation list 00000001.r0 is stale since"),
        "{fault}"
    );
}

/// Every client would refuse it.
#[test]
fn a_check_fails_on_a_host_certificate_that_is_out_of_date() {
    let scratch = Scratch::new();
    let configuration = written(&scratch, "");
    let at = |seconds: u64| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        configuration.check(time).unwrap_err().to_string()
    };
    let now = UnixTime::now().as_secs();
    let ended = at(now + 31 * 86_400);
    assert!(
        ended.contains("service.toml: line 5: host: ")
            && ended.contains("hostcert.pem expired on ")
            && ended.contains("renew it"),
        "{ended}"
    );
    let early = at(now - 86_400);
    assert!(
        early.contains("hostcert.pem is valid from ") && early.contains("clock"),
        "{early}"
    );
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
    let file = scratch.path().join("service.toml");
    let place = format!("{}: line 3: policy: can't read the policy ", file.display());
    assert!(
        policy.starts_with(&place) && policy.contains("missing.toml"),
        "{policy}"
    );
    let secret = fault("upstream = { address = \"unix:/x\", secret = \"gone\" }");
    assert!(
        secret.contains("service.toml: line 3: upstream.secret: can't read "),
        "{secret}"
    );
    let unknown = Configuration::parse("listen = \"[::]:1\"\nlisten_too = 1\n").unwrap_err();
    assert!(matches!(
        unknown,
        ConfigurationError::Toml { line: Some(2), .. }
    ));
    let unknown = unknown.to_string();
    assert!(
        unknown.starts_with("line 2: unknown field `listen_too`") && !unknown.contains('\n'),
        "{unknown}"
    );
    let number = Configuration::parse("listen = 8443\n").unwrap_err();
    let number = number.to_string();
    assert!(
        number.starts_with("line 1: ") && !number.contains('\n'),
        "{number}"
    );
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

#[test]
fn a_rule_by_path_that_can_not_work_is_named_with_its_line_before_anything_starts() {
    let fault = |more: &str| {
        let text = format!("listen = \"[::]:1\"\n{more}");
        Configuration::parse(&text).unwrap_err().to_string()
    };
    let rule = "[[path]]\nprefix = \"/\"\n";
    let hidden = fault(&format!("{rule}{rule}"));
    assert!(
        hidden.contains("line 4") && hidden.contains("can never match"),
        "{hidden}"
    );
    let nowhere = fault("[[path]]\nprefix = \"jobs\"\n");
    assert!(
        nowhere.contains("line 2") && nowhere.contains("\"jobs\""),
        "{nowhere}"
    );
    let balancer = fault("balancers = [\n  \"192.0.2.1\",\n  \"lb.example.org\",\n]\n");
    assert!(
        balancer.contains("line 4") && balancer.contains("lb.example.org"),
        "{balancer}"
    );
    // An action that the policy never allows.
    let scratch = Scratch::new();
    let policy = scratch.path().join("policy.toml");
    fs::write(
        &policy,
        "[[allow.rule]]\naction = \"connect\"\ndn = \"*\"\n",
    )
    .unwrap();
    let with_action = |policy: &str| {
        let path = "path = [{ prefix = \"/\", action = \"submit\" }]";
        let configuration = written(&scratch, &format!("{policy}\n{path}"));
        let checked = configuration
            .check(UnixTime::now())
            .unwrap_err()
            .to_string();
        assert_eq!(configuration.settings().unwrap_err().to_string(), checked);
        checked
    };
    let unset = with_action("");
    assert!(
        unset.contains("\"submit\"") && unset.contains("set policy"),
        "{unset}"
    );
    let unheard = with_action("policy = \"policy.toml\"");
    assert!(
        unheard.contains("line 4") && unheard.contains("no [[allow.rule]]"),
        "{unheard}"
    );
}
