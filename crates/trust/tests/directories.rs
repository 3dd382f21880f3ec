//! Trust directories on disk: what is read, what is noticed, what is kept.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exoskel_identity::{DecisionCacheLimits, GridSettings, PeerVerifier as _};
use exoskel_trust::{OpenTrustError, Renewal, TimedTrust, Trust, TrustDirectories};

/// A copy of the vectors' directories, which is gone when this is dropped.
struct Copy(PathBuf);

impl Copy {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("exoskel-trust-{}-{number}", std::process::id());
        let copy = Self(std::env::temp_dir().join(name));
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity");
        copy_all(&vectors.join("trust/default"), &copy.anchors());
        copy_all(&vectors.join("vomsdir/default"), &copy.0.join("vomsdir"));
        copy
    }

    fn anchors(&self) -> PathBuf {
        self.0.join("certificates")
    }

    fn directories(&self) -> TrustDirectories {
        TrustDirectories {
            anchors: self.anchors(),
            vomsdir: Some(self.0.join("vomsdir")),
        }
    }

    fn open(&self) -> std::sync::Arc<Trust> {
        Trust::open(
            self.directories(),
            GridSettings::default(),
            DecisionCacheLimits::default(),
        )
        .unwrap()
    }

    /// The first file of the directory of authorities that ends so.
    fn file(&self, ending: &str) -> PathBuf {
        let mut files: Vec<PathBuf> = fs::read_dir(self.anchors())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().ends_with(ending))
            .collect();
        files.sort();
        files.swap_remove(0)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if fs::metadata(entry.path()).unwrap().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn only_a_change_makes_a_generation() {
    let copy = Copy::new();
    let trust = copy.open();
    assert_eq!(trust.generation(), 1);
    let found = trust.report();
    assert!(found.authorities.iter().any(|one| one.is_usable));
    assert!(found.voms_files > 0);
    assert!(!trust.reload().changed);
    // A file that is none of ours
    fs::write(copy.anchors().join("README"), "hello").unwrap();
    assert!(!trust.reload().changed);
    fs::remove_file(copy.file(".r0")).unwrap();
    let reload = trust.reload();
    assert!(reload.changed);
    assert_eq!(trust.generation(), 2);
    assert_eq!(trust.current().store().generation(), 2);
}

#[test]
fn the_same_size_written_again_is_noticed() {
    let copy = Copy::new();
    let trust = copy.open();
    let list = copy.file(".r0");
    let content = fs::read(&list).unwrap();
    let time = || {
        let facts = fs::metadata(&list).unwrap();
        (facts.ctime(), facts.ctime_nsec())
    };
    // Some systems give all that happens within a few milliseconds one time.
    let before = time();
    while time() == before {
        fs::write(&list, &content).unwrap();
    }
    assert!(trust.reload().changed);
}

#[test]
fn a_file_that_can_not_be_read_keeps_its_last_good_state() {
    let copy = Copy::new();
    let trust = copy.open();
    let lists = |trust: &Trust| {
        let report = trust.report();
        let listed = report.authorities.iter();
        listed.filter(|one| one.revocation_list.is_some()).count()
    };
    let before = lists(&trust);
    let list = copy.file(".r0");
    fs::write(&list, "").unwrap();
    let reload = trust.reload();
    let name = list.file_name().unwrap().to_str().unwrap();
    assert!(
        reload
            .faults
            .iter()
            .any(|fault| fault.contains(name) && fault.contains("last good"))
    );
    assert_eq!(lists(&trust), before);
    // It is said again for as long as it is so.
    assert_eq!(trust.reload().faults, reload.faults);
}

/// Aim: a fault is said by whoever can say it, whoever found it. Method: one that is there at the start, within the interval; one that a
/// handshake found, and that is over when the next one looks.
#[test]
fn what_somebody_else_found_is_said() {
    let copy = Copy::new();
    let list = copy.file(".r0");
    let content = fs::read(&list).unwrap();
    fs::write(&list, "").unwrap();
    let name = list.file_name().unwrap().to_str().unwrap();
    let open = |interval| TimedTrust::open(copy.directories(), interval).unwrap();
    let (late, timed) = (open(Duration::MAX), open(Duration::ZERO));
    let says = |renewal: &Renewal| renewal.faults.iter().any(|fault| fault.contains(name));
    assert!(says(&late.reload()));
    assert_eq!(late.clone().reload(), Renewal::default());
    timed.reload();
    fs::write(&list, "no list").unwrap();
    timed.clone().refresh();
    fs::write(&list, content).unwrap();
    let said = timed.reload();
    assert!(said.changed && says(&said), "{said:?}");
    assert!(!says(&timed.reload()));
}

#[test]
fn a_directory_that_is_gone_changes_nothing() {
    let copy = Copy::new();
    let trust = copy.open();
    fs::rename(copy.anchors(), copy.0.join("moved")).unwrap();
    let reload = trust.reload();
    assert!(!reload.changed);
    assert!(
        reload.faults[0].contains("certificates"),
        "{:?}",
        reload.faults
    );
    assert_eq!(trust.generation(), 1);
    fs::rename(copy.0.join("moved"), copy.anchors()).unwrap();
    assert!(trust.reload().faults.len() <= trust.report().bad_files.len());
}

#[test]
fn nobody_to_trust_is_an_error() {
    let copy = Copy::new();
    fs::remove_dir_all(copy.anchors()).unwrap();
    let open = || {
        Trust::open(
            copy.directories(),
            GridSettings::default(),
            DecisionCacheLimits::default(),
        )
    };
    assert!(matches!(
        open().unwrap_err(),
        OpenTrustError::Directory { .. }
    ));
    fs::create_dir(copy.anchors()).unwrap();
    assert!(matches!(
        open().unwrap_err(),
        OpenTrustError::NoAuthority { .. }
    ));
}

/// A link that leads in a circle stands for all that can't be looked at: it is there, so it was not deleted.
#[test]
fn a_file_that_cannot_be_looked_at_is_not_deleted() {
    let copy = Copy::new();
    let trust = copy.open();
    let list = copy.file(".r0");
    fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink(&list, &list).unwrap();
    let reload = trust.reload();
    let name = list.file_name().unwrap().to_str().unwrap();
    assert!(
        reload.faults.iter().any(|fault| fault.contains(name)),
        "{reload:?}"
    );
    let bad = trust.report().bad_files.clone();
    let bad = bad.iter().find(|bad| bad.name == name).unwrap();
    assert!(bad.kept_previous);
    // A link that leads nowhere is how packages take files away.
    fs::remove_file(&list).unwrap();
    std::os::unix::fs::symlink(copy.anchors().join("nowhere"), &list).unwrap();
    assert!(trust.reload().changed);
    let report = trust.report();
    assert!(report.bad_files.iter().all(|bad| bad.name != name));
}
