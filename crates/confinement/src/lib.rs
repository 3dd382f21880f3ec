//! What holds a process of foreign code, from before its first line to its end, and everything that it starts.
//!
//! A process confines itself while it has one thread: what holds it is bound to threads, and comes down to those that are made later. The
//! kernel's parts are asked for as a whole: what this kernel can't do is an error, never a weaker confinement.
//!
//! - `files`: which files it reads and writes, and that its signals reach nobody outside (Landlock).
//! - `system_calls`: what it can't ask of the kernel (seccomp).
//! - `limits`: memory, processes, sizes of files.

#![forbid(unsafe_code)]

mod files;
mod limits;
mod system_calls;

use std::io;
use std::path::PathBuf;

/// What a process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Files and folders, with all below, that it may read and execute.
    pub read: Vec<PathBuf>,
    /// More of them. One that is not there is left out.
    pub read_if_there: Vec<PathBuf>,
    /// Those that it may read, write and remove. What is there can't be executed.
    pub write: Vec<PathBuf>,
    /// What it may connect to.
    pub network: NetworkAccess,
    /// The address space of each process, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// Processes and threads at the same time, with those that they start.
    pub processes_max: Option<u64>,
    /// The length of each file that it writes, in bytes.
    pub file_bytes_max: Option<u64>,
}

/// What a process may connect to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkAccess {
    /// To nobody: it makes no socket. Those that it has got, it keeps.
    #[default]
    Closed,
    /// To everybody.
    Open,
}

/// Why a process can't be confined as asked. Whoever runs this machine must act, or ask for less.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    /// The other threads would not be held.
    #[error("got {0} threads, expected one: what holds a process is bound to threads")]
    Threads(usize),
    /// A path that is not there, or can't be opened.
    #[error("can't let it use {}: {source}", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A path that depends on where the process is.
    #[error("got the path {}, expected one that begins with /", .0.display())]
    RelativePath(PathBuf),
    /// The kernel has no Landlock, or one without these parts.
    #[error(
        "this kernel can't hold it to files and signals ({0}): it takes Linux 6.12 or newer, with Landlock"
    )]
    Files(String),
    /// The kernel has no seccomp.
    #[error("this kernel can't keep system calls from it: {0}")]
    SystemCalls(String),
    /// A limit on processes that nobody can hold.
    #[error(
        "processes={0} can't be held for the account root, which no limit binds: run the agent under another account, or don't limit processes"
    )]
    ProcessesOfRoot(u64),
    /// The kernel counts processes for each account, unless there are user namespaces.
    #[error(
        "processes={asked} can't be held here, without user namespaces for this account ({source}): allow them, or don't limit processes"
    )]
    Processes {
        /// How many.
        asked: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The system refuses a step that it always has.
    #[error("can't {step}: {source}")]
    System {
        /// What was to be done.
        step: &'static str,
        /// What it says.
        #[source]
        source: io::Error,
    },
}

impl Confinement {
    /// Confines this process, for ever. Says what holds it now, a phrase each.
    ///
    /// # Errors
    /// [`ConfinementError`] when something that was asked for can't be had. The process is then held by some of it, and must end.
    pub fn apply(&self) -> Result<Vec<String>, ConfinementError> {
        match limits::threads()? {
            1 => {}
            more => return Err(ConfinementError::Threads(more)),
        }
        let mut held = Vec::new();
        // The paths are opened by the rights that it has before.
        let files = files::prepare(self)?;
        held.extend(limits::apply(self)?);
        held.push(files.apply()?);
        // At last, as it keeps some of the above from happening.
        held.push(system_calls::apply(self.network)?);
        Ok(held)
    }
}

/// Makes what processes need that are forked from this one and confine themselves: each would make it anew, in memory of its own.
///
/// # Errors
/// [`ConfinementError`] when it can't be made; a process that confines itself would have the same.
pub fn prepare() -> Result<(), ConfinementError> {
    for network in [NetworkAccess::Closed, NetworkAccess::Open] {
        system_calls::prepare(network)?;
    }
    Ok(())
}

fn failed(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> ConfinementError {
    move |error| ConfinementError::System {
        step,
        source: error.into(),
    }
}
