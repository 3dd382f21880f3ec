//! How much a process may use, and that it has no rights of root.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities};

use crate::{Confinement, ConfinementError, failed};

/// What may wait in the kernel for who reads a descriptor, at most: no limit on memory counts it. The system's default is about half of it for a
/// socket, which its owner may double.
const DESCRIPTOR_BYTES: u64 = 512 << 10;

/// So many descriptors a Python needs with some files open.
const DESCRIPTORS_MIN: u64 = 64;

/// How many threads this process has.
pub(crate) fn threads() -> Result<usize, ConfinementError> {
    let listed = fs::read_dir("/proc/self/task").map_err(|source| ConfinementError::System {
        step: "count the threads of this process in /proc",
        source,
    })?;
    Ok(listed.count())
}

/// Sets the limits. They hold for each process that comes from this one, that on processes for all together.
pub(crate) fn apply(confinement: &Confinement) -> Result<Vec<String>, ConfinementError> {
    let mut held = Vec::new();
    if let Some(processes) = confinement.processes_max {
        count_apart(processes)?;
        limit(Resource::Nproc, processes)?;
        held.push(format!("{processes} processes and threads"));
    }
    // A dump would show what another job of the account may read.
    limit(Resource::Core, 0)?;
    if let Some(bytes) = confinement.memory_bytes_max {
        // Of all limits the kernel has, only that of the address space knows of memory that is shared or mapped.
        limit(Resource::As, bytes)?;
        // What it has sent and nobody has read is memory, too.
        limit_descriptors((bytes / DESCRIPTOR_BYTES).max(DESCRIPTORS_MIN))?;
        held.push(format!("{bytes} bytes of memory for each process"));
    }
    if let Some(bytes) = confinement.file_bytes_max {
        limit(Resource::Fsize, bytes)?;
        held.push(format!("{bytes} bytes for each file"));
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(failed("give up the rights of root"))?;
    Ok(held)
}

/// Has the kernel count this process and those that come from it apart from all others of the account: in a user namespace of their own,
/// where the account is what it is.
fn count_apart(processes: u64) -> Result<(), ConfinementError> {
    let (account, group) = (geteuid().as_raw(), getegid().as_raw());
    if account == 0 {
        return Err(ConfinementError::ProcessesOfRoot(processes));
    }
    let unable = |source| ConfinementError::Processes {
        asked: processes,
        source,
    };
    #[expect(
        deprecated,
        reason = "what is unsafe of it is to part threads from descriptors, and this parts neither"
    )]
    let parted = rustix::thread::unshare(UnshareFlags::NEWUSER);
    parted.map_err(|error| unable(io::Error::from(error)))?;
    for (place, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{account} {account} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(place, text).map_err(unable)?;
    }
    Ok(())
}

/// How many descriptors it may have. Programs that can't deal with many have a lower limit of their own, which they raise up to this.
fn limit_descriptors(most: u64) -> Result<(), ConfinementError> {
    let before = getrlimit(Resource::Nofile);
    let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let limit = Rlimit {
        current: lower(before.current),
        maximum: lower(before.maximum),
    };
    setrlimit(Resource::Nofile, limit).map_err(failed("set a limit"))
}

fn limit(resource: Resource, most: u64) -> Result<(), ConfinementError> {
    // One that is lower already stays.
    let before = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(before));
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(resource, limit).map_err(failed("set a limit"))
}
