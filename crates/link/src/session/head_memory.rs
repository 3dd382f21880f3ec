//! Memory of small heads that is used again, so that a stream of small messages allocates nothing.

use bytes::{Bytes, BytesMut};

/// Heads of at most so many bytes share the memory.
const SMALL_BYTES_MAX: usize = 256;

/// So often in a row the last head may still be in use before another piece of memory is made.
const IN_USE_MAX: u32 = 16;

/// The memory of the small head that was handed out last, for the next one when whoever got it is done with it.
#[derive(Default)]
pub(super) struct HeadMemory {
    last: Option<Bytes>,
    /// How often in a row it was in use.
    in_use: u32,
}

impl HeadMemory {
    /// A head of these bytes, which are copied.
    pub(super) fn head(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() || bytes.len() > SMALL_BYTES_MAX {
            return Bytes::copy_from_slice(bytes);
        }
        let mut memory = match self.last.take().map(Bytes::try_into_mut) {
            Some(Ok(memory)) => memory,
            Some(Err(in_use)) if self.in_use < IN_USE_MAX => {
                self.last = Some(in_use);
                self.in_use += 1;
                return Bytes::copy_from_slice(bytes);
            }
            Some(Err(_)) | None => shared_memory(),
        };
        self.in_use = 0;
        memory.clear();
        memory.extend_from_slice(bytes);
        let head = memory.freeze();
        self.last = Some(head.clone());
        head
    }
}

/// Memory that is counted from the start: to share it later would allocate, each time.
fn shared_memory() -> BytesMut {
    let mut memory = BytesMut::with_capacity(SMALL_BYTES_MAX + 1);
    drop(memory.split_off(SMALL_BYTES_MAX));
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_nobody_has_it_any_more() {
        let mut memory = HeadMemory::default();
        let first = memory.head(b"one");
        let (place, copy) = (first.as_ptr(), first.clone());
        drop(first);
        // Somebody has it still.
        let second = memory.head(b"two");
        assert_ne!(second.as_ptr(), place);
        assert_eq!((&copy[..], &second[..]), (&b"one"[..], &b"two"[..]));
        drop(copy);
        let third = memory.head(&[3; SMALL_BYTES_MAX]);
        assert_eq!(
            (third.as_ptr(), &third[..]),
            (place, &[3; SMALL_BYTES_MAX][..])
        );
        drop(third);
        assert_eq!(memory.head(b"four").as_ptr(), place);
    }

    #[test]
    fn who_keeps_a_head_for_ever_keeps_nothing_from_others() {
        let mut memory = HeadMemory::default();
        let kept = memory.head(b"kept");
        for _ in 0..IN_USE_MAX {
            assert_eq!(&memory.head(b"next")[..], b"next");
        }
        let place = memory.head(b"other").as_ptr();
        assert_eq!(memory.head(b"again").as_ptr(), place);
        assert_eq!(&kept[..], b"kept");
    }
}
