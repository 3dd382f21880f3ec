//! The keeper of a host: it holds the memory of the arrays of its members, and knows them by their sockets.
//!
//! One thread waits for all sockets. What members hand to each other on a host doesn't pass it: they share memory, and wait for each
//! other in the kernel.
//!
//! # Security
//! Who may attach is this account, by the kernel's word (`SO_PEERCRED`), at a socket that only it can open. A certificate would prove no
//! more: who has the account can read the keeper's credential.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exoskel_link::capability::Startpoint;
use exoskel_member::{PartMemory, new_part_memory};
use exoskel_transfer::{
    ArrayEnd, ConnectionState, Coupler, Coupling, HALF_FRAMES_BYTES_MAX, HalfFrames, Keeper,
    KeeperAction, KeeperMessage, KeeperReport, Loss, MEMBERS_OF_KEEPER_MAX, MemberId, MemoryAccess,
    MemoryId, OWN_KEEPER, ProgramTerms, ranks_of,
};
use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags};

use crate::address::Address;
use crate::links::LinkNode;
use crate::listening::{Listening, SocketFile};
use crate::wake_up::WakeUp;

mod counts;
mod departures;
mod member_socket;
mod other_hosts;
mod packed;
#[cfg(test)]
mod tests;
mod waits;

use self::departures::{DepartedVersions, DueVersion, LendableMemory};
pub use self::other_hosts::KeeperJoinError;
use self::other_hosts::OtherHosts;
use self::packed::PieceBuffers;
use member_socket::{MemberSocket, QueuedMessage};
pub use waits::WaitReport;

/// Members of one keeper, at most. Those that come later are refused.
pub const MEMBERS_MAX: usize = MEMBERS_OF_KEEPER_MAX;

/// What a member hasn't read yet, at most. One of thousands of partners is told of each by some hundred bytes.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a keeper holds for its members, in bytes.
#[derive(Clone, Copy, Debug)]
struct MemberLimits {
    waiting_bytes_max: usize,
    half_frames_bytes_max: usize,
}

impl MemberLimits {
    const USUAL: Self = Self {
        waiting_bytes_max: WAITING_BYTES_MAX,
        half_frames_bytes_max: HALF_FRAMES_BYTES_MAX,
    };
}

/// Between two looks at who has not attached, at most: the kernel counts a wait in milliseconds.
const LOOK_MAX: Duration = Duration::from_secs(3600);

const LISTENER: u64 = 0;
const WAKE_UP: u64 = 1;
const FIRST_MEMBER: u64 = 2;

const EMFILE: Option<i32> = Some(libc::EMFILE);
const ENFILE: Option<i32> = Some(libc::ENFILE);

/// A keeper that runs, until it is dropped.
#[derive(Debug)]
pub struct KeeperService {
    driver: Arc<KeeperDriver>,
    /// The socket's, which goes with it.
    file: MemberSocketFile,
    threads: Vec<JoinHandle<()>>,
}

/// Where members find the keeper.
#[derive(Debug)]
enum MemberSocketFile {
    /// In a folder that is the keeper's own.
    Own(PathBuf),
    /// Where keepers before this one may have been.
    Usual { _file: Option<SocketFile> },
    /// It is gone.
    Removed,
}

/// What has become of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// From which array to which.
    pub name: String,
    /// Whether it can be used.
    pub state: ConnectionState,
    /// Versions that every process of the target has taken; none if a process on another host hasn't said, or was lost with its keeper.
    pub versions: Option<u64>,
    /// Bytes that all of them have taken; none as above.
    pub bytes: Option<u64>,
    /// The time that the slowest process took to copy its part, in nanoseconds. None between hosts, where a version comes while its reader
    /// waits, and nobody copies it in one go.
    pub nanoseconds: Option<u64>,
    /// Why nothing has moved, if it could have.
    pub unmoved: Option<String>,
    /// Whether some of it goes from one keeper to another.
    pub is_between_hosts: bool,
    /// Who has to attach, or to describe an array, before it can be used.
    pub missing: Option<String>,
}

/// What is known of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    /// Its name.
    pub name: String,
    /// How many processes have come.
    pub present: u32,
    /// Of how many.
    pub size: u32,
    /// How many of those that came have gone.
    pub gone: u32,
}

/// What a keeper has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CouplingReport {
    /// Programs that came.
    pub programs: Vec<ProgramReport>,
    /// By their numbers.
    pub connections: Vec<ConnectionReport>,
    /// The process that was lost first.
    pub first_lost: Option<Loss>,
    /// Programs of which processes were refused, and why: the first ones.
    pub refusals: Vec<(String, String)>,
    /// Who waits for what, just now.
    pub waits: Vec<WaitReport>,
}

#[derive(Debug)]
struct Inside {
    keeper: Keeper,
    /// None if it is elsewhere.
    coupler: Option<Coupler>,
    /// None if there are none.
    others: Option<OtherHosts>,
    sockets: BTreeMap<MemberId, MemberSocket>,
    memories: BTreeMap<MemoryId, KeptMemory>,
    next_member: MemberId,
    /// For turning away whom there is no descriptor for.
    spare: Option<OwnedFd>,
    /// What one member may leave unread.
    waiting_bytes_max: usize,
    /// What members have said of messages that are not whole.
    half_frames: Arc<HalfFrames>,
    is_ending: bool,
}

/// The memory of one process's part of an array.
#[derive(Debug)]
struct KeptMemory {
    to_write: Arc<OwnedFd>,
    to_read: Arc<OwnedFd>,
    mapped: Arc<PartMemory>,
    to_lend: Arc<LendableMemory>,
}

impl KeeperService {
    /// Begins to wait for members at a socket, which must not be there yet, in a folder that only this account can enter. The coupler is
    /// here, too, and knows of no other keeper.
    ///
    /// # Errors
    /// If there can't be such a socket.
    pub fn start(place: &Path, coupling: Coupling) -> io::Result<Self> {
        let keeper = Keeper::new(coupling.clone(), OWN_KEEPER, false);
        let coupler = Some(Coupler::new(coupling));
        Self::begin(place, keeper, coupler, None, MemberLimits::USUAL)
    }

    /// The same with a node, at which keepers of other hosts ask to join.
    ///
    /// # Errors
    /// As [`start`](Self::start), and if the node has endpoints of these names already.
    pub fn lead(
        place: &Path,
        coupling: Coupling,
        node: Arc<LinkNode>,
    ) -> Result<Self, KeeperJoinError> {
        let others = OtherHosts::of_coupler(node, coupling.connections().len())?;
        let keeper = Keeper::new(coupling.clone(), OWN_KEEPER, true);
        Ok(Self::begin(
            place,
            keeper,
            Some(Coupler::new(coupling)),
            Some(others),
            MemberLimits::USUAL,
        )?)
    }

    /// Takes a place for members, joins the coupler that this startpoint leads to, and then begins to wait for members. A socket that a
    /// killed keeper has left at the place is replaced, one where somebody listens never is.
    ///
    /// # Errors
    /// If the place can't be had; as [`lead`](Self::lead); and if the coupler doesn't answer, or refuses.
    pub fn join(
        place: &Path,
        node: Arc<LinkNode>,
        coupler: Startpoint,
    ) -> Result<Self, KeeperJoinError> {
        let listening = Listening::bind(&Address::Unix(place.to_owned()))?;
        let (listener, file) = listening.into_unix_parts();
        let file = MemberSocketFile::Usual { _file: file };
        let (others, welcome) = OtherHosts::joining(node, coupler)?;
        let names = welcome.programs.into_iter();
        let programs = names.map(|name| (name, ProgramTerms { command: None }));
        let coupling = Coupling::new(programs.collect(), welcome.connections)
            .map_err(|error| KeeperJoinError::Answer(error.to_string()))?;
        let mut keeper = Keeper::new(coupling, welcome.keeper, true);
        for gone in welcome.gone {
            keeper.lose(gone);
        }
        let others = Some(others);
        let serve = Self::serve(listener, file, keeper, None, others, MemberLimits::USUAL);
        Ok(serve?)
    }

    fn begin(
        place: &Path,
        keeper: Keeper,
        coupler: Option<Coupler>,
        others: Option<OtherHosts>,
        limits: MemberLimits,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind(place)?;
        let file = MemberSocketFile::Own(place.to_owned());
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o600))?;
        Self::serve(listener, file, keeper, coupler, others, limits)
    }

    fn serve(
        listener: UnixListener,
        file: MemberSocketFile,
        keeper: Keeper,
        coupler: Option<Coupler>,
        others: Option<OtherHosts>,
        limits: MemberLimits,
    ) -> io::Result<Self> {
        raise_descriptor_limit();
        listener.set_nonblocking(true)?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake_up = Arc::new(WakeUp::new()?);
        for (source, number) in [
            (rustix::fd::AsFd::as_fd(&listener), LISTENER),
            (rustix::fd::AsFd::as_fd(&*wake_up), WAKE_UP),
        ] {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&set, source, data, epoll::EventFlags::IN)?;
        }
        let node = others.as_ref().map(OtherHosts::node);
        let has_coupler = coupler.is_some();
        let inside = Mutex::new(Inside {
            keeper,
            coupler,
            others,
            sockets: BTreeMap::new(),
            memories: BTreeMap::new(),
            next_member: FIRST_MEMBER,
            spare: spare_descriptor(),
            waiting_bytes_max: limits.waiting_bytes_max,
            half_frames: Arc::new(HalfFrames::new(limits.half_frames_bytes_max)),
            is_ending: false,
        });
        let driver = Arc::new(KeeperDriver {
            listener,
            set,
            departed: Arc::new(DepartedVersions::new(Arc::clone(&wake_up))),
            wake_up,
            inside,
            buffers: Arc::default(),
        });
        let mut service = Self {
            driver: Arc::clone(&driver),
            file,
            threads: Vec::new(),
        };
        if let Some(node) = node {
            service.threads = other_hosts::threads(&driver, &node, has_coupler)?;
        }
        let thread = std::thread::Builder::new().name("exoskel-keeper".to_owned());
        service.threads.push(thread.spawn(move || driver.run())?);
        Ok(service)
    }

    /// What it has seen so far.
    #[must_use]
    pub fn report(&self) -> CouplingReport {
        held(&self.driver.inside).report()
    }

    /// A program has ended, whether or not all of its processes have been members.
    pub fn program_ended(&self, program: &str) {
        let mut inside = held(&self.driver.inside);
        // What its processes have said last may not have been read yet.
        self.driver.serve_all(&mut inside);
        inside.keeper.program_ended(program);
        if let Some(coupler) = &mut inside.coupler {
            coupler.program_ended(program);
        }
        drop(inside);
        self.driver.wake_up.raise();
    }

    /// How the coupling of a keeper that has joined stands.
    #[must_use]
    pub fn state(&self) -> KeeperState {
        let inside = held(&self.driver.inside);
        let others = inside.others.as_ref();
        KeeperState {
            members: inside.keeper.needed_count(),
            has_ended: others.is_some_and(OtherHosts::has_ended),
            coupler_lost: others.and_then(OtherHosts::coupler_lost),
        }
    }

    /// Ends it: members that are there find its socket closed, keepers that have joined are told.
    pub fn end(&mut self) {
        let others = {
            let mut inside = held(&self.driver.inside);
            if !inside.is_ending {
                // Who has left is not lost with the keeper.
                self.driver.serve_all(&mut inside);
            }
            inside.is_ending = true;
            inside.others.as_mut().map(OtherHosts::end)
        };
        self.driver.wake_up.raise();
        for thread in self.threads.drain(..).chain(others.into_iter().flatten()) {
            // A panic there has been printed.
            let _ = thread.join();
        }
        let file = std::mem::replace(&mut self.file, MemberSocketFile::Removed);
        if let MemberSocketFile::Own(place) = file {
            let _ = std::fs::remove_file(place);
        }
    }
}

/// How a keeper stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperState {
    /// Members that are here, and those that have left versions behind which other hosts still want.
    pub members: usize,
    /// The coupler has said that all is over.
    pub has_ended: bool,
    /// The coupler is gone: why. Connections that were ready go on.
    pub coupler_lost: Option<String>,
}

impl Drop for KeeperService {
    fn drop(&mut self) {
        self.end();
    }
}

/// A panic elsewhere leaves what is behind the lock as it was between two events.
fn held(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct KeeperDriver {
    listener: UnixListener,
    set: OwnedFd,
    wake_up: Arc<WakeUp>,
    inside: Mutex<Inside>,
    buffers: Arc<PieceBuffers>,
    departed: Arc<DepartedVersions>,
}

impl KeeperDriver {
    fn run(&self) {
        let mut events = Vec::with_capacity(256);
        let begin = Instant::now();
        loop {
            events.clear();
            let time = self.look(begin.elapsed());
            let room = rustix::buffer::spare_capacity(&mut events);
            let waited = epoll::wait(&self.set, room, time.as_ref());
            match waited {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let mut inside = held(&self.inside);
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(&mut inside),
                    WAKE_UP => self.wake_up.take(),
                    member => self.serve(&mut inside, member, event.flags),
                }
            }
            for pair in self.departed.take() {
                inside.keeper.departed(pair);
            }
            self.act(&mut inside);
            if inside.is_ending {
                inside.sockets.clear();
                return;
            }
        }
    }

    /// Gives up who has not attached in time. Returns how long that needs no further look.
    fn look(&self, now: Duration) -> Option<Timespec> {
        let mut inside = held(&self.inside);
        let next = inside
            .coupler
            .as_mut()
            .and_then(|coupler| coupler.look(now));
        self.act(&mut inside);
        let time = next?.saturating_sub(now).min(LOOK_MAX);
        Some(Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        })
    }

    fn accept(&self, inside: &mut Inside) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let error = error.raw_os_error();
                    if [EMFILE, ENFILE].contains(&error) {
                        inside.turn_away(&self.listener);
                    }
                    return;
                }
            };
            // Who can't be told anything is let go of.
            let _ = self.welcome(inside, stream);
        }
    }

    fn welcome(&self, inside: &mut Inside, stream: UnixStream) -> io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        if peer.uid != rustix::process::geteuid() || inside.sockets.len() >= MEMBERS_MAX {
            return Ok(());
        }
        stream.set_nonblocking(true)?;
        let member = inside.next_member;
        inside.next_member += 1;
        let data = epoll::EventData::new_u64(member);
        epoll::add(&self.set, &stream, data, epoll::EventFlags::IN)?;
        let half = Arc::clone(&inside.half_frames);
        inside
            .sockets
            .insert(member, MemberSocket::new(stream, half));
        Ok(())
    }

    /// Takes all that members have said so far.
    fn serve_all(&self, inside: &mut Inside) {
        self.accept(inside);
        for member in inside.sockets.keys().copied().collect::<Vec<_>>() {
            self.serve(inside, member, epoll::EventFlags::IN);
        }
        self.act(inside);
    }

    fn serve(&self, inside: &mut Inside, member: MemberId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(inside, member);
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if !flags.intersects(readable) {
            return;
        }
        let Some(socket) = inside.sockets.get_mut(&member) else {
            return;
        };
        let end = socket.receive();
        // Who was refused is not heard any more.
        while let Some(socket) = inside.sockets.get_mut(&member)
            && !socket.is_ending()
        {
            match socket.message() {
                Ok(Some(message)) => inside.keeper.hear(member, message),
                Ok(None) => break,
                Err(error) => inside.keeper.not_understood(member, &error.to_string()),
            }
            self.act(inside);
        }
        if let Some(why) = end {
            inside.keeper.lost(member, &why);
            inside.sockets.remove(&member);
        }
    }

    /// Does what the machines want, until they want nothing more.
    fn act(&self, inside: &mut Inside) {
        loop {
            inside.take_orders();
            let Some(action) = inside.keeper.next_action() else {
                return;
            };
            match action {
                KeeperAction::Report(report) => inside.report_to_coupler(report),
                KeeperAction::Allocate { memory, bytes } => match KeptMemory::new(bytes) {
                    Ok(kept) => {
                        inside.memories.insert(memory, kept);
                    }
                    Err(error) => inside.keeper.no_memory(memory, &error.to_string()),
                },
                KeeperAction::Send {
                    member,
                    message,
                    memory,
                } => {
                    let descriptor = memory.map(|(memory, access)| {
                        let kept = inside.memories.get(&memory)?;
                        Some(Arc::clone(match access {
                            MemoryAccess::ReadWrite => &kept.to_write,
                            MemoryAccess::ReadOnly => &kept.to_read,
                        }))
                    });
                    let message = match (message, &descriptor) {
                        // Whom it doesn't hear of, it would take for one on another host.
                        (
                            KeeperMessage::Partner {
                                connection,
                                own,
                                rank,
                                ..
                            },
                            Some(None),
                        ) => inside.without_partner(connection, own, rank),
                        // Memory that couldn't be had: the member has been refused.
                        (_, Some(None)) => continue,
                        (message, _) => message,
                    };
                    let Some(socket) = inside.sockets.get_mut(&member) else {
                        continue;
                    };
                    if message == KeeperMessage::Attached {
                        socket.is_attached();
                    }
                    if let Ok(outgoing) = QueuedMessage::new(&message, descriptor.flatten()) {
                        socket.say(outgoing);
                        self.flush(inside, member);
                    }
                }
                KeeperAction::Want { keeper, wanted } => {
                    if let Some(others) = &inside.others {
                        others.want(keeper, &wanted);
                    }
                }
                KeeperAction::Indices { keeper, said } => inside.say_indices(keeper, &said),
                KeeperAction::Depart {
                    keeper,
                    pair,
                    version,
                    memory,
                } => {
                    let due = DueVersion {
                        pair,
                        version,
                        memory,
                    };
                    let others = inside.others.as_ref();
                    if !others.is_some_and(|others| others.depart(keeper, due)) {
                        inside.keeper.not_departed(pair);
                    }
                }
                KeeperAction::Release {
                    memory,
                    place,
                    version,
                } => {
                    if let Some(kept) = inside.memories.get(&memory) {
                        kept.mapped.release(place, version);
                    }
                }
                KeeperAction::Arrive {
                    memory,
                    place,
                    version,
                } => {
                    if let Some(kept) = inside.memories.get(&memory) {
                        kept.mapped.arrive(place, version);
                    }
                }
                KeeperAction::Close { member } => {
                    if let Some(socket) = inside.sockets.get_mut(&member) {
                        socket.end_when_said();
                        self.flush(inside, member);
                    }
                }
            }
        }
    }

    /// Sends what there is, and asks to be told when there is room for what is left.
    fn flush(&self, inside: &mut Inside, member: MemberId) {
        let Some(socket) = inside.sockets.get_mut(&member) else {
            return;
        };
        let wanted = match socket.flush() {
            Ok(true) if socket.is_ended() => {
                inside.sockets.remove(&member);
                inside.keeper.lost(member, "it was refused");
                return;
            }
            Ok(true) => epoll::EventFlags::IN,
            // Who hears nothing would have us keep everything.
            Ok(false) if socket.waiting_bytes() > inside.waiting_bytes_max => {
                inside.sockets.remove(&member);
                inside
                    .keeper
                    .lost(member, "it doesn't read what it is told");
                return;
            }
            Ok(false) => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            // What it said before it went is still to be read, and says how it went.
            Err(_) => {
                socket.say_no_more();
                epoll::EventFlags::IN
            }
        };
        let data = epoll::EventData::new_u64(member);
        // It was added, and is there.
        let _ = epoll::modify(&self.set, socket.stream(), data, wanted);
    }
}

impl KeptMemory {
    fn new(bytes: u64) -> io::Result<Self> {
        let memory = new_part_memory(bytes)?;
        // A descriptor that can't be mapped to write: the kernel makes one of the file's name only.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
        let to_read = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let to_read = Arc::new(to_read);
        let mapped = PartMemory::own(&memory, bytes).map_err(io::Error::other)?;
        Ok(Self {
            to_lend: Arc::new(LendableMemory::new(Arc::clone(&to_read), bytes)),
            to_write: Arc::new(memory),
            to_read,
            mapped: Arc::new(mapped),
        })
    }
}

/// As many descriptors as the system lets this process have: each part of an array takes two.
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // It stays as it is otherwise.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

fn spare_descriptor() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

impl Inside {
    /// Takes a connection and lets go of it: one that waits would have us asked again at once, for ever.
    fn turn_away(&mut self, listener: &UnixListener) {
        drop(self.spare.take());
        drop(listener.accept());
        self.spare = spare_descriptor();
    }

    /// What the coupler wants, if it is here.
    fn take_orders(&mut self) {
        let Some(coupler) = &mut self.coupler else {
            return;
        };
        while let Some((whom, order)) = coupler.next_order() {
            if let Some(others) = &self.others {
                others.order(whom, &order);
            }
            if whom.is_none_or(|keeper| keeper == OWN_KEEPER) {
                self.keeper.order(order);
            }
        }
        while let Some((keeper, given_up)) = coupler.next_given_up() {
            if let Some(others) = &mut self.others {
                others.tell_lost(keeper, given_up);
            }
            self.keeper.sends_no_more(keeper);
        }
    }

    fn report_to_coupler(&mut self, report: KeeperReport) {
        match (&mut self.coupler, &self.others) {
            (Some(coupler), _) => coupler.report(OWN_KEEPER, report),
            (None, Some(others)) if others.coupler_lost().is_some() => {
                if let KeeperReport::Gone(gone) = report {
                    others.tell_gone(&gone);
                    self.keeper.lose(gone);
                }
            }
            (None, Some(others)) => {
                if let KeeperReport::Gone(gone) = &report {
                    for moved in self.moved_to(gone) {
                        others.report(&moved);
                    }
                }
                others.report(&report);
            }
            (None, None) => {}
        }
    }

    /// What a member is told instead of the memory of a process at the other end, when there is none.
    fn without_partner(&self, connection: u32, own: ArrayEnd, rank: u32) -> KeeperMessage {
        let terms = self
            .keeper
            .coupling()
            .connections()
            .get(connection as usize);
        let other = terms.map_or("", |terms| match own {
            ArrayEnd::Source => &terms.to.program,
            ArrayEnd::Target => &terms.from.program,
        });
        KeeperMessage::Failed {
            connection,
            reason: format!("{} has no memory for its part", ranks_of(other, &[rank])),
            gone: None,
        }
    }

    fn report(&self) -> CouplingReport {
        let Some(coupler) = &self.coupler else {
            return CouplingReport::default();
        };
        let connections = 0..coupler.connections().len();
        let connections = connections.map(|number| self.connection_report(coupler, number));
        let programs = coupler.programs().map(|program| ProgramReport {
            name: program.name.to_owned(),
            present: program.present,
            size: program.size,
            gone: program.gone,
        });
        CouplingReport {
            connections: connections.collect(),
            programs: programs.collect(),
            first_lost: coupler.first_lost().cloned(),
            refusals: coupler.refusals().to_vec(),
            waits: self.waits(coupler),
        }
    }
}
