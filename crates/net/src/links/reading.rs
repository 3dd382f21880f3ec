//! Threads of the program that read a session while they wait: for an answer, or for the next call of one that was handled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exoskel_node::links::RequestId;

use super::{LinkShared, RunningSession, lock};

impl LinkShared {
    /// Reads what the session brings whose call was handled last, until there is a call for the endpoint.
    pub(super) fn listen(self: &Arc<Self>, endpoint: &str, patience: Duration) {
        let Some(listening) = self.calls.listen(endpoint) else {
            return;
        };
        let place = lock(&self.machine).place_of(listening.link);
        let Some(live) = place.and_then(|(session, _)| self.live(session)) else {
            return;
        };
        let deadline = Instant::now() + patience;
        let mut goes_on = true;
        while goes_on && listening.is_to_go_on() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || live.is_read_here.swap(true, Ordering::Acquire) {
                return;
            }
            goes_on = live.connection.read_until(
                left,
                Some(&listening.wake_up),
                || listening.is_idle(),
                |event| self.event(&live, event),
            );
            live.is_read_here.store(false, Ordering::Release);
            // Somebody else may have to read on.
            self.wake_waiting();
        }
    }

    /// Reads on this thread until something has come, unless somebody else does. Says whether it has read.
    pub(super) fn read_here(
        self: &Arc<Self>,
        live: &RunningSession,
        request: RequestId,
        patience: Duration,
    ) -> bool {
        if live.is_read_here.swap(true, Ordering::Acquire) {
            return false;
        }
        let is_wanted = || {
            let answers = lock(&self.answers);
            answers.get(&request).is_some_and(Option::is_none)
        };
        let goes_on = live
            .connection
            .read_here(patience, is_wanted, |event| self.event(live, event));
        live.is_read_here.store(false, Ordering::Release);
        // Somebody else may have to read on.
        self.wake_waiting();
        goes_on
    }
}
