//! What the two sides' offers come to, and the client's check of it.

use core::time::Duration;

use exoskel_identity::{Identity, PeerText};

use crate::handshake::{Accept, HandshakeError, Hello, Refuse, RefuseReason, Statement};
use crate::keys::CipherSuite;
use crate::policy::PlaceProof;
use crate::protection::{Protection, Protections};
use crate::session::{SessionConfig, Side};

/// What one side brings to an agreement with one peer, whichever side it is.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What it says of itself.
    pub statement: Statement,
    /// The least protections that its policy allows for this peer.
    pub minimum: MinimumProtections,
    /// The ciphers it can use, the preferred one first.
    pub ciphers: Vec<CipherSuite>,
    /// Names of versions that both sides must share.
    pub same_versions: Vec<String>,
}

/// The least protections by class that one side's policy allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumProtections {
    /// If both ends prove to see the same way.
    pub proven: Protections,
    /// If they don't.
    pub unproven: Protections,
}

impl MinimumProtections {
    /// What holds for what the two views prove.
    pub fn for_proof(self, proof: PlaceProof) -> Protections {
        let minimum = match proof {
            PlaceProof::SameHost | PlaceProof::Direct => self.proven,
            PlaceProof::Unproven => self.unproven.stricter(self.proven),
        };
        minimum.stricter(universal_minimum(proof))
    }
}

impl Offer {
    /// What doesn't agree of the versions that must.
    pub(super) fn mismatch(&self, peer: &Statement) -> Result<(), HandshakeError> {
        let own = &self.statement.versions;
        for name in &self.same_versions {
            let version_in = |versions: &[(PeerText, PeerText)]| {
                let found = versions.iter().find(|(of, _)| of.is(name));
                found.map_or_else(|| "none".into(), |(_, version)| version.clone())
            };
            let (got, expected) = (version_in(&peer.versions), version_in(own));
            if got != expected {
                return Err(HandshakeError::Version {
                    of: name.clone(),
                    got,
                    expected: expected.raw_for_comparison().to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// What no policy can go below: between hosts nobody on the wire may alter what is executed, nor read or alter what steers.
fn universal_minimum(proof: PlaceProof) -> Protections {
    match proof {
        PlaceProof::SameHost => Protections::all(Protection::Plain),
        PlaceProof::Direct | PlaceProof::Unproven => Protections {
            control: Protection::Encrypted,
            code: Protection::Integrity,
            data: Protection::Plain,
        },
    }
}

/// The server's decision: the stricter of both sides' minimum protections. Gives what the two views prove, too.
///
/// `certified` is the client's identity as its certificate proves it.
///
/// # Errors
/// The refusal to send, when the claim and the certificate disagree or no cipher is common to both.
pub fn accept(
    hello: &Hello,
    certified: &Identity,
    offer: Offer,
) -> Result<(Accept, PlaceProof), Refuse> {
    if hello.statement.identity != *certified {
        let error = HandshakeError::Identity {
            claimed: hello.statement.identity.clone(),
            certified: certified.clone(),
        };
        return Err(error.refusal());
    }
    let Some(cipher) = common_cipher(&hello.ciphers, &offer.ciphers) else {
        return Err(Refuse {
            reason: RefuseReason::Cipher,
            text: "no cipher in common: update the older of the two installations".into(),
        });
    };
    let proof = offer.statement.path.proof(hello.statement.path);
    let own = offer.minimum.for_proof(proof);
    let accept = Accept {
        statement: offer.statement,
        protections: own.stricter(hello.minimum.for_proof(proof)),
        cipher,
    };
    Ok((accept, proof))
}

/// The cipher that both prefer; if they differ, the one that is fast without special hardware, because one of them
/// lacks it.
fn common_cipher(client: &[CipherSuite], server: &[CipherSuite]) -> Option<CipherSuite> {
    let common = |cipher: &&CipherSuite| server.contains(cipher);
    let ours = server.iter().find(|cipher| client.contains(cipher))?;
    let theirs = client.iter().find(common)?;
    if ours == theirs {
        return Some(*ours);
    }
    Some(CipherSuite::ChaCha20Poly1305)
}

/// The client's check of what the server decided; gives what the two views prove. `certified` is the server's identity
/// as its certificate proves it.
///
/// # Errors
/// [`HandshakeError::Downgrade`] when Accept is weaker than the client's own minimum for this way,
/// [`HandshakeError::Identity`] or [`HandshakeError::CipherNotOffered`] when it does not fit otherwise.
pub fn check_accept(
    hello: &Hello,
    accept: &Accept,
    certified: &Identity,
) -> Result<PlaceProof, HandshakeError> {
    if accept.statement.identity != *certified {
        return Err(HandshakeError::Identity {
            claimed: accept.statement.identity.clone(),
            certified: certified.clone(),
        });
    }
    if !hello.ciphers.contains(&accept.cipher) {
        return Err(HandshakeError::CipherNotOffered);
    }
    let proof = hello.statement.path.proof(accept.statement.path);
    let expected = hello.minimum.for_proof(proof);
    if !accept.protections.satisfies(expected) {
        return Err(HandshakeError::Downgrade {
            got: accept.protections,
            expected,
        });
    }
    Ok(proof)
}

/// The least time that two sides agree on, whatever they state. A heartbeat comes four times in it.
const DEAD_AFTER_MIN: Duration = Duration::from_millis(100);

/// The configuration of the session that follows, for either side.
pub fn session_config(side: Side, hello: &Hello, accept: &Accept) -> SessionConfig {
    let (own, peer) = match side {
        Side::Client => (&hello.statement, &accept.statement),
        Side::Server => (&accept.statement, &hello.statement),
    };
    // One time for both: a side that waits longer than the other would be cut off by it.
    let dead_after = own.dead_after.min(peer.dead_after).max(DEAD_AFTER_MIN);
    SessionConfig {
        protections: accept.protections,
        cipher: accept.cipher,
        limits: own.limits,
        peer_limits: peer.limits,
        dead_after,
        heartbeat_every: dead_after / 4,
        // Who belongs to no job works for the peer's.
        job: if own.job == 0 { peer.job } else { own.job },
        ..SessionConfig::new(side)
    }
}
