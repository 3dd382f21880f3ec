//! What manager and slot say to each other: the heads of their messages on the task and code links.
//!
//! All numbers are big-endian; lists are length-prefixed. Handlers are numbered by their place in [`TASK_HANDLERS`], [`CODE_HANDLERS`]
//! and [`RESULT_HANDLERS`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use exoskel_flow::Lease;

use crate::payload::Format;

/// The slot's endpoint for instructions.
pub const TASK_ENDPOINT: &str = "exoskel.task";
/// The slot's endpoint for code: functions, programs, modules.
pub const CODE_ENDPOINT: &str = "exoskel.code";
/// The manager's endpoint for what comes back.
pub const RESULT_ENDPOINT: &str = "exoskel.result";
/// Handlers of [`TASK_ENDPOINT`], in the order of [`ToSlot`]'s numbers.
pub const TASK_HANDLERS: &[&str] = &["execute", "recall", "grant", "forget"];
/// Handlers of [`CODE_ENDPOINT`].
pub const CODE_HANDLERS: &[&str] = &["setup", "function", "define"];
/// Handlers of [`RESULT_ENDPOINT`].
pub const RESULT_HANDLERS: &[&str] = &[
    "results",
    "released",
    "recalled",
    "announced",
    "output",
    "ready",
];

/// What a message has besides its items or results at most, amply. An item or a result that leaves less room is refused.
pub const ENVELOPE_BYTES_MAX: u64 = 64 * 1024;

/// What a frame of work has before its records.
const EXECUTE_BYTES: usize = 35;

/// So many modules that a worker lacks are named; what comes after them is known when it has those.
const LACKS_MAX: usize = 100;

/// The longest name of one, in bytes: a module is a file, whose name can't be longer. It is shown to users.
const LACKS_NAME_BYTES_MAX: usize = 255;

/// The greatest number of a stream of output.
const OUTPUT_STREAM_MAX: u8 = 2;

/// A function's name on the wire: SHA-256 of its pickle.
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
    /// Run a segment of a stream's program over consecutive items.
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
    /// A stream's program.
    Define {
        /// The stream.
        stream: u32,
        /// How functions are called.
        call: Call,
        /// For each segment: the serial function if it has one, then the parallel ones.
        segments: Vec<SegmentFunctions>,
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

/// The functions of one segment, by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFunctions {
    /// Whether the first function is serial.
    pub serial: bool,
    /// All functions in order.
    pub functions: Vec<Digest>,
}

/// A frame of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execute {
    /// The frame, which is the attempt's number as well.
    pub frame: u64,
    /// The stream.
    pub stream: u32,
    /// The segment of its program.
    pub segment: u16,
    /// How to go about the segment's serial function.
    pub lease: Lease,
    /// How many bytes a result may have without being announced first.
    pub grant: u64,
    /// The first item.
    pub first: u64,
    /// Number of items.
    pub count: u32,
    /// The items' records.
    pub records: Bytes,
}

/// From a slot to its manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToManager {
    /// Outcomes of consecutive items.
    Results {
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
        /// The item.
        index: u64,
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
}

impl ToSlot {
    /// Where this goes.
    #[must_use]
    pub fn endpoint(&self) -> SlotEndpoint {
        match self {
            Self::Setup { .. } | Self::Function { .. } | Self::Define { .. } => SlotEndpoint::Code,
            Self::Execute(_) | Self::Recall { .. } | Self::Grant { .. } | Self::Forget { .. } => {
                SlotEndpoint::Task
            }
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
                call,
                segments,
            } => {
                put_define(&mut out, *stream, *call, segments);
                2
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
            1 if head.len() >= 32 => {
                let mut digest = [0; 32];
                head.copy_to_slice(&mut digest);
                Ok(Self::Function {
                    digest,
                    pickle: head,
                })
            }
            2 => read_define(head).ok_or(MessageError("define")),
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
                count,
                busy,
                records,
            } => {
                out.reserve(28 + records.len());
                out.put_u64(*frame);
                out.put_u64(*first);
                out.put_u32(*count);
                out.put_u64(*busy);
                out.put_slice(records);
                0
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
                bytes,
                busy,
            } => {
                out.put_u64(*frame);
                out.put_u64(*index);
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
                for name in lacks.iter().take(LACKS_MAX) {
                    let ends = name.char_indices().map(|(at, part)| at + part.len_utf8());
                    let end = ends.take_while(|end| *end <= LACKS_NAME_BYTES_MAX).last();
                    let name = &name.as_bytes()[..end.unwrap_or(0)];
                    out.put_u16(name.len() as u16);
                    out.put_slice(name);
                }
                5
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
        matches!(self, Self::Results { .. })
    }

    /// Reads a message of [`RESULT_ENDPOINT`].
    ///
    /// # Errors
    /// When the head isn't one of `handler`'s.
    pub fn decode(handler: u16, mut head: Bytes) -> Result<Self, MessageError> {
        let message = match handler {
            0 if head.len() >= 28 => Self::Results {
                frame: head.get_u64(),
                first: head.get_u64(),
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
            3 if head.len() == 32 => Self::Announced {
                frame: head.get_u64(),
                index: head.get_u64(),
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
            5 => return read_ready(head).ok_or(MessageError("ready")),
            _ => return Err(MessageError("result")),
        };
        Ok(message)
    }
}

fn read_ready(mut head: Bytes) -> Option<ToManager> {
    let mut lacks = Vec::new();
    while head.has_remaining() {
        let length = usize::from(head.try_get_u16().ok()?);
        if length > head.remaining().min(LACKS_NAME_BYTES_MAX) || lacks.len() == LACKS_MAX {
            return None;
        }
        let name = String::from_utf8(head.split_to(length).into()).ok()?;
        // It is shown to users, and may come from anybody.
        if name.is_empty()
            || !name
                .chars()
                .all(|part| part == '_' || part.is_alphanumeric())
        {
            return None;
        }
        lacks.push(name);
    }
    Some(ToManager::Ready { lacks })
}

fn put_execute(out: &mut BytesMut, execute: &Execute) {
    out.put_u64(execute.frame);
    out.put_u32(execute.stream);
    out.put_u16(execute.segment);
    out.put_u8(match execute.lease {
        Lease::None => 0,
        Lease::Kept => 1,
        Lease::PassedOn => 2,
    });
    out.put_u64(execute.grant);
    out.put_u64(execute.first);
    out.put_u32(execute.count);
}

fn read_execute(mut head: Bytes) -> Result<Execute, MessageError> {
    if head.len() < EXECUTE_BYTES {
        return Err(MessageError("execute"));
    }
    Ok(Execute {
        frame: head.get_u64(),
        stream: head.get_u32(),
        segment: head.get_u16(),
        lease: match head.get_u8() {
            0 => Lease::None,
            1 => Lease::Kept,
            2 => Lease::PassedOn,
            _ => return Err(MessageError("execute")),
        },
        grant: head.get_u64(),
        first: head.get_u64(),
        count: head.get_u32(),
        records: head,
    })
}

fn put_define(out: &mut BytesMut, stream: u32, call: Call, segments: &[SegmentFunctions]) {
    out.put_u32(stream);
    out.put_u8(u8::from(call == Call::Arguments));
    for segment in segments {
        out.put_u8(u8::from(segment.serial));
        out.put_u32(u32::try_from(segment.functions.len()).unwrap_or(u32::MAX));
        for digest in &segment.functions {
            out.put_slice(digest);
        }
    }
}

fn read_define(mut head: Bytes) -> Option<ToSlot> {
    let stream = head.try_get_u32().ok()?;
    let call = match head.try_get_u8().ok()? {
        0 => Call::Item,
        1 => Call::Arguments,
        _ => return None,
    };
    let mut segments = Vec::new();
    while head.has_remaining() {
        let serial = head.try_get_u8().ok()? != 0;
        let count = head.try_get_u32().ok()? as usize;
        if head.remaining() / 32 < count {
            return None;
        }
        let mut functions = Vec::with_capacity(count);
        for _ in 0..count {
            let mut digest = [0; 32];
            head.copy_to_slice(&mut digest);
            functions.push(digest);
        }
        segments.push(SegmentFunctions { serial, functions });
    }
    Some(ToSlot::Define {
        stream,
        call,
        segments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_back() {
        let execute = Execute {
            frame: 7,
            stream: 1,
            segment: 2,
            lease: Lease::PassedOn,
            grant: 65_536,
            first: 1 << 40,
            count: 3,
            records: Bytes::from_static(b"abc"),
        };
        let segments = vec![SegmentFunctions {
            serial: true,
            functions: vec![[1; 32], [2; 32]],
        }];
        let task = [
            ToSlot::Execute(execute),
            ToSlot::Recall { frame: 1, count: 2 },
            ToSlot::Grant { frame: 1, index: 2 },
            ToSlot::Forget { stream: 3 },
        ];
        for message in task {
            let (handler, head) = message.encode();
            assert_eq!(ToSlot::decode_task(handler, head), Ok(message));
        }
        let code = [
            ToSlot::Setup {
                answers: Format::Data,
                settings: Bytes::from_static(b"x"),
            },
            ToSlot::Setup {
                answers: Format::Pickle,
                settings: Bytes::new(),
            },
            ToSlot::Function {
                digest: [9; 32],
                pickle: Bytes::from_static(b"p"),
            },
            ToSlot::Define {
                stream: 4,
                call: Call::Arguments,
                segments,
            },
        ];
        for message in code {
            let (handler, head) = message.encode();
            assert_eq!(ToSlot::decode_code(handler, head), Ok(message));
        }
        let back = [
            ToManager::Results {
                frame: 1,
                first: 2,
                count: 3,
                busy: 4,
                records: Bytes::from_static(b"r"),
            },
            ToManager::Released { frame: 5, busy: 6 },
            ToManager::Recalled {
                frame: 1,
                first: 2,
                count: 0,
            },
            ToManager::Announced {
                frame: 1,
                index: 2,
                bytes: 3,
                busy: 4,
            },
            ToManager::Output {
                stream: 1,
                text: Bytes::from_static(b"hello"),
            },
            ToManager::Ready { lacks: Vec::new() },
            ToManager::Ready {
                lacks: vec!["numpy".to_owned(), "größe".to_owned()],
            },
        ];
        for message in back {
            let (handler, head) = message.encode();
            assert_eq!(ToManager::decode(handler, head), Ok(message));
        }
    }

    #[test]
    fn what_a_worker_lacks_is_names_and_not_too_many() {
        for name in ["", "a b", "a\u{1b}[2J", "a.b", "a\n"] {
            let (handler, head) = ToManager::Ready {
                lacks: vec![name.to_owned()],
            }
            .encode();
            assert_eq!(
                ToManager::decode(handler, head),
                Err(MessageError("ready")),
                "{name:?}"
            );
        }
        let long = ToManager::Ready {
            lacks: vec!["\u{fc}".repeat(LACKS_NAME_BYTES_MAX)],
        };
        let (handler, head) = long.encode();
        assert_eq!(head.len(), 2 + LACKS_NAME_BYTES_MAX - 1, "whole characters");
        assert!(ToManager::decode(handler, head).is_ok());
        let mut longer = vec![b'x'; 2 + LACKS_NAME_BYTES_MAX + 1];
        longer[..2].copy_from_slice(&256_u16.to_be_bytes());
        assert!(ToManager::decode(5, longer.into()).is_err());
        let lacks = vec!["x".to_owned(); LACKS_MAX + 1];
        let (handler, head) = ToManager::Ready { lacks }.encode();
        let mut more = head.to_vec();
        assert!(
            ToManager::decode(handler, head).is_ok(),
            "the first of them"
        );
        more.extend([0, 1, b'x']);
        assert!(ToManager::decode(handler, more.into()).is_err());
    }

    #[test]
    fn output_has_a_stream_that_there_is() {
        for (stream, is_read) in [(0, true), (2, true), (3, false), (200, false)] {
            let head = Bytes::copy_from_slice(&[stream, b'x']);
            assert_eq!(ToManager::decode(4, head).is_ok(), is_read, "{stream}");
        }
    }

    proptest! {
        /// Arbitrary heads are refused or read, never a panic.
        #[test]
        fn garbage_is_an_error(handler in 0_u16..8, head in proptest::collection::vec(any::<u8>(), 0..120)) {
            let head = Bytes::from(head);
            let _ = ToSlot::decode_task(handler, head.clone());
            let _ = ToSlot::decode_code(handler, head.clone());
            let _ = ToManager::decode(handler, head);
        }
    }
}
