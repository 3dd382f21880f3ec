//! The manager's side: the scheduler, the tokens of all streams, and what every slot knows of them.

mod actions;
mod answers;
mod blocks;
mod bulk_parts;
mod carried;
mod expanded;
mod folded;
mod functions;
mod lines;
mod order;
mod parcels;
mod streams;

pub use answers::{Answered, ReceiveError};
pub use streams::OpenError;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{
    Departure, FlowError, Index, LineRole, Scheduler, SchedulerConfig, Skeleton, SlotId,
    SlotStatistics, StreamId, Tickets,
};

use self::folded::Reduction;
use self::functions::FunctionsAtSlot;
use self::lines::ItemLine;
use self::parcels::Heads;
use crate::message::{Call, Digest, EncodedMessage, ItemRules, SlotEndpoint, ToSlot};
use crate::outcome::{Origin, Outcomes};

/// A function by the digest of its pickle.
#[derive(Debug, Clone)]
pub struct Function {
    /// SHA-256 of the pickle.
    pub digest: Digest,
    /// The pickle.
    pub pickle: Bytes,
}

/// A stream to be opened.
#[derive(Debug)]
pub struct StreamPlan {
    /// The program's structure over `functions`.
    pub skeleton: Skeleton,
    /// The functions, in the order of the skeleton's function numbers.
    pub functions: Vec<Function>,
    /// How an item becomes arguments.
    pub call: Call,
    /// How many items may be inside at a time.
    pub tickets: Tickets,
    /// How long an item may run.
    pub timeout: Option<Duration>,
    /// The classes of exceptions for which an item runs again, pickled as a function is.
    pub retries_on: Option<Function>,
    /// Whether to say where the outcomes of each item end, if items are made into others.
    pub tells_ends: bool,
}

/// What the driver must do now.
#[derive(Debug)]
pub enum Effect {
    /// Send a message to a slot.
    Send {
        /// The slot.
        slot: u32,
        /// Which of its endpoints.
        endpoint: SlotEndpoint,
        /// The message.
        message: EncodedMessage,
    },
    /// Hand outcomes to the stream's user.
    Deliver {
        /// The stream, by the driver's number.
        stream: u64,
        /// What became of its items.
        outcomes: Outcomes,
    },
    /// It is known how many outcomes a stream has whose items are made into others.
    Total {
        /// The stream, by the driver's number.
        stream: u64,
        /// How many.
        count: u64,
    },
    /// Further items have been made into all that they are made into. Comes before the outcomes behind them.
    Ends {
        /// The stream, by the driver's number.
        stream: u64,
        /// For each of them, in order: how many outcomes there are up to its last one.
        ends: Vec<Index>,
    },
    /// The slot has not answered in time: it is to be taken for lost.
    Overdue {
        /// The slot.
        slot: u32,
    },
    /// The slot is to end and waits for room that nobody makes: it may go, and its items run again.
    LetGo {
        /// The slot.
        slot: u32,
    },
    /// A token isn't here although its item must run. Can't be: a token is kept until its result counts. SegmentEnding the
    /// stream is better than waiting for ever.
    LostTrack {
        /// The stream, by the driver's number.
        stream: u64,
    },
}

/// How many items the user of a stream may hand over, and whether to hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The stream, by the driver's number.
    pub stream: u64,
    /// How many items may have been handed over altogether.
    pub admissible: u64,
    /// Slots wait for items.
    pub is_hungry: bool,
}

/// How far a stream is, in items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamState {
    /// The stream, by the driver's number.
    pub stream: u64,
    /// Handed over by the user, and at no slot.
    pub waiting: u64,
    /// At slots.
    pub running: u64,
    /// With an outcome.
    pub done: u64,
}

impl StreamState {
    /// Whether slots are needed.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.waiting + self.running > 0
    }
}

/// Carries what slots say to the [`Scheduler`] and its actions to the slots.
///
/// After every call the driver asks for [`poll_effect`](Self::poll_effect) until there is none, and again when
/// [`next_timeout`](Self::next_timeout) has come. Times are those of the scheduler: durations since any start that
/// never go back. Slots and streams have the driver's numbers, none of which is used twice.
#[derive(Debug)]
pub struct Router {
    scheduler: Scheduler,
    slots: BTreeMap<u32, Slot>,
    streams: BTreeMap<u64, Stream>,
    /// From the scheduler's number of a line to the driver's of its stream, and which line it is.
    numbers: BTreeMap<StreamId, (u64, u16)>,
    effects: VecDeque<Effect>,
    /// How the process of the slot that was removed last ended, if that is known.
    last_end: Option<Arc<str>>,
    /// Of the last answer: kept to save allocations.
    heads: Heads,
    /// The most bytes of a message.
    message_bytes_max: u64,
    /// The bytes of functions' pickles that a slot keeps, beyond those that its streams use.
    function_bytes_max: u64,
}

/// What a slot has been told.
#[derive(Debug)]
struct Slot {
    origin: Arc<Origin>,
    message_bytes_max: u64,
    functions: FunctionsAtSlot,
    /// Lines whose programs it knows.
    lines: HashSet<(u64, u16)>,
}

#[derive(Debug)]
struct Stream {
    /// That of its first line.
    id: StreamId,
    /// With the values among them.
    functions: Vec<Function>,
    /// Those that slots call.
    at_slots: Vec<Function>,
    call: Call,
    rules: ItemRules,
    bounded: bool,
    tells_ends: bool,
    lines: Vec<ItemLine>,
    /// Items that wait for what they were made into: the line and the first of that.
    away: BTreeMap<(u16, u64), (u16, u64)>,
    /// How far its items are folded, if they are.
    reduction: Option<Reduction>,
    /// Items handed over by the user, admitted or not.
    received: u64,
    /// Items that have no ticket yet, though they had when the user looked.
    backlog: VecDeque<Backlogged>,
    input_ended: bool,
}

/// An item that waits for a ticket.
#[derive(Clone, Copy, Debug)]
struct Backlogged {
    bytes: u64,
    /// It is its own outcome: an exception in the place of an item that can't be sent.
    is_outcome: bool,
}

impl Router {
    /// A router without slots and streams. Messages have at most `message_bytes_max` bytes. Slots keep functions of at most
    /// `function_bytes_max` bytes in all (of their pickles), or as many as their streams use if that is more.
    #[must_use]
    pub fn new(config: SchedulerConfig, message_bytes_max: u64, function_bytes_max: u64) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            slots: BTreeMap::new(),
            streams: BTreeMap::new(),
            numbers: BTreeMap::new(),
            effects: VecDeque::new(),
            last_end: None,
            heads: Heads::default(),
            message_bytes_max,
            function_bytes_max,
        }
    }

    /// A slot may get work, in messages of at most `message_bytes_max` bytes: an item that needs more has
    /// [that](crate::outcome::Contents::TooLarge) as its outcome. Its results come from `origin`.
    ///
    /// # Errors
    /// When the number is in use, or there are too many slots.
    pub fn add_slot(
        &mut self,
        slot: u32,
        origin: Arc<Origin>,
        message_bytes_max: u64,
        now: Duration,
    ) -> Result<(), FlowError> {
        self.scheduler.add_slot(SlotId(slot), now)?;
        // The other half is for what goes with the items.
        self.scheduler
            .limit_frames(SlotId(slot), message_bytes_max / 2);
        let known = Slot {
            origin,
            message_bytes_max,
            functions: FunctionsAtSlot::default(),
            lines: HashSet::new(),
        };
        self.slots.insert(slot, known);
        Ok(())
    }

    /// A slot is gone. Its items are suspects only if it is lost. `end` says how its process ended, if that is known; the items that
    /// fail with it say so, up to the next call of this. Says what the slot did; nothing if it never got work.
    pub fn remove_slot(
        &mut self,
        slot: u32,
        departure: Departure,
        end: Option<Arc<str>>,
        now: Duration,
    ) -> Option<SlotStatistics> {
        self.last_end = end;
        self.slots.remove(&slot)?;
        self.scheduler.remove_slot(SlotId(slot), departure, now)
    }

    /// The slot gets nothing more; what it has it may finish.
    pub fn drain_slot(&mut self, slot: u32, now: Duration) {
        self.scheduler.drain_slot(SlotId(slot), now);
    }

    /// The slot that was to be [drained](Self::drain_slot) may get work again.
    pub fn keep_slot(&mut self, slot: u32, now: Duration) {
        self.scheduler.keep_slot(SlotId(slot), now);
    }

    /// The slot is asked whether it is still there, and gets nothing more until it is [resumed](Self::resume_slot).
    pub fn probe_slot(&mut self, slot: u32) {
        self.scheduler.suspend_slot(SlotId(slot));
        self.send(slot, &ToSlot::Probe);
    }

    /// The slot may get work again.
    pub fn resume_slot(&mut self, slot: u32, now: Duration) {
        self.scheduler.resume_slot(SlotId(slot), now);
    }

    /// The most bytes of records and bulk parts that a slot may send now: no results beyond this can count.
    #[must_use]
    pub fn receivable(&self, slot: u32) -> u64 {
        self.scheduler.receivable(SlotId(slot))
    }

    /// What a slot did so far.
    #[must_use]
    pub fn slot_statistics(&self, slot: u32) -> Option<SlotStatistics> {
        self.scheduler.slot_statistics(SlotId(slot))
    }

    /// When to call [`poll_effect`](Self::poll_effect) although nothing has happened.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.scheduler.next_timeout()
    }

    /// The scheduler, to look at.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// How far each stream is.
    pub fn streams(&self) -> impl Iterator<Item = StreamState> {
        self.streams.iter().map(|(number, stream)| {
            let mut state = StreamState {
                stream: *number,
                waiting: stream.backlog.len() as u64,
                ..StreamState::default()
            };
            for line in &stream.lines {
                let progress = self.scheduler.progress(line.id).unwrap_or_default();
                state.waiting += progress.ready;
                state.running += progress.out;
                if line.role == LineRole::User {
                    state.done = progress.finished;
                }
            }
            state
        })
    }

    /// For each bounded stream, how many items its user may hand over.
    pub fn openings(&self) -> impl Iterator<Item = Opening> {
        let is_somebody_idle = self.scheduler.is_somebody_idle();
        let bounded = self.streams.iter().filter(|(_, stream)| stream.bounded);
        bounded.map(move |(number, stream)| {
            let tickets = if stream.backlog.is_empty() {
                self.scheduler.tickets(stream.id)
            } else {
                0
            };
            let mut lines = stream.lines.iter();
            let has_ready = lines.any(|line| {
                let progress = self.scheduler.progress(line.id);
                progress.is_some_and(|progress| progress.ready > 0)
            });
            Opening {
                stream: *number,
                admissible: stream.received + u64::from(tickets),
                is_hungry: !has_ready && is_somebody_idle,
            }
        })
    }
}
