//! Whose doing the end of a session is, workers whose sessions break again and again, and workers that are lost with all their slots.

use std::collections::HashMap;

use exoskel_flow::Departure;
use exoskel_link::{CloseReason, Ended, SessionError};

use crate::session::SessionId;

/// A worker that breaks so many sessions in a row is set aside: its machine, or the wire to it, will not get better by itself.
pub const BREAKS_MAX: u32 = 3;

/// Workers whose broken sessions are counted, at most. Who comes after these is counted when one of them has been good.
const WORKERS_MAX: usize = 1000;

/// Whose fault the end of a session is.
#[must_use]
pub fn departure_of(ended: &Ended) -> Departure {
    match ended {
        Ended::Closed(CloseReason::Fault(_)) => Departure::Broken,
        Ended::Closed(
            CloseReason::Finished
            | CloseReason::ShuttingDown
            | CloseReason::Expired
            // It heard nothing from us: we stood still, or the network did.
            | CloseReason::Silence
            | CloseReason::NotAllowed(_),
        ) => Departure::Orderly,
        Ended::Transport(_)
        | Ended::Session(SessionError::Truncated { .. } | SessionError::PeerDead(_)) => {
            Departure::Lost
        }
        Ended::Session(
            SessionError::Authentication { .. }
            | SessionError::RecordAfterClose
            | SessionError::Header { .. }
            | SessionError::Content { .. }
            | SessionError::Unexpected { .. }
            | SessionError::PeerLimit { .. },
        ) => Departure::Broken,
        // This side's own doing.
        Ended::Session(
            SessionError::Exhausted
            | SessionError::UnknownLink(_)
            | SessionError::Direction { .. }
            | SessionError::Limit { .. }
            | SessionError::Closed(_),
        ) => Departure::Orderly,
    }
}

/// Broken sessions by worker.
#[derive(Debug, Default)]
pub struct Breaks {
    workers: HashMap<String, BrokenSessions>,
}

#[derive(Debug)]
struct BrokenSessions {
    /// Broken sessions in a row.
    count: u32,
    /// Sessions with smaller numbers had begun when the last one broke. What breaks one breaks all that run beside it, and counts once.
    counted_before: SessionId,
    /// How the last one ended.
    why: String,
}

impl Breaks {
    /// A session of this worker is broken. Says whether that sets the worker aside; `next` is the number of the next session.
    pub fn broken(&mut self, name: &str, session: SessionId, next: SessionId, why: &Ended) -> bool {
        if self.workers.len() >= WORKERS_MAX && !self.workers.contains_key(name) {
            return false;
        }
        let worker = self
            .workers
            .entry(name.to_owned())
            .or_insert(BrokenSessions {
                count: 0,
                counted_before: SessionId(0),
                why: String::new(),
            });
        if worker.count >= BREAKS_MAX || session < worker.counted_before {
            return false;
        }
        worker.count += 1;
        worker.counted_before = next;
        worker.why = why.to_string();
        worker.count == BREAKS_MAX
    }

    /// A session of this worker did its work to the end.
    pub fn kept(&mut self, name: &str) {
        if self.set_aside(name).is_none() {
            self.workers.remove(name);
        }
    }

    /// Why the worker is set aside, if it is.
    pub fn set_aside(&self, name: &str) -> Option<String> {
        let worker = self.workers.get(name)?;
        (worker.count >= BREAKS_MAX)
            .then(|| format!("broke its session {BREAKS_MAX} times: {}", worker.why))
    }
}
