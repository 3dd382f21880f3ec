//! The tasks of a node's thread: listeners, dialling, one for each session, the renewal.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exoskel_identity::{Identity, VerifiedIdentity};
use exoskel_link::handshake::{Hello, Refuse, RefuseReason};
use exoskel_link::policy::PlaceProof;
use exoskel_link::{CloseReason, Ended, Side};
use exoskel_node::SessionId;
use exoskel_node::links::{
    FailedAttempts, Hindrance, PeerProcess, SessionPeer, Want, WantedProcess,
};

use rustix::process::{Resource, getrlimit};
use tokio::task::JoinSet;

use super::troubles::TroubleSubject;
use super::via::RunningCommand;
use super::{
    GatewayAddress, HintedWay, LinkShared, RunningSession, lock, renewing, status, through,
    unix_seconds,
};
use crate::address::Address;
use crate::establish::{EstablishError, Established, dial, welcome_in_place};
use crate::gateway::{IncomingCall, Registration, connect_through};
use crate::listening::{Listener, SocketFile};
use crate::reception::{Crowd, HandshakePlace, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::socket::Socket;
use crate::sources::NodeConfigRenewal;

/// How long an orderly end may take before the rest is cut off.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Connections in the middle of their handshake, at most.
const HANDSHAKES_MAX: usize = 64;

/// Of these, with one host.
const HANDSHAKES_OF_HOST_MAX: usize = 32;

/// Sessions of one process, at most. It needs one, and has another one beside while it gives up one that is lost.
const SESSIONS_OF_PROCESS_MAX: usize = 4;

/// Descriptors of a session: its transport's, and what tells its task.
const DESCRIPTORS_OF_SESSION: u64 = 2;

/// Into so many parts the descriptors are divided, and the sessions of no node get more than one of them.
const SHARE_OF_NODE: u64 = 4;

/// Calls of one gateway that are answered at the same time, at most: handshakes that have not proved who is at the other end.
const ANSWERS_MAX: usize = 32;

/// Of these, for one who asks, by the gateway's word.
const ANSWERS_FOR_ONE_MAX: usize = 8;

/// How long one way to a node is tried alone. A network that lets nothing through says nothing, and a gateway may lead there.
const HEAD_START: Duration = Duration::from_secs(1);

/// How often links are looked at whose right may have ended.
const EXPIRY_TIME: Duration = Duration::from_secs(1);

/// How often it is looked for what is due, when nothing is.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// Between two attempts to register at a gateway.
const REGISTER_PAUSE_MIN: Duration = Duration::from_millis(250);

/// The same, after many.
const REGISTER_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What the tasks have in common.
struct Tasks {
    shared: Arc<LinkShared>,
    sessions_made: Cell<u32>,
    refusals: RefCell<Refusals>,
    /// Hints that lead through our own gateways, for nodes whose gateways only these can reach.
    own_gateways: Vec<String>,
}

/// Runs a node until it is closed.
pub(super) async fn run(
    shared: Arc<LinkShared>,
    listeners: Vec<(Listener, Option<SocketFile>)>,
    status: Option<(Listener, Option<SocketFile>)>,
    gateways: Vec<GatewayAddress>,
    renewal: Option<NodeConfigRenewal>,
) {
    let tasks = Rc::new(Tasks {
        shared: shared.clone(),
        sessions_made: Cell::new(0),
        refusals: RefCell::default(),
        own_gateways: gateways.iter().map(through).collect(),
    });
    // The sockets' files go when this function ends, before their listeners do.
    let (listeners, _files): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
    for listener in listeners {
        tokio::task::spawn_local(listen(tasks.clone(), listener));
    }
    let (status, _status_file) = status.unzip();
    if let Some(listener) = status {
        tokio::task::spawn_local(status::tell(shared.clone(), listener));
    }
    for gateway in gateways {
        tokio::task::spawn_local(register(tasks.clone(), gateway));
    }
    if let Some(renewal) = renewal {
        tokio::task::spawn_local(renewing::renew(shared.clone(), renewal));
    }
    tokio::task::spawn_local(expire(tasks.clone()));
    tokio::task::spawn_local(serve_regions(tasks.clone()));
    while !shared.is_over.load(Ordering::SeqCst) {
        shared.end_unread();
        tasks.attach_all();
        let (wants, next) = tasks.look();
        for want in wants {
            tokio::task::spawn_local(reach(tasks.clone(), want));
        }
        let next = next.map_or(IDLE_TIME, |next| next.saturating_sub(shared.now()));
        // Woken or not: what is due is looked for.
        let _ = tokio::time::timeout(next, shared.wake.notified()).await;
    }
    let sessions: Vec<_> = lock(&shared.sessions).values().cloned().collect();
    for live in sessions {
        live.connection.close(CloseReason::ShuttingDown);
    }
    let left = async {
        while !lock(&shared.sessions).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(CLOSE_TIME, left).await;
    // Peers that say nothing keep no descriptor of ours.
    lock(&shared.sessions).clear();
}

impl Tasks {
    /// Who is to be dialled now, and when to look again.
    fn look(&self) -> (Vec<Want>, Option<Duration>) {
        let now = self.shared.now();
        let mut machine = lock(&self.shared.machine);
        let lost = machine.give_up(now);
        let wants = machine.take_wants(now);
        let next = machine.next_timeout();
        drop(machine);
        self.shared.happened(lost);
        (wants, next)
    }

    /// Links that wait for nodes to which there is a session already.
    fn attach_all(&self) {
        let sessions: Vec<_> = lock(&self.shared.sessions).values().cloned().collect();
        // The newest first: of two to one process, an older one may be about to end.
        for live in sessions.into_iter().rev() {
            let policy = |endpoint: &str| self.shared.link_protection(&live, endpoint);
            let mut machine = lock(&self.shared.machine);
            let happened = live
                .connection
                .with(|session| machine.attach(live.id, session, &policy));
            drop(machine);
            live.connection.flush();
            self.shared
                .happened_by(Some(live.record.peer.identity()), happened);
        }
    }

    /// Takes in a session, and serves it to its end.
    fn serve(self: &Rc<Self>, established: Established) {
        self.serve_over(established, None);
    }

    /// As [`Tasks::serve`], over a command's input and output, perhaps.
    fn serve_over(self: &Rc<Self>, established: Established, command: Option<RunningCommand>) {
        let id = SessionId(self.sessions_made.get());
        self.sessions_made.set(id.0 + 1);
        let peer_process = PeerProcess {
            node: established.peer.identity().clone(),
            process: established.process,
        };
        let live = Arc::new(RunningSession {
            id,
            process: established.process,
            order: self.shared.order_of(&peer_process),
            share: self.shared.shares.of(&peer_process.node),
            connection: established.connection.clone(),
            same_host: established.proof == PlaceProof::SameHost,
            record: established.record.clone(),
            own_minimum: established.own_minimum,
            since: Instant::now(),
            is_read_here: AtomicBool::new(false),
        });
        self.bound_sessions_of(&peer_process);
        live.share.begin(id, &live.connection);
        lock(&self.shared.sessions).insert(id, live.clone());
        let policy = |endpoint: &str| self.shared.link_protection(&live, endpoint);
        let peer = SessionPeer {
            identity: Arc::new(established.peer.clone()),
            process: established.process,
            same_host: live.same_host,
            dialled: established.side == Side::Client,
        };
        let mut machine = lock(&self.shared.machine);
        let happened = live
            .connection
            .with(|session| machine.begin(id, session, peer, &policy));
        drop(machine);
        self.shared.judge_late(&live);
        live.connection.flush();
        self.shared.happened_by(Some(&peer_process.node), happened);
        if self.shared.is_over.load(Ordering::SeqCst) {
            // It came about while the others were closed.
            live.connection.close(CloseReason::ShuttingDown);
        }
        let tasks = self.clone();
        tokio::task::spawn_local(async move {
            let ended = live
                .connection
                .run_in_turn(&live.share.turn, |event| tasks.shared.event(&live, event))
                .await;
            drop(command);
            lock(&tasks.shared.sessions).remove(&live.id);
            live.share.end(live.id);
            if matches!(ended, Ended::Closed(CloseReason::Expired)) {
                tasks.shared.look_at_own_certificate();
            }
            let now = tasks.shared.now();
            let happened = lock(&tasks.shared.machine).end(live.id, &ended, now);
            let peer = live.record.peer.identity();
            tasks.shared.happened_by(Some(peer), happened);
            // Links that can outlive it want another one.
            tasks.shared.want();
        });
    }

    /// Hints by which a node is dialled. Its own may name gateways of another network, to which only ours lead.
    fn ways_to(&self, want: &Want) -> Vec<String> {
        let mut ways = want.hints.clone();
        // Of a node without hints we are told nothing, and a gateway may know another process of it.
        if !ways.is_empty() {
            let own = self.own_gateways.iter();
            ways.extend(own.filter(|way| !want.hints.contains(way)).cloned());
        }
        ways
    }

    /// Makes room for another session of a process: its oldest one is lost to it, as it is when it dials since that was cut.
    fn bound_sessions_of(&self, process: &PeerProcess) {
        let of_process = self.sessions_of(&process.node, |live| live.process == process.process);
        let surplus = (of_process.len() + 1).saturating_sub(SESSIONS_OF_PROCESS_MAX);
        for live in &of_process[..surplus] {
            live.connection.abort(CloseReason::Finished);
        }
    }

    /// Whether there is room for another session of a node, whatever process numbers it states.
    fn check_room_for(&self, node: &Identity) -> Result<(), Refuse> {
        if self.shared.is_over.load(Ordering::SeqCst) {
            return Err(busy("this node is closing".to_owned()));
        }
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = most / DESCRIPTORS_OF_SESSION / SHARE_OF_NODE;
        let got = self.sessions_of(node, |_| true).len() as u64;
        if got < most {
            return Ok(());
        }
        Err(busy(format!(
            "{node} has {got} sessions with this process, which is its share"
        )))
    }

    fn sessions_of(
        &self,
        node: &Identity,
        fits: impl Fn(&RunningSession) -> bool,
    ) -> Vec<Arc<RunningSession>> {
        let sessions = lock(&self.shared.sessions);
        let of_node = sessions.values();
        let of_node = of_node.filter(|live| live.record.peer.identity() == node && fits(live));
        of_node.cloned().collect()
    }

    fn note(&self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.shared.note(line));
    }
}

fn busy(text: String) -> Refuse {
    Refuse {
        reason: RefuseReason::Busy,
        text: text.into(),
    }
}

/// Dials a node, by one hint after the other, and then through our own gateways. A way that says nothing for a while gets the next one
/// beside it, and the first that leads there is taken.
async fn reach(tasks: Rc<Tasks>, want: Want) {
    let mut attempts = FailedAttempts::default();
    let ways = tasks.ways_to(&want);
    let mut hints = ways.iter();
    // Those that are left end with it.
    let mut under_way = JoinSet::new();
    loop {
        if let Some(hint) = hints.next() {
            lock(&tasks.shared.machine).trying(&want, hint, &attempts);
            let (tasks, want, hint) = (tasks.clone(), want.clone(), hint.clone());
            under_way.spawn_local(async move {
                let reached = reach_at(&tasks, &want, &hint).await;
                (hint, reached)
            });
        }
        let ended = match hints.len() {
            0 => under_way.join_next().await,
            _ => match tokio::time::timeout(HEAD_START, under_way.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            Some(Ok((_, Ok((established, command))))) => {
                tasks.serve_over(established, command);
                // Others may want another process of this node.
                return tasks.shared.want();
            }
            // A hint is whatever somebody has written there.
            Some(Ok((hint, Err(mut failed)))) => {
                if let Some(expiry) = tasks.shared.look_at_own_certificate() {
                    failed.reason = format!("{}; {expiry}", failed.reason);
                    failed.hindrance = failed.hindrance.max(Hindrance::Identity);
                }
                attempts.add(&hint, failed.reason, failed.hindrance);
                attempts.is_gone |= failed.is_gone;
            }
            // A panic has been printed.
            Some(Err(_)) => {}
            None => break,
        }
    }
    let now = tasks.shared.now();
    let happened = lock(&tasks.shared.machine).unreachable(&want, &attempts, now);
    tasks.shared.happened(happened);
    tasks.shared.want();
}

/// Why a hint led nowhere.
#[derive(Default)]
struct FailedAttempt {
    reason: String,
    hindrance: Hindrance,
    /// Another process of the node is there.
    is_gone: bool,
}

impl From<String> for FailedAttempt {
    fn from(reason: String) -> Self {
        Self {
            reason,
            ..Self::default()
        }
    }
}

async fn reach_at(
    tasks: &Tasks,
    want: &Want,
    hint: &str,
) -> Result<(Established, Option<RunningCommand>), FailedAttempt> {
    let terms = lock(&tasks.shared.terms).clone();
    let mut command = None;
    let socket = match hint.parse()? {
        HintedWay::Direct(address) => {
            let via =
                tasks.shared.via.iter().find(|via| {
                    matches!(address, Address::Tcp(_)) && via.leads_to(&want.peer.node)
                });
            if let Some(via) = via {
                let (socket, running) = via
                    .start(&address, &tasks.shared.commands)
                    .map_err(|error| error.to_string())?;
                command = Some(running);
                socket
            } else if let Some(dialler) = &tasks.shared.dialler {
                let connected = dialler.connect(&address, terms.handshake_time).await;
                connected.map_err(|error| error.to_string())?
            } else {
                let time = terms.handshake_time;
                let connected = tokio::time::timeout(time, address.connect()).await;
                connected
                    .map_err(|_| format!("no connection within {time:?}"))?
                    .map_err(|error| error.to_string())?
            }
        }
        HintedWay::Through(gateway) => {
            let WantedProcess { node, process } = &want.peer;
            let GatewayAddress { name, address } = &gateway;
            let connected = connect_through(address, name, &node.name, *process, &terms).await;
            connected.map_err(|error| {
                let advice = match error.is_other_process() {
                    // It may come back: only its own end is sure to be its end.
                    true => {
                        "; if that process has ended, its startpoints have as well: get a new one"
                    }
                    false => "",
                };
                FailedAttempt {
                    hindrance: error.problem.hindrance(),
                    ..format!("{error}{advice}").into()
                }
            })?
        }
    };
    let node = &want.peer.node;
    let established = match dial(socket, &terms, Some(node.name.clone())).await {
        Ok(established) => established,
        Err(error) => {
            let said = match command {
                Some(command) => command.said().await,
                None => String::new(),
            };
            return Err(FailedAttempt {
                hindrance: error.hindrance(),
                ..format!("{error}{said}").into()
            });
        }
    };
    if let Some(command) = &mut command {
        command.carries_session();
    }
    let (met, process) = (established.peer.identity(), established.process);
    let failed = if met != node {
        FailedAttempt {
            hindrance: Hindrance::Identity,
            ..format!("got {met}, expected {node}").into()
        }
    } else if want
        .peer
        .process
        .is_some_and(|expected| process != expected)
    {
        FailedAttempt {
            reason: format!("{met} is there with another process"),
            is_gone: true,
            ..FailedAttempt::default()
        }
    } else {
        return Ok((established, command));
    };
    let reason = CloseReason::NotAllowed(failed.reason.as_str().into());
    established.connection.abort(reason);
    Err(failed)
}

/// Has a gateway call us for peers who can't dial us, as long as the node lives.
async fn register(tasks: Rc<Tasks>, gateway: GatewayAddress) {
    let mut pause = REGISTER_PAUSE_MIN;
    let mut is_told = false;
    let reception = Reception::new(ANSWERS_MAX, ANSWERS_FOR_ONE_MAX);
    loop {
        let terms = lock(&tasks.shared.terms).clone();
        let error = match Registration::begin(&gateway.address, &gateway.name, &terms).await {
            Ok(registration) => {
                let name = gateway.to_string();
                lock(&tasks.shared.unregistered).retain(|one| *one != name);
                tasks.note([format!("registered at the gateway {gateway}")]);
                tasks
                    .shared
                    .is_well(&TroubleSubject::Gateway(gateway.to_string()));
                (pause, is_told) = (REGISTER_PAUSE_MIN, false);
                let called = |call: IncomingCall| {
                    let tasks = tasks.clone();
                    let asker = Crowd::Asker(call.asked_by().to_string().into());
                    reception.receive(asker, async move |place| {
                        // To its gateway it has proved who it is, and dialling back takes its time.
                        place.has_spoken();
                        answer(tasks, call, &place).await;
                    });
                };
                let error = registration.serve(called).await;
                lock(&tasks.shared.unregistered).push(name);
                error
            }
            Err(error) => error,
        };
        if !is_told {
            let text = format!(
                "not registered at the gateway {gateway}: {error}; asks again, at least every {} seconds",
                REGISTER_PAUSE_MAX.as_secs()
            );
            let subject = TroubleSubject::Gateway(gateway.to_string());
            tasks.shared.has_trouble(subject, text);
            is_told = true;
        }
        tasks.shared.look_at_own_certificate();
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(REGISTER_PAUSE_MAX);
    }
}

/// Dials back to a gateway, and welcomes whoever is at the other end of the tunnel.
async fn answer(tasks: Rc<Tasks>, call: IncomingCall, place: &HandshakePlace) {
    let who = call.asked_by().clone();
    let welcomed = async {
        let socket = tokio::select! {
            socket = call.answer() => socket.map_err(|error| error.to_string())?,
            () = place.displaced() => return Err("others have called meanwhile".to_owned()),
        };
        let terms = || lock(&tasks.shared.terms).clone();
        let judge = |_: &Hello, peer: &VerifiedIdentity| {
            place.leave();
            tasks.check_room_for(peer.identity())
        };
        let established = welcome_in_place(socket, terms, judge, async |_| Ok(()), place).await;
        established.map_err(|error| error.to_string())
    };
    match welcomed.await {
        Ok(established) => tasks.serve(established),
        Err(reason) => {
            let line = format!("a call for {who} came to nothing: {reason}");
            tasks.shared.note_by(Some(&who), line);
        }
    }
}

/// Accepts peers that dial in.
async fn listen(tasks: Rc<Tasks>, listener: Listener) {
    let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
    tokio::task::spawn_local(count_refusals(tasks.clone()));
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            // Out of descriptors, most likely: waiting lets some go.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let host = host_of(&socket);
        let tasks = tasks.clone();
        reception.receive(host, async move |place| {
            if let Err(error) = welcome_peer(&tasks, socket, &place).await {
                let lines = tasks
                    .refusals
                    .borrow_mut()
                    .note(host, &address, &error.to_string());
                tasks.note(lines);
            }
        });
        // Who is here goes on before the next one is taken in.
        tokio::task::yield_now().await;
    }
}

async fn welcome_peer(
    tasks: &Rc<Tasks>,
    socket: Socket,
    place: &HandshakePlace,
) -> Result<(), EstablishError> {
    let terms = || lock(&tasks.shared.terms).clone();
    let judge = |_: &Hello, peer: &VerifiedIdentity| {
        place.leave();
        tasks.check_room_for(peer.identity())
    };
    let established = welcome_in_place(socket, terms, judge, async |_| Ok(()), place).await?;
    tasks.serve(established);
    Ok(())
}

async fn count_refusals(tasks: Rc<Tasks>) {
    loop {
        tokio::time::sleep(COUNTING_TIME).await;
        let lines = tasks.refusals.borrow_mut().tell();
        tasks.note(lines);
    }
}

/// Serves regions that calls have waited for, in turns with all else.
async fn serve_regions(tasks: Rc<Tasks>) {
    loop {
        let come = tasks.shared.region_work.come.notified();
        match tasks.shared.serve_regions() {
            None => come.await,
            Some(pause) if pause.is_zero() => tokio::task::yield_now().await,
            // Others may come meanwhile.
            Some(pause) => drop(tokio::time::timeout(pause, come).await),
        }
    }
}

/// Ends links whose right has ended.
async fn expire(tasks: Rc<Tasks>) {
    loop {
        tokio::time::sleep(EXPIRY_TIME).await;
        let links = lock(&tasks.shared.machine).expired(unix_seconds());
        tasks.shared.end_links(links, "the startpoint has expired");
    }
}
