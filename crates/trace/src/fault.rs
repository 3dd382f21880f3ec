//! What can be wrong with a trace, and where.

use std::fmt;

use thiserror::Error;

use crate::GAP_NS_MAX;

/// A trace that can't be read or written: who made it has to make it again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {fault}")]
pub struct TraceError {
    /// Where.
    pub place: Box<TracePlace>,
    /// What.
    pub fault: TraceFault,
}

/// A place in a trace, as narrow as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracePlace {
    /// A part of the file, such as a column.
    pub part: String,
    /// Whose records.
    pub rank: Option<usize>,
    /// Which of them, from 0 on.
    pub record: Option<usize>,
    /// In the content, from 0 on: after decompression, but for the compressed content itself.
    pub byte: Option<usize>,
    /// Of a text, from 1 on.
    pub line: Option<usize>,
}

impl fmt::Display for TracePlace {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.part)?;
        let numbers = [
            ("rank", self.rank),
            ("record", self.record),
            ("byte", self.byte),
            ("line", self.line),
        ];
        for (what, number) in numbers {
            if let Some(number) = number {
                write!(to, ", {what} {number}")?;
            }
        }
        Ok(())
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// It doesn't begin as a trace does.
    #[error(
        "got {got:02x?} as its first bytes, expected \"SKCT0001\": this is no trace; `exoskel sim pack` makes one of a tracer's folder or of SimGrid's text"
    )]
    Magic {
        /// Up to eight bytes.
        got: Vec<u8>,
    },
    /// It doesn't begin as the tracer's files do.
    #[error(
        "got {got:02x?} as its first bytes, expected \"EXOCALL1\": this is no file of the tracer"
    )]
    NoCalls {
        /// Up to eight bytes.
        got: Vec<u8>,
    },
    /// Files of programs of different sizes are in one folder.
    #[error(
        "got a file of a run of {got} ranks beside one of {expected}, expected files of one run: remove the other run's files, or trace again into a new folder"
    )]
    OtherRun {
        /// As this file says.
        got: usize,
        /// As the first file says.
        expected: usize,
    },
    /// Two files of one rank.
    #[error("got rank {got} a second time, expected one file of calls for each rank")]
    RankTwice {
        /// Which one.
        got: usize,
    },
    /// It ends early.
    #[error(
        "it ends here, expected {expected} more bytes: the trace is torn, copy or record it again"
    )]
    Torn {
        /// How many more there should be.
        expected: usize,
    },
    /// The compressed content can't be decompressed.
    #[error(
        "can't be decompressed ({reason}): the trace is torn or damaged, copy or record it again"
    )]
    Compression {
        /// What the decompressor says.
        reason: String,
    },
    /// There is more after its end.
    #[error("got {got} bytes after the last column, expected none")]
    Trailing {
        /// How many.
        got: usize,
    },
    /// Its header is no description of a trace.
    #[error("got a description that can't be read ({reason})")]
    Header {
        /// What the reader of JSON says.
        reason: String,
    },
    /// Other columns than this version knows.
    #[error("got the columns {got}, expected {expected}")]
    Columns {
        /// Those of the header.
        got: String,
        /// Ours.
        expected: String,
    },
    /// One part of it says another number of ranks than another part.
    #[error("got {got} ranks, expected {expected}")]
    Ranks {
        /// Here.
        got: usize,
        /// As stated elsewhere.
        expected: usize,
    },
    /// More than a limit.
    #[error("got {got} {what}, expected at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        got: u64,
        /// The limit.
        most: u64,
    },
    /// A number that stands for no operation.
    #[error("got operation {got}, expected one of this version (0 to 6, 16 to 26, 31)")]
    UnknownOperation {
        /// The number.
        got: u8,
    },
    /// A peer that isn't among the ranks.
    #[error("got peer {got}, expected a rank below {ranks}")]
    NoSuchPeer {
        /// The peer.
        got: i64,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A communicator that this rank doesn't have.
    #[error("got communicator {got}, expected one of the {known} of this rank")]
    NoSuchCommunicator {
        /// Its index.
        got: u8,
        /// How many there are.
        known: usize,
    },
    /// The root of a collective isn't among those who take part.
    #[error("got root {got} of a {operation}, expected a member of its communicator")]
    RootOutside {
        /// Which collective.
        operation: &'static str,
        /// The root, -1 when there is none.
        got: i64,
    },
    /// A communicator has a member twice.
    #[error("got member {got} of a communicator twice, expected each once")]
    MemberTwice {
        /// Who.
        got: i64,
    },
    /// A rank has a communicator that it is not in.
    #[error("got a communicator without this rank, expected it among the members")]
    NotMember,
    /// A gap that the format has no room for.
    #[error("got a gap of {got} ns, expected at most {GAP_NS_MAX}")]
    LongGap {
        /// In nanoseconds.
        got: u64,
    },
    /// A line of text that is no action.
    #[error("got {got:?}, expected {expected}")]
    Text {
        /// What stands there, or a part of it.
        got: String,
        /// What could.
        expected: &'static str,
    },
}

impl TraceFault {
    /// In that part.
    pub(crate) fn at(self, part: impl Into<String>) -> TraceError {
        let place = Box::new(TracePlace {
            part: part.into(),
            ..TracePlace::default()
        });
        TraceError { place, fault: self }
    }

    /// At that byte of that part.
    pub(crate) fn at_byte(self, part: impl Into<String>, byte: usize) -> TraceError {
        let mut error = self.at(part);
        error.place.byte = Some(byte);
        error
    }

    /// In what that part says of a rank.
    pub(crate) fn in_rank(self, part: impl Into<String>, rank: usize) -> TraceError {
        let mut error = self.at(part);
        error.place.rank = Some(rank);
        error
    }

    /// In one record.
    pub(crate) fn in_record(
        self,
        part: impl Into<String>,
        rank: usize,
        record: usize,
    ) -> TraceError {
        let mut error = self.in_rank(part, rank);
        error.place.record = Some(record);
        error
    }
}
