//! Links between authenticated processes: records, sessions, endpoints and policy, without I/O.
//!
//! A [`Session`] is what two processes share after one mutual authentication, over one connection. It is
//! a state machine: bytes, times and secrets go in; bytes and [`Event`]s come out. It never reads a clock,
//! never opens a socket and never logs. `docs/protocol.md` is the normative description of what it speaks.
//!
//! # Layout
//!
//! - [`handshake`]: the Hello and the answer that the TLS handshake carries, and what follows from them.
//! - [`Session`], [`SessionConfig`], [`Message`], [`Event`]: the connection's state machine and what enters
//!   and leaves it.
//! - [`capability`]: startpoints, which grant the right to open links.
//! - [`policy`]: which [`Protection`] a wire gets.
//! - [`vectors`]: the record layer by itself, for transcripts that other implementations check.

#![forbid(unsafe_code)]

pub mod capability;
mod codec;
mod control;
mod envelope;
mod error;
pub mod handshake;
pub mod keys;
mod limits;
mod message;
pub mod policy;
mod protection;
mod record;
mod resumption;
mod sealing;
mod session;
pub mod vectors;

pub use control::{EARLY_HANDLERS_MAX, HANDLERS_MAX, NAME_BYTES_MAX};
pub use error::{CloseReason, CodecError, LinkRefusal, SessionError};
pub use keys::{CipherSuite, ParseCipherError, SessionSecret};
pub use limits::Limits;
pub use message::{Endpoint, Event, LinkId, Message, MessageKind};
pub use protection::{ParseProtectionError, Protection, Protections, TrafficClass};
pub use record::{SEGMENT_BYTES_MAX, TAG_BYTES};
pub use resumption::{LinkLife, Resumption, ResumptionKey};
pub use session::{
    CLOSING_TIME, Counts, Ended, EpochLimits, LinkTraffic, Session, SessionConfig, SharedReception,
    Side, UNVERIFIED_BYTES_PER_SECOND,
};
