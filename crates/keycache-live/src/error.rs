//! Why a live run can't be, or ends early.

use std::io;

use exoskel_link::SessionError;
use exoskel_link::keys::GeometryError;
use thiserror::Error;

use crate::NODES_MAX;

/// Why a live run can't be, or ends early.
#[derive(Debug, Error)]
pub enum LiveError {
    /// More ranks than [`NODES_MAX`]: the user has to take another trace.
    #[error("got a trace of {ranks} ranks, expected at most {NODES_MAX} to run live")]
    TooManyRanks {
        /// How many there are.
        ranks: usize,
    },
    /// Who started the process has to raise its limits.
    #[error(
        "got no socket ({source}), expected {descriptors} descriptors, two for each pair of ranks that talks: raise the limit (ulimit -n)"
    )]
    NoSocket {
        /// What the system says.
        source: io::Error,
        /// How many a run takes.
        descriptors: usize,
    },
    /// The system's generator has failed.
    #[error("the system gave no random bytes")]
    NoRandomBytes,
    /// The system gives sockets very little room.
    #[error("a socket had no room for the first words of a link")]
    NoRoomToBegin,
    /// The key store can't be of that shape.
    #[error(transparent)]
    Keys(#[from] GeometryError),
    /// A session has failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A socket has failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// Nobody sends a message that the program waits for.
    #[error("got no message, expected one: that rank has ended")]
    NoMessage,
    /// The program sends to a rank that the node has no session with.
    #[error("expected a link to it, got none")]
    NoLink,
    /// Another number of messages than one in the bytes of one.
    #[error("got {messages} messages in the bytes of one")]
    NotOneMessage {
        /// How many there were.
        messages: usize,
    },
    /// The ranks wait for one another: the trace has to be recorded or made again.
    #[error(
        "nothing came or went for {seconds} s: the trace's messages don't fit together, each rank waits for one that none sends: record or make it again"
    )]
    Stuck {
        /// For how long.
        seconds: u64,
    },
    /// The ranks wait for room that is taken by messages nobody receives yet.
    #[error(
        "no message moved for {seconds} s: {ranks} ranks wait to send, and {messages} messages that nobody receives fill all room ({mebibytes} MiB): replay a part of the trace"
    )]
    WithoutRoom {
        /// For how long.
        seconds: u64,
        /// How many wait.
        ranks: usize,
        /// How many messages came early.
        messages: usize,
        /// What early messages may take.
        mebibytes: usize,
    },
    /// One of the others, in the middle of a program.
    #[error("rank {rank}, message {message}, with rank {peer}: {source}")]
    InProgram {
        /// Whose program.
        rank: usize,
        /// Which of its messages, from 0 on.
        message: usize,
        /// Who is at the other end.
        peer: u16,
        /// What is wrong.
        source: Box<Self>,
    },
    /// Somebody asked for it.
    #[error("stopped")]
    Stopped,
}

impl From<rustix::io::Errno> for LiveError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Socket(error.into())
    }
}
