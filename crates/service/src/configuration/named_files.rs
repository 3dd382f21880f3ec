//! Where a configuration names files, so that one that can't be used is said with its line.

use std::path::{Path, PathBuf};

use exoskel_identity::policy_text::line_of;
use exoskel_trust::{FileError, OpenTrustError, RulesError};
use serde::Deserialize;
use toml::Spanned;

use super::ConfigurationError;
use crate::host::HostCredentialError;
use crate::secret::SecretError;

/// The tables that name files.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamingTables {
    policy: Option<Spanned<PathBuf>>,
    host: NamingTable,
    trust: NamingTable,
    upstream: NamingTable,
}

/// The keys of all these tables.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamingTable {
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
    anchors: Option<Spanned<PathBuf>>,
    vomsdir: Option<Spanned<PathBuf>>,
    secret: Option<Spanned<PathBuf>>,
}

/// The files that a configuration names, placed `beside` it, with the line of each.
pub(super) fn read(text: &str, beside: &Path) -> Vec<(PathBuf, usize)> {
    // It was read before, so there is no error.
    let tables: NamingTables = toml::from_str(text).unwrap_or_default();
    let of_tables = [tables.host, tables.trust, tables.upstream];
    let keys = of_tables.into_iter().flat_map(|table| {
        [
            table.certificate,
            table.key,
            table.anchors,
            table.vomsdir,
            table.secret,
        ]
    });
    let named = keys.chain([tables.policy]).flatten();
    named
        .map(|file| {
            (
                beside.join(file.get_ref()),
                line_of(text, file.span().start),
            )
        })
        .collect()
}

impl ConfigurationError {
    /// The file or directory that can't be used, where it is one that a configuration names.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Rules(RulesError::File(error)) => Some(&error.path),
            Self::Trust(
                OpenTrustError::Directory { directory, .. }
                | OpenTrustError::NoAuthority { directory },
            ) => Some(directory),
            Self::Host(error) => match error {
                HostCredentialError::File(error) => Some(path_of(error)),
                HostCredentialError::Pem { file, .. }
                | HostCredentialError::NoCertificate { file }
                | HostCredentialError::OutOfDate { file, .. }
                | HostCredentialError::NoKey { file } => Some(file),
                HostCredentialError::Mismatch { certificate, .. } => Some(certificate),
            },
            Self::Secret(SecretError::File(error)) => Some(path_of(error)),
            Self::Secret(SecretError::Unsound { file, .. }) => Some(file),
            _ => None,
        }
    }
}

fn path_of(error: &FileError) -> &Path {
    match error {
        FileError::Read { path, .. }
        | FileError::NotPrivate { path, .. }
        | FileError::NotAFile { path }
        | FileError::TooLong { path, .. } => path,
    }
}
