//! What a node brings to all of its handshakes, and how it judges one peer by it: before the session, and again while it runs.

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use exoskel_identity::authorization::Admission;
use exoskel_identity::{
    Credential, Expected, Identity, IdentityError, PeerText, PeerVerifier, Role, VerifiedIdentity,
};
use rustls_pki_types::UnixTime;
use thiserror::Error;

use crate::handshake::{
    MinimumProtections, Offer, Path, ProcessNumber, Statement, shared_memory, stated_role,
};
use crate::keys::{CipherSuite, KeyStore};
use crate::limits::Limits;
use crate::policy::{PlaceProof, Policy, ProtectionVerdict, Raise, Wire, WireEnd, WireNode};
use crate::protection::{Protection, Protections};

/// What this node brings to every handshake.
#[derive(Clone)]
pub struct NodeConfig {
    /// Who we are.
    pub credential: Arc<Credential>,
    /// Who judges the peers.
    pub verifier: Arc<dyn PeerVerifier>,
    /// What wires get.
    pub policy: Arc<Policy>,
    /// The roles a peer may have.
    pub peer_roles: Vec<Role>,
    /// Code and data get at least this, whatever the policy says.
    pub minimum: Protection,
    /// Whether somebody asks [`link_protection`](NodeConfig::link_protection) for each link of our sessions, ours and the peers'. Then
    /// rules about endpoints can ask for less than the class has, and a handshake states the least that any link can get.
    pub asks_for_each_link: bool,
    /// What we are willing to hold.
    pub limits: Limits,
    /// A silent peer is dead after this time.
    pub dead_after: Duration,
    /// How long a handshake may take.
    pub handshake_time: Duration,
    /// Software versions; those named in [`NodeConfig::same_versions`] must agree.
    pub versions: Vec<(String, String)>,
    /// Names of versions that both ends must share.
    pub same_versions: Vec<String>,
    /// The keys of all our sessions.
    pub keys: KeyStore,
    /// The job that we belong to; 0: none.
    pub job: u32,
    /// Which process of our node we are, as long as we live.
    pub process: ProcessNumber,
    /// Whether sessions with processes of this host go through shared memory, where the peer is willing too.
    pub shared_memory: bool,
    /// Anything else, for the peer.
    pub properties: Vec<(String, String)>,
}

/// Our policy doesn't let us do business with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{peer}: {admission}")]
pub struct NotAllowed {
    /// Who it is.
    pub peer: Identity,
    /// What the policy says of it.
    pub admission: Admission,
}

/// Why a running session has to end, when its peer is judged again.
#[derive(Debug, Error)]
pub enum NoLongerGood {
    /// Its certificates don't hold any more.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The policy has changed.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
}

/// What a running session is judged by again.
#[derive(Clone, Debug)]
pub struct PeerRecord {
    /// Who the peer is, with its certificates.
    pub peer: VerifiedIdentity,
    /// How we see the way to it.
    pub path: Path,
    /// What both views of the way prove.
    pub proof: PlaceProof,
    /// Whether we dialled it by its name.
    pub chosen: bool,
}

impl NodeConfig {
    /// What our policy says of a peer before anything else. `chosen` says that we dialled it by its name.
    ///
    /// # Errors
    /// [`NotAllowed`] says which rule is against it.
    pub fn admit(&self, peer: &VerifiedIdentity, chosen: bool) -> Result<(), NotAllowed> {
        let admission = self.policy.admission(peer, chosen);
        if admission.is_allowed() {
            return Ok(());
        }
        Err(NotAllowed {
            peer: peer.identity().clone(),
            admission,
        })
    }

    /// What we bring to an agreement with this peer, which we see over `path`. `ciphers` are those of our records, the fastest on this
    /// processor first.
    pub fn offer(&self, path: Path, ciphers: Vec<CipherSuite>, peer: &VerifiedIdentity) -> Offer {
        let proof = match path {
            Path::SameHost { .. } => PlaceProof::SameHost,
            Path::Network { .. } | Path::Relayed => PlaceProof::Direct,
        };
        let mut properties = stated(&self.properties);
        if self.shared_memory && proof == PlaceProof::SameHost {
            let (name, value) = shared_memory::WILLING;
            properties.push((name.into(), value.into()));
        }
        Offer {
            statement: Statement {
                identity: self.credential.identity(),
                limits: self.limits,
                dead_after: self.dead_after,
                versions: stated(&self.versions),
                path,
                policy_generation: self.policy.generation(),
                job: self.job,
                process: self.process,
                properties,
            },
            minimum: MinimumProtections {
                proven: self.minimum_for(path, peer, proof),
                unproven: self.minimum_for(path, peer, PlaceProof::Unproven),
            },
            ciphers,
            same_versions: self.same_versions.clone(),
        }
    }

    /// Judges the peer of a running session by this config, which has changed since the session began. Gives what the policy wants now at
    /// least.
    ///
    /// # Errors
    /// Why the session has to end.
    pub fn judge_again(
        &self,
        record: &PeerRecord,
        now: UnixTime,
    ) -> Result<Protections, NoLongerGood> {
        let expected = Expected {
            roles: &[record.peer.role()],
            name: Some(record.peer.name()),
        };
        let peer = self.verifier.verify(record.peer.chain(), now, &expected)?;
        self.admit(&peer, record.chosen)?;
        Ok(self.minimum_for(record.path, &peer, record.proof))
    }

    /// A peer as what it states to be in its Hello, where its certificate may stand for that role and we expect it. Otherwise it stays
    /// what it was found to be, and the handshake refuses a statement that says something else.
    ///
    /// # Security
    /// The peer chooses among the roles of [`VerifiedIdentity::in_role`]: admit it after this.
    #[must_use]
    pub fn in_stated_role(&self, peer: VerifiedIdentity, hello: &[u8]) -> VerifiedIdentity {
        let stated = stated_role(hello).filter(|role| self.peer_roles.contains(role));
        stated.and_then(|role| peer.in_role(role)).unwrap_or(peer)
    }

    /// Which protection our policy and our settings want at least for a link to an endpoint of this name with the peer of a running
    /// session.
    pub fn link_protection(&self, record: &PeerRecord, endpoint: &str) -> Protection {
        self.link_verdict(record, endpoint).protection
    }

    /// As [`link_protection`](Self::link_protection), with the reasons.
    pub fn link_verdict(&self, record: &PeerRecord, endpoint: &str) -> ProtectionVerdict {
        let mut verdict = self.on_wire(record.path, &record.peer, record.proof, |wire| {
            self.policy.link_protection(wire, endpoint)
        });
        verdict.raise(self.minimum, Raise::Setting);
        verdict
    }

    /// The trust domain that a peer is certain to be in, if it is in one.
    pub fn domain(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> Option<String> {
        self.on_wire(path, peer, proof, |wire| {
            let domains = self.policy.remote_domains(wire);
            domains.first().map(|&domain| domain.to_owned())
        })
    }

    /// Whether a node of this name at this address would be in a trusted domain if it proves both: what to expect before it has.
    #[must_use]
    pub fn expects_in_domain(&self, name: &str, address: IpAddr) -> bool {
        let node = WireNode {
            name,
            subject: None,
            is_independent: false,
        };
        let wire = Wire {
            local: WireEnd::default(),
            remote: WireEnd {
                address: Some(address),
                node: Some(node),
            },
            proof: PlaceProof::Direct,
        };
        !self.policy.remote_domains(&wire).is_empty()
    }

    /// Whether what a peer sends may be unpickled without restrictions: see [`Policy::results_pickle`].
    pub fn trusts_results(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> bool {
        self.on_wire(path, peer, proof, |wire| self.policy.results_pickle(wire))
    }

    /// The least that our policy allows for each class on this wire.
    fn minimum_for(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> Protections {
        let minimum = self.on_wire(path, peer, proof, |wire| match self.asks_for_each_link {
            true => self.policy.least_protections(wire),
            false => self.policy.protections(wire),
        });
        // Whoever forwards is to see nothing, whatever rules say of wires to anybody.
        if path == Path::Relayed {
            return Protections::all(Protection::Encrypted);
        }
        Protections {
            code: minimum.code.max(self.minimum),
            data: minimum.data.max(self.minimum),
            ..minimum
        }
    }

    fn on_wire<T>(
        &self,
        path: Path,
        peer: &VerifiedIdentity,
        proof: PlaceProof,
        ask: impl FnOnce(&Wire<'_>) -> T,
    ) -> T {
        let (local, remote) = match path {
            Path::Network { local, remote } => (Some(local.ip()), Some(remote.ip())),
            Path::SameHost { .. } | Path::Relayed => (None, None),
        };
        let own = self.credential.identity();
        ask(&Wire {
            local: WireEnd {
                address: local,
                node: Some(WireNode {
                    name: &own.name,
                    subject: self.credential.grid_subject(),
                    // Whatever we are, we are at our own end of the wire.
                    is_independent: false,
                }),
            },
            remote: WireEnd {
                address: remote,
                node: Some(WireNode::from(peer)),
            },
            proof,
        })
    }
}

/// Statements of ours as they travel.
fn stated(pairs: &[(String, String)]) -> Vec<(PeerText, PeerText)> {
    let pair = |(name, value): &(String, String)| (name.as_str().into(), value.as_str().into());
    pairs.iter().map(pair).collect()
}
