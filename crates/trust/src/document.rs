//! A text that stands in a file, or was handed over in memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Where a credential or a policy is read from.
#[derive(Clone)]
pub enum Document {
    /// A file, read again when it changes.
    File(PathBuf),
    /// What a parent process handed over. It never changes.
    Memory(Zeroizing<Vec<u8>>),
}

impl Document {
    /// Reads an inherited descriptor to its end and closes it.
    ///
    /// # Errors
    /// When the system can't read it.
    pub fn inherited(descriptor: OwnedFd) -> io::Result<Self> {
        let mut file = File::from(descriptor);
        // Room for all of it at once: a buffer that grows leaves copies of a secret behind.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut contents = Zeroizing::new(Vec::with_capacity(length + 1));
        file.read_to_end(&mut contents)?;
        Ok(Self::Memory(contents))
    }

    /// The file, if it is in one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Memory(_) => None,
        }
    }
}

impl fmt::Debug for Document {
    /// Without what is in memory, which may be a key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => formatter.debug_tuple("File").field(path).finish(),
            Self::Memory(_) => formatter.debug_tuple("Memory").finish_non_exhaustive(),
        }
    }
}
