//! Rules, bans and account maps from a policy file, kept current.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use exoskel_identity::Authorization;
use exoskel_identity::authorization::AuthorizationError;

use crate::renewal::Renewal;

/// The rules of one policy file with the ban list and the grid-mapfile that it names. What changes on disk counts
/// within half a second; what can't be read keeps its last good state.
#[derive(Debug)]
pub struct Rules {
    policy: PathBuf,
    current: ArcSwap<Authorization>,
    /// Held by the one who reads again: the files' state at the last reading.
    seen: Mutex<Vec<Option<Stamp>>>,
}

/// Why rules can't be read. Whoever wrote them must act.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A file can't be read.
    #[error("{}: {reason}", file.display())]
    File {
        /// Which one.
        file: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// A file that says something else than rules.
    #[error("{}: {reason}", file.display())]
    Content {
        /// Which one.
        file: PathBuf,
        /// Where and what.
        reason: Box<AuthorizationError>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Rules {
    /// Reads the policy and the files that it names; relative paths are beside the policy.
    ///
    /// # Errors
    /// [`RulesError`] names the file and the line.
    pub fn open(policy: &Path) -> Result<Arc<Self>, RulesError> {
        // Stamps first: what changes while it is read is read again.
        let policy_stamp = stamp(policy);
        let current = read(policy)?;
        let files = named(policy, &current);
        let mut seen = vec![policy_stamp];
        seen.extend(files.iter().map(|file| stamp(file)));
        let again = read(policy)?;
        Ok(Arc::new(Self {
            policy: policy.to_owned(),
            current: ArcSwap::from_pointee(again),
            seen: Mutex::new(seen),
        }))
    }

    /// The rules as they are now.
    pub fn current(&self) -> Arc<Authorization> {
        self.current.load_full()
    }

    /// Reads again what has changed.
    pub(crate) fn renew(&self) -> Renewal {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.stamps(&self.current.load());
        if *seen == now {
            return Renewal::default();
        }
        match read(&self.policy) {
            Ok(rules) => {
                // A policy that names other files is looked at by these from now on.
                let unchanged = named(&self.policy, &rules).len() + 1 == now.len();
                *seen = if unchanged { now } else { Vec::new() };
                self.current.store(Arc::new(rules));
                Renewal {
                    changed: true,
                    faults: Vec::new(),
                }
            }
            Err(error) => {
                *seen = now;
                Renewal {
                    changed: false,
                    faults: vec![format!("the rules in force are kept: {error}")],
                }
            }
        }
    }

    fn stamps(&self, rules: &Authorization) -> Vec<Option<Stamp>> {
        let mut stamps = vec![stamp(&self.policy)];
        stamps.extend(named(&self.policy, rules).iter().map(|file| stamp(file)));
        stamps
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let facts = fs::metadata(file).ok()?;
    Some(Stamp {
        inode: facts.ino(),
        size: facts.size(),
        changed: (facts.ctime(), facts.ctime_nsec()),
    })
}

/// The files that a policy names.
fn named(policy: &Path, rules: &Authorization) -> Vec<PathBuf> {
    let beside = policy.parent().unwrap_or_else(|| Path::new("."));
    [rules.ban_list(), rules.grid_mapfile()]
        .into_iter()
        .flatten()
        .map(|file| beside.join(file))
        .collect()
}

fn read(policy: &Path) -> Result<Authorization, RulesError> {
    let content = |file: &Path| {
        let file = file.to_owned();
        move |reason| RulesError::Content {
            file,
            reason: Box::new(reason),
        }
    };
    let mut rules = Authorization::parse(&text(policy)?).map_err(content(policy))?;
    let beside = policy.parent().unwrap_or_else(|| Path::new("."));
    if let Some(file) = rules.ban_list().map(|file| beside.join(file)) {
        rules = rules.with_bans(&text(&file)?).map_err(content(&file))?;
    }
    if let Some(file) = rules.grid_mapfile().map(|file| beside.join(file)) {
        rules = rules
            .with_grid_mapfile(&text(&file)?)
            .map_err(content(&file))?;
    }
    Ok(rules)
}

fn text(file: &Path) -> Result<String, RulesError> {
    fs::read_to_string(file).map_err(|reason| RulesError::File {
        file: file.to_owned(),
        reason,
    })
}
