//! The children of this process: how they are started, with their connection, credential and options, and ended.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::Role;
use rustls::pki_types::UnixTime;

use super::attempt::AttemptError;
use super::child_process::{ChildProcess, ChildState, ProcessEnd};
use super::zygote::{ForkAnswer, Zygote};
use crate::descendants::MARK;
use crate::descriptor::{inheritable, sealed_memory};
use crate::pki::ThrowAwayAuthority;
use crate::socket::Socket;

/// How children are started.
pub struct LocalWorkers {
    /// Program and arguments; the descriptors' numbers are added.
    pub command: Vec<OsString>,
    /// Whether the same program can be a zygote, which forks children.
    pub forks: bool,
    /// So long they may take to import what they need. They end by themselves where they can't.
    pub loading_time: Duration,
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
    zygote: Option<Zygote>,
    /// The zygote can't fork children of this process here.
    is_without_zygote: bool,
}

/// A child, which of this host's slots it is, and what all that it starts has in its environment.
#[derive(Debug)]
struct LocalSlot {
    process: ChildStart,
    slot: u32,
    mark: String,
}

#[derive(Debug)]
enum ChildStart {
    /// The zygote has been asked for it.
    Asked,
    /// The zygote has said why there is none.
    Refused(io::Error),
    Started(ChildProcess),
}

/// What a child is given, by the options that name the descriptors. They are closed here when it has its own.
struct Gifts(Vec<(&'static str, OwnedFd)>);

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
        let gifts = Gifts::new(local, theirs, &credential.to_pem()).map_err(failed)?;
        let slot = self.free_slot();
        let mark = mark(now, number);
        let process = if local.forks && !self.is_without_zygote {
            self.ask(local, number, slot, &mark, &gifts)
        } else {
            execute(local, slot, &mark, &gifts)
        };
        let process = process.map_err(failed)?;
        let child = LocalSlot {
            process,
            slot,
            mark,
        };
        self.running.insert(number, child);
        Ok((socket, name))
    }

    /// Whether a child that was started now begins by importing what it needs, perhaps from a slow file server.
    pub(super) fn loads(&self) -> bool {
        let zygote = self.zygote.as_ref();
        !zygote.is_some_and(Zygote::has_answered)
    }

    /// Has a child forked. What becomes of it is seen later, so as not to wait.
    fn ask(
        &mut self,
        local: &LocalWorkers,
        number: u32,
        slot: u32,
        mark: &str,
        gifts: &Gifts,
    ) -> io::Result<ChildStart> {
        self.hear();
        if self.zygote.as_ref().is_some_and(|zygote| !zygote.runs()) {
            self.end_zygote();
        }
        let zygote = match &mut self.zygote {
            Some(zygote) => zygote,
            none => none.insert(Zygote::start(
                &local.command,
                &self::mark(Duration::ZERO, u32::MAX),
            )?),
        };
        let slot = slot.to_string();
        let mut words = vec!["--slot", &slot];
        words.extend(gifts.0.iter().map(|(option, _)| *option));
        let descriptors: Vec<BorrowedFd<'_>> =
            gifts.0.iter().map(|(_, given)| given.as_fd()).collect();
        let asked = zygote.ask(number, mark, &words, &descriptors);
        if asked.as_ref().is_err_and(has_gone) {
            self.end_zygote();
        }
        asked.map(|()| ChildStart::Asked)
    }

    /// Takes in what the zygote has said.
    fn hear(&mut self) {
        let answers = self.zygote.as_mut().map(Zygote::answers);
        self.take_in(answers.unwrap_or_default());
        if self.is_without_zygote && self.zygote.as_ref().is_some_and(Zygote::is_idle) {
            self.end_zygote();
        }
    }

    fn take_in(&mut self, answers: Vec<ForkAnswer>) {
        for (number, answer) in answers {
            let answer = answer.map_or_else(ChildStart::Refused, ChildStart::Started);
            if let ChildStart::Refused(error) = &answer {
                self.is_without_zygote |= error.kind() == io::ErrorKind::Unsupported;
            }
            if let Some(child) = self.running.get_mut(&number) {
                child.process = answer;
            }
        }
    }

    /// Ends the zygote; the next start makes another. What it has not been heard to fork by now will not be.
    fn end_zygote(&mut self) {
        let answers = self.zygote.take().map(Zygote::end);
        self.take_in(answers.unwrap_or_default());
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

    /// Why there is no such child, if the system didn't let the zygote fork it. A zygote that has not answered yet stands still: the
    /// child has had its time. It is ended, and all that it was asked for gets no session.
    pub(super) fn refusal(&mut self, number: u32) -> Option<io::Error> {
        self.hear();
        if self.is_asked(number) {
            self.end_zygote();
        }
        match &mut self.running.get_mut(&number)?.process {
            ChildStart::Refused(error) => {
                Some(std::mem::replace(error, io::ErrorKind::Other.into()))
            }
            ChildStart::Asked | ChildStart::Started(_) => None,
        }
    }

    fn is_asked(&self, number: u32) -> bool {
        let child = self.running.get(&number);
        child.is_some_and(|child| matches!(child.process, ChildStart::Asked))
    }

    /// How the process of a child ended; none as long as it runs.
    pub(super) fn process_end(&mut self, number: u32) -> Option<ProcessEnd> {
        self.hear();
        match self.running.get(&number).map(|child| &child.process) {
            Some(ChildStart::Started(process)) => process.process_end(),
            Some(ChildStart::Asked | ChildStart::Refused(_)) | None => Some(ProcessEnd::Unknown),
        }
    }

    /// Ends a child that has no session any more.
    pub(super) fn end(&mut self, number: u32) {
        self.met.remove(&number);
        self.hear();
        if self.is_asked(number) {
            self.end_zygote();
        }
        if let Some(child) = self.running.remove(&number) {
            // Its session was over before it was: the end of a task may have been the slot's, whatever it said to the system.
            child.end(ChildState::Left);
        }
    }

    /// Waits for children to leave by themselves, then makes them. Those that only start have nothing to end in order.
    pub(super) async fn end_all(&mut self, patience: Duration) {
        self.end_zygote();
        let met = std::mem::take(&mut self.met);
        for (_, child) in self.running.extract_if(|number, _| !met.contains(number)) {
            child.end(ChildState::Fallen);
        }
        let deadline = Instant::now() + patience;
        while self.running.values().any(LocalSlot::runs) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.running
            .drain()
            .for_each(|(_, child)| child.end(ChildState::Fallen));
    }
}

impl LocalSlot {
    fn runs(&self) -> bool {
        match &self.process {
            ChildStart::Started(process) => process.state() == ChildState::Runs,
            ChildStart::Asked | ChildStart::Refused(_) => false,
        }
    }

    fn end(self, suspicious: ChildState) {
        if let ChildStart::Started(process) = self.process {
            process.end(suspicious, &self.mark);
        }
    }
}

impl Gifts {
    fn new(local: &LocalWorkers, connection: OwnedFd, credential: &[u8]) -> io::Result<Self> {
        let mut gifts = vec![
            (
                "--options-fd",
                sealed_memory("exoskel-options", &local.options)?,
            ),
            ("--connection-fd", connection),
            (
                "--credential-fd",
                sealed_memory("exoskel-credential", credential)?,
            ),
        ];
        if let Some(policy) = &local.policy {
            let policy = sealed_memory("exoskel-policy", policy.as_bytes())?;
            gifts.push(("--policy-fd", policy));
        }
        Ok(Self(gifts))
    }
}

/// Whether nobody is at the other end any more.
fn has_gone(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::NotConnected,
    ];
    kinds.contains(&error.kind())
}

/// Starts a child as a program of its own.
fn execute(local: &LocalWorkers, slot: u32, mark: &str, gifts: &Gifts) -> io::Result<ChildStart> {
    let mut process = Process::new(&local.command[0]);
    process.args(&local.command[1..]).stdin(Stdio::null());
    process.arg("--slot").arg(slot.to_string());
    // Ctrl-C and a notebook's stop are for the group of the user's process: what runs in slots goes on, or is ended from here.
    process.process_group(0).env(MARK, mark);
    for (option, given) in &gifts.0 {
        process.arg(option);
        process.arg(inheritable(given.as_fd())?.to_string());
    }
    let number = process.spawn()?.id();
    let process = ChildProcess::new(number).ok_or(io::ErrorKind::InvalidData)?;
    Ok(ChildStart::Started(process))
}

/// What all that comes from a child has in its environment. It is of one length: a forked child writes its own over that of its zygote.
fn mark(now: Duration, number: u32) -> String {
    format!("{}-{:020}-{number:010}", std::process::id(), now.as_nanos())
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
