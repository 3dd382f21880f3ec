//! The keys of sessions: how they follow from a secret, and the bounded cache that holds those in use.
//!
//! A node may have more keys than fit close to the processor: two directions of each of thousands of sessions. [`Cache`] bounds
//! how many are held ready. It is generic over key and value and does no I/O, so that the study of key caches runs the very code
//! that sessions use.
//!
//! # Layout
//!
//! * `schedule`: how keys follow from a session's secret
//! * `cache`, with `geometry`, `replacement` and `rings`: the bounded cache
//! * `store`: the keys of all sessions of a node, in three tiers: `ready`, how many of them `settings` say, `compact`, and the secrets of `direction`,
//!   which asks for keys by `name`

mod cache;
mod compact;
mod direction;
mod geometry;
mod name;
mod ready;
mod replacement;
mod rings;
mod schedule;
mod settings;
mod store;
#[cfg(test)]
mod tests;

pub use cache::{Absent, Cache, Counters};
pub use compact::{COMPACT_KEY_BYTES, KeyMemory};
pub use direction::DirectionKeys;
pub use geometry::{CacheKey, ENTRIES_MAX, Geometry, GeometryError, Placement};
pub use ready::{ReadyKeys, StoreCounters};
pub use replacement::{ClockPolicy, LeastRecentlyUsed, Replacement};
pub use rings::Rings;
pub(crate) use schedule::EpochSecret;
pub use schedule::{CipherSuite, ParseCipherError, RecordKey, SessionSecret};
pub use settings::{KEYS_OF_SESSION, room_for_sessions};
pub use store::KeyStore;
