//! Messages between a member and its keeper: a length, then JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message is no longer than this. Bounds of an axis over 2**20 processes fit.
pub const FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Of who has not attached yet: a name and two numbers fit.
pub const ATTACH_BYTES_MAX: usize = 4 * 1024;

const LENGTH_BYTES: usize = 4;

/// What came is no message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than any message.
    #[error("got a message of {got} bytes, expected at most {most}")]
    TooLong {
        /// Its length.
        got: usize,
        /// The limit.
        most: usize,
    },
    /// Not what a message says.
    #[error(
        "got a message that can't be read ({0}): member and keeper must be of the same version of Exoskel"
    )]
    Contents(#[from] serde_json::Error),
}

/// The bytes of a message.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn frame(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - LENGTH_BYTES;
    match u32::try_from(length) {
        Ok(count) if length <= FRAME_BYTES_MAX => {
            bytes[..LENGTH_BYTES].copy_from_slice(&count.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(FrameError::TooLong {
            got: length,
            most: FRAME_BYTES_MAX,
        }),
    }
}

/// Puts messages together from whatever bytes have come.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    read: usize,
    most: usize,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            read: 0,
            most: FRAME_BYTES_MAX,
        }
    }
}

impl FrameReader {
    /// Of somebody who has not attached yet: takes [`ATTACH_BYTES_MAX`] at most, until it is told otherwise.
    #[must_use]
    pub fn of_stranger() -> Self {
        Self {
            most: ATTACH_BYTES_MAX,
            ..Self::default()
        }
    }

    /// Takes all messages from now on.
    pub fn is_attached(&mut self) {
        self.most = FRAME_BYTES_MAX;
    }

    /// Takes bytes as they came.
    pub fn take(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// [`FrameError`]. Nothing more can be read then.
    pub fn message<Message: DeserializeOwned>(&mut self) -> Result<Option<Message>, FrameError> {
        let rest = &self.bytes[self.read..];
        let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.most {
            let most = self.most;
            return Err(FrameError::TooLong { got: length, most });
        }
        let Some(contents) = rest.get(LENGTH_BYTES..LENGTH_BYTES + length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(contents)?;
        self.read += LENGTH_BYTES + length;
        Ok(Some(message))
    }
}
