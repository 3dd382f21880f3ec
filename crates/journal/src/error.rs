//! What can be wrong with a journal.

use std::io;

use crate::journal::PROGRAM;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file is something else.
    #[error("got a file that is no journal of a run, expected one or no file; name another one")]
    NotAJournal,
    /// A journal of another version of this crate.
    #[error(
        "got a journal of format {got}, expected {expected}; finish the run with the exoskel that began it, or remove the journal to begin anew"
    )]
    Version {
        /// The format that the file states.
        got: u32,
        /// Ours.
        expected: u32,
    },
    /// Bytes that no run has written.
    #[error(
        "the journal is damaged at byte {offset} or close behind it ({reason}); nothing was changed. Restore it, or remove it and what the run has written to begin anew"
    )]
    Damaged {
        /// Where in the file, as far as that is known.
        offset: u64,
        /// What the store says of it.
        reason: String,
    },
    /// The run is of something else than the journal.
    #[error(
        "the {part} is not the one that the journal was begun with: got {got}, expected {expected}{}; restore it, or use a new journal and a new sink",
        digests_of(part)
    )]
    Changed {
        /// "program", "source" or "sink".
        part: &'static str,
        /// What the run says of it, without what the journal says, too.
        got: String,
        /// What the journal says, without what the run says, too.
        expected: String,
    },
    /// The disk refuses.
    #[error("the journal can't be read or written: {0}")]
    Disk(#[source] io::Error),
    /// More than the journal holds.
    #[error("got {got} bytes that say what the {part} is, expected at most {RUN_TEXT_BYTES_MAX}", RUN_TEXT_BYTES_MAX = crate::RUN_TEXT_BYTES_MAX)]
    TextTooLong {
        /// "program", "source" or "sink".
        part: &'static str,
        /// How many.
        got: usize,
    },
    /// A result of an item that has one, or that the run has never had.
    #[error(
        "got a second result of item {index}, expected one of item {next} or later; this is a defect of exoskel"
    )]
    SecondResult {
        /// The item.
        index: u64,
        /// The first without a result.
        next: u64,
    },
    /// A commit amid the results of an item.
    #[error(
        "got a commit amid the results of item {index}, expected one behind them; this is a defect of exoskel"
    )]
    AmidItem {
        /// The item.
        index: u64,
    },
    /// More than a state of the run holds.
    #[error("got {got} bytes that say where the sink is and what was folded, expected at most {POSITION_BYTES_MAX}; run without a journal, or fold to less", POSITION_BYTES_MAX = crate::POSITION_BYTES_MAX)]
    PositionTooLong {
        /// How many.
        got: usize,
    },
    /// A result that the journal can't hold until its turn.
    #[error("got a result of {got} bytes of item {index} before its turn, expected at most {EARLY_BYTES_MAX}; run without a journal, or return less", EARLY_BYTES_MAX = crate::EARLY_BYTES_MAX)]
    ResultTooLong {
        /// The item.
        index: u64,
        /// How many.
        got: usize,
    },
    /// The source has ended before an item that had a result in an earlier run.
    #[error(
        "the source gives {got} items, expected more than {expected}: it gave more when the journal was begun, so it has changed"
    )]
    SourceTooShort {
        /// How many it gave.
        got: u64,
        /// The last item with a result.
        expected: u64,
    },
}

/// What the digests of a text stand for.
fn digests_of(part: &str) -> &'static str {
    if part == PROGRAM {
        " (the number behind a name is a digest of its source text, and of all functions and global variables that it uses)"
    } else {
        ""
    }
}
