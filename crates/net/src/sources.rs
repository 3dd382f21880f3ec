//! What a node brings to its handshakes, made from files and kept current.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exoskel_identity::{Credential, PeerVerifier, Role};
use exoskel_link::keys::KeyStore;
use exoskel_link::policy::{Policy, PolicyError};
use exoskel_link::{Limits, Protection};
use exoskel_trust::{CredentialSourceError, PolicyFile, PolicyFileError, SourceChanges, Sources};
use rustls::pki_types::UnixTime;

use exoskel_link::handshake::{NodeConfig, ProcessNumber};

/// How often credential, policy and revocation list are looked at.
pub const RENEWAL_TIME: Duration = Duration::from_secs(2);

/// Settings of sessions that stand in no file.
#[derive(Clone)]
pub struct SessionSettings {
    /// The roles a peer may have.
    pub peer_roles: Vec<Role>,
    /// Nothing of class data goes below this, whatever the policy says.
    pub minimum: Protection,
    /// Whether somebody asks for the protection of each link: see [`NodeConfig::asks_for_each_link`].
    pub asks_for_each_link: bool,
    /// What we are willing to hold.
    pub limits: Limits,
    /// A silent peer is dead after this time.
    pub dead_after: Duration,
    /// How long a handshake may take.
    pub handshake_time: Duration,
    /// Software versions; those named in `same_versions` must agree.
    pub versions: Vec<(String, String)>,
    /// Names of versions that both ends must share.
    pub same_versions: Vec<String>,
    /// Anything else, for the peer.
    pub properties: Vec<(String, String)>,
    /// The keys of all our sessions.
    pub keys: KeyStore,
    /// The job that all sessions belong to; 0: each to that of its peer.
    pub job: u32,
    /// Which process of its node this is.
    pub process: ProcessNumber,
    /// Whether sessions with processes of this host go through shared memory, where the peer is willing too.
    pub shared_memory: bool,
}

/// A node's files, and the settings beside them.
#[derive(Clone)]
pub struct NodeSources {
    /// Who the node is, whom it trusts, and what its policy says.
    pub files: Sources,
    /// What no file says.
    pub settings: SessionSettings,
    /// What the node's own credential must be for.
    pub role: Role,
}

/// Why a node has no terms. Whoever wrote the files must act.
#[derive(Debug, thiserror::Error)]
pub enum NodeConfigError {
    /// The credential, or whom to trust.
    #[error(transparent)]
    Credential(#[from] CredentialSourceError),
    /// The policy, or the ban list that it names, can't be read.
    #[error(transparent)]
    PolicyFile(#[from] PolicyFileError),
    /// A file that says something else than a policy or a ban list.
    #[error("{file}{}{reason}", if .reason.line.is_some() { ", " } else { ": " })]
    Policy {
        /// What it is called.
        file: String,
        /// Where and what.
        reason: Box<PolicyError>,
    },
    /// Trust directories that can't be read again, one sentence each. Their last good state is kept.
    #[error("{}", .0.join("; "))]
    Trust(Vec<String>),
}

impl NodeSources {
    /// The node's terms as the files have it now. Our own credential must be one that peers will accept.
    ///
    /// # Errors
    /// [`NodeConfigError`] names the file, and says what was expected.
    pub fn terms(&self) -> Result<NodeConfig, NodeConfigError> {
        let (credential, verifier) = self.files.credential(self.role, now())?;
        let policy = match &self.files.policy {
            Some(file) => policy(file)?,
            None => Policy::builtin(),
        };
        Ok(self.settings.terms(credential, verifier, policy))
    }

    /// Makes new terms from now on when a file has changed, or whom we trust.
    #[must_use]
    pub fn renewal(self) -> NodeConfigRenewal {
        NodeConfigRenewal {
            changes: self.files.changes(),
            sources: self,
        }
    }
}

/// What a node brings to its next handshake: what its files say, or said when they could last be read.
pub struct CurrentConfig {
    sources: NodeSources,
    last: NodeConfig,
    /// Why the files can't be read, since they can't.
    fault: Option<String>,
}

impl CurrentConfig {
    /// That of files that can be read now.
    ///
    /// # Errors
    /// As [`NodeSources::terms`].
    pub fn new(sources: NodeSources) -> Result<Self, NodeConfigError> {
        let last = sources.terms()?;
        Ok(Self {
            sources,
            last,
            fault: None,
        })
    }

    /// Looks for changes of what the config is made of, from now on.
    #[must_use]
    pub fn renewal(&self) -> NodeConfigRenewal {
        self.sources.clone().renewal()
    }

    /// The config that was read last.
    #[must_use]
    pub fn last(&self) -> &NodeConfig {
        &self.last
    }

    /// The config, and what there is to tell the node's owner: that the files can't be read, once, or can be read again.
    pub fn read(&mut self) -> (NodeConfig, Option<String>) {
        let news = match self.sources.terms() {
            Ok(config) => {
                self.last = config;
                let fault = self.fault.take();
                fault.map(|_| "credential and policy can be read again".to_owned())
            }
            Err(error) => {
                let fault = error.to_string();
                let is_new = self.fault.as_ref() != Some(&fault);
                let news = is_new.then(|| format!("{fault}; what was in force before stays"));
                self.fault = Some(fault);
                news
            }
        };
        (self.last.clone(), news)
    }
}

/// Makes new terms when what they are made of has changed.
pub struct NodeConfigRenewal {
    sources: NodeSources,
    changes: SourceChanges,
}

impl NodeConfigRenewal {
    /// New terms in any case, read now.
    ///
    /// # Errors
    /// As [`NodeSources::terms`], and for trust directories that can't be read: the old ones stay in force.
    pub fn read_again(&mut self) -> Result<NodeConfig, NodeConfigError> {
        let renewal = self.changes.look();
        if renewal.faults.is_empty() {
            self.sources.terms()
        } else {
            Err(NodeConfigError::Trust(renewal.faults))
        }
    }

    /// New terms, if anything has changed since the last time. An error leaves the old ones in force.
    pub fn renew(&mut self) -> Option<Result<NodeConfig, NodeConfigError>> {
        let renewal = self.changes.look();
        if renewal.changed {
            return Some(self.sources.terms());
        }
        (!renewal.faults.is_empty()).then_some(Err(NodeConfigError::Trust(renewal.faults)))
    }
}

impl SessionSettings {
    /// NodeConfig with this credential, this judge of peers and this policy.
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
            minimum: self.minimum,
            asks_for_each_link: self.asks_for_each_link,
            limits: self.limits,
            dead_after: self.dead_after,
            handshake_time: self.handshake_time,
            versions: self.versions.clone(),
            same_versions: self.same_versions.clone(),
            keys: self.keys.clone(),
            job: self.job,
            process: self.process,
            shared_memory: self.shared_memory,
            properties,
        }
    }
}

fn policy(file: &PolicyFile) -> Result<Policy, NodeConfigError> {
    let refused = |file: String| {
        |reason: PolicyError| NodeConfigError::Policy {
            file,
            reason: Box::new(reason),
        }
    };
    let policy = Policy::parse(&file.text()?, 1).map_err(refused(file.name()))?;
    let Some(list) = file.read_ban_list(policy.authorization())? else {
        return Ok(policy);
    };
    let named = format!("the ban list {}", list.path.display());
    let banning = policy.with_bans(&list.text).map_err(PolicyError::from);
    banning.map_err(refused(named))
}

/// Now, for certificates.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}
