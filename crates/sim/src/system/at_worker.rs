//! What happens at a worker: it meets its manager, and runs items.

use std::time::Duration;

use exoskel_link::handshake::{HandshakeError, HelloSent, Offer};
use exoskel_link::keys::KeyStore;
use exoskel_link::{CloseReason, Session};
use exoskel_node::SlotMachine;
use exoskel_node::knocking::Knocking;
use exoskel_task::slot_queue::SerialPassage;

use super::handshake::{self, Channel, path};
use super::interpreter::{FunctionPart, Interpreter, Turn};
use super::line::Line;
use super::machine::Machine;
use super::scenario::Node;
use super::streams::Streams;
use super::wires::{ConnectionId, Piece, Way};
use super::world::Event;
use crate::violation::Violation;

use super::worker::{SlotProcess, State};

/// How long a handshake may take.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

impl Machine {
    /// A worker's process begins and looks for its manager.
    pub(super) fn join(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        if worker.life != life || self.is_ending || !matches!(worker.state, State::Down) {
            return Ok(());
        }
        if self.scenario.manager_dials {
            worker.state = State::Listening;
            return self.accept_next(number);
        }
        if self.manager.is_down {
            // Who dials finds nobody, and tries again.
            let again = worker.knock_again(self.world.now, "can't connect");
            let event = Event::Join(number, life);
            self.world.agenda.plan(self.world.now + again, event);
            return Ok(());
        }
        let said = match HelloSent::new(self.worker_offer(number)) {
            Ok(said) => said,
            Err(error) => return self.world.broken(error.to_string()),
        };
        let id = self.connect(number);
        let hello = Piece::Bytes(said.bytes().to_vec());
        self.world.send(id, Way::ToManager, hello)?;
        self.begin_handshake(number, id, Some(Box::new(said)));
        Ok(())
    }

    /// A new connection between the manager and a worker.
    pub(super) fn connect(&mut self, number: usize) -> ConnectionId {
        let worker = &self.workers[number];
        let expected = handshake::agreed(
            self.manager.minimum,
            worker.scenario.minimum,
            worker.scenario.is_relayed,
        );
        let (is_held, own) = (worker.is_held, self.scenario.identity(number));
        let id = self.world.connect(number, expected);
        if is_held || self.manager.is_held || self.world.wires.is_blocked(number) {
            self.world.excuse(id);
        }
        let manager = handshake::manager();
        let (client, server) = if self.scenario.manager_dials {
            (manager, own)
        } else {
            (own, manager)
        };
        let channel = Channel::new(client, server, &mut self.world.random);
        self.channels.insert(id, channel);
        self.begin_patience(id);
        id
    }

    /// From now on, the handshake may take so long.
    pub(super) fn begin_patience(&mut self, id: ConnectionId) {
        let until = self.world.now + HANDSHAKE_TIME;
        self.patience.insert(id, until);
        self.world.agenda.plan(until, Event::Impatience(id));
    }

    pub(super) fn begin_handshake(
        &mut self,
        number: usize,
        id: ConnectionId,
        hello: Option<Box<HelloSent>>,
    ) {
        let worker = &mut self.workers[number];
        worker.state = State::Handshake(id, hello);
        worker.manager_life = self.manager.life;
    }

    /// Takes up the first connection that waits at the listening socket.
    pub(super) fn accept_next(&mut self, number: usize) -> Result<(), Violation> {
        while let Some((id, bytes)) = self.workers[number].backlog.pop_front() {
            if self.channels.contains_key(&id) && !self.has_left(id, Way::ToManager) {
                self.begin_handshake(number, id, None);
                return self.worker_hears(number, id, &bytes);
            }
        }
        Ok(())
    }

    pub(super) fn worker_offer(&self, number: usize) -> Offer {
        let worker = &self.workers[number].scenario;
        handshake::offer(
            &self.scenario,
            self.scenario.identity(number),
            worker.minimum,
            exoskel_link::CipherSuite::ALL.to_vec(),
            path(number, true, worker.is_relayed),
            0,
        )
    }

    /// A handshake has taken too long.
    pub(super) fn impatience(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        let until = self.patience.get(&id);
        if until.is_some_and(|until| self.world.now < *until) {
            // It was called meanwhile.
            return Ok(());
        }
        if self.waits_in_order(number, id) {
            self.begin_patience(id);
            return Ok(());
        }
        if !self.manager.sessions.contains_key(&id) && !self.has_left(id, Way::ToWorker) {
            // Its slot was not free until now: it finds its manager gone.
            self.world.excuse(id);
            self.give_up_handshake(id)?;
        }
        match &self.workers[number].state {
            State::Handshake(own, _) if *own == id => {
                self.world
                    .check_excused(id, Node::Worker(number), &"a handshake took too long")?;
                self.depart(number)
            }
            _ => Ok(()),
        }
    }

    /// Whether a worker that dialled in waits to be called, and both ends are there: neither looks at the time then, and their hosts tell each other that
    /// they are alive.
    pub(super) fn waits_in_order(&self, number: usize, id: ConnectionId) -> bool {
        let mut waiting = self.manager.waiting.iter();
        !self.is_ending
            && !self.has_left(id, Way::ToWorker)
            && self.workers[number].connection() == Some(id)
            && !self.world.wires.is_blocked(number)
            && waiting.any(|(other, _)| *other == id)
    }

    /// Something has come to a worker.
    pub(super) fn at_worker(&mut self, id: ConnectionId, piece: Piece) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        if self.workers[number].connection() == Some(id) {
            return match piece {
                Piece::Bytes(bytes) => self.worker_hears(number, id, &bytes),
                Piece::End => self.worker_hears_end(number),
            };
        }
        if !self.channels.contains_key(&id) || self.has_left(id, Way::ToManager) {
            return Ok(());
        }
        match piece {
            Piece::Bytes(bytes) => {
                self.workers[number].backlog.push_back((id, bytes));
                match self.workers[number].state {
                    State::Listening => self.accept_next(number),
                    _ => Ok(()),
                }
            }
            Piece::End => self.hang_up(id, Way::ToManager),
        }
    }

    pub(super) fn worker_handshake(
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
        let (bytes, keys) = (bytes.to_vec(), KeyStore::in_ordinary_memory(1));
        let begun = match state {
            State::Handshake(_, Some(hello)) => {
                let begun = channel.answered(*hello, bytes, &keys, now, change);
                if let Err(HandshakeError::Refused(_)) = &begun {
                    let worker = &mut self.workers[number];
                    worker.state = State::Handshake(id, None);
                    let again = worker.knock_again(self.world.now, "refused");
                    return self.depart_for(number, again);
                }
                self.workers[number].knocking = Knocking::new(number as u64);
                begun.map_err(|error| error.to_string())
            }
            _ => {
                let offer = self.worker_offer(number);
                match channel.answer(bytes, offer, &keys, now, || Ok(()), change) {
                    Ok((answer, session)) => {
                        self.world.send(id, Way::ToManager, Piece::Bytes(answer))?;
                        Ok(session)
                    }
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        self.workers[number].state = State::Handshake(id, None);
        let limit = self.scenario.limits.message_bytes_max;
        let begun = begun.and_then(|mut session| {
            let machine = SlotMachine::begin(&mut session, limit);
            Ok((session, machine.map_err(|error| error.to_string())?))
        });
        match begun {
            Ok((session, machine)) => self.begin_process(number, id, session, machine),
            Err(error) => {
                self.world.check_excused(id, Node::Worker(number), &error)?;
                self.depart(number)
            }
        }
    }

    pub(super) fn begin_process(
        &mut self,
        number: usize,
        id: ConnectionId,
        session: Session,
        machine: SlotMachine,
    ) -> Result<(), Violation> {
        self.world.check_protections(id, session.protections())?;
        let scenario = &self.workers[number].scenario;
        let process = SlotProcess {
            line: Line::new(id, Way::ToManager, session),
            machine,
            passage: SerialPassage::default(),
            interpreter: Interpreter::new(
                scenario.format,
                scenario.lacks.clone(),
                self.scenario
                    .has_initializer
                    .then_some(scenario.initializer_raises),
            ),
            flush: None,
            look: None,
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
        let _ = process.line.session.0.received_end();
        self.tend_worker(number)
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
            .start(&mut process.machine, &process.passage, streams, now);
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
        let running = process.interpreter.running.as_ref();
        if running.is_some_and(|running| {
            running.part != FunctionPart::Rest && streams.poison(&running.key).is_some()
        }) {
            return self.poisoned(number);
        }
        let turn = process
            .interpreter
            .done(&mut process.machine, &process.passage, streams, now);
        let goes_on = matches!(&turn, Ok(turn) if turn.time.is_some());
        self.turn(number, turn)?;
        if goes_on { Ok(()) } else { self.work(number) }
    }

    pub(super) fn turn(
        &mut self,
        number: usize,
        turn: Result<Turn, String>,
    ) -> Result<(), Violation> {
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
            let Some(running) = &process.interpreter.running else {
                return Ok(());
            };
            if !worker.scenario.lacks.is_empty() {
                let what = format!("worker {number} lacks modules and has work");
                return self.world.broken(what);
            }
            if worker.scenario.initializer_raises {
                let what = format!("worker {number} has work though its initializer raised");
                return self.world.broken(what);
            }
            self.report.started += running.segments();
            let mut time = time * worker.slowness;
            if running.part != FunctionPart::Rest {
                self.check_serial(number)?;
                let streams = streams_of(&self.former, &self.streams, worker.manager_life);
                match streams.poison(&running.key) {
                    Some((_, Duration::ZERO)) => return self.poisoned(number),
                    Some((_, late)) => time = late,
                    None => {}
                }
            }
            let done = self.world.now + time;
            let event = Event::Done(number, worker.life);
            self.world.agenda.plan(done, event);
        }
        self.tend_worker(number)
    }

    /// What runs takes its slot down. No item may do so for ever.
    fn poisoned(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &self.workers[number];
        let restart = worker.scenario.rejoins_after;
        if let State::Up(process) = &worker.state
            && let Some(running) = &process.interpreter.running
        {
            let streams = streams_of(&self.former, &self.streams, worker.manager_life);
            let stream = streams.poison(&running.key).map_or(0, |(stream, _)| stream);
            let item = (worker.manager_life, stream, running.key.index);
            let allowed = self.scenario.config.retries + self.taken_down_spared();
            let count = self.taken_down.entry(item).or_default();
            *count += 1;
            if *count > allowed {
                let what = format!(
                    "item {} of stream {stream} has taken {count} slots down",
                    item.2
                );
                return self.world.broken(what);
            }
        }
        self.crash_worker(number, false, restart)
    }

    /// So many slots may an item take down that it is not charged with: one where others ran beside it, one copy that was on its way, and those of which
    /// something else may have been the reason.
    fn taken_down_spared(&self) -> u32 {
        let workers = self.workers.len();
        let hosts = self.scenario.workers.last().map_or(0, |last| last.host + 1);
        2 + self.scenario.faults.len() as u32 + (workers - hosts) as u32
    }

    /// A serial function runs at one slot at a time, of those that the manager has.
    pub(super) fn check_serial(&self, number: usize) -> Result<(), Violation> {
        let running_of = |number: usize| {
            let worker = &self.workers[number];
            let State::Up(process) = &worker.state else {
                return None;
            };
            let held = self.manager.sessions.get(&process.line.id)?;
            let router = self.manager.machine.router();
            router.slot_statistics(held.session.0)?;
            Some(&process.interpreter)
        };
        let running = running_of(number).and_then(|interpreter| interpreter.running.as_ref());
        let Some(running) = running else {
            return Ok(());
        };
        let (stream, segment) = (running.key.stream, running.from);
        if running.part != FunctionPart::Serial || !self.streams.has_serial(stream, segment) {
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

    /// The process leaves; another one comes after a while.
    pub(super) fn depart(&mut self, number: usize) -> Result<(), Violation> {
        let restart = self.workers[number].scenario.rejoins_after;
        self.depart_for(number, restart)
    }

    pub(super) fn depart_for(&mut self, number: usize, restart: Duration) -> Result<(), Violation> {
        let Some(id) = self.workers[number].connection() else {
            return Ok(());
        };
        self.end_process(number, restart);
        self.hang_up(id, Way::ToManager)
    }

    pub(super) fn end_process(&mut self, number: usize, restart: Duration) {
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
            if matches!(self.workers[number].state, State::Listening) {
                self.report.crashes += 1;
                self.end_process(number, restart);
            }
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

    /// The process is told to end, and leaves when nothing runs there any more.
    pub(super) fn drain(&mut self, number: usize) -> Result<(), Violation> {
        if let Some(process) = self.workers[number].process() {
            let outgoing = process.machine.leave(&process.passage);
            self.report.drained += 1;
            self.post_all(number, outgoing)?;
        }
        self.tend_worker(number)
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
pub(super) fn streams_of<'a>(
    former: &'a [Streams],
    current: &'a Streams,
    life: u32,
) -> &'a Streams {
    former.get(life as usize).unwrap_or(current)
}
