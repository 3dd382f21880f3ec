//! Which files a process uses, and whom it sends signals: Landlock, all of it or an error.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

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
    for path in FACTS.map(Path::new) {
        // Some machines don't say how they are made.
        if path.exists() {
            rules = add(rules, path, AccessFs::ReadFile | AccessFs::ReadDir)?;
        }
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
    if !path.is_absolute() {
        return Err(ConfinementError::RelativePath(path.to_owned()));
    }
    let failed = |source| ConfinementError::Path {
        path: PathBuf::from(path),
        source,
    };
    // A file has fewer rights than a folder, and others would be an error.
    let access = match std::fs::metadata(path).map_err(failed)?.is_dir() {
        true => access,
        false => access & AccessFs::from_file(VERSION),
    };
    let open = PathFd::new(path).map_err(|error| failed(std::io::Error::other(error)))?;
    rules
        .add_rule(PathBeneath::new(open, access))
        .map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "it stands behind map_err")]
fn refused(error: RulesetError) -> ConfinementError {
    ConfinementError::Files(error.to_string())
}
