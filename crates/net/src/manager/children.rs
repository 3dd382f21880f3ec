//! The children of this process: how they are started, with their connection, credential and options, and ended.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::Role;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustls::pki_types::UnixTime;

use super::attempt::AttemptError;
use crate::descendants::{MARK, end_marked, end_with_descendants};
use crate::descriptor::{inheritable, sealed_memory};
use crate::pki::ThrowAwayAuthority;
use crate::socket::Socket;

/// How children are started.
pub struct LocalWorkers {
    /// Program and arguments; the descriptors' numbers are added.
    pub command: Vec<OsString>,
    /// What they read first (opaque here).
    pub options: Bytes,
    /// What we talk to them over.
    pub transport: LocalTransport,
    /// Who signs their certificates.
    pub authority: ThrowAwayAuthority,
    /// The policy they apply, as TOML; none is the built-in one.
    pub policy: Option<String>,
}

/// What we talk to children over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalTransport {
    /// An inherited socketpair.
    Socketpair,
    /// Shared memory, beside an inherited socketpair. The same holds for workers that are reached over a Unix socket.
    SharedMemory,
    /// TCP on loopback, for measurements and tests.
    Tcp,
}

/// A child that was started: our end of the connection, and its name.
pub(super) type Started = Result<(Socket, String), AttemptError>;

/// The children that run.
#[derive(Debug, Default)]
pub(super) struct Children {
    running: HashMap<u32, LocalSlot>,
    /// Those of them that have had a session.
    met: HashSet<u32>,
}

/// A child, which of this host's slots it is, and what all that it starts has in its environment.
#[derive(Debug)]
struct LocalSlot {
    process: Child,
    slot: u32,
    mark: String,
}

impl Children {
    /// Starts a child with its end of the connection and its credential; says how to reach it and its name.
    pub(super) fn start(&mut self, local: Option<&LocalWorkers>, number: u32) -> Started {
        let failed = AttemptError::Start;
        let Some(local) = local else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let name = format!("local-{}", number + 1);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let credential =
            local
                .authority
                .issue(Role::Worker, &name, UnixTime::since_unix_epoch(now))?;
        let (socket, theirs) = pair(local.transport).map_err(failed)?;
        let secret = sealed_memory("exoskel-credential", &credential.to_pem()).map_err(failed)?;
        let options = sealed_memory("exoskel-options", &local.options).map_err(failed)?;
        let policy = local
            .policy
            .as_deref()
            .map(|policy| sealed_memory("exoskel-policy", policy.as_bytes()));
        let policy = policy.transpose().map_err(failed)?;
        let mut process = Process::new(&local.command[0]);
        let mark = format!("{}-{}-{number}", std::process::id(), now.as_nanos());
        process.args(&local.command[1..]).stdin(Stdio::null());
        let slot = self.free_slot();
        process.arg("--slot").arg(slot.to_string());
        // Ctrl-C and a notebook's stop are for the group of the user's process: what runs in slots goes on, or is ended from here.
        process.process_group(0).env(MARK, &mark);
        let mut give = |option: &str, descriptor: &OwnedFd| -> io::Result<()> {
            process
                .arg(option)
                .arg(inheritable(descriptor.as_fd())?.to_string());
            Ok(())
        };
        give("--options-fd", &options).map_err(failed)?;
        give("--connection-fd", &theirs).map_err(failed)?;
        give("--credential-fd", &secret).map_err(failed)?;
        if let Some(policy) = &policy {
            give("--policy-fd", policy).map_err(failed)?;
        }
        // The descriptors close here when `theirs`, `secret` and the others go, right after the child has its own.
        let process = process.spawn().map_err(failed)?;
        let child = LocalSlot {
            process,
            slot,
            mark,
        };
        self.running.insert(number, child);
        Ok((socket, name))
    }

    /// The lowest number that no running child has: what replaces a child can have its number, and its GPU.
    fn free_slot(&self) -> u32 {
        let is_free = |slot: &u32| self.running.values().all(|child| child.slot != *slot);
        (0..).find(is_free).unwrap_or_default()
    }

    /// A child has a session.
    pub(super) fn met(&mut self, number: u32) {
        self.met.insert(number);
    }

    /// How the process of a child ended; none as long as it runs.
    pub(super) fn process_end(&self, number: u32) -> Option<ProcessEnd> {
        self.running
            .get(&number)
            .map_or(Some(ProcessEnd::Unknown), LocalSlot::process_end)
    }

    /// Ends a child that has no session any more.
    pub(super) fn end(&mut self, number: u32) {
        self.met.remove(&number);
        if let Some(child) = self.running.remove(&number) {
            // Its session was over before it was: the end of a task may have been the slot's, whatever it said to the system.
            child.end(ChildState::Left);
        }
    }

    /// Waits for children to leave by themselves, then makes them. Those that only start have nothing to end in order.
    pub(super) async fn end_all(&mut self, patience: Duration) {
        let met = std::mem::take(&mut self.met);
        for (_, child) in self.running.extract_if(|number, _| !met.contains(number)) {
            child.end(ChildState::Fallen);
        }
        let deadline = Instant::now() + patience;
        while self
            .running
            .values()
            .any(|child| child.state() == ChildState::Runs)
            && Instant::now() < deadline
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.running
            .drain()
            .for_each(|(_, child)| child.end(ChildState::Fallen));
    }
}

/// How the process of a child ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// By its exit code or by a signal, in words.
    Known(String),
    /// Somebody else in this process has waited for it.
    Unknown,
}

/// What became of a child, from better to worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChildState {
    Runs,
    /// It has ended what its tasks left, as a slot does that leaves in order.
    Left,
    /// Nobody has ended what its tasks left.
    Fallen,
    /// Somebody else in this process has waited for it.
    Unknown,
}

impl LocalSlot {
    fn id(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()).ok()?)
    }

    fn process_end(&self) -> Option<ProcessEnd> {
        let status = match waitid(WaitId::Pid(self.id()?), ENDED) {
            Ok(status) => status?,
            Err(_) => return Some(ProcessEnd::Unknown),
        };
        let code = status.exit_status().map(|code| format!("exit code {code}"));
        let how = code.or_else(|| Some(killed_by(status.terminating_signal()?)));
        Some(how.map_or(ProcessEnd::Unknown, ProcessEnd::Known))
    }

    /// Without waiting for it: until then nobody else has its number, or that of its group.
    fn state(&self) -> ChildState {
        match self.id().map(|id| waitid(WaitId::Pid(id), ENDED)) {
            Some(Ok(None)) => ChildState::Runs,
            Some(Ok(Some(status))) if status.exit_status() == Some(0) => ChildState::Left,
            Some(Ok(Some(_))) => ChildState::Fallen,
            Some(Err(_)) | None => ChildState::Unknown,
        }
    }

    /// Ends it and what it has left, which is looked for everywhere if it is found in this state or a worse one.
    fn end(mut self, suspicious: ChildState) {
        let state = self.state();
        if let Some(id) = self.id().filter(|_| state != ChildState::Unknown) {
            if state == ChildState::Runs {
                end_with_descendants(id);
            }
            let _ = kill_process_group(id, Signal::KILL);
        }
        if state >= suspicious {
            end_marked(&self.mark);
        }
        let _ = self.process.wait();
    }
}

/// Asks whether a process has ended, without waiting for it.
const ENDED: WaitIdOptions = WaitIdOptions::EXITED
    .union(WaitIdOptions::NOHANG)
    .union(WaitIdOptions::NOWAIT);

/// The signals that end processes by themselves, or by whoever ends processes.
const SIGNALS: [(Signal, &str); 12] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::ILL, "SIGILL"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::ABORT, "SIGABRT"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::KILL, "SIGKILL"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::TERM, "SIGTERM"),
    (Signal::XCPU, "SIGXCPU"),
];

/// For people, to whom a number says little.
fn killed_by(number: i32) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    let name = known.map_or_else(String::new, |(_, name)| format!(" ({name})"));
    format!("killed by signal {number}{name}")
}

/// A connected pair: ours, and the child's.
fn pair(transport: LocalTransport) -> io::Result<(Socket, OwnedFd)> {
    match transport {
        LocalTransport::Socketpair | LocalTransport::SharedMemory => {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            Ok((Socket::unix(ours)?, theirs.into()))
        }
        LocalTransport::Tcp => {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
            let ours = std::net::TcpStream::connect(listener.local_addr()?)?;
            loop {
                // Somebody else may dial in between: only the one whose address is ours is the pair.
                let (theirs, from) = listener.accept()?;
                if from == ours.local_addr()? {
                    return Ok((Socket::tcp_from_std(ours)?, theirs.into()));
                }
            }
        }
    }
}
