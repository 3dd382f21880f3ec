//! Slots that come and go, and attempts that come to nothing.

use std::sync::Arc;

use exoskel_flow::Departure;
use exoskel_identity::PeerText;
use exoskel_link::{CloseReason, Endpoint, SessionError, TrafficClass};

use super::blame::departure_of;
use super::{ATTEMPTS_KEPT, Hub, Slot, UNFIT_MAX, Verdict};
use crate::connection::Ended;
use crate::establish::{Established, Terms};
use crate::manager::{Attempt, AttemptError, Notice, Unwanted, recruit};
use crate::message::{CODE_ENDPOINT, RESULT_ENDPOINT, RESULT_HANDLERS, TASK_ENDPOINT, ToSlot};
use crate::outlet::{Origin, StreamEnd};
use crate::payload::Format;

impl Hub {
    pub(super) fn take_up(&mut self, terms: Terms) {
        for slot in self.slots.values() {
            if let Err(reason) = terms.judge_again(&slot.standing, &slot.connection) {
                self.shared.notice(Notice::Audit(format!(
                    "ended the session with {}: {reason}",
                    slot.worker.0
                )));
                slot.connection
                    .abort(CloseReason::NotAllowed(reason.to_string().into()));
            }
        }
        self.config.terms = terms;
    }

    /// Takes in a slot whose session has begun; it gets work when it says that it is ready.
    pub(super) fn join(
        &mut self,
        established: &Established,
        is_child: bool,
    ) -> Result<u32, SessionError> {
        let connection = established.connection.clone();
        let (tasks, code) = connection.with(|session| {
            session.offer(Endpoint::new(RESULT_ENDPOINT, RESULT_HANDLERS))?;
            let tasks = session.open_link(TASK_ENDPOINT, TrafficClass::Data)?;
            Ok::<_, SessionError>((tasks, session.open_link(CODE_ENDPOINT, TrafficClass::Code)?))
        })?;
        let number = self.next_slot;
        self.next_slot += 1;
        let origin = Origin {
            worker: established.peer.name().to_owned(),
            format: if established.trusted_results {
                Format::Pickle
            } else {
                Format::Data
            },
        };
        let worker = self.roster.join(established);
        self.shared.notice(Notice::Audit(format!(
            "accepted {} at {}: {} ({:?}, domain {})",
            established.peer.identity(),
            connection.socket().peer_text(),
            established.protections,
            established.proof,
            established.domain.as_deref().unwrap_or("none"),
        )));
        let answers = origin.format;
        let slot = Slot {
            connection,
            tasks,
            code,
            origin: Arc::new(origin),
            standing: established.standing(),
            worker,
            ready: false,
            unfit: false,
        };
        self.slots.insert(number, slot);
        let settings = if is_child {
            self.config.setup_local.clone()
        } else {
            self.config.setup_remote.clone()
        };
        let setup = ToSlot::Setup { answers, settings };
        self.queue(number, &setup, Vec::new());
        self.flush();
        Ok(number)
    }

    /// A slot has its settings: it gets work, or leaves when it lacks modules that the program needs.
    pub(super) fn ready(&mut self, number: u32, lacks: &[String]) {
        let now = self.now();
        let Some(slot) = self.slots.get_mut(&number) else {
            return;
        };
        if slot.ready || slot.unfit {
            return;
        }
        if lacks.is_empty() {
            slot.ready = true;
            // The number is new and the limit on slots is checked when they are recruited.
            let _ = self.router.add_slot(number, slot.origin.clone(), now);
            return self.shared.change_readiness(|readiness| {
                readiness.ready += 1;
                readiness.pending = readiness.pending.saturating_sub(1);
            });
        }
        slot.unfit = true;
        slot.connection.close(CloseReason::Finished);
        let (name, address) = &slot.worker;
        let place = if address.is_empty() {
            String::new()
        } else {
            format!(" at {address}")
        };
        let shown: Vec<String> = lacks
            .iter()
            .map(|name| PeerText::new(name).unquoted())
            .collect();
        let what = shown.join(", ");
        let attempt = Attempt {
            worker: format!("worker {name}{place}"),
            place: address.clone(),
            error: Arc::new(Unwanted::Lacks(what.clone()).into()),
        };
        let (name, text) = (name.clone(), attempt.to_string());
        self.note_attempt(attempt);
        // Its other slots lack the same.
        if self.unfit.len() < UNFIT_MAX && self.unfit.insert(name, what).is_none() {
            self.shared.notice(Notice::Warning(text));
            self.wake_users();
        }
    }

    /// Why a worker of this name gets no session, if that is known: it can't run the program, or is set aside.
    pub(in crate::manager) fn unwanted(&self, name: &str) -> Option<Unwanted> {
        let lacks = self.unfit.get(name).cloned().map(Unwanted::Lacks);
        lacks.or_else(|| self.breaks.set_aside(name).map(Unwanted::SetAside))
    }

    /// Says what the session's end means for the next one.
    pub(super) fn leave(&mut self, number: u32, ended: &Ended) -> Verdict {
        let now = self.now();
        let Some(slot) = self.slots.remove(&number) else {
            return Verdict::Good;
        };
        let departure = departure_of(ended);
        let statistics = self.router.remove_slot(number, departure, now);
        let statistics = statistics.unwrap_or_default();
        let outstanding = statistics.put_back;
        if departure == Departure::Orderly && statistics.items > 0 {
            self.breaks.kept(&slot.worker.0);
        }
        self.roster.leave(
            &slot.worker,
            statistics,
            match departure {
                _ if slot.unfit => "unfit",
                Departure::Orderly if outstanding == 0 => "left",
                _ => "lost",
            },
        );
        if slot.ready {
            self.shared
                .change_readiness(|readiness| readiness.ready = readiness.ready.saturating_sub(1));
        } else {
            self.shared.change_readiness(|readiness| {
                readiness.pending = readiness.pending.saturating_sub(1)
            });
        }
        if !self.shutting_down && !slot.unfit {
            self.shared.notice(Notice::Warning(format!(
                "lost worker {}{} ({ended}); items put back: {outstanding}, slots that go on: {}",
                slot.worker.0,
                if slot.worker.1.is_empty() {
                    String::new()
                } else {
                    format!(" at {}", slot.worker.1)
                },
                self.slots.len(),
            )));
            self.wake_users();
        }
        let is_set_aside =
            departure == Departure::Broken && self.breaks_again(number, &slot, ended);
        self.pump();
        if slot.unfit || is_set_aside {
            Verdict::Hopeless
        } else if departure == Departure::Broken {
            Verdict::Failed
        } else {
            Verdict::Good
        }
    }

    /// Counts a broken session; says whether its worker is set aside.
    fn breaks_again(&mut self, number: u32, slot: &Slot, ended: &Ended) -> bool {
        let (name, address) = &slot.worker;
        let is_new = self.breaks.broken(name, number, self.next_slot, ended);
        let Some(reason) = self.breaks.set_aside(name) else {
            return false;
        };
        if is_new {
            self.roster.set_aside(name, &reason);
            self.recruiter.set_aside(name);
            let place = if address.is_empty() {
                String::new()
            } else {
                format!(" at {address}")
            };
            let attempt = Attempt {
                worker: format!("worker {name}{place}"),
                place: address.clone(),
                error: Arc::new(Unwanted::SetAside(reason).into()),
            };
            let text = attempt.to_string();
            self.note_attempt(attempt);
            self.shared.notice(Notice::Warning(text));
            self.wake_users();
        }
        true
    }

    pub(in crate::manager) fn attempt_failed(
        &self,
        source: &recruit::Source,
        error: impl Into<AttemptError>,
    ) {
        let attempt = source.attempt(error.into());
        self.shared
            .notice(Notice::Audit(format!("no session with {attempt}")));
        self.note_attempt(attempt);
        let is_final = !self.recruiter.has_hope();
        self.shared.change_readiness(|readiness| {
            readiness.pending = readiness.pending.saturating_sub(1);
            readiness.is_final = is_final;
        });
        self.wake_users();
    }

    /// Keeps an attempt for the user, in the place of an earlier one there.
    pub(in crate::manager) fn note_attempt(&self, attempt: Attempt) {
        self.shared.change_readiness(|readiness| {
            let attempts = &mut readiness.attempts;
            attempts.retain(|known| known.worker != attempt.worker);
            attempts.push(attempt);
            let surplus = attempts.len().saturating_sub(ATTEMPTS_KEPT);
            attempts.drain(..surplus);
        });
    }

    /// Says whether anybody may still come.
    pub(super) fn tell_hope(&self) {
        let is_final = !self.recruiter.has_hope();
        self.shared
            .change_readiness(|readiness| readiness.is_final = is_final);
        self.wake_users();
    }

    pub(in crate::manager) fn attempt_begins(&self) {
        self.shared
            .change_readiness(|readiness| readiness.pending += 1);
    }

    /// Lines about connections that came to nothing.
    pub(in crate::manager) fn audit(&self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.shared.notice(Notice::Audit(line));
        }
    }

    /// What failed there before has got better.
    pub(in crate::manager) fn forget_attempt(&self, source: &recruit::Source) {
        let worker = source.to_string();
        self.shared.change_readiness(|readiness| {
            readiness.attempts.retain(|known| known.worker != worker)
        });
    }

    /// The last attempt at each place where one has failed.
    pub(in crate::manager) fn attempts(&self) -> Vec<Attempt> {
        self.shared.attempts()
    }

    pub(in crate::manager) fn slots_in_use(&self) -> usize {
        self.slots.len()
    }

    /// Nobody is left to work and nobody can be found: all streams end with the reason.
    pub(in crate::manager) fn give_up(&self, end: &StreamEnd) {
        for outlet in self.outlets.values() {
            outlet.end(end.clone());
        }
        self.shared.notice(Notice::Warning(end.to_string()));
    }

    /// Ends the session with a slot that breaks the rules; nothing of what it still says counts.
    pub(super) fn dismiss(&self, number: u32, reason: String) {
        if let Some(slot) = self.slots.get(&number) {
            slot.connection.abort(CloseReason::Fault(reason.into()));
        }
    }
}
