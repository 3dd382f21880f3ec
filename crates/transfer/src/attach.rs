//! What a member and its keeper say over the Unix socket. Descriptors of memory travel beside the messages that name them.
//!
//! `Attach`, then either `Attached` or `Refused`. Then `Array` as often as wanted, with `Indices` before where an axis has index sets, each answered by `Memory` or `Refused`. The keeper tells
//! what becomes of connections when it knows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::REASON_BYTES_MAX;
use crate::coupling::Variable;
use crate::description::LayoutDescription;
use crate::indices::IndexPart;

/// Of this protocol. Both ends have the same.
pub const PROTOCOL: u32 = 5;

/// Of Exoskel, as people know it: told to whoever has another one.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Who wants to be a member. Other fields are left unread and missing ones empty, so that keepers of any version can tell a member of
/// any other one which two versions have met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// [`VERSION`] of the member's library.
    #[serde(default)]
    pub version: String,
    /// The program's name.
    #[serde(default)]
    pub program: String,
    /// Which process of the program.
    #[serde(default)]
    pub rank: u32,
    /// How many processes the program has.
    #[serde(default)]
    pub size: u32,
}

impl AttachRequest {
    /// Of this version.
    #[must_use]
    pub fn new(program: &str, rank: u32, size: u32) -> Self {
        Self {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            program: program.to_owned(),
            rank,
            size,
        }
    }

    /// Why keeper and member don't understand each other, unless they do.
    pub(crate) fn other_version(&self) -> Option<String> {
        let version: String = self.version.chars().take(VERSION_LETTERS_MAX).collect();
        let theirs = match version.as_str() {
            "" => "another Exoskel".to_owned(),
            version => format!("Exoskel {}", version.escape_default()),
        };
        (self.protocol != PROTOCOL).then(|| {
            format!(
                "the program uses {theirs} (attach protocol {}), the keeper is Exoskel {VERSION} (attach protocol {PROTOCOL}): update the older of the two installations. \
                A program in C or Fortran uses the one whose exoskel config --libs it was linked with",
                self.protocol
            )
        })
    }
}

/// As much of another's version as is repeated.
const VERSION_LETTERS_MAX: usize = 32;

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum MemberMessage {
    /// First: who it is.
    Attach(AttachRequest),
    /// An array. Members of a program describe it with the same layout.
    Array {
        /// The array's name.
        name: String,
        /// How the program shares it out.
        layout: LayoutDescription,
    },
    /// Some of its indices, where an axis of an array has index sets. Said before the array.
    Indices {
        /// The array's name.
        name: String,
        /// Of the member's own set.
        part: IndexPart,
    },
    /// It has exported a version. Said where its keeper has to know, see [`KeeperMessage::Memory`].
    Exported {
        /// The array's name.
        name: String,
        /// The version.
        version: u64,
    },
    /// Its part of a target may be written by the keeper: with what processes on other hosts give.
    Want {
        /// The connection that ends there.
        connection: u32,
        /// Which of the source's versions.
        version: u64,
    },
    /// It wants what it has asked for no more, as not all of it can come. Answered by [`KeeperMessage::Forgone`].
    Forgo {
        /// The connection.
        connection: u32,
        /// Which of the source's versions.
        version: u64,
    },
    /// It goes. What it has exported stays until it has been taken.
    Leave {
        /// None in good order, otherwise the error that ends it.
        error: Option<String>,
    },
}

/// A connection, as the ends of it have to know it before it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionPlace {
    /// Its number.
    pub connection: u32,
    /// Of the source's versions the first one goes, and then each that is so many later.
    pub every: u64,
    /// Where it is in the boards of the target.
    pub place: u16,
    /// Where it is in the boards of the source.
    pub source_place: u16,
}

/// One of the two arrays of a connection, seen from a member that has the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayEnd {
    /// The array that is read.
    Source,
    /// The array that is written.
    Target,
}

/// A process that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Whose process.
    pub program: String,
    /// Which.
    pub rank: u32,
    /// What was seen.
    pub why: String,
}

/// A process that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoneMember {
    /// Whose process.
    pub program: String,
    /// Which.
    pub rank: u32,
    /// None if it went in good order. Otherwise the first process of the coupling that was lost: what followed came of it.
    pub loss: Option<Loss>,
    /// The last versions that its keeper can still give to other hosts, by the names of its arrays.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exported: BTreeMap<String, u64>,
    /// It went in good order, but its keeper was lost later, with what it had exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Loss>,
}

impl GoneMember {
    /// Whether what its keeper had of it is lost.
    pub(crate) fn is_without_keeper(&self) -> bool {
        self.lost_since.is_some() || (self.loss.is_some() && self.exported.is_empty())
    }

    /// The same, with a loss that is its own and said in few words: who tells of it speaks for this process alone.
    pub(crate) fn by_itself(mut self) -> Self {
        self.loss = self.loss.map(|loss| Loss {
            program: self.program.clone(),
            rank: self.rank,
            why: bounded(loss.why),
        });
        self.lost_since = None;
        self
    }

    /// The same, after the loss of the keeper that has what it exported.
    pub(crate) fn without_keeper(mut self, loss: Loss) -> Self {
        match self.loss {
            None => {
                self.lost_since.get_or_insert(loss);
            }
            Some(_) => self.exported.clear(),
        }
        self
    }
}

/// For who starts processes that all take themselves for rank 0: what to do, whatever language the program is in.
pub(crate) const GIVE_RANKS: &str =
    "where no starter such as mpiexec says them, give rank and size when the process attaches";

/// As much of a reason as is handed on.
pub(crate) fn bounded(mut why: String) -> String {
    let mut bounds = (0..=why.len().min(REASON_BYTES_MAX)).rev();
    let length = bounds.find(|bound| why.is_char_boundary(*bound));
    why.truncate(length.unwrap_or(0));
    why
}

/// What a connection moves, when both ends are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectedTerms {
    /// The source's layout.
    pub source: LayoutDescription,
    /// The target's.
    pub target: LayoutDescription,
    /// The part of the source.
    pub select: Option<String>,
    /// The part of the target.
    pub into: Option<String>,
    /// The order of axes.
    pub permute: Option<Vec<usize>>,
    /// The array at the other end.
    pub other: Variable,
}

/// What a keeper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum KeeperMessage {
    /// The member is known now.
    Attached,
    /// What was asked for can't be.
    Refused {
        /// Why, and who must act.
        reason: String,
    },
    /// An array's memory, whose descriptor comes along.
    Memory {
        /// The array.
        name: String,
        /// Bytes behind the board.
        bytes: u64,
        /// The connections that begin there.
        sources: Vec<ConnectionPlace>,
        /// Those that end there.
        targets: Vec<ConnectionPlace>,
        /// Whether there are other hosts, so that the keeper is to be told of each version.
        is_watched: bool,
    },
    /// Some indices of a process at the other end of a connection: those that meet the member's part. All of them come before
    /// [`Connected`](Self::Connected).
    Indices {
        /// The connection.
        connection: u32,
        /// Which end the member has.
        own: ArrayEnd,
        /// Of the other end's array.
        part: IndexPart,
    },
    /// The memory of a process of this host at the other end of a connection, to be read. Its descriptor comes along.
    Partner {
        /// The connection.
        connection: u32,
        /// Which end the member has.
        own: ArrayEnd,
        /// The process at the other end.
        rank: u32,
        /// Bytes behind the board.
        bytes: u64,
    },
    /// All partners of this host were named: the connection can be used. With processes on other hosts its keeper has to do.
    Connected {
        /// The connection.
        connection: u32,
        /// Which end the member has.
        own: ArrayEnd,
        /// What it moves.
        terms: Box<ConnectedTerms>,
    },
    /// All that a process on another host gives of a version is there, whatever has become of its keeper. Said if that is gone.
    Came {
        /// The connection.
        connection: u32,
        /// The process at the other end.
        rank: u32,
        /// Which of the source's versions.
        version: u64,
    },
    /// Nothing of this version is written into the member's part any more.
    Forgone {
        /// The connection.
        connection: u32,
        /// Which of the source's versions.
        version: u64,
    },
    /// A connection can't be used.
    Failed {
        /// The connection.
        connection: u32,
        /// Why, with both sides and the numbers.
        reason: String,
        /// The process that has gone before it described its array, if that is why.
        gone: Option<GoneMember>,
    },
    /// Somebody at the other end of one of the member's connections is gone.
    Gone(GoneMember),
}
