//! Files that hold secrets: private from the first byte, and never half written.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use exoskel_identity::Credential;
use rustix::fs::FlockOperation;

use super::PkiError;
use crate::folder::{Replaceable, of_somebody_else, replaceable, shared};

/// Readable by the owner only.
pub(super) const PRIVATE: u32 = 0o600;
/// Readable by all.
pub(super) const PUBLIC: u32 = 0o644;

/// Writes a credential to a file that only its owner can read. Who reads it meanwhile sees the old one or the new one.
///
/// # Errors
/// Those of [`write_secret`].
pub fn write_credential(path: impl AsRef<Path>, credential: &Credential) -> Result<(), PkiError> {
    write_secret(path, &credential.to_pem())
}

/// Writes a secret to a new file of mode 0600, which then takes its place whole. A link of this account's in its place is
/// replaced, and never followed.
///
/// # Errors
/// [`PkiError::Replaceable`] when somebody else made what is there, or a link on the way, or can replace files there;
/// [`PkiError::File`] when the system refuses. The old file, if there was one, is unchanged then.
pub fn write_secret(path: impl AsRef<Path>, secret: &[u8]) -> Result<(), PkiError> {
    write_own(path.as_ref(), secret, PRIVATE)
}

/// Writes a file that all may read, as [`write_secret`] does.
///
/// # Errors
/// Those of [`write_secret`].
pub fn write_public(path: impl AsRef<Path>, content: &[u8]) -> Result<(), PkiError> {
    write_own(path.as_ref(), content, PUBLIC)
}

fn write_own(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiError> {
    let refused = |judged: io::Result<Option<Replaceable>>| match judged {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(PkiError::Replaceable {
            path: path.to_owned(),
            reason,
        }),
        Err(source) => Err(file_error("write", path, source)),
    };
    refused(replaceable(folder(path)))?;
    refused(of_somebody_else(path))?;
    write(path, bytes, mode)
}

/// Refuses a folder in which somebody else could replace or plant files, one that is to be made included.
pub(super) fn check_folder(path: &Path) -> Result<(), PkiError> {
    let failed = |source| file_error("look at", path, source);
    let mut judged = replaceable(path).map_err(failed)?;
    if judged.is_none() && path.exists() {
        judged = shared(&path.canonicalize().map_err(failed)?).map_err(failed)?;
    }
    match judged {
        None => Ok(()),
        Some(reason) => Err(PkiError::Replaceable {
            path: path.to_owned(),
            reason,
        }),
    }
}

/// Writes a file under another name and renames it, so that it is there whole or not at all.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PkiError> {
    let failed = |source| file_error("write", path, source);
    let (temporary, mut file) = create_beside(path, mode).map_err(failed)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| std::fs::rename(&temporary, path));
    if renamed.is_err() {
        // The first failure is the one to report; what is left behind is private and has a telling name.
        let _ = std::fs::remove_file(&temporary);
    }
    renamed.map_err(failed)?;
    // The rename itself must survive a crash, and it stands in the folder.
    File::open(folder(path))
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}

fn create_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the path names no file"))?;
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{number}.new", std::process::id()));
        let temporary = folder(path).join(hidden);
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)
        {
            Ok(file) => return Ok((temporary, file)),
            // Left over from a process of the same number that was killed here.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes a folder, and those above it, that only its owner can enter.
pub(super) fn make_folder(path: &Path) -> Result<(), PkiError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| file_error("make the folder", path, source))
}

/// Holds off every other process that locks the same folder, until the result is dropped.
pub(super) fn lock(path: &Path) -> Result<File, PkiError> {
    let failed = |source| file_error("lock", path, source);
    let folder = File::open(path).map_err(failed)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)
        .map_err(|error| failed(error.into()))?;
    Ok(folder)
}

pub(super) fn file_error(action: &'static str, path: &Path, source: io::Error) -> PkiError {
    PkiError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
