//! What a driver can do wrong.

use thiserror::Error;

use crate::{SlotId, StreamId};

/// A call that the scheduler refuses; nothing has changed. What workers say never leads here: late or senseless
/// answers are dropped.
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
