//! What workers tell of others that they hear. It is as much a hint as what the manager hears itself.

use std::time::Duration;

use exoskel_task::message::HeardWorker;

use super::{ManagerAction, ManagerMachine, Slot};
use crate::session::SessionId;

/// How often a slot may tell at once. An honest one tells every two seconds at most, and its network may hold that up.
const TELLINGS_AT_ONCE_MAX: u32 = 64;

/// How long it takes until it may tell once more.
const TELLING_TIME: Duration = Duration::from_secs(1);

/// How often a slot has told of others.
#[derive(Debug, Default)]
pub(super) struct Tellings {
    has_told: bool,
    /// Less those that time has made good since.
    spent: u32,
    refilled_at: Duration,
}

impl Tellings {
    /// It tells once more; says whether it may.
    fn count(&mut self, now: Duration) -> bool {
        let times = now.saturating_sub(self.refilled_at).as_secs() / TELLING_TIME.as_secs();
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.spent = self.spent.saturating_sub(times) + 1;
        self.refilled_at += TELLING_TIME * times;
        self.has_told = true;
        self.spent <= TELLINGS_AT_ONCE_MAX
    }
}

impl ManagerMachine {
    pub(super) fn hearsay(&mut self, session: SessionId, heard: Vec<HeardWorker>, now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        if !slot.tellings.count(now) {
            let text = format!(
                "it told of workers that it hears more than {TELLINGS_AT_ONCE_MAX} times at once, expected every {TELLING_TIME:?}"
            );
            return self.dismiss(session, text);
        }
        let worker = slot.worker.name.clone();
        self.actions
            .push_back(ManagerAction::Hearsay { worker, heard });
    }

    /// A slot is gone. What it told goes with the last slot of its worker.
    pub(super) fn tells_no_more(&mut self, gone: &Slot) {
        let is_of_worker = |slot: &&Slot| slot.worker.name == gone.worker.name;
        if gone.tellings.has_told && !self.slots.values().any(|slot| is_of_worker(&slot)) {
            let (worker, heard) = (gone.worker.name.clone(), Vec::new());
            self.actions
                .push_back(ManagerAction::Hearsay { worker, heard });
        }
    }
}
