//! What a node is told by files: who it is, whom it trusts, what its policy says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoskel_identity::{
    Authorization, Credential, CredentialError, CredentialKind, IdentityError, PeerVerifier, Role,
    TrustError,
};
use rustls_pki_types::UnixTime;

use crate::credential::{
    CredentialFileError, read_credential, read_credential_and_key, read_revocation_lists,
};
use crate::document::Document;
use crate::policy_file::PolicyFile;
use crate::renewal::Renewal;
use crate::stamp::Stamps;
use crate::timed::TimedTrust;

/// Where a node finds who it is, whom it trusts, and what its policy says.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Who the node is.
    pub credential: Document,
    /// The key of a credential that doesn't hold it.
    pub key: Option<PathBuf>,
    /// A newer revocation list than the one in the credential.
    pub revocation_list: Option<PathBuf>,
    /// Whom to trust, where that isn't the credential's own authority.
    pub trust: Option<TimedTrust>,
    /// Who may do business with the node, and what wires get; the built-in policy where there is none.
    pub policy: Option<PolicyFile>,
}

/// Why a node can't prove who it is, or can't judge others.
#[derive(Debug, thiserror::Error)]
pub enum CredentialSourceError {
    /// A file with the credential, its key, or revocation lists.
    #[error(transparent)]
    File(#[from] CredentialFileError),
    /// A credential that was handed over in memory.
    #[error(transparent)]
    Memory(#[from] CredentialError),
    /// A revocation list that doesn't go with the credential.
    #[error("{}: {reason}", path.display())]
    RevocationList {
        /// The list's file.
        path: PathBuf,
        /// Why it doesn't.
        reason: TrustError,
    },
    /// A credential of an `exoskel pki` for something else.
    #[error(
        "got the credential of a {got}, expected a {expected}'s (exoskel pki issue --role {expected})"
    )]
    Role {
        /// What it is for.
        got: Role,
        /// What it should be for.
        expected: Role,
    },
    /// A certificate of a grid for something else.
    #[error(
        "got the grid credential of a {got}, expected a {expected}'s: a worker has a host certificate with its DNS names, a \
         manager a proxy or a person's certificate"
    )]
    GridRole {
        /// What it is for.
        got: Role,
        /// What it should be for.
        expected: Role,
    },
    /// A grid credential says nothing about whom to trust.
    #[error(
        "got a grid credential and no directory of authorities by which to judge peers, expected --trust-anchors \
         (trust_anchors= of a manager)"
    )]
    NoTrustAnchors,
    /// The authority in the credential.
    #[error(transparent)]
    Authority(#[from] TrustError),
    /// Peers would refuse it.
    #[error("our own credential: {0}")]
    Refused(#[source] IdentityError),
}

impl Sources {
    /// The credential for this role as the files have it now, and who judges peers. The credential must be one that peers
    /// will accept.
    ///
    /// # Errors
    /// [`CredentialSourceError`] names the file, and says what was expected.
    pub fn credential(
        &self,
        role: Role,
        now: UnixTime,
    ) -> Result<(Credential, Arc<dyn PeerVerifier>), CredentialSourceError> {
        let credential = self.read_credential()?;
        let kind = credential.kind();
        let got = credential.identity().role;
        if got != role {
            let expected = role;
            return Err(match kind {
                CredentialKind::Private => CredentialSourceError::Role { got, expected },
                CredentialKind::Grid => CredentialSourceError::GridRole { got, expected },
            });
        }
        let verifier: Arc<dyn PeerVerifier> = match &self.trust {
            Some(timed) => {
                // What can't be read keeps its last good state; `SourceChanges` says so.
                timed.reload();
                timed.trust().clone()
            }
            None if kind == CredentialKind::Grid => {
                return Err(CredentialSourceError::NoTrustAnchors);
            }
            None => Arc::new(credential.authority(0)?),
        };
        // With a private authority beside a grid, only peers know whether they accept the own credential.
        if self.trust.is_none() || kind == CredentialKind::Grid {
            credential
                .verify_own(&*verifier, now)
                .map_err(CredentialSourceError::Refused)?;
        }
        Ok((credential, verifier))
    }

    fn read_credential(&self) -> Result<Credential, CredentialSourceError> {
        let mut credential = match (&self.credential, &self.key) {
            (Document::File(path), None) => read_credential(path)?,
            (Document::File(path), Some(key)) => read_credential_and_key(path, key)?,
            (Document::Memory(pem), _) => Credential::from_pem(pem)?,
        };
        if let Some(path) = &self.revocation_list {
            let lists = read_revocation_lists(path)?;
            credential.add_revocation_lists(lists).map_err(|reason| {
                CredentialSourceError::RevocationList {
                    path: path.clone(),
                    reason,
                }
            })?;
        }
        Ok(credential)
    }

    /// Notices from now on when any of the sources has changed.
    pub fn changes(&self) -> SourceChanges {
        let ban_list = self.ban_list();
        SourceChanges {
            seen: State::of(self, ban_list.as_deref()),
            sources: self.clone(),
            ban_list,
        }
    }

    fn ban_list(&self) -> Option<PathBuf> {
        let policy = self.policy.as_ref()?;
        let rules = Authorization::parse(&policy.text().ok()?).ok()?;
        policy.ban_list(&rules)
    }
}

/// Whether any of a node's sources has changed.
#[derive(Debug)]
pub struct SourceChanges {
    sources: Sources,
    ban_list: Option<PathBuf>,
    seen: State,
}

impl SourceChanges {
    /// Whether anything has changed since the last look, and which trust directories can't be read.
    pub fn look(&mut self) -> Renewal {
        let trust = self.sources.trust.as_ref();
        let faults = trust.map(|timed| timed.reload().faults);
        let faults = faults.unwrap_or_default();
        if State::of(&self.sources, self.ban_list.as_deref()) == self.seen {
            return Renewal {
                changed: false,
                faults,
            };
        }
        self.ban_list = self.sources.ban_list();
        self.seen = State::of(&self.sources, self.ban_list.as_deref());
        Renewal {
            changed: true,
            faults,
        }
    }
}

/// The sources at one time.
#[derive(Debug, PartialEq, Eq)]
struct State {
    files: Stamps,
    /// Of the trust directories.
    generation: Option<u64>,
}

impl State {
    fn of(sources: &Sources, ban_list: Option<&Path>) -> Self {
        let files = [
            sources.credential.path(),
            sources.key.as_deref(),
            sources.policy.as_ref().and_then(PolicyFile::path),
            sources.revocation_list.as_deref(),
            ban_list,
        ];
        Self {
            files: Stamps::of(files.into_iter().flatten()),
            generation: sources.trust.as_ref().map(TimedTrust::generation),
        }
    }
}
