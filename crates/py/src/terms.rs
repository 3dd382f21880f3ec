//! What a node brings to its handshakes: when it isn't there, and the time by which it is judged.

use std::time::{SystemTime, UNIX_EPOCH};

use exoskel_net::sources::TermsError;
use pyo3::prelude::*;
use rustls_pki_types::UnixTime;

use crate::error::{Kind, raise};

/// The exception for files that can't be used.
pub(crate) fn raise_terms(py: Python<'_>, error: &TermsError) -> PyErr {
    let kind = match error {
        TermsError::Credential(_) | TermsError::Trust(_) => Kind::Credential,
        TermsError::PolicyFile(_) | TermsError::Policy { .. } => Kind::Policy,
    };
    raise(py, kind, error.to_string())
}

/// Now, for certificates.
pub(crate) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
