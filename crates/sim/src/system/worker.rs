//! A worker: one process of one slot after another, each with a session, a desk and an interpreter.

use std::time::Duration;

use exoskel_link::keys::KeyStore;
use exoskel_link::{
    CloseReason, Ended, Endpoint, Event as LinkEvent, LinkId, Session, SessionError, TrafficClass,
};
use exoskel_task::Desk;
use exoskel_task::desk::{Outgoing, Passage};
use exoskel_task::message::{
    CODE_ENDPOINT, CODE_HANDLERS, RESULT_ENDPOINT, TASK_ENDPOINT, TASK_HANDLERS, ToSlot,
};

use super::clock::Clock;
use super::greeting::{self, Channel, Greeting, Terms, path, welcome};
use super::interpreter::{Interpreter, Part, Turn};
use super::line::Line;
use super::machine::Machine;
use super::scenario::{Node, WorkerScenario};
use super::streams::Streams;
use super::wires::{ConnectionId, Piece, Way};
use super::world::Event;
use crate::violation::Violation;

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts to find a manager at least.
const REDIAL_TIME: Duration = Duration::from_millis(5);

pub(super) struct Worker {
    pub(super) scenario: WorkerScenario,
    pub(super) slowness: u32,
    pub(super) clock: Clock,
    /// Counts its processes.
    pub(super) life: u32,
    /// Of the manager's processes, the one that it has joined.
    manager_life: u32,
    pub(super) state: State,
    pub(super) is_held: bool,
    pub(super) deferred: Vec<Event>,
}

pub(super) enum State {
    Down,
    /// In the handshake; a client waits for the answer.
    Greeting(ConnectionId, Option<Box<Greeting>>),
    Up(Box<Process>),
}

/// A process whose session has begun.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) line: Line,
    results: LinkId,
    code_link: Option<LinkId>,
    pub(super) desk: Desk,
    passage: Passage,
    pub(super) interpreter: Interpreter,
    flush: Option<Duration>,
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
        }
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match &self.state {
            State::Down => None,
            State::Greeting(id, _) => Some(*id),
            State::Up(process) => Some(process.line.id),
        }
    }

    fn process(&mut self) -> Option<&mut Process> {
        match &mut self.state {
            State::Up(process) => Some(process),
            _ => None,
        }
    }

    /// Nothing waits or runs here.
    pub(super) fn is_quiet(&self) -> bool {
        match &self.state {
            State::Up(process) => {
                process.desk.is_idle()
                    && process.interpreter.running.is_none()
                    && process.line.session.0.queued_bytes() == 0
            }
            State::Down => true,
            State::Greeting(..) => false,
        }
    }
}

/// A slot's links at its own end, as its node opens them.
fn furnish(session: &mut Session) -> Result<LinkId, SessionError> {
    session.offer(Endpoint::new(TASK_ENDPOINT, TASK_HANDLERS))?;
    session.offer(Endpoint::new(CODE_ENDPOINT, CODE_HANDLERS))?;
    session.open_link(RESULT_ENDPOINT, TrafficClass::Data)
}

impl Machine {
    /// A worker's process begins and looks for its manager.
    pub(super) fn join(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let worker = &self.workers[number];
        if worker.life != life || self.is_ending || !matches!(worker.state, State::Down) {
            return Ok(());
        }
        if self.manager.is_down {
            // Who dials finds nobody, and tries again.
            let again = worker.scenario.rejoins_after.max(REDIAL_TIME);
            let event = Event::Join(number, life);
            self.world.agenda.plan(self.world.now + again, event);
            return Ok(());
        }
        let expected = greeting::agreed(
            self.manager.terms.floors,
            worker.scenario.floors,
            worker.scenario.is_relayed,
        );
        let id = self.world.connect(number, expected);
        if self.manager.is_held || self.world.wires.is_blocked(number) {
            self.world.excuse(id);
        }
        let (own, manager) = (greeting::worker(number), greeting::manager());
        let (client, server) = if self.scenario.manager_dials {
            (manager, own)
        } else {
            (own, manager)
        };
        let channel = Channel::new(client, server, &mut self.world.random);
        self.channels.insert(id, channel);
        let impatience = self.world.now + PATIENCE;
        self.world.agenda.plan(impatience, Event::Impatience(id));
        let mut greeting = None;
        if self.scenario.manager_dials {
            self.world.agenda.plan(self.world.now, Event::Dial(id));
        } else {
            let said = match Greeting::new(&self.worker_terms(number)) {
                Ok(said) => said,
                Err(error) => return self.world.broken(error.to_string()),
            };
            let hello = Piece::Bytes(said.bytes().to_vec());
            self.world.send(id, Way::ToManager, hello)?;
            greeting = Some(Box::new(said));
        }
        let worker = &mut self.workers[number];
        worker.state = State::Greeting(id, greeting);
        worker.manager_life = self.manager.life;
        Ok(())
    }

    fn worker_terms(&self, number: usize) -> Terms {
        let scenario = &self.workers[number].scenario;
        Terms {
            identity: greeting::worker(number),
            floors: scenario.floors,
            ciphers: exoskel_link::CipherSuite::ALL.to_vec(),
            limits: self.scenario.limits,
            dead_after: self.scenario.dead_after,
            path: path(number, true, scenario.is_relayed),
            group: 0,
            keys: KeyStore::in_ordinary_memory(1),
        }
    }

    /// A handshake has taken too long.
    pub(super) fn impatience(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        if !self.manager.seats.contains_key(&id) && !self.has_left(id, Way::ToWorker) {
            self.manager.greetings.remove(&id);
            self.hang_up(id, Way::ToWorker)?;
        }
        match &self.workers[number].state {
            State::Greeting(own, _) if *own == id => {
                self.world
                    .check_excused(id, Node::Worker(number), &"a handshake took too long")?;
                self.depart(number)
            }
            _ => Ok(()),
        }
    }

    /// Something has come to a worker.
    pub(super) fn at_worker(&mut self, id: ConnectionId, piece: Piece) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        if self.workers[number].connection() != Some(id) {
            return Ok(());
        }
        match piece {
            Piece::Bytes(bytes) => self.worker_hears(number, id, &bytes),
            Piece::End => self.worker_hears_end(number),
        }
    }

    fn worker_hears(
        &mut self,
        number: usize,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let now = self.workers[number].clock.shows(self.world.now);
        if !matches!(self.workers[number].state, State::Up(_)) {
            return self.worker_greets(number, id, bytes, now);
        }
        let Some(process) = self.workers[number].process() else {
            return Ok(());
        };
        let (events, result) = process.line.receive(bytes, now);
        let mut outgoing = Vec::new();
        for event in events {
            match process.take_in(event) {
                Ok(answers) => outgoing.extend(answers),
                Err(what) => return self.world.broken(what),
            }
        }
        self.post_all(number, outgoing)?;
        if let Err(error) = result {
            return self.worker_loses(number, &error);
        }
        self.work(number)
    }

    fn worker_greets(
        &mut self,
        number: usize,
        id: ConnectionId,
        bytes: &[u8],
        now: Duration,
    ) -> Result<(), Violation> {
        let Some(channel) = self.channels.get(&id).cloned() else {
            return Ok(());
        };
        let change = self.session_change();
        let state = std::mem::replace(&mut self.workers[number].state, State::Down);
        let begun = match state {
            State::Greeting(_, Some(greeting)) => greeting.answered(bytes, &channel, now, change),
            _ => match welcome(bytes, &self.worker_terms(number), &channel, now, change) {
                Ok((answer, session)) => {
                    self.world.send(id, Way::ToManager, Piece::Bytes(answer))?;
                    Ok(session)
                }
                Err(error) => Err(error),
            },
        };
        let begun = begun
            .map_err(|error| error.to_string())
            .and_then(|mut session| {
                let results = furnish(&mut session).map_err(|error| error.to_string())?;
                Ok((session, results))
            });
        let (session, results) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.workers[number].state = State::Greeting(id, None);
                self.world.check_excused(id, Node::Worker(number), &error)?;
                return self.depart(number);
            }
        };
        self.world.check_protections(id, session.protections())?;
        let process = Process {
            line: Line::new(id, Way::ToManager, session),
            results,
            code_link: None,
            desk: Desk::new(self.scenario.limits.message_bytes_max),
            passage: Passage::default(),
            interpreter: Interpreter::new(self.workers[number].scenario.format),
            flush: None,
        };
        self.workers[number].state = State::Up(Box::new(process));
        self.work(number)
    }

    /// The connection has no more bytes.
    pub(super) fn worker_hears_end(&mut self, number: usize) -> Result<(), Violation> {
        let Some(process) = self.workers[number].process() else {
            if let Some(id) = self.workers[number].connection() {
                self.world.check_excused(
                    id,
                    Node::Worker(number),
                    &"the connection ended in the handshake",
                )?;
                return self.depart(number);
            }
            return Ok(());
        };
        let session = &mut process.line.session.0;
        match (session.received_end(), session.ended()) {
            (Err(error), Some(Ended::Session(_))) => self.worker_loses(number, &error),
            _ => self.depart(number),
        }
    }

    /// A session's timer came.
    pub(super) fn worker_timer(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        let now = self.workers[number].clock.shows(self.world.now);
        let Some(process) = self.workers[number]
            .process()
            .filter(|process| process.line.id == id)
        else {
            return Ok(());
        };
        process.line.disarm(self.world.now);
        match process.line.session.0.handle_timeout(now) {
            Ok(()) => self.tend_worker(number),
            Err(error) => self.worker_loses(number, &error),
        }
    }

    /// Looks for work, then lets out what there is to say.
    pub(super) fn work(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let now = worker.clock.shows(self.world.now);
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        let streams = streams_of(&self.former, &self.streams, worker.manager_life);
        let turn = process
            .interpreter
            .start(&mut process.desk, &process.passage, streams, now);
        self.turn(number, turn)
    }

    /// What ran is done.
    pub(super) fn done(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let now = worker.clock.shows(self.world.now);
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        if worker.life != life {
            return Ok(());
        }
        let streams = streams_of(&self.former, &self.streams, worker.manager_life);
        let turn = process
            .interpreter
            .done(&mut process.desk, &process.passage, streams, now);
        let goes_on = matches!(&turn, Ok(turn) if turn.time.is_some());
        self.turn(number, turn)?;
        if goes_on { Ok(()) } else { self.work(number) }
    }

    /// Results have waited for long enough.
    pub(super) fn flush(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let now = worker.clock.shows(self.world.now);
        if worker.life != life {
            return Ok(());
        }
        let Some(process) = worker.process() else {
            return Ok(());
        };
        process.flush = None;
        let outgoing = process.desk.flush(now);
        self.post_all(number, outgoing)?;
        self.tend_worker(number)
    }

    fn turn(&mut self, number: usize, turn: Result<Turn, String>) -> Result<(), Violation> {
        let turn = match turn {
            Ok(turn) => turn,
            Err(what) => return self.world.broken(format!("worker {number}: {what}")),
        };
        self.post_all(number, turn.outgoing)?;
        if let Some(time) = turn.time {
            let worker = &self.workers[number];
            let State::Up(process) = &worker.state else {
                return Ok(());
            };
            let Some(running) = process.interpreter.running else {
                return Ok(());
            };
            if running.part != Part::Rest {
                self.report.started += 1;
                self.check_serial(number)?;
                let streams = streams_of(&self.former, &self.streams, worker.manager_life);
                if streams.is_poison(&running.key) {
                    let restart = worker.scenario.rejoins_after;
                    return self.crash_worker(number, false, restart);
                }
            }
            let done = self.world.now + time * worker.slowness;
            let event = Event::Done(number, worker.life);
            self.world.agenda.plan(done, event);
        }
        self.tend_worker(number)
    }

    /// A serial function runs at one slot at a time, of those that the manager has.
    fn check_serial(&self, number: usize) -> Result<(), Violation> {
        let running_of = |number: usize| {
            let worker = &self.workers[number];
            let State::Up(process) = &worker.state else {
                return None;
            };
            let seat = self.manager.seats.get(&process.line.id)?;
            seat.is_ready.then_some(&process.interpreter)
        };
        let Some(running) = running_of(number).and_then(|interpreter| interpreter.running) else {
            return Ok(());
        };
        let (stream, segment) = (running.key.stream, running.segment);
        let user = self.streams.opened.get(stream as usize);
        if running.part != Part::Serial
            || user.is_none_or(|user| !self.streams.users[*user].has_serial(segment))
        {
            return Ok(());
        }
        let other = (0..self.workers.len()).find(|other| {
            *other != number
                && running_of(*other)
                    .is_some_and(|interpreter| interpreter.is_in_serial(stream, segment))
        });
        other.map_or(Ok(()), |other| {
            self.world.broken(format!(
                "workers {other} and {number} run the serial function of segment {segment} of stream {stream} at once"
            ))
        })
    }

    fn post_all(
        &mut self,
        number: usize,
        outgoing: impl IntoIterator<Item = Outgoing>,
    ) -> Result<(), Violation> {
        let Some(process) = self.workers[number].process() else {
            return Ok(());
        };
        for Outgoing { message, bulk, .. } in outgoing {
            match process.line.post(process.results, message.encode(), bulk) {
                // Its end is noticed elsewhere.
                Ok(()) | Err(SessionError::Closed(_)) => {}
                Err(error) => {
                    let id = process.line.id;
                    self.world.check_excused(id, Node::Worker(number), &error)?;
                    process
                        .line
                        .session
                        .0
                        .abort(CloseReason::Fault(error.to_string().into()));
                }
            }
        }
        Ok(())
    }

    /// Writes, keeps timers, and sees whether the session is over.
    pub(super) fn tend_worker(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let (clock, life) = (worker.clock, worker.life);
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        process.line.write(&mut self.world, clock)?;
        process.line.arm(&mut self.world, clock);
        let flush = process.desk.flush_at().map(|due| clock.when(due));
        if let Some(due) = flush
            && process.flush.is_none_or(|planned| due < planned)
        {
            let event = Event::Flush(number, life);
            process.flush = Some(self.world.plan_timer(due, event));
        }
        if process.line.session.0.ended().is_some() {
            return self.depart(number);
        }
        Ok(())
    }

    /// A session ended by an error.
    fn worker_loses(&mut self, number: usize, error: &SessionError) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let clock = worker.clock;
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        self.world
            .check_excused(process.line.id, Node::Worker(number), error)?;
        process.line.write(&mut self.world, clock)?;
        self.depart(number)
    }

    /// The process leaves; another one comes after a while.
    pub(super) fn depart(&mut self, number: usize) -> Result<(), Violation> {
        let Some(id) = self.workers[number].connection() else {
            return Ok(());
        };
        let restart = self.workers[number].scenario.rejoins_after;
        self.end_process(number, restart);
        self.hang_up(id, Way::ToManager)
    }

    fn end_process(&mut self, number: usize, restart: Duration) {
        let worker = &mut self.workers[number];
        worker.state = State::Down;
        worker.life += 1;
        let event = Event::Join(number, worker.life);
        self.world.agenda.plan(self.world.now + restart, event);
    }

    /// The process is gone at once.
    pub(super) fn crash_worker(
        &mut self,
        number: usize,
        silent: bool,
        restart: Duration,
    ) -> Result<(), Violation> {
        let Some(id) = self.workers[number].connection() else {
            return Ok(());
        };
        self.report.crashes += 1;
        self.world.excuse(id);
        if silent {
            self.world.cut(id, &[]);
        } else if self.world.random.below(2) == 0 {
            self.world.cut(id, &[Way::ToManager]);
        }
        self.end_process(number, restart);
        self.hang_up(id, Way::ToManager)
    }

    /// The process says good-bye.
    pub(super) fn leave(&mut self, number: usize) -> Result<(), Violation> {
        if let Some(process) = self.workers[number].process() {
            process.line.close(CloseReason::ShuttingDown);
        }
        self.tend_worker(number)
    }
}

/// The streams of a process of the manager: a worker that has not noticed its end runs items of a former one.
fn streams_of<'a>(former: &'a [Streams], current: &'a Streams, life: u32) -> &'a Streams {
    former.get(life as usize).unwrap_or(current)
}

impl Process {
    /// What an event of the session means. Gives what is to be answered.
    fn take_in(&mut self, event: LinkEvent) -> Result<Vec<Outgoing>, String> {
        let (link, handler, head, bulk, size) = match event {
            LinkEvent::Message {
                link,
                handler,
                head,
                bulk,
                size,
                ..
            } => (link, handler, head, bulk, size),
            LinkEvent::LinkOpened { link, endpoint, .. } => {
                if endpoint == CODE_ENDPOINT {
                    self.code_link = Some(link);
                }
                return Ok(Vec::new());
            }
            LinkEvent::LinkRefused { reason, .. } => {
                return Err(format!("a link was refused: {reason}"));
            }
            _ => return Ok(Vec::new()),
        };
        let message = if self.code_link == Some(link) {
            ToSlot::decode_code(handler, head)
        } else {
            ToSlot::decode_task(handler, head)
        };
        self.line.session.0.consumed(link, size);
        let message = message.map_err(|error| error.to_string())?;
        Ok(self.desk.take_in(message, bulk, &self.passage))
    }
}
