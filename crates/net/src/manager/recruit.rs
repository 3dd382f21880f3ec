//! Where slots come from: children of this process, lines of a host file, workers that dial in.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command as Process, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use exoskel_identity::{Role, VerifiedIdentity};
use exoskel_link::handshake::{Hello, Refuse, RefuseReason};
use rustix::process::Pid;
use rustls::pki_types::UnixTime;

use super::attempt::{Attempt, AttemptError, is_of_worker};
use super::hub::{Hub, serve};
use crate::address::Address;
use crate::descendants::end_with_descendants;
use crate::descriptor::{inheritable, sealed_memory};
use crate::establish::{EstablishError, Established, Terms, dial, welcome_in_place};
use crate::listening::{Listener, Listening};
use crate::outlet::StreamEnd;
use crate::pki::ThrowAwayAuthority;
use crate::reception::{HandshakePlace, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::socket::Socket;

/// A line that failed is tried again after this time, as long as slots are missing.
const RETRY_TIME: Duration = Duration::from_millis(500);

/// Failures in a row after which a source isn't asked again.
const FAILURES_MAX: u32 = 6;

/// A worker whose answering slot was just taken is asked again after this time, by the same attempt.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How often an attempt asks a worker again that says it is busy.
const BUSY_MAX: u32 = 100;

/// Connections in the middle of their handshake at the listening address, at most.
const HANDSHAKES_MAX: usize = 64;

/// Of these, with one host: a worker's slots all dial in at once.
const HANDSHAKES_OF_HOST_MAX: usize = 32;

/// Where slots may come from.
pub struct Recruiting {
    /// How many slots are wanted.
    pub slots: u32,
    /// Children of this process.
    pub local: Option<LocalWorkers>,
    /// Workers that listen.
    pub hosts: Vec<HostLine>,
    /// Where workers may dial in.
    pub listen: Option<Listening>,
}

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
    /// TCP on loopback, for measurements and tests.
    Tcp,
}

/// One line of a host file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLine {
    /// Where it listens.
    pub address: Address,
    /// The name its certificate must have.
    pub name: String,
}

/// Which source a slot came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Local(u32),
    Host(usize, HostLine),
    Joined(String),
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(number) => write!(formatter, "local worker {number}"),
            Self::Host(_, line) if line.address.to_string().starts_with(&line.name) => {
                write!(formatter, "worker {}", line.address)
            }
            Self::Host(_, line) => write!(formatter, "worker {} at {}", line.name, line.address),
            Self::Joined(address) => write!(formatter, "worker that dialled in from {address}"),
        }
    }
}

impl Source {
    /// An attempt to get a slot from here that came to nothing.
    pub(super) fn attempt(&self, error: AttemptError) -> Attempt {
        let place = match self {
            Self::Local(_) => self.to_string(),
            Self::Host(_, line) => line.address.to_string(),
            Self::Joined(address) => address.clone(),
        };
        Attempt {
            worker: self.to_string(),
            place,
            error: error.into(),
        }
    }
}

/// What recruiting remembers.
#[derive(Default)]
pub(super) struct Recruiter {
    wanted: usize,
    in_flight: usize,
    children: HashMap<u32, Child>,
    next_child: u32,
    local: bool,
    local_failures: u32,
    hosts: Vec<Host>,
    listening: bool,
    retry_planned: bool,
    given_up: Option<StreamEnd>,
    /// Connections at the listening address that came to nothing.
    refusals: Refusals,
}

#[derive(Debug)]
struct Host {
    line: HostLine,
    in_use: u32,
    /// Slots it said it has; unknown before the first session.
    capacity: Option<u32>,
    failures: u32,
    /// It broke its sessions and is not asked any more, whatever its other slots do.
    is_set_aside: bool,
    /// Not to be asked before this time.
    rest_until: Option<Instant>,
}

impl Recruiter {
    pub(super) fn new(recruiting: &Recruiting, listening: bool) -> Self {
        let host = |line: &HostLine| Host {
            line: line.clone(),
            in_use: 0,
            capacity: None,
            failures: 0,
            is_set_aside: false,
            rest_until: None,
        };
        Self {
            wanted: recruiting.slots as usize,
            local: recruiting.local.is_some(),
            hosts: recruiting.hosts.iter().map(host).collect(),
            listening,
            ..Self::default()
        }
    }

    pub(super) fn given_up(&self) -> Option<&StreamEnd> {
        self.given_up.as_ref()
    }

    /// Waits for children to leave by themselves, then makes them.
    pub(super) async fn end_children(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !self.children.is_empty() && Instant::now() < deadline {
            self.children
                .retain(|_, child| matches!(child.try_wait(), Ok(None)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for child in self.children.values_mut() {
            end(child);
        }
    }

    /// The host to ask next: the one with the fewest slots in use that may have another.
    fn next_host(&mut self, now: Instant) -> Option<Source> {
        let candidate = self
            .hosts
            .iter_mut()
            .enumerate()
            .filter(|(_, host)| host.in_use < host.capacity.unwrap_or(1))
            .filter(|(_, host)| {
                host.failures < FAILURES_MAX && host.rest_until.is_none_or(|until| until <= now)
            })
            .min_by_key(|(position, host)| (host.failures, host.in_use, *position));
        candidate.map(|(position, host)| {
            host.in_use += 1;
            Source::Host(position, host.line.clone())
        })
    }

    /// A slot or an attempt is gone.
    fn release(&mut self, source: &Source) {
        match source {
            Source::Local(number) => {
                if let Some(mut child) = self.children.remove(number) {
                    end(&mut child);
                }
            }
            Source::Host(position, _) => {
                if let Some(host) = self.hosts.get_mut(*position) {
                    host.in_use = host.in_use.saturating_sub(1);
                    host.rest_until = Some(Instant::now() + RETRY_TIME);
                }
            }
            Source::Joined(_) => {}
        }
    }

    /// An attempt came to nothing, or a slot broke the rules; `is_final` when another attempt can't end better.
    pub(super) fn failed(&mut self, source: &Source, is_final: bool) {
        let count = if is_final { FAILURES_MAX } else { 1 };
        match source {
            Source::Local(_) => self.local_failures += count,
            Source::Host(position, _) => {
                if let Some(host) = self.hosts.get_mut(*position) {
                    host.failures += count;
                }
            }
            Source::Joined(_) => {}
        }
    }

    /// Nobody of this name is asked any more.
    pub(super) fn set_aside(&mut self, name: &str) {
        for host in self.hosts.iter_mut().filter(|host| host.line.name == name) {
            host.is_set_aside = true;
            host.failures = FAILURES_MAX;
        }
    }

    /// A slot kept to the rules to its end, whatever that was: its source is as good as new.
    pub(super) fn proved(&mut self, source: &Source) {
        match source {
            Source::Local(_) => self.local_failures = 0,
            Source::Host(position, _) => {
                if let Some(host) = self.hosts.get_mut(*position)
                    && !host.is_set_aside
                {
                    host.failures = 0;
                }
            }
            Source::Joined(_) => {}
        }
    }

    fn succeeded(&mut self, source: &Source, established: &Established) {
        if let Source::Host(position, _) = source
            && let Some(host) = self.hosts.get_mut(*position)
        {
            let slots = established
                .property("slots")
                .and_then(|slots| slots.raw_for_comparison().parse().ok());
            host.capacity = Some(slots.unwrap_or(1).max(host.in_use));
        }
    }

    /// Whether somebody may still come.
    pub(super) fn has_hope(&self) -> bool {
        self.in_flight > 0
            || (self.local && self.local_failures < FAILURES_MAX)
            || self.hosts.iter().any(|host| host.failures < FAILURES_MAX)
            || self.listening
    }
}

/// Starts as many attempts as slots are missing.
pub(super) fn fill(hub: &Rc<RefCell<Hub>>) {
    loop {
        let mut borrowed = hub.borrow_mut();
        let in_use = borrowed.slots_in_use();
        let recruiter = &mut borrowed.recruiter;
        if in_use + recruiter.in_flight >= recruiter.wanted {
            return;
        }
        if recruiter.local && recruiter.local_failures < FAILURES_MAX {
            let number = recruiter.next_child;
            recruiter.next_child += 1;
            recruiter.in_flight += 1;
            let started = start_child(&mut borrowed, number);
            borrowed.attempt_begins();
            drop(borrowed);
            tokio::task::spawn_local(attempt_child(hub.clone(), number, started));
        } else if let Some(source) = recruiter.next_host(Instant::now()) {
            recruiter.in_flight += 1;
            borrowed.attempt_begins();
            drop(borrowed);
            tokio::task::spawn_local(attempt_host(hub.clone(), source));
        } else {
            let plan = !recruiter.retry_planned
                && recruiter
                    .hosts
                    .iter()
                    .any(|host| host.failures < FAILURES_MAX);
            if plan {
                recruiter.retry_planned = true;
                tokio::task::spawn_local(retry(hub.clone()));
            } else if in_use == 0 && !recruiter.has_hope() {
                give_up(&mut borrowed);
            }
            return;
        }
    }
}

/// A slot is gone: its source is asked again, or another.
pub(super) fn replace(hub: &Rc<RefCell<Hub>>, source: Source) {
    hub.borrow_mut().recruiter.release(&source);
    if !hub.borrow().is_shutting_down() {
        fill(hub);
    }
}

/// Accepts workers that dial in.
pub(super) async fn listen(hub: Rc<RefCell<Hub>>, listener: Listener) {
    let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
    tokio::task::spawn_local(count_refusals(hub.clone()));
    loop {
        match listener.accept().await {
            Ok((socket, address)) => {
                let host = host_of(&socket);
                let place = reception.enter(host).await;
                let (hub, source) = (hub.clone(), Source::Joined(address.clone()));
                tokio::task::spawn_local(async move {
                    if let Err(error) = welcome_worker(&hub, socket, source.clone(), &place).await {
                        let line = hub.borrow_mut().recruiter.refusals.note(
                            host,
                            &source.to_string(),
                            &error.to_string(),
                        );
                        hub.borrow().audit(line);
                        if is_of_worker(&error) {
                            // Each of its attempts comes from another port.
                            let place = host.map_or(address, |host| host.to_string());
                            hub.borrow()
                                .note_attempt(Source::Joined(place).attempt(error.into()));
                        }
                    }
                });
            }
            // Out of descriptors, most likely: waiting lets some go.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Tells of refused connections that were only counted.
async fn count_refusals(hub: Rc<RefCell<Hub>>) {
    loop {
        tokio::time::sleep(COUNTING_TIME).await;
        let lines = hub.borrow_mut().recruiter.refusals.tell();
        hub.borrow().audit(lines);
    }
}

async fn welcome_worker(
    hub: &Rc<RefCell<Hub>>,
    socket: Socket,
    source: Source,
    place: &HandshakePlace,
) -> Result<(), EstablishError> {
    let terms = || Ok(hub.borrow().config.terms.clone());
    // The place is taken while the handshake ends, so that two workers can't have the same.
    let reserved = Cell::new(false);
    let judge = |_: &Hello, peer: &VerifiedIdentity| {
        let mut borrowed = hub.borrow_mut();
        if let Some(unwanted) = borrowed.unwanted(peer.name()) {
            return Err(Refuse {
                reason: RefuseReason::NotAllowed,
                text: unwanted.refusal().into(),
            });
        }
        if borrowed.slots_in_use() + borrowed.recruiter.in_flight >= borrowed.recruiter.wanted {
            let text = format!(
                "the manager has the {} slots it asked for",
                borrowed.recruiter.wanted
            );
            return Err(Refuse {
                reason: RefuseReason::Busy,
                text: text.into(),
            });
        }
        borrowed.recruiter.in_flight += 1;
        reserved.set(true);
        place.leave();
        Ok(())
    };
    let result = welcome_in_place(socket, terms, judge, place).await;
    if reserved.get() {
        hub.borrow_mut().recruiter.in_flight -= 1;
    }
    serve(hub, &result?, source);
    Ok(())
}

async fn retry(hub: Rc<RefCell<Hub>>) {
    tokio::time::sleep(RETRY_TIME).await;
    hub.borrow_mut().recruiter.retry_planned = false;
    if !hub.borrow().is_shutting_down() {
        fill(&hub);
    }
}

async fn attempt_host(hub: Rc<RefCell<Hub>>, source: Source) {
    let Source::Host(position, _) = &source else {
        return;
    };
    let line = hub.borrow().recruiter.hosts[*position].line.clone();
    let terms = hub.borrow().config.terms.clone();
    let mut result = dial_host(&line, &terms).await;
    for _ in 0..BUSY_MAX {
        if !matches!(&result, Err(error) if error.is_busy()) || hub.borrow().is_shutting_down() {
            break;
        }
        tokio::time::sleep(BUSY_PAUSE).await;
        result = dial_host(&line, &terms).await;
    }
    conclude(&hub, source, result);
}

async fn dial_host(line: &HostLine, terms: &Terms) -> Result<Established, AttemptError> {
    let connecting = tokio::time::timeout(terms.patience, line.address.connect()).await;
    let socket = connecting
        .map_err(|_| AttemptError::NoConnection(terms.patience))?
        .map_err(AttemptError::Connect)?;
    Ok(dial(socket, terms, Some(line.name.clone())).await?)
}

type Started = Result<(Socket, String), AttemptError>;

async fn attempt_child(hub: Rc<RefCell<Hub>>, number: u32, started: Started) {
    let terms = hub.borrow().config.terms.clone();
    let result = match started {
        Ok((socket, name)) => dial(socket, &terms, Some(name))
            .await
            .map_err(AttemptError::from),
        Err(error) => Err(error),
    };
    conclude(&hub, Source::Local(number), result);
}

fn conclude(hub: &Rc<RefCell<Hub>>, source: Source, result: Result<Established, AttemptError>) {
    hub.borrow_mut().recruiter.in_flight -= 1;
    // It may have been set aside while it was dialled.
    let result = result.and_then(|established| {
        let unwanted = hub.borrow().unwanted(established.peer.name());
        unwanted.map_or(Ok(established), |unwanted| Err(unwanted.into()))
    });
    match result {
        Ok(established) => {
            hub.borrow_mut().recruiter.succeeded(&source, &established);
            hub.borrow().forget_attempt(&source);
            serve(hub, &established, source);
            fill(hub);
        }
        Err(error) => {
            let is_final = !error.may_pass();
            hub.borrow_mut().recruiter.failed(&source, is_final);
            hub.borrow_mut().recruiter.release(&source);
            hub.borrow_mut().attempt_failed(&source, error);
            if !hub.borrow().is_shutting_down() {
                fill(hub);
            }
        }
    }
}

fn give_up(hub: &mut Hub) {
    if hub.recruiter.given_up.is_some() {
        return;
    }
    let end = StreamEnd::NoWorker(hub.attempts().into());
    hub.recruiter.given_up = Some(end.clone());
    hub.give_up(&end);
}

/// Starts a child with its end of the connection and its credential; says how to reach it and its name.
fn start_child(hub: &mut Hub, number: u32) -> Started {
    let failed = AttemptError::Start;
    let Some(local) = &hub.config.recruiting.local else {
        return Err(failed(io::ErrorKind::Unsupported.into()));
    };
    let name = format!("local-{}", number + 1);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let credential = local
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
    process.args(&local.command[1..]).stdin(Stdio::null());
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
    let child = process.spawn().map_err(failed)?;
    hub.recruiter.children.insert(number, child);
    Ok((socket, name))
}

/// A connected pair: ours, and the child's.
fn pair(transport: LocalTransport) -> io::Result<(Socket, OwnedFd)> {
    match transport {
        LocalTransport::Socketpair => {
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

fn end(child: &mut Child) {
    // Until we have waited for it, nobody else has its number.
    if let (Ok(None), Ok(number)) = (child.try_wait(), i32::try_from(child.id()))
        && let Some(process) = Pid::from_raw(number)
    {
        end_with_descendants(process);
    }
    let _ = child.wait();
}
