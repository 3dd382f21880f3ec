//! What is promised of workers that come, go, are of no use or no longer allowed; checked by what was seen on the way to
//! and from the manager, and not by what its machine says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_flow::Departure;
use exoskel_flow::contract::PlannerSettings;
use exoskel_identity::Identity;
use exoskel_link::handshake::{Refuse, RefuseReason};
use exoskel_link::{CloseReason, Ended, Event as LinkEvent, Protection, Protections};
use exoskel_node::SessionId;
use exoskel_node::knocking;
use exoskel_node::manager::JoinError;
use exoskel_node::manager::backoff::PAUSE_MAX;
use exoskel_node::manager::breaks::{BREAKS_MAX, departure_of};
use exoskel_node::manager::history::ChangeKind;
use exoskel_node::manager::initializers;
use exoskel_node::manager::notice::Unwanted;
use exoskel_node::manager::recruiter::{Prospect, SlotSource};
use exoskel_task::message::ToManager;
use exoskel_task::outcome::{Contents, Outcomes};
use exoskel_task::payload::Format;

use super::at_worker::HANDSHAKE_TIME;
use super::handshake;
use super::known_workers::BreaksSeen;
use super::machine::Machine;
use super::manager::SlotSession;
use super::scenario::{Node, Scenario};
use super::wires::{ConnectionId, Way};
use super::worker::State;
use super::world::Event;
use crate::violation::Violation;

/// For restarts of workers, and for refusals while a lost slot still has its place.
const SLACK_TIME: Duration = Duration::from_secs(2);

/// How long a connection over a worn wire is good at most.
const WEAR_TIME: Duration = Duration::from_millis(20);

impl Scenario {
    /// Who a slot's worker is. Slots of one worker have the same name.
    pub(super) fn identity(&self, worker: usize) -> Identity {
        handshake::worker(self.workers[worker].host)
    }

    pub(super) fn name(&self, worker: usize) -> String {
        self.identity(worker).name
    }

    /// Whether its results may be pickles.
    pub(super) fn is_trusted(&self, worker: usize) -> bool {
        self.workers[worker].format == Format::Pickle
    }
}

impl Machine {
    /// Whether the worker's certificate has been revoked.
    pub(super) fn is_barred(&self, worker: usize) -> bool {
        self.revoked.contains(&self.scenario.name(worker))
    }

    /// A worker's certificate is revoked: the manager judges its sessions again.
    pub(super) fn revoke(&mut self, worker: usize) {
        let name = self.scenario.name(worker);
        self.revoked.insert(name);
        self.report.revoked += 1;
        let barred: BTreeMap<SessionId, ConnectionId> = self
            .manager
            .sessions
            .iter()
            .filter(|(_, held)| self.is_barred(held.worker))
            .map(|(id, held)| (held.session, *id))
            .collect();
        for id in barred.values() {
            self.world.excuse(*id);
        }
        let judge = |session: SessionId| match barred.contains_key(&session) {
            true => Err("its certificate was revoked"),
            false => Ok(()),
        };
        self.manager.machine.judge_again(judge);
    }

    /// The manager refuses nobody without a reason.
    pub(super) fn check_refusal(
        &mut self,
        id: ConnectionId,
        worker: usize,
        refuse: &Refuse,
    ) -> Result<(), Violation> {
        self.report.turned_away += 1;
        let is_due = match refuse.reason {
            RefuseReason::Busy => true,
            _ => self.is_barred(worker) || self.is_outcast(worker),
        };
        if is_due {
            return Ok(());
        }
        let why = format!("worker {worker} is refused: {}", refuse.text.sentence());
        self.world.check_excused(id, Node::Manager, &why)
    }

    /// Whether the manager has been told enough to do without this worker.
    fn is_outcast(&self, worker: usize) -> bool {
        let name = &self.scenario.name(worker);
        let known = &self.manager.known;
        let broken = known.broken.get(name);
        known.unfit.contains(name) || broken.is_some_and(|broken| broken.altogether >= BREAKS_MAX)
    }

    /// Whether it must do without, whatever else there is.
    fn must_do_without(&self, worker: usize) -> Option<&'static str> {
        let name = &self.scenario.name(worker);
        let broken = self.manager.known.broken.get(name);
        if self.is_barred(worker) {
            Some("whose certificate was revoked")
        } else if self.manager.known.unfit.contains(name) {
            Some("which can't run the programs")
        } else if broken.is_some_and(|broken| broken.in_a_row >= BREAKS_MAX) {
            Some("which broke its sessions again and again")
        } else {
            None
        }
    }

    /// Who is of no use, or failed for good, is not asked again.
    pub(super) fn check_dial(&self, worker: usize) -> Result<(), Violation> {
        if self.manager.known.hopeless.contains(&worker) {
            let what = format!("worker {worker} is asked again though that can't end better");
            return self.world.broken(what);
        }
        match self.must_do_without(worker) {
            // The manager's machine finds out when it verifies.
            Some(why) if !self.is_barred(worker) => {
                let what = format!("worker {worker}, {why}, is asked again");
                self.world.broken(what)
            }
            _ => Ok(()),
        }
    }

    /// A session has begun.
    pub(super) fn check_joined(
        &mut self,
        id: ConnectionId,
        worker: usize,
        protections: Protections,
    ) -> Result<(), Violation> {
        // What is altered on a plain wire is nobody's promise.
        if self.worn.contains(&worker) && protections.data != Protection::Plain {
            let late = self.world.random.between(Duration::ZERO, WEAR_TIME);
            let at = self.world.now + late;
            self.world.agenda.plan(at, Event::Spoil(id));
        }
        self.must_do_without(worker).map_or(Ok(()), |why| {
            let what = format!("worker {worker}, {why}, has a session");
            self.world.broken(what)
        })
    }

    /// A session that was made is of no use.
    pub(super) fn check_refused(
        &self,
        id: ConnectionId,
        worker: usize,
        error: &JoinError,
    ) -> Result<(), Violation> {
        match error {
            JoinError::Unwanted(Unwanted::OverCost) if self.may_cost_too_much(worker) => Ok(()),
            JoinError::Unwanted(_) if self.is_outcast(worker) => Ok(()),
            JoinError::Unwanted(error) => self
                .world
                .broken(format!("worker {worker} was not let in: {error}")),
            // What it said of itself may have been altered.
            error => self.world.check_excused(id, Node::Manager, error),
        }
    }

    /// The manager's machine does without a worker.
    pub(super) fn check_unwanted(&mut self, name: &str, why: &Unwanted) -> Result<(), Violation> {
        let known = &self.manager.known;
        let is_due = match why {
            Unwanted::Lacks(_) => known.unfit.contains(name),
            Unwanted::Uninitialized(_) => known.uninitialized.contains_key(name),
            // Only children, which nobody plays here.
            Unwanted::LostEarly(..) | Unwanted::Refuses(_) => false,
            Unwanted::OverCost => {
                let contract = self.scenario.contract.as_ref();
                contract.is_some_and(|contract| contract.remote_max.is_some())
            }
            Unwanted::SetAside(_) => known
                .broken
                .get(name)
                .is_some_and(|broken| broken.altogether >= BREAKS_MAX),
        };
        match why {
            Unwanted::Lacks(_) | Unwanted::Uninitialized(_) => self.report.unfit += 1,
            Unwanted::LostEarly(..) | Unwanted::Refuses(_) | Unwanted::OverCost => {}
            Unwanted::SetAside(_) => self.report.set_aside += 1,
        }
        if is_due {
            return Ok(());
        }
        self.world.broken(format!("{name} {why}"))
    }

    /// The manager's machine ends a session at once.
    pub(super) fn check_abort(
        &self,
        session: SessionId,
        reason: &CloseReason,
    ) -> Result<(), Violation> {
        let id = self.manager.connections.get(&session);
        let held = id.and_then(|id| Some((*id, self.manager.sessions.get(id)?)));
        match (held, reason) {
            (Some((_, held)), CloseReason::NotAllowed(_)) if self.is_barred(held.worker) => Ok(()),
            // Everybody here keeps to the rules.
            (Some((id, _)), reason) => self.world.check_excused(id, Node::Manager, reason),
            (None, _) => Ok(()),
        }
    }

    /// Something has come by a session, before the machine has it.
    pub(super) fn note_event(
        &mut self,
        id: ConnectionId,
        event: &LinkEvent,
    ) -> Result<(), Violation> {
        let worker = self.manager.sessions.get(&id).map(|held| held.worker);
        let (Some(worker), LinkEvent::Message { handler, head, .. }) = (worker, event) else {
            return match event {
                LinkEvent::LinkRefused { reason, .. } => {
                    self.world.broken(format!("a link was refused: {reason}"))
                }
                _ => Ok(()),
            };
        };
        if self.is_barred(worker) {
            let what = format!("worker {worker}, whose certificate was revoked, is heard");
            return self.world.broken(what);
        }
        match ToManager::decode(*handler, head.clone()) {
            Ok(ToManager::Ready { lacks }) if !lacks.is_empty() => {
                let name = self.scenario.name(worker);
                self.manager.known.unfit.insert(name);
            }
            Ok(ToManager::Initialized { error }) if !error.is_empty() => {
                let name = self.scenario.name(worker);
                let known = &mut self.manager.known;
                let raised = known.uninitialized.entry(name.clone()).or_default();
                *raised += 1;
                if *raised >= initializers::FAILURES_MAX {
                    known.unfit.insert(name);
                }
            }
            Ok(ToManager::Announced { .. }) => self.report.announced += 1,
            Ok(ToManager::Recalled { count, .. }) => self.report.recalled += u64::from(count),
            Ok(ToManager::Released { .. }) => self.report.released += 1,
            Ok(ToManager::Expanded { .. }) => self.report.expanded += 1,
            Ok(ToManager::Folded { .. }) => self.report.folded += 1,
            Ok(ToManager::Carried { .. }) => self.report.carried += 1,
            Ok(_) => {}
            Err(error) => return self.world.broken(error.to_string()),
        }
        Ok(())
    }

    /// A session is over, before the machine knows.
    pub(super) fn note_end(&mut self, held: &SlotSession, ended: &Ended) {
        let next = self
            .manager
            .sessions
            .values()
            .map(|held| held.session)
            .max();
        let name = self.scenario.name(held.worker);
        let broken = self.manager.known.broken.entry(name).or_default();
        match (departure_of(ended), ended) {
            (Departure::Broken, _) => {
                broken.altogether += 1;
                if broken
                    .counted_before
                    .is_none_or(|before| held.session > before)
                {
                    broken.in_a_row += 1;
                    broken.counted_before = next.max(Some(held.session));
                }
            }
            (_, Ended::Closed(_)) => {
                *broken = BreaksSeen {
                    in_a_row: 0,
                    ..std::mem::take(broken)
                };
            }
            _ => {}
        }
    }

    /// Whether another attempt to reach this worker may end better.
    pub(super) fn prospect(&self, worker: usize) -> Prospect {
        match self.is_barred(worker) {
            true => Prospect::Hopeless,
            false => Prospect::Passing,
        }
    }

    /// An attempt came to nothing, before the machine knows.
    pub(super) fn note_failure(&mut self, source: SlotSource, prospect: Prospect) {
        if let (SlotSource::Host(place), Prospect::Hopeless) = (source, prospect) {
            self.manager.known.hopeless.insert(place);
        }
    }

    /// Outcomes are not of somebody who was no longer allowed.
    pub(super) fn check_origin(&self, stream: u64, outcomes: &Outcomes) -> Result<(), Violation> {
        // What is made into others, or waits for others, may have counted long before; so may what a state is of.
        let program = &self.streams.users[stream as usize].program;
        if program.lines() > 1 || program.carries() {
            return Ok(());
        }
        let origin = match &outcomes.contents {
            Contents::Records(_, origin)
            | Contents::Refused(origin)
            | Contents::Exhausted { origin, .. } => origin,
            Contents::WorkersLost { .. }
            | Contents::TooLarge { .. }
            | Contents::TooManyParts { .. }
            | Contents::TooManyBytes { .. }
            | Contents::NothingToReduce => return Ok(()),
        };
        if !self.revoked.contains(&origin.worker) {
            return Ok(());
        }
        self.world.broken(format!(
            "a result of {} counts, whose certificate was revoked",
            origin.worker
        ))
    }

    /// The manager's machine says that nobody is left to work on a stream, and nobody comes. Everybody who may come does, long
    /// before its patience is over.
    pub(super) fn give_up(
        &mut self,
        stream: u64,
        waited: Option<Duration>,
    ) -> Result<(), Violation> {
        if let Some(worker) = (0..self.workers.len()).find(|worker| self.is_hopeful(*worker)) {
            let what = format!("the manager gave up, though worker {worker} can be asked");
            return self.world.broken(what);
        }
        if waited.is_none() && !self.scenario.manager_dials {
            let what = "the manager gave up before its patience was over".to_owned();
            return self.world.broken(what);
        }
        let now = self.manager.clock.shows(self.world.now);
        let user = &mut self.streams.users[stream as usize];
        user.is_closed = true;
        user.is_given_up = true;
        self.report.given_up += 1;
        self.journals.close(stream as usize);
        self.manager.machine.close_stream(stream, now);
        Ok(())
    }

    /// Whether a worker can have a session, as far as is known.
    fn is_hopeful(&self, worker: usize) -> bool {
        !self.is_barred(worker)
            && !self.is_outcast(worker)
            && !self.manager.known.hopeless.contains(&worker)
    }

    /// Whether the contract may have no room for it where it is.
    fn may_cost_too_much(&self, worker: usize) -> bool {
        let contract = self.scenario.contract.as_ref();
        let is_bounded = contract.is_some_and(|contract| contract.remote_max.is_some());
        is_bounded && !self.scenario.workers[worker].in_domain
    }

    /// As many slots are wanted as the contract allows, and no more of them cost than it says.
    pub(super) fn check_contract(&self) -> Result<(), Violation> {
        let Some(contract) = &self.scenario.contract else {
            return Ok(());
        };
        let wanted = self.manager.machine.wanted() as u32;
        if !(contract.slots_min..=contract.slots_max).contains(&wanted) {
            return self
                .world
                .broken(format!("{wanted} slots are wanted of {contract:?}"));
        }
        let sessions = self.manager.sessions.values();
        let remote = sessions.filter(|held| !self.scenario.workers[held.worker].in_domain);
        let remote = remote.count() as u32;
        if contract.remote_max.is_some_and(|most| remote > most) {
            let what = format!("{remote} slots are outside the trusted domains");
            return self.world.broken(what);
        }
        Ok(())
    }

    /// What a process of the manager decided: nothing was reversed within a window.
    pub(super) fn check_history(&mut self) -> Result<(), Violation> {
        let window = PlannerSettings::default().window;
        let changes = self.manager.machine.history().changes();
        let decided = changes
            .filter(|change| matches!(change.kind, ChangeKind::Recruit | ChangeKind::Release));
        let decided: Vec<_> = decided.map(|change| (change.at, change.kind)).collect();
        for (_, kind) in &decided {
            match kind {
                ChangeKind::Recruit => self.report.recruited += 1,
                _ => self.report.given_back += 1,
            }
        }
        let mut pairs = decided.windows(2);
        let reversal = pairs.find(|pair| pair[0].1 != pair[1].1 && pair[1].0 < pair[0].0 + window);
        reversal.map_or(Ok(()), |pair| {
            self.world.broken(format!("reversed: {pair:?}"))
        })
    }

    /// Whether everybody who can has a session. Once nothing goes wrong any more that comes about in time.
    pub(super) fn is_full(&self, since: Duration) -> Result<bool, Violation> {
        if self.manager.sessions.len() >= self.manager.machine.wanted() {
            return Ok(true);
        }
        let has_session = |worker: usize| {
            let mut sessions = self.manager.sessions.values();
            sessions.any(|held| held.worker == worker)
        };
        let missing = (0..self.workers.len()).find(|worker| {
            // Who lacks modules is sent away, and a worn wire breaks each session.
            let scenario = &self.scenario.workers[*worker];
            let comes = scenario.lacks.is_empty() && !self.worn.contains(worker);
            let is_down = matches!(self.workers[*worker].state, State::Down);
            comes
                && !is_down
                && self.is_hopeful(*worker)
                && !self.may_cost_too_much(*worker)
                && !has_session(*worker)
        });
        let Some(worker) = missing else {
            return Ok(true);
        };
        let pause = match self.scenario.manager_dials {
            true => PAUSE_MAX,
            false => knocking::PAUSE_MAX,
        };
        let time = self.scenario.dead_after * 2 + HANDSHAKE_TIME + pause + SLACK_TIME;
        if self.world.now > since + time {
            let what = format!("worker {worker} has no session though nothing is in its way");
            return self.world.broken(what);
        }
        Ok(false)
    }

    /// The manager has done what it wants: no session with somebody who is no longer allowed goes on.
    pub(super) fn check_barred(&self) -> Result<(), Violation> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        let mut sessions = self.manager.sessions.values();
        let goes_on =
            |held: &&SlotSession| self.is_barred(held.worker) && !held.line.session.0.is_ending();
        sessions.find(goes_on).map_or(Ok(()), |held| {
            let what = format!(
                "the session with worker {}, no longer allowed, goes on",
                held.worker
            );
            self.world.broken(what)
        })
    }

    /// A worn wire changes a bit.
    pub(super) fn spoil(&mut self, id: ConnectionId) {
        let way = Way::BOTH[self.world.random.below(2) as usize];
        self.world.alter(id, way);
    }

    /// Both ends leave a connection that the other end has not taken up.
    pub(super) fn abandon(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let worker = self.world.wires.worker(id);
        let is_taken = worker.is_some_and(|worker| self.workers[worker].connection() == Some(id));
        if !is_taken && !self.has_left(id, Way::ToManager) {
            self.hang_up(id, Way::ToManager)?;
        }
        self.hang_up(id, Way::ToWorker)
    }
}
