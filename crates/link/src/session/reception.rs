//! What several sessions have received of messages that aren't whole yet: they belong to one peer, and are held to one limit together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::SessionError;

/// The memory that a part of a message takes before anything of it is here, in bytes.
const PART_BYTES: u64 = 64;

/// Counts the bytes of messages that have begun to arrive and aren't whole, for all sessions that share it.
#[derive(Debug, Default)]
pub struct SharedReception(AtomicU64);

impl SharedReception {
    /// The bytes that are here of messages which aren't whole.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The part of one message in the count. It is taken back when the message is whole, or dropped.
pub(super) struct CountedReception {
    shared: Option<Arc<SharedReception>>,
    bytes: u64,
}

impl CountedReception {
    pub(super) fn new(shared: Option<&Arc<SharedReception>>, parts: usize) -> Self {
        let mut counted = Self {
            shared: shared.cloned(),
            bytes: 0,
        };
        counted.add(PART_BYTES.saturating_mul(parts as u64));
        counted
    }

    pub(super) fn add(&mut self, bytes: u64) {
        if let Some(shared) = &self.shared {
            shared.0.fetch_add(bytes, Ordering::Relaxed);
            self.bytes += bytes;
        }
    }

    /// Holds what all sessions have to a limit.
    pub(super) fn check(&self, maximum: u64) -> Result<(), SessionError> {
        let got = self.shared.as_ref().map_or(0, |shared| shared.bytes());
        if got <= maximum {
            return Ok(());
        }
        Err(SessionError::PeerLimit {
            limit: "twice message_bytes_max in messages that are half here, in all sessions of one certificate",
            got,
            maximum,
        })
    }
}

impl Drop for CountedReception {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
