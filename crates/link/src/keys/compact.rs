//! Compact keys in memory that somebody lends.

use aws_lc_rs::aead::NONCE_LEN;
use zeroize::Zeroize;

use super::cache::Cache;
use super::geometry::{ENTRIES_MAX, Geometry, GeometryError};
use super::name::KeyName;
use super::replacement::ClockPolicy;
use super::schedule::{CipherSuite, KEY_BYTES, RawRecordKey, RecordKey};

/// The bytes of the memory for compact keys that one key takes: the key and the static part of its nonces.
pub const COMPACT_KEY_BYTES: usize = KEY_BYTES + NONCE_LEN;

/// Memory for compact keys, which the owner of the process lends: it knows how memory is kept out of swap and from other processes.
///
/// # Security
/// The store erases each key that leaves, and all of it at its own end. Whoever lends it should see to it that no forked child has it.
pub trait KeyMemory: Send {
    /// All of it, always of the same length; or nothing in a process that has none of it any more, as a forked child.
    fn bytes(&mut self) -> &mut [u8];
}

impl KeyMemory for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// The table of compact keys. With CLOCK, because a lookup in a large table costs what it touches: a list in the order of use would be four
/// places more, far apart.
pub(super) struct CompactKeys {
    /// Where each key stands; none if the memory has no room for one.
    rows: Option<Cache<KeyName, Row, ClockPolicy>>,
    free: Vec<u32>,
    pub(super) memory: Box<dyn KeyMemory>,
}

/// A row of the memory, and the cipher of the key in it.
#[derive(Clone, Copy)]
struct Row {
    number: u32,
    cipher: CipherSuite,
}

impl CompactKeys {
    pub(super) fn new(mut memory: Box<dyn KeyMemory>) -> Result<Self, GeometryError> {
        let rows = (memory.bytes().len() / COMPACT_KEY_BYTES).min(ENTRIES_MAX);
        let geometry = (rows > 0).then(|| Geometry::fully_associative(rows));
        Ok(Self {
            rows: geometry.transpose()?.map(Cache::new),
            free: (0..rows as u32).rev().collect(),
            memory,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.rows.as_ref().map_or(0, Cache::len)
    }

    fn row(&mut self, row: u32) -> Option<&mut [u8]> {
        let start = row as usize * COMPACT_KEY_BYTES;
        self.memory
            .bytes()
            .get_mut(start..start + COMPACT_KEY_BYTES)
    }

    /// Expands a key from where it stands: a copy would have to be erased.
    pub(super) fn expand(&mut self, name: KeyName) -> Option<RecordKey> {
        let Row { number, cipher } = *self.rows.as_mut()?.get(name)?;
        let (key, iv) = self.row(number)?.split_first_chunk()?;
        Some(RecordKey::expand(key, iv.first_chunk()?, cipher))
    }

    pub(super) fn put(&mut self, name: KeyName, raw: &RawRecordKey, cipher: CipherSuite) {
        let Some(rows) = &mut self.rows else {
            return;
        };
        let Some(absent) = rows.absent(name) else {
            return;
        };
        // Full: what is evicted leaves its row, whose contents are written over.
        let departed = rows.make_room(&absent).map(|(_, row)| row.number);
        let Some(number) = departed.or_else(|| self.free.pop()) else {
            return;
        };
        rows.fill(absent, Row { number, cipher });
        if let Some(place) = self.row(number) {
            let (key, iv) = place.split_at_mut(KEY_BYTES);
            key.copy_from_slice(&*raw.key);
            iv.copy_from_slice(&*raw.iv);
        }
    }

    pub(super) fn remove(&mut self, name: KeyName) {
        if let Some(row) = self.rows.as_mut().and_then(|rows| rows.remove(name)) {
            if let Some(place) = self.row(row.number) {
                place.zeroize();
            }
            self.free.push(row.number);
        }
    }
}

impl Drop for CompactKeys {
    fn drop(&mut self) {
        self.memory.bytes().zeroize();
    }
}
