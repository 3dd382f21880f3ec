//! What is known of a slot's process when its session begins.

use exoskel_identity::Identity;
use exoskel_link::Protections;
use exoskel_link::policy::PlaceProof;

/// Who is at the other end of a session that has begun.
#[derive(Clone, Debug)]
pub struct JoiningSlot {
    /// Who it is, as proven.
    pub identity: Identity,
    /// Its network address, or the path of the Unix socket; empty for a child of this process.
    pub address: String,
    /// The same with the port, for messages.
    pub place: String,
    /// `tcp`, `unix` or `socketpair`.
    pub transport: String,
    /// How sure we are where it is.
    pub proof: PlaceProof,
    /// What was agreed.
    pub protections: Protections,
    /// What our own policy and options ask for, at least. What was agreed is more where the other end asks for more.
    pub own_minimum: Protections,
    /// The trust domain that it is in, or none.
    pub domain: Option<String>,
    /// Whether its results may be pickles.
    pub is_trusted: bool,
    /// How many slots its worker has, if it says so.
    pub slots: Option<u32>,
    /// Its process number, if it says so.
    pub pid: Option<u32>,
}
