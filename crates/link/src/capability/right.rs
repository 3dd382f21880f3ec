//! What travels when somebody opens a link: the caveats, and a proof, never the tag.

use core::fmt;

use super::chain::TAG_BYTES;
use super::conditions::Conditions;
use super::{CapabilityError, Caveat, KEY_ID_BYTES, RIGHT_BYTES_MAX};
use crate::codec::{Reader, over};
use crate::protection::Protection;

/// The right to open one link of one session, as the holder of a startpoint shows it.
///
/// # Security
/// It is worth nothing on any other link or session. Until a [`RootKey`](super::RootKey) has verified it, it says what
/// somebody claims.
#[derive(Clone, PartialEq, Eq)]
pub struct Right {
    pub(super) conditions: Conditions,
    pub(super) proof: [u8; TAG_BYTES],
}

impl Right {
    /// Which key of the endpoint it rests on.
    pub fn key_id(&self) -> &[u8; KEY_ID_BYTES] {
        &self.conditions.key_id
    }

    /// The startpoint's number among those of its key.
    pub fn number(&self) -> u64 {
        self.conditions.number
    }

    /// Whether whoever holds the startpoint has the right.
    pub fn is_bearer(&self) -> bool {
        self.conditions.bearer
    }

    /// What takes away from the right, in the order in which it was added.
    pub fn caveats(&self) -> &[Caveat] {
        &self.conditions.caveats
    }

    /// The protection that a link has to be asked for with: see [`Startpoint::needs`](super::Startpoint::needs).
    pub fn needs(&self, same_host: bool) -> Protection {
        self.conditions.needs(same_host)
    }

    /// The right's bytes, at most [`RIGHT_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.conditions
            .put(&mut out)
            .expect("what a right is made of was checked when it was made or read");
        out.extend_from_slice(&self.proof);
        out
    }

    /// Reads a right. What is taken is [encoded](Self::encode) to the same bytes.
    ///
    /// # Errors
    /// [`CapabilityError`] says what is wrong with the bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, CapabilityError> {
        if bytes.len() > RIGHT_BYTES_MAX {
            let (got, limit) = (bytes.len() as u64, RIGHT_BYTES_MAX as u64);
            return Err(over("length of a right", got, limit).into());
        }
        let mut reader = Reader::new(bytes);
        let right = Self {
            conditions: Conditions::read(&mut reader)?,
            proof: reader.array("proof")?,
        };
        reader.end("right")?;
        Ok(right)
    }
}

impl fmt::Debug for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Right")
            .field("number", &self.conditions.number)
            .field("bearer", &self.conditions.bearer)
            .field("caveats", &self.conditions.caveats)
            .finish_non_exhaustive()
    }
}
