//! The files of trust directories: which there are, whether they changed, what they hold.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use exoskel_identity::TrustFile;
use exoskel_identity::limits::{TRUST_FILE_BYTES_MAX, TRUST_FILES_MAX};

use crate::stamp::{Stamp, Stamps};
use crate::trust::{OpenError, TrustDirectories};

/// Characters of the hash that names the files of an authority.
const HASH_CHARACTERS: usize = 8;

/// The files that are there now, not read yet.
pub(crate) struct Found {
    anchors: Vec<Entry>,
    vomsdir: Vec<Entry>,
}

struct Entry {
    name: String,
    path: PathBuf,
    /// Nothing for a file that is there and can't be looked at.
    stamp: Option<Stamp>,
}

/// Lists both directories.
///
/// # Errors
/// [`OpenError::Directory`] when one of them can't be listed.
pub(crate) fn look(directories: &TrustDirectories) -> Result<Found, OpenError> {
    let failed = |directory: &Path| {
        let directory = directory.to_owned();
        move |reason| OpenError::Directory { directory, reason }
    };
    let mut anchors = Vec::new();
    list(&directories.anchors, "", is_of_authority, &mut anchors)
        .map_err(failed(&directories.anchors))?;
    let mut vomsdir = Vec::new();
    if let Some(directory) = &directories.vomsdir {
        for organisation in folders(directory).map_err(failed(directory))? {
            let path = directory.join(&organisation);
            let prefix = format!("{organisation}/");
            list(&path, &prefix, is_of_server, &mut vomsdir).map_err(failed(&path))?;
        }
    }
    anchors.sort_by(|one, other| one.name.cmp(&other.name));
    vomsdir.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Found { anchors, vomsdir })
}

impl Found {
    /// By which a change is noticed without reading.
    pub(crate) fn stamps(&self) -> Stamps {
        let all = self.anchors.iter().chain(&self.vomsdir);
        all.map(|entry| (entry.path.clone(), entry.stamp)).collect()
    }

    /// The contents of both directories, and what could not be read.
    pub(crate) fn read(self) -> (Vec<TrustFile>, Vec<TrustFile>, Vec<String>) {
        let mut faults = Vec::new();
        let anchors = read_all(self.anchors, &mut faults);
        let vomsdir = read_all(self.vomsdir, &mut faults);
        (anchors, vomsdir, faults)
    }
}

/// `HASH.0`, `HASH.r0`, `HASH.signing_policy`, `HASH.namespaces`. The names beside them that the IGTF's packages link to
/// these are not read a second time.
fn is_of_authority(name: &str) -> bool {
    name.get(..HASH_CHARACTERS)
        .is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
        && name[HASH_CHARACTERS..].starts_with('.')
        && !name.ends_with(".info")
        && !name.ends_with(".crl_url")
}

fn is_of_server(name: &str) -> bool {
    name.ends_with(".lsc") || name.ends_with(".pem")
}

fn list(
    directory: &Path,
    prefix: &str,
    is_wanted: fn(&str) -> bool,
    found: &mut Vec<Entry>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_wanted(&name) || found.len() > TRUST_FILES_MAX {
            continue;
        }
        let path = entry.path();
        let name = format!("{prefix}{name}");
        // Links are followed: that is how hashes name certificates. One that leads nowhere counts as a deleted file. What
        // can't be looked at for another reason is there, and reading it says why it can't be used.
        let stamp = match fs::metadata(&path) {
            Ok(facts) if facts.is_file() => Some(Stamp::new(&facts)),
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => None,
        };
        found.push(Entry { name, path, stamp });
    }
    Ok(())
}

fn folders(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if fs::metadata(entry.path()).is_ok_and(|facts| facts.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

fn read_all(entries: Vec<Entry>, faults: &mut Vec<String>) -> Vec<TrustFile> {
    let read = entries.into_iter().map(|entry| {
        let content = read(&entry.path).unwrap_or_else(|error| {
            faults.push(format!("{} can't be read: {error}", entry.path.display()));
            // An empty file is one whose last good state is kept; leaving it out would say that it was deleted.
            Vec::new()
        });
        TrustFile {
            name: entry.name,
            content,
        }
    });
    read.collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // One byte more than the longest kind of file may have: whoever parses it sees that it is too long.
    let most = u64::try_from(TRUST_FILE_BYTES_MAX).unwrap_or(u64::MAX);
    File::open(path)?
        .take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    Ok(content)
}
