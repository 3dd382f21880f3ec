//! Rules, bans and account maps from a policy file, kept current.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use exoskel_identity::Authorization;
use exoskel_identity::authorization::{AuthorizationError, RuleSource};

use crate::document::Document;
use crate::policy_file::{PolicyFile, PolicyFileError};
use crate::renewal::Renewal;
use crate::stamp::{CHANGES_LISTED_MAX, Stamps};

/// The rules of one policy file with the ban list and the grid-mapfile that it names. What can't be read keeps its last good
/// state.
#[derive(Debug)]
pub struct Rules {
    policy: PolicyFile,
    current: ArcSwap<Authorization>,
    /// Held by the one who reads again.
    seen: Mutex<Seen>,
}

/// What is said of a change after which everything means what it meant.
const UNCHANGED: &str = "the rules, bans and accounts in force are the same as before";

/// What the last reading saw.
#[derive(Debug)]
struct Seen {
    /// The files' state.
    stamps: Stamps,
    /// The policy of which the lists could not be read. It may name others than the rules in force do.
    unread: Option<Authorization>,
    /// Why the files are not in force as they are.
    fault: Option<String>,
}

/// Why rules can't be read. Whoever wrote them must act.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A file can't be read.
    #[error(transparent)]
    File(#[from] PolicyFileError),
    /// A file that says something else than rules.
    #[error("{}{}{reason}", file.display(), if .reason.line.is_some() { ", " } else { ": " })]
    Content {
        /// Which one.
        file: PathBuf,
        /// Where and what.
        reason: Box<AuthorizationError>,
    },
}

impl Rules {
    /// Reads the policy and the files that it names; relative paths are beside the policy.
    ///
    /// # Errors
    /// [`RulesError`] names the file and the line.
    pub fn open(policy: &Path) -> Result<Arc<Self>, RulesError> {
        let policy = PolicyFile::new(Document::File(policy.to_owned()));
        // Which files there are is known only after a reading, and stamps have to be older than what is read.
        let seen = stamps(&policy, &read(&policy)?);
        let current = read(&policy)?;
        Ok(Arc::new(Self {
            policy,
            current: ArcSwap::from_pointee(current),
            seen: Mutex::new(Seen {
                stamps: seen,
                unread: None,
                fault: None,
            }),
        }))
    }

    /// The rules as they are now.
    pub fn current(&self) -> Arc<Authorization> {
        self.current.load_full()
    }

    /// The file of these rules in which something is written down.
    pub fn file_of(&self, rules: &Authorization, source: RuleSource) -> PathBuf {
        let file = match source {
            RuleSource::Policy { .. } => None,
            RuleSource::BanList { .. } => self.policy.ban_list(rules),
            RuleSource::GridMapfile { .. } => self.policy.grid_mapfile(rules),
        };
        file.unwrap_or_else(|| self.policy.name().into())
    }

    /// Why the files are not in force as they are; nothing when they are.
    pub fn fault(&self) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.fault.clone()
    }

    /// Reads again what has changed. A fault is said once; [`fault`](Self::fault) knows it from then on.
    pub fn renew(&self) -> Renewal {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut faults = Vec::new();
        let mut changes = Vec::new();
        loop {
            let current = self.current.load();
            let now = stamps(&self.policy, seen.unread.as_ref().unwrap_or(&current));
            if seen.stamps == now {
                return Renewal {
                    faults,
                    ..Renewal::default()
                };
            }
            changes.extend(now.since(&seen.stamps));
            // A policy that names other files from now on differs from these stamps, and is read once more.
            seen.stamps = now;
            match read(&self.policy) {
                Ok(rules) => {
                    let mut said = rules.changes_since(&current);
                    if said.is_empty() {
                        said.push(UNCHANGED.to_owned());
                    }
                    let more = said.len().saturating_sub(CHANGES_LISTED_MAX);
                    said.truncate(CHANGES_LISTED_MAX);
                    changes.extend(said);
                    changes.extend(
                        (more > 0).then(|| format!("{more} other rules, bans and accounts")),
                    );
                    (seen.unread, seen.fault) = (None, None);
                    self.current.store(Arc::new(rules));
                    return Renewal {
                        changed: true,
                        changes,
                        ..Renewal::default()
                    };
                }
                Err(error) => {
                    let text = self.policy.text().ok();
                    seen.unread = text.and_then(|text| Authorization::parse(&text).ok());
                    let fault = format!("the rules in force are kept: {error}");
                    seen.fault = Some(fault.clone());
                    faults = vec![fault];
                }
            }
        }
    }
}

fn stamps(policy: &PolicyFile, rules: &Authorization) -> Stamps {
    Stamps::of(policy.files(rules).iter().map(PathBuf::as_path))
}

fn read(policy: &PolicyFile) -> Result<Authorization, RulesError> {
    let content = |file: PathBuf| {
        move |reason| RulesError::Content {
            file,
            reason: Box::new(reason),
        }
    };
    let mut rules = Authorization::parse(&policy.text()?).map_err(content(policy.name().into()))?;
    if let Some(list) = policy.read_ban_list(&rules)? {
        rules = rules.with_bans(&list.text).map_err(content(list.path))?;
    }
    if let Some(file) = policy.read_grid_mapfile(&rules)? {
        rules = rules
            .with_grid_mapfile(&file.text)
            .map_err(content(file.path))?;
    }
    Ok(rules)
}
