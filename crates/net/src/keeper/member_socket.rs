//! A member's socket, as its keeper has it.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use exoskel_transfer::{FrameError, FrameReader, HalfFrames, KeeperMessage, MemberMessage, frame};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

const PROCESS_ENDED: &str = "its process ended without leave()";

/// What the end of a member's socket means.
fn end_of(error: &io::Error) -> String {
    match error.kind() {
        // The kernel says so when what we have sent was not read.
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => PROCESS_ENDED.to_owned(),
        _ => error.to_string(),
    }
}

/// A message on its way, and the descriptor that goes with its first byte.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes that count for what a member may leave unread. Index sets don't: their runs have a limit of their own.
    counted: usize,
    descriptor: Option<Arc<OwnedFd>>,
}

impl QueuedMessage {
    pub(super) fn new(
        message: &KeeperMessage,
        descriptor: Option<Arc<OwnedFd>>,
    ) -> Result<Self, FrameError> {
        let bytes = frame(message)?;
        Ok(Self {
            counted: match message {
                KeeperMessage::Indices { .. } => 0,
                _ => bytes.len(),
            },
            bytes,
            sent: 0,
            descriptor,
        })
    }
}

#[derive(Debug)]
pub(super) struct MemberSocket {
    stream: UnixStream,
    frames: FrameReader,
    waiting: VecDeque<QueuedMessage>,
    ends_when_said: bool,
    is_deaf: bool,
    waiting_bytes: usize,
}

impl MemberSocket {
    pub(super) fn new(stream: UnixStream, half: Arc<HalfFrames>) -> Self {
        Self {
            stream,
            frames: FrameReader::of_stranger(half),
            waiting: VecDeque::new(),
            ends_when_said: false,
            is_deaf: false,
            waiting_bytes: 0,
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn say(&mut self, message: QueuedMessage) {
        if !self.is_deaf {
            self.waiting_bytes += message.counted;
            self.waiting.push_back(message);
        }
    }

    /// Says what waits, and hears nothing more.
    pub(super) fn end_when_said(&mut self) {
        self.ends_when_said = true;
        self.frames.end();
    }

    /// Its process doesn't hear any more.
    pub(super) fn say_no_more(&mut self) {
        self.is_deaf = true;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Whether it ends when it has been told what waits.
    pub(super) fn is_ending(&self) -> bool {
        self.ends_when_said
    }

    /// What it has not read yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ends_when_said && self.waiting.is_empty()
    }

    /// It has attached: what it says may be long.
    pub(super) fn is_attached(&mut self) {
        self.frames.is_attached();
    }

    /// Takes what has come. Says why, if nothing more comes.
    pub(super) fn receive(&mut self) -> Option<String> {
        let mut bytes = vec![0; READ_BYTES];
        // Once: others have said something too, and who goes on talking is heard again.
        match self.stream.read(&mut bytes) {
            Ok(0) => return Some(PROCESS_ENDED.to_owned()),
            Ok(count) => self.frames.take(&bytes[..count]),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Some(end_of(&error)),
            },
        }
        None
    }

    /// The next message of what has come.
    pub(super) fn message(&mut self) -> Result<Option<MemberMessage>, FrameError> {
        self.frames.message()
    }

    /// Sends what is waiting. Says whether all of it is on its way.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while let Some(first) = self.waiting.front_mut() {
            let descriptors = match &first.descriptor {
                Some(descriptor) if first.sent == 0 => vec![descriptor.as_fd()],
                _ => Vec::new(),
            };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !beside.push(SendAncillaryMessage::ScmRights(&descriptors))
            {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let rest = [IoSlice::new(&first.bytes[first.sent..])];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, &rest, &mut beside, flags) {
                Ok(count) => first.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if first.sent == first.bytes.len() {
                self.waiting_bytes -= first.counted;
                self.waiting.pop_front();
            }
        }
        Ok(true)
    }
}
