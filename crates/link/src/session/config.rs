//! What a session is told at its start.

use core::time::Duration;

use crate::keys::CipherSuite;
use crate::limits::Limits;
use crate::protection::Protections;
use crate::record::SEGMENT_BYTES_MAX;

/// Which end of the connection this is: who dialled is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Dialled.
    Client,
    /// Listened.
    Server,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What the handshake agreed on, and what this side decides alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Which end this is.
    pub side: Side,
    /// The agreed protections by class; the stricter of both ends' policies.
    pub protections: Protections,
    /// The agreed cipher.
    pub cipher: CipherSuite,
    /// What this side is willing to hold.
    pub limits: Limits,
    /// What the peer is willing to hold.
    pub peer_limits: Limits,
    /// A peer that is silent for so long is dead.
    pub dead_after: Duration,
    /// A heartbeat goes out when nothing else did for so long.
    pub heartbeat_every: Duration,
    /// The job that links opened by this side belong to; 0: none.
    pub job: u32,
    /// When the session ends because a verified identity does.
    pub expires_at: Option<Duration>,
    /// The size of bulk segments that this side sends, at most [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: usize,
    /// Whether this side decides itself about links to endpoints that it doesn't offer to everybody
    /// ([`Event::LinkAsked`](crate::Event::LinkAsked)), instead of having none of that name.
    pub asks: bool,
    /// Whether nobody but the two ends' own processes can touch what carries the session, as memory that they share. A plain record then has
    /// no tag at all, a Head neither. Both ends must say the same.
    pub is_private: bool,
    /// When this side changes its keys, and when it holds the peer to it.
    pub epoch: EpochLimits,
}

impl SessionConfig {
    /// The strictest protections, the default limits on both sides, and a dead peer noticed after 5 seconds.
    pub fn new(side: Side) -> Self {
        let dead_after = Duration::from_secs(5);
        Self {
            side,
            protections: Protections::default(),
            cipher: CipherSuite::Aes256Gcm,
            limits: Limits::default(),
            peer_limits: Limits::default(),
            dead_after,
            heartbeat_every: dead_after / 4,
            job: 0,
            expires_at: None,
            segment_bytes: SEGMENT_BYTES_MAX,
            asks: false,
            is_private: false,
            epoch: EpochLimits::default(),
        }
    }
}

/// When a direction moves on to its next keys: whichever limit comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLimits {
    /// Bytes of record bodies.
    pub bytes_max: u64,
    /// Records.
    pub records_max: u64,
    /// Time since the epoch's start.
    pub age_max: Duration,
}

impl Default for EpochLimits {
    /// 2^36 bytes, 2^30 records or one hour: far below what AES-GCM bears under one key.
    fn default() -> Self {
        Self {
            bytes_max: 1 << 36,
            records_max: 1 << 30,
            age_max: Duration::from_secs(3600),
        }
    }
}
