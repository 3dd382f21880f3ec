//! What all nodes live in: time, the wires, chance, and the eye that watches the wires.

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_link::{Protection, Protections};

use super::content;
use super::scenario::{Node, Scenario};
use super::wires::{ConnectionId, Piece, Way, Wires};
use crate::agenda::Agenda;
use crate::violation::Violation;
use exoskel_determinism::{RunDigest, SplitMix64};

/// What can happen.
#[derive(Debug)]
pub(super) enum Event {
    /// Something comes to the end of a wire.
    Arrive(ConnectionId, Way, Piece),
    /// What waited for the end of a partition comes.
    Unpile(ConnectionId, Way),
    /// The connection broke: whoever reads this way is told.
    Broken(ConnectionId, Way),
    /// There is room again for who writes this way.
    Writable(ConnectionId, Way),
    /// The session of who writes this way wants to know the time.
    Timer(ConnectionId, Way),
    /// A handshake has taken too long.
    Impatience(ConnectionId),
    /// A bit of what comes next over a worn wire is another.
    Spoil(ConnectionId),
    /// A worker begins its next life.
    Join(usize, u32),
    /// What a worker's process ran is done.
    Done(usize, u32),
    /// Results have waited for long enough.
    Flush(usize, u32),
    /// What runs may be overdue.
    Look(usize, u32),
    /// The router wants to know the time.
    Wake,
    /// A user of this process of the manager opens its stream.
    Open(usize, u32),
    /// One hands items over.
    Admit(usize, u32),
    /// One takes outcomes.
    Take(usize, u32),
    /// One commits what has waited for long enough, or the end of its run.
    Commit(usize, u32),
    /// The manager's process of this number begins.
    Begin(u32),
    /// A fault of the scenario.
    InjectedFault(usize),
    /// Time to see whether all is quiet.
    Settle,
}

/// What the eye on a wire knows.
#[derive(Clone, Copy, Debug)]
struct Watched {
    expected: Protections,
    /// A fault explains whatever error its sessions meet.
    excused: bool,
    /// The next bytes this way are altered.
    alter: Option<Way>,
    /// A change of protections is under way or has been.
    changing: bool,
}

/// Everything around the nodes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) agenda: Agenda<Event>,
    pub(super) wires: Wires,
    pub(super) random: SplitMix64,
    pub(super) digest: RunDigest,
    pub(super) steps: u64,
    pub(super) tokens_seen: u64,
    slack: Duration,
    latency: Duration,
    seed: u64,
    watched: BTreeMap<ConnectionId, Watched>,
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut random = SplitMix64::new(scenario.seed);
        let seed = random.next_u64();
        Self {
            now: Duration::ZERO,
            agenda: Agenda::new(),
            wires: Wires::new(
                scenario.link.clone(),
                scenario.wire_bytes_max,
                scenario.workers.len(),
                seed,
            ),
            random,
            digest: RunDigest::default(),
            steps: 0,
            tokens_seen: 0,
            slack: scenario.timer_slack,
            latency: scenario.link.latency,
            seed: scenario.seed,
            watched: BTreeMap::new(),
        }
    }

    pub(super) fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.seed,
            step: self.steps,
            at: self.now,
            what,
        })
    }

    /// A new connection, whose sessions must have these protections.
    pub(super) fn connect(&mut self, worker: usize, expected: Protections) -> ConnectionId {
        let id = self.wires.connect(worker);
        let watched = Watched {
            expected,
            excused: false,
            alter: None,
            changing: false,
        };
        self.watched.insert(id, watched);
        id
    }

    /// Both ends have left.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.wires.forget(id);
        self.watched.remove(&id);
    }

    pub(super) fn excuse(&mut self, id: ConnectionId) {
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.excused = true;
        }
    }

    pub(super) fn alter(&mut self, id: ConnectionId, way: Way) {
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.alter = Some(way);
            watched.excused = true;
        }
    }

    /// The manager raises protections of running sessions.
    pub(super) fn raise(&mut self, id: ConnectionId) {
        if let Some(watched) = self.watched.get_mut(&id) {
            watched.changing = true;
        }
    }

    /// An error needs a fault that explains it.
    pub(super) fn check_excused(
        &self,
        id: ConnectionId,
        node: Node,
        error: &dyn std::fmt::Display,
    ) -> Result<(), Violation> {
        let excused = self.watched.get(&id).is_none_or(|watched| watched.excused);
        if excused {
            return Ok(());
        }
        self.broken(format!(
            "{node:?} met an error on connection {}, which no fault explains: {error}",
            id.0
        ))
    }

    /// A session has begun: it must have what both policies demand.
    pub(super) fn check_protections(
        &self,
        id: ConnectionId,
        got: Protections,
    ) -> Result<(), Violation> {
        match self.watched.get(&id) {
            Some(watched) if got != watched.expected && !watched.changing && !watched.excused => {
                let expected = watched.expected;
                self.broken(format!("a session has {got}, expected {expected}"))
            }
            _ => Ok(()),
        }
    }

    /// Sends something over a wire.
    ///
    /// # Errors
    /// When it shows what must be encrypted.
    pub(super) fn send(
        &mut self,
        id: ConnectionId,
        way: Way,
        piece: Piece,
    ) -> Result<(), Violation> {
        if let Piece::Bytes(bytes) = &piece {
            let (token, code) = content::shown(bytes);
            self.tokens_seen += u64::from(token);
            if let Some(watched) = self.watched.get(&id).filter(|watched| !watched.changing) {
                let is_secret = |protection| protection == Protection::Encrypted;
                if token && is_secret(watched.expected.data)
                    || code && is_secret(watched.expected.code)
                {
                    return self.broken(format!("connection {} shows what it must encrypt", id.0));
                }
            }
        }
        if let Some(at) = self.wires.send(id, way, &piece, self.now) {
            self.agenda.plan(at, Event::Arrive(id, way, piece));
        }
        Ok(())
    }

    /// Something has come to the end of its wire; says what the reader gets.
    pub(super) fn arrive(&mut self, id: ConnectionId, way: Way, piece: Piece) -> Option<Piece> {
        let piece = self.wires.arrive(id, way, piece)?;
        Some(self.touch(id, way, piece))
    }

    /// The same for what had waited for the end of a partition.
    pub(super) fn unpile(&mut self, id: ConnectionId, way: Way) -> Option<Piece> {
        let piece = self.wires.unpile(id, way)?;
        Some(self.touch(id, way, piece))
    }

    fn touch(&mut self, id: ConnectionId, way: Way, mut piece: Piece) -> Piece {
        let Piece::Bytes(bytes) = &mut piece else {
            return piece;
        };
        if let Some(watched) = self.watched.get_mut(&id)
            && watched.alter == Some(way)
        {
            watched.alter = None;
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.digest.bytes(bytes);
        if self.wires.read(id, way, bytes.len()) {
            self.agenda
                .plan(self.now + self.latency, Event::Writable(id, way));
        }
        piece
    }

    /// The connection breaks, and what is on the way is lost.
    pub(super) fn cut(&mut self, id: ConnectionId, told: &[Way]) {
        self.excuse(id);
        self.wires.kill(id);
        for way in told {
            let late = self.random.between(Duration::ZERO, self.latency * 2);
            self.agenda.plan(self.now + late, Event::Broken(id, *way));
        }
    }

    /// Plans a timer for this time; it may be late.
    pub(super) fn plan_timer(&mut self, at: Duration, event: Event) -> Duration {
        let late = self.random.between(Duration::ZERO, self.slack);
        let at = at.max(self.now) + late;
        self.agenda.plan(at, event);
        at
    }

    /// Every event counts for the digest.
    pub(super) fn record(&mut self, event: &Event) {
        let (kind, one, two) = match event {
            Event::Arrive(id, way, _) => (1, u64::from(id.0), *way as u64),
            Event::Unpile(id, way) => (2, u64::from(id.0), *way as u64),
            Event::Broken(id, way) => (3, u64::from(id.0), *way as u64),
            Event::Writable(id, way) => (4, u64::from(id.0), *way as u64),
            Event::Timer(id, way) => (5, u64::from(id.0), *way as u64),
            Event::Impatience(id) => (7, u64::from(id.0), 0),
            Event::Spoil(id) => (8, u64::from(id.0), 0),
            Event::Join(worker, life) => (9, *worker as u64, u64::from(*life)),
            Event::Done(worker, life) => (10, *worker as u64, u64::from(*life)),
            Event::Flush(worker, life) => (11, *worker as u64, u64::from(*life)),
            Event::Wake => (12, 0, 0),
            Event::Open(stream, life) => (13, *stream as u64, u64::from(*life)),
            Event::Admit(stream, life) => (14, *stream as u64, u64::from(*life)),
            Event::Take(stream, life) => (15, *stream as u64, u64::from(*life)),
            Event::Commit(stream, life) => (20, *stream as u64, u64::from(*life)),
            Event::InjectedFault(number) => (16, *number as u64, 0),
            Event::Settle => (17, 0, 0),
            Event::Begin(life) => (18, u64::from(*life), 0),
            Event::Look(worker, life) => (19, *worker as u64, u64::from(*life)),
        };
        for word in [self.now.as_nanos() as u64, kind, one, two] {
            self.digest.word(word);
        }
        self.steps += 1;
    }
}

#[cfg(test)]
mod tests {
    use exoskel_link::handshake::HelloSent;
    use exoskel_link::{Endpoint, Message, MessageKind, Session, TrafficClass};
    use exoskel_meaning::meaning::Data;
    use exoskel_task::message::{CODE_ENDPOINT, CODE_HANDLERS, TASK_ENDPOINT, TASK_HANDLERS};

    use super::super::clock::Clock;
    use super::super::content::{Sizes, Token, What, function};
    use super::super::handshake::{self, Channel, path};
    use super::super::line::Line;
    use super::*;

    const ENCRYPTED: Protections = Protections {
        control: Protection::Encrypted,
        code: Protection::Encrypted,
        data: Protection::Encrypted,
    };

    /// The manager's and a worker's real sessions, of this strength.
    fn sessions(minimum: Protections, scenario: &Scenario) -> (Session, Session) {
        let mut random = SplitMix64::new(3);
        let channel = Channel::new(handshake::worker(0), handshake::manager(), &mut random);
        let offer = |identity, is_worker| {
            let (ciphers, path) = (scenario.ciphers.clone(), path(0, is_worker, false));
            handshake::offer(scenario, identity, minimum, ciphers, path, 1)
        };
        let keys = scenario.keys.store().unwrap();
        let hello = HelloSent::new(offer(handshake::worker(0), true)).unwrap();
        let (said, own) = (hello.bytes().to_vec(), offer(handshake::manager(), false));
        let answer = channel.answer(said, own, &keys, Duration::ZERO, || Ok(()), |_| ());
        let (answer, manager) = answer.unwrap();
        let worker = channel.answered(hello, answer, &keys, Duration::ZERO, |_| ());
        let worker = worker.unwrap();
        assert_eq!(manager.protections(), minimum);
        (manager, worker)
    }

    /// Sends a token as data and a function as code, both ends real, over a wire whose sessions are taken to have what is expected.
    fn send_over(actual: Protections, expected: Protections) -> Result<u64, Violation> {
        let scenario = Scenario::from_seed(1);
        let mut world = World::new(&scenario);
        let id = world.connect(0, expected);
        let (mut manager, mut worker) = sessions(actual, &scenario);
        worker
            .offer(Endpoint::new(TASK_ENDPOINT, TASK_HANDLERS))
            .unwrap();
        worker
            .offer(Endpoint::new(CODE_ENDPOINT, CODE_HANDLERS))
            .unwrap();
        let tasks = manager
            .open_link(TASK_ENDPOINT, TrafficClass::Data)
            .unwrap();
        let code = manager
            .open_link(CODE_ENDPOINT, TrafficClass::Code)
            .unwrap();
        let token = Token {
            life: 0,
            stream: 0,
            touched: false,
            what: What::Item(Data::Number(1)),
        };
        let (pickle, bulk) = token.contents(Sizes {
            seed: 1,
            input_bytes_max: 1 << 16,
            result_bytes_max: 1,
            has_bulk: true,
        });
        let clock = Clock::new(Duration::ZERO, 0);
        let mut lines = [
            Line::new(id, Way::ToWorker, manager),
            Line::new(id, Way::ToManager, worker),
        ];
        let function = function(0, 0).pickle.to_vec();
        for (link, head, bulk) in [(tasks, pickle, bulk), (code, function, Vec::new())] {
            let message = Message {
                handler: 1,
                kind: MessageKind::Post,
                head: head.into(),
                bulk,
                is_gathered: false,
            };
            lines[0].session.0.send(link, message).unwrap();
        }
        for line in &mut lines {
            line.write(&mut world, clock)?;
        }
        let mut messages = 0;
        while let Some((now, event)) = world.agenda.next() {
            world.now = now;
            let (way, piece) = match event {
                Event::Arrive(id, way, piece) => (way, world.arrive(id, way, piece)),
                _ => continue,
            };
            let Some(Piece::Bytes(bytes)) = piece else {
                continue;
            };
            let reader = &mut lines[usize::from(way == Way::ToWorker)];
            let (events, result) = reader.receive(&bytes, now);
            result.unwrap();
            let is_message =
                |event: &exoskel_link::Event| matches!(event, exoskel_link::Event::Message { .. });
            messages += events.iter().filter(|event| is_message(event)).count();
            for line in &mut lines {
                line.write(&mut world, clock)?;
            }
        }
        assert_eq!(messages, 2, "both have come");
        Ok(world.tokens_seen)
    }

    /// Aim: the eye on the wires sees by itself, behind the check of what sessions say they have. Method: real sessions, weaker than the
    /// wire is said to be, in data or in code only.
    #[test]
    fn the_eye_sees_what_a_session_shows() {
        let shows = |result: Result<u64, Violation>| {
            result.is_err_and(|violation| violation.what.contains("shows what it must encrypt"))
        };
        for weak in [Protection::Plain, Protection::Integrity] {
            let data = Protections {
                data: weak,
                ..ENCRYPTED
            };
            assert!(shows(send_over(data, ENCRYPTED)), "{weak:?} data");
            assert!(
                matches!(send_over(data, data), Ok(1..)),
                "allowed, and seen"
            );
        }
        let code = Protections {
            code: Protection::Integrity,
            ..ENCRYPTED
        };
        assert!(shows(send_over(code, ENCRYPTED)), "code in clear");
        assert_eq!(send_over(code, code), Ok(0), "allowed");
        assert_eq!(send_over(ENCRYPTED, ENCRYPTED), Ok(0), "nothing to see");
    }
}
