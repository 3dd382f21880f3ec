//! What a process brings to its handshakes, from the options that Python gives.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exoskel_identity::Role;
use exoskel_link::{Limits, Protection};
use exoskel_net::key_memory::NodeKeys;
use exoskel_net::sources::SessionSettings;
use exoskel_trust::{Document, TimedTrust, TrustDirectories};
use pyo3::prelude::*;
use rustls_pki_types::UnixTime;

use crate::error::{Kind, raise};

/// Links that a peer may open: a manager opens two to a slot, a slot one to its manager.
const LINKS_MAX: u32 = 8;

/// The options of sessions, as Python gives them.
pub(crate) struct SessionOptions<'a> {
    pub(crate) peer_role: Role,
    pub(crate) floor: Protection,
    pub(crate) message_bytes_max: u64,
    pub(crate) dead_after: Duration,
    pub(crate) patience: Duration,
    /// The interpreter's version.
    pub(crate) python: String,
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) keys: &'a NodeKeys,
    /// The job that all sessions belong to; 0: each to that of its peer.
    pub(crate) group: u32,
}

impl SessionOptions<'_> {
    pub(crate) fn settings(self) -> SessionSettings {
        SessionSettings {
            peer_roles: vec![self.peer_role],
            floor: self.floor,
            limits: Limits {
                message_bytes_max: self.message_bytes_max,
                links_max: LINKS_MAX,
                ..Limits::default()
            },
            dead_after: self.dead_after,
            patience: self.patience,
            versions: vec![
                ("exoskel".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
                ("python".to_owned(), self.python),
            ],
            same_versions: vec!["python".to_owned()],
            properties: self.properties,
            keys: self.keys.store.clone(),
            group: self.group,
        }
    }
}

/// The trust directories that options name: none without a directory of authorities.
///
/// # Errors
/// `CredentialError` says which directory can't be used.
pub(crate) fn trust(
    py: Python<'_>,
    anchors: Option<String>,
    vomsdir: Option<String>,
    interval_seconds: u64,
) -> PyResult<Option<TimedTrust>> {
    let Some(anchors) = anchors else {
        return Ok(None);
    };
    let directories = TrustDirectories {
        anchors: anchors.into(),
        vomsdir: vomsdir.map(Into::into),
    };
    py.detach(|| TimedTrust::open(directories, Duration::from_secs(interval_seconds)))
        .map(Some)
        .map_err(|error| raise(py, Kind::Credential, error.to_string()))
}

/// The document of which an option says where it is: in a descriptor that was inherited, or in a file.
pub(crate) fn document(
    descriptor: Option<RawFd>,
    path: Option<PathBuf>,
) -> PyResult<Option<Document>> {
    match (descriptor, path) {
        (Some(descriptor), _) => Ok(Some(Document::inherited(take(descriptor))?)),
        (None, Some(path)) => Ok(Some(Document::File(path))),
        (None, None) => Ok(None),
    }
}

/// Takes over a descriptor that was inherited for us alone.
pub(crate) fn take(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the number comes from the arguments that our parent made for this process; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Now, for certificates.
pub(crate) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
