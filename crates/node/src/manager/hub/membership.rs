//! Slots that come and go, and attempts that come to nothing.

use std::collections::HashSet;
use std::sync::Arc;

use exoskel_flow::{SlotId, SlotStatistics};
use exoskel_link::{CloseReason, Endpoint, SessionError, TrafficClass};

use super::{FAILURES_KEPT, Hub, Slot};
use crate::connection::Ended;
use crate::establish::{Established, Terms};
use crate::manager::{Notice, recruit};
use crate::message::{CODE_ENDPOINT, RESULT_ENDPOINT, RESULT_HANDLERS, TASK_ENDPOINT, ToSlot};
use crate::outlet::Origin;

impl Hub {
    pub(super) fn take_up(&mut self, terms: Terms) {
        for slot in self.slots.values() {
            if let Err(reason) = terms.judge_again(&slot.standing, &slot.connection) {
                self.shared.notice(Notice::Audit(format!(
                    "ended the session with {}: {reason}",
                    slot.worker.0
                )));
                slot.connection.abort(CloseReason::NotAllowed(reason));
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
            restricted: !established.trusted_results,
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
        let slot = Slot {
            connection,
            tasks,
            code,
            origin: Arc::new(origin),
            standing: established.standing(),
            worker,
            ready: false,
            functions: HashSet::new(),
            streams: HashSet::new(),
        };
        self.slots.insert(number, slot);
        let setup = if is_child {
            self.config.setup_local.clone()
        } else {
            self.config.setup_remote.clone()
        };
        self.queue(number, &ToSlot::Setup(setup), Vec::new());
        self.flush();
        Ok(number)
    }

    pub(super) fn leave(&mut self, number: u32, ended: &Ended) {
        let now = self.now();
        let Some(slot) = self.slots.remove(&number) else {
            return;
        };
        let statistics = self
            .scheduler
            .slot_statistics(SlotId(number))
            .unwrap_or_default();
        let orderly = matches!(ended, Ended::Closed(_));
        let outstanding = statistics.outstanding;
        let lost = SlotStatistics {
            put_back: statistics.put_back + outstanding,
            ..statistics
        };
        self.roster.leave(
            &slot.worker,
            lost,
            if orderly && outstanding == 0 {
                "left"
            } else {
                "lost"
            },
        );
        if orderly {
            // It said good-bye: whatever it had is innocent.
            self.scheduler.retire_slot(SlotId(number), now);
        } else {
            self.scheduler.remove_slot(SlotId(number), now);
        }
        if slot.ready {
            self.shared
                .change_readiness(|readiness| readiness.ready = readiness.ready.saturating_sub(1));
        } else {
            self.shared.change_readiness(|readiness| {
                readiness.pending = readiness.pending.saturating_sub(1)
            });
        }
        if !self.shutting_down {
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
        self.pump();
    }

    pub(in crate::manager) fn attempt_failed(&self, source: &recruit::Source, reason: &str) {
        let text = format!("{source}: {reason}");
        self.shared
            .notice(Notice::Audit(format!("no session with {text}")));
        let is_final = !self.recruiter.has_hope();
        self.shared.change_readiness(|readiness| {
            readiness.pending = readiness.pending.saturating_sub(1);
            readiness.is_final = is_final;
            if !readiness.failures.contains(&text) {
                readiness.failures.push(text);
            }
            let surplus = readiness.failures.len().saturating_sub(FAILURES_KEPT);
            readiness.failures.drain(..surplus);
        });
        self.wake_users();
    }

    pub(in crate::manager) fn attempt_begins(&self) {
        self.shared
            .change_readiness(|readiness| readiness.pending += 1);
    }

    /// A worker that dialled in was not accepted.
    pub(in crate::manager) fn refused(&self, source: &recruit::Source, reason: &str) {
        self.shared
            .notice(Notice::Audit(format!("no session with {source}: {reason}")));
    }

    pub(in crate::manager) fn recent_failures(&self) -> String {
        let mut failures = String::from("none was asked");
        self.shared.change_readiness(|readiness| {
            let recent = readiness.failures.len().saturating_sub(5);
            if !readiness.failures.is_empty() {
                failures = readiness.failures[recent..].join("; ");
            }
        });
        failures
    }

    pub(in crate::manager) fn slots_in_use(&self) -> usize {
        self.slots.len()
    }

    /// Nobody is left to work and nobody can be found: all streams end with the reason.
    pub(in crate::manager) fn give_up(&self, reason: &str) {
        for stream in self.streams.values() {
            stream.outlet.end(reason);
        }
        self.shared.notice(Notice::Warning(reason.to_owned()));
    }

    /// Ends the session with a slot that breaks the rules; nothing of what it still says counts.
    pub(super) fn dismiss(&self, number: u32, reason: String) {
        if let Some(slot) = self.slots.get(&number) {
            slot.connection.abort(CloseReason::Fault(reason));
        }
    }
}
