//! Why a name is nobody's.

use thiserror::Error;

use crate::claim::Role;
use crate::limits::{NAME_BYTES_MAX, SUBJECT_BYTES_MAX};
use crate::peer_text::PeerText;

/// A certificate's URIs don't state exactly one role and one name. Its issuer must issue another one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// No URI states a role.
    #[error("no role is stated: got no URI \"exoskel:role:...\", expected exactly one")]
    MissingRole,
    /// No URI states a name.
    #[error("no name is stated: got no URI \"exoskel:name:...\", expected exactly one")]
    MissingName,
    /// Two URIs state a role.
    #[error("got several roles, expected exactly one")]
    SeveralRoles,
    /// Two URIs state a name.
    #[error("got several names, expected exactly one")]
    SeveralNames,
    /// The role is none of ours.
    #[error("got role {got}, expected manager, worker, gateway, agent or peer")]
    UnknownRole {
        /// What stood there.
        got: PeerText,
    },
    /// The name could mean something else, to a pattern, a path or a terminal.
    #[error(
        "got name {got}, expected 1 to {NAME_BYTES_MAX} small letters, digits and . - _ : @ + (not starting with - or ., not ending with .)"
    )]
    BadName {
        /// What stood there.
        got: PeerText,
    },
    /// What stands behind the host in the name of a job's process.
    #[error(
        "got {got} for a process of a job, expected its number, a dot, and the job in 32 small hexadecimal digits"
    )]
    BadProcess {
        /// What stood there.
        got: PeerText,
    },
    /// A distinguished name that can't be somebody's name here.
    #[error(
        "got the subject {got}, expected a distinguished name like \"/DC=org/CN=alice\" of at most {SUBJECT_BYTES_MAX} printable ASCII characters"
    )]
    BadSubject {
        /// What stood there.
        got: PeerText,
    },
    /// The role of a host, with a distinguished name.
    #[error(
        "got a distinguished name of a {got}, expected one of a manager or a peer: hosts have DNS names"
    )]
    PersonsRole {
        /// The role.
        got: Role,
    },
    /// A URI of our scheme that this version doesn't know. It could be a restriction, so it can't be ignored.
    #[error("got the statement {got}, expected only \"exoskel:role:...\" and \"exoskel:name:...\"")]
    UnknownStatement {
        /// The URI.
        got: PeerText,
    },
}
