//! What items hold: a value, and bytes that follow from it, so that whoever gets one can tell whether it is unaltered.

use bytes::Bytes;
use exoskel_meaning::meaning::{self, Data, Raised};
use exoskel_task::message::Digest;
use exoskel_task::payload::Record;
use exoskel_task::router::Function;

use exoskel_determinism::{RunDigest, SplitMix64};

/// Stands in every token, often.
const MARK: [u8; 16] = *b"in the clear 16b";

/// Stands in every function's pickle.
const CODE_MARK: [u8; 16] = *b"code, in clear16";

/// Bytes between two marks.
const MARK_EVERY: usize = 64;

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Of which of the manager's processes.
    pub(super) life: u32,
    pub(super) stream: u64,
    /// A stranger has touched it.
    pub(super) touched: bool,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// What a user has handed over.
    Item(Data),
    /// What a function has made.
    Made(Data),
    /// What a state begins with.
    Initial,
    /// A function raised.
    Raised(Raised),
    /// A result of so many bytes was over its limit.
    TooLarge(u64),
    /// The item of this number can't be sent.
    Unsent(u64),
}

/// Stands for a function that raises what items run again for.
pub(super) const RETRIABLE: u32 = u32::MAX;

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

/// The most bytes that an exception has besides what it says.
const EXCEPTION_BYTES_MAX: u64 = 40;

impl Token {
    /// Whether it is an exception.
    pub(super) fn is_exception(&self) -> bool {
        !matches!(self.what, What::Item(_) | What::Made(_) | What::Initial)
    }

    /// The record and its bulk parts.
    pub(super) fn contents(&self, sizes: Sizes) -> (Vec<u8>, Vec<Bytes>) {
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(&MARK);
        head.extend_from_slice(&self.stream.to_be_bytes());
        head.extend_from_slice(&self.life.to_be_bytes());
        head.push(u8::from(self.touched));
        let (kind, most) = match &self.what {
            What::Item(_) => (0, sizes.input_bytes_max),
            What::Made(_) => (1, sizes.result_bytes_max),
            What::Raised(_) => (2, EXCEPTION_BYTES_MAX),
            What::TooLarge(_) => (3, EXCEPTION_BYTES_MAX),
            What::Unsent(_) => (4, EXCEPTION_BYTES_MAX),
            // It has no bulk.
            What::Initial => (5, EXCEPTION_BYTES_MAX),
        };
        head.push(kind);
        match &self.what {
            What::Item(data) | What::Made(data) => data.write(&mut head),
            What::Raised(Raised { function, sum }) => {
                head.extend_from_slice(&function.to_be_bytes());
                head.extend_from_slice(&sum.to_be_bytes());
            }
            What::TooLarge(number) | What::Unsent(number) => {
                head.extend_from_slice(&number.to_be_bytes());
            }
            What::Initial => {}
        }
        let mut place = RunDigest::default();
        place.bytes(&head);
        let mut random = SplitMix64::new(sizes.seed ^ place.value());
        let bytes = 1 + random.below(most);
        if sizes.has_bulk && bytes >= BULK_BYTES_MIN {
            let parts = 1 + random.below(2).min(bytes / BULK_BYTES_MIN - 1);
            let part = (bytes / parts) as usize;
            let bulk = (0..parts).map(|_| fill(part, random.next_u64()).into());
            return (head, bulk.collect());
        }
        head.extend(fill(bytes as usize, random.next_u64()));
        (head, Vec::new())
    }

    /// What a record holds, if every byte of it is as it must be.
    pub(super) fn read(record: &Record, sizes: Sizes) -> Option<Self> {
        let token = Self::claimed(&record.body)?;
        let (body, bulk) = token.contents(sizes);
        let is_whole = record.exception == token.is_exception()
            && record.body == body
            && record.splices.is_empty()
            && record
                .bulk
                .iter()
                .map(Vec::as_slice)
                .eq(bulk.iter().map(|part| &part[..]));
        is_whole.then_some(token)
    }

    /// The value that it holds, if it holds one.
    pub(super) fn data(&self) -> Option<Data> {
        match &self.what {
            What::Item(data) | What::Made(data) => Some(data.clone()),
            What::Initial => Some(meaning::initial()),
            What::Raised(_) | What::TooLarge(_) | What::Unsent(_) => None,
        }
    }

    /// What a record claims to hold.
    fn claimed(body: &[u8]) -> Option<Self> {
        let rest = body.strip_prefix(&MARK)?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (life, rest) = rest.split_first_chunk()?;
        let ([touched, kind], rest) = rest.split_first_chunk()?;
        let mut rest = rest;
        let number = |bytes: &[u8]| Some(u64::from_be_bytes(*bytes.first_chunk()?));
        let what = match kind {
            0 => What::Item(Data::read(&mut rest)?),
            1 => What::Made(Data::read(&mut rest)?),
            2 => What::Raised(Raised {
                function: u32::from_be_bytes(*rest.first_chunk()?),
                sum: number(rest.get(4..)?)?,
            }),
            3 => What::TooLarge(number(rest)?),
            4 => What::Unsent(number(rest)?),
            _ => What::Initial,
        };
        Some(Self {
            life: u32::from_be_bytes(*life),
            stream: u64::from_be_bytes(*stream),
            touched: *touched != 0,
            what,
        })
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

/// Which function of a stream has this name.
pub(super) fn number_of(digest: &Digest) -> u32 {
    let number = digest.get(8..12).and_then(<[u8]>::first_chunk);
    number.map_or(0, |number| u32::from_be_bytes(*number))
}
