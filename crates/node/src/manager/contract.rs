//! How a manager keeps its contract: the planner decides, slots are recruited, or released when they have done what they have.

use std::cmp::Reverse;
use std::time::Duration;

use exoskel_flow::contract::{Contract, Observation, Planner, PlannerSettings, SlotDecision, Tier};
use exoskel_link::CloseReason;

use super::history::{ChangeKind, History, SlotChange};
use super::recruiter::Recruiter;
use super::{ManagerAction, ManagerMachine, ManagerSettings, Slot, SlotState};
use crate::session::SessionId;

/// The recruiter for these settings.
pub(super) fn recruiter(settings: &ManagerSettings) -> Recruiter {
    let mut recruiter = Recruiter::new(&settings.sources, settings.seed);
    if let Some(contract) = &settings.contract {
        recruiter.set_wanted(contract.slots_min);
        // One number of slots wherever they are is taken as it comes.
        if !contract.is_fixed() || contract.remote_max.is_some() {
            recruiter.follow(contract.remote_max);
        }
    }
    recruiter
}

/// What decides how many slots are wanted, if that may change.
pub(super) fn planner(settings: &ManagerSettings) -> Option<Planner> {
    let contract = settings.contract.clone();
    let contract = contract.filter(|contract| !contract.is_fixed())?;
    Some(Planner::new(contract, PlannerSettings::default()))
}

/// A history that has begun.
pub(super) fn begun(settings: &ManagerSettings) -> History {
    let slots = settings.sources.slots;
    let contract = settings.contract.clone();
    let contract = contract.unwrap_or_else(|| Contract::fixed(slots));
    let mut history = History::default();
    history.push(SlotChange {
        at: Duration::ZERO,
        kind: ChangeKind::Begin,
        wanted: contract.slots_min,
        ready: 0,
        reason: match contract.is_fixed() {
            true => "the contract asks for so many slots".to_owned(),
            // What has no limit of its own has that of the scheduler.
            false if contract.slots_max >= settings.scheduler.slots_max => format!(
                "the contract allows {} or more slots, as many as there are",
                contract.slots_min
            ),
            false => format!(
                "the contract allows {} to {} slots",
                contract.slots_min, contract.slots_max
            ),
        },
    });
    history
}

impl ManagerMachine {
    /// What became of the slots, when and why.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What the policy says of each place where workers listen, in their order.
    pub fn set_tiers(&mut self, tiers: &[Tier]) {
        self.recruiter.set_tiers(tiers);
    }

    /// When the planner looks next: as long as there are streams.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let planner = self.planner.as_ref().filter(|_| self.is_planning())?;
        planner.next_look()
    }

    fn is_planning(&self) -> bool {
        !self.streams.is_empty() && !self.is_closing
    }

    /// Has the planner look, if its time has come, and does what it decides.
    pub(super) fn plan(&mut self, now: Duration) {
        if self.next_look().is_none_or(|at| now < at) {
            return;
        }
        let (trusted, remote) = self.recruiter.supplies(self.slots.len());
        let workload = self.router.scheduler().workload(now);
        let observation = Observation {
            workload,
            trusted,
            remote,
        };
        let Some(planner) = &mut self.planner else {
            return;
        };
        let Some(decision) = planner.look(&observation, now) else {
            return;
        };
        let wanted = planner.target();
        let kind = match &decision {
            SlotDecision::Recruit { .. } => ChangeKind::Recruit,
            SlotDecision::Release { .. } => ChangeKind::Release,
            SlotDecision::Lacks(_) => ChangeKind::Lack,
            SlotDecision::Met { .. } => ChangeKind::Met,
        };
        self.want(wanted, now);
        self.note(kind, decision.to_string(), now);
    }

    /// So many slots are wanted from now on: more are asked for, or some are given back when they have done what they have.
    pub fn want(&mut self, slots: u32, now: Duration) {
        self.recruiter.set_wanted(slots);
        self.give_back(now);
        self.recruit(now);
    }

    /// Slots that have a session and were not given back, nor told to end.
    pub(super) fn staying(&self) -> usize {
        let slots = self.slots.values();
        slots
            .filter(|slot| slot.state != SlotState::Leaving)
            .count()
    }

    /// Slots that work and are not wanted get nothing more: those outside the trusted domains first, of these those that have the least to do.
    pub(super) fn give_back(&mut self, now: Duration) {
        let working = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot.state, SlotState::Ready) && !slot.is_barred);
        let surplus = working.clone().count();
        let surplus = surplus.saturating_sub(self.recruiter.wanted());
        if surplus == 0 {
            return;
        }
        let mut order: Vec<_> = working
            .map(|(session, slot)| {
                let did = self.router.slot_statistics(session.0).unwrap_or_default();
                (Reverse(slot.tier), did.outstanding, Reverse(*session))
            })
            .collect();
        order.sort_unstable();
        for (_, _, Reverse(session)) in order.into_iter().take(surplus) {
            self.router.drain_slot(session.0, now);
            if let Some(slot) = self.slots.get_mut(&session) {
                slot.state = SlotState::Leaving;
                self.recruited.ready -= 1;
            }
            self.draining.push(session);
        }
    }

    /// Slots are missing: those that were given back and have not gone stay. What they hold may wait for a slot that works, and nobody comes as soon.
    pub(super) fn take_back(&mut self, now: Duration) {
        while self.recruiter.has_room(self.staying())
            && let Some(session) = self.draining.pop()
        {
            let slot = self.slots.get_mut(&session);
            if let Some(slot) = slot.filter(|slot| !slot.is_barred) {
                slot.state = SlotState::Ready;
                self.recruited.ready += 1;
                self.router.keep_slot(session.0, now);
            }
        }
    }

    /// Ends the sessions of slots that were released and have done what they had.
    pub(super) fn end_drained(&mut self) {
        let router = &self.router;
        let is_done = |session: &mut SessionId| {
            let did = router.slot_statistics(session.0);
            did.is_none_or(|did| did.outstanding == 0)
        };
        for session in self.draining.extract_if(.., is_done) {
            self.actions.push_back(ManagerAction::Close {
                session,
                reason: CloseReason::Finished,
            });
        }
    }

    /// A slot is gone that nobody has given back.
    pub(super) fn note_end(&mut self, slot: &Slot, state: &str, how: &str, now: Duration) {
        if self.is_closing || !matches!(slot.state, SlotState::Ready | SlotState::Initializing) {
            return;
        }
        let reason = format!("{} was {state}: {how}", slot.worker);
        self.note(ChangeKind::Loss, reason, now);
    }

    /// A slot can work that may take the place of one that was lost.
    pub(super) fn note_replacement(&mut self, session: SessionId, now: Duration) {
        let slot = self.slots.get(&session);
        if let Some(slot) = slot.filter(|_| self.history.has_lost()) {
            let reason = format!("{} takes the place of a slot that was lost", slot.worker);
            self.note(ChangeKind::Replace, reason, now);
        }
    }

    pub(super) fn note(&mut self, kind: ChangeKind, reason: String, now: Duration) {
        self.history.push(SlotChange {
            at: now,
            kind,
            wanted: u32::try_from(self.recruiter.wanted()).unwrap_or(u32::MAX),
            ready: self.recruited.ready,
            reason,
        });
    }
}
