//! Whether a folder is one in which nobody else can put a file into the place of ours.
//!
//! The permissions of a file say nothing if somebody else can rename its folder. So the whole way to a folder is walked, and
//! symbolic links on it are followed by hand: who owns a link decides where it leads.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Permission bits of a folder in which others may make and remove files.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The one of them that is the group's.
const WRITABLE_BY_GROUP: u32 = 0o020;

/// Others may make files in a folder with this bit, but not remove or rename ours.
const STICKY: u32 = 0o1000;

/// Symbolic links on the way to a folder, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Somebody else can put another file into the place of one of ours. Its owner, or whoever chose the path, must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Replaceable {
    /// By making and renaming files in a folder.
    #[error(
        "others can replace files in {} (mode {mode:o}, owner {owner}), expected one that only you can write to: \
         run \"chmod go-w {}\" if it is yours, or choose another path", .folder.display(), .folder.display()
    )]
    Folder {
        /// The folder, or one above it.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The number of its owner's account.
        owner: u32,
    },
    /// By letting a link lead to elsewhere.
    #[error(
        "{} is a symbolic link of account {owner}, expected one of your own: remove it, or choose another path", .link.display()
    )]
    Link {
        /// The link.
        link: PathBuf,
        /// The number of its owner's account.
        owner: u32,
    },
    /// By writing into a file that is theirs, or by keeping it from being replaced.
    #[error(
        "{} belongs to account {owner}, expected a new file or one of your own: remove it, or choose another path", .file.display()
    )]
    File {
        /// What is there.
        file: PathBuf,
        /// The number of its owner's account.
        owner: u32,
    },
}

/// Who else can replace files of ours in a folder. What doesn't exist yet is no fault: it is judged up to there.
///
/// # Errors
/// When the system can't say.
pub(crate) fn replaceable(folder: &Path) -> io::Result<Option<Replaceable>> {
    let account = Account::own();
    let mut rest = parts(&std::path::absolute(folder)?);
    let (mut here, mut links) = (PathBuf::from("/"), 0);
    loop {
        let facts = std::fs::metadata(&here)?;
        if !account.keeps_files_in(&facts) {
            return Ok(Some(Replaceable::Folder {
                folder: here,
                mode: facts.mode() & 0o7777,
                owner: facts.uid(),
            }));
        }
        let Some(part) = rest.pop_front() else {
            return Ok(None);
        };
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(part);
        let facts = match std::fs::symlink_metadata(&next) {
            Ok(facts) => facts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !facts.is_symlink() {
            here = next;
            continue;
        }
        if !account.trusts(facts.uid()) {
            return Ok(Some(Replaceable::Link {
                link: next,
                owner: facts.uid(),
            }));
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = std::fs::read_link(&next)?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        for part in parts(&target).into_iter().rev() {
            rest.push_front(part);
        }
    }
}

/// Whether a folder that is there is ours and nobody else can even make files in it.
///
/// # Errors
/// When the system can't say.
pub(crate) fn shared(folder: &Path) -> io::Result<Option<Replaceable>> {
    let facts = std::fs::symlink_metadata(folder)?;
    let account = Account::own();
    let is_own = facts.is_dir() && account.trusts(facts.uid()) && !account.lets_write(&facts);
    Ok((!is_own).then(|| Replaceable::Folder {
        folder: folder.to_owned(),
        mode: facts.mode() & 0o7777,
        owner: facts.uid(),
    }))
}

/// Whether a file is there that somebody else made: a link, too.
///
/// # Errors
/// When the system can't say.
pub(crate) fn of_somebody_else(file: &Path) -> io::Result<Option<Replaceable>> {
    match std::fs::symlink_metadata(file) {
        Ok(facts) if facts.uid() != Account::own().number => Ok(Some(Replaceable::File {
            file: file.to_owned(),
            owner: facts.uid(),
        })),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names on a path; one that leads nowhere is left out.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

/// The account of this process.
struct Account {
    number: u32,
}

impl Account {
    fn own() -> Self {
        Self {
            number: rustix::process::geteuid().as_raw(),
        }
    }

    /// Root can do everything anyway.
    fn trusts(&self, owner: u32) -> bool {
        owner == self.number || owner == 0
    }

    fn keeps_files_in(&self, folder: &Metadata) -> bool {
        self.trusts(folder.uid()) && (!self.lets_write(folder) || folder.mode() & STICKY != 0)
    }

    fn lets_write(&self, folder: &Metadata) -> bool {
        let writable = folder.mode() & WRITABLE_BY_OTHERS;
        writable != 0 && !(writable == WRITABLE_BY_GROUP && self.is_alone_in(folder.gid()))
    }

    /// Whether a group is the private one of this account. Many systems give each account its own group, and let it write by
    /// default. Root has no such habit.
    fn is_alone_in(&self, group: u32) -> bool {
        if self.number == 0 {
            return false;
        }
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        is_private(
            self.number,
            group,
            &read("/etc/group"),
            &read("/etc/passwd"),
        )
    }
}

/// Whether a group has the number of an account and nobody else in it. One that the host's own files don't list may have
/// members that we don't know.
fn is_private(account: u32, group: u32, groups: &str, accounts: &str) -> bool {
    let (owner, number) = (account.to_string(), group.to_string());
    // NAME:PASSWORD:GROUP:MEMBERS
    let is_empty = groups.lines().any(|line| {
        let mut fields = line.split(':').skip(2);
        fields.next() == Some(&*number) && fields.next().is_some_and(str::is_empty)
    });
    // NAME:PASSWORD:ACCOUNT:GROUP:...
    let is_shared = accounts.lines().any(|line| {
        let mut fields = line.split(':').skip(2);
        fields.next() != Some(&*owner) && fields.next() == Some(&*number)
    });
    account == group && is_empty && !is_shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_group_has_one_member() {
        let groups = "root:x:0:\nada:x:1000:\nbob:x:1001:ada\nteam:x:2000:ada,bob\n";
        let accounts = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
        let lodger = "eve:x:1002:1000::/home/eve:/bin/sh\n";
        assert!(is_private(1000, 1000, groups, accounts));
        assert!(!is_private(1001, 1001, groups, accounts), "ada is in it");
        assert!(!is_private(1000, 2000, groups, accounts));
        assert!(!is_private(1003, 1003, groups, accounts), "nobody lists it");
        assert!(!is_private(
            1000,
            1000,
            groups,
            &format!("{accounts}{lodger}")
        ));
        assert!(!is_private(1000, 1000, "", ""));
    }
}
