//! Messages between a member and its keeper: a length, then JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message is no longer than this. Bounds of an axis over 2**20 processes fit.
pub const FRAME_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Of who has not attached yet: a name and two numbers fit.
pub const ATTACH_BYTES_MAX: usize = 4 * 1024;

/// What all members of a keeper may have said of messages that are not whole, together, beyond [`HALF_FRAME_BYTES_OF_ONE`] of each. Eight
/// of the longest messages, or 64 KiB more of each of 4,096 members.
pub const HALF_FRAMES_BYTES_MAX: usize = 8 * FRAME_BYTES_MAX;

/// What each may have said of a message that is not whole, whatever the others have said: what members usually say fits.
pub const HALF_FRAME_BYTES_OF_ONE: usize = 64 * 1024;

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
    /// All members together have said too much of messages that are not whole.
    #[error(
        "got a part of a message, and the keeper holds {got} bytes of such parts of all its members, expected at most {most}: run fewer members on this host"
    )]
    Half {
        /// What the keeper would hold.
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

/// Counts what several readers hold of messages that are not whole, and bounds it for all of them.
#[derive(Debug)]
pub struct HalfFrames {
    bytes: AtomicUsize,
    most: usize,
}

impl HalfFrames {
    /// Holds readers to so many bytes together, usually [`HALF_FRAMES_BYTES_MAX`].
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            most,
        }
    }

    /// What they hold, beyond what each may.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The part of one reader in the count. It is taken back when the message is whole, or the reader dropped.
#[derive(Debug, Default)]
struct CountedHalf {
    shared: Option<Arc<HalfFrames>>,
    bytes: usize,
}

impl CountedHalf {
    /// Says what the reader holds now.
    ///
    /// # Errors
    /// [`FrameError::Half`] if all hold too much, and this one is among those who hold more than each may.
    fn set(&mut self, held: usize) -> Result<(), FrameError> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let bytes = held.saturating_sub(HALF_FRAME_BYTES_OF_ONE);
        // More is added first, so that what all hold never looks like less than nothing.
        shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let is_more = bytes > self.bytes;
        self.bytes = bytes;
        let (got, most) = (shared.bytes(), shared.most);
        match is_more && got > most {
            true => Err(FrameError::Half { got, most }),
            false => Ok(()),
        }
    }
}

impl Drop for CountedHalf {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Puts messages together from whatever bytes have come.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    read: usize,
    most: usize,
    half: CountedHalf,
    /// What came was no message: nothing more is kept.
    has_failed: bool,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            read: 0,
            most: FRAME_BYTES_MAX,
            half: CountedHalf::default(),
            has_failed: false,
        }
    }
}

impl FrameReader {
    /// Of somebody who has not attached yet: takes [`ATTACH_BYTES_MAX`] at most, until it is told otherwise. What it holds of messages that
    /// are not whole counts together with what others hold.
    #[must_use]
    pub fn of_stranger(half: Arc<HalfFrames>) -> Self {
        Self {
            most: ATTACH_BYTES_MAX,
            half: CountedHalf {
                shared: Some(half),
                bytes: 0,
            },
            ..Self::default()
        }
    }

    /// Takes all messages from now on.
    pub fn is_attached(&mut self) {
        self.most = FRAME_BYTES_MAX;
    }

    /// Takes bytes as they came.
    pub fn take(&mut self, bytes: &[u8]) {
        if self.has_failed {
            return;
        }
        if self.read == self.bytes.len() {
            self.forget();
        } else if self.read > 0 {
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
        let message = self.next();
        let held = self.bytes.len() - self.read;
        let message = message.and_then(|message| self.half.set(held).map(|()| message));
        if message.is_err() {
            self.end();
        }
        message
    }

    /// Keeps nothing any more.
    pub fn end(&mut self) {
        self.has_failed = true;
        self.forget();
        // Less is no error.
        let _ = self.half.set(0);
    }

    fn next<Message: DeserializeOwned>(&mut self) -> Result<Option<Message>, FrameError> {
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
        if self.read == self.bytes.len() {
            self.forget();
        }
        Ok(Some(message))
    }

    /// Lets go of what was read, and of the memory that a long message has taken.
    fn forget(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(HALF_FRAME_BYTES_OF_ONE);
        self.read = 0;
    }
}
