//! The manager's process: what it has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use exoskel_link::Protections;
use exoskel_link::handshake::HelloSent;
use exoskel_link::keys::KeyStore;
use exoskel_node::manager::ManagerSettings;
use exoskel_node::manager::recruiter::SlotSources;
use exoskel_node::{ManagerMachine, SessionId};

use super::clock::Clock;
use super::known_workers::KnownWorkers;
use super::line::Line;
use super::scenario::Scenario;
use super::wires::ConnectionId;
use super::world::Event;

/// Room for the functions of a stream or two, so that slots have to forget some.
const FUNCTION_BYTES_MAX: u64 = 200;
/// How long runs wait for a slot when none is left: longer than any fault lasts.
const RUN_PATIENCE: Duration = Duration::from_secs(60);

/// What the manager has of a slot.
#[derive(Debug)]
pub(super) struct SlotSession {
    pub(super) line: Line,
    pub(super) worker: usize,
    pub(super) session: SessionId,
}

pub(super) struct SimulatedManager {
    pub(super) machine: ManagerMachine,
    pub(super) clock: Clock,
    pub(super) sessions: BTreeMap<ConnectionId, SlotSession>,
    pub(super) connections: BTreeMap<SessionId, ConnectionId>,
    /// Handshakes that wait for an answer.
    pub(super) hellos: BTreeMap<ConnectionId, HelloSent>,
    /// Workers that dialled in and wait to be called, with what they said.
    pub(super) waiting: VecDeque<(ConnectionId, Vec<u8>)>,
    /// Connections with something to write.
    pub(super) dirty: BTreeSet<ConnectionId>,
    pub(super) wake: Option<Duration>,
    /// Counts its processes.
    pub(super) life: u32,
    /// It has crashed, and the next process has not begun.
    pub(super) is_down: bool,
    pub(super) is_held: bool,
    pub(super) deferred: Vec<Event>,
    /// What its policy demands at least.
    pub(super) minimum: Protections,
    /// Where it has the keys of its sessions.
    pub(super) keys: KeyStore,
    /// What the checks know of its workers.
    pub(super) known: KnownWorkers,
}

impl SimulatedManager {
    pub(super) fn new(
        life: u32,
        scenario: &Scenario,
        clock: Clock,
        minimum: Protections,
        keys: KeyStore,
    ) -> Self {
        let sources = SlotSources {
            slots: scenario.workers.len() as u32,
            children: false,
            hosts: if scenario.manager_dials {
                (0..scenario.workers.len())
                    .map(|worker| scenario.name(worker))
                    .collect()
            } else {
                Vec::new()
            },
            listening: !scenario.manager_dials,
        };
        let settings = ManagerSettings {
            scheduler: scenario.config.clone(),
            message_bytes_max: scenario.limits.message_bytes_max,
            function_bytes_max: FUNCTION_BYTES_MAX,
            sources,
            patience: RUN_PATIENCE,
            seed: scenario.seed ^ u64::from(life),
            setup_local: Bytes::from_static(b"settings of children"),
            setup_remote: Bytes::from_static(b"settings"),
            contract: scenario.contract.clone(),
            has_initializer: scenario.has_initializer,
            takes_hearsay: false,
        };
        Self {
            life,
            is_down: false,
            machine: ManagerMachine::new(settings),
            clock,
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            hellos: BTreeMap::new(),
            waiting: VecDeque::new(),
            dirty: BTreeSet::new(),
            wake: None,
            is_held: false,
            deferred: Vec::new(),
            minimum,
            keys,
            known: KnownWorkers::default(),
        }
    }

    pub(super) fn session_of(
        &mut self,
        session: SessionId,
    ) -> Option<(ConnectionId, &mut SlotSession)> {
        let id = *self.connections.get(&session)?;
        Some((id, self.sessions.get_mut(&id)?))
    }
}
