//! A gateway's own part: who asks, who may, how the node is reached, and the tunnels.
//!
//! All of it is one task for each connection on one thread: what a tunnel does is the kernel's work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use exoskel_identity::authorization::Decision;
use exoskel_identity::{Expected, Identity, Role, VerifiedIdentity};
use exoskel_link::handshake::{
    GatewayCall, HOPS_MAX, NodeConfig, ProcessNumber, Purpose, Refuse, RefuseReason, Ticket,
};
use exoskel_node::gateway::{
    Full, GatewayLimits, GatewayTables, Registered, RegistrationId, TunnelId,
};
use exoskel_trust::Stamps;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::sync::{mpsc, oneshot};

use super::budget::{DESCRIPTORS_MIN, affordable};
pub use super::tunnel::TunnelPatience;
use super::tunnel::{TunnelEnd, TunnelTraffic, join};
use super::{OneGateway, connect};
use crate::establish::EstablishError;
use crate::establish::for_gateway::{AnsweredConnection, WaitingClient, hear};
use crate::establish::{FIRST_BYTE_TIME, unix_time};
use crate::listening::Listening;
use crate::reception::{HandshakePlace, Host, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::site::{Site, SiteError, WayToNode};
use crate::socket::Socket;
use crate::sources::{
    CurrentConfig, NodeConfigError, NodeConfigRenewal, NodeSources, RENEWAL_TIME,
};
use crate::splice::Pipe;

/// Connections in the middle of their handshake, at most.
pub(super) const HANDSHAKES_MAX: usize = 128;

/// Of these, with one host. A whole subnet may come from one address.
const HANDSHAKES_OF_HOST_MAX: usize = 32;

/// How long all ways to a node may take together. Whoever asks waits a little longer.
const REACH_TIME: Duration = Duration::from_secs(15);

/// How long one way may take.
const WAY_TIME: Duration = Duration::from_secs(5);

/// Calls that wait to be sent to one registered node.
const CALLS_MAX: usize = 64;

/// Why a registration ends in whose place a newer one is.
const AGAIN: &str = "the same process has registered again";

/// Registrations of one name that are called, one after the other, for one tunnel.
const CALLED_MAX: usize = 2;

/// What a gateway is told.
#[derive(Clone)]
pub struct GatewaySettings {
    /// Credential, policy and the rest, by which it judges.
    pub sources: NodeSources,
    /// Where nodes are, if a file says that.
    pub site: Option<PathBuf>,
    /// How much it holds at once.
    pub limits: GatewayLimits,
    /// How long a tunnel may carry nothing.
    pub patience: TunnelPatience,
}

/// Why a gateway can't start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayStartError {
    /// Its credential or policy.
    #[error(transparent)]
    Config(#[from] NodeConfigError),
    /// Its site file.
    #[error(transparent)]
    Site(#[from] SiteFileError),
    /// The listening socket.
    #[error("the listening socket can't be used: {0}")]
    Listener(#[source] io::Error),
    /// A limit of the system that is too low for any tunnel.
    #[error("got a limit of {0} open files, expected {min} at least: raise it (ulimit -n)", min = DESCRIPTORS_MIN)]
    Descriptors(u64),
}

/// Why a site file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SiteFileError {
    /// The system says no.
    #[error("can't read the site file {}: {reason}", file.display())]
    System {
        /// Which file.
        file: PathBuf,
        /// What the system says.
        #[source]
        reason: io::Error,
    },
    /// What it says.
    #[error("{}, {reason}", file.display())]
    Content {
        /// Which file.
        file: PathBuf,
        /// Where and what.
        #[source]
        reason: SiteError,
    },
}

/// Reads a site file.
///
/// # Errors
/// [`SiteFileError`] names the file.
pub fn read_site(file: &Path) -> Result<Site, SiteFileError> {
    let text = std::fs::read_to_string(file).map_err(|reason| SiteFileError::System {
        file: file.to_owned(),
        reason,
    })?;
    Site::parse(&text).map_err(|reason| SiteFileError::Content {
        file: file.to_owned(),
        reason,
    })
}

/// A gateway at work.
pub struct Gateway {
    listening: Listening,
    shared: Rc<GatewayState>,
    files: Files,
    tunnels_max: usize,
}

/// What is looked at again and again.
struct Files {
    renewal: NodeConfigRenewal,
    site: Option<PathBuf>,
    /// The state of the site file that was read.
    seen: Stamps,
}

struct GatewayState {
    /// The name in its certificate.
    name: String,
    config: RefCell<CurrentConfig>,
    site: RefCell<Site>,
    tables: RefCell<GatewayTables>,
    /// Tunnels that are being made, whose node was called.
    answers: RefCell<HashMap<TunnelId, oneshot::Sender<WaitingClient>>>,
    registrations: RefCell<HashMap<RegistrationId, WaitingNode>>,
    tunnels: RefCell<HashMap<TunnelId, Joined>>,
    refusals: RefCell<Refusals>,
    audit: Box<dyn Fn(String)>,
    patience: TunnelPatience,
    epoch: Instant,
}

/// A node that waits for calls.
struct WaitingNode {
    calls: mpsc::Sender<GatewayCall>,
    peer: Judged,
    end: Option<oneshot::Sender<String>>,
}

/// A tunnel, as long as it is there.
struct Joined {
    peer: Judged,
    node: String,
    end: Option<oneshot::Sender<String>>,
}

/// Who was judged, and by which certificates: judged again when the rules change.
struct Judged {
    identity: Identity,
    chain: Vec<Vec<u8>>,
    not_after: UnixTime,
}

/// Whom somebody asks for.
struct AskedNode {
    name: String,
    /// One process of it, if somebody asks for that.
    process: Option<ProcessNumber>,
}

impl fmt::Display for AskedNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(formatter, "process {process} of {}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// Why a node was not reached.
#[derive(Default)]
struct NoWay {
    /// Each way that was tried.
    tried: Vec<String>,
    /// Other processes of the node that are registered here, if one was asked for that is not.
    others: usize,
    /// Whether this gateway, or one that it has asked, knows other processes of the node.
    is_other: bool,
}

impl NoWay {
    fn text(&self, node: &AskedNode, gateway: &str) -> String {
        let others = match self.others {
            0 => String::new(),
            1 => format!(" (another process of {} is)", node.name),
            others => format!(" ({others} other processes of {} are)", node.name),
        };
        if self.tried.is_empty() {
            return format!(
                "gateway {gateway} knows no way to {node}: it is not registered there{others}, and no site file says where it is"
            );
        }
        let tried = self.tried.join("; ");
        let here = match others.as_str() {
            "" => String::new(),
            others => format!("it is not registered there{others}; "),
        };
        format!("gateway {gateway} has no way to {node}: {here}{tried}")
    }

    fn reason(&self) -> RefuseReason {
        match self.is_other {
            true => RefuseReason::OtherProcess,
            false => RefuseReason::Unreachable,
        }
    }
}

impl Gateway {
    /// Reads the files. `audit` takes a line for each decision; it must not wait.
    ///
    /// # Errors
    /// [`GatewayStartError`] says who must act.
    pub fn new(
        listening: Listening,
        mut settings: GatewaySettings,
        audit: Box<dyn Fn(String)>,
    ) -> Result<Self, GatewayStartError> {
        // Whoever is of our authority may ask; the policy says what comes of it.
        settings.sources.settings.peer_roles = Role::ALL.to_vec();
        settings.sources.settings.same_versions = Vec::new();
        settings.sources.role = Role::Gateway;
        let descriptors = descriptors();
        settings.limits = affordable(settings.limits, descriptors)
            .ok_or(GatewayStartError::Descriptors(descriptors))?;
        // Before the files are read: what changes meanwhile is noticed.
        let seen = Stamps::of(settings.site.as_deref());
        let renewal = settings.sources.clone().renewal();
        let config = CurrentConfig::new(settings.sources.clone())?;
        let name = config.last().credential.identity().name;
        let site = settings.site.as_deref().map(read_site).transpose()?;
        let shared = Rc::new(GatewayState {
            name,
            config: RefCell::new(config),
            site: RefCell::new(site.unwrap_or_default()),
            tables: RefCell::new(GatewayTables::new(settings.limits)),
            answers: RefCell::default(),
            registrations: RefCell::default(),
            tunnels: RefCell::default(),
            refusals: RefCell::default(),
            audit,
            patience: settings.patience,
            epoch: Instant::now(),
        });
        shared.warn_of_no_rule();
        let files = Files {
            renewal,
            site: settings.site,
            seen,
        };
        Ok(Self {
            listening,
            shared,
            files,
            tunnels_max: settings.limits.tunnels_max,
        })
    }

    /// The name in its certificate.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How many tunnels there can be at once: fewer than the settings say where the system allows fewer open files.
    #[must_use]
    pub fn tunnels_max(&self) -> usize {
        self.tunnels_max
    }

    /// Serves until it is dropped. It runs on a [`LocalSet`](tokio::task::LocalSet), whose end ends all tunnels.
    ///
    /// # Errors
    /// When the listening socket can't be used.
    pub async fn serve(self) -> Result<(), GatewayStartError> {
        let Self {
            listening,
            shared,
            files,
            ..
        } = self;
        let parts = listening.into_parts();
        let (listener, _file) = parts.map_err(GatewayStartError::Listener)?;
        tokio::task::spawn_local(keep_current(shared.clone(), files));
        tokio::task::spawn_local(count_refusals(shared.clone()));
        let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
        loop {
            let Ok((socket, address)) = listener.accept().await else {
                // Out of descriptors, most likely: waiting lets some go.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let host = host_of(&socket);
            let shared = shared.clone();
            reception.receive(host, async move |place| {
                shared.met(socket, host, address, place).await;
            });
            // Who is here goes on before the next one is taken in.
            tokio::task::yield_now().await;
        }
    }
}

/// How many open files there can be. The soft limit is raised as far as it goes.
fn descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let most = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    most.unwrap_or(u64::MAX)
}

impl GatewayState {
    fn write(&self, line: String) {
        (self.audit)(line);
    }

    /// A gateway whose policy allows nothing does as it is told, and hardly as it is meant.
    fn warn_of_no_rule(&self) {
        if !self.config().policy.authorization().allows_some_tunnel() {
            let text = "the policy has no [[allow.tunnel]], so this gateway connects nobody";
            self.write(text.to_owned());
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn config(&self) -> NodeConfig {
        let (config, news) = self.config.borrow_mut().read();
        news.into_iter().for_each(|line| self.write(line));
        config
    }

    /// Somebody has connected.
    async fn met(
        self: Rc<Self>,
        socket: Socket,
        host: Host,
        address: String,
        place: HandshakePlace,
    ) {
        let heard = async {
            let first = tokio::time::timeout(FIRST_BYTE_TIME, socket.heard()).await;
            first.map_err(|_| EstablishError::SaidNothing(FIRST_BYTE_TIME))??;
            place.has_spoken();
            let config = self.config();
            Ok((hear(socket, &config).await?, config))
        };
        let heard = tokio::select! {
            heard = heard => heard,
            () = place.displaced() => Err(EstablishError::Displaced),
        };
        // Whoever has proved who it is needs no place any more.
        drop(place);
        match heard {
            Ok((asker, config)) => self.serve(asker, &config, &address).await,
            Err(error) => {
                let noted = self
                    .refusals
                    .borrow_mut()
                    .note(host, &address, &error.to_string());
                noted.into_iter().for_each(|line| self.write(line));
            }
        }
    }

    async fn serve(self: Rc<Self>, asker: WaitingClient, config: &NodeConfig, address: &str) {
        match asker.purpose.clone() {
            Purpose::Session => {
                let text = "this is a gateway: it connects nodes, and has no sessions itself";
                self.refuse(
                    asker,
                    config,
                    address,
                    "a session",
                    RefuseReason::NotAllowed,
                    text,
                )
                .await;
            }
            Purpose::Connect {
                node: name,
                process,
                on_behalf_of,
            } => {
                let node = AskedNode { name, process };
                self.connect(asker, config, address, node, on_behalf_of)
                    .await;
            }
            Purpose::Register => self.register(asker, config, address).await,
            Purpose::Callback { ticket } => self.answer(asker, config, address, &ticket).await,
        }
    }

    async fn refuse(
        &self,
        asker: WaitingClient,
        config: &NodeConfig,
        address: &str,
        what: &str,
        reason: RefuseReason,
        text: &str,
    ) {
        let who = asker.identity.identity();
        self.write(format!("refused {what} of {who} at {address}: {text}"));
        let refuse = Refuse {
            reason,
            text: text.into(),
        };
        asker.refuse(config, &refuse).await;
    }

    /// Connects somebody with a node, if it may, and if there is a way.
    async fn connect(
        self: Rc<Self>,
        asker: WaitingClient,
        config: &NodeConfig,
        address: &str,
        node: AskedNode,
        on_behalf_of: Vec<Identity>,
    ) {
        let who = asker.identity.identity().clone();
        let behalf = match on_behalf_of.first() {
            Some(first) => format!(" (for {first}, as it says)"),
            None => String::new(),
        };
        let what = format!("a tunnel to {node}{behalf}");
        let refuse = async |asker, reason, text: &str| {
            self.refuse(asker, config, address, &what, reason, text)
                .await;
        };
        if !on_behalf_of.is_empty() && who.role != Role::Gateway {
            let text = "it says that it asks for somebody else, which only gateways do";
            return refuse(asker, RefuseReason::Malformed, text).await;
        }
        let decision = config
            .policy
            .authorization()
            .tunnel(&asker.identity, &node.name);
        if !decision.allowed {
            return refuse(asker, RefuseReason::NotAllowed, &decision.reason).await;
        }
        let is_own = |one: &Identity| one.role == Role::Gateway && one.name == self.name;
        if node.name == self.name || on_behalf_of.iter().any(is_own) {
            let text = "the way leads back to this gateway: the site files of the gateways contradict each other";
            return refuse(asker, RefuseReason::Unreachable, text).await;
        }
        let begun = self.tables.borrow_mut().begin_tunnel(&who);
        let place = match begun {
            Ok(tunnel) => TunnelPlace {
                shared: self.clone(),
                tunnel,
            },
            Err(full) => return refuse(asker, RefuseReason::Busy, &full.to_string()).await,
        };
        // Before anybody is reached: there is no way back from a yes.
        let (there, back) = match (Pipe::new(), Pipe::new()) {
            (Ok(there), Ok(back)) => (there, back),
            (Err(error), _) | (_, Err(error)) => {
                let text = format!("this gateway can't have another tunnel now: {error}");
                return refuse(asker, RefuseReason::Busy, &text).await;
            }
        };
        let reached = async {
            let reached = self.reach(place.tunnel, &who, &node, on_behalf_of, config);
            tokio::time::timeout(REACH_TIME, reached)
                .await
                .unwrap_or_else(|_| {
                    let tried = vec![format!("nothing within {REACH_TIME:?}")];
                    Err(NoWay {
                        tried,
                        ..NoWay::default()
                    })
                })
        };
        let reached = tokio::select! {
            biased;
            reached = reached => reached,
            () = asker.left() => {
                return self.write(format!("refused {what} of {who} at {address}: it left before there was a way"));
            }
        };
        let (target, way) = match reached {
            Ok(reached) => reached,
            Err(no_way) => {
                let text = no_way.text(&node, &self.name);
                return refuse(asker, no_way.reason(), &text).await;
            }
        };
        let judged = Judged::new(&asker);
        let rule = rule_of(&decision);
        let accepted = asker.accept(config).await;
        let socket = match accepted.map(AnsweredConnection::into_socket) {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => {
                return self.write(format!("no tunnel for {who} at {address}: {error}"));
            }
        };
        let number = place.tunnel.0;
        self.write(format!(
            "accepted tunnel {number}: {who} at {address} to {node} {way}{behalf}, {rule}"
        ));
        let (end, cut) = oneshot::channel();
        let joined = Joined {
            peer: judged,
            node: node.name.clone(),
            end: Some(end),
        };
        self.tunnels.borrow_mut().insert(place.tunnel, joined);
        // Since it was heard, what it may have may have become less.
        self.judge_again(&self.config(), |tunnel| tunnel == place.tunnel, |_| false);
        let cut = async {
            match cut.await {
                Ok(reason) => reason,
                Err(_) => std::future::pending().await,
            }
        };
        let (began, traffic) = (Instant::now(), TunnelTraffic::default());
        let sockets = (&socket, &target);
        let ended = join(sockets, (there, back), &traffic, self.patience, cut).await;
        let TunnelTraffic { there, back } = traffic;
        self.write(format!(
            "ended tunnel {number}: {who} to {node}: {} bytes there, {} back in {:.1} s: {ended}",
            there.get(),
            back.get(),
            began.elapsed().as_secs_f64()
        ));
        if matches!(ended, TunnelEnd::Done) {
            return;
        }
        // Neither end may take what it has for all there was.
        for socket in [&socket, &target] {
            socket.reset_at_close();
        }
    }

    /// A connection to the node, and how it was reached.
    async fn reach(
        &self,
        tunnel: TunnelId,
        who: &Identity,
        node: &AskedNode,
        on_behalf_of: Vec<Identity>,
        config: &NodeConfig,
    ) -> Result<(Socket, String), NoWay> {
        let mut tried = Vec::new();
        let (registrations, others) = {
            let tables = self.tables.borrow();
            let wanted = tables.registrations(&node.name, node.process);
            let is_other = node.process.is_some() && wanted.is_empty();
            let others = is_other.then(|| tables.processes(&node.name));
            (wanted, others.unwrap_or_default())
        };
        let mut is_other = others > 0;
        // Who asked first; behind other gateways that is not who asks us.
        let first = on_behalf_of.first().unwrap_or(who).clone();
        for registration in registrations.into_iter().take(CALLED_MAX) {
            match self.call(registration, tunnel, &first, config).await {
                Ok(socket) => return Ok((socket, "that was called".to_owned())),
                Err(why) => tried.push(format!("called: {why}")),
            }
        }
        let passed: Vec<&str> = on_behalf_of
            .iter()
            .chain([who])
            .filter(|one| one.role == Role::Gateway)
            .map(|one| one.name.as_str())
            .collect();
        let ways = self.site.borrow().ways(&self.name, &node.name, &passed);
        for way in ways {
            match way {
                WayToNode::Dial(address) => {
                    let dialled = tokio::time::timeout(WAY_TIME, address.connect()).await;
                    match dialled {
                        Ok(Ok(socket)) => {
                            // An error means that it has gone already; the tunnel will say so.
                            let _ = socket.keep_alive();
                            return Ok((socket, format!("at {address}")));
                        }
                        Ok(Err(error)) => tried.push(format!("dialled {address}: {error}")),
                        Err(_) => tried.push(format!(
                            "dialled {address}: no connection within {WAY_TIME:?}"
                        )),
                    }
                }
                WayToNode::Through(place) if on_behalf_of.len() < HOPS_MAX => {
                    let gateway = OneGateway::new(&place.address, &place.name, config);
                    let mut behalf = on_behalf_of.clone();
                    behalf.push(who.clone());
                    match connect(&gateway, &node.name, node.process, behalf).await {
                        Ok(socket) => {
                            return Ok((socket, format!("through gateway {}", place.name)));
                        }
                        Err(error) => {
                            is_other |= error.is_other_process();
                            tried.push(error.to_string());
                        }
                    }
                }
                WayToNode::Through(place) => tried.push(format!(
                    "gateway {}: not asked, as {HOPS_MAX} gateways have passed this on already",
                    place.name
                )),
            }
        }
        Err(NoWay {
            tried,
            others,
            is_other,
        })
    }

    /// Calls a registered node, and waits until it has dialled back.
    async fn call(
        &self,
        registration: RegistrationId,
        tunnel: TunnelId,
        first: &Identity,
        config: &NodeConfig,
    ) -> Result<Socket, String> {
        let mut ticket = [0; 16];
        aws_lc_rs::rand::fill(&mut ticket)
            .map_err(|_| "the system gave no random bytes".to_owned())?;
        let ticket = Ticket(ticket);
        let calls = {
            let registrations = self.registrations.borrow();
            registrations
                .get(&registration)
                .map(|one| one.calls.clone())
        };
        let now = self.now();
        let called = self
            .tables
            .borrow_mut()
            .call(registration, tunnel, ticket, now);
        let (Some(calls), Some(())) = (calls, called) else {
            return Err("it has left".to_owned());
        };
        let (sender, answer) = oneshot::channel();
        self.answers.borrow_mut().insert(tunnel, sender);
        let call = GatewayCall {
            ticket,
            asked_by: first.clone(),
        };
        if calls.try_send(call).is_err() {
            return Err(format!("{CALLS_MAX} calls wait for it already"));
        }
        match tokio::time::timeout(WAY_TIME, answer).await {
            Ok(Ok(asker)) => {
                let answered = asker
                    .accept(config)
                    .await
                    .map_err(|error| error.to_string())?;
                let socket = answered.into_socket();
                socket.ok_or_else(|| "its connection can't be a tunnel".to_owned())
            }
            Ok(Err(_)) => Err("it has left".to_owned()),
            Err(_) => Err(format!("it has not dialled back within {WAY_TIME:?}")),
        }
    }

    /// A hidden node dials back.
    async fn answer(
        &self,
        asker: WaitingClient,
        config: &NodeConfig,
        address: &str,
        ticket: &Ticket,
    ) {
        let now = self.now();
        let node = asker.identity.identity();
        let process = asker.process;
        let answered = self.tables.borrow_mut().answer(ticket, node, process, now);
        let waiting = answered.map(|tunnel| self.answers.borrow_mut().remove(&tunnel));
        let refused = match waiting {
            Ok(Some(waiting)) => match waiting.send(asker) {
                Ok(()) => return,
                Err(asker) => (asker, "whoever asked for this node has left".to_owned()),
            },
            Ok(None) => (asker, "whoever asked for this node has left".to_owned()),
            Err(error) => (asker, error.to_string()),
        };
        let (asker, text) = refused;
        let reason = RefuseReason::NotAllowed;
        self.refuse(asker, config, address, "a callback", reason, &text)
            .await;
    }

    /// A hidden node waits for calls.
    async fn register(&self, asker: WaitingClient, config: &NodeConfig, address: &str) {
        let who = asker.identity.identity().clone();
        let process = asker.process;
        let registered = self.tables.borrow_mut().register(&who, process);
        let registration = match registered {
            Ok(Registered { id, displaced }) => {
                self.displace(displaced);
                id
            }
            Err(full) => {
                let text = Full::to_string(&full);
                let reason = RefuseReason::Busy;
                return self
                    .refuse(asker, config, address, "a registration", reason, &text)
                    .await;
            }
        };
        let (calls, mut waiting) = mpsc::channel(CALLS_MAX);
        let (end, cut) = oneshot::channel();
        let registered = WaitingNode {
            calls,
            peer: Judged::new(&asker),
            end: Some(end),
        };
        let why = match asker.accept(config).await {
            Ok(_) if !self.tables.borrow().is_registered(registration) => AGAIN.to_owned(),
            Ok(mut connection) => {
                // Not earlier: a call must not overtake the answer.
                self.registrations
                    .borrow_mut()
                    .insert(registration, registered);
                // As with tunnels.
                let is_this = |one| one == registration;
                self.judge_again(&self.config(), |_| false, is_this);
                self.write(format!("registered {who} at {address}, process {process}"));
                tokio::select! {
                    why = pass_on(&mut connection, &mut waiting, config.handshake_time) => why,
                    Ok(reason) = cut => reason,
                }
            }
            Err(error) => error.to_string(),
        };
        self.registrations.borrow_mut().remove(&registration);
        self.tables.borrow_mut().unregister(registration);
        self.write(format!(
            "{who} at {address}, process {process}, is not registered any more: {why}"
        ));
    }

    /// Ends a registration in whose place a newer one of the same process is.
    fn displace(&self, displaced: Option<RegistrationId>) {
        let mut registrations = self.registrations.borrow_mut();
        let displaced = displaced.and_then(|displaced| registrations.get_mut(&displaced));
        if let Some(displaced) = displaced {
            tell(&mut displaced.end, AGAIN.to_owned());
        }
    }

    /// Judges the owners of these tunnels and registrations again, by rules that may have changed.
    fn judge_again(
        &self,
        config: &NodeConfig,
        is_tunnel: impl Fn(TunnelId) -> bool,
        is_registration: impl Fn(RegistrationId) -> bool,
    ) {
        let now = UnixTime::since_unix_epoch(unix_time());
        let mut tunnels = self.tunnels.borrow_mut();
        for (_, joined) in tunnels.iter_mut().filter(|(id, _)| is_tunnel(**id)) {
            let tunnel = |who: &VerifiedIdentity| {
                let decision = config.policy.authorization().tunnel(who, &joined.node);
                if decision.allowed {
                    Ok(())
                } else {
                    Err(decision.reason)
                }
            };
            if let Err(reason) = joined
                .peer
                .judge_again(config, now)
                .and_then(|who| tunnel(&who))
            {
                tell(&mut joined.end, reason);
            }
        }
        let mut registrations = self.registrations.borrow_mut();
        let registrations = registrations.iter_mut();
        for (_, registered) in registrations.filter(|(id, _)| is_registration(**id)) {
            if let Err(reason) = registered.peer.judge_again(config, now) {
                tell(&mut registered.end, reason);
            }
        }
    }

    /// Ends what belongs to nodes whose certificates have run out.
    fn expire(&self) {
        let now = UnixTime::since_unix_epoch(unix_time());
        let mut tunnels = self.tunnels.borrow_mut();
        let mut registrations = self.registrations.borrow_mut();
        let ends = tunnels
            .values_mut()
            .map(|joined| (&joined.peer, &mut joined.end));
        let more = registrations
            .values_mut()
            .map(|registered| (&registered.peer, &mut registered.end));
        for (peer, end) in ends.chain(more) {
            if peer.not_after.as_secs() < now.as_secs() {
                tell(
                    end,
                    format!("the certificate of {} has expired", peer.identity),
                );
            }
        }
    }
}

fn tell(end: &mut Option<oneshot::Sender<String>>, reason: String) {
    if let Some(end) = end.take() {
        // It may be over already.
        let _ = end.send(reason);
    }
}

impl Judged {
    fn new(asker: &WaitingClient) -> Self {
        Self {
            identity: asker.identity.identity().clone(),
            chain: asker.chain.clone(),
            not_after: asker.identity.not_after(),
        }
    }

    fn judge_again(&self, config: &NodeConfig, now: UnixTime) -> Result<VerifiedIdentity, String> {
        let certificates = self.chain.iter().map(Vec::as_slice);
        let chain: Vec<CertificateDer<'_>> = certificates.map(CertificateDer::from).collect();
        let expected = Expected {
            roles: &[self.identity.role],
            name: Some(&self.identity.name),
        };
        let verified = config.verifier.verify(&chain, now, &expected);
        let who = verified.map_err(|error| error.to_string())?;
        config
            .admit(&who, false)
            .map_err(|error| error.to_string())?;
        Ok(who)
    }
}

/// The rule that allows a tunnel, for the audit trail.
fn rule_of(decision: &Decision) -> String {
    match decision.rule {
        Some(source) => format!("by the rule at {source}"),
        None => "by no rule".to_owned(),
    }
}

/// Sends calls to a registered node until it leaves. Gives why.
async fn pass_on(
    connection: &mut AnsweredConnection,
    calls: &mut mpsc::Receiver<GatewayCall>,
    patience: Duration,
) -> String {
    loop {
        let call = tokio::select! {
            // It has nothing to say.
            _ = connection.heard() => return "it has left".to_owned(),
            call = calls.recv() => call,
        };
        let Some(Ok(call)) = call.map(|call| call.encode()) else {
            return "its calls have ended".to_owned();
        };
        match tokio::time::timeout(patience, connection.send(&call)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("it has read nothing for {patience:?}"),
        }
    }
}

/// A tunnel's place; dropping it makes it free.
struct TunnelPlace {
    shared: Rc<GatewayState>,
    tunnel: TunnelId,
}

impl Drop for TunnelPlace {
    fn drop(&mut self) {
        self.shared.tables.borrow_mut().end_tunnel(self.tunnel);
        self.shared.answers.borrow_mut().remove(&self.tunnel);
        self.shared.tunnels.borrow_mut().remove(&self.tunnel);
    }
}

/// Looks at all files every few seconds.
async fn keep_current(shared: Rc<GatewayState>, mut files: Files) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        match files.renewal.renew() {
            Some(Ok(config)) => {
                shared.write("credential or policy have changed, and hold from now on".to_owned());
                shared.warn_of_no_rule();
                shared.judge_again(&config, |_| true, |_| true);
            }
            Some(Err(error)) => shared.write(format!("{error}; what was in force before stays")),
            None => {}
        }
        shared.expire();
        let now = Stamps::of(files.site.as_deref());
        if now != files.seen
            && let Some(file) = &files.site
        {
            files.seen = now;
            match read_site(file) {
                Ok(site) => {
                    *shared.site.borrow_mut() = site;
                    shared.write(format!(
                        "{} has changed, and holds from now on",
                        file.display()
                    ));
                }
                Err(error) => shared.write(format!("{error}; what was in force before stays")),
            }
        }
    }
}

async fn count_refusals(shared: Rc<GatewayState>) {
    loop {
        tokio::time::sleep(COUNTING_TIME).await;
        let lines = shared.refusals.borrow_mut().tell();
        lines.into_iter().for_each(|line| shared.write(line));
    }
}
