//! Files with wrong permissions, of the wrong kind, damaged, or of another authority.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
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
        assert!(
            matches!(
                error,
                CredentialFileError::File(FileError::NotPrivate { .. })
            ),
            "{error}"
        );
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
    assert!(
        matches!(error, PkiError::Unreadable(FileError::NotPrivate { .. })),
        "{error}"
    );
}

#[test]
fn what_is_no_credential_file_is_refused() {
    let folder = Folder::new();
    let file = folder.file("x.pem");
    assert!(matches!(
        read_credential(&file),
        Err(CredentialFileError::File(FileError::Read { .. }))
    ));
    assert!(matches!(
        read_credential("/dev/null"),
        Err(CredentialFileError::File(FileError::NotAFile { .. }))
    ));
    set_mode(&folder.0, 0o700);
    assert!(matches!(
        read_credential(&folder.0),
        Err(CredentialFileError::File(FileError::NotAFile { .. }))
    ));
    fs::write(&file, b"garbage").unwrap();
    set_mode(&file, 0o600);
    let error = read_credential(&file).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is no credential, expected a file that \"exoskel pki issue\" wrote, or a certificate of a grid with its private key: \
             the credential holds no PRIVATE KEY, expected exactly one",
            file.display()
        )
    );
    set_mode(&file, 0o644);
    assert!(matches!(
        read_credential(&file),
        Err(CredentialFileError::NoCredential { .. })
    ));
    set_mode(&file, 0o600);
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    assert!(matches!(
        read_credential(&file),
        Err(CredentialFileError::File(FileError::TooLong { .. }))
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

fn refused<T: std::fmt::Debug>(result: Result<T, PkiError>) -> String {
    match result {
        Err(error @ PkiError::Replaceable { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Some account that is neither root's nor ours.
const STRANGER: u32 = 54_321;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn an_authority_is_not_kept_where_others_can_replace_its_files() {
    let folder = Folder::new();
    for (bits, is_safe) in [
        (0o777, false),
        (0o770, false),
        (0o1777, false),
        (0o755, true),
    ] {
        let path = folder.file(&format!("{bits:o}"));
        fs::create_dir(&path).unwrap();
        set_mode(&path, bits);
        let made = AuthorityDirectory::initialise(&path, at(NOW));
        if is_safe {
            made.unwrap();
        } else {
            let said = refused(made);
            assert!(said.contains(&format!("(mode {bits:o}, owner ")), "{said}");
            assert!(
                said.contains(&format!("run \"chmod go-w {}\"", path.display())),
                "{said}"
            );
            assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing was made");
        }
    }
    // Nor below such a folder, unless it is sticky: whoever renames it has the place.
    for (bits, is_safe) in [(0o777, false), (0o1777, true)] {
        let above = folder.file(&format!("above-{bits:o}"));
        fs::create_dir(&above).unwrap();
        set_mode(&above, bits);
        let made = AuthorityDirectory::initialise(above.join("deep/ca"), at(NOW));
        assert_eq!(made.is_ok(), is_safe, "{made:?}");
        assert_eq!(above.join("deep").exists(), is_safe);
    }
}

#[test]
fn an_authority_whose_folder_was_opened_to_others_issues_nothing() {
    let folder = Folder::new();
    let path = folder.file("ca");
    AuthorityDirectory::initialise(&path, at(NOW)).unwrap();
    for part in [path.clone(), path.join("issued")] {
        set_mode(&part, 0o772);
        let said = refused(AuthorityDirectory::open(&path));
        assert!(said.contains(&part.display().to_string()), "{said}");
        set_mode(&part, 0o700);
    }
    AuthorityDirectory::open(&path).unwrap();
    if is_root() {
        lchown(path.join("issued"), Some(STRANGER), None).unwrap();
        let said = refused(AuthorityDirectory::open(&path));
        assert!(said.contains("owner 54321"), "{said}");
    }
}

#[test]
fn a_secret_replaces_own_links_and_never_follows_any() {
    let folder = Folder::new();
    let victim = folder.file("victim");
    fs::write(&victim, b"unharmed").unwrap();
    set_mode(&victim, 0o666);
    let out = folder.file("out");
    let plant: [&dyn Fn(); 3] = [
        &|| symlink(&victim, &out).unwrap(),
        &|| symlink(folder.file("nowhere"), &out).unwrap(),
        &|| fs::hard_link(&victim, &out).unwrap(),
    ];
    for plant in plant {
        plant();
        write_secret(&out, b"secret").unwrap();
        assert!(fs::symlink_metadata(&out).unwrap().is_file());
        assert_eq!(
            (fs::read(&out).unwrap(), mode(&out)),
            (b"secret".to_vec(), 0o600)
        );
        assert_eq!(fs::read(&victim).unwrap(), b"unharmed");
        assert!(!folder.file("nowhere").exists());
        fs::remove_file(&out).unwrap();
    }
    write_public(&out, b"no secret").unwrap();
    assert_eq!(mode(&out), 0o644);
    set_mode(&folder.0, 0o777);
    let said = refused(write_secret(&out, b"secret"));
    assert!(
        said.starts_with(&format!("can't keep a secret in {}: others", out.display())),
        "{said}"
    );
    set_mode(&folder.0, 0o700);
    symlink("loop", folder.file("loop")).unwrap();
    let looped = write_secret(folder.file("loop/out"), b"secret");
    assert!(matches!(looped, Err(PkiError::File { .. })), "{looped:?}");
}

#[test]
fn what_somebody_else_planted_is_left_alone() {
    if !is_root() {
        // Only root can make files of other accounts.
        return;
    }
    let folder = Folder::new();
    set_mode(&folder.0, 0o1777);
    let (out, own) = (folder.file("out"), folder.file("own"));
    fs::create_dir(&own).unwrap();
    let give = |path: &Path| lchown(path, Some(STRANGER), None).unwrap();

    fs::write(&out, b"theirs").unwrap();
    give(&out);
    let said = refused(write_secret(&out, b"secret"));
    assert!(said.contains("belongs to account 54321"), "{said}");
    assert_eq!(fs::read(&out).unwrap(), b"theirs");
    fs::remove_file(&out).unwrap();

    symlink(own.join("target"), &out).unwrap();
    give(&out);
    refused(write_secret(&out, b"secret"));
    fs::remove_file(&out).unwrap();

    // A link on the way is followed if it is ours.
    let way = folder.file("way");
    symlink("own/../own", &way).unwrap();
    write_secret(way.join("out"), b"secret").unwrap();
    assert_eq!(fs::read(own.join("out")).unwrap(), b"secret");
    give(&way);
    let said = refused(write_secret(way.join("out"), b"another"));
    assert!(said.contains("symbolic link of account 54321"), "{said}");
    assert!(AuthorityDirectory::initialise(way.join("ca"), at(NOW)).is_err());
    assert!(!own.join("ca").exists());

    give(&own);
    let said = refused(write_secret(own.join("out"), b"another"));
    assert!(said.contains("owner 54321"), "{said}");
}
