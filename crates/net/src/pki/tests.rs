//! The authority as its owner uses it: made, asked, robbed of permissions, and revoked from.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exoskel_identity::{Credential, Expected, IdentityError, PeerVerifier, Role};
use exoskel_trust::{FileError, read_credential, read_revocation_lists};
use rustls_pki_types::UnixTime;

use super::*;

mod files;
mod job;

const NOW: u64 = 1_800_000_000;
const YEAR: Duration = Duration::from_secs(365 * DAY);

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// A folder of the test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("exoskel-pki-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `judge` thinks of `peer`.
fn judge(
    judge: &Credential,
    peer: &Credential,
    role: Role,
    seconds: u64,
) -> Result<(), IdentityError> {
    let authority = judge.authority(1).unwrap();
    let expected = Expected {
        roles: &[role],
        name: Some(&peer.identity().name),
    };
    authority
        .verify(peer.chain(), at(seconds), &expected)
        .map(drop)
}

#[test]
fn an_authority_issues_credentials_that_accept_each_other() {
    let folder = Folder::new();
    let path = folder.file("deep/ca");
    let made = AuthorityDirectory::initialise(&path, at(NOW)).unwrap();
    let manager = made.issue(Role::Manager, "boss", YEAR, at(NOW)).unwrap();
    let opened = AuthorityDirectory::open(&path).unwrap();
    let worker = opened
        .issue(Role::Worker, "Lab1.example.org", YEAR, at(NOW + DAY))
        .unwrap();
    assert_eq!(worker.identity().to_string(), "worker lab1.example.org");
    judge(&manager, &worker, Role::Worker, NOW + DAY).unwrap();
    judge(&worker, &manager, Role::Manager, NOW + DAY).unwrap();
    assert!(matches!(
        judge(&worker, &manager, Role::Worker, NOW),
        Err(IdentityError::WrongRole { .. })
    ));
    judge(&manager, &worker, Role::Worker, NOW + 360 * DAY).unwrap();
    let late = judge(&manager, &worker, Role::Worker, NOW + 367 * DAY).unwrap_err();
    assert!(matches!(late, IdentityError::Expired { .. }), "{late}");
    assert!(
        judge(
            &manager,
            &worker,
            Role::Worker,
            NOW + DAY - CLOCK_SKEW.as_secs()
        )
        .is_ok(),
        "a slow clock"
    );

    let listed = opened.list().unwrap();
    let names: Vec<_> = listed.iter().map(|one| one.identity.to_string()).collect();
    assert_eq!(names, ["manager boss", "worker lab1.example.org"]);
    assert_eq!(listed[1].not_after, at(NOW + 366 * DAY));
    assert!(
        listed
            .iter()
            .all(|one| one.revoked.is_none() && one.serial.len() >= 30)
    );
}

#[test]
fn a_revoked_certificate_is_refused_by_who_has_the_list() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let mut manager = authority
        .issue(Role::Manager, "boss", YEAR, at(NOW))
        .unwrap();
    let first = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW))
        .unwrap();
    let second = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW))
        .unwrap();
    let other = authority
        .issue(Role::Worker, "lab2", YEAR, at(NOW))
        .unwrap();

    let serial = authority
        .list()
        .unwrap()
        .into_iter()
        .find(|one| one.identity == other.identity())
        .unwrap()
        .serial;
    let revoked = authority
        .revoke(&serial.to_uppercase(), at(NOW + 1))
        .unwrap();
    assert_eq!((revoked.len(), revoked[0].revoked), (1, Some(at(NOW + 1))));
    let revoked = authority.revoke("LAB1", at(NOW + 2)).unwrap();
    assert_eq!(revoked.len(), 2, "both certificates of that name");
    assert_eq!(
        authority
            .list()
            .unwrap()
            .iter()
            .filter(|one| one.revoked.is_some())
            .count(),
        3
    );

    judge(&manager, &first, Role::Worker, NOW + 3).expect("the manager doesn't know yet");
    manager
        .add_revocation_lists(read_revocation_lists(authority.revocation_list_path()).unwrap())
        .unwrap();
    for worker in [&first, &second, &other] {
        let error = judge(&manager, worker, Role::Worker, NOW + 3).unwrap_err();
        assert!(matches!(error, IdentityError::Revoked { .. }), "{error}");
    }
    // A name can be used again, and who is new knows of the old revocations.
    let renewed = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW + 4))
        .unwrap();
    judge(&manager, &renewed, Role::Worker, NOW + 4).unwrap();
    assert!(judge(&renewed, &first, Role::Worker, NOW + 4).is_err());

    assert!(matches!(
        authority.revoke(&serial, at(NOW)),
        Err(PkiError::AlreadyRevoked { .. })
    ));
    assert!(matches!(
        authority.revoke("nobody", at(NOW)),
        Err(PkiError::NotIssued { .. })
    ));
    fs::remove_file(authority.revocation_list_path()).unwrap();
    assert!(
        authority.issue(Role::Worker, "a", YEAR, at(NOW)).is_err(),
        "a lost list must not free what it revoked"
    );
}

/// The list inside a credential is good as long as the credential's certificate, whatever was issued before.
#[test]
fn a_credential_outlives_no_list_of_its_own() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let long = authority
        .issue(Role::Worker, "long", 5 * YEAR, at(NOW))
        .unwrap();
    let short = authority
        .issue(Role::Worker, "short", Duration::from_secs(DAY), at(NOW))
        .unwrap();
    judge(&long, &long, Role::Worker, NOW + 5 * 365 * DAY).unwrap();
    judge(&short, &long, Role::Worker, NOW + 5 * 365 * DAY).unwrap();
}

#[test]
fn unusable_requests_are_refused() {
    let folder = Folder::new();
    let path = folder.file("ca");
    assert!(matches!(
        AuthorityDirectory::open(&path),
        Err(PkiError::NoAuthority { .. })
    ));
    let authority = AuthorityDirectory::initialise(&path, at(NOW)).unwrap();
    assert!(matches!(
        AuthorityDirectory::initialise(&path, at(NOW)),
        Err(PkiError::AuthorityExists { .. })
    ));
    for validity in [Duration::ZERO, 11 * YEAR, Duration::MAX] {
        let error = authority
            .issue(Role::Worker, "a", validity, at(NOW))
            .unwrap_err();
        assert!(matches!(error, PkiError::Validity { .. }), "{error}");
    }
    assert!(
        authority
            .issue(Role::Worker, "a", YEAR, at(NOW + 20 * 365 * DAY))
            .is_err(),
        "the authority ended"
    );
    for name in ["", "*", "a b", "../a"] {
        assert!(
            matches!(
                authority.issue(Role::Worker, name, YEAR, at(NOW)),
                Err(PkiError::Claim(_))
            ),
            "{name:?}"
        );
    }
    assert!(authority.list().unwrap().is_empty());
    for clock in [u64::MAX, 300_000_000_000] {
        let error = AuthorityDirectory::initialise(folder.file("late"), at(clock)).unwrap_err();
        assert!(matches!(error, PkiError::Clock { .. }), "{error}");
        assert!(ThrowAwayAuthority::new(at(clock)).is_err());
    }
}

#[test]
fn throw_away_credentials_are_good_among_themselves_only() {
    let (first, second) = (
        ThrowAwayAuthority::new(at(NOW)).unwrap(),
        ThrowAwayAuthority::new(at(NOW)).unwrap(),
    );
    let manager = first.issue(Role::Manager, "manager", at(NOW)).unwrap();
    let worker = first.issue(Role::Worker, "local-1", at(NOW + 60)).unwrap();
    let stranger = second.issue(Role::Worker, "local-1", at(NOW)).unwrap();
    judge(&manager, &worker, Role::Worker, NOW + 60).unwrap();
    judge(&worker, &manager, Role::Manager, NOW + 60).unwrap();
    let error = judge(&manager, &stranger, Role::Worker, NOW).unwrap_err();
    assert!(
        matches!(error, IdentityError::UnknownAuthority { .. }),
        "{error}"
    );
    let handed_over = Credential::from_pem(&worker.to_pem()).unwrap();
    judge(&manager, &handed_over, Role::Worker, NOW + 60).unwrap();
    assert_eq!(format!("{first:?}"), "ThrowAwayAuthority { .. }");
    assert!(first.issue(Role::Worker, "a*", at(NOW)).is_err());
}

/// Two processes that issue at once must not lose each other's records.
#[test]
fn issuing_and_revoking_at_once_loses_nothing() {
    let folder = Folder::new();
    let path = folder.file("ca");
    AuthorityDirectory::initialise(&path, at(NOW)).unwrap();
    let work = |number: u32| {
        let authority = AuthorityDirectory::open(&path).unwrap();
        let name = format!("lab{number}");
        authority
            .issue(Role::Worker, &name, YEAR * (1 + number % 3), at(NOW))
            .unwrap();
        authority.revoke(&name, at(NOW)).unwrap();
    };
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || work(number));
        }
    });
    let listed = AuthorityDirectory::open(&path).unwrap().list().unwrap();
    assert_eq!(listed.iter().filter(|one| one.revoked.is_some()).count(), 6);
}

/// A renewal is a new certificate for a new key, good for as long as the old one was, and the old one stays good.
#[test]
fn a_renewed_credential_is_the_same_identity_with_a_new_key() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let old = authority
        .issue(Role::Worker, "lab1", Duration::from_secs(30 * DAY), at(NOW))
        .unwrap();
    let renewed = authority.renew(&old, None, at(NOW + 29 * DAY)).unwrap();
    assert_eq!(renewed.identity(), old.identity());
    assert_ne!(
        renewed.key().unwrap().secret_pkcs8_der(),
        old.key().unwrap().secret_pkcs8_der()
    );
    judge(&old, &renewed, Role::Worker, NOW + 58 * DAY).unwrap();
    judge(&renewed, &renewed, Role::Worker, NOW + 58 * DAY).unwrap();
    assert!(judge(&old, &renewed, Role::Worker, NOW + 60 * DAY).is_err());
    judge(&renewed, &old, Role::Worker, NOW + 29 * DAY).unwrap();
    assert_eq!(authority.list().unwrap().len(), 2);
    let longer = authority
        .renew(&renewed, Some(YEAR), at(NOW + 29 * DAY))
        .unwrap();
    judge(&longer, &longer, Role::Worker, NOW + 300 * DAY).unwrap();
}

#[test]
fn a_renewal_keeps_whom_else_the_old_credential_trusts() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let other = AuthorityDirectory::initialise(folder.file("other"), at(NOW)).unwrap();
    let theirs = other.issue(Role::Manager, "boss", YEAR, at(NOW)).unwrap();
    let own = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW))
        .unwrap();
    let key = own.key().unwrap().secret_pkcs8_der().to_vec();
    let both = Credential::new(
        own.chain().to_vec(),
        key.into(),
        [own.trust_anchors(), theirs.trust_anchors()].concat(),
        [own.revocation_lists(), theirs.revocation_lists()].concat(),
    )
    .unwrap();
    judge(&both, &theirs, Role::Manager, NOW).unwrap();
    let renewed = authority.renew(&both, None, at(NOW + DAY)).unwrap();
    judge(&renewed, &theirs, Role::Manager, NOW + DAY).unwrap();
    assert_eq!(
        (
            renewed.trust_anchors().len(),
            renewed.revocation_lists().len()
        ),
        (2, 2)
    );
}

#[test]
fn what_was_revoked_or_issued_elsewhere_is_not_renewed() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let other = AuthorityDirectory::initialise(folder.file("other"), at(NOW)).unwrap();
    let mine = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW))
        .unwrap();
    assert!(matches!(
        other.renew(&mine, None, at(NOW)),
        Err(PkiError::NotIssued { .. })
    ));
    authority.revoke("lab1", at(NOW)).unwrap();
    assert!(matches!(
        authority.renew(&mine, None, at(NOW)),
        Err(PkiError::NotRenewed { .. })
    ));
    assert_eq!(authority.list().unwrap().len(), 1);
}

#[test]
fn a_renewed_list_is_newer_and_revokes_the_same() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let mut manager = authority
        .issue(Role::Manager, "boss", YEAR, at(NOW))
        .unwrap();
    let worker = authority
        .issue(Role::Worker, "lab1", YEAR, at(NOW))
        .unwrap();
    authority.revoke("lab1", at(NOW)).unwrap();
    let late = NOW + 360 * DAY;
    let until = authority.renew_list(None, at(late)).unwrap();
    assert_eq!(until, at(late + 90 * DAY));
    assert_eq!(
        authority.renew_list(Some(YEAR), at(late)).unwrap(),
        at(late + 365 * DAY)
    );
    assert!(matches!(
        authority.renew_list(Some(20 * YEAR), at(late)),
        Err(PkiError::Validity { .. })
    ));
    let lists = read_revocation_lists(authority.revocation_list_path()).unwrap();
    manager.add_revocation_lists(lists).unwrap();
    assert!(matches!(
        judge(&manager, &worker, Role::Worker, late),
        Err(IdentityError::Revoked { .. })
    ));
}
