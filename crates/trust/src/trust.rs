//! The trust directories of a process: whom it trusts, as of the newest state of the files.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use exoskel_identity::{
    BadFile, DecisionCache, DecisionCacheLimits, DecisionCacheStatistics, Expected, GridSettings,
    GridVerifier, IdentityError, ListFault, PeerVerifier, SettingsError, TrustReport, TrustStore,
    VerifiedIdentity,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::directory::{Found, look};
use crate::renewal::Renewal;
use crate::stamp::Stamps;

/// Where a site keeps whom it trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDirectories {
    /// Authorities in the form of the IGTF, most often `/etc/grid-security/certificates`.
    pub anchors: PathBuf,
    /// VOMS servers, most often `/etc/grid-security/vomsdir`. Without it attributes count for nothing.
    pub vomsdir: Option<PathBuf>,
}

impl TrustDirectories {
    /// Where a file is that could not be used.
    pub fn path_of(&self, bad: &BadFile) -> PathBuf {
        // Those of the vomsdir stand in a folder of their organisation.
        let directory = match &self.vomsdir {
            Some(vomsdir) if bad.name.contains('/') => vomsdir,
            _ => &self.anchors,
        };
        directory.join(&bad.name)
    }
}

/// Why trust directories can't be used at all. The site's administrator must act.
#[derive(Debug, thiserror::Error)]
pub enum OpenTrustError {
    /// A directory can't be read.
    #[error("{}: {reason}", directory.display())]
    Directory {
        /// Which one.
        directory: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Nobody would be trusted.
    #[error(
        "{} holds no usable authority (files HASH.0): install the packages of the IGTF, or check the path", directory.display()
    )]
    NoAuthority {
        /// Which directory.
        directory: PathBuf,
    },
    /// The rules by which to judge.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// The trust directories of a process, shared by everybody who judges.
pub struct Trust {
    directories: TrustDirectories,
    settings: Arc<GridSettings>,
    current: RwLock<GridVerifier>,
    cache: DecisionCache,
    /// Held by the one who reloads.
    known: Mutex<KnownFiles>,
}

/// What the current generation was made of.
struct KnownFiles {
    stamps: Stamps,
    report: Arc<TrustReport>,
    faults: Vec<String>,
}

impl Trust {
    /// Reads the directories for the first time. `cache` says how many verdicts are kept.
    ///
    /// # Errors
    /// [`OpenTrustError`] when a directory can't be read or holds no usable authority. Single files that can't be used are no
    /// error: [`report`](Self::report) has them.
    pub fn open(
        directories: TrustDirectories,
        settings: GridSettings,
        cache: DecisionCacheLimits,
    ) -> Result<Arc<Self>, OpenTrustError> {
        let settings = Arc::new(settings);
        let found = look(&directories)?;
        let stamps = found.stamps();
        let (store, report, faults) = load(&directories, found, None, 1);
        if !report.authorities.iter().any(|one| one.is_usable) {
            return Err(OpenTrustError::NoAuthority {
                directory: directories.anchors,
            });
        }
        let verifier = GridVerifier::new(Arc::new(store), settings.clone())?;
        Ok(Arc::new(Self {
            directories,
            settings,
            current: RwLock::new(verifier),
            cache: DecisionCache::new(cache),
            known: Mutex::new(KnownFiles {
                stamps,
                report: Arc::new(report),
                faults,
            }),
        }))
    }

    /// The verifier of the newest generation. It stays what it is; ask again for each decision.
    pub fn current(&self) -> GridVerifier {
        // Nobody panics while holding the lock, and what it guards is always whole.
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Judges `chain` (leaf first) at the time `now` by the newest generation, or finds what it said before about the
    /// same chain. Role and name are those of [`GridVerifier::judge`].
    ///
    /// # Errors
    /// [`IdentityError`] names the certificate, the rule and what was expected.
    ///
    /// # Security
    /// As for [`PeerVerifier::verify`]: that the peer holds the leaf's key must be proven by the TLS engine.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, IdentityError> {
        self.cache.judge(&self.current(), chain, now)
    }

    /// What was found in the cache of verdicts and what had to be judged.
    pub fn statistics(&self) -> DecisionCacheStatistics {
        self.cache.statistics()
    }

    /// What the last load found.
    pub fn report(&self) -> Arc<TrustReport> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .report
            .clone()
    }

    /// For which lists' sake everybody whom they cover is refused at that time.
    pub fn list_faults(&self, now: UnixTime) -> Vec<ListFault> {
        self.report().list_faults(&self.settings, now)
    }

    /// Whether some authority may sign a name that a pattern of rules means.
    pub fn may_sign_some(&self, pattern: &str) -> bool {
        let current = self.current();
        current.store().may_sign_some(pattern, &self.settings)
    }

    /// The directories that are read.
    pub fn directories(&self) -> &TrustDirectories {
        &self.directories
    }

    /// What the last load could not read.
    pub(crate) fn faults(&self) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.faults.clone()
    }

    /// Reads the directories again if any file in them has changed. Verdicts made meanwhile use the old generation, those
    /// made afterwards the new one.
    ///
    /// A file that can't be used keeps its last good state, one that is gone is gone. A directory that can't be read
    /// changes nothing.
    pub fn reload(&self) -> Renewal {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match look(&self.directories) {
            Ok(found) => found,
            Err(error) => {
                return Renewal {
                    faults: vec![format!("{error}; what was read before counts")],
                    ..Renewal::default()
                };
            }
        };
        let stamps = found.stamps();
        if stamps == known.stamps {
            return Renewal {
                faults: known.faults.clone(),
                ..Renewal::default()
            };
        }
        let current = self.current();
        let generation = current.store().generation() + 1;
        let (store, report, faults) =
            load(&self.directories, found, Some(current.store()), generation);
        match GridVerifier::new(Arc::new(store), self.settings.clone()) {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
            }
            Err(error) => {
                return Renewal {
                    faults: vec![error.to_string()],
                    ..Renewal::default()
                };
            }
        }
        // Verdicts of the old generation are never found again; this frees their memory.
        self.cache.clear();
        let changes = stamps.since(&known.stamps);
        known.stamps = stamps;
        known.report = Arc::new(report);
        known.faults.clone_from(&faults);
        Renewal {
            changed: true,
            changes,
            faults,
            ..Renewal::default()
        }
    }
}

fn load(
    directories: &TrustDirectories,
    found: Found,
    previous: Option<&Arc<TrustStore>>,
    generation: u64,
) -> (TrustStore, TrustReport, Vec<String>) {
    let (anchors, vomsdir, mut faults) = found.read();
    let (store, report) =
        TrustStore::load(anchors, vomsdir, previous.map(|store| &**store), generation);
    faults.extend(report.bad_files.iter().map(|bad| {
        let kept = if bad.kept_previous {
            "its last good state is kept"
        } else {
            "it counts for nothing"
        };
        let file = directories.path_of(bad);
        format!("{}: {}; {kept}", file.display(), bad.reason)
    }));
    (store, report, faults)
}

impl PeerVerifier for Trust {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        self.current().verify(chain, now, expected)
    }

    fn generation(&self) -> u64 {
        self.current().generation()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Trust")
            .field("directories", &self.directories)
            .field("generation", &self.current().store().generation())
            .finish_non_exhaustive()
    }
}
