//! Why a value isn't taken.

use thiserror::Error;

/// Why a value isn't taken. Nothing of it is used then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The bytes are no value of this format.
    #[error(
        "got {got} at byte {position}, expected {expected}; the sender doesn't write plain data as this version reads it"
    )]
    Malformed {
        /// Where, in the record's own bytes.
        position: usize,
        /// What stands there.
        got: &'static str,
        /// What should.
        expected: &'static str,
    },
    /// A value is larger than it may be.
    #[error("got {kind} of {got} {unit}, expected at most {maximum}: {cure}")]
    Limit {
        /// The kind of value.
        kind: &'static str,
        /// Its size.
        got: u64,
        /// Bytes, digits, or what else is counted.
        unit: &'static str,
        /// The limit.
        maximum: u64,
        /// What the sender's program can do.
        cure: &'static str,
    },
    /// A value would take more memory than its message may ask for.
    #[error(
        "got a value that takes more than {maximum} bytes of memory in a message of {message}: return fewer, larger objects (an array in place of many small containers)"
    )]
    Memory {
        /// What it may take.
        maximum: u64,
        /// Bytes of the message.
        message: u64,
    },
    /// A value can't be a key of a map or a member of a set.
    #[error(
        "got {kind} as a key of a dict or a member of a set at byte {position}, expected something that can be one"
    )]
    Key {
        /// Where.
        position: usize,
        /// The kind of value.
        kind: &'static str,
    },
}

/// A [`Fault::Limit`].
pub(crate) const fn limit(
    kind: &'static str,
    got: u64,
    unit: &'static str,
    maximum: u64,
    cure: &'static str,
) -> Fault {
    Fault::Limit {
        kind,
        got,
        unit,
        maximum,
        cure,
    }
}
