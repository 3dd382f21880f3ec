//! Results delivered exactly once, whatever ends the process that delivers them.
//!
//! A run takes items from a source and puts their results into a *sink*, in the order of the items. A [`Journal`] on a disk says how
//! far the sink has come, so that a run that was killed goes on where it was:
//!
//! - The journal holds what the run is of (texts that say program, source and sink), the *watermark* (the results of all items before it
//!   are in the sink), the *position* in the sink behind the last of those, and the results that came early, before their turn.
//! - A group of results is committed in this order: the sink is written, the sink is synced, the journal is committed. What stands in the
//!   sink behind the journal's position was never committed: who goes on cuts it off, and makes it again.
//!
//! So each result is in the sink exactly once. The functions that make results may run more than once.
//!
//! An item has one result, which may come early; or any number of results, all of which come in their order. Then a group is committed
//! only between two items, so that the sink is cut back to the end of an item that is whole. A fold is a sink, too: its position says
//! what it has folded.
//!
//! `docs/journal-format.md` says what is on the disk.
//!
//! # Layout
//!
//! - `journal`: what is on the disk, over [`redb`]; `disk`: the journal's own head in front of it, and where damage was found
//! - `overlay`: a disk that is looked at without being changed
//! - `panics`: those of the store, over pages that make no sense
//! - `delivery`: what is written when ([`Delivery`]), for any [`ResultSink`]
//! - `numbering`: which item a stream's n-th one is, when some have their results already
//!
//! Nothing here opens a file, reads a clock or starts a thread. The disk is an argument ([`redb::StorageBackend`]), and so is the time.

#![forbid(unsafe_code)]

mod delivery;
mod disk;
mod error;
mod journal;
mod numbering;
mod overlay;
mod panics;

pub use delivery::{Delivery, GROUP_BYTES, GROUP_TIME, ItemOutcome, ResultSink};
pub use error::JournalError;
pub use journal::{
    EARLY_BYTES_MAX, EARLY_RESULTS_MAX, EarlyResult, Journal, POSITION_BYTES_MAX,
    RUN_TEXT_BYTES_MAX, RunState, RunTexts,
};
pub use numbering::ItemNumbers;
pub use redb::backends::FileBackend;
pub use redb::{DatabaseError, StorageBackend};
