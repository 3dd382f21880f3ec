//! Memory for packed pieces: a bounded amount, used again when a piece has arrived. Fresh memory costs as much as packing does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use exoskel_transfer::KEEPER_BYTES_MAX;

/// As many buffers as one host needs at once are kept.
const SPARE_MAX: usize = 8;

/// Buffers for pieces to all other hosts.
#[derive(Debug)]
pub(super) struct PieceBuffers {
    inside: Mutex<Buffers>,
    freed: Condvar,
    /// What may be in use at once.
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Buffers {
    spare: Vec<Vec<u8>>,
    /// Bytes of pieces that somebody has.
    used: u64,
}

struct PackedPiece {
    buffer: Vec<u8>,
    length: usize,
    home: Arc<PieceBuffers>,
}

impl Default for PieceBuffers {
    fn default() -> Self {
        Self::new(KEEPER_BYTES_MAX)
    }
}

impl PieceBuffers {
    fn new(bytes_max: u64) -> Self {
        Self {
            inside: Mutex::default(),
            freed: Condvar::new(),
            bytes_max,
        }
    }

    /// So many bytes as `pack` writes them, whatever was there before. The memory comes back when nobody has them any more. None if others
    /// have all of it for so long.
    pub(super) fn packed(
        self: &Arc<Self>,
        length: usize,
        patience: Duration,
        pack: impl FnOnce(&mut [u8]),
    ) -> Option<Bytes> {
        let mut buffer = self.take(length as u64, patience)?;
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let mut piece = PackedPiece {
            buffer,
            length,
            home: Arc::clone(self),
        };
        pack(&mut piece.buffer[..length]);
        Some(Bytes::from_owner(piece))
    }

    fn take(&self, length: u64, patience: Duration) -> Option<Vec<u8>> {
        // One piece goes in any case.
        let is_full = |inside: &mut Buffers| {
            inside.used > 0 && inside.used.saturating_add(length) > self.bytes_max
        };
        let waited = self
            .freed
            .wait_timeout_while(self.lock(), patience, is_full);
        let (mut inside, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        inside.used += length;
        Some(inside.spare.pop().unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for PackedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for PackedPiece {
    fn drop(&mut self) {
        let mut inside = self.home.lock();
        inside.used = inside.used.saturating_sub(self.length as u64);
        if inside.spare.len() < SPARE_MAX {
            inside.spare.push(std::mem::take(&mut self.buffer));
        }
        drop(inside);
        self.home.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn memory_is_used_again_and_nothing_of_before_is_seen() {
        let home = Arc::new(PieceBuffers::default());
        let filled =
            |length, with: u8| home.packed(length, Duration::ZERO, |bytes| bytes.fill(with));
        let first = filled(100, 7).unwrap();
        let place = first.as_ptr();
        assert_eq!(&first[..], [7; 100]);
        drop(first);
        let second = filled(10, 9).unwrap();
        assert_eq!((second.as_ptr(), &second[..]), (place, &[9; 10][..]));
        let third = filled(10, 1).unwrap();
        assert_ne!(third.as_ptr(), place);
    }

    #[test]
    fn no_more_is_in_use_than_may_be_but_one_piece() {
        let home = Arc::new(PieceBuffers::new(100));
        let filled = |length| home.packed(length, Duration::ZERO, |bytes| bytes.fill(1));
        let whole = filled(150).unwrap();
        assert_eq!(filled(1), None);
        drop(whole);
        let parts = [filled(60).unwrap(), filled(40).unwrap()];
        assert_eq!(filled(1), None);
        let waiting = Arc::clone(&home);
        let thread = std::thread::spawn(move || {
            let packed = waiting.packed(50, Duration::from_secs(60), |bytes| bytes.fill(2));
            packed.unwrap()
        });
        drop(parts);
        assert_eq!(&thread.join().unwrap()[..], [2; 50]);
    }
}
