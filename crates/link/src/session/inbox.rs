//! Received bytes that have no final place yet, and where in the stream of records the session stands.

use crate::protection::Protection;
use crate::record::{HEAD_BYTES_MAX, RecordHeader};
use crate::sealing::OVERHEAD_BYTES;

/// Holds the largest record that is opened here (a Head), and as much again so that many small ones come with one read.
pub(super) const RECEIVE_BYTES: usize = 2 * (HEAD_BYTES_MAX + OVERHEAD_BYTES);

/// A buffer filled at one end and emptied at the other, and the parser's state.
pub(super) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    pub(super) state: Inbound,
}

/// What the next received bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inbound {
    /// A record's start.
    Start,
    /// The body of a HeadMore or Bulk record, which goes to its final place; `done` bytes are there.
    Body {
        header: RecordHeader,
        protection: Protection,
        done: usize,
    },
    /// The tag behind such a body.
    Tag {
        header: RecordHeader,
        protection: Protection,
    },
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            state: Inbound::Start,
        }
    }

    /// Free room at the end, enough for the largest record that can still be incomplete in the buffer, but not more
    /// than `limit`.
    pub(super) fn room(&mut self, limit: Option<usize>) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer = vec![0; RECEIVE_BYTES];
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < RECEIVE_BYTES / 2 {
            // What is left is less than one record; moving it makes room for all of it.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = self.buffer.len() - self.end;
        let count = limit.map_or(free, |limit| limit.min(free));
        &mut self.buffer[self.end..self.end + count]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// So many bytes were put into the room.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end = self.buffer.len().min(self.end + bytes);
    }

    /// The first bytes, if there are as many.
    pub(super) fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buffer[self.start..self.end].first_chunk()
    }

    /// Takes bytes from the front; there must be as many.
    pub(super) fn take(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.start;
        self.start += bytes;
        &mut self.buffer[start..start + bytes]
    }

    /// Gives the buffer back to the allocator when it holds nothing.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            self.buffer = Vec::new();
        }
    }
}
