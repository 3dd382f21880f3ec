//! A private authority on disk, a throw-away one in memory, and credentials in files.
//!
//! [`AuthorityDirectory`] is what `exoskel pki` works on. [`ThrowAwayAuthority`] makes the credentials of the processes
//! that a manager starts on its own machine; its key never leaves memory. [`JobAuthority`] is a job's, whose processes have made their
//! keys themselves. All make certificates of one form
//! (`pki/form.rs`), which [`PrivateAuthority`](exoskel_identity::PrivateAuthority) accepts.

use std::path::PathBuf;
use std::time::Duration;

use exoskel_identity::{ClaimError, CredentialError, Date, IdentityError, Malformed};
use exoskel_trust::{CredentialFileError, FileError};
use rustls_pki_types::UnixTime;

use crate::folder::Replaceable;

mod directory;
mod file;
mod form;
mod job;
mod record;
mod throw_away;

pub use directory::AuthorityDirectory;
pub use file::{write_credential, write_public, write_secret};
pub use job::{JobAuthority, ProcessKey};
pub use record::IssuedCertificate;
pub use throw_away::ThrowAwayAuthority;

/// How long the root of an authority directory is valid. A root can't be renewed without touching every host.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * DAY);

/// How long a throw-away authority and everything it issues is valid: longer than the longest run of one manager, whose
/// sessions would end with it.
pub const THROW_AWAY_VALIDITY: Duration = Duration::from_secs(30 * DAY);

/// By how much two hosts' clocks may differ: certificates start this much before they are made.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);

const DAY: u64 = 86_400;

/// Why an authority or a credential file could not be used. No message holds key material.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The system refused a file operation.
    #[error("can't {action} {}: {source}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that can't be read, or that others can read though it is a secret.
    #[error(transparent)]
    Unreadable(#[from] FileError),
    /// A file that is no good credential, or holds no revocation lists.
    #[error(transparent)]
    CredentialFile(#[from] CredentialFileError),
    /// Somebody else can put a file of theirs into the place of a secret.
    #[error("can't keep a secret in {}: {reason}", .path.display())]
    Replaceable {
        /// What was to be written.
        path: PathBuf,
        /// How they could.
        reason: Replaceable,
    },
    /// There is one already, and its key would be lost.
    #[error("{} holds an authority already; choose another folder", .path.display())]
    AuthorityExists {
        /// The folder.
        path: PathBuf,
    },
    /// There is none.
    #[error("{} holds no authority; make one with \"exoskel pki init\"", .path.display())]
    NoAuthority {
        /// The folder.
        path: PathBuf,
    },
    /// A file of the authority can't be read as what it should be.
    #[error("{}: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: Malformed,
    },
    /// A file of the authority doesn't belong to it.
    #[error("{}: {reason}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Why it doesn't.
        reason: &'static str,
    },
    /// The name can't stand in a certificate.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A certificate can't outlive its authority, nor be valid for no time.
    #[error("got a validity of {} days, expected more than 0 and, as the authority ends on {}, at most {}",
        .got.as_secs() / DAY, Date(*.authority_ends), .max.as_secs() / DAY)]
    Validity {
        /// What was asked for.
        got: Duration,
        /// What is left.
        max: Duration,
        /// When the authority ends.
        authority_ends: UnixTime,
    },
    /// Nothing was issued under that name or serial number.
    #[error("nothing was issued as {got:?}; \"exoskel pki list\" shows names and serial numbers")]
    NotIssued {
        /// What was looked for.
        got: String,
    },
    /// It was revoked before.
    #[error("everything issued as {got:?} is revoked already")]
    AlreadyRevoked {
        /// What was looked for.
        got: String,
    },
    /// Who was barred is not let in again by a renewal.
    #[error("serial number {serial} is revoked and can't be renewed; issue another credential")]
    NotRenewed {
        /// The certificate's serial number.
        serial: String,
    },
    /// What was just made would be refused, so it was thrown away.
    #[error("the new certificate would be refused: {0}")]
    Refused(#[source] IdentityError),
    /// The list that was just made would not refuse the certificate, so it was thrown away.
    #[error("the new revocation list would not stop serial number {serial}; nothing was revoked")]
    Ineffective {
        /// The certificate's serial number.
        serial: String,
    },
    /// What a process of a job has sent up to be signed is no key.
    #[error(
        "got {got} bytes for the key of a process, expected {expected}: a point of P-256, not compressed"
    )]
    ProcessKey {
        /// How many bytes came.
        got: usize,
        /// How many a key has.
        expected: usize,
    },
    /// The clock is beyond what certificates can say.
    #[error("the clock says {}, which no certificate can express: set it", Date(*.now))]
    Clock {
        /// The time.
        now: UnixTime,
    },
    /// The library could not make or sign a certificate.
    #[error("can't make the certificate: {0}")]
    Signing(#[from] rcgen::Error),
    /// A credential that was just made is not sound.
    #[error("the new credential is not sound: {0}")]
    NewCredential(#[from] CredentialError),
}

#[cfg(test)]
mod tests;
