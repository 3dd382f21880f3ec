//! What manager and slot say to each other: the heads of their messages on the task and code links.
//!
//! All numbers are big-endian; lists are length-prefixed. Handlers are numbered by their place in [`TASK_HANDLERS`], [`CODE_HANDLERS`]
//! and [`RESULT_HANDLERS`].

mod heard;
mod program;

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use exoskel_flow::{Lease, SegmentStep};

pub use self::heard::{
    HEARD_BYTES_MAX, HEARD_HANDLER, HEARD_MAX, HeardWorker, read_heard, write_heard,
};
use self::program::{put_define, read_define};
use crate::payload::Format;

/// The slot's endpoint for instructions.
pub const TASK_ENDPOINT: &str = "exoskel.task";
/// The slot's endpoint for code: functions, programs, modules.
pub const CODE_ENDPOINT: &str = "exoskel.code";
/// The manager's endpoint for what comes back.
pub const RESULT_ENDPOINT: &str = "exoskel.result";
/// Handlers of [`TASK_ENDPOINT`], in the order of [`ToSlot`]'s numbers.
pub const TASK_HANDLERS: &[&str] = &["execute", "recall", "grant", "forget", "probe", "interrupt"];
/// Handlers of [`CODE_ENDPOINT`].
pub const CODE_HANDLERS: &[&str] = &["setup", "function", "define", "discard", "piece"];
/// Handlers of [`RESULT_ENDPOINT`]. A manager that dials workers that are heard has [`HEARD_HANDLER`] behind them.
pub const RESULT_HANDLERS: &[&str] = &[
    "results",
    "released",
    "recalled",
    "announced",
    "output",
    "ready",
    "retriable",
    "initialized",
    "fetch",
    "leaving",
    "differs",
    "probed",
    "expanded",
    "folded",
    "carried",
];

/// What a message has besides its items or results at most, amply. An item or a result that leaves less room is refused.
pub const ENVELOPE_BYTES_MAX: u64 = 64 * 1024;

/// What a frame of work has before its records.
const EXECUTE_BYTES: usize = 38;

/// Flags of a frame of work: its items are lists; the record of a state stands before theirs; the number of the frame follows whose state is kept.
const LISTS: u8 = 1;
const STATE_SENT: u8 = 2;
const STATE_KEPT: u8 = 4;

/// What results have before their records.
const RESULTS_BYTES: usize = 30;

/// What exceptions to run again for have before their records, and what parts, folded results, and results with a state have.
const RETRIABLE_BYTES: usize = 28;

/// An item is made into so many others at most.
pub const PARTS_MAX: u32 = 1 << 20;

/// So many modules that a worker lacks are named; what comes after them is known when it has those. And so many packages that differ.
const NAMES_MAX: usize = 100;

/// The longest name of one, in bytes: a module is a file, whose name can't be longer. It is shown to users, and so are the lines on
/// packages, which are no longer than that.
const NAME_BYTES_MAX: usize = 255;

/// What is told of an initializer that raised, in bytes at most: its traceback, of which the end says most.
pub const INITIALIZER_ERROR_BYTES_MAX: usize = 16 * 1024;

/// A piece of shared contents has so many bytes at most.
pub const PIECE_BYTES_MAX: u32 = 4 * 1024 * 1024;

/// The greatest number of a stream of output.
const OUTPUT_STREAM_MAX: u8 = 2;

/// A function's name on the wire: SHA-256 of its pickle. Shared contents are named by theirs in the same way.
pub type Digest = [u8; 32];

/// A message that isn't what its handler takes.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
#[error("got a malformed {0} message; the peer's version of exoskel may differ")]
pub struct MessageError(&'static str);

/// Which of a slot's endpoints a message goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEndpoint {
    /// [`TASK_ENDPOINT`].
    Task,
    /// [`CODE_ENDPOINT`].
    Code,
}

/// A message to be sent, as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedMessage {
    /// The number of its handler.
    pub handler: u16,
    /// What the handler interprets.
    pub head: Bytes,
    /// Its bulk parts.
    pub bulk: Vec<Bytes>,
}

impl EncodedMessage {
    /// Bytes of the head and of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bulk: usize = self.bulk.iter().map(Bytes::len).sum();
        (self.head.len() + bulk) as u64
    }
}

/// A message that has come, as it travelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The number of its handler.
    pub handler: u16,
    /// What the handler interprets.
    pub head: Bytes,
    /// Its bulk parts.
    pub bulk: Vec<Vec<u8>>,
}

/// From the manager to a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToSlot {
    /// Run segments of a stream's program over consecutive items.
    Execute(Execute),
    /// Give back what of this frame has not been started.
    Recall {
        /// The frame.
        frame: u64,
        /// At most this many items, from the end.
        count: u32,
    },
    /// Send the result that waits.
    Grant {
        /// The frame it belongs to.
        frame: u64,
        /// The item.
        index: u64,
    },
    /// Nobody needs an item any more: end it if it runs, and drop its result if that waits for a grant.
    Interrupt {
        /// The frame it belongs to.
        frame: u64,
        /// The item.
        index: u64,
    },
    /// Say that you are still there.
    Probe,
    /// A stream is over: forget its program and drop its work.
    Forget {
        /// The stream.
        stream: u32,
    },
    /// What the Python side needs before any function is loaded (modules, search path), opaque here.
    Setup {
        /// How its answers must be written.
        answers: Format,
        /// The settings.
        settings: Bytes,
    },
    /// A function's pickle.
    Function {
        /// Its name.
        digest: Digest,
        /// The pickle.
        pickle: Bytes,
    },
    /// A function that no stream of the slot uses: the slot need not keep it. It is sent again when it is needed again.
    Discard {
        /// Its name.
        digest: Digest,
    },
    /// A stream's program.
    Define {
        /// The stream.
        stream: u32,
        /// The first of the streams of one program of the user's: a program that makes items into others has several.
        first_stream: u32,
        /// How functions are called.
        call: Call,
        /// What is expected of its items.
        rules: ItemRules,
        /// All segments, in order.
        segments: Vec<SegmentFunctions>,
    },
    /// A piece of shared contents that the slot has asked for, as a bulk part; without one the contents aren't there any more.
    Piece {
        /// The contents' name.
        digest: Digest,
        /// Where the piece begins.
        offset: u64,
    },
}

/// How an item becomes arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `function(item)`.
    Item,
    /// `function(*item[0], **item[1])`.
    Arguments,
}

/// What a program expects of each of its items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ItemRules {
    /// How long it may run on a slot before its slot ends it.
    pub timeout: Option<Duration>,
    /// The pickle of the classes of exceptions for which it runs again: known as a function's is.
    pub retries_on: Option<Digest>,
}

/// One segment, with its functions by digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentFunctions {
    /// Whether it is one serial function.
    pub serial: bool,
    /// What becomes of its results.
    pub ending: SegmentEnding,
    /// Outcomes, and parts that no item waits for, are read by the manager's user instead of another slot.
    pub for_user: bool,
    /// What is done, in order.
    pub steps: Vec<SegmentStep>,
    /// The functions of all steps in order.
    pub functions: Vec<Digest>,
}

/// What a slot must know of what becomes of a segment's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SegmentEnding {
    /// They are tokens for the next segment, or outcomes.
    #[default]
    Next,
    /// They are lists.
    Expand {
        /// Where an item goes on that needs no parts, if there may be such.
        after: Option<u16>,
    },
    /// They are tokens for the next segment, or for an earlier one; if that is the same one, the slot repeats by itself.
    Repeat {
        /// The earlier one.
        from: u16,
        /// How many rounds there are at most.
        at_most: Option<u32>,
    },
    /// Those of consecutive items are folded into one.
    Fold,
}

/// A frame of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execute {
    /// The frame, which is the attempt's number as well.
    pub frame: u64,
    /// The stream.
    pub stream: u32,
    /// The first segment of its program to run, for which the records are.
    pub from: u16,
    /// The last one.
    pub to: u16,
    /// How to go about the first segment, if it is serial.
    pub lease: Lease,
    /// How many bytes a result may have without being announced first.
    pub grant: u64,
    /// The first item.
    pub first: u64,
    /// Number of items.
    pub count: u32,
    /// The state that comes to the first item, if its segment carries one.
    pub state: GivenState,
    /// Each item is a list of records: `varint(records << 2 | data << 1 | state)` stands before them. With `data`, its result must be data; with
    /// `state`, the first one is what a slot wants to be given back.
    pub lists: bool,
    /// The items' records, behind that of the state if it is [sent](GivenState::Sent).
    pub records: Bytes,
}

/// Where a slot finds the state that comes to the first item of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GivenState {
    /// There is none, or none yet.
    #[default]
    Nothing,
    /// Its record stands before those of the items.
    Sent,
    /// The slot has it: the one that it sent last, with results of this frame.
    Kept(u64),
}

/// From a slot to its manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToManager {
    /// Results of consecutive items.
    Results {
        /// The frame.
        frame: u64,
        /// The first item.
        first: u64,
        /// The segment that the items have reached, for which the records are; the number of segments where they are outcomes.
        reached: u16,
        /// Number of items.
        count: u32,
        /// Time spent on them, nanoseconds.
        busy: u64,
        /// Their records.
        records: Bytes,
    },
    /// No item of this frame runs the serial function, or will.
    Released {
        /// The frame.
        frame: u64,
        /// Time spent in it on all of them, nanoseconds; 0 when it was not measured by itself.
        busy: u64,
    },
    /// Items given back, not started; possibly none.
    Recalled {
        /// The frame.
        frame: u64,
        /// The first item given back.
        first: u64,
        /// Number of items.
        count: u32,
    },
    /// A result larger than its grant waits.
    Announced {
        /// The frame.
        frame: u64,
        /// The item; the first one if several were folded.
        index: u64,
        /// How many items it is the result of.
        count: u32,
        /// The result's size in bytes.
        bytes: u64,
        /// Time spent on it, nanoseconds.
        busy: u64,
    },
    /// What the task printed or logged.
    Output {
        /// 0 standard output, 1 standard error, 2 log.
        stream: u8,
        /// The text, UTF-8.
        text: Bytes,
    },
    /// The Python side runs, with its settings, and may get work, unless it lacks something.
    Ready {
        /// The modules that the program needs and this worker can't import.
        lacks: Vec<String>,
    },
    /// Packages of other versions than the manager's. Said before [`Ready`](Self::Ready), where there are any.
    Differs {
        /// One line for each: its name, the version here, the manager's.
        packages: Vec<String>,
    },
    /// Exceptions of consecutive items that the program wants them to be run again for. They are the outcomes of items that have
    /// run often enough.
    Retriable {
        /// The frame.
        frame: u64,
        /// The first item.
        first: u64,
        /// Number of items.
        count: u32,
        /// Time spent on them, nanoseconds.
        busy: u64,
        /// Their records.
        records: Bytes,
    },
    /// What consecutive items were expanded to.
    Expanded {
        /// The frame.
        frame: u64,
        /// The first item.
        first: u64,
        /// Number of items.
        count: u32,
        /// Time spent on them, nanoseconds.
        busy: u64,
        /// For each item `varint(records << 1 | state)`: how many of the records are its own, and whether the first of them is no part but what
        /// is to be given back with what becomes of the parts. Then all records.
        lists: Bytes,
    },
    /// What consecutive items were folded into.
    Folded {
        /// The frame.
        frame: u64,
        /// The first item.
        first: u64,
        /// Number of items.
        count: u32,
        /// Time spent on them, nanoseconds.
        busy: u64,
        /// The one record.
        record: Bytes,
    },
    /// Results of consecutive items of a segment that carries a state, and the state behind the last of them.
    Carried {
        /// The frame.
        frame: u64,
        /// The first item.
        first: u64,
        /// Number of items, at least one.
        count: u32,
        /// Time spent on them, nanoseconds.
        busy: u64,
        /// The record of the state, then those of the items.
        records: Bytes,
    },
    /// The initializer has run. Said once, where the manager has one, after [`Ready`](Self::Ready).
    Initialized {
        /// The traceback of the exception that it raised, UTF-8; nothing if it raised none.
        error: Bytes,
    },
    /// Send a piece of shared contents.
    Fetch {
        /// The contents' name.
        digest: Digest,
        /// Where the piece begins.
        offset: u64,
        /// Its bytes at most: no more than [`PIECE_BYTES_MAX`].
        bytes: u32,
    },
    /// The slot is about to leave: it finishes what runs, gives back the rest and starts nothing more.
    Leaving,
    /// The answer to a [`ToSlot::Probe`], given at once, whatever runs.
    Probed,
    /// All workers that this one hears on its network now.
    Heard {
        /// Each once for every announcement.
        workers: Vec<HeardWorker>,
    },
}

impl ToSlot {
    /// Where this goes.
    #[must_use]
    pub fn endpoint(&self) -> SlotEndpoint {
        match self {
            Self::Setup { .. }
            | Self::Function { .. }
            | Self::Define { .. }
            | Self::Discard { .. }
            | Self::Piece { .. } => SlotEndpoint::Code,
            Self::Execute(_)
            | Self::Recall { .. }
            | Self::Grant { .. }
            | Self::Interrupt { .. }
            | Self::Forget { .. }
            | Self::Probe => SlotEndpoint::Task,
        }
    }

    /// The whole message, with these bulk parts.
    #[must_use]
    pub fn with_bulk(&self, bulk: Vec<Bytes>) -> EncodedMessage {
        let (handler, head) = self.encode();
        EncodedMessage {
            handler,
            head,
            bulk,
        }
    }

    /// Reads a message of one of the slot's endpoints.
    ///
    /// # Errors
    /// When the head isn't one of `handler`'s.
    pub fn decode(endpoint: SlotEndpoint, handler: u16, head: Bytes) -> Result<Self, MessageError> {
        match endpoint {
            SlotEndpoint::Task => Self::decode_task(handler, head),
            SlotEndpoint::Code => Self::decode_code(handler, head),
        }
    }

    /// The handler's number and the head's bytes.
    #[must_use]
    pub fn encode(&self) -> (u16, Bytes) {
        let mut out = BytesMut::new();
        let handler = match self {
            Self::Execute(execute) => {
                out.reserve(EXECUTE_BYTES + execute.records.len());
                put_execute(&mut out, execute);
                out.put_slice(&execute.records);
                0
            }
            Self::Recall { frame, count } => {
                out.put_u64(*frame);
                out.put_u32(*count);
                1
            }
            Self::Grant { frame, index } => {
                out.put_u64(*frame);
                out.put_u64(*index);
                2
            }
            Self::Forget { stream } => {
                out.put_u32(*stream);
                3
            }
            Self::Probe => 4,
            Self::Interrupt { frame, index } => {
                out.put_u64(*frame);
                out.put_u64(*index);
                5
            }
            Self::Setup { answers, settings } => {
                out.put_u8(u8::from(*answers == Format::Data));
                out.put_slice(settings);
                0
            }
            Self::Function { digest, pickle } => {
                out.put_slice(digest);
                out.put_slice(pickle);
                1
            }
            Self::Define {
                stream,
                first_stream,
                call,
                rules,
                segments,
            } => {
                put_define(&mut out, [*stream, *first_stream], *call, *rules, segments);
                2
            }
            Self::Discard { digest } => {
                out.put_slice(digest);
                3
            }
            Self::Piece { digest, offset } => {
                out.put_slice(digest);
                out.put_u64(*offset);
                4
            }
        };
        (handler, out.freeze())
    }

    /// Reads a message of [`TASK_ENDPOINT`].
    ///
    /// # Errors
    /// When the head isn't one of `handler`'s.
    pub fn decode_task(handler: u16, mut head: Bytes) -> Result<Self, MessageError> {
        let message = match handler {
            0 => return read_execute(head).map(Self::Execute),
            1 if head.len() == 12 => Self::Recall {
                frame: head.get_u64(),
                count: head.get_u32(),
            },
            2 if head.len() == 16 => Self::Grant {
                frame: head.get_u64(),
                index: head.get_u64(),
            },
            3 if head.len() == 4 => Self::Forget {
                stream: head.get_u32(),
            },
            4 if head.is_empty() => Self::Probe,
            5 if head.len() == 16 => Self::Interrupt {
                frame: head.get_u64(),
                index: head.get_u64(),
            },
            _ => return Err(MessageError("task")),
        };
        Ok(message)
    }

    /// Reads a message of [`CODE_ENDPOINT`].
    ///
    /// # Errors
    /// When the head isn't one of `handler`'s.
    pub fn decode_code(handler: u16, mut head: Bytes) -> Result<Self, MessageError> {
        match handler {
            0 => Ok(Self::Setup {
                answers: match head.try_get_u8() {
                    Ok(0) => Format::Pickle,
                    Ok(1) => Format::Data,
                    _ => return Err(MessageError("setup")),
                },
                settings: head,
            }),
            1 if head.len() >= 32 => Ok(Self::Function {
                digest: get_digest(&mut head),
                pickle: head,
            }),
            2 => read_define(head).ok_or(MessageError("define")),
            3 => match Digest::try_from(&head[..]) {
                Ok(digest) => Ok(Self::Discard { digest }),
                Err(_) => Err(MessageError("discard")),
            },
            4 if head.len() == 40 => Ok(Self::Piece {
                digest: get_digest(&mut head),
                offset: head.get_u64(),
            }),
            _ => Err(MessageError("code")),
        }
    }
}

impl ToManager {
    /// The handler's number and the head's bytes.
    #[must_use]
    pub fn encode(&self) -> (u16, Bytes) {
        let mut out = BytesMut::new();
        let handler = match self {
            Self::Results {
                frame,
                first,
                reached,
                count,
                busy,
                records,
            } => {
                out.reserve(RESULTS_BYTES + records.len());
                out.put_u64(*frame);
                out.put_u64(*first);
                out.put_u16(*reached);
                out.put_u32(*count);
                out.put_u64(*busy);
                out.put_slice(records);
                0
            }
            Self::Retriable {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                out.reserve(RETRIABLE_BYTES + records.len());
                out.put_u64(*frame);
                out.put_u64(*first);
                out.put_u32(*count);
                out.put_u64(*busy);
                out.put_slice(records);
                6
            }
            Self::Released { frame, busy } => {
                out.put_u64(*frame);
                out.put_u64(*busy);
                1
            }
            Self::Recalled {
                frame,
                first,
                count,
            } => {
                out.put_u64(*frame);
                out.put_u64(*first);
                out.put_u32(*count);
                2
            }
            Self::Announced {
                frame,
                index,
                count,
                bytes,
                busy,
            } => {
                out.put_u64(*frame);
                out.put_u64(*index);
                out.put_u32(*count);
                out.put_u64(*bytes);
                out.put_u64(*busy);
                3
            }
            Self::Output { stream, text } => {
                out.put_u8(*stream);
                out.put_slice(text);
                4
            }
            Self::Ready { lacks } => {
                put_names(&mut out, lacks);
                5
            }
            Self::Differs { packages } => {
                put_names(&mut out, packages);
                10
            }
            Self::Initialized { error } => {
                let surplus = error.len().saturating_sub(INITIALIZER_ERROR_BYTES_MAX);
                out.put_slice(&error[surplus..]);
                7
            }
            Self::Fetch {
                digest,
                offset,
                bytes,
            } => {
                out.put_slice(digest);
                out.put_u64(*offset);
                out.put_u32(*bytes);
                8
            }
            Self::Leaving => 9,
            Self::Probed => 11,
            Self::Heard { workers } => {
                out.put_slice(&write_heard(workers));
                15
            }
            Self::Expanded {
                frame,
                first,
                count,
                busy,
                lists: records,
            }
            | Self::Folded {
                frame,
                first,
                count,
                busy,
                record: records,
            }
            | Self::Carried {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                out.reserve(RETRIABLE_BYTES + records.len());
                out.put_u64(*frame);
                out.put_u64(*first);
                out.put_u32(*count);
                out.put_u64(*busy);
                out.put_slice(records);
                match self {
                    Self::Folded { .. } => 13,
                    Self::Carried { .. } => 14,
                    _ => 12,
                }
            }
        };
        (handler, out.freeze())
    }

    /// The whole message, with these bulk parts.
    #[must_use]
    pub fn with_bulk(&self, bulk: Vec<Bytes>) -> EncodedMessage {
        let (handler, head) = self.encode();
        EncodedMessage {
            handler,
            head,
            bulk,
        }
    }

    /// Whether such a message may have bulk parts.
    #[must_use]
    pub fn takes_bulk(&self) -> bool {
        matches!(
            self,
            Self::Results { .. }
                | Self::Retriable { .. }
                | Self::Expanded { .. }
                | Self::Folded { .. }
                | Self::Carried { .. }
        )
    }

    /// Reads a message of [`RESULT_ENDPOINT`].
    ///
    /// # Errors
    /// When the head isn't one of `handler`'s.
    pub fn decode(handler: u16, mut head: Bytes) -> Result<Self, MessageError> {
        let message = match handler {
            0 if head.len() >= RESULTS_BYTES => Self::Results {
                frame: head.get_u64(),
                first: head.get_u64(),
                reached: head.get_u16(),
                count: head.get_u32(),
                busy: head.get_u64(),
                records: head,
            },
            1 if head.len() == 16 => Self::Released {
                frame: head.get_u64(),
                busy: head.get_u64(),
            },
            2 if head.len() == 20 => Self::Recalled {
                frame: head.get_u64(),
                first: head.get_u64(),
                count: head.get_u32(),
            },
            3 if head.len() == 36 => Self::Announced {
                frame: head.get_u64(),
                index: head.get_u64(),
                count: head.get_u32(),
                bytes: head.get_u64(),
                busy: head.get_u64(),
            },
            4 if head
                .first()
                .is_some_and(|stream| *stream <= OUTPUT_STREAM_MAX) =>
            {
                Self::Output {
                    stream: head.get_u8(),
                    text: head,
                }
            }
            5 => {
                let lacks = read_names(head, is_of_module).ok_or(MessageError("ready"))?;
                Self::Ready { lacks }
            }
            6 if head.len() >= RETRIABLE_BYTES => Self::Retriable {
                frame: head.get_u64(),
                first: head.get_u64(),
                count: head.get_u32(),
                busy: head.get_u64(),
                records: head,
            },
            7 if head.len() <= INITIALIZER_ERROR_BYTES_MAX => Self::Initialized { error: head },
            8 if head.len() == 44 => {
                let fetch = Self::Fetch {
                    digest: get_digest(&mut head),
                    offset: head.get_u64(),
                    bytes: head.get_u32(),
                };
                if !matches!(fetch, Self::Fetch { bytes, .. } if (1..=PIECE_BYTES_MAX).contains(&bytes))
                {
                    return Err(MessageError("fetch"));
                }
                fetch
            }
            9 if head.is_empty() => Self::Leaving,
            10 => {
                let packages = read_names(head, is_of_version).ok_or(MessageError("differs"))?;
                Self::Differs { packages }
            }
            11 if head.is_empty() => Self::Probed,
            12 if head.len() >= RETRIABLE_BYTES => Self::Expanded {
                frame: head.get_u64(),
                first: head.get_u64(),
                count: head.get_u32(),
                busy: head.get_u64(),
                lists: head,
            },
            13 if head.len() >= RETRIABLE_BYTES => Self::Folded {
                frame: head.get_u64(),
                first: head.get_u64(),
                count: head.get_u32(),
                busy: head.get_u64(),
                record: head,
            },
            14 if head.len() >= RETRIABLE_BYTES => {
                let (frame, first, count) = (head.get_u64(), head.get_u64(), head.get_u32());
                if count == 0 {
                    return Err(MessageError("carried"));
                }
                Self::Carried {
                    frame,
                    first,
                    count,
                    busy: head.get_u64(),
                    records: head,
                }
            }
            15 => {
                let workers = read_heard(head).ok_or(MessageError("heard"))?;
                Self::Heard { workers }
            }
            _ => return Err(MessageError("result")),
        };
        Ok(message)
    }
}

/// Takes a name from the front of a head that is long enough.
fn get_digest(head: &mut Bytes) -> Digest {
    let mut digest = [0; 32];
    head.copy_to_slice(&mut digest);
    digest
}

/// Writes names, each with its length before it: the first of them, and of each what fits.
fn put_names(out: &mut BytesMut, names: &[String]) {
    for name in names.iter().take(NAMES_MAX) {
        let ends = name.char_indices().map(|(at, part)| at + part.len_utf8());
        let end = ends.take_while(|end| *end <= NAME_BYTES_MAX).last();
        let name = &name.as_bytes()[..end.unwrap_or(0)];
        out.put_u16(name.len() as u16);
        out.put_slice(name);
    }
}

/// Reads what [`put_names`] wrote, if every character of every name is one that `is_good`: it is shown to users, and may come from anybody.
fn read_names(mut head: Bytes, is_good: impl Fn(char) -> bool) -> Option<Vec<String>> {
    let mut names = Vec::new();
    while head.has_remaining() {
        let length = usize::from(head.try_get_u16().ok()?);
        if length > head.remaining().min(NAME_BYTES_MAX) || names.len() == NAMES_MAX {
            return None;
        }
        let name = String::from_utf8(head.split_to(length).into()).ok()?;
        if name.is_empty() || !name.chars().all(&is_good) {
            return None;
        }
        names.push(name);
    }
    Some(names)
}

fn is_of_module(part: char) -> bool {
    part == '_' || part.is_alphanumeric()
}

/// Names of packages and their versions, and a few words between them.
fn is_of_version(part: char) -> bool {
    part.is_ascii_graphic() || part == ' '
}

fn put_execute(out: &mut BytesMut, execute: &Execute) {
    out.put_u64(execute.frame);
    out.put_u32(execute.stream);
    out.put_u16(execute.from);
    out.put_u16(execute.to);
    out.put_u8(match execute.lease {
        Lease::None => 0,
        Lease::Kept => 1,
        Lease::PassedOn => 2,
    });
    out.put_u64(execute.grant);
    out.put_u64(execute.first);
    out.put_u32(execute.count);
    let state = match execute.state {
        GivenState::Nothing => 0,
        GivenState::Sent => STATE_SENT,
        GivenState::Kept(_) => STATE_KEPT,
    };
    out.put_u8(u8::from(execute.lists) | state);
    if let GivenState::Kept(frame) = execute.state {
        out.put_u64(frame);
    }
}

fn read_execute(mut head: Bytes) -> Result<Execute, MessageError> {
    let malformed = MessageError("execute");
    if head.len() < EXECUTE_BYTES {
        return Err(malformed);
    }
    let (frame, stream) = (head.get_u64(), head.get_u32());
    let (from, to) = (head.get_u16(), head.get_u16());
    let lease = match head.get_u8() {
        0 => Lease::None,
        1 => Lease::Kept,
        2 => Lease::PassedOn,
        _ => return Err(malformed),
    };
    let (grant, first, count) = (head.get_u64(), head.get_u64(), head.get_u32());
    let flags = head.get_u8();
    let state = match flags & !LISTS {
        0 => GivenState::Nothing,
        STATE_SENT => GivenState::Sent,
        STATE_KEPT => GivenState::Kept(head.try_get_u64().map_err(|_| malformed)?),
        _ => return Err(malformed),
    };
    Ok(Execute {
        frame,
        stream,
        from,
        to,
        lease,
        grant,
        first,
        count,
        state,
        lists: flags & LISTS != 0,
        records: head,
    })
}

#[cfg(test)]
mod tests;
