//! How the two ends see the way between them, and what their views prove.

use core::net::SocketAddr;

use aws_lc_rs::digest::{Context, SHA256};

use crate::policy::PlaceProof;

/// The bytes of a witness of [`Path::SameHost`].
pub const WITNESS_BYTES: usize = 32;

/// How one end sees the way to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A socketpair or Unix socket whose peer the kernel vouches for; [`Path::same_host`] makes it.
    SameHost {
        /// A digest of which machine and which socket that is, as this end's kernel says. Two ends with different ones
        /// have a relay between them.
        witness: [u8; WITNESS_BYTES],
    },
    /// A network connection between these two addresses, as this end sees them.
    Network {
        /// This end's address.
        local: SocketAddr,
        /// The other end's address.
        remote: SocketAddr,
    },
    /// Known to lead through a relay, gateway or tunnel, or not known.
    Relayed,
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
    /// needed for anything but [`PlaceProof::Unproven`].
    pub fn proof(self, peer: Self) -> PlaceProof {
        match (self, peer) {
            (
                Self::SameHost { witness },
                Self::SameHost {
                    witness: peer_witness,
                },
            ) if witness == peer_witness => PlaceProof::SameHost,
            (
                Self::Network { local, remote },
                Self::Network {
                    local: peer_local,
                    remote: peer_remote,
                },
            ) => {
                // An IPv6 socket shows IPv4 peers as mapped addresses; they are the same place.
                let place = |address: SocketAddr| (address.ip().to_canonical(), address.port());
                if place(local) == place(peer_remote) && place(remote) == place(peer_local) {
                    PlaceProof::Direct
                } else {
                    PlaceProof::Unproven
                }
            }
            _ => PlaceProof::Unproven,
        }
    }
}
