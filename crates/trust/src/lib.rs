//! What is read from disk to say who we are, whom we trust and who may do what, and how it is kept current.
//!
//! # Layout
//!
//! - [`Trust`]: the trust directories that `exoskel-identity` parses (an IGTF directory of authorities and a vomsdir). Whoever
//!   has a clock calls [`Trust::reload`], or leaves that to [`TimedTrust`]; whoever judges asks the [`Trust`] itself, which is a
//!   [`PeerVerifier`](exoskel_identity::PeerVerifier).
//! - [`read_credential`] and its like, [`Document`]: credentials and lists in files, or handed over in memory.
//! - [`PolicyFile`]: a policy and the ban list and grid-mapfile that it names; [`Rules`]: what it says about who may do what.
//! - [`Sources`]: all that a node is told by files. [`Stamps`]: whether files have changed. [`Renewal`]: what came of looking.
//! - [`ChainVerifier`]: how a verdict gets into the TLS engine of whoever has one.
//!
//! What wires get is in the policy as well. That part is parsed by those who have wires, from [`PolicyFile::text`].

#![forbid(unsafe_code)]

mod credential;
mod directory;
mod document;
mod file;
mod policy_file;
mod renewal;
mod rules;
mod sources;
mod stamp;
mod timed;
mod tls;
mod trust;

pub use credential::{
    CredentialFileError, read_credential, read_credential_and_key, read_revocation_lists,
};
pub use document::Document;
pub use file::{FileError, read_private, read_public};
pub use policy_file::{PolicyFile, PolicyFileError, SiteList};
pub use renewal::Renewal;
pub use rules::{Rules, RulesError};
pub use sources::{CredentialHolder, CredentialSourceError, SourceChanges, Sources};
pub use stamp::{Stamp, Stamps};
pub use timed::TimedTrust;
pub use tls::ChainVerifier;
pub use trust::{OpenTrustError, Trust, TrustDirectories};
