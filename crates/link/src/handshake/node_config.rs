//! What a node brings to all of its handshakes, and how it judges one peer by it: before the session, and again while it runs.

use core::time::Duration;
use std::sync::Arc;

use exoskel_identity::{
    Credential, Expected, Identity, IdentityError, PeerText, PeerVerifier, Role, VerifiedIdentity,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use thiserror::Error;

use crate::handshake::{MinimumProtections, Offer, Path, Statement};
use crate::keys::{CipherSuite, KeyStore};
use crate::limits::Limits;
use crate::policy::{PlaceProof, Policy, Wire, WireEnd, WireNode};
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
    /// What we are willing to hold.
    pub limits: Limits,
    /// A silent peer is dead after this time.
    pub dead_after: Duration,
    /// How long a handshake may take.
    pub patience: Duration,
    /// Software versions; those named in [`NodeConfig::same_versions`] must agree.
    pub versions: Vec<(String, String)>,
    /// Names of versions that both ends must share.
    pub same_versions: Vec<String>,
    /// The keys of all our sessions.
    pub keys: KeyStore,
    /// The job that we belong to; 0: none.
    pub job: u32,
    /// Anything else, for the peer.
    pub properties: Vec<(String, String)>,
}

/// Our policy doesn't let us do business with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotAllowed(String);

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
    /// Who the peer is.
    pub identity: Identity,
    /// Its certificates as presented, leaf first, DER.
    pub chain: Vec<Vec<u8>>,
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
        Err(NotAllowed(format!("{}: {admission}", peer.identity())))
    }

    /// What we bring to an agreement with this peer, which we see over `path`. `ciphers` are those of our records, the fastest on this
    /// processor first.
    pub fn offer(&self, path: Path, ciphers: Vec<CipherSuite>, peer: &VerifiedIdentity) -> Offer {
        let proof = match path {
            Path::SameHost { .. } => PlaceProof::SameHost,
            Path::Network { .. } | Path::Relayed => PlaceProof::Direct,
        };
        Offer {
            statement: Statement {
                identity: self.credential.identity(),
                limits: self.limits,
                dead_after: self.dead_after,
                versions: stated(&self.versions),
                path,
                policy_generation: self.policy.generation(),
                job: self.job,
                properties: stated(&self.properties),
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
        let certificates = record.chain.iter().map(Vec::as_slice);
        let chain: Vec<CertificateDer<'_>> = certificates.map(CertificateDer::from).collect();
        let expected = Expected {
            roles: &[record.identity.role],
            name: Some(&record.identity.name),
        };
        let peer = self.verifier.verify(&chain, now, &expected)?;
        self.admit(&peer, record.chosen)?;
        Ok(self.minimum_for(record.path, &peer, record.proof))
    }

    /// The trust domain that a peer is certain to be in, if it is in one.
    pub fn domain(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> Option<String> {
        self.on_wire(path, peer, proof, |wire| {
            let domains = self.policy.remote_domains(wire);
            domains.first().map(|&domain| domain.to_owned())
        })
    }

    /// Whether what a peer sends may be unpickled without restrictions: see [`Policy::results_pickle`].
    pub fn trusts_results(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> bool {
        self.on_wire(path, peer, proof, |wire| self.policy.results_pickle(wire))
    }

    /// The least that our policy allows for each class on this wire.
    fn minimum_for(&self, path: Path, peer: &VerifiedIdentity, proof: PlaceProof) -> Protections {
        let minimum = self.on_wire(path, peer, proof, |wire| self.policy.protections(wire));
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
