//! The time by which certificates are judged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::UnixTime;

/// Now.
pub(crate) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(since_1970())
}

/// Now, more finely.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
