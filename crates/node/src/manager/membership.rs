//! Slots that come and go, and attempts that come to nothing.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use exoskel_flow::Departure;
use exoskel_flow::contract::Tier;
use exoskel_identity::PeerText;
use exoskel_link::handshake::{Refuse, RefuseReason};
use exoskel_link::{CloseReason, Ended, LinkId, Session, SessionError, TrafficClass};
use exoskel_task::message::{CODE_ENDPOINT, SlotEndpoint, TASK_ENDPOINT, ToSlot};
use exoskel_task::outcome::Origin;
use exoskel_task::payload::Format;
use thiserror::Error;

use super::breaks::departure_of;
use super::hearsay::Tellings;
use super::history::ChangeKind;
use super::notice::{EarlyPhase, Notice, Unwanted};
use super::recruiter::{Prospect, SlotSource};
use super::{JoiningSlot, ManagerAction, ManagerLink, ManagerMachine, Presence, Slot, SlotState};
use crate::session::SessionId;

/// Workers that can't run the program, of which the reasons are kept.
const UNFIT_MAX: usize = 1000;

/// Workers with other versions of packages, which are told of once.
const DIFFERING_MAX: usize = 1000;

/// Why a session that was made is of no use.
#[derive(Clone, Debug, Error)]
pub enum JoinError {
    /// What became known of the worker meanwhile.
    #[error("the worker {0}")]
    Unwanted(#[from] Unwanted),
    /// It is over already.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// What becomes of somebody who dialled in and may have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its place is kept until it [joins](ManagerMachine::join) or the attempt [fails](ManagerMachine::attempt_failed).
    Placed,
    /// There are the slots that were asked for. It is asked in as soon as there [is room](ManagerMachine::has_room).
    Waits,
}

impl ManagerMachine {
    /// Somebody who dialled in has proven this name: may it have a session?
    ///
    /// # Errors
    /// What it is told.
    pub fn admit_worker(&mut self, name: &str) -> Result<Arrival, Refuse> {
        if let Some(why) = self.unwanted(name) {
            return Err(Refuse {
                reason: RefuseReason::NotAllowed,
                text: why.refusal().into(),
            });
        }
        if !self.has_room() {
            return Ok(Arrival::Waits);
        }
        self.recruiter.reserve();
        Ok(Arrival::Placed)
    }

    /// Whether somebody who dials in has a place.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.is_closing && self.recruiter.has_room(self.staying())
    }

    /// What somebody is told who finds no place, nor one in which to wait.
    #[must_use]
    pub fn busy_refusal(&self) -> Refuse {
        let wanted = self.recruiter.wanted();
        Refuse {
            reason: RefuseReason::Busy,
            text: format!("the manager has all slots it asked for ({wanted})").into(),
        }
    }

    /// Why a worker of this name gets no session, if that is known: it can't run the program, or is set aside.
    #[must_use]
    pub fn unwanted(&self, name: &str) -> Option<Unwanted> {
        let unfit = self.unfit.get(name).cloned();
        unfit.or_else(|| self.breaks.set_aside(name).map(Unwanted::SetAside))
    }

    /// An attempt came to nothing; `prospect` says whether another one may end better.
    pub fn attempt_failed(&mut self, source: SlotSource, prospect: Prospect, now: Duration) {
        self.recruiter.landed(source);
        self.recruiter.failed(source, prospect, now);
        self.release(source, now);
    }

    /// Takes in a slot whose session has begun; it gets work when it says that it is ready.
    ///
    /// # Errors
    /// When it is of no use: the attempt has failed.
    pub fn join(
        &mut self,
        source: SlotSource,
        peer: &JoiningSlot,
        session: &mut Session,
        now: Duration,
    ) -> Result<SessionId, JoinError> {
        // It may have been set aside while it was dialled.
        if let Some(why) = self.unwanted(peer.identity.host()) {
            self.attempt_failed(source, Prospect::Hopeless, now);
            return Err(why.into());
        }
        let tier = match &peer.domain {
            Some(_) => Tier::Trusted,
            None => Tier::Remote,
        };
        if !self.recruiter.is_within_cost(source, tier) {
            self.attempt_failed(source, Prospect::Passing, now);
            return Err(Unwanted::OverCost.into());
        }
        let id = self.next_session;
        let (tasks, code) = match self.open_links(id, session) {
            Ok(links) => links,
            Err(error) => {
                self.endpoints.end(id);
                self.remote_left(source, tier);
                self.attempt_failed(source, Prospect::Passing, now);
                return Err(error.into());
            }
        };
        self.next_session = SessionId(id.0 + 1);
        self.recruiter.landed(source);
        self.recruiter.succeeded(source, peer.slots);
        self.patience.pause();
        self.recruited.pending += 1;
        let origin = Origin {
            worker: peer.identity.host().to_owned(),
            format: if peer.is_trusted {
                Format::Pickle
            } else {
                Format::Data
            },
        };
        let answers = origin.format;
        let worker = self.workers.join(peer, now);
        self.tell(Notice::Audit(format!(
            "accepted {} at {}: {} ({:?}, domain {})",
            peer.identity,
            peer.place,
            peer.protections,
            peer.proof,
            peer.domain.as_deref().unwrap_or("none"),
        )));
        let slot = Slot {
            tasks,
            code,
            origin: Arc::new(origin),
            worker,
            source,
            tier,
            state: SlotState::Joining,
            message_bytes_max: session.peer_message_bytes_max(),
            process_end: None,
            is_overdue: false,
            is_barred: false,
            presence: Presence::Certain,
            bytes_sent: 0,
            tellings: Tellings::default(),
        };
        self.slots.insert(id, slot);
        if self.is_closing {
            self.actions.push_back(ManagerAction::Close {
                session: id,
                reason: CloseReason::Finished,
            });
            return Ok(id);
        }
        // Only our own children are local, whatever a peer says of itself.
        let settings = if matches!(source, SlotSource::Child(_)) {
            self.settings.setup_local.clone()
        } else {
            self.settings.setup_remote.clone()
        };
        let setup = ToSlot::Setup { answers, settings }.with_bulk(Vec::new());
        let sent = self.send(id, SlotEndpoint::Code, setup);
        self.actions.extend(sent);
        self.recruit(now);
        Ok(id)
    }

    /// A slot's links at this end of its session.
    fn open_links(
        &mut self,
        id: SessionId,
        session: &mut Session,
    ) -> Result<(LinkId, LinkId), SessionError> {
        let table = &mut self.endpoints;
        table.begin(id, session)?;
        let tasks = table.open(
            id,
            session,
            TASK_ENDPOINT,
            TrafficClass::Data,
            ManagerLink::Slot,
        )?;
        let code = table.open(
            id,
            session,
            CODE_ENDPOINT,
            TrafficClass::Code,
            ManagerLink::Slot,
        )?;
        Ok((tasks, code))
    }

    /// A slot has its settings: it gets work, now or when its initializer has run, or leaves when it lacks modules that the
    /// program needs.
    pub(super) fn ready(&mut self, session: SessionId, lacks: &[String], now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        if slot.state != SlotState::Joining {
            return;
        }
        if lacks.is_empty() {
            slot.state = SlotState::Initializing;
            self.recruited.ready += 1;
            self.recruited.pending -= 1;
            if !self.settings.has_initializer {
                self.begin_work(session, now);
            }
            return;
        }
        slot.state = SlotState::Unfit { is_final: true };
        let worker = slot.worker.clone();
        self.actions.push_back(ManagerAction::Close {
            session,
            reason: CloseReason::Finished,
        });
        let shown: Vec<String> = lacks
            .iter()
            .map(|name| PeerText::new(name).unquoted())
            .collect();
        let what = shown.join(", ");
        let why = Unwanted::Lacks(what);
        // Its other slots lack the same.
        if self.keep_unfit(&worker.name, why.clone()) {
            self.tell(Notice::Warning(format!("{worker} {why}")));
        }
        self.recruiter.set_aside(&worker.name);
        self.tell_unwanted(worker, why);
    }

    /// A slot has packages of other versions than the manager. Its worker's other slots have the same.
    pub(super) fn differs(&mut self, session: SessionId, packages: &[String]) {
        let Some(slot) = self.slots.get(&session) else {
            return;
        };
        let worker = slot.worker.clone();
        if self.differing.len() >= DIFFERING_MAX || !self.differing.insert(worker.clone()) {
            return;
        }
        let shown = packages.iter().map(|line| PeerText::new(line).unquoted());
        let what = shown.collect::<Vec<String>>().join(", ");
        self.tell(Notice::Warning(format!(
            "{worker} has other versions than the manager: {what}; results may differ: install the same at both"
        )));
    }

    /// A slot has all that it needs for work.
    pub(super) fn begin_work(&mut self, session: SessionId, now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        slot.state = SlotState::Ready;
        self.recruiter.proved(slot.source);
        self.patience.renew();
        if self.unwanted.remove(&slot.worker) {
            self.actions
                .push_back(ManagerAction::Wanted(slot.worker.clone()));
        }
        // The number is new, and whoever makes a manager wants no more slots than its scheduler takes.
        let (origin, bytes_max) = (slot.origin.clone(), slot.message_bytes_max);
        let _ = self.router.add_slot(session.0, origin, bytes_max, now);
        self.note_replacement(session, now);
        self.give_back(now);
    }

    /// Remembers why a worker can't run the program; says whether that is news.
    pub(super) fn keep_unfit(&mut self, name: &str, why: Unwanted) -> bool {
        self.unfit.len() < UNFIT_MAX && self.unfit.insert(name.to_owned(), why).is_none()
    }

    /// A slot finishes what runs and goes.
    pub(super) fn leaving(&mut self, session: SessionId, now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        match std::mem::replace(&mut slot.state, SlotState::Leaving) {
            SlotState::Ready | SlotState::Initializing => self.recruited.ready -= 1,
            SlotState::Joining => self.recruited.pending -= 1,
            other @ (SlotState::Unfit { .. } | SlotState::Leaving) => {
                slot.state = other;
                // If it was given back, it can't be taken back any more.
                self.draining.retain(|draining| *draining != session);
                return;
            }
        }
        let worker = slot.worker.clone();
        let others = self.staying();
        self.note(
            ChangeKind::Loss,
            format!("{worker} leaves: it was told to end"),
            now,
        );
        self.tell(Notice::Warning(format!(
            "{worker} leaves: it was told to end; slots that go on: {others}"
        )));
        self.recruit(now);
    }

    /// Judges all peers again, by what `judge` says of each, after credentials, policy or revocation lists have changed.
    /// Who is no longer allowed has to leave at once.
    pub fn judge_again<Reason: Display>(
        &mut self,
        mut judge: impl FnMut(SessionId) -> Result<(), Reason>,
    ) {
        for (session, slot) in &mut self.slots {
            if let Err(reason) = judge(*session) {
                slot.is_barred = true;
                let name = &slot.worker.name;
                let line = format!("ended the session with {name}: {reason}");
                self.actions
                    .push_back(ManagerAction::Tell(Notice::Audit(line)));
                self.actions.push_back(ManagerAction::Abort {
                    session: *session,
                    reason: CloseReason::NotAllowed(reason.to_string().into()),
                });
            }
        }
    }

    /// The process of a slot has ended like this: for a child, whose parent knows. Comes before the [end](Self::ended) of its session.
    pub fn process_ended(&mut self, session: SessionId, how: &str) {
        if let Some(slot) = self.slots.get_mut(&session) {
            slot.process_end = Some(how.into());
        }
    }

    /// A session is over: its items are put back, and its source is asked again, or another, as its end says.
    pub fn ended(&mut self, session: SessionId, end: &Ended, now: Duration) {
        self.endpoints.end(session);
        let Some(slot) = self.slots.remove(&session) else {
            return;
        };
        self.draining.retain(|draining| *draining != session);
        self.remote_left(slot.source, slot.tier);
        self.tells_no_more(&slot);
        // An item that no slot can end is the reason, perhaps.
        let departure = match slot.is_overdue {
            true => Departure::Lost,
            false => departure_of(end),
        };
        // Who was told to end may be ended before its item is done: not for what the item did.
        let is_leaving = slot.state == SlotState::Leaving;
        let blamed = match departure {
            Departure::Lost if slot.presence != Presence::Certain || is_leaving => {
                Departure::Broken
            }
            other => other,
        };
        if departure == Departure::Lost {
            self.doubt(&slot.worker.name);
        }
        let statistics = self
            .router
            .remove_slot(session.0, blamed, slot.process_end.clone(), now);
        let statistics = statistics.unwrap_or_default();
        let outstanding = statistics.put_back;
        if departure == Departure::Orderly && statistics.items > 0 {
            self.breaks.kept(&slot.worker.name);
        }
        let is_unfit = matches!(slot.state, SlotState::Unfit { .. });
        let has_left = is_leaving && departure == Departure::Orderly;
        // Who is told to end says that it leaves. What ends by itself in the middle of its work has an item that ran for too long, or was told to end at once.
        let is_own_end = !has_left && matches!(end, Ended::Closed(CloseReason::ShuttingDown));
        let how = match &slot.process_end {
            Some(how) => how.to_string(),
            None => end.to_string(),
        };
        let state = match departure {
            _ if is_unfit => "unfit",
            _ if has_left || is_own_end => "left",
            // In the middle of a run nobody goes in good order without saying so, or being told to.
            Departure::Orderly if outstanding == 0 && self.is_closing => "left",
            _ => "lost",
        };
        let worker = &slot.worker;
        self.workers
            .leave(worker, statistics, slot.bytes_sent, state, now);
        match slot.state {
            SlotState::Ready | SlotState::Initializing => self.recruited.ready -= 1,
            SlotState::Joining | SlotState::Unfit { .. } => self.recruited.pending -= 1,
            SlotState::Leaving => {}
        }
        if has_left && outstanding > 0 && !self.is_closing {
            self.tell(Notice::Warning(format!(
                "{} has left before its items were done; items that run again: {outstanding}, which is not held against them",
                slot.worker,
            )));
        } else if is_own_end && !self.is_closing && !is_unfit {
            self.tell(Notice::Warning(format!(
                "{} has ended a slot in the middle of its work, as it does when an item runs for too long; items put back: {outstanding}, slots that go on: {}",
                slot.worker,
                self.slots.len(),
            )));
        } else if !self.is_closing && !is_unfit && !has_left {
            let others = self.slots.len();
            self.tell(Notice::Warning(format!(
                "lost {} ({how}); items put back: {outstanding}, slots that go on: {others}",
                slot.worker,
            )));
        }
        self.note_end(&slot, state, &how, now);
        let is_broken = departure == Departure::Broken || slot.is_overdue;
        let is_set_aside = is_broken && self.breaks_again(session, &slot, end);
        let prospect = match slot.state {
            _ if is_set_aside => Some(Prospect::Hopeless),
            SlotState::Unfit { is_final: true } => Some(Prospect::Hopeless),
            SlotState::Unfit { is_final: false } => Some(Prospect::Passing),
            SlotState::Joining | SlotState::Initializing => Some(Prospect::Doubtful),
            SlotState::Ready | SlotState::Leaving => {
                (departure == Departure::Broken).then_some(Prospect::Passing)
            }
        };
        match prospect {
            Some(prospect) => self.recruiter.failed(slot.source, prospect, now),
            None => self.recruiter.rest(slot.source, now),
        }
        if let (SlotSource::Child(_), Some(Prospect::Doubtful)) = (slot.source, prospect)
            && !self.recruiter.has_hope_of_children()
        {
            let phase = match slot.state {
                SlotState::Initializing => EarlyPhase::Initializing,
                _ => EarlyPhase::Joining,
            };
            self.tell_unwanted(slot.worker, Unwanted::LostEarly(phase, how));
        } else if let (SlotState::Joining, Ended::Closed(CloseReason::NotAllowed(why))) =
            (slot.state, end)
        {
            // Whoever was sent away has refused nobody.
            if !slot.is_barred {
                let why = Unwanted::Refuses(why.sentence().to_string());
                self.tell_unwanted(slot.worker, why);
            }
        }
        self.release(slot.source, now);
    }

    /// A slot of this worker is lost. What took it may have taken all that ran beside it, so each is asked whether it is still there,
    /// and gets nothing until it answers.
    fn doubt(&mut self, worker: &str) {
        for (session, slot) in &mut self.slots {
            if slot.state != SlotState::Ready || slot.worker.name != worker {
                continue;
            }
            slot.presence = match slot.presence {
                Presence::Certain => {
                    self.router.probe_slot(session.0);
                    Presence::Asked
                }
                _ => Presence::AskedTooEarly,
            };
        }
    }

    /// Counts a broken session; says whether its worker is set aside.
    fn breaks_again(&mut self, session: SessionId, slot: &Slot, end: &Ended) -> bool {
        let name = &slot.worker.name;
        let is_new = self.breaks.broken(name, session, self.next_session, end);
        let Some(reason) = self.breaks.set_aside(name) else {
            return false;
        };
        if is_new {
            self.workers.set_aside(name, &reason);
            self.recruiter.set_aside(name);
            let why = Unwanted::SetAside(reason);
            self.tell(Notice::Warning(format!("{} {why}", slot.worker)));
            self.tell_unwanted(slot.worker.clone(), why);
        }
        true
    }

    /// A slot has gone; if it dialled in, it doesn't count any more by where it was.
    fn remote_left(&mut self, source: SlotSource, tier: Tier) {
        if (source, tier) == (SlotSource::DialledIn, Tier::Remote) {
            self.recruiter.remote_left();
        }
    }

    /// A slot or an attempt is gone: its source is asked again, or another.
    fn release(&mut self, source: SlotSource, now: Duration) {
        self.recruiter.release(source);
        if let SlotSource::Child(child) = source {
            self.actions.push_back(ManagerAction::End(child));
        }
        self.recruit(now);
    }
}
