//! A policy with the lists that it names: what is read, what is noticed, what is kept, and what is said of it.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use exoskel_trust::{Document, PolicyFile, Renewal, Rules, RulesError, Stamps};

/// A folder of the test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("exoskel-policy-{}-{number}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        folder
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NAMES_A_LIST: &str = "[deny]\nban_list = \"banned\"\n";

#[test]
fn only_files_that_changed_are_read_again() {
    let folder = Folder::new();
    let policy = folder.write("policy.toml", NAMES_A_LIST);
    folder.write("banned", "# nobody\n");
    let rules = Rules::open(&policy).unwrap();
    assert!(!rules.renew().changed);
    folder.write("banned", "/DC=org/CN=Mallory\n");
    assert!(rules.renew().changed);
    assert!(!rules.renew().changed);
    // A file that nobody names.
    folder.write("other", "anything");
    assert!(!rules.renew().changed);
}

#[test]
fn the_list_that_a_new_policy_names_is_looked_at_from_then_on() {
    let folder = Folder::new();
    let policy = folder.write("policy.toml", "[deny]\n");
    folder.write("banned", "# nobody\n");
    let rules = Rules::open(&policy).unwrap();
    folder.write("policy.toml", NAMES_A_LIST);
    assert!(rules.renew().changed);
    // The list could have changed between its being named and its being read.
    assert!(rules.renew().changed);
    assert!(!rules.renew().changed);
    folder.write("banned", "/DC=org/CN=Mallory\n");
    assert!(rules.renew().changed);
}

#[test]
fn what_can_not_be_read_keeps_the_rules_and_is_said_once() {
    let folder = Folder::new();
    let policy = folder.write("policy.toml", NAMES_A_LIST);
    let list = folder.write("banned", "/DC=org/CN=Mallory\n");
    let rules = Rules::open(&policy).unwrap();
    fs::remove_file(&list).unwrap();
    let renewal = rules.renew();
    assert!(!renewal.changed);
    let [fault] = renewal.faults.as_slice() else {
        panic!("expected one fault, got {:?}", renewal.faults);
    };
    assert!(
        fault.starts_with("the rules in force are kept: can't read the ban list ")
            && fault.contains(list.to_str().unwrap()),
        "{fault}"
    );
    assert_eq!(rules.current().ban_list(), Some("banned"));
    assert_eq!(rules.renew().faults, Vec::<String>::new());
    folder.write("banned", "/DC=org/CN=Mallory\n");
    assert!(rules.renew().changed);
}

#[test]
fn a_list_that_comes_after_the_policy_that_names_it_is_read() {
    let folder = Folder::new();
    let policy = folder.write("policy.toml", "[deny]\n");
    let rules = Rules::open(&policy).unwrap();
    folder.write("policy.toml", NAMES_A_LIST);
    let renewal = rules.renew();
    assert!(!renewal.changed);
    assert_eq!(renewal.faults.len(), 1, "{:?}", renewal.faults);
    assert_eq!(rules.renew(), Renewal::default());
    folder.write("banned", "/DC=org/CN=Mallory\n");
    assert!(rules.renew().changed);
    assert_eq!(rules.current().ban_list(), Some("banned"));
}

#[test]
fn an_error_names_its_file() {
    let folder = Folder::new();
    let missing = folder.0.join("policy.toml");
    let error = Rules::open(&missing).unwrap_err();
    assert!(matches!(&error, RulesError::File(file) if file.path == missing));
    let policy = folder.write("policy.toml", "[deny]\nban_list = \"banned\"\n");
    let error = Rules::open(&policy).unwrap_err();
    let list = folder.0.join("banned");
    assert!(
        matches!(&error, RulesError::File(file) if file.path == list),
        "{error}"
    );
    // Half a list, as of a writer that has only begun.
    folder.write("banned", "");
    let error = Rules::open(&policy).unwrap_err();
    assert!(
        matches!(&error, RulesError::Content { file, .. } if *file == list),
        "{error}"
    );
}

#[test]
fn stamps_tell_files_apart() {
    let folder = Folder::new();
    let (one, other) = (folder.write("one", "1"), folder.write("other", "1"));
    let of_one = Stamps::of([one.as_path()]);
    assert_eq!(of_one, Stamps::of([one.as_path()]));
    assert_ne!(of_one, Stamps::of([other.as_path()]));
    fs::rename(&other, &one).unwrap();
    assert_ne!(of_one, Stamps::of([one.as_path()]));
    // One that is gone is gone, however often it is looked at.
    assert_eq!(Stamps::of([other.as_path()]), Stamps::of([other.as_path()]));
}

#[test]
fn what_was_handed_over_is_not_shown() {
    let document = Document::Memory(b"a secret".to_vec().into());
    assert_eq!(format!("{document:?}"), "Memory(..)");
    let policy = PolicyFile::new(document);
    assert_eq!((policy.name().as_str(), policy.path()), ("policy", None));
    assert_eq!(policy.text().unwrap(), "a secret");
}
