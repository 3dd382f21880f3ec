//! What users share with all slots of a host: contents by their digest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::message::{Digest, PIECE_BYTES_MAX};

/// The shared contents of a process. All of its managers send from the same ones.
#[derive(Debug, Default)]
pub struct SharedTable {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    contents: HashMap<Digest, (u64, Bytes)>,
    next: u64,
}

impl SharedTable {
    /// Keeps contents until [`remove`](Self::remove), in the place of others of that name. Gives a number that is theirs.
    ///
    /// # Security
    /// Who knows the digest gets the contents: a slot learns it from what its manager sends.
    pub fn insert(&self, digest: Digest, contents: Bytes) -> u64 {
        let mut entries = self.lock();
        entries.next += 1;
        let number = entries.next;
        let replaced = entries.contents.insert(digest, (number, contents));
        drop(entries);
        // What its owner does when it goes needs no lock.
        drop(replaced);
        number
    }

    /// Forgets contents, unless others have taken their place; slots that have them keep them.
    pub fn remove(&self, digest: &Digest, number: u64) {
        let mut entries = self.lock();
        let known = entries.contents.get(digest);
        let removed = known
            .is_some_and(|(known, _)| *known == number)
            .then(|| entries.contents.remove(digest));
        drop(entries);
        drop(removed);
    }

    /// A piece of contents, which is no copy; none if they aren't there or end before it.
    #[must_use]
    pub fn piece(&self, digest: &Digest, offset: u64, bytes: u32) -> Option<Bytes> {
        let (_, contents) = self.lock().contents.get(digest)?.clone();
        let start = usize::try_from(offset).ok()?;
        let left = contents.len().checked_sub(start)?;
        let piece = contents.slice(start..start + left.min(bytes.min(PIECE_BYTES_MAX) as usize));
        (!piece.is_empty()).then_some(piece)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_the_contents_do() {
        let table = SharedTable::default();
        let digest = [1; 32];
        assert_eq!(table.piece(&digest, 0, 5), None);
        let first = table.insert(digest, Bytes::from_static(b"of before"));
        let second = table.insert(digest, Bytes::from_static(b"contents"));
        table.remove(&digest, first);
        let piece = |offset, bytes| table.piece(&digest, offset, bytes);
        assert_eq!(piece(0, 3), Some(Bytes::from_static(b"con")));
        assert_eq!(piece(5, u32::MAX), Some(Bytes::from_static(b"nts")));
        assert_eq!(piece(8, 1), None);
        assert_eq!(piece(u64::MAX, 1), None);
        table.remove(&digest, second);
        assert_eq!(piece(0, 3), None);
    }
}
