//! What a front and the server behind it share, so that nobody else can speak for the front.

use std::fmt;
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use exoskel_trust::{FileError, read_private};
use http::HeaderValue;
use zeroize::Zeroizing;

use crate::limits::{CREDENTIAL_FILE_BYTES_MAX, SECRET_BYTES_MAX, SECRET_BYTES_MIN};

/// A secret of printable characters, read from a file that only its owner can read. Both sides read the same file:
/// the front sends it with each request, the server behind believes the front's headers only where it stands.
#[derive(Clone)]
pub struct FrontSecret(Zeroizing<Vec<u8>>);

impl FrontSecret {
    /// Reads the file; white space at both ends doesn't count.
    ///
    /// # Errors
    /// [`SecretError`] names the file and what its owner must do.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let content = read_private(path, CREDENTIAL_FILE_BYTES_MAX)?;
        let secret = content.trim_ascii();
        let sound = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len())
            && secret.iter().all(u8::is_ascii_graphic);
        if !sound {
            return Err(SecretError::Unsound {
                file: path.to_owned(),
                got: secret.len(),
            });
        }
        Ok(Self(Zeroizing::new(secret.to_vec())))
    }

    /// Whether somebody knows it, found in a time that doesn't depend on where the first difference is.
    pub fn matches(&self, got: &[u8]) -> bool {
        verify_slices_are_equal(&self.0, got).is_ok()
    }

    /// As a header that is left out of logs.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut value =
            HeaderValue::from_bytes(&self.0).unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for FrontSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("FrontSecret").finish_non_exhaustive()
    }
}

/// Why a front's secret can't be used. Its owner must act.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// What stands in it.
    #[error(
        "{} holds {got} bytes, expected {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} printable ones without spaces: make one with \"openssl rand -hex 32\"", file.display()
    )]
    Unsound {
        /// Which file.
        file: PathBuf,
        /// How long its content is.
        got: usize,
    },
}
