//! The manager: a router, a session for each slot, and the glue between, which in the real world is `net`'s driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Departure, StreamId};
use exoskel_link::{
    CloseReason, Ended, Endpoint, Event as LinkEvent, LinkId, Protections, Session, SessionError,
    TrafficClass,
};
use exoskel_task::Router;
use exoskel_task::message::{
    CODE_ENDPOINT, RESULT_ENDPOINT, RESULT_HANDLERS, TASK_ENDPOINT, ToManager, ToSlot,
};
use exoskel_task::outcome::Origin;
use exoskel_task::router::Effect;

use super::clock::Clock;
use super::greeting::{self, Channel, Greeting, Terms, path, welcome};
use super::line::Line;
use super::machine::Machine;
use super::scenario::Node;
use super::streams::Streams;
use super::wires::{ConnectionId, Piece, Way};
use super::world::Event;
use crate::violation::Violation;

/// What the manager has of a slot.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) line: Line,
    pub(super) worker: usize,
    pub(super) slot: u32,
    tasks: LinkId,
    code: LinkId,
    pub(super) is_ready: bool,
}

pub(super) struct Manager {
    pub(super) router: Router,
    pub(super) clock: Clock,
    pub(super) seats: BTreeMap<ConnectionId, Seat>,
    /// By slot.
    pub(super) connections: BTreeMap<u32, ConnectionId>,
    /// Handshakes that wait for an answer.
    pub(super) greetings: BTreeMap<ConnectionId, Greeting>,
    /// Connections with something to write.
    dirty: BTreeSet<ConnectionId>,
    next_slot: u32,
    wake: Option<Duration>,
    /// Counts its processes.
    pub(super) life: u32,
    /// It has crashed, and the next process has not begun.
    pub(super) is_down: bool,
    pub(super) is_held: bool,
    pub(super) deferred: Vec<Event>,
    pub(super) terms: Terms,
}

impl Manager {
    pub(super) fn new(life: u32, router: Router, clock: Clock, terms: Terms) -> Self {
        Self {
            life,
            is_down: false,
            router,
            clock,
            seats: BTreeMap::new(),
            connections: BTreeMap::new(),
            greetings: BTreeMap::new(),
            dirty: BTreeSet::new(),
            next_slot: 0,
            wake: None,
            is_held: false,
            deferred: Vec::new(),
            terms,
        }
    }
}

/// A slot's links at the manager's end, opened as the driver does.
fn furnish(session: &mut Session) -> Result<(LinkId, LinkId), SessionError> {
    session.offer(Endpoint::new(RESULT_ENDPOINT, RESULT_HANDLERS))?;
    let tasks = session.open_link(TASK_ENDPOINT, TrafficClass::Data)?;
    Ok((tasks, session.open_link(CODE_ENDPOINT, TrafficClass::Code)?))
}

impl Machine {
    /// Whatever was said, what follows from it is done now.
    pub(super) fn manage(&mut self) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        while let Some(effect) = self.manager.router.poll_effect(now) {
            match effect {
                Effect::Send {
                    slot,
                    message,
                    bulk,
                } => self.queue(slot, &message, bulk)?,
                Effect::Deliver { stream, outcomes } => {
                    let allowed = self.report.slots_lost.min(u64::from(u32::MAX)) as u32;
                    if let Err(what) = self.streams.deliver(stream, outcomes, allowed) {
                        return self.world.broken(what);
                    }
                }
                Effect::LostTrack { stream } => {
                    return self
                        .world
                        .broken(format!("lost track of an item of stream {stream}"));
                }
            }
        }
        for id in std::mem::take(&mut self.manager.dirty) {
            self.tend(id)?;
        }
        if let Some(wake) = self.manager.router.next_timeout() {
            let at = self.manager.clock.when(wake).max(self.world.now);
            if self.manager.wake.is_none_or(|planned| at < planned) {
                self.manager.wake = Some(self.world.plan_timer(at, Event::Wake));
            }
        }
        self.serve_users();
        self.check_budgets()
    }

    /// A timer of the router came; it may have been planned before an earlier one.
    pub(super) fn woken(&mut self) {
        self.manager.wake = self
            .manager
            .wake
            .filter(|planned| self.world.now < *planned);
    }

    fn queue(&mut self, slot: u32, message: &ToSlot, bulk: Vec<Bytes>) -> Result<(), Violation> {
        let id = self.manager.connections.get(&slot).copied();
        let Some((id, seat)) = id.and_then(|id| Some((id, self.manager.seats.get_mut(&id)?)))
        else {
            // It has left since; only work would be missed.
            if !matches!(message, ToSlot::Execute(_)) {
                return Ok(());
            }
            return self
                .world
                .broken(format!("work for slot {slot}, which is gone"));
        };
        let link = if message.is_code() {
            seat.code
        } else {
            seat.tasks
        };
        match seat.line.post(link, message.encode(), bulk) {
            Ok(()) => {}
            // The session is ending: its end puts the items back.
            Err(SessionError::Closed(_)) => {}
            Err(error) => {
                self.world.check_excused(id, Node::Manager, &error)?;
                seat.line
                    .session
                    .0
                    .abort(CloseReason::Fault(error.to_string().into()));
            }
        }
        self.manager.dirty.insert(id);
        Ok(())
    }

    /// Writes, keeps the timer, and sees whether the session is over.
    fn tend(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let clock = self.manager.clock;
        let Some(seat) = self.manager.seats.get_mut(&id) else {
            return Ok(());
        };
        seat.line.write(&mut self.world, clock)?;
        seat.line.arm(&mut self.world, clock);
        match seat.line.session.0.ended() {
            Some(_) => self.dismiss(id, Departure::Orderly),
            None => Ok(()),
        }
    }

    /// The manager's process is gone at once, with all that it and its users knew. What is left is its host's: the clock,
    /// and the policy file.
    pub(super) fn crash_manager(
        &mut self,
        silent: bool,
        restart: Duration,
    ) -> Result<(), Violation> {
        if self.manager.is_down {
            return Ok(());
        }
        self.report.crashes += 1;
        let life = self.manager.life + 1;
        let streams = match Streams::new(&self.scenario, life) {
            Ok(streams) => streams,
            Err(what) => return self.world.broken(what),
        };
        self.former
            .push(std::mem::replace(&mut self.streams, streams));
        let keys = match self.scenario.keys.store() {
            Ok(keys) => keys,
            Err(error) => return self.world.broken(error.to_string()),
        };
        let terms = Terms {
            keys,
            ..self.manager.terms.clone()
        };
        let router = Router::new(self.scenario.config.clone());
        self.manager = Manager::new(life, router, self.manager.clock, terms);
        self.manager.is_down = true;
        let connections: Vec<ConnectionId> = self.channels.keys().copied().collect();
        for id in connections {
            if self.has_left(id, Way::ToWorker) {
                continue;
            }
            self.world.excuse(id);
            if silent {
                self.world.cut(id, &[]);
            } else if self.world.random.below(2) == 0 {
                self.world.cut(id, &[Way::ToWorker]);
            }
            self.hang_up(id, Way::ToWorker)?;
        }
        let event = Event::Begin(life);
        self.world.agenda.plan(self.world.now + restart, event);
        Ok(())
    }

    /// The next process of the manager, and its users, who begin anew.
    pub(super) fn begin_manager(&mut self) {
        self.report.restarts += 1;
        self.manager.is_down = false;
        self.plan_openings();
    }

    /// The manager dials a worker.
    pub(super) fn dial(&mut self, id: ConnectionId) -> Result<(), Violation> {
        if self.has_left(id, Way::ToWorker) {
            return Ok(());
        }
        let Some(worker) = self.world.wires.worker(id) else {
            return Ok(());
        };
        let greeting = match Greeting::new(&self.manager_terms(worker)) {
            Ok(greeting) => greeting,
            Err(error) => return self.world.broken(error.to_string()),
        };
        let hello = Piece::Bytes(greeting.bytes().to_vec());
        self.manager.greetings.insert(id, greeting);
        self.world.send(id, Way::ToWorker, hello)
    }

    /// Something has come to the manager.
    pub(super) fn at_manager(&mut self, id: ConnectionId, piece: Piece) -> Result<(), Violation> {
        if self.has_left(id, Way::ToWorker) {
            return Ok(());
        }
        if self.manager.seats.contains_key(&id) {
            return match piece {
                Piece::Bytes(bytes) => self.hear(id, &bytes),
                Piece::End => self.hear_end(id),
            };
        }
        let Some(channel) = self.channels.get(&id).cloned() else {
            return Ok(());
        };
        match piece {
            Piece::Bytes(bytes) => self.greet(id, &bytes, &channel),
            Piece::End => {
                self.manager.greetings.remove(&id);
                self.hang_up(id, Way::ToWorker)
            }
        }
    }

    fn greet(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        channel: &Channel,
    ) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(worker) = self.world.wires.worker(id) else {
            return Ok(());
        };
        let change = self.session_change();
        let begun = if self.scenario.manager_dials {
            let Some(greeting) = self.manager.greetings.remove(&id) else {
                return Ok(());
            };
            greeting.answered(bytes, channel, now, change)
        } else {
            let welcomed = welcome(bytes, &self.manager_terms(worker), channel, now, change);
            match welcomed {
                Ok((answer, session)) => {
                    self.world.send(id, Way::ToWorker, Piece::Bytes(answer))?;
                    Ok(session)
                }
                Err(error) => Err(error),
            }
        };
        match begun {
            Ok(session) => self.seat(id, worker, session),
            Err(error) => {
                self.world.check_excused(id, Node::Manager, &error)?;
                self.hang_up(id, Way::ToWorker)
            }
        }
    }

    /// What the manager brings to a handshake with this worker.
    fn manager_terms(&self, worker: usize) -> Terms {
        Terms {
            path: path(worker, false, false),
            group: 1 + worker as u32 % 3,
            ..self.manager.terms.clone()
        }
    }

    fn seat(
        &mut self,
        id: ConnectionId,
        worker: usize,
        mut session: Session,
    ) -> Result<(), Violation> {
        self.world.check_protections(id, session.protections())?;
        let (tasks, code) = match furnish(&mut session) {
            Ok(links) => links,
            Err(error) => {
                self.world.check_excused(id, Node::Manager, &error)?;
                return self.hang_up(id, Way::ToWorker);
            }
        };
        self.report.sessions += 1;
        let slot = self.manager.next_slot;
        self.manager.next_slot += 1;
        let mut line = Line::new(id, Way::ToWorker, session);
        if self.is_ending {
            line.close(CloseReason::Finished);
        }
        let setup = ToSlot::Setup {
            answers: self.scenario.workers[worker].format,
            settings: Bytes::from_static(b"settings"),
        };
        let sent = line.post(code, setup.encode(), Vec::new());
        let seat = Seat {
            line,
            worker,
            slot,
            tasks,
            code,
            is_ready: false,
        };
        self.manager.seats.insert(id, seat);
        self.manager.connections.insert(slot, id);
        self.manager.dirty.insert(id);
        if let Err(error) = sent
            && !self.is_ending
        {
            self.world.check_excused(id, Node::Manager, &error)?;
        }
        Ok(())
    }

    fn hear(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(seat) = self.manager.seats.get_mut(&id) else {
            return Ok(());
        };
        let (events, result) = seat.line.receive(bytes, now);
        self.manager.dirty.insert(id);
        for event in events {
            self.manager_event(id, event, now)?;
        }
        result.or_else(|error| self.lose(id, &error))
    }

    fn manager_event(
        &mut self,
        id: ConnectionId,
        event: LinkEvent,
        now: Duration,
    ) -> Result<(), Violation> {
        let Some(seat) = self.manager.seats.get_mut(&id) else {
            return Ok(());
        };
        let (link, handler, head, bulk, size) = match event {
            LinkEvent::Message {
                link,
                handler,
                head,
                bulk,
                size,
                ..
            } => (link, handler, head, bulk, size),
            LinkEvent::LinkRefused { reason, .. } => {
                return self.world.broken(format!("a link was refused: {reason}"));
            }
            _ => return Ok(()),
        };
        seat.line.session.0.consumed(link, size);
        let message = match ToManager::decode(handler, head) {
            Ok(message) => message,
            Err(error) => return self.world.broken(error.to_string()),
        };
        match &message {
            ToManager::Ready { .. } => {
                seat.is_ready = true;
                let scenario = &self.scenario.workers[seat.worker];
                let origin = Arc::new(Origin {
                    worker: greeting::worker(seat.worker).name,
                    format: scenario.format,
                });
                let added = self.manager.router.add_slot(seat.slot, origin, now);
                return added.or_else(|error| self.world.broken(error.to_string()));
            }
            ToManager::Announced { .. } => self.report.announced += 1,
            ToManager::Recalled { count, .. } => self.report.recalled += u64::from(*count),
            ToManager::Released { .. } => self.report.released += 1,
            ToManager::Results { .. } | ToManager::Output { .. } => {}
        }
        let answered = self.manager.router.answer(seat.slot, message, bulk, now);
        answered.or_else(|error| self.world.broken(error.to_string()))
    }

    /// The connection has no more bytes.
    pub(super) fn hear_end(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let Some(seat) = self.manager.seats.get_mut(&id) else {
            self.manager.greetings.remove(&id);
            return if self.channels.contains_key(&id) {
                self.hang_up(id, Way::ToWorker)
            } else {
                Ok(())
            };
        };
        let session = &mut seat.line.session.0;
        match (session.received_end(), session.ended()) {
            (Err(error), Some(Ended::Session(_))) => self.lose(id, &error),
            // One of the two had said Close. If it was the peer, nobody is there to read ours.
            _ => self.dismiss(id, Departure::Orderly),
        }
    }

    /// A session's timer came.
    pub(super) fn manager_timer(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(seat) = self.manager.seats.get_mut(&id) else {
            return Ok(());
        };
        seat.line.disarm(self.world.now);
        let result = seat.line.session.0.handle_timeout(now);
        self.manager.dirty.insert(id);
        result.or_else(|error| self.lose(id, &error))
    }

    /// A session has something to write, perhaps.
    pub(super) fn stir_manager(&mut self, id: ConnectionId) {
        self.manager.dirty.insert(id);
    }

    /// A session ended by an error: its slot is lost.
    fn lose(&mut self, id: ConnectionId, error: &SessionError) -> Result<(), Violation> {
        self.world.check_excused(id, Node::Manager, error)?;
        let clock = self.manager.clock;
        if let Some(seat) = self.manager.seats.get_mut(&id) {
            // The peer is told why, if it can be.
            seat.line.write(&mut self.world, clock)?;
        }
        self.report.slots_lost += 1;
        self.dismiss(id, Departure::Lost)
    }

    /// A slot is gone.
    pub(super) fn dismiss(
        &mut self,
        id: ConnectionId,
        departure: Departure,
    ) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(seat) = self.manager.seats.remove(&id) else {
            return Ok(());
        };
        self.report.keys_changed += seat.line.session.0.counts().epoch_sealing;
        self.manager.connections.remove(&seat.slot);
        self.manager.router.remove_slot(seat.slot, departure, now);
        self.hang_up(id, Way::ToWorker)
    }

    /// All sessions are closed in order.
    pub(super) fn close_sessions(&mut self) {
        for (id, seat) in &mut self.manager.seats {
            seat.line.close(CloseReason::Finished);
            self.manager.dirty.insert(*id);
        }
    }

    /// The policy demands more from now on, also of running sessions.
    pub(super) fn raise(&mut self, floors: Protections) {
        self.manager.terms.floors = self.manager.terms.floors.stricter(floors);
        for (id, seat) in &mut self.manager.seats {
            seat.line.session.0.raise_protections(floors);
            self.manager.dirty.insert(*id);
        }
        // Handshakes that are under way may come to either.
        for id in self.channels.keys() {
            self.world.raise(*id);
        }
    }

    fn check_budgets(&self) -> Result<(), Violation> {
        let config = &self.scenario.config;
        let (mut input_max, mut result_max, mut inside_max) = (0, 0, 0);
        for (id, number) in (0..).zip(&self.streams.opened) {
            let user = &self.streams.users[*number];
            let scheduler = self.manager.router.scheduler();
            let Some(progress) = scheduler.progress(StreamId(id)) else {
                continue;
            };
            let inside = progress.admitted - progress.taken;
            let limit = if user.scenario.unbounded {
                config.submitted_max
            } else {
                config.tickets_max
            };
            if inside > u64::from(limit) {
                return self
                    .world
                    .broken(format!("{inside} items of stream {number} are inside"));
            }
            let largest = user.scenario.result_bytes_max + RECORD_OVERHEAD;
            let (held, reserved) = scheduler.result_bytes(StreamId(id));
            let floors = (config.grant_bytes_min + RECORD_OVERHEAD) * inside + 2 * largest;
            if held + reserved > config.result_budget_bytes + floors {
                return self.world.broken(format!(
                    "{held} result bytes of stream {number} held and {reserved} reserved"
                ));
            }
            inside_max = inside_max.max(inside);
            input_max = input_max.max(user.scenario.input_bytes_max + largest);
            result_max = result_max.max(largest);
        }
        let frames = config.window_bytes_max + 3 * config.frame_bytes_max + 4 * input_max;
        // Heads of messages and what is of no stream.
        let most = frames + 100 * u64::from(config.window_frames_max) + (64 << 10);
        for seat in self.manager.seats.values() {
            let queued = seat.line.session.0.queued_bytes();
            if queued > most {
                return self.world.broken(format!(
                    "{queued} bytes wait to be sealed for slot {}",
                    seat.slot
                ));
            }
        }
        Ok(())
    }
}

/// What a record has besides its contents, and what the contents have besides their size.
const RECORD_OVERHEAD: u64 = 64;
