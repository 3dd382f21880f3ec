//! A message while its records arrive. Bytes go to their final place; nothing is handed out before all is verified.

use bytes::Bytes;

use crate::envelope::Envelope;
use crate::message::{Event, LinkId, Message};
use crate::record::{HEADER_BYTES, RecordKind};
use crate::session::reception::CountedReception;

/// Up to this size a part's memory is reserved at once; a larger one grows with what arrives, so that a claim alone
/// costs nothing.
const RESERVE_BYTES_MAX: u64 = 16 << 20;

/// The parts of a message, filled one after the other.
pub(super) struct Assembly {
    envelope: Envelope,
    head: BulkPart,
    bulk: Vec<BulkPart>,
    /// The part that the next record belongs to: 0 is the head.
    current: usize,
    /// What is here of it.
    pub(super) counted: CountedReception,
}

impl Assembly {
    /// Starts with what the first record holds.
    pub(super) fn new(
        envelope: Envelope,
        first: &[u8],
        pool: &mut Pool,
        mut counted: CountedReception,
    ) -> Self {
        counted.add(first.len() as u64);
        let mut head = BulkPart::new(envelope.head_bytes, Vec::new());
        head.data.extend_from_slice(first);
        head.filled = first.len();
        let bulk = envelope
            .bulk_bytes
            .iter()
            .map(|&bytes| BulkPart::new(bytes, pool.take(bytes)))
            .collect();
        let mut assembly = Self {
            envelope,
            head,
            bulk,
            current: 0,
            counted,
        };
        assembly.skip_full();
        assembly
    }

    /// What the message will have, without its overhead.
    pub(super) fn bytes(&self) -> u64 {
        self.envelope.size() - Message::OVERHEAD_BYTES
    }

    pub(super) fn is_complete(&self) -> bool {
        self.current > self.bulk.len()
    }

    /// The event of a complete message.
    pub(super) fn into_event(self, link: LinkId) -> Event {
        let size = self.envelope.size();
        Event::Message {
            link,
            handler: self.envelope.handler,
            kind: self.envelope.kind,
            head: Bytes::from(self.head.into_data()),
            bulk: self.bulk.into_iter().map(BulkPart::into_data).collect(),
            size,
        }
    }

    /// Prepares room for a record's body, or says why it doesn't fit.
    pub(super) fn begin(
        &mut self,
        kind: RecordKind,
        length: usize,
        end: bool,
    ) -> Result<(), &'static str> {
        let expected = if self.current == 0 {
            RecordKind::HeadMore
        } else {
            RecordKind::Bulk
        };
        if kind != expected {
            return Err("a record of another kind is due");
        }
        let last = self.bulk.iter().skip(self.current).all(BulkPart::is_full);
        let Some(part) = self.part() else {
            return Err("the message is complete");
        };
        if length as u64 > part.missing() {
            return Err("it is longer than what its part misses");
        }
        if end != (last && length as u64 == part.missing()) {
            return Err("its end flag does not agree with the message's lengths");
        }
        part.make_room(length)
    }

    /// Where the rest of the current record's body goes, `done` bytes of it being there.
    pub(super) fn room(&mut self, done: usize, length: usize) -> &mut [u8] {
        let part = self.part().expect("a record has begun, so there is a part");
        &mut part.data[part.filled + done..part.filled + length]
    }

    /// The current record's body and room for a header behind it.
    pub(super) fn segment(&mut self, length: usize) -> &mut [u8] {
        let part = self.part().expect("a record has begun, so there is a part");
        &mut part.data[part.filled..part.filled + length + HEADER_BYTES]
    }

    /// The current record's body is there and verified.
    pub(super) fn finish(&mut self, length: usize) {
        let part = self.part().expect("a record has begun, so there is a part");
        part.filled += length;
        self.counted.add(length as u64);
        self.skip_full();
    }

    /// How many bytes of the part are due after `length` more, for the choice of the next read.
    pub(super) fn due_after(&self, length: usize) -> u64 {
        let part = |index: usize| {
            if index == 0 {
                Some(&self.head)
            } else {
                self.bulk.get(index - 1)
            }
        };
        let current =
            part(self.current).map_or(0, |part| part.missing().saturating_sub(length as u64));
        if current > 0 {
            return current;
        }
        part(self.current + 1).map_or(0, BulkPart::missing)
    }

    /// Whether the next body of this message is a bulk segment.
    pub(super) fn next_is_bulk(&self, length: usize) -> bool {
        self.current > 0 || self.head.missing() <= length as u64
    }

    fn part(&mut self) -> Option<&mut BulkPart> {
        if self.current == 0 {
            Some(&mut self.head)
        } else {
            self.bulk.get_mut(self.current - 1)
        }
    }

    fn skip_full(&mut self) {
        while self.part().is_some_and(|part| part.is_full()) {
            self.current += 1;
        }
    }
}

struct BulkPart {
    /// Longer than what is filled: initialised ahead of the bytes that arrive.
    data: Vec<u8>,
    filled: usize,
    expected: u64,
}

impl BulkPart {
    fn new(expected: u64, data: Vec<u8>) -> Self {
        Self {
            data,
            filled: 0,
            expected,
        }
    }

    fn missing(&self) -> u64 {
        self.expected - self.filled as u64
    }

    fn is_full(&self) -> bool {
        self.missing() == 0
    }

    fn make_room(&mut self, length: usize) -> Result<(), &'static str> {
        let end = self.filled + length + HEADER_BYTES;
        let whole = self.expected as usize + HEADER_BYTES;
        let wanted = if self.expected <= RESERVE_BYTES_MAX {
            whole
        } else {
            whole.min(2 * end)
        };
        if self.data.capacity() < end
            && self
                .data
                .try_reserve_exact(wanted.saturating_sub(self.data.len()))
                .is_err()
        {
            return Err("this side has no memory left for it");
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        Ok(())
    }

    fn into_data(mut self) -> Vec<u8> {
        self.data.truncate(self.filled);
        self.data
    }
}

/// Buffers that the application gave back, kept at their full length so that they need not be cleared again.
#[derive(Default)]
pub(super) struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    /// The most buffers and bytes kept.
    const BUFFERS_MAX: usize = 256;
    const BYTES_MAX: usize = 16 << 20;

    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes > 0
            && self.buffers.len() < Self::BUFFERS_MAX
            && self.bytes + bytes <= Self::BYTES_MAX
        {
            self.bytes += bytes;
            self.buffers.push(buffer);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A buffer that suits this size without wasting more than half of it, else an empty one.
    fn take(&mut self, bytes: u64) -> Vec<u8> {
        let suits = |buffer: &Vec<u8>| {
            let capacity = buffer.capacity() as u64;
            capacity >= bytes + HEADER_BYTES as u64 && capacity / 2 <= bytes
        };
        match self.buffers.iter().position(suits) {
            Some(index) => {
                let buffer = self.buffers.swap_remove(index);
                self.bytes -= buffer.capacity();
                buffer
            }
            None => Vec::new(),
        }
    }
}
