//! One process of the simulation: its machine, its sessions and its handlers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exoskel_link::handshake::{HelloSent, ProcessNumber};
use exoskel_link::keys::KeyStore;
use exoskel_link::{Event, Protection, Session, SessionError};
use exoskel_node::SessionId;
use exoskel_node::links::{AcceptedId, BindingId, LinkCall, LinkMachine, RequestId, Want};

use super::run::PeerEvent;

/// The number of a connection; never used twice.
pub(super) type WireNumber = u32;

/// A session on its connection.
pub(super) struct PeerLine {
    pub(super) wire: WireNumber,
    pub(super) session: Session,
    pub(super) timer: Option<Duration>,
    /// The other peer.
    pub(super) peer: usize,
}

impl PeerLine {
    /// Takes bytes in; gives what happened before the end or an error.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        now: Duration,
    ) -> (Vec<Event>, Result<(), SessionError>) {
        let (mut events, mut left) = (Vec::new(), bytes);
        while !left.is_empty() {
            let buffer = self.session.receive_buffer();
            let count = buffer.len().min(left.len());
            buffer[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            let result = self.session.received(count, now);
            events.extend(std::iter::from_fn(|| self.session.poll_event()));
            if result.is_err() {
                return (events, result);
            }
        }
        (events, Ok(()))
    }
}

/// A handshake that this process has begun.
pub(super) struct BegunDial {
    pub(super) want: Want,
    pub(super) hello: HelloSent,
}

pub(super) struct PlayedPeer {
    pub(super) life: u32,
    pub(super) process: ProcessNumber,
    pub(super) machine: LinkMachine,
    pub(super) keys: KeyStore,
    pub(super) lines: BTreeMap<SessionId, PeerLine>,
    pub(super) sessions_made: u32,
    pub(super) by_wire: BTreeMap<WireNumber, SessionId>,
    pub(super) dials: BTreeMap<WireNumber, BegunDial>,
    /// Calls that wait for their handlers, and links whose call is handled.
    pub(super) calls: BTreeMap<AcceptedId, VecDeque<LinkCall>>,
    pub(super) busy: BTreeSet<AcceptedId>,
    /// Links that their openers have closed.
    pub(super) closed: BTreeSet<AcceptedId>,
    /// By binding of the scenario.
    pub(super) bound: BTreeMap<usize, BindingId>,
    /// Requests for startpoints, with the bindings of the scenario that wait for them.
    pub(super) lookups: BTreeMap<RequestId, (usize, BindingId)>,
    pub(super) policy: Protection,
    /// Names of those whom its rules are against.
    pub(super) barred: BTreeSet<String>,
    /// When it has last looked for startpoints that have expired, in seconds since 1970.
    pub(super) expiry_seen: u64,
    /// It ends in good order, and does nothing new.
    pub(super) is_leaving: bool,
    pub(super) is_down: bool,
    pub(super) is_held: bool,
    pub(super) deferred: Vec<PeerEvent>,
    pub(super) wake: Option<Duration>,
}

impl PlayedPeer {
    pub(super) fn new(
        life: u32,
        process: ProcessNumber,
        patience: Duration,
        policy: Protection,
        key: [u8; 32],
    ) -> Self {
        let mut machine = LinkMachine::new(process, patience);
        let mut key_id = [0; 16];
        key_id.copy_from_slice(&key[..16]);
        machine
            .offer("sink", Protection::Plain, key_id, key)
            .expect("a machine that offers nothing can offer something");
        for handler in ["note", "answer"] {
            machine
                .add_handler("sink", handler)
                .expect("the endpoint has been offered");
        }
        Self {
            life,
            process,
            machine,
            keys: KeyStore::in_ordinary_memory(4),
            lines: BTreeMap::new(),
            sessions_made: 0,
            by_wire: BTreeMap::new(),
            dials: BTreeMap::new(),
            calls: BTreeMap::new(),
            busy: BTreeSet::new(),
            closed: BTreeSet::new(),
            bound: BTreeMap::new(),
            lookups: BTreeMap::new(),
            policy,
            barred: BTreeSet::new(),
            expiry_seen: 0,
            is_leaving: false,
            is_down: false,
            is_held: false,
            deferred: Vec::new(),
            wake: None,
        }
    }
}
