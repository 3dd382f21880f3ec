//! The time by which certificates are judged.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::UnixTime;

/// Now.
pub(crate) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
