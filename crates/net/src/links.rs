//! A node of a program's own links: its identity, its listeners, one session for each peer, and a thread that serves them.
//!
//! Whoever makes a request seals and writes on its own thread, and reads the answer there if nobody else reads: a request on an idle
//! link wakes two threads, not four. Calls wait in a queue for each endpoint until a thread of its owner takes them; those of one link
//! are handled one after the other.

mod audit;
mod calls;
mod compression;
mod delivery;
mod dialler;
mod driver;
mod fair_queue;
mod inboxes;
mod intake;
mod lookup;
mod own_certificate;
mod peer_share;
mod progress;
mod reading;
mod region_gate;
mod regions;
mod renewing;
mod sandboxes;
mod status;
mod streams;
mod troubles;
mod via;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use exoskel_identity::Identity;
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_link::handshake::{NodeConfig, PeerRecord, ProcessNumber};
use exoskel_link::{CloseReason, LinkId, LinkRefusal, Protection, Protections, SessionError};
use exoskel_node::SessionId;
pub use exoskel_node::links::{
    AcceptedId, ArrayPart, BindingId, Hindrance, LinkCall, LinkError, MessageContents, PartError,
    PeerFailure, PeerProcess, REGION_DIMENSIONS_MAX, RegionLayout, RequestAnswer, RequestId,
    StreamFault, WAITING_BYTES_MAX,
};
use exoskel_node::links::{Happening, LinkMachine, OutgoingMessage};
use tokio::sync::Notify;

use self::audit::AuditLines;
use self::calls::Calls;
use self::compression::Compressions;
pub use self::compression::{Compression, ExpandedContents, ExpansionCheck, ExpansionError};
pub use self::dialler::Dialler;
use self::inboxes::Feeders;
pub use self::inboxes::LinkInbox;
use self::intake::Intake;
pub use self::lookup::{LookupQuestion, PendingLookup};
use self::peer_share::{PeerShare, PeerShares, UnreadLinks};
pub use self::progress::{LinkDriver, LinkDriverParts};
use self::region_gate::RegionWork;
use self::regions::Transfers;
pub use self::regions::{ArrayMemory, OwnRegion, Transfer, TransferError};
use self::renewing::Reloads;
pub use self::renewing::{PendingReload, ReloadError};
pub use self::status::{
    EndpointStatus, LinkStatus, NodeStatus, RaisedBy, SessionStatus, TroubledLinkStatus,
};
use self::streams::LinkStreams;
pub use self::streams::{AcceptedStream, LinkStream, STREAMS_OF_PROCESS_MAX};
use self::troubles::Troubles;
use self::via::ViaCommands;
pub use self::via::{ViaCommand, ViaError};
use crate::address::Address;
use crate::connection::Connection;
use crate::listening::Listening;
use crate::sources::NodeConfigRenewal;

/// How long a wait lasts before another thread that waits may take over the reading.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a thread that has handled a call waits at the session that has brought it. What comes later is read by the node's own thread.
const LISTENING_TIME: Duration = Duration::from_millis(2);

/// Random bytes for keys of endpoints.
pub type RandomBytes = fn(&mut [u8]) -> Result<(), io::Error>;

/// What a node is made of.
pub struct LinkNodeConfig {
    /// Who we are and how links are protected.
    pub terms: NodeConfig,
    /// Looked at every few seconds: new terms when credential, policy or revocation list have changed.
    pub renewal: Option<NodeConfigRenewal>,
    /// Where peers may dial in.
    pub listen: Vec<Listening>,
    /// Gateways at which we register, so that peers reach us who can't dial us.
    pub gateways: Vec<GatewayAddress>,
    /// Where peers are told to dial; where we listen and register if it is empty.
    pub hints: Vec<String>,
    /// How long a link that has lost its session waits for another one; nothing: links end with their sessions.
    pub patience: Duration,
    /// Commands that lead to nodes: the first one that leads to a node is its way to every TCP address. Nothing of a peer chooses them.
    pub via: Vec<ViaCommand>,
    /// Who connects in place of this process, which may not.
    pub dialler: Option<Dialler>,
    /// Where programs of this account may ask how the node stands: a Unix socket in a folder of its own.
    pub status: Option<Listening>,
}

/// A gateway, as `NAME@HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// The name that it has to prove.
    pub name: String,
    /// Where it listens.
    pub address: Address,
}

/// What stands before a gateway's place in a hint.
const GATEWAY: &str = "gateway:";

impl FromStr for GatewayAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("got the gateway {text:?}, expected NAME@HOST:PORT");
        let (name, place) = text.split_once('@').ok_or_else(expected)?;
        let address = place.parse().map_err(|error| format!("{error}"))?;
        // Not an address with its kind in front, as `listen` and hints may be.
        if name.is_empty() || name.contains(['/', ':']) {
            return Err(expected());
        }
        Ok(Self {
            name: name.to_owned(),
            address,
        })
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.name, self.address)
    }
}

/// A node of a program's own links.
pub struct LinkNode {
    shared: Arc<LinkShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What users' threads and the node's own have in common.
pub(crate) struct LinkShared {
    identity: Identity,
    hints: Vec<String>,
    machine: Mutex<LinkMachine>,
    sessions: Mutex<BTreeMap<SessionId, Arc<RunningSession>>>,
    orders: Mutex<BTreeMap<PeerProcess, Weak<Mutex<()>>>>,
    shares: PeerShares,
    unread_links: UnreadLinks,
    terms: Mutex<NodeConfig>,
    via: Vec<ViaCommand>,
    commands: Arc<ViaCommands>,
    dialler: Option<Dialler>,
    reloads: Reloads,
    can_reload: bool,
    /// The start, also of the machine's time.
    since: Instant,
    answers: Mutex<BTreeMap<RequestId, Option<RequestAnswer>>>,
    answered: Condvar,
    /// Threads that wait for that: to wake nobody would cost as much as to wake somebody.
    waiting: AtomicUsize,
    calls: Calls,
    audit: Mutex<AuditLines>,
    troubles: Troubles,
    /// Gateways at which we are to register, and have not yet, or not any more.
    unregistered: Mutex<Vec<String>>,
    intake: Intake,
    feeders: Feeders,
    streams: LinkStreams,
    region_work: RegionWork,
    transfers: Transfers,
    compressions: Compressions,
    /// Tells the node's thread that there is something to dial, or that it is to end.
    wake: Notify,
    /// Tells who drives the node that something has happened.
    progressed: Notify,
    /// Nothing more is asked or posted.
    is_leaving: AtomicBool,
    /// How often terms have been replaced.
    renewals: AtomicU64,
    is_over: AtomicBool,
}

/// A session that runs.
pub(crate) struct RunningSession {
    id: SessionId,
    /// Which process of its node the peer is.
    process: ProcessNumber,
    connection: Arc<Connection>,
    record: PeerRecord,
    /// What our policy has asked for in the handshake.
    own_minimum: Protections,
    same_host: bool,
    since: Instant,
    /// Held while an event of the peer's is dealt with: its links go from one session to another, and calls keep their order.
    order: Arc<Mutex<()>>,
    /// What it has in common with the other sessions of the peer's certificate.
    share: Arc<PeerShare>,
    /// Whether some user's thread reads it.
    is_read_here: AtomicBool,
}

/// A session as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Who is at the other end.
    pub peer: Identity,
    /// What carries it, in a word.
    pub method: &'static str,
    /// Where the other end is.
    pub address: String,
}

/// A binding as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRow {
    /// The session that carries it, if there is one.
    pub session: Option<SessionRow>,
    /// What holds for its records, once it is open.
    pub protection: Option<Protection>,
}

impl LinkNode {
    /// Starts a node on a thread of its own.
    ///
    /// # Errors
    /// When no thread or descriptor can be had.
    pub fn start(config: LinkNodeConfig) -> io::Result<Self> {
        let (node, parts) = Self::without_thread(config)?;
        let thread = std::thread::Builder::new()
            .name("exoskel-links".to_owned())
            .spawn(move || parts.driver().run_to_end())?;
        *lock(&node.thread) = Some(thread);
        Ok(node)
    }

    /// Makes a node that does nothing by itself: a thread of the caller's drives it, by [`LinkDriver::progress`].
    ///
    /// # Errors
    /// When no descriptor can be had.
    pub fn without_thread(config: LinkNodeConfig) -> io::Result<(Self, LinkDriverParts)> {
        let hints = if config.hints.is_empty() {
            let listen = config.listen.iter();
            let gateways = config.gateways.iter();
            listen
                .map(|one| one.address().to_string())
                .chain(gateways.map(through))
                .collect()
        } else {
            config.hints
        };
        let identity = config.terms.credential.identity();
        let mut machine = LinkMachine::new(config.terms.process, config.patience);
        // Nothing is open that the policy could be against.
        let _ = machine.set_policy(config.terms.policy.clone());
        machine.give_out(identity.clone(), hints.clone());
        let shared = Arc::new(LinkShared {
            identity,
            hints,
            machine: Mutex::new(machine),
            via: config.via,
            dialler: config.dialler,
            commands: Arc::default(),
            reloads: Reloads::default(),
            can_reload: config.renewal.is_some(),
            since: Instant::now(),
            sessions: Mutex::default(),
            orders: Mutex::default(),
            shares: PeerShares::default(),
            unread_links: UnreadLinks::default(),
            terms: Mutex::new(config.terms),
            answers: Mutex::default(),
            answered: Condvar::new(),
            waiting: AtomicUsize::new(0),
            calls: Calls::default(),
            intake: Intake::default(),
            feeders: Feeders::default(),
            streams: LinkStreams::default(),
            region_work: RegionWork::default(),
            transfers: Transfers::default(),
            compressions: Compressions::default(),
            audit: Mutex::default(),
            troubles: Troubles::default(),
            unregistered: Mutex::new(config.gateways.iter().map(ToString::to_string).collect()),
            wake: Notify::new(),
            progressed: Notify::new(),
            is_leaving: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            renewals: AtomicU64::new(0),
        });
        let (listen, gateways) = (config.listen, config.gateways);
        let parts = LinkDriverParts::new(
            shared.clone(),
            listen,
            config.status,
            gateways,
            config.renewal,
        )?;
        let thread = Mutex::new(None);
        Ok((Self { shared, thread }, parts))
    }

    /// Who we are.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Where peers are told to dial.
    #[must_use]
    pub fn hints(&self) -> &[String] {
        &self.shared.hints
    }

    /// The gateways at which it is to register, and isn't registered just now: nobody reaches it through these.
    #[must_use]
    pub fn unregistered(&self) -> Vec<String> {
        lock(&self.shared.unregistered).clone()
    }

    /// Offers an endpoint. Both numbers must be random and new.
    ///
    /// # Errors
    /// [`LinkError::EndpointTaken`] and others for names.
    pub fn offer(
        &self,
        name: &str,
        minimum: Protection,
        key_id: [u8; 16],
        secret: [u8; 32],
    ) -> Result<(), LinkError> {
        lock(&self.shared.machine).offer(name, minimum, key_id, secret)
    }

    /// Adds a handler to an endpoint. Links that are open are asked for again by whoever calls it, unless they end with their sessions.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::HandlerTaken`].
    pub fn add_handler(&self, endpoint: &str, handler: &str) -> Result<(), LinkError> {
        lock(&self.shared.machine).add_handler(endpoint, handler)
    }

    /// Makes a startpoint of one of our endpoints, with our hints.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::Capability`].
    pub fn startpoint(
        &self,
        endpoint: &str,
        bearer: bool,
        caveats: Vec<Caveat>,
    ) -> Result<Startpoint, LinkError> {
        let (node, hints) = (self.shared.identity.clone(), self.shared.hints.clone());
        lock(&self.shared.machine).startpoint(endpoint, node, hints, bearer, caveats)
    }

    /// Takes a startpoint back; the links that rest on it or on a copy of it end.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::Capability`].
    pub fn revoke(&self, endpoint: &str, number: u64) -> Result<(), LinkError> {
        let links = lock(&self.shared.machine).revoke(endpoint, number)?;
        self.shared.end_links(links, "the startpoint was revoked");
        Ok(())
    }

    /// Takes the next call for an endpoint, after waiting for `patience` at most. Give it back by [`LinkNode::handled`].
    #[must_use]
    pub fn take_call(&self, endpoint: &str, patience: Duration) -> Option<LinkCall> {
        let calls = &self.shared.calls;
        let is_held = |call: &LinkCall| self.shared.is_held(call);
        let take = |deadline: Instant| {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let call = calls.take(endpoint, left, is_held)?;
                // Its link may have ended while it was put in.
                if self.shared.is_kept(call.accepted) {
                    return Some(call);
                }
                calls.handled(&call);
            }
        };
        let begin = Instant::now();
        let first = take(begin);
        if first.is_some() || patience.is_zero() {
            return first;
        }
        self.shared.listen(endpoint, patience.min(LISTENING_TIME));
        take(begin + patience)
    }

    /// A call was handled: its answer goes home, and the next one of its link may be taken.
    ///
    /// # Errors
    /// When the answer is over a limit: nothing was sent then, and a failure can be. A session that has ended is none.
    pub fn handled(
        &self,
        call: &LinkCall,
        contents: MessageContents,
        is_failure: bool,
    ) -> Result<(), LinkError> {
        let contents = if is_failure || call.request.is_none() {
            contents
        } else {
            self.shared.compressed_answer(call, contents)
        };
        let mut machine = lock(&self.shared.machine);
        let sent = match machine.answer(call, contents, is_failure) {
            Some(outgoing) => self.shared.queue(&mut machine, outgoing)?,
            None => {
                self.shared.kept(&machine, call);
                None
            }
        };
        let place = machine.handled(call);
        drop(machine);
        if let Some(live) = sent {
            live.connection.flush();
        }
        self.shared.calls.handled(call);
        self.shared.consumed(place, call.size);
        Ok(())
    }

    /// Takes memory that a call's parts no longer need, or as much other memory: later messages of its session are read into it.
    pub fn recycle(&self, call: &LinkCall, spent: impl IntoIterator<Item = Vec<u8>>) {
        let place = lock(&self.shared.machine).place_of(call.accepted);
        self.shared.recycle(place, spent);
    }

    /// The same for an answer to a request of this binding.
    pub fn recycle_answer(&self, id: BindingId, spent: impl IntoIterator<Item = Vec<u8>>) {
        let place = lock(&self.shared.machine).session_of(id);
        self.shared.recycle(place, spent);
    }

    /// Whether the link by which a call came is still there, or may come back.
    #[must_use]
    pub fn is_linked(&self, call: &LinkCall) -> bool {
        self.shared.is_kept(call.accepted)
    }

    /// A call needs no answer any more: the next one of its link may be taken.
    pub fn dropped(&self, call: &LinkCall) {
        let place = lock(&self.shared.machine).handled(call);
        self.shared.calls.handled(call);
        self.shared.consumed(place, call.size);
    }

    /// As [`dropped`](Self::dropped), and whoever has posted it hears at once that it has been handled: see [`pending_bytes`].
    ///
    /// [`pending_bytes`]: exoskel_node::links::LinkMachine::pending_bytes
    pub fn acknowledge(&self, call: &LinkCall) {
        let place = lock(&self.shared.machine).handled(call);
        self.shared.calls.handled(call);
        if let Some((id, link)) = place
            && let Some(live) = self.shared.live(id)
        {
            live.connection.acknowledge(link, call.size);
        }
    }

    /// Binds a startpoint: requests can be made by it at once. The first one dials.
    #[must_use]
    pub fn bind(&self, startpoint: Startpoint) -> BindingId {
        lock(&self.shared.machine).bind(startpoint)
    }

    /// Ends a binding. What was posted on it still goes, and goes again if its session is lost, if a link comes within the node's patience;
    /// the log has it otherwise.
    pub fn unbind(&self, id: BindingId) {
        self.shared.forget_compression(id);
        let (place, happened) = lock(&self.shared.machine).unbind(id);
        if let Some((session, link)) = place
            && let Some(live) = self.shared.live(session)
        {
            // It may have ended by itself.
            let _ = live.connection.with(|session| session.close_link(link));
            live.connection.flush();
        }
        self.shared.happened(happened);
    }

    /// Has a binding's link protected at least so from the next record on, and wherever it goes later.
    ///
    /// # Errors
    /// [`LinkError::Closed`].
    pub fn require(&self, id: BindingId, protection: Protection) -> Result<(), LinkError> {
        let place = lock(&self.shared.machine).require(id, protection)?;
        if let Some((session, link)) = place
            && let Some(live) = self.shared.live(session)
        {
            // What is not open yet is raised when it is.
            let _ = live
                .connection
                .with(|session| session.raise_link(link, protection));
            live.connection.flush();
        }
        Ok(())
    }

    /// What carries a binding, and how it is protected.
    #[must_use]
    pub fn link_row(&self, id: BindingId) -> LinkRow {
        let place = lock(&self.shared.machine).session_of(id);
        let live = place.and_then(|(session, link)| Some((self.shared.live(session)?, link)));
        let protection = live.as_ref().and_then(|(live, link)| {
            live.connection
                .with(|session| session.link_protection(*link))
        });
        LinkRow {
            session: live.map(|(live, _)| live.row()),
            protection,
        }
    }

    /// The sessions that run.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionRow> {
        let sessions = lock(&self.shared.sessions);
        sessions.values().map(|live| live.row()).collect()
    }

    /// Makes a request, whose answer [`LinkNode::wait`] gives.
    ///
    /// # Errors
    /// [`LinkError`]; no answer comes then.
    pub fn request(
        &self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
    ) -> Result<RequestId, LinkError> {
        self.shared.check_open()?;
        let contents = self.shared.compressed_call(id, contents);
        let mut machine = lock(&self.shared.machine);
        let (number, outgoing) = machine.request(id, handler, contents)?;
        lock(&self.shared.answers).insert(number, None);
        if let Err(error) = self.shared.go_out(machine, outgoing) {
            lock(&self.shared.machine).forget(id, number);
            lock(&self.shared.answers).remove(&number);
            return Err(error);
        }
        Ok(number)
    }

    /// Sends one way.
    ///
    /// # Errors
    /// [`LinkError`]; nothing is sent then.
    pub fn post(
        &self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
    ) -> Result<(), LinkError> {
        self.shared.check_open()?;
        let contents = self.shared.compressed_call(id, contents);
        let mut machine = lock(&self.shared.machine);
        let outgoing = machine.post(id, handler, contents)?;
        self.shared.go_out(machine, outgoing)
    }

    /// Waits for an answer, for `patience` at most, and takes it.
    #[must_use]
    pub fn wait(
        &self,
        id: BindingId,
        request: RequestId,
        patience: Duration,
    ) -> Option<RequestAnswer> {
        let deadline = Instant::now().checked_add(patience);
        loop {
            if let Some(answer) = self.shared.take_answer(request) {
                return Some(answer);
            }
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return None;
            }
            let slice = left.min(PATIENCE);
            let place = lock(&self.shared.machine).session_of(id);
            let live = place.and_then(|(session, _)| self.shared.live(session));
            if !live.is_some_and(|live| self.shared.read_here(&live, request, slice)) {
                self.shared.wait_for_answer(request, slice);
            }
        }
    }

    /// Whether an answer is there.
    #[must_use]
    pub fn has_answer(&self, request: RequestId) -> bool {
        let answers = lock(&self.shared.answers);
        answers.get(&request).is_none_or(Option::is_some)
    }

    /// Nobody waits for this answer any more.
    pub fn forget(&self, id: BindingId, request: RequestId) {
        lock(&self.shared.machine).forget(id, request);
        lock(&self.shared.answers).remove(&request);
    }

    /// Whether it has a thread of its own, and needs nobody to drive it.
    #[must_use]
    pub fn has_thread(&self) -> bool {
        lock(&self.thread).is_some()
    }

    /// Ends all sessions in order. What waits gets no answer, and what was posted and has not left is lost: see [`LinkNode::leave`] and
    /// [`LinkNode::deliver`].
    pub fn close(&self) {
        self.shared.is_leaving.store(true, Ordering::SeqCst);
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.wake.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of it has been printed.
            let _ = thread.join();
        }
        self.shared.calls.end();
        self.shared.end_inboxes();
        self.shared.forget_region_calls(|_| true);
        for answer in lock(&self.shared.answers).values_mut() {
            answer.get_or_insert(RequestAnswer::Lost(LinkError::Closed));
        }
        self.shared.wake_waiting();
        self.shared.close_streams();
        for (_, sink) in self.shared.intake.take_sinks() {
            sink.take(&self.shared, RequestAnswer::Lost(LinkError::Closed));
        }
    }
}

impl Drop for LinkNode {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.wake.notify_one();
    }
}

impl LinkShared {
    fn check_open(&self) -> Result<(), LinkError> {
        if self.is_leaving.load(Ordering::Relaxed) {
            return Err(LinkError::Closed);
        }
        Ok(())
    }

    /// What is held while an event of this process is dealt with, whichever session has brought it.
    fn order_of(&self, process: &PeerProcess) -> Arc<Mutex<()>> {
        let mut orders = lock(&self.orders);
        orders.retain(|_, order| order.strong_count() > 0);
        if let Some(order) = orders.get(process).and_then(Weak::upgrade) {
            return order;
        }
        let order = Arc::default();
        orders.insert(process.clone(), Arc::downgrade(&order));
        order
    }

    fn live(&self, id: SessionId) -> Option<Arc<RunningSession>> {
        lock(&self.sessions).get(&id).cloned()
    }

    /// Some link waits for a session.
    fn want(&self) {
        self.wake.notify_one();
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Sends what a machine has given, or sees to it that there will be a link.
    fn go_out(
        &self,
        machine: MutexGuard<'_, LinkMachine>,
        outgoing: Option<OutgoingMessage>,
    ) -> Result<(), LinkError> {
        let Some(outgoing) = outgoing else {
            drop(machine);
            self.want();
            return Ok(());
        };
        self.send(machine, outgoing)
    }

    fn send(
        &self,
        mut machine: MutexGuard<'_, LinkMachine>,
        outgoing: OutgoingMessage,
    ) -> Result<(), LinkError> {
        let live = self.queue(&mut machine, outgoing)?;
        drop(machine);
        if let Some(live) = live {
            live.connection.flush();
        }
        Ok(())
    }

    /// Queues a message, before the machine can give another one: messages of a link leave in the order in which they are kept.
    fn queue(
        &self,
        machine: &mut LinkMachine,
        outgoing: OutgoingMessage,
    ) -> Result<Option<Arc<RunningSession>>, LinkError> {
        let (id, link) = (outgoing.session, outgoing.link);
        let Some(live) = self.live(id) else {
            // Whoever waits is told when the session's end is taken in, or it goes over the next one.
            return Ok(None);
        };
        let kind = outgoing.message.kind;
        match live.connection.queue(link, outgoing.message) {
            Ok(()) => Ok(Some(live)),
            Err(error @ SessionError::Limit { .. }) => {
                machine.take_back(id, link);
                Err(LinkError::of_message(error, kind))
            }
            Err(_) if machine.outlives(id, link) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn consumed(&self, place: Option<(SessionId, LinkId)>, size: u64) {
        if let Some((id, link)) = place
            && let Some(live) = self.live(id)
        {
            live.connection.consumed(link, size);
        }
    }

    fn recycle(
        &self,
        place: Option<(SessionId, LinkId)>,
        spent: impl IntoIterator<Item = Vec<u8>>,
    ) {
        if let Some(live) = place.and_then(|(id, _)| self.live(id)) {
            for memory in spent {
                live.connection.recycle(memory);
            }
        }
    }

    /// Whether calls of a link are still to be handled.
    fn is_kept(&self, accepted: AcceptedId) -> bool {
        lock(&self.machine).is_kept(accepted)
    }

    /// Ends links whose opener has no right to them any more. What they have asked and nobody has begun to handle is dropped.
    fn end_links(self: &Arc<Self>, links: Vec<AcceptedId>, why: &str) {
        for number in links {
            let place = lock(&self.machine).end_link(number);
            self.forget_calls(number);
            self.forget_in_inboxes(number);
            // After the link: no stream begins on it any more.
            let error = LinkError::LinkEnded(why.to_owned());
            self.end_streams(&error, |accepted| accepted == number);
            self.drop_waiting_streams(number);
            if let Some((id, link)) = place
                && let Some(live) = self.live(id)
            {
                let reason = LinkRefusal::Ended(why.into());
                // It may have ended by itself.
                let _ = live
                    .connection
                    .with(|session| session.end_link(link, reason));
                live.connection.flush();
            }
        }
    }

    /// An event of a session, on whichever thread has read it.
    fn event(self: &Arc<Self>, live: &RunningSession, event: exoskel_link::Event) {
        let policy = |endpoint: &str| self.link_protection(live, endpoint);
        let is_news = matches!(
            event,
            exoskel_link::Event::Credit { .. }
                | exoskel_link::Event::LinkClosed { .. }
                | exoskel_link::Event::LinkProtectionRaised { .. }
        );
        let _order = lock(&live.order);
        let mut machine = lock(&self.machine);
        let (unix, now) = (unix_seconds(), self.now());
        let happened = live
            .connection
            .with(|session| machine.event(live.id, session, event, &policy, unix, now));
        drop(machine);
        if is_news {
            // Somebody may wait for room, for posts to have arrived, or for a link to be raised.
            self.wake_waiting();
        }
        match happened {
            Ok(happened) => self.happened_by(Some(live.record.peer.identity()), happened),
            Err(error) => live
                .connection
                .abort(CloseReason::Fault(error.to_string().into())),
        }
    }

    fn link_protection(&self, live: &RunningSession, endpoint: &str) -> Protection {
        lock(&self.terms).link_protection(&live.record, endpoint)
    }

    fn happened(self: &Arc<Self>, happened: Vec<Happening>) {
        self.happened_by(None, happened);
    }

    /// As [`LinkShared::happened`], by the doing of a peer.
    fn happened_by(self: &Arc<Self>, peer: Option<&Identity>, happened: Vec<Happening>) {
        let (mut is_answered, is_any) = (false, !happened.is_empty());
        for one in happened {
            match one {
                Happening::LinkClosed(accepted, error) => {
                    self.end_streams(&error, |link| link == accepted);
                }
                Happening::LinkOver(accepted, error) => {
                    self.forget_calls(accepted);
                    self.end_streams(&error, |link| link == accepted);
                }
                Happening::Close(id) => {
                    if let Some(live) = self.live(id) {
                        live.connection.close(CloseReason::Finished);
                    }
                }
                Happening::Call(call) => self.take_in(call),
                Happening::Answered(request, answer) => {
                    is_answered |= self.answered(request, answer);
                }
                Happening::Audit(line) => self.note_by(peer, line),
                Happening::Warning(line) => {
                    self.warn(line.clone());
                    self.note_by(peer, line);
                }
            }
        }
        if is_answered {
            self.wake_waiting();
        }
        if is_any {
            self.progressed.notify_one();
        }
    }

    /// Ends a link because of what waits for its opener, with others of it, and the session that carries it.
    fn end_for_waiting(self: &Arc<Self>, accepted: AcceptedId, text: String) {
        let place = lock(&self.machine).place_of(accepted);
        // A call of it is dropped: it must not go on in another session.
        self.end_links(vec![accepted], &text);
        if let Some(live) = place.and_then(|(session, _)| self.live(session)) {
            let peer = live.record.peer.identity();
            let line = format!("ended the session with {peer}: {text}");
            self.note_by(Some(peer), line);
            live.connection.abort(CloseReason::NotAllowed(text.into()));
        }
    }

    fn take_answer(&self, request: RequestId) -> Option<RequestAnswer> {
        let mut answers = lock(&self.answers);
        match answers.get_mut(&request) {
            Some(answer) => {
                let answer = answer.take()?;
                answers.remove(&request);
                Some(answer)
            }
            None => Some(RequestAnswer::Lost(LinkError::Closed)),
        }
    }

    fn wait_for_answer(&self, request: RequestId, patience: Duration) {
        let answers = lock(&self.answers);
        let waits = |answers: &mut BTreeMap<RequestId, Option<RequestAnswer>>| {
            answers.get(&request).is_some_and(Option::is_none)
        };
        // Under the lock: who has an answer sees this, or this thread sees the answer.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = self.answered.wait_timeout_while(answers, patience, waits);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until something has happened that threads wait for, for so long at most.
    fn wait_for_news(&self, patience: Duration) {
        let answers = lock(&self.answers);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.answered.wait_timeout(answers, patience));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_waiting(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.answered.notify_all();
        }
    }
}

impl RunningSession {
    fn row(&self) -> SessionRow {
        SessionRow {
            peer: self.record.peer.identity().clone(),
            method: self.connection.transport().kind(),
            address: self.connection.transport().peer_text(),
        }
    }
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hint that leads through a gateway.
fn through(gateway: &GatewayAddress) -> String {
    format!("{GATEWAY}{gateway}")
}

/// A way to a node, as a hint says it.
enum HintedWay {
    Direct(Address),
    Through(GatewayAddress),
}

impl FromStr for HintedWay {
    type Err = String;

    fn from_str(hint: &str) -> Result<Self, String> {
        match hint.strip_prefix(GATEWAY) {
            Some(gateway) => gateway.parse().map(Self::Through),
            None => hint
                .parse()
                .map(Self::Direct)
                .map_err(|error| format!("{error}")),
        }
    }
}
