//! What a key is found by, and what it is derived from.

use super::geometry::CacheKey;
use super::schedule::{CipherSuite, EpochSecret};
use crate::protection::Protection;

/// What tells a key from every other key. The epoch is part of it, so an old epoch's key is never found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyName {
    /// The number of a direction of a session, never given twice, and that of the protection.
    pub(super) number: u64,
    pub(super) epoch: u64,
    /// Its node's table of compact keys.
    pub(super) table: u32,
}

impl CacheKey for KeyName {
    fn index(self) -> u64 {
        self.number
    }
}

/// What a key is derived from where no tier has it.
pub(super) struct KeyOrigin<'a> {
    pub(super) secret: &'a EpochSecret,
    pub(super) cipher: CipherSuite,
    pub(super) protection: Protection,
}
