//! How a worker's process meets its manager: over an inherited connection, by listening, or by dialling.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use exoskel_identity::authorization::SandboxUse;
use exoskel_link::handshake::{Hello, Refuse, RefuseReason};
use exoskel_link::{CloseReason, SessionError};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::beside::Alone;
use crate::connection::Connection;
use crate::descendants::{adopt_orphans, end_own};
use crate::establish::{
    EstablishError, Established, NodeConfig, PeerRecord, judge_again, knock, welcome,
    welcome_in_place,
};
use crate::hearing_worker::HeardFile;
pub use crate::knock::ManagerPlace;
use crate::leaving::{LeaveSignal, take_signals};
use crate::listening::{Listener, is_unix};
use crate::reception::{HandshakePlace, Host, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::signer::{ManagerVerdict, SlotEnd, Verdicts};
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

/// How long a slot that has a session waits until the others whose handshake is under way have been told that it is taken. Theirs
/// takes a few milliseconds; a stranger that stops in the middle must not keep the manager for longer.
const TELLING_TIME: Duration = Duration::from_millis(250);

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

/// Writes a line about an accepted or refused session, for the worker's owner.
pub(crate) type TellOwner = Rc<dyn Fn(String)>;

/// What is brought to handshakes, which several may be under way with.
pub(crate) type SharedConfig = Rc<RefCell<CurrentConfig>>;

/// Who judges the manager again while the session runs.
pub enum JudgedBy {
    /// This process, by its files.
    Files(Box<NodeConfigRenewal>),
    /// The signer of its worker, which then has nothing signed for this process any more.
    Signer(SlotEnd),
}

impl JudgedBy {
    /// Whether it can't be asked any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Signer(signer) if !signer.is_connected())
    }

    /// Waits until it can't be asked any more.
    async fn ended(&self) -> io::Error {
        match self {
            Self::Files(_) => std::future::pending().await,
            Self::Signer(signer) => match signer.gone().await {
                Ok(()) => io::ErrorKind::UnexpectedEof.into(),
                Err(error) => error,
            },
        }
    }
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
    /// What it takes besides can't be had.
    #[error(
        "can't start its I/O thread: {0}; the limits on processes and open files (ulimit -u, ulimit -n) are too low for so many slots"
    )]
    Start(#[source] io::Error),
    /// The process that signs for the worker's slots.
    #[error("the process of this worker that holds its credential doesn't answer: {0}")]
    Signer(#[source] io::Error),
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

/// A manager that has proved itself, before anything of it has run. This process still has one thread.
pub struct Met {
    runtime: Runtime,
    established: Established,
    /// A child's session is its parent's business, and the parent has the line.
    audited: bool,
    renewal: JudgingAgain,
    ending: Ending,
    sandbox: Option<(SandboxUse, String)>,
}

/// How the manager of a running session is judged again.
enum JudgingAgain {
    Files(Box<NodeConfigRenewal>),
    Signer(Verdicts),
}

/// Meets the manager, on this thread and without another one; nothing if the slot is told to leave before. `config` is read at each
/// handshake. What `audit` gets is for the worker's owner. Told to leave, the slot lets what runs go on for `drain` at most.
///
/// # Errors
/// [`MeetError`] says why there is no session.
pub fn meet(
    rendezvous: Rendezvous,
    config: CurrentConfig,
    judged_by: JudgedBy,
    drain: Duration,
    audit: impl Fn(String) + 'static,
) -> Result<Option<Met>, MeetError> {
    // Before any task runs: what it starts must be found at the end.
    adopt_orphans().map_err(MeetError::Start)?;
    let wake = take_signals().map_err(MeetError::Start)?;
    let audited = !matches!(rendezvous, Rendezvous::Inherited(_));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(MeetError::Start)?;
    let config = Rc::new(RefCell::new(config));
    let alone = Alone::begin();
    let met: Result<_, MeetError> = LocalSet::new().block_on(&runtime, async {
        let mut signal = LeaveSignal::new(wake).map_err(MeetError::Signal)?;
        let audit: TellOwner = Rc::new(audit);
        let established = tokio::select! {
            established = establish(rendezvous, config.clone(), audit) => established?,
            () = signal.told() => return Ok(None),
            error = judged_by.ended() => return Err(MeetError::Signer(error)),
        };
        Ok(Some((established, signal)))
    });
    drop(alone);
    let Some((established, signal)) = met? else {
        return Ok(None);
    };
    let renewal = match judged_by {
        JudgedBy::Files(renewal) => JudgingAgain::Files(renewal),
        JudgedBy::Signer(signer) => {
            let verdicts = signer.watch(&established.record);
            JudgingAgain::Signer(verdicts.map_err(MeetError::Signer)?)
        }
    };
    // What was read last: it is no older than what the manager was judged by.
    let policy = config.borrow().last().policy.clone();
    let confined = policy.authorization().sandbox_of(&established.peer);
    Ok(Some(Met {
        sandbox: confined.map(|(allowed, why)| (allowed.clone(), why)),
        runtime,
        established,
        audited,
        renewal,
        ending: Ending { signal, drain },
    }))
}

impl Met {
    /// What the manager's code may use on this host, and why; nothing: all that the account may.
    #[must_use]
    pub fn sandbox(&self) -> Option<&(SandboxUse, String)> {
        self.sandbox.as_ref()
    }

    /// Ends the session before it begins, and tells the manager why.
    pub fn refuse(self, why: &str) {
        let connection = self.established.connection;
        connection.abort(CloseReason::NotAllowed(why.into()));
        self.runtime.block_on(async {
            // A manager that doesn't read is told no better by waiting.
            let _ = tokio::time::timeout(LEAVE_TIME, connection.run(|_| ())).await;
        });
    }

    /// Starts the I/O thread, which serves the session. `held` is what holds this process by now, a phrase each; `heard` is where it is
    /// written whom its worker hears.
    ///
    /// # Errors
    /// When there can't be another thread, or the session has ended already.
    pub fn begin(
        self,
        held: &[String],
        heard: Option<HeardFile>,
        audit: impl FnOnce(String),
    ) -> Result<Arc<SlotNode>, MeetError> {
        let Established {
            connection,
            peer,
            protections,
            domain,
            record,
            message_bytes_max,
            ..
        } = self.established;
        let node = SlotNode::start(connection.clone(), message_bytes_max)?;
        if let Some(heard) = heard {
            node.hear(heard);
        }
        if self.audited {
            let domain = domain.as_deref().unwrap_or("none");
            let sandbox = self.sandbox.map_or_else(String::new, |(_, why)| {
                format!(", in a sandbox ({why}): {}", held.join(", "))
            });
            let (who, at) = (peer.identity(), node.peer());
            audit(format!(
                "accepted {who} at {at}: {protections}, domain {domain}{sandbox}"
            ));
        }
        let (served, runtime) = (node.clone(), self.runtime);
        let judging = Judging {
            record,
            connection,
            renewal: self.renewal,
        };
        let ending = self.ending;
        std::thread::Builder::new()
            .name("exoskel-slot".to_owned())
            .spawn(move || {
                // A task that closes the descriptors of its process takes those of this thread, which then has no way to go on.
                let _end = EndOnPanic;
                LocalSet::new().block_on(&runtime, serve(&served, judging, ending));
            })
            .map_err(MeetError::Start)?;
        Ok(node)
    }
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

async fn serve(node: &Arc<SlotNode>, judging: Judging, ending: Ending) {
    let watch = tokio::task::spawn_local(judging.judge());
    tokio::select! {
        _ = node.run() => {}
        never = ending.leave(node) => match never {},
    }
    watch.abort();
    tokio::time::sleep(LEAVE_TIME).await;
    // Still here: the interpreter is in the middle of a task whose result nobody wants. Its manager may be gone for
    // good, so neither the process nor what it has started must outlive the session.
    end_process();
}

/// Ends the session when the manager is no longer good by what policy, trust and revocation lists say now.
struct Judging {
    record: PeerRecord,
    connection: Arc<Connection>,
    renewal: JudgingAgain,
}

impl Judging {
    async fn judge(self) {
        match self.renewal {
            JudgingAgain::Files(renewal) => renew(self.record, self.connection, *renewal).await,
            JudgingAgain::Signer(verdicts) => obey(verdicts, &self.connection).await,
        }
    }
}

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

async fn obey(verdicts: Verdicts, connection: &Connection) {
    let listened = verdicts.listen(|standing| match standing {
        ManagerVerdict::Good(minimum) => {
            connection.with(|session| session.raise_protections(minimum));
            connection.flush();
        }
        ManagerVerdict::NoLongerGood(why) => connection.abort(CloseReason::NotAllowed(why.into())),
    });
    let _ = listened.await;
    // It would say whether the manager is still good.
    let why = "the worker's main process has ended";
    connection.abort(CloseReason::NotAllowed(why.into()));
}

async fn establish(
    rendezvous: Rendezvous,
    config: SharedConfig,
    audit: TellOwner,
) -> Result<Established, MeetError> {
    let read = || config.borrow_mut().read().0;
    match rendezvous {
        Rendezvous::Inherited(descriptor) => {
            let socket = inherited(descriptor).map_err(MeetError::InheritedConnection)?;
            Ok(welcome(socket, &read(), anybody).await?)
        }
        Rendezvous::Listening(descriptor) => {
            let listener = Listener::inherited(descriptor).map_err(MeetError::InheritedListener)?;
            accept_one(&listener, config, audit).await
        }
        Rendezvous::Dialling(manager) => manager.meet(&config, &*audit).await,
        Rendezvous::Dialled(descriptor, name) => {
            let socket = inherited(descriptor).map_err(MeetError::InheritedConnection)?;
            Ok(knock(socket, &read(), Some(name), || ()).await?)
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
    config: SharedConfig,
    audit: TellOwner,
) -> Result<Established, MeetError> {
    let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
    let audit = Rc::new(StrangerLog {
        audit,
        refusals: RefCell::default(),
    });
    // Each handshake has a sender of this, so that the receiver sees the end of the last one.
    let (under_way, mut none_left) = tokio::sync::mpsc::channel::<Infallible>(1);
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
            let one_of_them = under_way.clone();
            let handshake = reception.receive(host, async move |place| {
                let _one_of_them = one_of_them;
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
    // Whoever else is there is told that the slot is taken: after this nobody would tell it.
    drop(under_way);
    let _ = tokio::time::timeout(TELLING_TIME, none_left.recv()).await;
    audit.tell();
    result
}

/// The worker's log of connections that came to nothing.
struct StrangerLog {
    audit: TellOwner,
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
        (self.audit)(line);
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
