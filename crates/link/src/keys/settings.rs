//! How many keys are held ready.

use super::geometry::Geometry;

/// The keys of one session: three protections in two directions, and as many again while the keys are changed.
pub const KEYS_OF_SESSION: usize = 12;
/// The contexts that are held at most unless somebody says otherwise: those of a thousand busy sessions, in 3 MiB.
const CONTEXTS_DEFAULT: usize = 4096;

/// Room for all keys of a few sessions, or for those in use of many.
pub fn room_for_sessions(sessions: usize) -> Geometry {
    let keys = sessions.saturating_mul(KEYS_OF_SESSION);
    let room = Geometry::fully_associative(keys.clamp(1, CONTEXTS_DEFAULT));
    room.expect("it is for some keys, and few")
}
