//! A gateway, run whole: its own thread does the work, and the interpreter's writes the audit lines.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_net::gateway::GatewayLimits;
use exoskel_net::gateway::service::{
    Gateway, GatewaySettings, GatewayStartError, TunnelPatience, read_site,
};
use exoskel_net::listening::Listening;
use exoskel_net::site::{Site, WayToNode};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::error::{self, ExceptionKind, raise};
use crate::keys::{keys, of_one_session};
use crate::listener::bind;
use crate::options::{NodeOptions, SessionPart};

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long somebody may take to prove who it is.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// How long a tunnel may be silent before its first byte, and when one of its ends is done.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// How long a tunnel may be silent at any other time. Each end of a session sends a heartbeat every quarter of `dead_after`, which may be
/// some days.
const STILL_TIME: Duration = Duration::from_secs(24 * 3600);

/// Audit lines that wait to be written.
const LINES_MAX: usize = 4096;

/// What a gateway is told beside the options of all nodes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GatewayStart {
    listen: String,
    site: Option<PathBuf>,
    tunnels: Option<usize>,
    tunnels_of_node: Option<usize>,
}

enum GatewayNews {
    Started { name: String, tunnels_max: usize },
    Line(String),
    Failed(GatewayStartError),
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_gateway, module)?)?;
    module.add_function(wrap_pyfunction!(site_ways, module)?)?;
    module.add_function(wrap_pyfunction!(site_commands, module)?)
}

/// The ways from one node to another as a site file has them, the most direct first: the method, the name of the gateway or the command,
/// and the address.
///
/// # Errors
/// ``ValueError`` names the file and the line.
#[pyfunction]
fn site_ways(
    py: Python<'_>,
    file: PathBuf,
    asker: &str,
    node: &str,
) -> PyResult<Vec<(&'static str, String, String)>> {
    let site = read(py, &file)?;
    let command = site.command_to(node).and_then(<[String]>::first);
    let by_command = command.into_iter().flat_map(|command| {
        let addresses = site.addresses(node).iter();
        addresses.map(|address| ("command", command.clone(), address.to_string()))
    });
    let others = site.ways(asker, node, &[]).into_iter();
    let others = others.filter_map(|way| match way {
        WayToNode::Dial(_) if command.is_some() => None,
        WayToNode::Dial(address) => Some(("tcp", String::new(), address.to_string())),
        WayToNode::Through(place) => Some(("gateway", place.name, place.address.to_string())),
    });
    Ok(by_command.chain(others).collect())
}

/// The commands of a site file that lead to nodes: patterns of their names, and the words of each.
///
/// # Errors
/// ``ValueError`` names the file and the line.
#[pyfunction]
fn site_commands(py: Python<'_>, file: PathBuf) -> PyResult<Vec<(String, Vec<String>)>> {
    let site = read(py, &file)?;
    let commands = site.commands();
    Ok(commands
        .map(|(pattern, words)| (pattern.to_string(), words.to_vec()))
        .collect())
}

fn read(py: Python<'_>, file: &Path) -> PyResult<Site> {
    py.detach(|| read_site(file))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Runs a gateway until a signal's handler raises. `listening` is called with its address, its name and how many tunnels it can have,
/// once nodes can connect; `audit` with each line.
#[pyfunction]
fn run_gateway(
    py: Python<'_>,
    options: NodeOptions,
    start: GatewayStart,
    listening: &Bound<'_, PyAny>,
    audit: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let credential = options
        .credential()
        .ok_or_else(|| PyValueError::new_err("expected a credential"))?;
    let keys = keys(py, &of_one_session(), 1, options.key_memory.as_deref())?;
    let part = SessionPart {
        shared_memory: false,
        role: Role::Gateway,
        // It has no sessions; everybody may ask.
        peers: Role::Worker,
        minimum: Protection::Plain,
        handshake_time: HANDSHAKE_TIME,
        python: String::new(),
        properties: Vec::new(),
        job: 0,
    };
    let sources = options.sources(py, credential, None, part, &keys)?;
    let default = GatewayLimits::default();
    let settings = GatewaySettings {
        sources,
        site: start.site,
        limits: GatewayLimits {
            tunnels_max: start.tunnels.unwrap_or(default.tunnels_max),
            tunnels_of_node_max: start.tunnels_of_node.unwrap_or(default.tunnels_of_node_max),
            ..default
        },
        patience: TunnelPatience {
            idle: IDLE_TIME,
            still: STILL_TIME,
        },
    };
    let socket = bind(py, &start.listen)?;
    let address = socket.address().to_string();
    let (sender, news) = sync_channel(LINES_MAX);
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("exoskel-gateway".to_owned())
        .spawn(move || serve(socket, settings, &sender, stopped))
        .map_err(PyOSError::new_err)?;
    let result = tell(py, news, &address, listening, audit);
    drop(stop);
    py.detach(|| thread.join())
        .map_err(|_| PyRuntimeError::new_err("the gateway's thread has panicked"))?;
    result
}

/// Hands on what the gateway's thread says, until that ends or a signal comes.
fn tell(
    py: Python<'_>,
    news: Receiver<GatewayNews>,
    address: &str,
    listening: &Bound<'_, PyAny>,
    audit: &Bound<'_, PyAny>,
) -> PyResult<()> {
    // A receiver may not be shared between threads; a lock that is never contended makes it so.
    let news = Mutex::new(news);
    loop {
        let next = py.detach(|| {
            let news = news.lock().unwrap_or_else(PoisonError::into_inner);
            news.recv_timeout(PATIENCE)
        });
        match next {
            Ok(GatewayNews::Started { name, tunnels_max }) => {
                listening.call1((address, name, tunnels_max))?;
            }
            Ok(GatewayNews::Line(line)) => {
                audit.call1((line,))?;
            }
            Ok(GatewayNews::Failed(error)) => return Err(refused(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the gateway has ended by itself"));
            }
        }
    }
}

fn serve(
    socket: Listening,
    settings: GatewaySettings,
    news: &SyncSender<GatewayNews>,
    stopped: oneshot::Receiver<()>,
) {
    let lines = news.clone();
    let lost = Arc::new(AtomicU64::new(0));
    let audit = move |line: String| {
        let before = lost.swap(0, Ordering::Relaxed);
        let line = match before {
            0 => line,
            _ => format!("[{before} lines before this could not be written] {line}"),
        };
        // Nobody who connects may hold the gateway up, not even by lines.
        if lines.try_send(GatewayNews::Line(line)).is_err() {
            lost.store(before + 1, Ordering::Relaxed);
        }
    };
    let run = || -> Result<(), GatewayStartError> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(GatewayStartError::Listener)?;
        let gateway = Gateway::new(socket, settings, Box::new(audit))?;
        let started = GatewayNews::Started {
            name: gateway.name().to_owned(),
            tunnels_max: gateway.tunnels_max(),
        };
        // Nobody listens any more: the end is near.
        drop(news.send(started));
        LocalSet::new().block_on(&runtime, async {
            tokio::select! {
                served = gateway.serve() => served,
                _ = stopped => Ok(()),
            }
        })
    };
    if let Err(error) = run() {
        drop(news.send(GatewayNews::Failed(error)));
    }
}

fn refused(py: Python<'_>, error: &GatewayStartError) -> PyErr {
    match error {
        GatewayStartError::Config(error) => error::terms(py, error),
        GatewayStartError::Site(error) => PyValueError::new_err(error.to_string()),
        GatewayStartError::Listener(_) | GatewayStartError::Descriptors(_) => {
            raise(py, ExceptionKind::Link, error.to_string())
        }
    }
}
