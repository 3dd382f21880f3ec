//! What a driver can do wrong.

use thiserror::Error;

use crate::{Index, SlotId, StreamId};

/// A call that the scheduler refuses; nothing has changed. What workers say never leads here: late or senseless
/// answers are dropped, and those that take more than was granted are a [`Breach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FlowError {
    /// The stream was never opened, or is closed.
    #[error("got stream {}, expected one that is open", .0.0)]
    UnknownStream(StreamId),
    /// The number is taken.
    #[error("got slot {} again, expected a number that was never used", .0.0)]
    SlotExists(SlotId),
    /// `slots_max` of the configuration is reached.
    #[error("got one slot more than the limit, expected at most {limit} (slots_max)")]
    TooManySlots {
        /// The limit.
        limit: u32,
    },
    /// `streams_max` of the configuration is reached.
    #[error(
        "got one stream more than the limit, expected at most {limit} (streams_max); close one first"
    )]
    TooManyStreams {
        /// The limit.
        limit: u32,
    },
    /// More items than tickets: ask [`Scheduler::tickets`](crate::Scheduler::tickets) first.
    #[error("got {items} items, expected at most {tickets}, the tickets there are now")]
    NoTickets {
        /// How many items were to be admitted.
        items: usize,
        /// How many tickets there are.
        tickets: u32,
    },
    /// The stream's input has ended.
    #[error("got items after the end of input of stream {}", .0.0)]
    InputEnded(StreamId),
}

/// A slot sent more than it may, or without asking. Nothing of its answer counts; its session must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Breach {
    /// The result was not announced, and is larger than every result of its frame may be then.
    #[error(
        "got a result of {got} bytes for item {index}, expected at most {grant}, or an announcement first"
    )]
    OverGrant {
        /// The item.
        index: Index,
        /// Bytes of the result.
        got: u64,
        /// What was granted to each result of the frame.
        grant: u64,
    },
    /// The result is larger than it was announced.
    #[error(
        "got a result of {got} bytes for item {index}, expected at most the {announced} that were announced"
    )]
    OverAnnounced {
        /// The item.
        index: Index,
        /// Bytes of the result.
        got: u64,
        /// Bytes that were announced.
        announced: u64,
    },
    /// The result was announced, and nobody has asked for it.
    #[error("got the announced result of item {index}, expected that it waits for its grant")]
    NotGranted {
        /// The item.
        index: Index,
    },
    /// The slot says that its items got where they can't have got.
    #[error("got results for segment {got}, expected {least} to {most}")]
    Reached {
        /// The segment that it says.
        got: u16,
        /// The next one behind the first that the frame runs through.
        least: u16,
        /// The next one behind the last.
        most: u16,
    },
    /// A state comes with results of items that aren't the next ones.
    #[error(
        "got a state behind item {first} and others, expected one behind item {expected}, which its frame has"
    )]
    CarriedOthers {
        /// The first of the items.
        first: Index,
        /// The item that is next.
        expected: Index,
    },
    /// A state and the results that came with it are larger than what was granted for all of them.
    #[error(
        "got a state and its results with {got} bytes, expected at most {granted}, or an announcement first"
    )]
    CarriedOverGrant {
        /// Their bytes.
        got: u64,
        /// What was granted.
        granted: u64,
    },
    /// The result was announced as that of more items.
    #[error(
        "got a result of fewer items from item {index} on, expected one of the {announced} for which it was announced"
    )]
    AnnouncedOfMore {
        /// The first item.
        index: Index,
        /// How many items it was announced for.
        announced: u32,
    },
    /// The result was announced before.
    #[error("got a second announcement of the result of item {index}, expected one")]
    AnnouncedTwice {
        /// The item.
        index: Index,
    },
}
