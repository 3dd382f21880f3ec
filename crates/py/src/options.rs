//! The options of managers and slots, as `python/exoskel/options.py` declares and checks them.

use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::rand;
use exoskel_identity::Role;
use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};
use exoskel_link::{Limits, Protection};
use exoskel_net::key_memory::NodeKeys;
use exoskel_net::manager::LocalTransport;
use exoskel_net::sources::{NodeSources, SessionSettings};
use exoskel_trust::{Document, PolicyFile, Sources, TimedTrust, TrustDirectories};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{ExceptionKind, raise};

/// Links that a peer may open: a manager opens two to a slot, a slot one to its manager.
const LINKS_MAX: u32 = 8;

/// What a process is known by as long as it lives.
fn new_process() -> PyResult<ProcessNumber> {
    let mut random = [0; PROCESS_NUMBER_BYTES];
    rand::fill(&mut random).map_err(|_| PyRuntimeError::new_err("got no random numbers"))?;
    Ok(ProcessNumber::new(random))
}

/// What managers and slots are both told. Everything has a value.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct NodeOptions {
    pub(crate) credential: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) policy: Option<String>,
    pub(crate) revocation_list: Option<String>,
    pub(crate) trust_anchors: Option<String>,
    pub(crate) vomsdir: Option<String>,
    /// In seconds.
    pub(crate) trust_interval: u64,
    /// In seconds.
    pub(crate) dead_after: f64,
    pub(crate) key_memory: Option<String>,
    pub(crate) message_bytes_max: u64,
}

/// What managers are told besides.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ManagerOptions {
    pub(crate) listen: Option<String>,
    pub(crate) transport: String,
    pub(crate) protection: Option<String>,
    pub(crate) retries: u32,
    /// In usual times.
    pub(crate) stragglers: Option<f64>,
    /// In seconds.
    pub(crate) patience: f64,
    /// In seconds.
    pub(crate) connect_timeout: f64,
    pub(crate) ready_keys: usize,
    pub(crate) frame_items_max: u32,
    pub(crate) frame_bytes_max: u64,
    pub(crate) trace: Option<PathBuf>,
}

/// What a node is in its sessions, whatever its options are.
pub(crate) struct SessionPart {
    pub(crate) role: Role,
    /// The role of its peers.
    pub(crate) peers: Role,
    /// The least protection of data.
    pub(crate) minimum: Protection,
    /// How long a handshake may take.
    pub(crate) handshake_time: Duration,
    /// The interpreter's version.
    pub(crate) python: String,
    /// What it says of itself.
    pub(crate) properties: Vec<(String, String)>,
    /// The job that all sessions belong to; 0: each to that of its peer.
    pub(crate) job: u32,
    /// Whether it is willing to share memory with processes of its host.
    pub(crate) shared_memory: bool,
}

impl NodeOptions {
    /// Where the credential is, if an option says that.
    pub(crate) fn credential(&self) -> Option<Document> {
        let path = self.credential.as_ref()?;
        Some(Document::File(path.into()))
    }

    /// What the node brings to its sessions. The policy of the options, if there is one, comes before `policy`.
    ///
    /// # Errors
    /// `CredentialError` for trust directories that can't be read, `ValueError` for a time that is none.
    pub(crate) fn sources(
        &self,
        py: Python<'_>,
        credential: Document,
        policy: Option<Document>,
        part: SessionPart,
        keys: &NodeKeys,
    ) -> PyResult<NodeSources> {
        let file = self.policy.as_ref().map(|path| Document::File(path.into()));
        // Who got its credential from its parent is judged, and judges, by its parent's authority alone.
        let trust = match credential {
            Document::Memory(_) => None,
            Document::File(_) => self.trust(py)?,
        };
        Ok(NodeSources {
            files: Sources {
                credential,
                key: self.key.as_ref().map(Into::into),
                holder: None,
                revocation_list: self.revocation_list.as_ref().map(Into::into),
                trust,
                policy: file.or(policy).map(PolicyFile::new),
            },
            settings: SessionSettings {
                peer_roles: vec![part.peers],
                minimum: part.minimum,
                asks_for_each_link: false,
                limits: Limits {
                    message_bytes_max: self.message_bytes_max,
                    links_max: LINKS_MAX,
                    ..Limits::default()
                },
                dead_after: seconds(self.dead_after)?,
                handshake_time: part.handshake_time,
                versions: vec![
                    ("exoskel".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
                    ("python".to_owned(), part.python),
                ],
                same_versions: vec!["python".to_owned()],
                properties: part.properties,
                keys: keys.store.clone(),
                job: part.job,
                process: new_process()?,
                shared_memory: part.shared_memory,
            },
            role: part.role,
        })
    }

    /// The trust directories that options name: none without a directory of authorities.
    fn trust(&self, py: Python<'_>) -> PyResult<Option<TimedTrust>> {
        let Some(anchors) = &self.trust_anchors else {
            return Ok(None);
        };
        let directories = TrustDirectories {
            anchors: anchors.into(),
            vomsdir: self.vomsdir.as_ref().map(Into::into),
        };
        let interval = Duration::from_secs(self.trust_interval);
        py.detach(|| TimedTrust::open(directories, interval))
            .map(Some)
            .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))
    }
}

impl ManagerOptions {
    /// What carries messages to children.
    ///
    /// # Errors
    /// ``ValueError`` for a word that means none.
    pub(crate) fn transport(&self) -> PyResult<LocalTransport> {
        match self.transport.as_str() {
            "socketpair" => Ok(LocalTransport::Socketpair),
            "tcp" => Ok(LocalTransport::Tcp),
            "shared memory" => Ok(LocalTransport::SharedMemory),
            other => Err(PyValueError::new_err(format!(
                "got transport {other:?}, expected \"socketpair\", \"tcp\" or \"shared memory\""
            ))),
        }
    }

    /// The least protection of everything.
    ///
    /// # Errors
    /// ``ValueError`` for a word that means none.
    pub(crate) fn minimum(&self) -> PyResult<Protection> {
        let text = self.protection.as_deref().unwrap_or("plain");
        text.parse()
            .map_err(|error| PyValueError::new_err(format!("{error}")))
    }
}

/// A time in seconds, as Python has it.
///
/// # Errors
/// ``ValueError`` for a negative number, or none.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!(
            "got {value} seconds, expected a number that is not negative"
        ))
    })
}
