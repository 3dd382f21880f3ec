//! Slots that come and go, and attempts that come to nothing.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use exoskel_flow::Departure;
use exoskel_identity::PeerText;
use exoskel_link::handshake::{Refuse, RefuseReason};
use exoskel_link::{CloseReason, Ended, LinkId, Session, SessionError, TrafficClass};
use exoskel_task::message::{CODE_ENDPOINT, SlotEndpoint, TASK_ENDPOINT, ToSlot};
use exoskel_task::outcome::Origin;
use exoskel_task::payload::Format;
use thiserror::Error;

use super::breaks::departure_of;
use super::notice::{Notice, Unwanted};
use super::recruiter::SlotSource;
use super::{ManagerAction, ManagerLink, ManagerMachine, Member, Slot, SlotState};
use crate::session::SessionId;

/// Workers that can't run the program, of which the reasons are kept.
const UNFIT_MAX: usize = 1000;

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

impl ManagerMachine {
    /// Somebody who dialled in has proven this name: may it have a session? If so, its place is kept until it
    /// [joins](Self::join) or the attempt [fails](Self::attempt_failed).
    ///
    /// # Errors
    /// What it is told.
    pub fn admit_worker(&mut self, name: &str) -> Result<(), Refuse> {
        if let Some(why) = self.unwanted(name) {
            return Err(Refuse {
                reason: RefuseReason::NotAllowed,
                text: why.refusal().into(),
            });
        }
        self.recruiter.reserve(self.slots.len()).map_err(|wanted| {
            let text = format!("the manager has the {wanted} slots it asked for");
            Refuse {
                reason: RefuseReason::Busy,
                text: text.into(),
            }
        })
    }

    /// Why a worker of this name gets no session, if that is known: it can't run the program, or is set aside.
    #[must_use]
    pub fn unwanted(&self, name: &str) -> Option<Unwanted> {
        let lacks = self.unfit.get(name).cloned().map(Unwanted::Lacks);
        lacks.or_else(|| self.breaks.set_aside(name).map(Unwanted::SetAside))
    }

    /// An attempt came to nothing; `is_final` when another one can't end better.
    pub fn attempt_failed(&mut self, source: SlotSource, is_final: bool, now: Duration) {
        self.recruiter.landed();
        self.recruiter.failed(source, is_final);
        self.release(source, now);
    }

    /// Takes in a slot whose session has begun; it gets work when it says that it is ready.
    ///
    /// # Errors
    /// When it is of no use: the attempt has failed.
    pub fn join(
        &mut self,
        source: SlotSource,
        member: &Member,
        session: &mut Session,
        now: Duration,
    ) -> Result<SessionId, JoinError> {
        // It may have been set aside while it was dialled.
        if let Some(why) = self.unwanted(&member.identity.name) {
            self.attempt_failed(source, true, now);
            return Err(why.into());
        }
        let id = self.next_session;
        let (tasks, code) = match self.open_links(id, session) {
            Ok(links) => links,
            Err(error) => {
                self.endpoints.end(id);
                self.attempt_failed(source, false, now);
                return Err(error.into());
            }
        };
        self.next_session = SessionId(id.0 + 1);
        self.recruiter.landed();
        self.recruiter.succeeded(source, member.slots);
        self.recruited.pending += 1;
        let origin = Origin {
            worker: member.identity.name.clone(),
            format: if member.is_trusted {
                Format::Pickle
            } else {
                Format::Data
            },
        };
        let answers = origin.format;
        let worker = self.workers.join(member);
        self.tell(Notice::Audit(format!(
            "accepted {} at {}: {} ({:?}, domain {})",
            member.identity,
            member.place,
            member.protections,
            member.proof,
            member.domain.as_deref().unwrap_or("none"),
        )));
        let slot = Slot {
            tasks,
            code,
            origin: Arc::new(origin),
            worker,
            source,
            state: SlotState::Joining,
            message_bytes_max: session.peer_message_bytes_max(),
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

    /// A slot has its settings: it gets work, or leaves when it lacks modules that the program needs.
    pub(super) fn ready(&mut self, session: SessionId, lacks: &[String], now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        if slot.state != SlotState::Joining {
            return;
        }
        if lacks.is_empty() {
            slot.state = SlotState::Ready;
            self.recruited.ready += 1;
            self.recruited.pending -= 1;
            // The number is new and the limit on slots is checked when they are recruited.
            let (origin, bytes_max) = (slot.origin.clone(), slot.message_bytes_max);
            let _ = self.router.add_slot(session.0, origin, bytes_max, now);
            return;
        }
        slot.state = SlotState::Unfit;
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
        let why = Unwanted::Lacks(what.clone());
        // Its other slots lack the same.
        let is_new =
            self.unfit.len() < UNFIT_MAX && self.unfit.insert(worker.name.clone(), what).is_none();
        if is_new {
            self.tell(Notice::Warning(format!("{worker} {why}")));
        }
        self.recruiter.set_aside(&worker.name);
        self.actions
            .push_back(ManagerAction::Unwanted { worker, why });
    }

    /// Judges all peers again, by what `judge` says of each, after credentials, policy or revocation lists have changed.
    /// Who is no longer allowed has to leave at once.
    pub fn judge_again<Reason: Display>(
        &mut self,
        mut judge: impl FnMut(SessionId) -> Result<(), Reason>,
    ) {
        for (session, slot) in &self.slots {
            if let Err(reason) = judge(*session) {
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

    /// A session is over: its items are put back, and its source is asked again, or another, as its end says.
    pub fn ended(&mut self, session: SessionId, end: &Ended, now: Duration) {
        self.endpoints.end(session);
        let Some(slot) = self.slots.remove(&session) else {
            return;
        };
        let departure = departure_of(end);
        let statistics = self.router.remove_slot(session.0, departure, now);
        let statistics = statistics.unwrap_or_default();
        let outstanding = statistics.put_back;
        if departure == Departure::Orderly && statistics.items > 0 {
            self.breaks.kept(&slot.worker.name);
        }
        let is_unfit = slot.state == SlotState::Unfit;
        let state = match departure {
            _ if is_unfit => "unfit",
            Departure::Orderly if outstanding == 0 => "left",
            _ => "lost",
        };
        self.workers.leave(&slot.worker, statistics, state);
        if slot.state == SlotState::Ready {
            self.recruited.ready -= 1;
        } else {
            self.recruited.pending -= 1;
        }
        if !self.is_closing && !is_unfit {
            let others = self.slots.len();
            self.tell(Notice::Warning(format!(
                "lost {} ({end}); items put back: {outstanding}, slots that go on: {others}",
                slot.worker,
            )));
        }
        let is_set_aside = departure == Departure::Broken && self.breaks_again(session, &slot, end);
        if is_unfit || is_set_aside {
            self.recruiter.failed(slot.source, true);
        } else if departure == Departure::Broken {
            self.recruiter.failed(slot.source, false);
        } else {
            self.recruiter.proved(slot.source);
        }
        self.release(slot.source, now);
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
            self.actions.push_back(ManagerAction::Unwanted {
                worker: slot.worker.clone(),
                why,
            });
        }
        true
    }

    /// A slot or an attempt is gone: its source is asked again, or another.
    fn release(&mut self, source: SlotSource, now: Duration) {
        self.recruiter.release(source, now);
        if let SlotSource::Child(child) = source {
            self.actions.push_back(ManagerAction::End(child));
        }
        self.recruit(now);
    }
}
