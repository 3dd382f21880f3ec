//! The options of managers and slots, as `python/exoskel/options.py` declares and checks them.

use std::path::PathBuf;
use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_net::key_memory::NodeKeys;
use exoskel_net::manager::LocalTransport;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::terms::{Place, SessionSettings, Sources, grid};

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
    /// In seconds.
    pub(crate) connect_timeout: f64,
    pub(crate) ready_keys: usize,
    pub(crate) frame_items_max: u32,
    pub(crate) trace: Option<PathBuf>,
}

/// What a node brings to its sessions that no option says.
pub(crate) struct Part {
    pub(crate) peer_roles: Vec<Role>,
    pub(crate) minimum: Protection,
    pub(crate) patience: Duration,
    /// Its version.
    pub(crate) python: String,
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) keys: NodeKeys,
    pub(crate) group: u32,
}

impl NodeOptions {
    /// Who the node is and whom it trusts: by the files that are named, but for a credential and a policy that it was given otherwise.
    ///
    /// # Errors
    /// ``CredentialError`` for trust directories that can't be read, or without any credential.
    pub(crate) fn sources(
        &self,
        py: Python<'_>,
        credential: Option<Place>,
        policy: Option<Place>,
        no_credential: impl FnOnce() -> PyErr,
    ) -> PyResult<Sources> {
        let file = |path: &Option<String>| path.clone().map(Place::File);
        let (anchors, vomsdir) = (self.trust_anchors.clone(), self.vomsdir.clone());
        // A process that got its credential from its parent is judged, and judges, by its parent's authority.
        let is_child = credential.is_some();
        let grid = (!is_child)
            .then(|| py.detach(|| grid(anchors, vomsdir, self.trust_interval)))
            .transpose()
            .map_err(|error| error.raise(py))?;
        Ok(Sources {
            credential: credential
                .or_else(|| file(&self.credential))
                .ok_or_else(no_credential)?,
            key: self.key.clone(),
            policy: file(&self.policy).or(policy),
            revocation_list: self.revocation_list.clone(),
            grid: grid.flatten(),
        })
    }

    /// What its sessions have in common.
    ///
    /// # Errors
    /// ``ValueError`` for a time that is none.
    pub(crate) fn sessions(&self, part: Part) -> PyResult<SessionSettings> {
        Ok(SessionSettings {
            peer_roles: part.peer_roles,
            floor: part.minimum,
            message_bytes_max: self.message_bytes_max,
            dead_after: seconds(self.dead_after)?,
            patience: part.patience,
            python: part.python,
            properties: part.properties,
            keys: part.keys,
            group: part.group,
        })
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
            other => Err(PyValueError::new_err(format!(
                "got transport {other:?}, expected \"socketpair\" or \"tcp\""
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
