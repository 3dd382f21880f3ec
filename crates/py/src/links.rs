//! Nodes of a program's own links, and startpoints, as `exoskel.links` sees them. Values travel as plain data: both ends are strangers.

mod inboxes;
mod progress;
mod regions;
mod startpoints;
mod streams;

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::rand;
use bytes::Bytes;
use exoskel_data::Checked;
use exoskel_identity::{Identity, PeerText, Role};
use exoskel_link::capability::{CapabilityError, Startpoint};
use exoskel_link::handshake::ProcessNumber;
use exoskel_link::{Protection, SessionError};
use exoskel_net::address::Address;
use exoskel_net::fork::Owned;
use exoskel_net::links::{
    BindingId, Compression, Dialler, ExpandedContents, ExpansionError, Hindrance, LinkCall,
    LinkDriverParts, LinkError, LinkNode, LinkNodeConfig, LookupQuestion, MessageContents,
    PeerFailure, PendingReload, ReloadError, RequestAnswer, ViaCommand,
};
use exoskel_net::listening::Listening;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::confinement::told_sandbox;
use crate::data::{self, DataEncoder};
use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::job::ProcessCredential;
use crate::keys::{keys, shared};
use crate::listener::{self, Listener};
use crate::options::{NodeOptions, SessionPart, seconds};

pub(crate) use self::inboxes::LinkInboxHandle;
pub(crate) use self::progress::LinkDriverHandle;
pub(crate) use self::regions::{LinkContentsHandle, LinkRegionHandle, LinkTransferHandle};
use self::startpoints::Restrictions;
pub(crate) use self::startpoints::StartpointHandle;
pub(crate) use self::streams::LinkStreamHandle;

/// Links that a peer may have open.
const LINKS_MAX: u32 = 4096;

/// Sessions for whose keys there is room.
const SESSIONS: usize = 64;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a node is told besides its options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LinkNodeStart {
    listen: Vec<ListenPlace>,
    /// Each as ``NAME@HOST:PORT``.
    gateways: Vec<String>,
    hints: Vec<String>,
    /// What hints say for hosts of `listen` that mean every address of this machine.
    reached_by: BTreeMap<String, String>,
    /// Commands that lead to nodes: a pattern of their names, or nothing, and the command's words.
    via: Vec<(Option<String>, Vec<String>)>,
    /// The path of the socket at which the node says how it stands.
    status: Option<PathBuf>,
    /// In seconds.
    connect_timeout: f64,
    /// In seconds.
    patience: f64,
    ready_keys: usize,
    python: String,
    /// The credential of a process of a job, in place of the one that the options name.
    credential: Option<Py<ProcessCredential>>,
    /// Whether the node has a thread of its own. If not, a `LinkDriver` drives it.
    has_thread: bool,
    /// The descriptor of a socket to who connects in place of this process.
    dial_fd: Option<i32>,
}

/// Where a node listens.
#[derive(FromPyObject)]
enum ListenPlace {
    /// A socket that listens already.
    Bound(Py<Listener>),
    Address(String),
}

/// A node of a program's own links.
#[pyclass(frozen, weakref, name = "LinkNode")]
pub(crate) struct NodeHandle {
    node: Owned<Arc<LinkNode>>,
    parts: Mutex<Option<LinkDriverParts>>,
    process: ProcessNumber,
    /// The names of the endpoints' keys.
    key_ids: Mutex<BTreeMap<String, [u8; 16]>>,
}

/// A reload that has been asked for.
#[pyclass(frozen, name = "LinkReload")]
pub(crate) struct LinkReloadHandle(Mutex<PendingReload>);

/// A request or post that waits to be handled, and whose answer is due once.
#[pyclass(frozen, name = "Call")]
pub(crate) struct PendingCall {
    call: Mutex<Option<LinkCall>>,
    #[pyo3(get)]
    handler: String,
    #[pyo3(get)]
    wants_answer: bool,
    #[pyo3(get)]
    peer_name: String,
    #[pyo3(get)]
    peer_role: String,
}

#[pymethods]
impl NodeHandle {
    #[new]
    fn new(py: Python<'_>, options: NodeOptions, start: LinkNodeStart) -> PyResult<Self> {
        let ready = shared(start.ready_keys)?;
        let keys = keys(py, &ready, SESSIONS, options.key_memory.as_deref())?;
        let part = SessionPart {
            shared_memory: true,
            role: Role::Peer,
            peers: Role::Peer,
            minimum: Protection::Plain,
            handshake_time: seconds(start.connect_timeout)?,
            python: start.python,
            properties: Vec::new(),
            job: 0,
        };
        let of_job = start.credential.as_ref();
        let of_job = of_job.map(|credential| credential.get().document.clone());
        let credential = of_job.or_else(|| options.credential()).ok_or_else(|| {
            let text = "got no credential, expected the file of one: exoskel pki issue --role peer";
            raise(py, ExceptionKind::Credential, text)
        })?;
        let mut sources = options.sources(py, credential, None, part, &keys)?;
        sources.settings.asks_for_each_link = true;
        sources.settings.limits.links_max = LINKS_MAX;
        // Values are plain data, which all versions of Python read.
        sources.settings.same_versions.clear();
        // Before the files are read: what changes meanwhile is noticed.
        let renewal = sources.clone().renewal();
        let terms = sources.terms().map_err(|error| error::terms(py, &error))?;
        let listen = start.listen.iter();
        let listen: PyResult<Vec<_>> = listen
            .map(|one| match one {
                ListenPlace::Bound(listener) => listener.get().take(),
                ListenPlace::Address(text) => listener::bind(py, text),
            })
            .collect();
        let gateways = start.gateways.iter();
        let gateways: Result<Vec<_>, _> = gateways.map(|one| one.parse()).collect();
        let via = start.via.into_iter();
        let via: Result<Vec<_>, _> = via
            .map(|(nodes, words)| ViaCommand::new(nodes.as_deref(), words))
            .collect();
        // A node serves without it, too.
        let (status, fault) = match start.status.map(Address::Unix) {
            None => (None, None),
            Some(address) => match py.detach(|| Listening::bind(&address)) {
                Ok(listening) => (Some(listening), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let listen = listen?;
        let hints = if start.hints.is_empty() {
            own_hints(&listen, &start.reached_by, &start.gateways)
        } else {
            start.hints
        };
        let process = terms.process;
        let config = LinkNodeConfig {
            dialler: dialler(start.dial_fd)?,
            via: via.map_err(|error| PyValueError::new_err(error.to_string()))?,
            status,
            terms,
            renewal: Some(renewal),
            listen,
            gateways: gateways.map_err(PyValueError::new_err)?,
            hints,
            patience: seconds(start.patience)?,
        };
        let made = if start.has_thread {
            LinkNode::start(config).map(|node| (node, None))
        } else {
            LinkNode::without_thread(config).map(|(node, parts)| (node, Some(parts)))
        };
        let (node, parts) = made.map_err(|error| {
            PyRuntimeError::new_err(format!("can't start the node's thread: {error}"))
        })?;
        if let Some(fault) = fault {
            node.note(format!("`exoskel links` will not find this node: {fault}"));
        }
        Ok(Self {
            node: Owned::new(Arc::new(node))?,
            parts: Mutex::new(parts),
            process,
            key_ids: Mutex::default(),
        })
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.own(py)?.identity().name.clone())
    }

    #[getter]
    fn hints(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.own(py)?.hints().to_vec())
    }

    /// Offers an endpoint.
    fn offer(&self, py: Python<'_>, name: &str, protection: &str) -> PyResult<()> {
        let minimum = protection_of(protection)?;
        let (key_id, secret) = random_key()?;
        let offered = self.own(py)?.offer(name, minimum, key_id, secret);
        offered.map_err(|error| raised(py, &error))?;
        held(&self.key_ids).insert(name.to_owned(), key_id);
        Ok(())
    }

    /// Has what is sent to a binding, or answered by an endpoint, compressed: on encrypted links as well if that is said.
    fn compress(
        &self,
        py: Python<'_>,
        endpoint: Option<&str>,
        binding: Option<u64>,
        even_encrypted: bool,
    ) -> PyResult<()> {
        let compression = if even_encrypted {
            Compression::EvenEncrypted
        } else {
            Compression::UnlessEncrypted
        };
        let own = self.own(py)?;
        if let Some(endpoint) = endpoint {
            own.compress_endpoint(endpoint, compression, is_taken);
        }
        if let Some(binding) = binding {
            own.compress_binding(BindingId::from_number(binding), compression, is_taken);
        }
        Ok(())
    }

    fn add_handler(&self, py: Python<'_>, endpoint: &str, handler: &str) -> PyResult<()> {
        let added = self.own(py)?.add_handler(endpoint, handler);
        added.map_err(|error| raised(py, &error))
    }

    /// Makes a startpoint.
    fn startpoint(
        &self,
        py: Python<'_>,
        endpoint: &str,
        bearer: bool,
        restrictions: Restrictions,
    ) -> PyResult<StartpointHandle> {
        let caveats = restrictions.caveats(py)?;
        let made = self.own(py)?.startpoint(endpoint, bearer, caveats);
        made.map(StartpointHandle::new)
            .map_err(|error| raised(py, &error))
    }

    /// Takes back a startpoint of this endpoint. Another one's may have the same number.
    fn revoke(
        &self,
        py: Python<'_>,
        endpoint: &str,
        startpoint: &StartpointHandle,
    ) -> PyResult<()> {
        let own = self.own(py)?;
        let startpoint = startpoint.get();
        if let Some(why) = self.foreign(own, endpoint, startpoint) {
            return Err(raise(py, ExceptionKind::Startpoint, why));
        }
        let revoked = py.detach(|| own.revoke(endpoint, startpoint.number()));
        revoked.map_err(|error| raised(py, &error))
    }

    /// Whether a startpoint leads to this endpoint of this very process.
    fn leads_here(
        &self,
        py: Python<'_>,
        endpoint: &str,
        startpoint: &StartpointHandle,
    ) -> PyResult<bool> {
        let (own, given) = (self.own(py)?.identity(), startpoint.get());
        let is_here = given.node() == own && given.process() == self.process;
        Ok(is_here && given.endpoint() == endpoint)
    }

    /// Binds a startpoint; of one that a lookup has found, errors say other things.
    fn bind(
        &self,
        py: Python<'_>,
        startpoint: &StartpointHandle,
        is_looked_up: bool,
    ) -> PyResult<u64> {
        let (own, startpoint) = (self.own(py)?, startpoint.get().clone());
        let binding = match is_looked_up {
            true => own.bind_looked_up(startpoint),
            false => own.bind(startpoint),
        };
        Ok(binding.number())
    }

    /// Why a binding has no link, if it needs one.
    fn trouble(&self, py: Python<'_>, binding: u64) -> PyResult<Option<String>> {
        Ok(self.own(py)?.trouble_of(BindingId::from_number(binding)))
    }

    /// What is wrong with the node itself.
    fn troubles(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.own(py)?.troubles())
    }

    /// Warnings for the log since this was asked last.
    fn take_warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.own(py)?.take_warnings())
    }

    fn unbind(&self, py: Python<'_>, binding: u64) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.unbind(BindingId::from_number(binding)));
        Ok(())
    }

    fn require(&self, py: Python<'_>, binding: u64, protection: &str) -> PyResult<()> {
        let protection = protection_of(protection)?;
        let own = self.own(py)?;
        let required = py.detach(|| own.require(BindingId::from_number(binding), protection));
        required.map_err(|error| raised(py, &error))
    }

    /// What carries a binding: peer, method, address, protection; each None while there is no link.
    fn link<'py>(&self, py: Python<'py>, binding: u64) -> PyResult<Bound<'py, PyDict>> {
        let row = self.own(py)?.link_row(BindingId::from_number(binding));
        let shown = PyDict::new(py);
        let session = row.session.as_ref();
        shown.set_item("peer", session.map(|one| one.peer.name.as_str()))?;
        shown.set_item("method", session.map(|one| one.method))?;
        shown.set_item("address", session.map(|one| one.address.as_str()))?;
        shown.set_item("protection", row.protection.map(Protection::name))?;
        Ok(shown)
    }

    /// What the code of somebody with whom there is a session may use on this host by the policy: why, and what, as `Sandbox.told` has it; nothing
    /// if that is all that the account may.
    fn sandbox_of<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Option<(String, Bound<'py, PyDict>)>> {
        let found = self.own(py)?.sandbox_of(name).ok_or_else(|| {
            let text = format!("there is no session with {} any more", PeerText::new(name));
            raise(py, ExceptionKind::Link, text)
        })?;
        let Some((allowed, why)) = found else {
            return Ok(None);
        };
        Ok(Some((why, told_sandbox(py, &allowed)?)))
    }

    /// What the policy's table `[sandbox]` lets code use, as `Sandbox.told` has it; nothing, where there is none.
    fn sandbox_table<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let found = self.own(py)?.sandbox_table();
        found.map(|allowed| told_sandbox(py, &allowed)).transpose()
    }

    /// The sessions that run: peer, method and address.
    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str, String)>> {
        let rows = self.own(py)?.sessions().into_iter();
        Ok(rows
            .map(|row| (row.peer.name, row.method, row.address))
            .collect())
    }

    /// Makes a request and returns its number.
    fn request(
        &self,
        py: Python<'_>,
        binding: u64,
        handler: &str,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let own = self.own(py)?;
        let contents = encoded(value, "arguments")?;
        let id = BindingId::from_number(binding);
        wait_for_room(py, own, id, &contents)?;
        let made = py.detach(|| own.request(id, handler, contents));
        made.map_err(|error| raised(py, &error))
    }

    /// Sends one way.
    fn post(
        &self,
        py: Python<'_>,
        binding: u64,
        handler: &str,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = self.own(py)?;
        let contents = encoded(value, "arguments")?;
        let id = BindingId::from_number(binding);
        wait_for_room(py, own, id, &contents)?;
        let posted = py.detach(|| own.post(id, handler, contents));
        posted.map_err(|error| raised(py, &error))
    }

    /// Waits for an answer for `timeout` seconds, or without end. Returns nothing when there is none yet, and else whether it is a reply,
    /// and its value.
    fn wait<'py>(
        &self,
        py: Python<'py>,
        binding: u64,
        request: u64,
        timeout: Option<f64>,
        sender: &str,
    ) -> PyResult<Option<(bool, Bound<'py, PyAny>)>> {
        let own = self.own(py)?;
        let id = BindingId::from_number(binding);
        let deadline = match timeout {
            Some(timeout) => std::time::Instant::now().checked_add(seconds(timeout)?),
            None => None,
        };
        let answer = loop {
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(std::time::Instant::now())
            });
            let slice = left.min(PATIENCE);
            if let Some(answer) = py.detach(|| own.wait(id, request, slice)) {
                break answer;
            }
            py.check_signals()?;
            if left <= slice && deadline.is_some() {
                return Ok(None);
            }
        };
        match answer {
            RequestAnswer::Reply { head, bulk } => {
                let expanded = py.detach(|| own.expanded(head, bulk));
                let mut spent = Vec::new();
                let value = value_in(py, expanded, sender, &mut spent)?;
                if !spent.is_empty() {
                    own.recycle_answer(id, spent);
                }
                Ok(Some((true, value)))
            }
            RequestAnswer::Failure { head } => {
                let value = data::decode(py, &head, Vec::new(), sender, &mut Vec::new())?;
                Ok(Some((false, value)))
            }
            RequestAnswer::Lost(LinkError::Closed) => Err(raise(
                py,
                ExceptionKind::Link,
                "the binding or its node was closed before the answer came",
            )),
            RequestAnswer::Lost(error) => Err(raised(py, &error)),
        }
    }

    /// Whether an answer is there.
    fn has_answer(&self, py: Python<'_>, request: u64) -> PyResult<bool> {
        Ok(self.own(py)?.has_answer(request))
    }

    /// Nobody waits for this answer any more.
    fn forget(&self, py: Python<'_>, binding: u64, request: u64) -> PyResult<()> {
        self.own(py)?
            .forget(BindingId::from_number(binding), request);
        Ok(())
    }

    /// Takes the next call for an endpoint, after waiting for `timeout` seconds at most.
    fn take_call(
        &self,
        py: Python<'_>,
        endpoint: &str,
        timeout: f64,
    ) -> PyResult<Option<PendingCall>> {
        let own = self.own(py)?;
        let patience = seconds(timeout)?;
        let call = py.detach(|| own.take_call(endpoint, patience));
        Ok(call.map(|call| PendingCall {
            handler: call.handler.clone(),
            wants_answer: call.request.is_some(),
            peer_name: call.peer.name().to_owned(),
            peer_role: call.peer.identity().role.to_string(),
            call: Mutex::new(Some(call)),
        }))
    }

    /// The value of a call.
    fn value_of<'py>(&self, py: Python<'py>, call: &PendingCall) -> PyResult<Bound<'py, PyAny>> {
        let mut held = call.held();
        let call = held.as_mut().ok_or_else(answered_twice)?;
        let (head, parts) = (call.head.clone(), std::mem::take(&mut call.bulk));
        let own = self.own(py)?;
        let expanded = py.detach(|| own.expanded(head, parts));
        let mut spent = Vec::new();
        let value = value_in(py, expanded, call.peer.name(), &mut spent)?;
        if !spent.is_empty() {
            own.recycle(call, spent);
        }
        Ok(value)
    }

    /// Answers a call with a value, or with a failure.
    fn answer(
        &self,
        py: Python<'_>,
        call: &PendingCall,
        value: &Bound<'_, PyAny>,
        is_failure: bool,
    ) -> PyResult<()> {
        let own = self.own(py)?;
        let contents = if is_failure {
            let mut encoder = DataEncoder::default();
            encoder.encode_in_band(value)?;
            MessageContents {
                head: Bytes::copy_from_slice(encoder.body()),
                bulk: Vec::new(),
                is_gathered: false,
            }
        } else {
            encoded(value, "answer")?
        };
        let mut held = call.held();
        let due = held.as_ref().ok_or_else(answered_twice)?;
        let handled = py.detach(|| own.handled(due, contents, is_failure));
        match handled {
            Ok(()) => {
                held.take();
                Ok(())
            }
            // Who asked hears that the session is over from its own end.
            Err(LinkError::Session(error)) if !matches!(error, SessionError::Limit { .. }) => {
                py.detach(|| own.dropped(due));
                held.take();
                Ok(())
            }
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Asks a node for a startpoint of one of its endpoints, for `timeout` seconds at most. Returns none when it hasn't answered, and why
    /// nobody could be asked, perhaps. With `is_at` the process is asked that is found there.
    fn look_up(
        &self,
        py: Python<'_>,
        endpoint: &str,
        name: &str,
        at: Vec<String>,
        is_at: bool,
        timeout: f64,
    ) -> PyResult<(Option<StartpointHandle>, Option<String>)> {
        let own = self.own(py)?;
        let node = if name.starts_with('/') {
            Identity::of_subject(Role::Peer, name)
        } else {
            Identity::new(Role::Peer, name)
        };
        let question = LookupQuestion {
            node: node.map_err(|error| PyValueError::new_err(error.to_string()))?,
            hints: at,
            is_by_hints: is_at,
            endpoint: endpoint.to_owned(),
        };
        let (key_id, secret) = random_key()?;
        let pending = own.look_up(question, key_id, secret);
        let pending = pending.map_err(|error| raised(py, &error))?;
        let deadline = std::time::Instant::now().checked_add(seconds(timeout)?);
        let answer = loop {
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(std::time::Instant::now())
            });
            let slice = left.min(PATIENCE);
            if let Some(answer) = py.detach(|| own.looked_up(&pending, slice)) {
                break Ok(Some(answer));
            }
            if let Err(signal) = py.check_signals() {
                break Err(signal);
            }
            if left <= slice {
                break Ok(None);
            }
        };
        let trouble = own.trouble_of_lookup(&pending);
        py.detach(|| own.end_lookup(&pending));
        match answer? {
            None => Ok((None, trouble)),
            Some(Ok(startpoint)) => Ok((Some(StartpointHandle::new(startpoint)), None)),
            Some(Err(error)) => Err(raised(py, &error)),
        }
    }

    /// Reads policy and credential again, and returns what has changed.
    fn begin_reload(&self, py: Python<'_>, relax: bool) -> PyResult<LinkReloadHandle> {
        let begun = self.own(py)?.begin_reload(relax);
        let pending = begun.map_err(|error| raised(py, &error))?;
        Ok(LinkReloadHandle(Mutex::new(pending)))
    }

    /// Waits for a reload for `timeout` seconds at most. Returns what has changed, or nothing when it isn't done.
    fn wait_for_reload(
        &self,
        py: Python<'_>,
        reload: &LinkReloadHandle,
        timeout: f64,
    ) -> PyResult<Option<Vec<String>>> {
        let (own, patience) = (self.own(py)?, seconds(timeout)?);
        py.detach(|| own.wait_for_reload(&mut held(&reload.0), patience))
            .map_err(|error| match error {
                ReloadError::Files(error) => error::terms(py, &error),
                ReloadError::Link(error) => raised(py, &error),
            })
    }

    /// How the node stands, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let status = self.own(py)?.status();
        serde_json::to_string(&status).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Lines about who was let in, and who was not.
    fn take_audit(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.own(py)?.take_audit())
    }

    /// Ends all sessions in order.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.close());
        Ok(())
    }

    /// The gateways at which it is to register, and isn't registered just now.
    fn unregistered(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.own(py)?.unregistered())
    }

    /// Hands out no more calls.
    fn stop_calls(&self, py: Python<'_>) -> PyResult<()> {
        self.own(py)?.stop_calls();
        Ok(())
    }

    /// Ends all bindings; what was posted still goes.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.leave());
        Ok(())
    }

    /// Whether something that was posted or answered has not left yet.
    fn is_delivering(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.own(py)?.is_delivering())
    }

    /// Waits until all that was posted and answered has left, for `timeout` seconds at most. Says whether it has.
    fn deliver(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let own = self.own(py)?;
        let deadline = std::time::Instant::now() + seconds(timeout)?;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if py.detach(|| own.deliver(left.min(PATIENCE))) {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Gives up on what was posted and has not left, and says what is lost.
    fn abandon(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let lost = self.own(py)?.abandon();
        Ok(lost.iter().map(ToString::to_string).collect())
    }

    /// Whether this process was forked from the one that made it.
    fn is_inherited(&self) -> bool {
        self.node.get().is_none()
    }
}

impl NodeHandle {
    fn own(&self, py: Python<'_>) -> PyResult<&LinkNode> {
        Ok(fork::own(py, &self.node)?)
    }

    /// For what serves endpoints without Python.
    pub(crate) fn shared(&self, py: Python<'_>) -> PyResult<Arc<LinkNode>> {
        fork::own(py, &self.node).cloned()
    }

    /// Why a startpoint is none that this endpoint has made.
    fn foreign(&self, own: &LinkNode, endpoint: &str, given: &Startpoint) -> Option<String> {
        let name = &own.identity().name;
        if given.node() != own.identity() || given.endpoint() != endpoint {
            return Some(format!(
                "got a startpoint of {:?} of {}, expected one of {endpoint:?} of {name}",
                PeerText::new(given.endpoint()),
                given.node(),
            ));
        }
        if given.process() != self.process {
            return Some(format!(
                "got a startpoint of {endpoint:?} that another process of {name} has made: what an earlier one made is void"
            ));
        }
        (held(&self.key_ids).get(endpoint) != Some(given.key_id())).then(|| {
            format!(
                "got a startpoint of {endpoint:?} that a rule of the policy gave, expected one of Endpoint.startpoint: change the rule instead"
            )
        })
    }
}

/// What a lock protects, also after a panic elsewhere.
fn held<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes over an inherited descriptor.
fn dialler(descriptor: Option<i32>) -> PyResult<Option<Dialler>> {
    let Some(number) = descriptor else {
        return Ok(None);
    };
    if number < 0 {
        return Err(PyValueError::new_err(format!(
            "got the descriptor {number}, expected one that is open"
        )));
    }
    // SAFETY: it was inherited for this, and whoever hands it over has nothing more to do with it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(Some(Dialler::new(socket)))
}

/// Where peers are told to dial: where we listen, by an address that means something elsewhere, and our gateways.
fn own_hints(
    listen: &[Listening],
    reached_by: &BTreeMap<String, String>,
    gateways: &[String],
) -> Vec<String> {
    let listen = listen.iter().map(|one| {
        let text = one.address().to_string();
        match text.rsplit_once(':') {
            Some((host, port)) => match reached_by.get(host) {
                Some(host) => format!("{host}:{port}"),
                None => text,
            },
            None => text,
        }
    });
    let gateways = gateways.iter().map(|one| format!("gateway:{one}"));
    listen.chain(gateways).collect()
}

/// Waits until what is sent next has room. A node without a thread can't: sending says so then.
fn wait_for_room(
    py: Python<'_>,
    node: &LinkNode,
    id: BindingId,
    contents: &MessageContents,
) -> PyResult<()> {
    // Mostly there is some, and others needn't get the interpreter for that.
    if node.wait_for_room(id, contents, Duration::ZERO) {
        return Ok(());
    }
    while node.has_thread() && !py.detach(|| node.wait_for_room(id, contents, PATIENCE)) {
        py.check_signals()?;
    }
    Ok(())
}

impl PendingCall {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<LinkCall>> {
        held(&self.call)
    }
}

fn protection_of(word: &str) -> PyResult<Protection> {
    word.parse()
        .map_err(|error| PyValueError::new_err(format!("{error}")))
}

fn random_key() -> PyResult<([u8; 16], [u8; 32])> {
    let (mut key_id, mut secret) = ([0; 16], [0; 32]);
    for bytes in [&mut key_id[..], &mut secret[..]] {
        rand::fill(bytes).map_err(|_| PyRuntimeError::new_err("got no random numbers"))?;
    }
    Ok((key_id, secret))
}

fn encoded(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<MessageContents> {
    let mut encoder = DataEncoder::of_link(what);
    encoder.encode(value)?;
    Ok(MessageContents {
        bulk: encoder.take_bulk(),
        head: Bytes::copy_from_slice(encoder.body()),
        is_gathered: false,
    })
}

/// Whether a receiver takes a value that was compressed to so many bytes.
fn is_taken(head: &[u8], bulk: &[Bytes], compressed_bytes: u64) -> bool {
    Checked::sent_as(head, bulk, Some(compressed_bytes)).is_ok()
}

/// The value of a call or an answer. Parts that became bytes are left in `spent`.
fn value_in<'py>(
    py: Python<'py>,
    expanded: Result<ExpandedContents, ExpansionError>,
    sender: &str,
    spent: &mut Vec<Vec<u8>>,
) -> PyResult<Bound<'py, PyAny>> {
    let ExpandedContents {
        head,
        bulk,
        compressed_bytes,
    } = expanded.map_err(|error| data::rejected(py, sender, &error.to_string()))?;
    data::decode_sent(py, &head, bulk, compressed_bytes, sender, spent)
}

fn answered_twice() -> PyErr {
    PyRuntimeError::new_err("the call has been answered")
}

fn refused(py: Python<'_>, error: &CapabilityError) -> PyErr {
    raise(py, ExceptionKind::Startpoint, error.to_string())
}

/// What the program at the other end raised.
fn failed_there(py: Python<'_>, text: String, failure: &PeerFailure) -> PyErr {
    let class = py
        .import("exoskel.links")
        .and_then(|links| links.getattr("HandlerError"));
    let kind = PeerText::new(&failure.kind);
    match class.and_then(|class| class.call1((text, kind.unquoted()))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// A link's error as Python's.
pub(crate) fn raised(py: Python<'_>, error: &LinkError) -> PyErr {
    let kind = match error {
        LinkError::Capability(error) => return refused(py, error),
        LinkError::EndpointTaken(_)
        | LinkError::NoEndpoint(_)
        | LinkError::EndpointReserved(_)
        | LinkError::HandlerTaken(_)
        | LinkError::HandlerName { .. }
        | LinkError::NoHandler { .. } => return PyValueError::new_err(error.to_string()),
        LinkError::Closed => return raise(py, ExceptionKind::Link, "this node is closed"),
        LinkError::Refused { .. } => ExceptionKind::Refused,
        LinkError::NoAddress(_) => ExceptionKind::NoAddress,
        LinkError::Session(SessionError::Limit { .. })
        | LinkError::ArgumentsTooLarge { .. }
        | LinkError::AnswerTooLarge { .. } => ExceptionKind::SizeLimit,
        LinkError::Unreachable { hindrance, .. } => match hindrance {
            Hindrance::Way => ExceptionKind::Link,
            Hindrance::Identity => ExceptionKind::Authentication,
            Hindrance::Version => ExceptionKind::Version,
            Hindrance::Rules => ExceptionKind::Refused,
        },
        LinkError::LookedUp { .. }
        | LinkError::SessionEnded { .. }
        | LinkError::Away { .. }
        | LinkError::PostsLost { .. }
        | LinkError::ClosedPostsLost { .. }
        | LinkError::ImpossibleCount { .. }
        | LinkError::LinkEnded(_)
        | LinkError::NoLink { .. }
        | LinkError::Unconfirmed
        | LinkError::Session(_)
        | LinkError::TooMuchWaits { .. }
        | LinkError::TooManyRequests => ExceptionKind::Link,
    };
    raise(py, kind, error.to_string())
}
