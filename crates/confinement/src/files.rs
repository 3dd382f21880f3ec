//! Which files a process uses, and whom it sends signals: Landlock, all of it or an error.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    PathFdError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};

use rustix::fs::FileType;

use crate::{Confinement, ConfinementError, NetworkAccess};

/// The first version that keeps signals, and sockets without a path, inside.
const VERSION: ABI = ABI::V6;

/// What every program may use: nothing of it is anybody's.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// What every program may read: random numbers, how the machine is made and which one it is, and what it is itself.
const FACTS: [&str; 7] = [
    "/dev/urandom",
    "/dev/random",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/kernel/random/boot_id",
    "/proc/self",
    "/sys/devices/system/cpu",
];

/// Rules that are ready.
pub(crate) struct FileRules(RulesetCreated);

/// Opens all paths.
pub(crate) fn prepare(confinement: &Confinement) -> Result<FileRules, ConfinementError> {
    let all = AccessFs::from_all(VERSION);
    let read = AccessFs::from_read(VERSION);
    // What is written there is data. Devices would be doors to the machine.
    let write =
        all & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let mut rules = created(all, confinement.network).map_err(refused)?;
    for path in &confinement.read {
        rules = add(rules, path, read)?;
    }
    for path in &confinement.write {
        rules = add(rules, path, write)?;
    }
    for path in DEVICES {
        rules = add(
            rules,
            Path::new(path),
            AccessFs::ReadFile | AccessFs::WriteFile,
        )?;
    }
    for path in &confinement.read_if_there {
        rules = add_if_there(rules, path, read)?;
    }
    for path in FACTS {
        // Some machines don't say how they are made.
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        rules = add_if_there(rules, Path::new(path), read)?;
    }
    Ok(FileRules(rules))
}

impl FileRules {
    /// Holds this process to them.
    pub(crate) fn apply(self) -> Result<String, ConfinementError> {
        let status = self.0.restrict_self().map_err(refused)?;
        if status.ruleset != RulesetStatus::FullyEnforced || !status.no_new_privs {
            return Err(ConfinementError::Files(format!("{:?}", status.ruleset)));
        }
        Ok("files and signals (Landlock)".to_owned())
    }
}

fn created(
    all: BitFlags<AccessFs>,
    network: NetworkAccess,
) -> Result<RulesetCreated, RulesetError> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)?;
    match network {
        NetworkAccess::Open => rules.scope(Scope::Signal)?,
        NetworkAccess::Closed => rules
            .handle_access(AccessNet::from_all(VERSION))?
            .scope(Scope::from_all(VERSION))?,
    }
    .create()
}

fn add(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfinementError> {
    let opened = open(path)?.map_err(|source| unusable(path, source))?;
    add_opened(rules, path, opened, access)
}

fn add_if_there(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfinementError> {
    match open(path)? {
        Ok(opened) => add_opened(rules, path, opened, access),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(rules),
        Err(source) => Err(unusable(path, source)),
    }
}

fn open(path: &Path) -> Result<io::Result<PathFd>, ConfinementError> {
    if !path.is_absolute() {
        return Err(ConfinementError::RelativePath(path.to_owned()));
    }
    Ok(PathFd::new(path).map_err(|error| match error {
        PathFdError::OpenCall { source, .. } => source,
        other => io::Error::other(other),
    }))
}

fn unusable(path: &Path, source: io::Error) -> ConfinementError {
    ConfinementError::Path {
        path: PathBuf::from(path),
        source,
    }
}

fn add_opened(
    rules: RulesetCreated,
    path: &Path,
    open: PathFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfinementError> {
    let found = rustix::fs::fstat(&open).map_err(|error| unusable(path, error.into()))?;
    // A file has fewer rights than a folder, and others would be an error.
    let access = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => access,
        _ => access & AccessFs::from_file(VERSION),
    };
    rules
        .add_rule(PathBeneath::new(open, access))
        .map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "it stands behind map_err")]
fn refused(error: RulesetError) -> ConfinementError {
    ConfinementError::Files(error.to_string())
}
