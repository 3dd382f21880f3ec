//! Files of limited length, read whole; those with secrets only when nobody else can read them.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Permission bits of others than the owner.
const OTHERS: u32 = 0o077;

/// Why a file can't be read. Its owner must act.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A secret that others can read is none.
    #[error(
        "others can read the secret in {0} (mode {mode:04o}, expected 0600): run \"chmod 600 {0}\"; if others use this machine, issue it anew",
        path.display()
    )]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory, a device or a pipe.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// What it is called.
        path: PathBuf,
    },
    /// Longer than any file of its kind.
    #[error("{} has {got} bytes, expected at most {max}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        got: u64,
        /// The limit.
        max: usize,
    },
}

/// Reads a file that must be its owner's alone.
///
/// # Errors
/// [`FileError`], among them [`FileError::NotPrivate`].
pub fn read_private(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    read(path, bytes_max, OTHERS)
}

/// Reads a file that all may read.
///
/// # Errors
/// [`FileError`].
pub fn read_public(path: &Path, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>, FileError> {
    read(path, bytes_max, 0)
}

fn read(path: &Path, max: usize, forbidden: u32) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    // Without the flag, opening a named pipe would wait for a writer for ever.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flags of open fit an int");
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(failed)?;
    // The open file is asked, not the path, so that nobody can exchange it in between.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(FileError::NotPrivate {
            path: path.to_owned(),
            mode,
        });
    }
    let too_long = |got| FileError::TooLong {
        path: path.to_owned(),
        got,
        max,
    };
    let length = usize::try_from(metadata.len())
        .ok()
        .filter(|length| *length <= max);
    let length = length.ok_or_else(|| too_long(metadata.len()))?;
    // One byte more than needed: a buffer that grows would leave copies of a secret behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    file.take(length as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > length {
        return Err(failed(io::Error::other("it grew while it was read")));
    }
    Ok(bytes)
}
