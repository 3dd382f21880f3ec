//! A worker: one process of one slot after another.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_link::Event as LinkEvent;
use exoskel_link::handshake::HelloSent;
use exoskel_node::SlotMachine;
use exoskel_node::knocking::Knocking;
use exoskel_task::slot_queue::{Outgoing, SerialPassage};

use super::clock::Clock;
use super::interpreter::Interpreter;
use super::line::Line;
use super::scenario::WorkerScenario;
use super::wires::ConnectionId;
use super::world::Event;

pub(super) struct Worker {
    pub(super) scenario: WorkerScenario,
    pub(super) slowness: u32,
    pub(super) clock: Clock,
    /// Counts its processes.
    pub(super) life: u32,
    /// Of the manager's processes, the one that it has joined.
    pub(super) manager_life: u32,
    pub(super) state: State,
    pub(super) is_held: bool,
    /// Nobody accepts connections there.
    pub(super) is_refusing: bool,
    pub(super) deferred: Vec<Event>,
    /// How it asks a manager that it dials.
    pub(super) knocking: Knocking,
    /// What has come to its listening socket while its slot was taken or down.
    pub(super) backlog: VecDeque<(ConnectionId, Vec<u8>)>,
}

pub(super) enum State {
    Down,
    /// It waits for a manager to dial it.
    Listening,
    /// In the handshake; a client waits for the answer.
    Handshake(ConnectionId, Option<Box<HelloSent>>),
    Up(Box<SlotProcess>),
}

/// A process whose session has begun.
#[derive(Debug)]
pub(super) struct SlotProcess {
    pub(super) line: Line,
    pub(super) machine: SlotMachine,
    pub(super) passage: SerialPassage,
    pub(super) interpreter: Interpreter,
    pub(super) flush: Option<Duration>,
    pub(super) look: Option<Duration>,
}

impl SlotProcess {
    /// What an event of the session means. Gives what is to be answered.
    pub(super) fn take_in(&mut self, event: LinkEvent) -> Result<Vec<Outgoing>, String> {
        match &event {
            LinkEvent::Message { link, size, .. } => {
                self.line.session.0.consumed(*link, *size);
            }
            LinkEvent::LinkRefused { reason, .. } => {
                return Err(format!("a link was refused: {reason}"));
            }
            _ => {}
        }
        let answers = self.machine.event(event, &self.passage);
        answers.map_err(|reason| reason.to_string())
    }
}

impl Worker {
    pub(super) fn new(scenario: WorkerScenario, clock: Clock) -> Self {
        Self {
            slowness: scenario.slowness,
            scenario,
            clock,
            life: 0,
            manager_life: 0,
            state: State::Down,
            is_held: false,
            is_refusing: false,
            deferred: Vec::new(),
            knocking: Knocking::new(0),
            backlog: VecDeque::new(),
        }
    }

    /// An attempt to have a session with the manager that it dials has failed. Gives the time until the next one.
    pub(super) fn knock_again(&mut self, now: Duration, reason: &str) -> Duration {
        self.knocking.begin(now);
        self.knocking.failed(now, reason.to_owned());
        let pause = self.knocking.next_at() - now;
        pause.max(self.scenario.rejoins_after)
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match &self.state {
            State::Down | State::Listening => None,
            State::Handshake(id, _) => Some(*id),
            State::Up(process) => Some(process.line.id),
        }
    }

    pub(super) fn process(&mut self) -> Option<&mut SlotProcess> {
        match &mut self.state {
            State::Up(process) => Some(process),
            _ => None,
        }
    }

    /// Nothing waits or runs here.
    pub(super) fn is_quiet(&self) -> bool {
        match &self.state {
            State::Up(process) => {
                process.machine.is_idle()
                    && process.interpreter.running.is_none()
                    && process.line.session.0.queued_bytes() == 0
            }
            State::Down | State::Listening => true,
            State::Handshake(..) => false,
        }
    }
}
