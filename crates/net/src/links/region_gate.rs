//! Who has a region's array: its owner, or the one call that is served. All other calls wait, in turns of their peers.
//!
//! Nobody holds a lock while an array is copied, so whoever brings a call waits for nobody: it serves the call, or leaves it here.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use exoskel_node::links::{AcceptedId, LinkCall, RegionMessage};
use tokio::sync::Notify;

use super::calls::Calls;
use super::fair_queue::FairQueue;
use super::lock;
use super::regions::SharedRegion;

/// What a peer asks of a region.
pub(super) struct RegionCall {
    pub(super) call: LinkCall,
    pub(super) message: RegionMessage,
}

#[derive(Default)]
pub(super) struct RegionGate {
    state: Mutex<GateState>,
    /// Told when the array is free.
    freed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_held: bool,
    is_serving: bool,
    /// Owners that wait for the array. No call is begun before them, or there would always be another one.
    holders: usize,
    waiting: FairQueue<RegionCall>,
}

impl GateState {
    fn is_free(&self) -> bool {
        !self.is_held && !self.is_serving
    }

    /// The call whose turn it is. It counts no more among those that wait.
    fn take(&mut self, calls: &Calls, is_held: impl Fn(&LinkCall) -> bool) -> Option<RegionCall> {
        let asked = self.waiting.pop(|asked| !is_held(&asked.call))?;
        calls.waits_no_more(&asked.call);
        Some(asked)
    }
}

impl RegionGate {
    /// Takes in a call. It comes back if it is to be served now, and [`RegionGate::served`] is due then; otherwise it waits, as those of
    /// a peer do that `is_held`. What waits counts among its process's calls.
    ///
    /// # Errors
    /// What those of its process would hold, if that is too much. The call is dropped.
    pub(super) fn come(
        &self,
        asked: RegionCall,
        calls: &Calls,
        is_held: impl Fn(&LinkCall) -> bool,
    ) -> Result<Option<RegionCall>, u64> {
        let mut state = lock(&self.state);
        let is_next = state.is_free() && state.holders == 0 && state.waiting.is_empty();
        if is_next && !is_held(&asked.call) {
            state.is_serving = true;
            return Ok(Some(asked));
        }
        calls.waits(&asked.call)?;
        let process = asked.call.process.clone();
        state.waiting.push(&process, asked);
        Ok(None)
    }

    /// A call that waits and is to be served now, if there is one. [`RegionGate::served`] is due then.
    pub(super) fn next(
        &self,
        calls: &Calls,
        is_held: impl Fn(&LinkCall) -> bool,
    ) -> Option<RegionCall> {
        let mut state = lock(&self.state);
        if !state.is_free() || state.holders > 0 {
            return None;
        }
        let asked = state.take(calls, is_held)?;
        state.is_serving = true;
        Some(asked)
    }

    /// Whether calls wait, and nobody has the array who would see to them.
    pub(super) fn is_behind(&self) -> bool {
        let state = lock(&self.state);
        state.is_free() && state.holders == 0 && !state.waiting.is_empty()
    }

    /// Whoever serves is done. Says whether calls wait that somebody has to serve.
    pub(super) fn served(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_serving = false;
        let is_behind = !state.waiting.is_empty();
        drop(state);
        self.freed.notify_all();
        is_behind
    }

    /// Has the owner hold the array, after waiting for `patience` at most. Says whether it does.
    pub(super) fn hold(&self, patience: Duration) -> bool {
        let mut state = lock(&self.state);
        state.holders += 1;
        let waited = self
            .freed
            .wait_timeout_while(state, patience, |state| !state.is_free());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.holders -= 1;
        // Who gives up leaves it to somebody else, who sees to what waits.
        if !state.is_free() {
            return false;
        }
        state.is_held = true;
        true
    }

    /// The owner holds the array no more, and serves those that have waited: how many that are, and [`RegionGate::served`] is due. None if
    /// nobody holds it.
    pub(super) fn let_go(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        if !state.is_held {
            return None;
        }
        (state.is_held, state.is_serving) = (false, true);
        Some(state.waiting.len())
    }

    /// The next one that has waited, for whoever serves already.
    pub(super) fn next_due(
        &self,
        calls: &Calls,
        is_held: impl Fn(&LinkCall) -> bool,
    ) -> Option<RegionCall> {
        lock(&self.state).take(calls, is_held)
    }

    /// Drops the calls of links that are over.
    pub(super) fn forget(&self, calls: &Calls, is_over: impl Fn(AcceptedId) -> bool) {
        lock(&self.state).waiting.retain(|asked| {
            let is_over = is_over(asked.call.accepted);
            if is_over {
                calls.waits_no_more(&asked.call);
            }
            !is_over
        });
    }
}

/// Regions of which calls wait and that nobody holds: the node's thread serves them, in turns with all else that it does.
#[derive(Default)]
pub(super) struct RegionWork {
    regions: Mutex<Vec<Arc<SharedRegion>>>,
    pub(super) come: Notify,
}

impl RegionWork {
    /// Has the node's thread serve a region.
    pub(super) fn add(&self, region: &Arc<SharedRegion>) {
        self.keep(region);
        self.come.notify_one();
    }

    /// For the node's thread: it serves the region later.
    pub(super) fn keep(&self, region: &Arc<SharedRegion>) {
        let mut regions = lock(&self.regions);
        if !regions.iter().any(|one| Arc::ptr_eq(one, region)) {
            regions.push(region.clone());
        }
    }

    pub(super) fn take(&self) -> Vec<Arc<SharedRegion>> {
        std::mem::take(&mut *lock(&self.regions))
    }
}

#[cfg(test)]
mod tests {
    use super::super::calls::WAITING_BYTES_MAX;
    use super::super::calls::tests::{call, link, peer, peer_named};
    use super::*;

    fn asked(call: LinkCall) -> RegionCall {
        let message = RegionMessage::Describe;
        RegionCall { call, message }
    }

    fn nobody(_: &LinkCall) -> bool {
        false
    }

    /// Aim: what waits for an array is bounded with all else that waits of its process, and goes with its link.
    #[test]
    fn what_waits_for_an_array_counts_as_long_as_its_link() {
        let (gate, calls, peer) = (RegionGate::default(), Calls::default(), peer());
        let large = |number| LinkCall {
            size: WAITING_BYTES_MAX / 2,
            ..call(&peer, 0, number, 1)
        };
        assert!(gate.hold(Duration::ZERO));
        assert!(
            gate.come(asked(large(1)), &calls, nobody)
                .is_ok_and(|one| one.is_none())
        );
        let got = gate.come(asked(large(2)), &calls, nobody).err();
        assert!(got.is_some_and(|got| got > WAITING_BYTES_MAX));
        assert!(calls.put(large(3)).is_err(), "they are of the same process");
        gate.forget(&calls, |one| one == link(0, 1));
        assert_eq!(gate.let_go(), Some(0));
        assert!(gate.next_due(&calls, nobody).is_none() && !gate.served());
        assert!(gate.hold(Duration::ZERO));
        assert!(
            gate.come(asked(large(2)), &calls, nobody)
                .is_ok_and(|one| one.is_none())
        );
        // What is served waits no more.
        assert_eq!(gate.let_go(), Some(1));
        assert!(gate.next_due(&calls, nobody).is_some());
        calls.put(large(3)).unwrap();
    }

    /// Aim: there is always another call, and the owner gets its array all the same.
    #[test]
    fn an_owner_that_waits_comes_before_calls() {
        let (gate, calls, peer) = (RegionGate::default(), Calls::default(), peer());
        let come = |number| {
            gate.come(asked(call(&peer, 0, 1, number)), &calls, nobody)
                .unwrap()
        };
        assert!(come(1).is_some());
        assert!(come(2).is_none(), "one is served");
        std::thread::scope(|scope| {
            let holds = scope.spawn(|| gate.hold(Duration::from_secs(60)));
            while lock(&gate.state).holders == 0 {
                std::thread::yield_now();
            }
            assert!(gate.served(), "another one waits");
            assert!(gate.next(&calls, nobody).is_none() && come(3).is_none());
            assert!(holds.join().unwrap());
        });
        assert!(!gate.hold(Duration::ZERO));
        assert_eq!(gate.let_go(), Some(2));
        assert_eq!(gate.let_go(), None);
        let request = |asked: Option<RegionCall>| asked.and_then(|asked| asked.call.request);
        assert_eq!(request(gate.next_due(&calls, nobody)), Some(2));
        assert!(gate.served());
        assert_eq!(request(gate.next(&calls, nobody)), Some(3));
        assert!(!gate.served());
        assert!(come(4).is_some());
    }

    /// Aim: who has too much to read waits until it has read, and others don't.
    #[test]
    fn calls_of_a_peer_that_is_held_wait() {
        let (gate, calls, peer, other) = (
            RegionGate::default(),
            Calls::default(),
            peer(),
            peer_named("atmosphere"),
        );
        let is_held = |call: &LinkCall| call.peer.name() == "ocean";
        let come = |peer, number| {
            let call = asked(call(peer, number, 1, number.into()));
            gate.come(call, &calls, is_held).unwrap()
        };
        assert!(come(&peer, 1).is_none());
        assert!(gate.is_behind());
        assert!(come(&other, 2).is_none(), "somebody waits");
        let request = |asked: Option<RegionCall>| asked.and_then(|asked| asked.call.request);
        assert_eq!(request(gate.next(&calls, is_held)), Some(2));
        assert!(gate.served());
        assert!(gate.next(&calls, is_held).is_none());
        assert_eq!(request(gate.next(&calls, nobody)), Some(1));
        assert!(!gate.served() && !gate.is_behind());
    }
}
