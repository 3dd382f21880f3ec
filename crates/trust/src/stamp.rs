//! Whether files have changed, without reading them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Changes that are named. A package of authorities brings hundreds.
pub(crate) const CHANGES_LISTED_MAX: usize = 8;

/// A state of a file. The time of the inode's last change is part of it: writers can't set that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// The state that these facts are about.
    pub fn new(facts: &Metadata) -> Self {
        Self {
            device: facts.dev(),
            inode: facts.ino(),
            size: facts.size(),
            changed: (facts.ctime(), facts.ctime_nsec()),
        }
    }

    /// The state of a file now; nothing for one that can't be looked at.
    pub fn of(file: &Path) -> Option<Self> {
        fs::metadata(file).ok().map(|facts| Self::new(&facts))
    }
}

/// The states of several files. Two of these are equal if they are about the same files and none has changed in between.
///
/// Take them before you read the files: then a change while you read is noticed the next time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps(Vec<(PathBuf, Option<Stamp>)>);

impl Stamps {
    /// The states of these files now.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        files
            .into_iter()
            .map(|file| (file.to_owned(), Stamp::of(file)))
            .collect()
    }

    /// Which files are new, gone or changed since `before`, a phrase for each.
    pub(crate) fn since(&self, before: &Self) -> Vec<String> {
        let old: HashMap<_, _> = before.0.iter().map(|(file, stamp)| (file, stamp)).collect();
        let new: HashSet<_> = self.0.iter().map(|(file, _)| file).collect();
        let mut changes = Vec::new();
        for (file, stamp) in &self.0 {
            let is = match old.get(file) {
                None => "is new",
                Some(before) if *before == stamp => continue,
                Some(_) if stamp.is_none() => "can't be looked at",
                Some(_) => "has changed",
            };
            changes.push(format!("{} {is}", file.display()));
        }
        let gone = before.0.iter().filter(|(file, _)| !new.contains(file));
        changes.extend(gone.map(|(file, _)| format!("{} is gone", file.display())));
        let more = changes.len().saturating_sub(CHANGES_LISTED_MAX);
        if more > 0 {
            changes.truncate(CHANGES_LISTED_MAX);
            changes.push(format!("{more} other files"));
        }
        changes
    }
}

impl FromIterator<(PathBuf, Option<Stamp>)> for Stamps {
    fn from_iter<T: IntoIterator<Item = (PathBuf, Option<Stamp>)>>(stamps: T) -> Self {
        Self(stamps.into_iter().collect())
    }
}
