//! Servers that let grid users in, for Python: the acceptor hands each connection over as a socket, and the front is run whole.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use exoskel_service::{
    Authorizer, Configuration, ConfigurationError, Front, FrontSecret, LimitsTable, NameSpacesWord,
    Peer, ProcessError, RefusalsWord, RevocationWord, Server, ServerHandle, Stream, UpstreamTable,
    run,
};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, copy, split};
use tokio::net::{TcpListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

use crate::error::{ExceptionKind, raise};
use crate::identity::{JudgementOptions, identity_fields};
use crate::time::now;

/// How long a client may take to close its side when the handler is done; unread bytes would turn the end into a reset.
const CLOSING_TIME: Duration = Duration::from_millis(500);

/// Bytes that are read and thrown away meanwhile.
const CLOSING_BYTES_MAX: u64 = 256 * 1024;

/// How long the runtime's own threads get to end after every connection has.
const RUNTIME_END_TIME: Duration = Duration::from_secs(2);

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Acceptor>()?;
    module.add_class::<PeerRights>()?;
    module.add_class::<SharedSecret>()?;
    module.add_function(wrap_pyfunction!(run_front, module)?)?;
    module.add_function(wrap_pyfunction!(check_front, module)?)
}

/// What a service is told; what is absent keeps the configuration file's value, or the default.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ServiceOptions {
    configuration: Option<PathBuf>,
    listen: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    trust_anchors: Option<PathBuf>,
    vomsdir: Option<PathBuf>,
    trust_interval: Option<u64>,
    policy: Option<PathBuf>,
    audit: Option<String>,
    access_log: Option<String>,
    refusals: Option<String>,
    monitor: Option<String>,
    upstream: Option<String>,
    secret: Option<PathBuf>,
    chain: Option<bool>,
    judgement: Option<JudgementOptions>,
    /// `[limits]` in JSON.
    limits: Option<String>,
}

impl ServiceOptions {
    fn configuration(self) -> PyResult<Configuration> {
        let listen = self.listen.as_deref().map(address).transpose()?;
        let mut configuration = match (&self.configuration, listen) {
            (Some(file), _) => Configuration::read(file).map_err(|error| match error {
                ConfigurationError::File { .. } => PyOSError::new_err(error.to_string()),
                _ => PyValueError::new_err(format!("{}: {error}", file.display())),
            })?,
            (None, Some(listen)) => Configuration::new(listen),
            (None, None) => {
                let text = "got no address to listen on, expected HOST:PORT, or a configuration that has one";
                return Err(PyValueError::new_err(text));
            }
        };
        let set = |place: &mut PathBuf, path: Option<PathBuf>| {
            path.into_iter().for_each(|path| *place = path);
        };
        set(&mut configuration.host.certificate, self.certificate);
        set(&mut configuration.host.key, self.key);
        set(&mut configuration.trust.anchors, self.trust_anchors);
        set(&mut configuration.trust.vomsdir, self.vomsdir);
        configuration.listen = listen.unwrap_or(configuration.listen);
        configuration.policy = self.policy.or(configuration.policy);
        configuration.audit = self.audit.unwrap_or(configuration.audit);
        configuration.access_log = self.access_log.unwrap_or(configuration.access_log);
        if let Some(word) = self.refusals {
            configuration.refusals = refusals(&word)?;
        }
        if let Some(seconds) = self.trust_interval {
            configuration.trust.interval_seconds = seconds;
        }
        if let Some(monitor) = self.monitor {
            configuration.monitor = Some(address(&monitor)?);
        }
        if let Some(upstream) = self.upstream {
            configuration.upstream = Some(match configuration.upstream.take() {
                Some(table) => UpstreamTable {
                    address: upstream,
                    ..table
                },
                None => UpstreamTable::new(upstream),
            });
        }
        if let Some(table) = &mut configuration.upstream {
            table.secret = self.secret.or_else(|| table.secret.take());
            table.chain = self.chain.unwrap_or(table.chain);
        }
        if let Some(limits) = self.limits {
            let limits: LimitsTable = serde_json::from_str(&limits)
                .map_err(|error| PyValueError::new_err(format!("limits: {error}")))?;
            configuration.limits = limits;
        }
        if let Some(judgement) = self.judgement {
            judge_by(&mut configuration, judgement)?;
        }
        Ok(configuration)
    }
}

fn refusals(word: &str) -> PyResult<RefusalsWord> {
    match word {
        "http" => Ok(RefusalsWord::Http),
        "tls" => Ok(RefusalsWord::Tls),
        other => Err(PyValueError::new_err(format!(
            "refusals: got {other:?}, expected \"http\" or \"tls\""
        ))),
    }
}

fn judge_by(configuration: &mut Configuration, judgement: JudgementOptions) -> PyResult<()> {
    use exoskel_identity::{NameSpaces, Revocation};

    let settings = judgement.settings()?;
    let trust = &mut configuration.trust;
    trust.revocation = match settings.revocation {
        Revocation::Require => RevocationWord::Require,
        Revocation::WhereListed => RevocationWord::WhereListed,
    };
    trust.name_spaces = match settings.name_spaces {
        NameSpaces::Require => NameSpacesWord::Require,
        NameSpaces::WherePresent => NameSpacesWord::WherePresent,
    };
    trust.legacy_proxies = settings.legacy_proxies;
    trust.draft_proxies = settings.draft_proxies;
    trust.proxy_depth_max = settings.proxy_depth_max;
    trust.policy_languages = settings.policy_languages;
    trust.attribute_targets = settings.attribute_targets;
    Ok(())
}

fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "got {text:?}, expected an address and a port in numbers, such as 0.0.0.0:8443 or [::]:8443"
        ))
    })
}

fn refused(py: Python<'_>, error: &ConfigurationError) -> PyErr {
    let kind = match error {
        ConfigurationError::Named { problem, .. } => problem,
        other => other,
    };
    match kind {
        ConfigurationError::Rules(_) | ConfigurationError::NobodyMayConnect { .. } => {
            raise(py, ExceptionKind::Policy, error.to_string())
        }
        ConfigurationError::Host(_) | ConfigurationError::Secret(_) => {
            raise(py, ExceptionKind::Credential, error.to_string())
        }
        ConfigurationError::File { .. }
        | ConfigurationError::Trust(_)
        | ConfigurationError::RevocationLists { .. }
        | ConfigurationError::Log { .. } => PyOSError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

// --- the generic door --------------------------------------------------------------------------------

/// A TLS server whose connections are taken by Python's threads, one after the other.
#[pyclass(frozen)]
struct Acceptor {
    /// Nothing, once it is closed: whoever still holds this object keeps no thread and no descriptor alive by it.
    running: Mutex<Option<RunningServer>>,
    address: SocketAddr,
    waiting: Arc<WaitingConnections>,
}

struct RunningServer {
    runtime: Runtime,
    handle: ServerHandle,
}

/// Connections that wait for a thread. There are never more than the server's limit of connections.
#[derive(Default)]
struct WaitingConnections {
    state: Mutex<ConnectionQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct ConnectionQueue {
    connections: VecDeque<AcceptedConnection>,
    is_closed: bool,
}

struct AcceptedConnection {
    socket: OwnedFd,
    authorizer: Authorizer,
    identity: VerifiedIdentity,
    address: SocketAddr,
}

/// What a client may do by the rules of the server that let it in.
#[pyclass(frozen)]
struct PeerRights(Authorizer);

#[pymethods]
impl PeerRights {
    /// Why the client may not do something; nothing if it may. The decision has a line in the audit trail.
    fn refusal(&self, py: Python<'_>, action: &str) -> Option<String> {
        let decision = py.detach(|| self.0.decide(action));
        (!decision.allowed).then_some(decision.reason)
    }

    /// The client's local account.
    #[getter]
    fn account(&self) -> Option<String> {
        self.0.account()
    }
}

impl WaitingConnections {
    fn lock(&self) -> MutexGuard<'_, ConnectionQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, accepted: AcceptedConnection) {
        let mut queue = self.lock();
        // A connection that comes while the server stops is closed as it is dropped here.
        if !queue.is_closed {
            queue.connections.push_back(accepted);
            self.changed.notify_one();
        }
    }

    fn take(&self) -> Option<AcceptedConnection> {
        let mut queue = self.lock();
        loop {
            if let Some(accepted) = queue.connections.pop_front() {
                return Some(accepted);
            }
            if queue.is_closed {
                return None;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        queue.connections.clear();
        self.changed.notify_all();
    }
}

/// A descriptor, the fields of an identity, an address, and what may be done.
type HandedOver<'py> = (RawFd, Bound<'py, PyDict>, String, PeerRights);

/// Faults, changes and warnings.
type Reloaded = (Vec<String>, Vec<String>, Vec<String>);

#[pymethods]
impl Acceptor {
    #[new]
    fn new(py: Python<'_>, options: ServiceOptions) -> PyResult<Self> {
        let configuration = options.configuration()?;
        let settings = py
            .detach(|| configuration.settings())
            .map_err(|error| refused(py, &error))?;
        let interval = configuration
            .interval()
            .map_err(|error| refused(py, &error))?;
        let runtime = runtime()?;
        let waiting = Arc::new(WaitingConnections::default());
        let started = py.detach(|| {
            let _guard = runtime.enter();
            let server = Server::bind(settings).map_err(|error| error.to_string())?;
            let address = server.address().map_err(|error| error.to_string())?;
            let handle = server.handle();
            let queue = waiting.clone();
            let handler = move |stream: Stream, peer: Peer| serve(stream, peer, queue.clone());
            runtime.spawn(keep_current(handle.clone(), interval));
            if let Some(monitor) = configuration.monitor {
                let listener = runtime
                    .block_on(TcpListener::bind(monitor))
                    .map_err(|error| format!("can't listen for metrics on {monitor}: {error}"))?;
                let handle = handle.clone();
                runtime.spawn(async move { handle.monitor(listener).await });
            }
            // What can fail in it has been tried when it was bound; nobody waits for it but the runtime's end.
            runtime.spawn(server.run(handler));
            Ok::<_, String>((handle, address))
        });
        let (handle, address) = started.map_err(PyOSError::new_err)?;
        Ok(Self {
            running: Mutex::new(Some(RunningServer { runtime, handle })),
            address,
            waiting,
        })
    }

    /// Where it listens, `HOST:PORT`.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits for a connection: the descriptor of a socket (the caller's now), who the client is, where it comes from, what it may
    /// do.
    /// Nothing, once the server stops.
    fn accept<'py>(&self, py: Python<'py>) -> PyResult<Option<HandedOver<'py>>> {
        let Some(accepted) = py.detach(|| self.waiting.take()) else {
            return Ok(None);
        };
        let identity = identity_fields(py, &accepted.identity)?;
        let address = accepted.address.to_string();
        let rights = PeerRights(accepted.authorizer);
        Ok(Some((
            accepted.socket.into_raw_fd(),
            identity,
            address,
            rights,
        )))
    }

    /// Reads trust, rules and host certificate again, now; what could not be read is returned, what has changed, and what refuses people
    /// since then.
    fn reload(&self, py: Python<'_>) -> PyResult<Reloaded> {
        let renewed = py.detach(|| {
            let running = self.lock();
            let running = running.as_ref()?;
            Some(running.runtime.block_on(running.handle.renew()))
        });
        let stopped = || PyRuntimeError::new_err("the server has stopped");
        let renewal = renewed.ok_or_else(stopped)?;
        Ok((renewal.faults, renewal.changes, renewal.warnings))
    }

    /// Stops accepting, ends every connection, and the server's own threads.
    fn close(&self, py: Python<'_>) {
        self.waiting.close();
        py.detach(|| {
            if let Some(running) = self.lock().take() {
                running.handle.stop();
                running.runtime.shutdown_timeout(RUNTIME_END_TIME);
            }
        });
    }
}

impl Acceptor {
    fn lock(&self) -> MutexGuard<'_, Option<RunningServer>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn runtime() -> PyResult<Runtime> {
    Builder::new_multi_thread()
        .thread_name("exoskel-service")
        .enable_all()
        .build()
        .map_err(|error| PyOSError::new_err(format!("can't start the server's threads: {error}")))
}

/// Reads trust data and host certificate again at every interval, until the server stops.
async fn keep_current(handle: ServerHandle, interval: Duration) {
    loop {
        tokio::select! {
            () = handle.stopping() => return,
            () = tokio::time::sleep(interval) => {}
        }
        // What could not be read keeps its last good state, and is counted among the server's numbers.
        handle.renew().await;
    }
}

/// Carries bytes between a client and the socket that a thread of Python holds, until either is done.
async fn serve(stream: Stream, peer: Peer, waiting: Arc<WaitingConnections>) {
    let Ok((inside, outside)) = UnixStream::pair() else {
        // No descriptors left; the client sees an end.
        return;
    };
    // Python's sockets block unless they are told otherwise.
    let Ok(outside) = outside.into_std() else {
        return;
    };
    if outside.set_nonblocking(false).is_err() {
        return;
    }
    waiting.put(AcceptedConnection {
        socket: outside.into(),
        authorizer: peer.authorizer(),
        identity: peer.identity().clone(),
        address: peer.address(),
    });
    carry(stream, inside).await;
}

async fn carry(stream: Stream, inside: UnixStream) {
    let (mut from_client, mut to_client) = split(stream);
    let (mut from_handler, mut to_handler) = inside.into_split();
    // Either side may break off at any time; the other one is told by an end.
    let inward = async move {
        if copy(&mut from_client, &mut to_handler).await.is_ok() {
            let _ = to_handler.shutdown().await;
        } else {
            let mut rest = from_client.take(CLOSING_BYTES_MAX);
            let _ = copy(&mut rest, &mut tokio::io::sink()).await;
        }
    };
    let outward = async move {
        let _ = copy(&mut from_handler, &mut to_client).await;
        let _ = to_client.shutdown().await;
        from_handler
    };
    tokio::pin!(inward, outward);
    tokio::select! {
        () = &mut inward => {
            outward.await;
        }
        from_handler = &mut outward => {
            // A handler that says no more may still read, unless it has closed its socket altogether.
            let ready = from_handler.ready(Interest::WRITABLE).await;
            if ready.is_ok_and(|ready| !ready.is_write_closed()) {
                inward.await;
            } else {
                let _ = tokio::time::timeout(CLOSING_TIME, inward).await;
            }
        }
    }
}

// --- the front ---------------------------------------------------------------------------------------

/// Runs a front until SIGTERM or SIGINT. `listening` is called with the address once clients can connect.
#[pyfunction]
fn run_front(py: Python<'_>, options: ServiceOptions, listening: Py<PyAny>) -> PyResult<()> {
    let configuration = options.configuration()?;
    let settings = configuration.front().map_err(|error| refused(py, &error))?;
    let runtime = runtime()?;
    let done = py.detach(|| {
        runtime.block_on(async {
            let mut told = Ok(());
            let front = Front::new(settings);
            let run = run(&configuration, front, |address| {
                told = Python::attach(|py| listening.call1(py, (address.to_string(),)).map(drop));
            });
            let done = run.await;
            (done, told)
        })
    });
    py.detach(|| runtime.shutdown_timeout(RUNTIME_END_TIME));
    let (done, told) = done;
    told?;
    done.map_err(|error| match error {
        ProcessError::Configuration(error) => refused(py, &error),
        other => PyOSError::new_err(other.to_string()),
    })
}

/// Reads everything that a front's configuration names; what an administrator should know is returned.
#[pyfunction]
fn check_front(py: Python<'_>, options: ServiceOptions) -> PyResult<Vec<String>> {
    let configuration = options.configuration()?;
    if configuration.upstream.is_none() {
        return Err(refused(py, &ConfigurationError::NoUpstream));
    }
    py.detach(|| configuration.check(now()))
        .map_err(|error| refused(py, &error))
}

/// What a front and the server behind it share.
#[pyclass(frozen)]
struct SharedSecret(FrontSecret);

#[pymethods]
impl SharedSecret {
    /// Reads it from a file that only its owner can read.
    #[new]
    fn new(py: Python<'_>, file: PathBuf) -> PyResult<Self> {
        FrontSecret::read(&file)
            .map(Self)
            .map_err(|error| raise(py, ExceptionKind::Credential, error.to_string()))
    }

    /// Whether somebody knows it, found in a time that doesn't depend on where the first difference is.
    fn matches(&self, got: &[u8]) -> bool {
        self.0.matches(got)
    }
}
