//! How a worker's process meets its manager: over an inherited connection, by listening, or by dialling.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use exoskel_link::handshake::{Hello, Refuse, RefuseReason};
use exoskel_link::{CloseReason, SessionError};
use tokio::sync::watch;

use crate::connection::Connection;
use crate::descendants::{adopt_orphans, end_own};
use crate::establish::{
    EstablishError, Established, NodeConfig, PeerRecord, judge_again, knock, welcome,
    welcome_in_place,
};
pub use crate::knock::ManagerPlace;
use crate::leaving::{LeaveSignal, take_signals};
use crate::listening::{Listener, is_unix};
use crate::reception::{HandshakePlace, Host, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::slot::SlotNode;
use crate::socket::Socket;
use crate::sources::{CurrentConfig, NodeConfigRenewal, RENEWAL_TIME};

/// Connections in the middle of their handshake at one slot, at most.
const HANDSHAKES_MAX: usize = 16;

/// Of these, with one host.
const HANDSHAKES_OF_HOST_MAX: usize = 8;

/// With as many handshakes under way, strangers stand around, and a slot doesn't wait for its [turn](TURN_TIME).
const CALM_MAX: usize = 4;

/// How long a slot leaves the next connection to the worker's other slots while a handshake of its own goes on. A manager's
/// takes a few milliseconds; a stranger that stops in the middle must not keep managers away for longer.
const TURN_TIME: Duration = Duration::from_millis(50);

/// How long the interpreter may take to leave after the session's end.
const LEAVE_TIME: Duration = Duration::from_millis(500);

/// Where the manager is met.
pub enum Rendezvous {
    /// A connected socket that the manager left us.
    Inherited(OwnedFd),
    /// A listening socket, shared with the worker's other slots: whoever is free accepts.
    Listening(OwnedFd),
    /// A manager that listens, asked again until it answers.
    Dialling(ManagerPlace),
    /// A manager with this name, which listens and which somebody has dialled for us, once.
    Dialled(OwnedFd, String),
}

/// What a slot's I/O thread tells its interpreter.
pub enum News {
    /// One line about an accepted or refused session.
    Audit(String),
    /// The session has begun.
    Begun(Arc<SlotNode>),
    /// There will be none.
    Failed(MeetError),
    /// There will be none: the slot was told to leave.
    Left,
}

/// Why a worker's process has no session with a manager.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// The connection that our parent left us.
    #[error("the inherited connection is unusable: {0}")]
    InheritedConnection(#[source] io::Error),
    /// The listening socket that our parent left us.
    #[error("the inherited listening socket is unusable: {0}")]
    InheritedListener(#[source] io::Error),
    /// What tells a slot to leave can't be waited for.
    #[error("can't wait for signals: {0}")]
    Signal(#[source] io::Error),
    /// Nothing is accepted any more.
    #[error("the listening socket is gone")]
    ListenerGone,
    /// Nobody accepts connections at the manager's address.
    #[error("can't connect: {0}")]
    Connect(#[source] io::Error),
    /// The network doesn't answer.
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
    /// No session came about.
    #[error(transparent)]
    Establish(#[from] EstablishError),
    /// The session ended before it had begun to work.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Starts the I/O thread, which meets the manager and then serves the session. `config` is read at each handshake,
/// `renewal` every few seconds while the session runs. Told to leave, the slot lets what runs go on for `drain` at most.
///
/// # Errors
/// When no thread can be started, or there are no descriptors left.
pub fn meet(
    rendezvous: Rendezvous,
    config: CurrentConfig,
    renewal: NodeConfigRenewal,
    drain: Duration,
) -> io::Result<mpsc::Receiver<News>> {
    // Before any task runs: what it starts must be found at the end.
    adopt_orphans()?;
    let wake = take_signals()?;
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    std::thread::Builder::new()
        .name("exoskel-slot".to_owned())
        .spawn(move || {
            // A task that closes the descriptors of its process takes those of this thread, which then has no way to go on.
            let _end = EndOnPanic;
            let tasks = tokio::task::LocalSet::new();
            tasks.block_on(&runtime, async {
                // A child's session is its parent's business; the parent has the line.
                let audited = !matches!(rendezvous, Rendezvous::Inherited(_));
                let mut signal = match LeaveSignal::new(wake) {
                    Ok(signal) => signal,
                    Err(error) => return drop(sender.send(News::Failed(MeetError::Signal(error)))),
                };
                let established = tokio::select! {
                    established = establish(rendezvous, config, &sender) => established,
                    () = signal.told() => return drop(sender.send(News::Left)),
                };
                match established {
                    Ok(established) => {
                        let ending = Ending { signal, drain };
                        serve(&established, renewal, &sender, audited, ending).await;
                    }
                    // Nobody listens any more when the interpreter has left.
                    Err(error) => drop(sender.send(News::Failed(error))),
                }
            });
        })?;
    Ok(receiver)
}

/// How a slot that has a session is told to leave, and how long what runs may then take.
struct Ending {
    signal: LeaveSignal,
    drain: Duration,
}

impl Ending {
    async fn leave(mut self, node: &SlotNode) -> Infallible {
        self.signal.told().await;
        node.leave();
        // Told again, or at the end of its time, it goes as it is: the manager puts back what runs.
        let _ = tokio::time::timeout(self.drain, self.signal.told()).await;
        node.close();
        std::future::pending().await
    }
}

/// Ends the process with the thread that holds this, if that panics: nobody would notice that the slot is of no use any more.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            end_process();
        }
    }
}

fn end_process() {
    end_own();
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

async fn serve(
    established: &Established,
    renewal: NodeConfigRenewal,
    news: &mpsc::Sender<News>,
    audited: bool,
    ending: Ending,
) {
    let connection = established.connection.clone();
    let started = SlotNode::start(connection, established.message_bytes_max);
    let node = match started {
        Ok(node) => node,
        Err(error) => return drop(news.send(News::Failed(error.into()))),
    };
    if audited {
        let domain = established.domain.as_deref().unwrap_or("none");
        let who = established.peer.identity();
        let audit = format!(
            "accepted {who} at {}: {}, domain {domain}",
            node.peer(),
            established.protections
        );
        drop(news.send(News::Audit(audit)));
    }
    drop(news.send(News::Begun(node.clone())));
    let watch = tokio::task::spawn_local(renew(
        established.record.clone(),
        established.connection.clone(),
        renewal,
    ));
    tokio::select! {
        _ = node.run() => {}
        never = ending.leave(&node) => match never {},
    }
    watch.abort();
    tokio::time::sleep(LEAVE_TIME).await;
    // Still here: the interpreter is in the middle of a task whose result nobody wants. Its manager may be gone for
    // good, so neither the process nor what it has started must outlive the session.
    end_process();
}

/// Ends the session when the manager is no longer good by what credential, policy or revocation list say now.
async fn renew(standing: PeerRecord, connection: Arc<Connection>, mut renewal: NodeConfigRenewal) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        // What can't be read leaves the old terms in force; the next handshake says why.
        if let Some(Ok(terms)) = renewal.renew()
            && let Err(error) = judge_again(&terms, &standing, &connection)
        {
            return connection.abort(CloseReason::NotAllowed(error.to_string().into()));
        }
    }
}

async fn establish(
    rendezvous: Rendezvous,
    mut config: CurrentConfig,
    news: &mpsc::Sender<News>,
) -> Result<Established, MeetError> {
    match rendezvous {
        Rendezvous::Inherited(descriptor) => {
            let socket = inherited(descriptor).map_err(MeetError::InheritedConnection)?;
            Ok(welcome(socket, &config.read().0, anybody).await?)
        }
        Rendezvous::Listening(descriptor) => {
            let listener = Listener::inherited(descriptor).map_err(MeetError::InheritedListener)?;
            accept_one(&listener, config, news).await
        }
        Rendezvous::Dialling(manager) => manager.meet(config, news).await,
        Rendezvous::Dialled(descriptor, name) => {
            let socket = inherited(descriptor).map_err(MeetError::InheritedConnection)?;
            Ok(knock(socket, &config.read().0, Some(name), || ()).await?)
        }
    }
}

/// Accepts until one manager has proved itself; strangers only take a place among the handshakes.
///
/// All slots of a worker accept at the same socket, so a slot accepts no more than it can use: nothing while a manager has
/// it, and while a handshake makes progress the next connection is left to a slot that is free. What was accepted all the
/// same is told that the slot is taken; it is never dropped, or its manager would take the worker for a broken one.
async fn accept_one(
    listener: &Listener,
    config: CurrentConfig,
    news: &mpsc::Sender<News>,
) -> Result<Established, MeetError> {
    let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
    let audit = Rc::new(StrangerLog {
        news: news.clone(),
        refusals: RefCell::default(),
    });
    let config = Rc::new(RefCell::new(config));
    let (taken, mut change) = watch::channel(false);
    let taken = Rc::new(taken);
    let (sender, mut winner) = tokio::sync::mpsc::channel(1);
    let accepting = async {
        loop {
            if change.wait_for(|taken| !taken).await.is_err() {
                return Err(MeetError::ListenerGone);
            }
            let accepted = tokio::select! {
                biased;
                _ = change.wait_for(|taken| *taken) => continue,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, address)) = accepted else {
                // Out of descriptors, most likely: waiting lets some go.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let host = host_of(&socket);
            let is_calm = reception.len() < CALM_MAX;
            let (config, taken) = (config.clone(), taken.clone());
            let (audit, sender) = (audit.clone(), sender.clone());
            let handshake = reception.receive(host, async move |place| {
                let terms = || {
                    let (config, told) = config.borrow_mut().read();
                    told.into_iter().for_each(|line| audit.write(line));
                    config
                };
                match welcome_one(socket, terms, taken, &place).await {
                    Ok(established) => drop(sender.try_send(established)),
                    Err(error) => audit.refused(host, &address, &error),
                }
            });
            if is_calm {
                // Its own end doesn't matter: it has told whoever has to know.
                let _ = tokio::time::timeout(TURN_TIME, handshake).await;
            } else {
                // Who is here goes on before the next one is taken in.
                tokio::task::yield_now().await;
            }
        }
    };
    let counting = async {
        loop {
            tokio::time::sleep(COUNTING_TIME).await;
            audit.tell();
        }
    };
    let result = tokio::select! {
        established = winner.recv() => established.ok_or(MeetError::ListenerGone),
        never = accepting => never,
        () = counting => unreachable!("counting has no end"),
    };
    audit.tell();
    result
}

/// The worker's log of connections that came to nothing.
struct StrangerLog {
    news: mpsc::Sender<News>,
    refusals: RefCell<Refusals>,
}

impl StrangerLog {
    fn refused(&self, host: Host, address: &str, error: &EstablishError) {
        let reason = error.to_string();
        let line = self.refusals.borrow_mut().note(host, address, &reason);
        line.into_iter().for_each(|line| self.write(line));
    }

    /// Writes down what was counted.
    fn tell(&self) {
        let lines = self.refusals.borrow_mut().tell();
        lines.into_iter().for_each(|line| self.write(line));
    }

    fn write(&self, line: String) {
        // The interpreter may have left.
        drop(self.news.send(News::Audit(line)));
    }
}

/// One connection that a slot accepted. The first manager that proves itself has the slot; another one is told to ask again.
async fn welcome_one(
    socket: Socket,
    terms: impl FnOnce() -> NodeConfig,
    taken: Rc<watch::Sender<bool>>,
    place: &HandshakePlace,
) -> Result<Established, EstablishError> {
    let ours = Cell::new(false);
    let judge = |_: &Hello, _: &VerifiedIdentity| {
        if taken.send_replace(true) {
            let text = "this slot has just been taken by another connection".into();
            return Err(Refuse {
                reason: RefuseReason::Busy,
                text,
            });
        }
        ours.set(true);
        place.leave();
        Ok(())
    };
    let result = welcome_in_place(socket, terms, judge, async |_| Ok(()), place).await;
    if result.is_err() && ours.get() {
        taken.send_replace(false);
    }
    result
}

fn inherited(descriptor: OwnedFd) -> io::Result<Socket> {
    // A child of ours must not inherit the connection in turn.
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
    if is_unix(descriptor.as_fd())? {
        Socket::unix(UnixStream::from(descriptor))
    } else {
        Socket::tcp_from_std(std::net::TcpStream::from(descriptor))
    }
}

/// Role and policy have been checked by then; a slot has nothing to add.
fn anybody(_: &Hello, _: &VerifiedIdentity) -> Result<(), Refuse> {
    Ok(())
}
