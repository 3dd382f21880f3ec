//! What a policy is asked about: a wire, its two ends, and how sure we are of where they are.

use std::net::IpAddr;

use exoskel_identity::{Identity, VerifiedIdentity};

/// A connection, seen from one of its ends.
#[derive(Clone, Copy, Debug)]
pub struct Wire<'a> {
    /// This end.
    pub local: WireEnd<'a>,
    /// The other end.
    pub remote: WireEnd<'a>,
    /// What proves that the ends are where the addresses say.
    pub proof: PlaceProof,
}

/// One end of a wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireEnd<'a> {
    /// The address of this end as *we* observe it on our own socket, never as a peer claims it.
    /// Nothing, where a gateway or a Unix socket is in between.
    pub address: Option<IpAddr>,
    /// Who is there.
    pub node: Option<WireNode<'a>>,
}

/// Who is at an end of a wire.
///
/// # Security
/// For the peer, this must come out of a [`VerifiedIdentity`]; for ourselves, out of our own
/// credential. A claimed one would let a stranger choose the rule.
#[derive(Clone, Copy, Debug)]
pub struct WireNode<'a> {
    /// The name in its certificate.
    pub name: &'a str,
    /// Its distinguished name in slash form, where that means something: a certificate of a grid.
    pub subject: Option<&'a str>,
    /// Whether its holder chose its name, as that of an independent proxy. Such a name puts nobody into a domain, but can
    /// still be feared.
    pub is_independent: bool,
}

impl<'a> WireNode<'a> {
    /// A node of a private authority, which has a name only.
    pub fn named(identity: &'a Identity) -> Self {
        Self {
            name: &identity.name,
            subject: None,
            is_independent: false,
        }
    }
}

impl<'a> From<&'a VerifiedIdentity> for WireNode<'a> {
    fn from(peer: &'a VerifiedIdentity) -> Self {
        Self {
            name: peer.name(),
            subject: peer.grid_subject(),
            is_independent: peer.is_independent(),
        }
    }
}

/// How sure we are that the two ends are where they seem to be.
///
/// # Security
/// A peer's report of its addresses goes in here, and can only ever weaken the proof: a policy
/// never asks for less on a wire with a weaker one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaceProof {
    /// The kernel says that the peer is a process of our own account (or root's, whom nothing keeps
    /// out) on this machine: an inherited socketpair, or a Unix socket whose peer credentials were
    /// checked. The addresses don't count.
    SameHost,
    /// Both ends see the same pair of addresses and ports, so no NAT, relay or tunnel rewrote them.
    Direct,
    /// They don't, or a gateway, relay, NAT or tunnel is known to be between, or nothing is known
    /// yet. No trusted domain applies.
    Unproven,
}
