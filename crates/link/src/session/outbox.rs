//! Sealed bytes on their way out: recycled blocks, and the users' own buffers where they travel in clear.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::error::SessionError;
use crate::record::{HEAD_BYTES_MAX, HEADER_BYTES, SEGMENT_BYTES_MAX};
use crate::sealing::OVERHEAD_BYTES;

/// Small records share blocks of this size, so that they leave together in one write.
const SMALL_BLOCK_BYTES: usize = HEAD_BYTES_MAX + OVERHEAD_BYTES;
/// Each sealed segment has a block of its own.
const LARGE_BLOCK_BYTES: usize = SEGMENT_BYTES_MAX + OVERHEAD_BYTES;
/// How many blocks of each size wait for reuse; what is sealed ahead needs no more.
const SPARE_BLOCKS_MAX: usize = 4;

/// Bytes to write, in order.
#[derive(Default)]
pub(super) struct Outbox {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    spare_small: Vec<Vec<u8>>,
    spare_large: Vec<Vec<u8>>,
}

enum Chunk {
    /// Whole records. The vector keeps its length when it is recycled, so that it is never cleared twice.
    Block {
        data: Vec<u8>,
        start: usize,
        end: usize,
    },
    /// Header and tag of a plain record whose body is the next chunk. Where records have no tag, only the header counts.
    Front {
        bytes: [u8; OVERHEAD_BYTES],
        start: usize,
        end: usize,
    },
    /// A user's buffer.
    Body(Bytes),
}

impl Outbox {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a record of this many bytes, which `fill` writes. If it fails nothing is appended.
    pub(super) fn append(
        &mut self,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let fits = |chunk: &Chunk| matches!(chunk, Chunk::Block { data, end, .. } if data.len() - end >= count);
        if !self.chunks.back().is_some_and(fits) {
            let data = self.block(count);
            self.chunks.push_back(Chunk::Block {
                data,
                start: 0,
                end: 0,
            });
        }
        if let Some(Chunk::Block { data, end, .. }) = self.chunks.back_mut() {
            fill(&mut data[*end..*end + count])?;
            *end += count;
            self.bytes += count;
        }
        Ok(())
    }

    /// Appends a plain record without touching its body.
    pub(super) fn append_plain(
        &mut self,
        front: [u8; OVERHEAD_BYTES],
        body: impl IntoIterator<Item = Bytes>,
    ) {
        self.append_behind(front, OVERHEAD_BYTES, body);
    }

    /// Appends a record that has no tag without touching its body.
    pub(super) fn append_untagged(
        &mut self,
        header: [u8; HEADER_BYTES],
        body: impl IntoIterator<Item = Bytes>,
    ) {
        let mut front = [0; OVERHEAD_BYTES];
        front[..HEADER_BYTES].copy_from_slice(&header);
        self.append_behind(front, HEADER_BYTES, body);
    }

    fn append_behind(
        &mut self,
        front: [u8; OVERHEAD_BYTES],
        count: usize,
        body: impl IntoIterator<Item = Bytes>,
    ) {
        self.bytes += count;
        self.chunks.push_back(Chunk::Front {
            bytes: front,
            start: 0,
            end: count,
        });
        for stretch in body {
            self.bytes += stretch.len();
            self.chunks.push_back(Chunk::Body(stretch));
        }
    }

    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks
            .iter()
            .map(Chunk::as_slice)
            .filter(|slice| !slice.is_empty())
    }

    /// Drops bytes from the front; blocks that are done wait for reuse.
    pub(super) fn advance(&mut self, mut count: usize) {
        count = count.min(self.bytes);
        self.bytes -= count;
        while let Some(chunk) = self.chunks.front_mut() {
            let taken = count.min(chunk.as_slice().len());
            match chunk {
                Chunk::Block { start, .. } | Chunk::Front { start, .. } => *start += taken,
                Chunk::Body(body) => body.advance(taken),
            }
            count -= taken;
            if !chunk.as_slice().is_empty() {
                break;
            }
            if let Some(Chunk::Block { data, .. }) = self.chunks.pop_front() {
                self.keep(data);
            }
        }
    }

    /// Gives the spare blocks back to the allocator: an idle session is small.
    pub(super) fn release_spare(&mut self) {
        self.spare_small = Vec::new();
        self.spare_large = Vec::new();
    }

    fn block(&mut self, count: usize) -> Vec<u8> {
        let (spare, size) = if count <= SMALL_BLOCK_BYTES {
            (&mut self.spare_small, SMALL_BLOCK_BYTES)
        } else {
            (&mut self.spare_large, LARGE_BLOCK_BYTES)
        };
        spare.pop().unwrap_or_else(|| vec![0; size])
    }

    fn keep(&mut self, data: Vec<u8>) {
        let spare = if data.len() == SMALL_BLOCK_BYTES {
            &mut self.spare_small
        } else {
            &mut self.spare_large
        };
        if spare.len() < SPARE_BLOCKS_MAX {
            spare.push(data);
        }
    }
}

impl Chunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Block { data, start, end } => &data[*start..*end],
            Self::Front { bytes, start, end } => &bytes[*start..*end],
            Self::Body(body) => body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pieces in which the bytes leave, they leave in order and completely.
    #[test]
    fn bytes_leave_in_order_in_any_pieces() {
        for step in [1, 7, 32, 100, 1000, 1_000_000] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for index in 0..40_u8 {
                let count = usize::from(index) * 3000 + 1;
                outbox
                    .append(count, |room| {
                        room.fill(index);
                        Ok(())
                    })
                    .unwrap();
                expected.extend(vec![index; count]);
                outbox.append_plain([index; OVERHEAD_BYTES], [Bytes::from(vec![index; 5])]);
                expected.extend([index; OVERHEAD_BYTES + 5]);
                outbox.append_untagged([index; HEADER_BYTES], [Bytes::from(vec![index; 3])]);
                expected.extend([index; HEADER_BYTES + 3]);
            }
            let mut left = Vec::new();
            while outbox.bytes() > 0 {
                let slice = outbox.slices().next().unwrap();
                let count = step.min(slice.len());
                left.extend_from_slice(&slice[..count]);
                outbox.advance(count);
            }
            assert_eq!(left, expected);
            assert_eq!(outbox.slices().count(), 0);
        }
    }
}
