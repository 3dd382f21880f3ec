//! What items hold: told by their place alone, so that whoever gets one can tell whether it is the right one, unaltered.

use bytes::Bytes;
use exoskel_task::payload::Record;
use exoskel_task::router::Function;

use exoskel_determinism::SplitMix64;

/// Stands in every token, often.
const MARK: [u8; 16] = *b"in the clear 16b";

/// Stands in every function's pickle.
const CODE_MARK: [u8; 16] = *b"code, in clear16";

/// Bytes between two marks.
const MARK_EVERY: usize = 64;

/// What an item is after some of its functions, or what one of them raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Of which of the manager's processes.
    pub(super) life: u32,
    pub(super) stream: u64,
    pub(super) index: u64,
    /// Segments passed.
    pub(super) passed: u16,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Value,
    /// A function raised.
    Raised,
    /// The result was over its limit.
    TooLarge,
}

/// How large the tokens of a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) seed: u64,
    pub(super) input_bytes_max: u64,
    pub(super) result_bytes_max: u64,
    /// Whether part of it travels beside the record.
    pub(super) has_bulk: bool,
}

/// Smaller buffers stay in the record, as the Python side has it.
const BULK_BYTES_MIN: u64 = 8 * 1024;

impl Token {
    /// The record and its bulk parts.
    pub(super) fn contents(&self, sizes: Sizes) -> (Vec<u8>, Vec<Bytes>) {
        let place = self.index.wrapping_mul(0x9E6C_63D0_876A_68DE)
            ^ u64::from(self.passed).rotate_left(40)
            ^ self.stream.rotate_left(20)
            ^ u64::from(self.life).rotate_left(55);
        let mut random = SplitMix64::new(sizes.seed ^ place);
        let most = match (self.what, self.passed) {
            (What::Value, 0) => sizes.input_bytes_max,
            (What::Value, _) => sizes.result_bytes_max,
            _ => 40,
        };
        let bytes = 1 + random.below(most);
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(&MARK);
        head.extend_from_slice(&self.stream.to_be_bytes());
        head.extend_from_slice(&self.index.to_be_bytes());
        head.extend_from_slice(&self.passed.to_be_bytes());
        head.push(match self.what {
            What::Value => 0,
            What::Raised => 1,
            What::TooLarge => 2,
        });
        head.extend_from_slice(&self.life.to_be_bytes());
        if sizes.has_bulk && bytes >= BULK_BYTES_MIN {
            let parts = 1 + random.below(2).min(bytes / BULK_BYTES_MIN - 1);
            let part = (bytes / parts) as usize;
            let bulk = (0..parts).map(|_| fill(part, random.next_u64()).into());
            return (head, bulk.collect());
        }
        head.extend(fill(bytes as usize, random.next_u64()));
        (head, Vec::new())
    }

    /// Whether this is what a record holds.
    pub(super) fn is_in(&self, record: &Record, sizes: Sizes) -> bool {
        let (body, bulk) = self.contents(sizes);
        record.exception == (self.what != What::Value)
            && record.body == body
            && record.splices.is_empty()
            && record
                .bulk
                .iter()
                .map(Vec::as_slice)
                .eq(bulk.iter().map(|part| &part[..]))
    }

    /// Whose item a record claims to be.
    pub(super) fn index_of(record: &Record) -> Option<u64> {
        Some(u64::from_be_bytes(
            record.body.get(24..32)?.try_into().ok()?,
        ))
    }
}

/// So many bytes that tell nothing, with marks between.
fn fill(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut filled = vec![0; bytes.next_multiple_of(MARK_EVERY)];
    for piece in filled.chunks_exact_mut(MARK_EVERY) {
        let (mark, rest) = piece.split_at_mut(MARK.len());
        mark.copy_from_slice(&MARK);
        for word in rest.as_chunks_mut().0 {
            *word = random.next_u64().to_le_bytes();
        }
    }
    filled.truncate(bytes);
    filled
}

/// The outcome of an item that ran for too long.
pub(super) const OVERDUE: &[u8] = b"it ran for too long";

/// What the pickle of a stream's exceptions is that items run again for, and its digest.
pub(super) fn exceptions_of(stream: u64) -> Function {
    function(stream, u32::MAX)
}

/// What the pickle of a function is, and its digest.
pub(super) fn function(stream: u64, number: u32) -> Function {
    let mut digest = [0x5A; 32];
    digest[..8].copy_from_slice(&stream.to_be_bytes());
    digest[8..12].copy_from_slice(&number.to_be_bytes());
    let pickle = [&CODE_MARK[..], &digest].concat();
    Function {
        digest,
        pickle: pickle.into(),
    }
}

/// Whether bytes on the wire show a token, and whether they show a function.
pub(super) fn shown(bytes: &[u8]) -> (bool, bool) {
    let shows = |mark: &[u8]| memchr::memmem::find(bytes, mark).is_some();
    (shows(&MARK), shows(&CODE_MARK))
}

/// All functions of a stream's program.
pub(super) fn functions_of(stream: u64, count: u32) -> impl Iterator<Item = Function> {
    (0..count).map(move |number| function(stream, number))
}
