//! What Hello and the server's own terms agree on, and the client's check of it.

use core::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use exoskel_identity::{Identity, PeerText};

use crate::handshake::{Accept, HandshakeError, Hello, Path, Refuse, RefuseReason, WITNESS_BYTES};
use crate::keys::CipherSuite;
use crate::limits::Limits;
use crate::policy::Proof;
use crate::protection::{Protection, Protections};
use crate::session::{SessionConfig, Side};

/// What the server brings to an acceptance besides the Hello.
#[derive(Clone, Debug)]
pub struct ServerTerms {
    /// Who the server is.
    pub identity: Identity,
    /// How it sees the way.
    pub path: Path,
    /// The ciphers it can use, the preferred one first.
    pub ciphers: Vec<CipherSuite>,
    /// What it is willing to hold.
    pub limits: Limits,
    /// After how long a silence it declares the other side dead.
    pub dead_after: Duration,
    /// Software versions by name.
    pub versions: Vec<(PeerText, PeerText)>,
    /// The generation of its policy.
    pub policy_generation: u64,
    /// The group that it belongs to.
    pub group: u32,
    /// Anything else by name.
    pub properties: Vec<(PeerText, PeerText)>,
}

impl Path {
    /// A Unix socket whose peer the kernel vouches for: on the machine that `machine` names like no other, at a socket
    /// that is called `socket` there (its listener's name; nothing for a socketpair).
    ///
    /// # Security
    /// The kernel's word is about the process at the other end of the socket, which may be a relay or a tunnel (`ssh -L`)
    /// under our own account, with the session's other end far away. That end can't be on a machine of this name.
    pub fn same_host(machine: &[u8], socket: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        for piece in [b"exoskel same host".as_slice(), machine, socket] {
            context.update(&(piece.len() as u64).to_be_bytes());
            context.update(piece);
        }
        let mut witness = [0; WITNESS_BYTES];
        witness.copy_from_slice(context.finish().as_ref());
        Self::SameHost { witness }
    }

    /// What both ends' views prove together.
    ///
    /// # Security
    /// A claim of the peer only ever makes things stricter: `self` must be this end's own view, and alone it is
    /// needed for anything but [`Proof::Unproven`].
    pub fn proof(self, peer: Self) -> Proof {
        match (self, peer) {
            (
                Self::SameHost { witness },
                Self::SameHost {
                    witness: peer_witness,
                },
            ) if witness == peer_witness => Proof::SameHost,
            (
                Self::Network { local, remote },
                Self::Network {
                    local: peer_local,
                    remote: peer_remote,
                },
            ) => {
                // An IPv6 socket shows IPv4 peers as mapped addresses; they are the same place.
                let place =
                    |address: core::net::SocketAddr| (address.ip().to_canonical(), address.port());
                if place(local) == place(peer_remote) && place(remote) == place(peer_local) {
                    Proof::Direct
                } else {
                    Proof::Unproven
                }
            }
            _ => Proof::Unproven,
        }
    }
}

impl Hello {
    /// The client's floors for what the two views prove.
    fn floors_for(&self, proof: Proof) -> Protections {
        let floors = match proof {
            Proof::SameHost | Proof::Direct => self.floors,
            Proof::Unproven => self.floors_unproven.stricter(self.floors),
        };
        floors.stricter(universal_floors(proof))
    }
}

/// What no policy can go below: between hosts nobody on the wire may alter what is executed or what steers the run.
fn universal_floors(proof: Proof) -> Protections {
    let weakest = match proof {
        Proof::SameHost => Protection::Plain,
        Proof::Direct | Proof::Unproven => Protection::Integrity,
    };
    Protections {
        control: weakest,
        code: weakest,
        data: Protection::Plain,
    }
}

/// The server's decision: the stricter of both sides' floors.
///
/// `certified` is the client's identity as its certificate proves it; `floors` gives the server's own floors for what
/// the two views prove.
///
/// # Errors
/// The refusal to send, when the claim and the certificate disagree or no cipher is common to both.
pub fn accept(
    hello: &Hello,
    certified: &Identity,
    terms: ServerTerms,
    floors: impl FnOnce(Proof) -> Protections,
) -> Result<Accept, Refuse> {
    if hello.identity != *certified {
        let error = HandshakeError::Identity {
            claimed: hello.identity.clone(),
            certified: certified.clone(),
        };
        return Err(error.refusal());
    }
    let Some(cipher) = common_cipher(&hello.ciphers, &terms.ciphers) else {
        return Err(Refuse {
            reason: RefuseReason::Cipher,
            text: "no cipher in common: update the older of the two installations".into(),
        });
    };
    let proof = terms.path.proof(hello.path);
    Ok(Accept {
        protections: floors(proof).stricter(hello.floors_for(proof)),
        cipher,
        identity: terms.identity,
        limits: terms.limits,
        dead_after: terms.dead_after,
        versions: terms.versions,
        path: terms.path,
        policy_generation: terms.policy_generation,
        group: terms.group,
        properties: terms.properties,
    })
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
/// [`HandshakeError::Downgrade`] when Accept is weaker than the client's own floors for this way,
/// [`HandshakeError::Identity`] or [`HandshakeError::CipherNotOffered`] when it does not fit otherwise.
pub fn check_accept(
    hello: &Hello,
    accept: &Accept,
    certified: &Identity,
) -> Result<Proof, HandshakeError> {
    if accept.identity != *certified {
        return Err(HandshakeError::Identity {
            claimed: accept.identity.clone(),
            certified: certified.clone(),
        });
    }
    if !hello.ciphers.contains(&accept.cipher) {
        return Err(HandshakeError::CipherNotOffered);
    }
    let proof = hello.path.proof(accept.path);
    let expected = hello.floors_for(proof);
    if !accept.protections.satisfies(expected) {
        return Err(HandshakeError::Downgrade {
            got: accept.protections,
            expected,
        });
    }
    Ok(proof)
}

/// No peer can ask for heartbeats more often than four times in this time.
const DEAD_AFTER_MIN: Duration = Duration::from_millis(100);

/// The configuration of the session that follows, for either side.
pub fn session_config(side: Side, hello: &Hello, accept: &Accept) -> SessionConfig {
    let client = (hello.limits, hello.dead_after, hello.group);
    let server = (accept.limits, accept.dead_after, accept.group);
    let ((limits, dead_after, own_group), (peer_limits, peer_dead_after, peer_group)) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    SessionConfig {
        protections: accept.protections,
        cipher: accept.cipher,
        limits,
        peer_limits,
        dead_after,
        // Often enough for the less patient of the two, within reason.
        heartbeat_every: dead_after.min(peer_dead_after).max(DEAD_AFTER_MIN) / 4,
        // Who belongs to no group works for the peer's, and its messages are as much a sign of that group's turn.
        group: if own_group == 0 {
            peer_group
        } else {
            own_group
        },
        ..SessionConfig::new(side)
    }
}
