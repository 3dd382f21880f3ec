//! What a node is told by files: who it is, whom it trusts, what its policy says.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoskel_identity::{
    Authorization, Credential, CredentialError, CredentialKind, Date, IdentityError, PeerVerifier,
    Role, StaleList, TrustError,
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

/// Another process, which alone reads this node's credential.
pub trait CredentialHolder: Send + Sync {
    /// The credential as its files have it now, with a key that stays where it is.
    ///
    /// # Errors
    /// Why they can't be read, in words that name the file.
    fn credential(&self) -> Result<Credential, String>;
}

/// Where a node finds who it is, whom it trusts, and what its policy says.
#[derive(Clone)]
pub struct Sources {
    /// Who the node is.
    pub credential: Document,
    /// The key of a credential that doesn't hold it.
    pub key: Option<PathBuf>,
    /// Who reads both in this process's place. Here they are only looked at for changes.
    pub holder: Option<Arc<dyn CredentialHolder>>,
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
    /// Who holds it hasn't given it.
    #[error("{0}")]
    Held(String),
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
        "{file}: got the credential of a {got}, expected a {expected}'s (exoskel pki issue --role {expected})"
    )]
    Role {
        /// Where the credential stands.
        file: String,
        /// What it is for.
        got: Role,
        /// What it should be for.
        expected: Role,
    },
    /// A certificate of a grid for something else.
    #[error(
        "{file}: got the grid credential of a {got}, expected a {expected}'s: a worker has a host certificate with its DNS names, a \
         manager a proxy or a person's certificate"
    )]
    GridRole {
        /// Where the credential stands.
        file: String,
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
    /// A revocation list of the credential's authority that no longer says who is revoked.
    #[error(
        "{file}: the revocation list in it is stale since {}, now is {}: make a current one where the authority is \
         (exoskel pki renew --list) and copy it here",
        Date(*.next_update), Date(*.now)
    )]
    RevocationListStale {
        /// Where the list stands.
        file: String,
        /// When the next list was due.
        next_update: UnixTime,
        /// The time of the check.
        now: UnixTime,
    },
    /// Peers would refuse it.
    #[error("{file}, our own credential: {reason}")]
    Refused {
        /// Where the credential stands.
        file: String,
        /// Why they would.
        #[source]
        reason: Box<IdentityError>,
    },
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
        let (credential, own_lists) = self.read_credential()?;
        let credential = credential.for_role(role);
        let kind = credential.kind();
        let got = credential.identity().role;
        if got != role {
            let (file, expected) = (shown(self.credential.path()), role);
            return Err(match kind {
                CredentialKind::Private => CredentialSourceError::Role {
                    file,
                    got,
                    expected,
                },
                CredentialKind::Grid => CredentialSourceError::GridRole {
                    file,
                    got,
                    expected,
                },
            });
        }
        let verifier: Arc<dyn PeerVerifier> = match &self.trust {
            Some(timed) => {
                // What can't be read keeps its last good state; `SourceChanges` says so.
                timed.refresh();
                timed.trust().clone()
            }
            None if kind == CredentialKind::Grid => {
                return Err(CredentialSourceError::NoTrustAnchors);
            }
            None => {
                let authority = credential.authority(0)?;
                if let Some(stale) = authority.stale_list(now) {
                    return Err(self.stale(stale, own_lists, now));
                }
                Arc::new(authority)
            }
        };
        // With a private authority beside a grid, only peers know whether they accept the own credential.
        if self.trust.is_none() || kind == CredentialKind::Grid {
            credential.verify_own(&*verifier, now).map_err(|reason| {
                CredentialSourceError::Refused {
                    file: shown(self.credential.path()),
                    reason: Box::new(reason),
                }
            })?;
        }
        Ok((credential, verifier))
    }

    /// `own_lists` of the lists came with the credential.
    fn stale(&self, stale: StaleList, own_lists: usize, now: UnixTime) -> CredentialSourceError {
        let file = match &self.revocation_list {
            Some(path) if stale.position >= own_lists => Some(path.as_path()),
            _ => self.credential.path(),
        };
        CredentialSourceError::RevocationListStale {
            file: shown(file),
            next_update: stale.next_update,
            now,
        }
    }

    /// The credential as its files have it, whatever peers will say of it.
    ///
    /// # Errors
    /// [`CredentialSourceError`] names the file.
    pub fn own(&self) -> Result<Credential, CredentialSourceError> {
        if let Some(holder) = &self.holder {
            return holder.credential().map_err(CredentialSourceError::Held);
        }
        Ok(match (&self.credential, &self.key) {
            (Document::File(path), None) => read_credential(path)?,
            (Document::File(path), Some(key)) => read_credential_and_key(path, key)?,
            (Document::Memory(pem), _) => Credential::from_pem(pem)?,
        })
    }

    /// The credential, and how many of its revocation lists came with it.
    fn read_credential(&self) -> Result<(Credential, usize), CredentialSourceError> {
        let mut credential = self.own()?;
        let own_lists = credential.revocation_lists().len();
        if let Some(path) = &self.revocation_list {
            let lists = read_revocation_lists(path)?;
            credential.add_revocation_lists(lists).map_err(|reason| {
                CredentialSourceError::RevocationList {
                    path: path.clone(),
                    reason,
                }
            })?;
        }
        Ok((credential, own_lists))
    }

    /// Notices from now on when any of the sources has changed.
    pub fn changes(&self) -> SourceChanges {
        let ban_list = self.ban_list();
        SourceChanges {
            seen: SourceState::of(self, ban_list.as_deref()),
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

impl fmt::Debug for Sources {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sources")
            .field("credential", &self.credential)
            .field("key", &self.key)
            .field("is_held", &self.holder.is_some())
            .field("revocation_list", &self.revocation_list)
            .field("trust", &self.trust)
            .field("policy", &self.policy)
            .finish()
    }
}

/// What to call the file of a credential in a message, or the credential where it is in none.
fn shown(file: Option<&Path>) -> String {
    file.map_or_else(
        || "the credential".to_owned(),
        |path| path.display().to_string(),
    )
}

/// Whether any of a node's sources has changed.
#[derive(Debug)]
pub struct SourceChanges {
    sources: Sources,
    ban_list: Option<PathBuf>,
    seen: SourceState,
}

impl SourceChanges {
    /// Whether anything has changed since the last look, and which trust directories can't be read.
    pub fn look(&mut self) -> Renewal {
        let trust = self.sources.trust.as_ref();
        let faults = trust.map(|timed| timed.reload().faults);
        let faults = faults.unwrap_or_default();
        if SourceState::of(&self.sources, self.ban_list.as_deref()) == self.seen {
            return Renewal {
                faults,
                ..Renewal::default()
            };
        }
        self.ban_list = self.sources.ban_list();
        self.seen = SourceState::of(&self.sources, self.ban_list.as_deref());
        Renewal {
            changed: true,
            faults,
            ..Renewal::default()
        }
    }
}

/// The sources at one time.
#[derive(Debug, PartialEq, Eq)]
struct SourceState {
    files: Stamps,
    /// Of the trust directories.
    generation: Option<u64>,
}

impl SourceState {
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
