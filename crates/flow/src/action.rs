//! The words the scheduler and its driver share: identifiers, actions, answers.

use std::ops::Range;
use std::time::Duration;

/// One process that runs items, in the order in which they were dispatched to it. The driver chooses the number and
/// never uses it again for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// One stream of items through one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// One dispatch of an index range to one slot. Never used twice, so it is also the attempt number: an answer that
/// carries an old one is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u64);

/// The place of an item in its stream, counted from 0.
pub type Index = u64;

/// What the driver must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the tokens of these consecutive items to the slot, to be run through these segments of the program.
    Dispatch {
        /// Who runs them.
        slot: SlotId,
        /// The attempt; comes back with every answer.
        frame: FrameId,
        /// Whose items.
        stream: StreamId,
        /// The first segment of the stream's program, for which the tokens are.
        from: u16,
        /// The last one. All behind the first are parallel.
        to: u16,
        /// The first item.
        first: Index,
        /// How many.
        count: u32,
        /// How many bytes the result of each item may have and still be sent without asking; a larger one is
        /// announced ([`Scheduler::announced`](crate::Scheduler::announced)) and waits for [`Action::Grant`].
        grant: u64,
        /// How the slot goes about the first segment, if it is serial.
        lease: Lease,
    },
    /// Ask the slot to give back up to `count` items from the end of that frame, none that it has started. It must
    /// answer ([`Scheduler::recalled`](crate::Scheduler::recalled)), with 0 items when all are started. Items that have passed a serial function
    /// and nothing else may come back before that, as [`Results`] that have not reached the frame's end.
    Recall {
        /// Who gives them back.
        slot: SlotId,
        /// From which dispatch.
        frame: FrameId,
        /// How many at most.
        count: u32,
    },
    /// Tell the slot to send the result it announced.
    Grant {
        /// Where the result waits.
        slot: SlotId,
        /// The dispatch it belongs to.
        frame: FrameId,
        /// The item.
        index: Index,
    },
    /// Nobody needs the item from that slot any more, since another one has answered for it or its stream is closed. If it runs it may be ended;
    /// a result that waits there is dropped. A running item must be answered for all the same; what is said does not count.
    Interrupt {
        /// Where the item is.
        slot: SlotId,
        /// From which dispatch.
        frame: FrameId,
        /// The item.
        index: Index,
    },
    /// The slot has not answered for what it had to answer within a time. It is to be taken for lost: [`Scheduler::remove_slot`](crate::Scheduler::remove_slot).
    Overdue {
        /// Who has not answered.
        slot: SlotId,
    },
    /// The slot is to end and waits for grants, as all slots do, and nobody has made room for so long. It may go; its items are put back when it is
    /// [removed](crate::Scheduler::remove_slot).
    LetGo {
        /// Who waits.
        slot: SlotId,
    },
    /// This is the item's outcome: it will not be run again.
    Failed {
        /// Whose item.
        stream: StreamId,
        /// The segment in which it was lost: where its token is.
        segment: u16,
        /// The item.
        index: Index,
        /// Why.
        failure: Failure,
    },
}

/// The right to run a serial function, as a frame has it. Only one slot has that of a segment at a time; it works on
/// the frames that have it one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The first segment is not serial: the items pass all functions one by one.
    None,
    /// The items pass all functions one by one, and the lease ends with the last of them. When all items that were
    /// not started are asked back, it ends as soon as the running item has passed the serial function, and the slot
    /// says so ([`Scheduler::released`](crate::Scheduler::released)).
    Kept,
    /// All items pass the serial function first; then the slot gives the lease back
    /// ([`Scheduler::released`](crate::Scheduler::released)) and goes on with the segments behind it.
    PassedOn,
}

/// Why an item has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// So many workers were lost while this item was the only one they had.
    WorkersLost {
        /// How many.
        count: u32,
    },
}

/// Results of consecutive items, values and exceptions alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results<'a> {
    /// The frame they belong to.
    pub frame: FrameId,
    /// The first item.
    pub first: Index,
    /// How far the items got: their results are tokens for this segment, or outcomes if there is none of this number.
    pub reached: u16,
    /// The bytes of each result.
    pub sizes: &'a [u64],
    /// Items whose result is their outcome although segments follow, ascending.
    pub ended: &'a [Index],
    /// The time the slot spent on all of them, 0 if it is not known.
    pub busy: Duration,
}

/// Which of the results of an answer count. The others are late: the item was put back, is finished, or never was
/// in that frame; their payloads must be dropped.
///
/// Ranges are ascending, without gaps inside a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted<'a> {
    /// Whose items.
    pub stream: StreamId,
    /// The first segment they passed, for which their tokens were.
    pub from: u16,
    /// The segment that they have reached.
    pub reached: u16,
    /// Items whose results are their outcomes.
    pub outcomes: &'a [Range<Index>],
    /// Items whose results are tokens for `reached`: they replace the earlier ones and will be dispatched again, unless they are away.
    pub tokens: &'a [Range<Index>],
}

/// How a slot left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The slot said good-bye: none of its items is suspected.
    Orderly,
    /// The slot is gone without a word: an item that ran there may be the reason.
    Lost,
    /// Its session broke the rules, or somebody on the way did: that is not the fault of an item.
    Broken,
}

/// What became of a wish to cancel an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The item will never run and has no outcome; its ticket is back.
    Removed,
    /// The item is already at a slot, between two segments, or finished (or unknown); its outcome comes as ever.
    TooLate,
}
