//! The keys of sessions: how they follow from a secret, and the bounded cache that holds those in use.
//!
//! A node may have more keys than fit close to the processor: two directions of each of thousands of sessions. [`Cache`] bounds
//! how many are held ready, [`PrefetchingCache`] guesses which group's keys come next. Both are generic over key and
//! value and do no I/O, so that the simulator's study of the cache runs the very code that sessions use
//! (Lee, An, Kim: "A session key caching and prefetching scheme for secure communication in cluster systems",
//! Journal of Parallel and Distributed Computing 70, 2010).

mod cache;
mod prefetch;
mod replacement;
mod rings;
mod schedule;
mod store;

pub use cache::{
    Absent, Cache, CacheKey, Counters, ENTRIES_MAX, Geometry, GeometryError, Placement,
};
pub use prefetch::{PrefetchError, PrefetchSettings, PrefetchingCache};
pub use replacement::{Clock, LeastRecentlyUsed, Replacement};
pub use rings::Rings;
pub(crate) use schedule::EpochSecret;
pub use schedule::{CipherSuite, ParseCipherError, RecordKey, SessionSecret};
pub use store::{
    COMPACT_KEY_BYTES, DirectionKeys, KEYS_OF_SESSION, KeyMemory, KeyStore, KeyStoreError,
    KeyStoreSettings, ReadyKeys, StoreCounters,
};
