//! The machine that plays a scenario and checks every promise on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exoskel_link::SessionConfig;

use super::clock::Clock;
use super::handshake::Channel;
use super::journals::Journals;
use super::manager::SimulatedManager;
use super::report::Report;
use super::scenario::{InjectedFault, Node, Scenario};
use super::streams::Streams;
use super::wires::{ConnectionId, Way};
use super::worker::{State, Worker};
use super::world::{Event, World};
use crate::violation::Violation;

/// How often to see whether all is quiet, once nobody wants anything any more.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// How long users take to hand over the next items at most.
pub(super) const THINK_TIME: Duration = Duration::from_micros(50);

/// Results wait for so long at most before they are sent.
const FLUSH_TIME: Duration = exoskel_task::slot_queue::PENDING_TIME_MAX;

/// Time for handshakes, dead peers and late timers, besides the work itself.
const ALLOWANCE: Duration = Duration::from_secs(120);

pub(super) struct Machine {
    pub(super) scenario: Scenario,
    pub(super) world: World,
    pub(super) manager: SimulatedManager,
    pub(super) workers: Vec<Worker>,
    pub(super) streams: Streams,
    /// What those streams have on disks that go to a sink with a journal.
    pub(super) journals: Journals,
    /// Those of the manager's former processes, which nobody waits for any more.
    pub(super) former: Vec<Streams>,
    /// Connections that one end at least has not left.
    pub(super) channels: BTreeMap<ConnectionId, Channel>,
    /// Which ends have left.
    left: BTreeMap<ConnectionId, [bool; 2]>,
    /// Until when their handshakes may last.
    pub(super) patience: BTreeMap<ConnectionId, Duration>,
    /// Workers whose certificates were revoked.
    pub(super) revoked: BTreeSet<String>,
    /// Workers whose wires are worn out.
    pub(super) worn: BTreeSet<usize>,
    /// Slots that a deadly item has taken down, by the manager's process, the stream and the item.
    pub(super) taken_down: BTreeMap<(u32, u64, u64), u32>,
    pub(super) deadline: Duration,
    pub(super) calm_from: Duration,
    /// Everybody has what they wanted.
    pub(super) is_settling: bool,
    /// Since when.
    settling_from: Duration,
    /// The manager closes.
    pub(super) is_ending: bool,
    pub(super) report: Report,
}

impl Machine {
    pub(super) fn new(scenario: Scenario) -> Result<Self, Violation> {
        let mut world = World::new(&scenario);
        let streams = match Streams::new(&scenario, 0) {
            Ok(streams) => streams,
            Err(what) => return world.broken(what),
        };
        let mut clock = |drift| {
            let ahead = Duration::from_nanos(world.random.below(1 << 40));
            Clock::new(ahead, drift)
        };
        let keys = match scenario.keys.store() {
            Ok(keys) => keys,
            Err(error) => return world.broken(error.to_string()),
        };
        let manager = SimulatedManager::new(0, &scenario, clock(0), scenario.minimum, keys);
        let workers: Vec<Worker> = scenario
            .workers
            .iter()
            .map(|worker| Worker::new(worker.clone(), clock(worker.drift)))
            .collect();
        for (number, worker) in scenario.workers.iter().enumerate() {
            world.agenda.plan(worker.joins_at, Event::Join(number, 0));
        }
        let calm_from = scenario.calm_from();
        let mut machine = Self {
            world,
            manager,
            workers,
            streams,
            journals: Journals::new(&scenario),
            former: Vec::new(),
            channels: BTreeMap::new(),
            left: BTreeMap::new(),
            patience: BTreeMap::new(),
            revoked: BTreeSet::new(),
            worn: BTreeSet::new(),
            taken_down: BTreeMap::new(),
            deadline: Duration::ZERO,
            calm_from,
            is_settling: false,
            settling_from: Duration::ZERO,
            is_ending: false,
            report: Report::default(),
            scenario,
        };
        machine.deadline = calm_from + machine.allowance();
        machine.world.agenda.plan(Duration::ZERO, Event::Begin(0));
        for (number, (at, _)) in machine.scenario.faults.iter().enumerate() {
            machine.world.agenda.plan(*at, Event::InjectedFault(number));
        }
        Ok(machine)
    }

    /// The users will open their streams.
    pub(super) fn plan_openings(&mut self) {
        for (number, stream) in self.scenario.streams.iter().enumerate() {
            let event = Event::Open(number, self.manager.life);
            self.world
                .agenda
                .plan(self.world.now + stream.opens_at, event);
        }
    }

    /// How long everything may take when nothing goes wrong, amply.
    pub(super) fn allowance(&self) -> Duration {
        let (turn, slack) = (
            (self.scenario.link.latency + self.scenario.link.jitter) * 2,
            self.scenario.timer_slack,
        );
        let slowest = self.scenario.workers.iter().map(|worker| worker.slowness);
        let slowed = self.scenario.faults.iter().map(|(_, fault)| match fault {
            InjectedFault::Slow { slowness, .. } => *slowness,
            _ => 1,
        });
        let slowest = slowest.chain(slowed).max().unwrap_or(1);
        let mut work = Duration::ZERO;
        let mut bytes = 0;
        for user in &self.streams.users {
            let stream = &user.scenario;
            let once =
                (0..stream.items).map(|index| stream.service.time(self.scenario.seed, index));
            work += once.sum::<Duration>() * user.functions_passed() * slowest;
            work += stream.take_time * stream.items as u32 + stream.opens_at;
            // One by one, each announced, granted and flushed in each segment.
            let segments = user.segments_passed() * stream.items as u32;
            work += (turn * 2 + slack + FLUSH_TIME) * segments;
            // Between segments a token comes back and goes out again.
            let passes = 2 * u64::from(user.segments_passed());
            bytes += stream.items * (stream.input_bytes_max + passes * stream.result_bytes_max);
        }
        let link = &self.scenario.link;
        let round_trip = (link.latency + link.jitter) * 2;
        let by_window = self.scenario.wire_bytes_max as f64 / round_trip.as_secs_f64().max(1e-6);
        let passing = bytes as f64 / by_window.min(link.bytes_per_second.max(1) as f64);
        ALLOWANCE + work * 4 + Duration::from_secs_f64(passing * 8.0)
    }

    pub(super) fn run(mut self) -> Result<Report, Violation> {
        while !self.is_over() {
            self.step()?;
        }
        self.check_history()?;
        let given_up = |number: usize| self.streams.users[number].is_given_up;
        if let Err(what) = self.journals.check(given_up) {
            return self.world.broken(what);
        }
        self.report.steps = self.world.steps;
        self.report.digest = self.world.digest.value();
        self.report.ended_at = self.world.now;
        self.report.tokens_seen = self.world.tokens_seen;
        let workers = self.manager.machine.report();
        self.report.stragglers = workers.iter().map(|worker| worker.stragglers).sum();
        let users = &self.streams.users;
        self.report.outcomes = users.iter().map(|user| user.outcomes()).sum();
        self.report.refused = users.iter().map(|user| user.refused()).sum();
        self.report.exhausted = users.iter().map(|user| user.exhausted()).sum();
        self.report.overdue = users.iter().map(|user| user.overdue()).sum();
        self.report.too_large = users.iter().map(|user| user.too_large()).sum();
        self.report.unsent = users.iter().map(|user| user.unsent()).sum();
        self.report.cancelled = users.iter().map(|user| user.taken_back()).sum();
        self.report.left = users.iter().map(|user| user.left()).sum();
        Ok(self.report)
    }

    fn is_over(&self) -> bool {
        let is_down = |worker: &Worker| matches!(worker.state, State::Down | State::Listening);
        self.is_ending && self.channels.is_empty() && self.workers.iter().all(is_down)
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some((now, event)) = self.world.agenda.next() else {
            return self.world.broken("standstill".to_owned());
        };
        self.world.now = now;
        if self.world.steps == self.scenario.steps_max {
            return self
                .world
                .broken("no end within the steps allowed".to_owned());
        }
        if now > self.deadline {
            let stand: Vec<String> = self
                .streams
                .users
                .iter()
                .map(|user| {
                    format!(
                        "{} of {} items handed over, {} outcomes, {} taken",
                        user.handed,
                        user.scenario.items,
                        user.outcomes(),
                        user.taken
                    )
                })
                .collect();
            return self.world.broken(format!(
                "no progress since the faults stopped: {}; {} connections open",
                stand.join("; "),
                self.channels.len()
            ));
        }
        self.world.record(&event);
        let is_workers = is_workers(&event);
        if let Some(event) = self.defer(event) {
            self.happen(event)?;
        }
        // What only a worker knows wakes no manager.
        if is_workers || self.manager.is_held || self.manager.is_down {
            return Ok(());
        }
        self.manage()
    }

    /// Nothing happens at a node that stands still; it comes later.
    fn defer(&mut self, event: Event) -> Option<Event> {
        let worker_of = |id: &ConnectionId| self.world.wires.worker(*id).map(Node::Worker);
        let node = match &event {
            Event::Arrive(..)
            | Event::Unpile(..)
            | Event::InjectedFault(_)
            | Event::Impatience(_)
            | Event::Spoil(_)
            | Event::Begin(_) => None,
            Event::Broken(id, Way::ToWorker)
            | Event::Writable(id, Way::ToManager)
            | Event::Timer(id, Way::ToManager) => worker_of(id),
            Event::Join(worker, _)
            | Event::Done(worker, _)
            | Event::Flush(worker, _)
            | Event::Look(worker, _) => Some(Node::Worker(*worker)),
            Event::Broken(..)
            | Event::Writable(..)
            | Event::Timer(..)
            | Event::Wake
            | Event::Open(..)
            | Event::Admit(..)
            | Event::Take(..)
            | Event::Commit(..)
            | Event::Settle => Some(Node::Manager),
        };
        let (is_held, deferred) = match node {
            None => return Some(event),
            Some(Node::Manager) => (self.manager.is_held, &mut self.manager.deferred),
            Some(Node::Worker(number)) => {
                let worker = &mut self.workers[number];
                (worker.is_held, &mut worker.deferred)
            }
        };
        if !is_held {
            return Some(event);
        }
        deferred.push(event);
        None
    }

    fn is_held(&self, id: ConnectionId, way: Way) -> bool {
        match way {
            Way::ToManager => self.manager.is_held,
            Way::ToWorker => self
                .world
                .wires
                .worker(id)
                .is_some_and(|worker| self.workers[worker].is_held),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive(id, way, piece) => {
                if self.is_held(id, way) {
                    // Its socket has it; it is read when the node goes on.
                    self.world.wires.keep(id, way, piece);
                    return Ok(());
                }
                match (self.world.arrive(id, way, piece), way) {
                    (Some(piece), Way::ToManager) => self.at_manager(id, piece),
                    (Some(piece), Way::ToWorker) => self.at_worker(id, piece),
                    (None, _) => Ok(()),
                }
            }
            Event::Unpile(id, way) => {
                while !self.is_held(id, way)
                    && let Some(piece) = self.world.unpile(id, way)
                {
                    match way {
                        Way::ToManager => self.at_manager(id, piece)?,
                        Way::ToWorker => self.at_worker(id, piece)?,
                    }
                }
                Ok(())
            }
            Event::Broken(id, Way::ToManager) => self.hear_end(id),
            Event::Broken(id, Way::ToWorker) => match self.world.wires.worker(id) {
                Some(worker) if self.workers[worker].connection() == Some(id) => {
                    self.worker_hears_end(worker)
                }
                _ => Ok(()),
            },
            Event::Writable(id, Way::ToWorker) => {
                self.stir_manager(id);
                Ok(())
            }
            Event::Writable(id, Way::ToManager) => match self.world.wires.worker(id) {
                Some(worker) if self.workers[worker].connection() == Some(id) => {
                    self.tend_worker(worker)
                }
                _ => Ok(()),
            },
            Event::Timer(id, Way::ToWorker) => {
                self.manager_timer(id);
                Ok(())
            }
            Event::Timer(id, Way::ToManager) => self.worker_timer(id),
            Event::Impatience(id) => self.impatience(id),
            Event::Spoil(id) => {
                self.spoil(id);
                Ok(())
            }
            Event::Join(worker, life) => self.join(worker, life),
            Event::Done(worker, life) => self.done(worker, life),
            Event::Flush(worker, life) => self.flush(worker, life),
            Event::Look(worker, life) => self.look(worker, life),
            Event::Wake => {
                self.woken();
                Ok(())
            }
            Event::Open(stream, life) if life == self.manager.life => self.open(stream),
            Event::Admit(stream, life) if life == self.manager.life => self.admit(stream),
            Event::Take(stream, life) if life == self.manager.life => self.take(stream),
            Event::Commit(stream, life) if life == self.manager.life => self.commit(stream),
            // Users that are gone.
            Event::Open(..) | Event::Admit(..) | Event::Take(..) | Event::Commit(..) => Ok(()),
            Event::Begin(life) => {
                self.begin_manager(life);
                Ok(())
            }
            Event::InjectedFault(number) => self.fault(number),
            Event::Settle => self.settle(),
        }
    }

    /// Whether the end that writes this way has left the connection.
    pub(super) fn has_left(&self, id: ConnectionId, way: Way) -> bool {
        self.left.get(&id).is_some_and(|left| left[way as usize])
    }

    /// One end leaves a connection.
    pub(super) fn hang_up(&mut self, id: ConnectionId, way: Way) -> Result<(), Violation> {
        let left = self.left.entry(id).or_default();
        left[way as usize] = true;
        let both = *left == [true; 2];
        self.world.send(id, way, super::wires::Piece::End)?;
        if both {
            self.left.remove(&id);
            self.channels.remove(&id);
            self.patience.remove(&id);
            self.world.forget(id);
        }
        Ok(())
    }

    /// What each side decides alone of its session.
    pub(super) fn session_change(&self) -> impl FnOnce(&mut SessionConfig) + use<> {
        let (epoch, segment_bytes) = (self.scenario.epoch, self.scenario.segment_bytes);
        move |config| {
            config.epoch = epoch;
            config.segment_bytes = segment_bytes;
        }
    }

    fn open(&mut self, number: usize) -> Result<(), Violation> {
        if self.streams.users[number].is_closed || !self.begin_run(number)? {
            return Ok(());
        }
        let now = self.manager.clock.shows(self.world.now);
        let user = &mut self.streams.users[number];
        user.is_open = true;
        let is_empty = user.scenario.items == 0;
        user.input_ended |= is_empty;
        let plan = user.plan(number as u64);
        let lines = 0..user.program.lines();
        let opened = lines.map(|line| (number, line));
        self.streams.opened.extend(opened);
        let opened = self.manager.machine.open(number as u64, plan, now);
        if is_empty {
            self.manager.machine.end_of_input(number as u64, now);
        }
        opened.or_else(|error| self.world.broken(error.to_string()))
    }

    fn admit(&mut self, number: usize) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let user = &mut self.streams.users[number];
        user.admit_planned = false;
        let stream = number as u64;
        let most = user.may_admit().min(user.scenario.batch_max);
        if user.is_closed || most == 0 {
            return Ok(());
        }
        let count = 1 + self.world.random.below(most);
        let batch = user.batch(stream, count);
        self.manager.machine.admit(stream, batch, now);
        if user.handed == user.scenario.items && !user.scenario.unbounded {
            user.input_ended = true;
            self.manager.machine.end_of_input(stream, now);
        }
        for _ in 0..count {
            let one_in = user.scenario.cancels_one_in;
            if one_in == 0 || self.world.random.below(one_in) > 0 {
                continue;
            }
            let index = self.world.random.below(user.handed);
            if self.manager.machine.cancel(stream, index, now)
                && let Err(what) = user.cancelled(index)
            {
                return self.world.broken(what);
            }
        }
        Ok(())
    }

    fn take(&mut self, number: usize) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let user = &mut self.streams.users[number];
        user.take_planned = false;
        if user.is_closed {
            return Ok(());
        }
        if let Some((first, count)) = user.take() {
            self.manager.machine.taken(number as u64, first, count, now);
            if !self.hand_to_run(number, first, count)? {
                return Ok(());
            }
            let user = &mut self.streams.users[number];
            let busy = user.scenario.take_time * count;
            if user.has_outcomes() || !busy.is_zero() {
                user.take_planned = true;
                let event = Event::Take(number, self.manager.life);
                self.world.agenda.plan(self.world.now + busy, event);
            }
        }
        Ok(())
    }

    /// Users look at what there is for them.
    pub(super) fn serve_users(&mut self) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        for opening in self.manager.machine.openings() {
            self.streams.users[opening.stream as usize].admissible = opening.admissible;
        }
        let mut all_closed = true;
        for (number, user) in self.streams.users.iter_mut().enumerate() {
            if user.is_closed {
                continue;
            }
            all_closed = false;
            if !user.is_open {
                continue;
            }
            if user.is_done() {
                match user.check_all() {
                    Ok(judged) => {
                        self.report.unjudged += u64::from(!judged && !user.commit_planned);
                    }
                    Err(what) => return self.world.broken(format!("stream {number}: {what}")),
                }
                if self.journals.is_open(number) {
                    if !user.commit_planned {
                        user.commit_planned = true;
                        let event = Event::Commit(number, self.manager.life);
                        self.world.agenda.plan(self.world.now, event);
                    }
                    continue;
                }
                user.is_closed = true;
                self.manager.machine.close_stream(number as u64, now);
                // Slots that know the stream are told in the next turn.
                self.world.agenda.plan(self.world.now, Event::Wake);
                continue;
            }
            if user.may_admit() > 0 && !user.admit_planned {
                user.admit_planned = true;
                let think = self.world.random.between(Duration::ZERO, THINK_TIME);
                let event = Event::Admit(number, self.manager.life);
                self.world.agenda.plan(self.world.now + think, event);
            }
            if user.has_outcomes() && !user.take_planned {
                user.take_planned = true;
                let event = Event::Take(number, self.manager.life);
                self.world.agenda.plan(self.world.now, event);
            }
        }
        if all_closed && !self.is_settling {
            self.is_settling = true;
            self.settling_from = self.world.now;
            self.deadline = self.world.now.max(self.calm_from) + self.allowance();
            self.world.agenda.plan(self.world.now, Event::Settle);
        }
        Ok(())
    }

    /// When nothing is left to do anywhere, the manager closes all sessions.
    fn settle(&mut self) -> Result<(), Violation> {
        if self.is_ending {
            return Ok(());
        }
        let outstanding = self.manager.sessions.values().any(|held| {
            let router = self.manager.machine.router();
            let statistics = router.slot_statistics(held.session.0);
            statistics.is_some_and(|statistics| statistics.outstanding > 0)
                || held.line.session.0.queued_bytes() > 0
        });
        // Who waits to be called may do so for ever.
        let is_waiting = |number: usize, worker: &Worker| {
            let id = worker.connection();
            id.is_some_and(|id| self.waits_in_order(number, id))
        };
        let mut workers = self.workers.iter().enumerate();
        let is_quiet = self.world.now > self.calm_from
            && !outstanding
            && workers.all(|(number, worker)| worker.is_quiet() || is_waiting(number, worker));
        if !is_quiet || !self.is_full(self.calm_from.max(self.settling_from))? {
            let again = self.world.now + SETTLE_TIME;
            self.world.agenda.plan(again, Event::Settle);
            return Ok(());
        }
        self.is_ending = true;
        self.manager.machine.close();
        Ok(())
    }
}

/// Whether something happens at a worker, and nowhere else.
fn is_workers(event: &Event) -> bool {
    match event {
        Event::Arrive(_, way, _) | Event::Unpile(_, way) | Event::Broken(_, way) => {
            *way == Way::ToWorker
        }
        Event::Writable(_, way) | Event::Timer(_, way) => *way == Way::ToManager,
        Event::Done(..) | Event::Flush(..) | Event::Look(..) | Event::Join(..) => true,
        _ => false,
    }
}
