//! What couplers and keepers of different hosts say to each other, over links.
//!
//! A keeper looks up the coupler's endpoint and asks to `join`; the [`Welcome`] has its number and the coupling. From then on it sends
//! [`SaidReport`]s and is sent [`CouplerWord`]s. Keepers know each other by the coupler alone, which hands on what it
//! takes to reach them.

use serde::{Deserialize, Serialize};

use crate::attach::{GoneMember, Loss};
use crate::coupler::{CouplerOrder, KeeperReport};
use crate::coupling::ConnectionTerms;

/// A keeper, in the coupler's words.
pub type KeeperId = u32;

/// The keeper in the coupler's own process.
pub const OWN_KEEPER: KeeperId = 0;

/// The coupler's endpoint.
pub const COUPLER_ENDPOINT: &str = "coupler";

/// A keeper's endpoint.
pub const KEEPER_ENDPOINT: &str = "keeper";

/// Bytes of an array that go in one message, at most.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;

/// What may be under way from one keeper to another.
pub const PAIR_BYTES_MAX: u64 = 4 << 20;

/// What may be under way from one keeper to all others, or one piece.
pub const KEEPER_BYTES_MAX: u64 = 64 << 20;

/// A keeper wants to take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// [`PROTOCOL`](crate::PROTOCOL).
    pub protocol: u32,
    /// A startpoint of its endpoint, which whoever it is handed on to can narrow.
    pub startpoint: String,
}

/// It takes part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// Its number.
    pub keeper: KeeperId,
    /// The programs of the coupling.
    pub programs: Vec<String>,
    /// What connects them.
    pub connections: Vec<ConnectionTerms>,
    /// Who is gone already.
    pub gone: Vec<GoneMember>,
}

/// How one keeper reaches another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeeperAddress {
    /// Which.
    pub keeper: KeeperId,
    /// The name that its certificate proves.
    pub name: String,
    /// What lets this keeper alone hand it versions, and ask it for some.
    pub startpoint: String,
}

/// What the coupler tells a keeper that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CouplerWord {
    /// To be done.
    Order(CouplerOrder),
    /// Another keeper.
    Keeper(KeeperAddress),
    /// Another keeper was given up: it is told so by whoever it asks.
    Lost {
        /// Which.
        keeper: KeeperId,
        /// What was seen.
        why: String,
    },
    /// The coupling is over.
    End,
}

/// What a keeper that has joined tells the coupler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaidReport {
    /// The keeper.
    pub keeper: KeeperId,
    /// What it says.
    pub report: KeeperReport,
}

/// A process's part of a target may be written with what the processes of a source have exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedVersion {
    /// The keeper that says so.
    pub keeper: KeeperId,
    /// The connection.
    pub connection: u32,
    /// Which process of the target.
    pub target: u32,
    /// Which of the source's versions.
    pub version: u64,
}

/// What one process of a source gives to one of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPair {
    /// The connection.
    pub connection: u32,
    /// Which process of the source.
    pub source: u32,
    /// Which process of the target.
    pub target: u32,
}

/// What stands before a piece of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceHead {
    /// The keeper that sends it.
    pub keeper: KeeperId,
    /// From whom to whom.
    pub pair: RankPair,
    /// Which of the source's versions.
    pub version: u64,
    /// Which piece of it. They come one after the other.
    pub piece: u64,
}

/// That the coupler has given up a keeper, as that keeper is told when it asks: what it tells its processes is what all others hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUp {
    /// Why.
    pub why: String,
    /// What was lost first, for all that are still there; none if nobody has lost a process by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_lost: Option<Loss>,
}

impl GivenUp {
    /// For a reason, when nobody says what was lost first.
    #[must_use]
    pub fn alone(why: &str) -> Self {
        Self {
            why: why.to_owned(),
            first_lost: None,
        }
    }
}
