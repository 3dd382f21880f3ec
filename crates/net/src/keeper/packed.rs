//! Memory for packed pieces, used again when a piece has left: fresh memory costs as much as packing does.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// As many buffers as are under way at once are kept.
const SPARE_MAX: usize = 8;

/// Buffers that nothing needs at the moment.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

struct PackedPiece {
    buffer: Vec<u8>,
    length: usize,
    home: Arc<SpareBuffers>,
}

impl SpareBuffers {
    /// So many bytes as `pack` writes them, whatever was there before. The memory comes back when nobody has them any more.
    pub(super) fn packed(self: &Arc<Self>, length: usize, pack: impl FnOnce(&mut [u8])) -> Bytes {
        let spare = self
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut buffer = spare.unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        pack(&mut buffer[..length]);
        Bytes::from_owner(PackedPiece {
            buffer,
            length,
            home: Arc::clone(self),
        })
    }
}

impl AsRef<[u8]> for PackedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for PackedPiece {
    fn drop(&mut self) {
        let mut spare = self
            .home
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_nothing_of_before_is_seen() {
        let home = Arc::new(SpareBuffers::default());
        let first = home.packed(100, |bytes| bytes.fill(7));
        let place = first.as_ptr();
        assert_eq!(&first[..], [7; 100]);
        drop(first);
        let second = home.packed(10, |bytes| bytes.fill(9));
        assert_eq!((second.as_ptr(), &second[..]), (place, &[9; 10][..]));
        let third = home.packed(10, |bytes| bytes.fill(1));
        assert_ne!(third.as_ptr(), place);
    }
}
