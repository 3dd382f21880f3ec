//! Memory for compact keys that stays out of swap, core dumps, forked children and, where the kernel can, out of the kernel's own map.
//!
//! Has `unsafe` code: a system call that no library wraps, and a mapping of a descriptor.
#![allow(
    unsafe_code,
    reason = "memfd_secret has no safe wrapper, and memmap2 can't know that a file is ours alone"
)]

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::str::FromStr;
use std::sync::Arc;

use exoskel_link::keys::{
    COMPACT_KEY_BYTES, GeometryError, KEYS_OF_SESSION, KeyMemory, KeyStore, ReadyKeys,
};
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::fork::Owned;

/// The most memory for compact keys, about 95,000 of them: half of what a process may commonly lock (`ulimit -l`, 8 MiB).
const MEMORY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How memory for keys is protected, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryProtection {
    /// `memfd_secret` (Linux 5.14): in no other process's reach and not even in the kernel's own map of memory; never in swap.
    Secret,
    /// `mlock`: never in swap, nor in a core dump.
    Locked,
    /// Memory like any other.
    Ordinary,
}

impl MemoryProtection {
    const ALL: [Self; 3] = [Self::Secret, Self::Locked, Self::Ordinary];

    /// The word in settings and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Locked => "locked",
            Self::Ordinary => "ordinary",
        }
    }
}

impl FromStr for MemoryProtection {
    type Err = ParseMemoryProtectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|protection| protection.name() == text)
            .ok_or_else(|| ParseMemoryProtectionError(text.to_owned()))
    }
}

/// A word that names no [`MemoryProtection`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got {0:?}, expected \"secret\", \"locked\" or \"ordinary\"")]
pub struct ParseMemoryProtectionError(String);

/// No key store as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum KeyMemoryError {
    /// The kernel doesn't give such memory.
    #[error(
        "got no {} memory of {bytes} bytes for keys ({source}): raise the limit on locked memory (ulimit -l), or ask for a weaker kind", .wanted.name()
    )]
    Refused {
        /// What was asked for.
        wanted: MemoryProtection,
        /// How much.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// More keys than a store can number.
    #[error("the memory for compact keys: {0}")]
    Store(#[from] GeometryError),
}

/// The keys of a node, and how the memory of its compact keys is protected.
#[derive(Clone)]
pub struct NodeKeys {
    /// The store that all sessions of the node share.
    pub store: KeyStore,
    /// What was got.
    pub protection: MemoryProtection,
    /// Why it is no better kind, one line for each that was tried.
    pub foregone: Vec<String>,
}

impl NodeKeys {
    /// A store for a node with so many sessions at a time: its compact keys in memory of this kind, or of the best kind that there is, its
    /// expanded ones with those of the other nodes that share `ready`.
    ///
    /// # Errors
    /// [`KeyMemoryError::Refused`] if there is no memory of the kind that was asked for. Without such a demand there is always some.
    pub fn new(
        ready: &Arc<ReadyKeys>,
        sessions: usize,
        demanded: Option<MemoryProtection>,
    ) -> Result<Self, KeyMemoryError> {
        let bytes = sessions
            .max(1)
            .saturating_mul(KEYS_OF_SESSION * COMPACT_KEY_BYTES)
            .min(MEMORY_BYTES_MAX);
        let (memory, protection, foregone) = match demanded {
            Some(wanted) => {
                let refused = |source| KeyMemoryError::Refused {
                    wanted,
                    bytes,
                    source,
                };
                (lend(bytes, wanted).map_err(refused)?, wanted, Vec::new())
            }
            None => lend_best(bytes),
        };
        Ok(Self {
            store: KeyStore::sharing(ready, memory)?,
            protection,
            foregone,
        })
    }
}

fn lend_best(bytes: usize) -> (Box<dyn KeyMemory>, MemoryProtection, Vec<String>) {
    let mut foregone = Vec::new();
    for protection in [MemoryProtection::Secret, MemoryProtection::Locked] {
        match lend(bytes, protection) {
            Ok(memory) => return (memory, protection, foregone),
            Err(error) => foregone.push(format!("{}: {error}", protection.name())),
        }
    }
    (
        Box::new(vec![0; bytes]),
        MemoryProtection::Ordinary,
        foregone,
    )
}

fn lend(bytes: usize, protection: MemoryProtection) -> io::Result<Box<dyn KeyMemory>> {
    let map = match protection {
        MemoryProtection::Ordinary => return Ok(Box::new(vec![0; bytes])),
        MemoryProtection::Locked => {
            let map = MmapOptions::new().len(bytes).map_anon()?;
            map.lock()?;
            map
        }
        MemoryProtection::Secret => secret_map(bytes)?,
    };
    // A child would find the parent's keys, in secret memory even the parent's own pages. Without these it has none at all.
    map.advise(Advice::DontFork)?;
    map.advise(Advice::DontDump)?;
    let map = Owned::new(map)?;
    Ok(Box::new(ProtectedMemory { map, bytes }))
}

#[cfg(target_os = "linux")]
fn secret_map(bytes: usize) -> io::Result<MmapMut> {
    // SAFETY: the call takes one number and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let descriptor = match i32::try_from(descriptor) {
        Ok(descriptor) if descriptor >= 0 => descriptor,
        _ => return Err(io::Error::last_os_error()),
    };
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes as u64)?;
    // SAFETY: the file has no name, and its only descriptor is closed when this function ends, so that nobody can change or shorten
    // it; children get neither the descriptor (close on exec) nor, by `lend`, the mapping.
    unsafe { MmapOptions::new().len(bytes).map_mut(&file) }
}

#[cfg(not(target_os = "linux"))]
fn secret_map(_bytes: usize) -> io::Result<MmapMut> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A mapping that only the process that made it has: in a child something else may be mapped there by now.
struct ProtectedMemory {
    map: Owned<MmapMut>,
    bytes: usize,
}

impl KeyMemory for ProtectedMemory {
    fn bytes(&mut self) -> &mut [u8] {
        match self.map.get_mut() {
            Some(map) => &mut map[..self.bytes],
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use exoskel_link::keys::room_for_sessions;

    use super::*;

    /// Whatever kind of memory this machine gives, keys stand in it and the report says which.
    #[test]
    fn the_best_memory_is_found_and_named() {
        let ready = ReadyKeys::new(room_for_sessions(4));
        let keys = NodeKeys::new(&ready, 4, None).unwrap();
        let better = MemoryProtection::ALL
            .into_iter()
            .filter(|kind| *kind < keys.protection)
            .map(MemoryProtection::name);
        let tried = keys
            .foregone
            .iter()
            .map(|why| why.split(':').next().unwrap_or_default());
        assert!(tried.eq(better));
    }

    #[test]
    fn memory_that_was_lent_can_be_written() {
        for protection in MemoryProtection::ALL {
            // Which kinds there are is the machine's business; those that it gives have to work.
            if let Ok(mut memory) = lend(10_000, protection) {
                memory.bytes().fill(7);
                assert_eq!(memory.bytes(), vec![7; 10_000]);
            }
        }
    }

    #[test]
    fn too_much_is_refused_by_name() {
        let refused = lend(1 << 46, MemoryProtection::Locked).map(drop);
        assert!(refused.is_err());
    }

    #[test]
    fn unknown_kinds_are_named() {
        let error = "best".parse::<MemoryProtection>().unwrap_err().to_string();
        assert_eq!(
            error,
            "got \"best\", expected \"secret\", \"locked\" or \"ordinary\""
        );
        for protection in MemoryProtection::ALL {
            assert_eq!(protection.name().parse(), Ok(protection));
        }
    }
}
