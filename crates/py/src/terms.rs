//! What a process brings to its handshakes, from the options that Python gives.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exoskel_identity::{Credential, Role};
use exoskel_link::policy::Policy;
use exoskel_link::{Limits, Protection};
use exoskel_node::establish::Terms;
use exoskel_node::pki::read_credential;
use rustls_pki_types::UnixTime;

/// Settings of sessions that don't depend on the peer.
#[derive(Clone)]
pub(crate) struct SessionSettings {
    pub(crate) peer_roles: Vec<Role>,
    pub(crate) floor: Protection,
    pub(crate) message_bytes_max: u64,
    pub(crate) dead_after: Duration,
    pub(crate) patience: Duration,
    pub(crate) python: String,
    pub(crate) properties: Vec<(String, String)>,
}

impl SessionSettings {
    /// Terms with this credential and policy.
    ///
    /// # Errors
    /// When the credential's own authority can't be used; the text says why.
    pub(crate) fn terms(&self, credential: Credential, policy: Policy) -> Result<Terms, String> {
        let verifier = credential.authority(0).map_err(|error| error.to_string())?;
        let mut properties = self.properties.clone();
        properties.push(("pid".to_owned(), std::process::id().to_string()));
        Ok(Terms {
            credential: Arc::new(credential),
            verifier: Arc::new(verifier),
            policy: Arc::new(policy),
            peer_roles: self.peer_roles.clone(),
            floor: self.floor,
            limits: Limits {
                message_bytes_max: self.message_bytes_max,
                ..Limits::default()
            },
            dead_after: self.dead_after,
            patience: self.patience,
            versions: vec![
                ("exoskel".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
                ("python".to_owned(), self.python.clone()),
            ],
            same_versions: vec!["python".to_owned()],
            group: 0,
            properties,
        })
    }
}

/// Where a credential or a policy is read from, each time it is needed.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    File(String),
    Memory(Vec<u8>),
}

impl Place {
    /// Reads an inherited descriptor to its end and closes it.
    pub(crate) fn inherited(descriptor: RawFd) -> std::io::Result<Self> {
        let mut file = std::fs::File::from(take(descriptor));
        let mut contents = Vec::new();
        file.read_to_end(&mut contents)?;
        Ok(Self::Memory(contents))
    }

    pub(crate) fn credential(&self) -> Result<Credential, String> {
        match self {
            Self::File(path) => read_credential(path).map_err(|error| error.to_string()),
            Self::Memory(pem) => Credential::from_pem(pem).map_err(|error| error.to_string()),
        }
    }

    pub(crate) fn policy(&self) -> Result<Policy, String> {
        let text = match self {
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| format!("can't read the policy {path}: {error}"))?,
            Self::Memory(text) => String::from_utf8_lossy(text).into_owned(),
        };
        Policy::parse(&text, 1).map_err(|error| error.to_string())
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
