//! How many keys are held ready.

use crate::keys::cache::{Geometry, GeometryError};
use crate::keys::prefetch::PrefetchSettings;

/// How many keys a node holds ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStoreSettings {
    /// The expanded contexts; about 700 bytes each.
    pub contexts: Geometry,
    /// The prefetch buffer beside them.
    pub prefetch: PrefetchSettings,
}

/// The keys of one session: three protections in two directions, and as many again while the keys are changed.
pub const KEYS_OF_SESSION: usize = 12;
/// The contexts that are held at most unless somebody says otherwise: those of a thousand busy sessions, in 3 MiB.
const CONTEXTS_DEFAULT: usize = 4096;
/// The keys that a prefetch buffer holds, unless the cache beside it is smaller.
const BUFFER: usize = 16;

impl KeyStoreSettings {
    /// So many contexts, and a prefetch buffer for when they aren't enough.
    ///
    /// # Errors
    /// [`GeometryError`] if there are none or too many.
    pub fn for_contexts(contexts: usize) -> Result<Self, GeometryError> {
        Ok(Self {
            contexts: Geometry::fully_associative(contexts)?,
            prefetch: PrefetchSettings {
                buffer: BUFFER.min(contexts),
                groups: 64,
                frequent: 2 * BUFFER,
            },
        })
    }

    /// All keys of a few sessions; or those in use of many, and a prefetch buffer, which only helps where keys have to go.
    pub fn for_sessions(sessions: usize) -> Self {
        let keys = sessions.saturating_mul(KEYS_OF_SESSION);
        let settings = Self::for_contexts(keys.clamp(1, CONTEXTS_DEFAULT));
        let settings = settings.expect("it has contexts, and few");
        if keys > CONTEXTS_DEFAULT {
            return settings;
        }
        Self {
            prefetch: PrefetchSettings::NONE,
            ..settings
        }
    }
}
