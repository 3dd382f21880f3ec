//! Files with wrong permissions, of the wrong kind, damaged, or of another authority.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn secrets_are_private_and_the_rest_is_public() {
    let folder = Folder::new();
    let authority = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let credential = authority.issue(Role::Worker, "a", YEAR, at(NOW)).unwrap();
    let file = folder.file("a.pem");
    write_credential(&file, &credential).unwrap();
    assert_eq!(
        (
            mode(&file),
            mode(&folder.file("ca/ca.key")),
            mode(&folder.file("ca"))
        ),
        (0o600, 0o600, 0o700)
    );
    assert_eq!(
        *read_credential(&file).unwrap().to_pem(),
        *credential.to_pem()
    );

    for open in [0o640, 0o604, 0o660, 0o601] {
        set_mode(&file, open);
        let error = read_credential(&file).unwrap_err();
        assert!(matches!(error, PkiError::NotPrivate { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("run \"chmod 600 {}\"", file.display())),
            "{error}"
        );
    }
    // Writing again replaces the file and with it the wrong permissions.
    write_credential(&file, &credential).unwrap();
    assert_eq!(mode(&file), 0o600);
    assert_eq!(
        fs::read_dir(&folder.0).unwrap().count(),
        2,
        "no temporary file is left"
    );

    set_mode(&folder.file("ca/ca.key"), 0o644);
    let error = authority
        .issue(Role::Worker, "b", YEAR, at(NOW))
        .unwrap_err();
    assert!(matches!(error, PkiError::NotPrivate { .. }), "{error}");
}

#[test]
fn what_is_no_credential_file_is_refused() {
    let folder = Folder::new();
    let file = folder.file("x.pem");
    assert!(matches!(
        read_credential(&file),
        Err(PkiError::File { action: "read", .. })
    ));
    assert!(matches!(
        read_credential("/dev/null"),
        Err(PkiError::NotAFile { .. })
    ));
    set_mode(&folder.0, 0o700);
    assert!(matches!(
        read_credential(&folder.0),
        Err(PkiError::NotAFile { .. })
    ));
    fs::write(&file, b"garbage").unwrap();
    set_mode(&file, 0o600);
    let error = read_credential(&file).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: the credential holds no PRIVATE KEY, expected exactly one",
            file.display()
        )
    );
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    assert!(matches!(
        read_credential(&file),
        Err(PkiError::TooLong { .. })
    ));
    let credential = ThrowAwayAuthority::new(at(NOW))
        .unwrap()
        .issue(Role::Worker, "a", at(NOW))
        .unwrap();
    assert!(matches!(
        write_credential("/", &credential),
        Err(PkiError::File {
            action: "write",
            ..
        })
    ));
    assert!(matches!(
        write_credential(folder.file("no/a.pem"), &credential),
        Err(PkiError::File { .. })
    ));
}

#[test]
fn mixed_up_files_are_noticed() {
    let folder = Folder::new();
    let first = AuthorityDirectory::initialise(folder.file("first"), at(NOW)).unwrap();
    let second = AuthorityDirectory::initialise(folder.file("second"), at(NOW)).unwrap();
    second.issue(Role::Worker, "a", YEAR, at(NOW)).unwrap();
    let key = fs::read(folder.file("second/ca.key")).unwrap();
    fs::copy(folder.file("first/ca.key"), folder.file("second/ca.key")).unwrap();
    let error = second.issue(Role::Worker, "b", YEAR, at(NOW)).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("this key does not belong to ca.pem"),
        "{error}"
    );
    fs::write(
        folder.file("second/ca.key"),
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n",
    )
    .unwrap();
    assert!(matches!(
        second.issue(Role::Worker, "b", YEAR, at(NOW)),
        Err(PkiError::Foreign { .. })
    ));
    fs::write(folder.file("second/ca.key"), key).unwrap();

    // A certificate of another authority among the issued ones can't be taken back by this one.
    let stray = first.issue(Role::Worker, "stray", YEAR, at(NOW)).unwrap();
    drop(stray);
    let file = fs::read_dir(folder.file("first/issued"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    fs::copy(
        file.path(),
        folder.file("second/issued").join(file.file_name()),
    )
    .unwrap();
    let error = second.revoke("stray", at(NOW)).unwrap_err();
    assert!(matches!(error, PkiError::Ineffective { .. }), "{error}");

    fs::write(folder.file("second/issued/ff.pem"), b"garbage").unwrap();
    assert!(matches!(second.list(), Err(PkiError::Damaged { .. })));
    fs::write(folder.file("second/ca.pem"), b"garbage").unwrap();
    assert!(matches!(
        AuthorityDirectory::open(folder.file("second")),
        Err(PkiError::Damaged { .. })
    ));
}
