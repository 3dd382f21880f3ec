//! Slots that run an initializer before they get work, and what becomes of those whose initializer raises.

use std::collections::BTreeMap;
use std::time::Duration;

use exoskel_identity::PeerText;
use exoskel_link::CloseReason;

use super::notice::{Notice, Unwanted};
use super::recruiter::SlotSource;
use super::{ManagerAction, ManagerMachine, SlotState};
use crate::session::SessionId;

/// An initializer that has raised so often in a row, in slots from one place, will not get better there.
pub const FAILURES_MAX: u32 = 3;

/// Workers whose failures are counted, at most.
const WORKERS_MAX: usize = 1000;

/// Failures of the initializer in a row: of each worker, and of all children together.
#[derive(Debug, Default)]
pub struct InitializerFailures {
    children: u32,
    workers: BTreeMap<String, u32>,
    is_known: bool,
}

impl InitializerFailures {
    /// Counts one; says whether no other slot from there is to be tried.
    fn failed(&mut self, source: SlotSource, worker: &str) -> bool {
        if matches!(source, SlotSource::Child(_)) {
            self.children += 1;
            return self.children >= FAILURES_MAX;
        }
        if self.workers.len() >= WORKERS_MAX && !self.workers.contains_key(worker) {
            return true;
        }
        let count = self.workers.entry(worker.to_owned()).or_default();
        *count += 1;
        *count >= FAILURES_MAX
    }

    /// What raised at a worker may be mended.
    pub(super) fn forget(&mut self, worker: &str) {
        self.workers.remove(worker);
    }

    fn succeeded(&mut self, source: SlotSource, worker: &str) {
        if matches!(source, SlotSource::Child(_)) {
            self.children = 0;
        } else {
            self.workers.remove(worker);
        }
    }
}

impl ManagerMachine {
    /// A slot has run its initializer: it gets work, or leaves when that has raised.
    pub(super) fn initialized(&mut self, session: SessionId, error: &[u8], now: Duration) {
        let Some(slot) = self.slots.get(&session) else {
            return;
        };
        if slot.state != SlotState::Initializing {
            return;
        }
        let (source, worker) = (slot.source, slot.worker.clone());
        if error.is_empty() {
            self.initializers.succeeded(source, &worker.name);
            return self.begin_work(session, now);
        }
        let traceback = PeerText::from(String::from_utf8_lossy(error).into_owned());
        let traceback = traceback.lines(exoskel_identity::Colours::Escaped);
        let what = traceback.trim_end().lines().next_back();
        let why = Unwanted::Uninitialized(what.unwrap_or_default().to_owned());
        let is_final = self.initializers.failed(source, &worker.name);
        if let Some(slot) = self.slots.get_mut(&session) {
            slot.state = SlotState::Unfit { is_final };
        }
        self.recruited.ready -= 1;
        self.recruited.pending += 1;
        self.actions.push_back(ManagerAction::Close {
            session,
            reason: CloseReason::Finished,
        });
        // The others say the same, most likely.
        if !std::mem::replace(&mut self.initializers.is_known, true) {
            self.tell(Notice::Warning(format!(
                "{worker} {why}\n{}",
                traceback.trim_end()
            )));
        }
        if is_final && !matches!(source, SlotSource::Child(_)) {
            self.keep_unfit(&worker.name, why.clone());
            self.recruiter.set_aside(&worker.name);
        }
        self.tell_unwanted(worker, why);
    }
}
