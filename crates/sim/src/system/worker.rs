//! A worker: one process of one slot after another.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_link::handshake::HelloSent;
use exoskel_node::SlotMachine;
use exoskel_task::slot_queue::SerialPassage;

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
    pub(super) deferred: Vec<Event>,
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
            deferred: Vec::new(),
            backlog: VecDeque::new(),
        }
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
