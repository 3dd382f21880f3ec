//! What can go wrong with arrays between programs.

use std::io;
use std::path::PathBuf;

use exoskel_transfer::{FrameError, Loss};

/// Why a member, or a transfer of its array, has failed.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// There is no keeper.
    #[error(
        "no keeper answers at {}: {error}. Start the programs with exoskel couple FILE. \
        Where another host couples, start a keeper here: exoskel keeper --join tcp://HOST:7700 --listen tcp://0.0.0.0:7702 --credential FILE",
        place.display()
    )]
    NoKeeper {
        /// Its socket.
        place: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// The keeper or the coupler refused what was asked for.
    #[error("{0}")]
    Refused(String),
    /// A connection can't be used.
    #[error("{0}")]
    Unfit(String),
    /// Nothing is connected there.
    #[error(
        "nothing is connected to {0}: the coupling's file has no connection to it, or the array has another name there"
    )]
    NotConnected(String),
    /// The other program has gone in good order, and has nothing more to give.
    #[error("{array} has no version {version}: rank {rank} of {program} has left {}", after(*exported, undescribed.as_deref()))]
    Ended {
        /// What was to be read.
        array: String,
        /// Whose process is gone.
        program: String,
        /// Which.
        rank: u32,
        /// What was asked for, counted from 1.
        version: u64,
        /// The last there is.
        exported: u64,
        /// Of an array that the process has not described: what the coupler says of it.
        undescribed: Option<String>,
    },
    /// A process was lost; of several the first one.
    #[error("rank {} of {} was lost ({}) before {array} had version {version}", loss.rank, loss.program, loss.why)]
    Lost {
        /// What was to be read or written.
        array: String,
        /// Which version.
        version: u64,
        /// Who was lost first in the coupling.
        loss: Loss,
    },
    /// The keeper is gone.
    #[error("the keeper has ended: {0}")]
    KeeperLost(String),
    /// What the keeper says can't be.
    #[error(
        "the keeper says what can't be ({0}): keeper and member must be of the same version of Exoskel"
    )]
    Keeper(String),
    /// An access that is open already, or isn't.
    #[error("{0}")]
    Access(&'static str),
    /// Two arrays have the same memory, and a version that is read into one would be in the other one.
    #[error(
        "the memory of {array} overlaps that of {other}, and versions are read into {read_into}: expected memory that no other array has"
    )]
    Overlap {
        /// What was described, with its bytes.
        array: String,
        /// What was there, with its bytes.
        other: String,
        /// One of the two.
        read_into: String,
    },
    /// The kernel refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        error: io::Error,
    },
    /// The caller doesn't want to wait any longer.
    #[error("interrupted")]
    Interrupted,
}

fn after(exported: u64, undescribed: Option<&str>) -> String {
    match undescribed {
        Some(why) => format!("before it has described the array ({why})"),
        None => format!("after version {exported}"),
    }
}

impl MemberError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::System {
            what,
            error: error.into(),
        }
    }
}

impl From<FrameError> for MemberError {
    fn from(error: FrameError) -> Self {
        Self::Keeper(error.to_string())
    }
}
