//! What a process brings to its handshakes, from the options that Python gives.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exoskel_identity::{
    Credential, CredentialKind, DecisionCacheLimits, GridSettings, PeerVerifier, Role,
};
use exoskel_link::policy::Policy;
use exoskel_link::{Limits, Protection};
use exoskel_net::establish::{NodeConfig, Renewal};
use exoskel_net::key_memory::NodeKeys;
use exoskel_net::pki::{read_credential, read_credential_and_key, read_revocation_lists};
use exoskel_trust::{Trust, TrustDirectories};
use pyo3::prelude::*;
use rustls_pki_types::UnixTime;

use crate::error::{Kind, raise};

/// Links that a peer may open: a manager opens two to a slot, a slot one to its manager.
const LINKS_MAX: u32 = 8;

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
    pub(crate) keys: NodeKeys,
    /// The job that all sessions belong to; 0: each to that of its peer.
    pub(crate) group: u32,
}

impl SessionSettings {
    /// A config with this credential, this judge of peers and this policy.
    fn terms(
        &self,
        credential: Credential,
        verifier: Arc<dyn PeerVerifier>,
        policy: Policy,
    ) -> NodeConfig {
        let mut properties = self.properties.clone();
        properties.push(("pid".to_owned(), std::process::id().to_string()));
        NodeConfig {
            credential: Arc::new(credential),
            verifier,
            policy: Arc::new(policy),
            peer_roles: self.peer_roles.clone(),
            minimum: self.floor,
            limits: Limits {
                message_bytes_max: self.message_bytes_max,
                links_max: LINKS_MAX,
                ..Limits::default()
            },
            dead_after: self.dead_after,
            patience: self.patience,
            versions: vec![
                ("exoskel".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
                ("python".to_owned(), self.python.clone()),
            ],
            same_versions: vec!["python".to_owned()],
            keys: self.keys.store.clone(),
            job: self.group,
            properties,
        }
    }
}

/// Where a credential or a policy is read from.
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

    fn path(&self) -> Option<&str> {
        match self {
            Self::File(path) => Some(path),
            Self::Memory(_) => None,
        }
    }
}

/// What a node is told by files: who it is, whom it trusts, what wires get. Read anew when it changes.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) credential: Place,
    pub(crate) policy: Option<Place>,
    /// The key of a credential that doesn't hold it.
    pub(crate) key: Option<String>,
    /// A newer revocation list than the one in the credential.
    pub(crate) revocation_list: Option<String>,
    /// Whom to trust, where that isn't the credential's own authority.
    pub(crate) grid: Option<Grid>,
}

/// The trust directories of a grid: with them peers are judged by these, and not by the credential's own authority.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    trust: Arc<Trust>,
    interval: Duration,
    /// When the directories were last looked at, by whichever copy of this.
    looked: Arc<Mutex<Instant>>,
}

impl Grid {
    /// Reads the directories.
    ///
    /// # Errors
    /// The text says which one can't be used.
    fn open(
        anchors: String,
        vomsdir: Option<String>,
        interval: Duration,
    ) -> Result<Self, SourceError> {
        let directories = TrustDirectories {
            anchors: anchors.into(),
            vomsdir: vomsdir.map(Into::into),
        };
        let cache = DecisionCacheLimits::default();
        let trust = Trust::open(directories, GridSettings::default(), cache)
            .map_err(|error| SourceError::Credential(error.to_string()))?;
        Ok(Self {
            trust,
            interval,
            looked: Arc::new(Mutex::new(Instant::now())),
        })
    }

    /// Reads the directories again, once in an interval. What could not be read is returned; its last good state is kept.
    fn look(&self) -> Vec<String> {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < self.interval {
            return Vec::new();
        }
        *looked = Instant::now();
        self.trust.reload().faults
    }

    fn generation(&self) -> u64 {
        self.trust.generation()
    }
}

/// The grid that options name: none without a directory of authorities.
///
/// # Errors
/// The text says which directory can't be used.
pub(crate) fn grid(
    anchors: Option<String>,
    vomsdir: Option<String>,
    interval_seconds: u64,
) -> Result<Option<Grid>, SourceError> {
    anchors
        .map(|anchors| Grid::open(anchors, vomsdir, Duration::from_secs(interval_seconds)))
        .transpose()
}

/// Why the sources can't be used.
pub(crate) enum SourceError {
    Credential(String),
    Policy(String),
}

impl SourceError {
    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Credential(text) => raise(py, Kind::Credential, text),
            Self::Policy(text) => raise(py, Kind::Policy, text),
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::Credential(text) | Self::Policy(text) => text,
        }
    }
}

impl Sources {
    /// The config as the sources have it now; our own credential must be one that peers will accept.
    pub(crate) fn terms(
        &self,
        settings: &SessionSettings,
        role: Role,
    ) -> Result<NodeConfig, SourceError> {
        let failed = SourceError::Credential;
        let credential = self.credential()?;
        let own = credential.identity().role;
        if own != role {
            return Err(failed(match credential.kind() {
                CredentialKind::Private => format!(
                    "got the credential of a {own}, expected a {role}'s (exoskel pki issue --role {role})"
                ),
                CredentialKind::Grid => format!(
                    "got the grid credential of a {own}, expected a {role}'s: a worker has a host certificate with its DNS \
                     names, a manager a proxy or a person's certificate"
                ),
            }));
        }
        let verifier: Arc<dyn PeerVerifier> = match &self.grid {
            Some(grid) => {
                // What can't be read keeps its last good state; the renewal says so.
                grid.look();
                grid.trust.clone()
            }
            None if credential.kind() == CredentialKind::Grid => {
                return Err(failed(
                    "got a grid credential and no directory of authorities by which to judge peers, expected --trust-anchors \
                     (trust_anchors= of a manager)"
                        .to_owned(),
                ));
            }
            None => {
                let authority = credential.authority(0);
                Arc::new(authority.map_err(|error| failed(error.to_string()))?)
            }
        };
        // With a private authority beside a grid, only peers know whether they accept the own credential.
        if self.grid.is_none() || credential.kind() == CredentialKind::Grid {
            credential
                .verify_own(&*verifier, now())
                .map_err(|error| failed(format!("our own credential: {error}")))?;
        }
        Ok(settings.terms(credential, verifier, self.policy()?))
    }

    /// Makes new terms when one of the files has changed, or whom we trust.
    pub(crate) fn renewal(self, settings: SessionSettings, role: Role) -> Renewal {
        let state = |sources: &Self, ban_list: Option<&Path>| {
            let generation = sources.grid.as_ref().map(Grid::generation);
            (sources.stamps(ban_list), generation)
        };
        let mut ban_list = self.ban_list();
        let mut seen = state(&self, ban_list.as_deref());
        Box::new(move || {
            let faults = self.grid.as_ref().map(Grid::look).unwrap_or_default();
            if state(&self, ban_list.as_deref()) == seen {
                return (!faults.is_empty()).then(|| Err(faults.join("; ")));
            }
            ban_list = self.ban_list();
            seen = state(&self, ban_list.as_deref());
            Some(self.terms(&settings, role).map_err(SourceError::text))
        })
    }

    fn credential(&self) -> Result<Credential, SourceError> {
        let failed = |text: String| SourceError::Credential(text);
        let read = match (&self.credential, &self.key) {
            (Place::File(path), None) => read_credential(path).map_err(|error| error.to_string()),
            (Place::File(path), Some(key)) => {
                read_credential_and_key(path, key).map_err(|error| error.to_string())
            }
            (Place::Memory(pem), _) => Credential::from_pem(pem).map_err(|error| error.to_string()),
        };
        let mut credential = read.map_err(failed)?;
        if let Some(path) = &self.revocation_list {
            let lists = read_revocation_lists(path).map_err(|error| failed(error.to_string()))?;
            credential
                .add_revocation_lists(lists)
                .map_err(|error| failed(format!("{path}: {error}")))?;
        }
        Ok(credential)
    }

    fn policy(&self) -> Result<Policy, SourceError> {
        let policy = self.policy_file()?;
        let Some(path) = self.ban_list_of(&policy) else {
            return Ok(policy);
        };
        let failed = |reason: String| {
            SourceError::Policy(format!("the ban list {}: {reason}", path.display()))
        };
        let list = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        policy
            .with_bans(&list)
            .map_err(|error| failed(error.to_string()))
    }

    /// Where the policy's ban list is: beside the policy, unless its path is absolute.
    fn ban_list_of(&self, policy: &Policy) -> Option<PathBuf> {
        let list = Path::new(policy.authorization().ban_list()?);
        let beside = self.policy.as_ref().and_then(Place::path);
        let directory = beside.and_then(|path| Path::new(path).parent());
        Some(directory.map_or_else(|| list.to_owned(), |directory| directory.join(list)))
    }

    fn ban_list(&self) -> Option<PathBuf> {
        let policy = self.policy_file().ok()?;
        self.ban_list_of(&policy)
    }

    fn policy_file(&self) -> Result<Policy, SourceError> {
        let (name, text) = match &self.policy {
            None => return Ok(Policy::builtin()),
            Some(Place::File(path)) => {
                let text = std::fs::read_to_string(path);
                (
                    path.as_str(),
                    text.map_err(|error| {
                        SourceError::Policy(format!("can't read the policy {path}: {error}"))
                    })?,
                )
            }
            Some(Place::Memory(text)) => ("policy", String::from_utf8_lossy(text).into_owned()),
        };
        Policy::parse(&text, 1).map_err(|error| SourceError::Policy(format!("{name}: {error}")))
    }

    /// Changes whenever a file does: time of change, size and inode.
    fn stamps(&self, ban_list: Option<&Path>) -> Vec<Option<(i64, i64, u64, u64)>> {
        let paths = [
            self.credential.path().map(Path::new),
            self.key.as_deref().map(Path::new),
            self.policy.as_ref().and_then(Place::path).map(Path::new),
            self.revocation_list.as_deref().map(Path::new),
            ban_list,
        ];
        let stamp = |path: &Path| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.ctime(), data.ctime_nsec(), data.size(), data.ino()))
        };
        paths.into_iter().map(|path| path.and_then(stamp)).collect()
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
