//! What couplers, keepers and members say and decide about arrays that parallel programs hand to each other.
//!
//! A **member** is one process of a parallel program. A **keeper**, one on each host, holds the memory of its members' arrays. The
//! **coupler** knows which array goes where: it reads a [`Coupling`], hears of members and layouts, checks that they fit, and tells keepers
//! which connections are ready. No array passes it. The roles are those of TGrid's redistributor and redistribution managers (Hunold,
//! Rauber, Rünger 2005, section 4).
//!
//! Everything here is decisions: bytes and events in, messages and wishes out.

#![forbid(unsafe_code)]

mod attach;
mod between_hosts;
mod coupler;
mod coupling;
mod description;
mod frame;
mod indices;
mod keeper;
mod rank_pairs;

pub use attach::{
    ArrayEnd, AttachRequest, ConnectedTerms, ConnectionPlace, GoneMember, KeeperMessage, Loss,
    MemberMessage, PROTOCOL, VERSION,
};
pub use between_hosts::{
    COUPLER_ENDPOINT, CouplerWord, GivenUp, JoinRequest, KEEPER_BYTES_MAX, KEEPER_ENDPOINT,
    KeeperAddress, KeeperId, OWN_KEEPER, PAIR_BYTES_MAX, PIECE_BYTES_MAX, PieceHead, RankPair,
    SaidReport, WantedVersion, Welcome,
};
pub use coupler::{
    ConnectionState, ConnectionStatus, CoupledEnd, Coupler, CouplerOrder, KeeperReport,
    ProgramStatus, TakenVersions, ranks_of,
};
pub use coupling::{
    ConnectionTerms, Coupling, CouplingError, ProgramTerms, Variable, last_taken, source_version,
};
pub use description::{LayoutDescription, Sharing};
pub use frame::{
    ATTACH_BYTES_MAX, FRAME_BYTES_MAX, FrameError, FrameReader, HALF_FRAME_BYTES_OF_ONE,
    HALF_FRAMES_BYTES_MAX, HalfFrames, frame,
};
pub use indices::{INDEX_RUNS_OF_KEEPER_MAX, INDEX_RUNS_OF_PART_MAX, IndexPart, IndexParts};
pub use keeper::{IndexWord, SaidIndices};
pub use keeper::{Keeper, KeeperAction, MemberId, MemoryAccess, MemoryId};

/// Processes of one program, at most.
pub const MEMBERS_MAX: u32 = 1 << 20;

/// Processes that one keeper has, at most.
pub const MEMBERS_OF_KEEPER_MAX: usize = 4096;

/// Keepers of other hosts that join one coupling, at most. Those that have gone count.
pub const KEEPERS_MAX: KeeperId = 1024;

/// Arrays of one program, at most.
pub const VARIABLES_MAX: usize = 256;

/// Connections that end in one array, or begin there, at most: each has a place in the array's board.
pub const CONNECTIONS_OF_ARRAY_MAX: usize = 32;

/// Refusals that a coupler remembers, for who asks at the end.
pub const REFUSALS_MAX: usize = 16;

/// The bytes of the reason for a process's end, at most: each process at the other ends is told of it.
pub const REASON_BYTES_MAX: usize = 1024;

/// The bytes of a name of a program or of an array, at most.
pub const NAME_BYTES_MAX: usize = 64;
