//! A policy, and the site's lists that it names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use exoskel_identity::Authorization;

use crate::document::Document;

/// Where a policy is, and with it the ban list and the grid-mapfile that it names.
#[derive(Clone, Debug)]
pub struct PolicyFile(Document);

/// Why a policy or a list can't be read. Its administrator must act.
#[derive(Debug, thiserror::Error)]
#[error("can't read the {what} {}: {reason}", path.display())]
pub struct PolicyFileError {
    /// Whether it is the policy, its ban list or its grid-mapfile.
    pub what: &'static str,
    /// Which file.
    pub path: PathBuf,
    /// What the system says.
    pub reason: io::Error,
}

impl PolicyFile {
    /// The policy in this document.
    pub fn new(document: Document) -> Self {
        Self(document)
    }

    /// What to call the policy in a message.
    pub fn name(&self) -> String {
        let path = self.0.path();
        path.map_or_else(|| "policy".to_owned(), |path| path.display().to_string())
    }

    /// The policy as it is written, to be parsed.
    ///
    /// # Errors
    /// [`PolicyFileError`] when the file can't be read.
    pub fn text(&self) -> Result<String, PolicyFileError> {
        match &self.0 {
            Document::File(path) => read("policy", path),
            Document::Memory(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        }
    }

    /// Where the ban list is that these rules of the policy name: beside the policy, unless its path is absolute.
    pub fn ban_list(&self, rules: &Authorization) -> Option<PathBuf> {
        rules.ban_list().map(|list| self.beside(list))
    }

    /// Where the grid-mapfile is that these rules of the policy name.
    pub fn grid_mapfile(&self, rules: &Authorization) -> Option<PathBuf> {
        rules.grid_mapfile().map(|file| self.beside(file))
    }

    /// The policy's own file, if it is in one, and those that these rules of it name.
    pub fn files(&self, rules: &Authorization) -> Vec<PathBuf> {
        let policy = self.0.path().map(Path::to_owned);
        let named = [self.ban_list(rules), self.grid_mapfile(rules)];
        policy
            .into_iter()
            .chain(named.into_iter().flatten())
            .collect()
    }

    /// The policy's own file, if it is in one.
    pub fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Reads the ban list that these rules of the policy name.
    ///
    /// # Errors
    /// [`PolicyFileError`] when the file can't be read.
    pub fn read_ban_list(
        &self,
        rules: &Authorization,
    ) -> Result<Option<SiteList>, PolicyFileError> {
        let list = self.ban_list(rules);
        list.map(|path| SiteList::read("ban list", path))
            .transpose()
    }

    /// Reads the grid-mapfile that these rules of the policy name.
    ///
    /// # Errors
    /// [`PolicyFileError`] when the file can't be read.
    pub fn read_grid_mapfile(
        &self,
        rules: &Authorization,
    ) -> Result<Option<SiteList>, PolicyFileError> {
        let file = self.grid_mapfile(rules);
        file.map(|path| SiteList::read("grid-mapfile", path))
            .transpose()
    }

    fn beside(&self, file: &str) -> PathBuf {
        let folder = self.0.path().and_then(Path::parent);
        folder.map_or_else(|| file.into(), |folder| folder.join(file))
    }
}

/// A list that a policy names, as it is written.
#[derive(Clone, Debug)]
pub struct SiteList {
    /// Where it is.
    pub path: PathBuf,
    /// What it says, to be parsed.
    pub text: String,
}

impl SiteList {
    fn read(what: &'static str, path: PathBuf) -> Result<Self, PolicyFileError> {
        let text = read(what, &path)?;
        Ok(Self { path, text })
    }
}

fn read(what: &'static str, path: &Path) -> Result<String, PolicyFileError> {
    fs::read_to_string(path).map_err(|reason| PolicyFileError {
        what,
        path: path.to_owned(),
        reason,
    })
}
