//! Calls that wait to be handled: no two calls of one link are handled at once, peers take turns and so do the links of each, and what one
//! peer has waiting is bounded.
//!
//! A thread that has handled a call [listens](Calls::listen) to the session that has brought it, for a moment: a peer that asks again soon
//! wakes this thread and no other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use exoskel_node::links::{AcceptedId, LinkCall, PeerProcess};

use super::fair_queue::FairQueue;
use super::lock;
use crate::wake_up::WakeUp;

/// Between two looks at peers that have too many answers to read.
pub(super) const UNREAD_PAUSE: Duration = Duration::from_millis(5);

/// What the calls of one process may hold that nobody handles yet, whatever sessions have brought them. Credit bounds each of its links;
/// there can be thousands of links.
pub(super) const WAITING_BYTES_MAX: u64 = 1 << 30;

/// What a peer is told whose waiting calls hold so much.
pub(super) fn waiting_too_much(got: u64) -> String {
    format!(
        "the calls that wait hold {got} bytes, expected at most {WAITING_BYTES_MAX}: wait for answers before more is asked"
    )
}

#[derive(Default)]
pub(super) struct Calls {
    waiting: Mutex<WaitingCalls>,
}

#[derive(Default)]
struct WaitingCalls {
    by_endpoint: BTreeMap<String, EndpointCalls>,
    /// What the waiting calls of each process hold.
    bytes: BTreeMap<Arc<PeerProcess>, u64>,
    is_over: bool,
}

#[derive(Default)]
struct EndpointCalls {
    links: BTreeMap<AcceptedId, CallsOfLink>,
    /// Links of which a call waits and none is handled, each once.
    ready: FairQueue<AcceptedId>,
    /// Wakes a thread of this endpoint, and of no other.
    come: Arc<Condvar>,
    /// How many wait for that. To wake nobody would cost as much as to wake somebody.
    parked: usize,
    /// Wakes those of its threads that listen.
    wake_up: Option<Arc<WakeUp>>,
    listeners: Vec<ListeningThread>,
    /// The link of the call that was taken last, until somebody listens for its next one.
    recent: Option<AcceptedId>,
}

/// A thread that reads what a session brings, while it has no call.
struct ListeningThread {
    thread: ThreadId,
    /// Whether it has brought itself one, and needs nobody to be woken.
    has_call: bool,
}

/// A thread that listens, until this is dropped.
pub(super) struct ListeningTurn<'a> {
    calls: &'a Calls,
    endpoint: &'a str,
    /// Whose next call it hopes for.
    pub(super) link: AcceptedId,
    /// Raised when there is a call that it hasn't read itself.
    pub(super) wake_up: Arc<WakeUp>,
}

#[derive(Default)]
struct CallsOfLink {
    waiting: VecDeque<LinkCall>,
    /// Whether somebody handles one.
    is_busy: bool,
}

/// Who is woken when the lock is free.
#[derive(Default)]
struct Wake {
    parked: Option<Arc<Condvar>>,
    listening: Option<Arc<WakeUp>>,
}

impl Wake {
    fn now(self) {
        if let Some(come) = self.parked {
            come.notify_one();
        }
        if let Some(wake_up) = self.listening {
            wake_up.raise();
        }
    }
}

enum NextCall {
    Call(Box<LinkCall>),
    /// There are some, of peers that have too many answers to read.
    Held,
    Nothing,
}

impl ListeningTurn<'_> {
    /// Whether there is nothing to be handled yet. Takes back what the wake-up was raised for until now.
    pub(super) fn is_to_go_on(&self) -> bool {
        self.wake_up.take();
        self.is_idle()
    }

    /// Whether there is nothing to be handled yet.
    pub(super) fn is_idle(&self) -> bool {
        let waiting = lock(&self.calls.waiting);
        let endpoint = waiting.by_endpoint.get(self.endpoint);
        !waiting.is_over && endpoint.is_some_and(|calls| calls.ready.is_empty())
    }
}

impl Drop for ListeningTurn<'_> {
    fn drop(&mut self) {
        let me = thread::current().id();
        let mut waiting = lock(&self.calls.waiting);
        if let Some(endpoint) = waiting.by_endpoint.get_mut(self.endpoint) {
            endpoint.listeners.retain(|listener| listener.thread != me);
        }
        drop(waiting);
        // Whoever listens as well has been woken, and looks by itself.
        self.wake_up.take();
    }
}

impl WaitingCalls {
    fn come(&mut self, endpoint: &str) -> Arc<Condvar> {
        if let Some(calls) = self.by_endpoint.get(endpoint) {
            return calls.come.clone();
        }
        let calls = self.by_endpoint.entry(endpoint.to_owned());
        calls.or_default().come.clone()
    }

    /// A thread waits, or doesn't wait any more.
    fn park(&mut self, endpoint: &str, change: isize) {
        if let Some(calls) = self.by_endpoint.get_mut(endpoint) {
            calls.parked = calls.parked.saturating_add_signed(change);
        }
    }

    /// A call is to wait, unless those of its process hold too much: then says how much that would be.
    fn count(&mut self, call: &LinkCall) -> Result<(), u64> {
        let before = self.bytes.get(&call.process).copied();
        let more = before.unwrap_or_default().saturating_add(call.weight());
        if more > WAITING_BYTES_MAX {
            return Err(more);
        }
        self.bytes.insert(call.process.clone(), more);
        Ok(())
    }

    /// A call waits no more.
    fn release(&mut self, call: &LinkCall) {
        if let Some(bytes) = self.bytes.get_mut(&call.process) {
            *bytes = bytes.saturating_sub(call.weight());
            if *bytes == 0 {
                self.bytes.remove(&call.process);
            }
        }
    }
}

impl EndpointCalls {
    /// Who is to be woken for a link whose turn it is.
    fn wake(&mut self) -> Wake {
        let me = thread::current().id();
        let mut listeners = self.listeners.iter_mut();
        if let Some(listener) = listeners.find(|one| one.thread == me && !one.has_call) {
            listener.has_call = true;
            return Wake::default();
        }
        let others = self.listeners.iter().any(|one| one.thread != me);
        Wake {
            parked: self.parked(),
            listening: self.wake_up.clone().filter(|_| others),
        }
    }

    fn parked(&self) -> Option<Arc<Condvar>> {
        (self.parked > 0).then(|| self.come.clone())
    }

    /// Whom to wake for calls that are left when one has been taken: of several listeners one may have taken the wake-up of all.
    fn more(&self) -> Option<Arc<WakeUp>> {
        let is_left = !self.ready.is_empty() && !self.listeners.is_empty();
        self.wake_up.clone().filter(|_| is_left)
    }

    fn next(&mut self, is_held: impl Fn(&LinkCall) -> bool) -> NextCall {
        loop {
            let links = &self.links;
            let is_free = |link: &AcceptedId| {
                let first = links.get(link).and_then(|calls| calls.waiting.front());
                first.is_none_or(|call| !is_held(call))
            };
            let Some(link) = self.ready.pop(is_free) else {
                break;
            };
            let Some(calls) = self.links.get_mut(&link) else {
                continue;
            };
            if let Some(call) = calls.waiting.pop_front() {
                calls.is_busy = true;
                self.recent = Some(link);
                return NextCall::Call(Box::new(call));
            }
        }
        if self.ready.is_empty() {
            NextCall::Nothing
        } else {
            NextCall::Held
        }
    }

    /// Says whether the link has its turn again.
    fn handled(&mut self, link: AcceptedId) -> bool {
        let Some(calls) = self.links.get_mut(&link) else {
            return false;
        };
        calls.is_busy = false;
        let Some(next) = calls.waiting.front() else {
            self.links.remove(&link);
            return false;
        };
        self.ready.push(&next.process, link);
        true
    }
}

impl Calls {
    /// Takes a call in, unless its process has too much waiting: then says how much that would be.
    pub(super) fn put(&self, call: LinkCall) -> Result<(), u64> {
        let mut guard = lock(&self.waiting);
        let waiting = &mut *guard;
        waiting.count(&call)?;
        let link = call.accepted;
        let endpoint = match waiting.by_endpoint.get_mut(&call.endpoint) {
            Some(endpoint) => endpoint,
            None => {
                let endpoint = waiting.by_endpoint.entry(call.endpoint.clone());
                endpoint.or_default()
            }
        };
        let calls = endpoint.links.entry(link).or_default();
        let mut wake = Wake::default();
        if calls.waiting.is_empty() && !calls.is_busy {
            endpoint.ready.push(&call.process, link);
            calls.waiting.push_back(call);
            wake = endpoint.wake();
        } else {
            calls.waiting.push_back(call);
        }
        drop(guard);
        wake.now();
        Ok(())
    }

    /// A call waits elsewhere, and counts among those of its process.
    ///
    /// # Errors
    /// How much they would hold, if that is too much; the call doesn't count then.
    pub(super) fn waits(&self, call: &LinkCall) -> Result<(), u64> {
        lock(&self.waiting).count(call)
    }

    /// The call doesn't wait elsewhere any more.
    pub(super) fn waits_no_more(&self, call: &LinkCall) {
        lock(&self.waiting).release(call);
    }

    /// Says that the calling thread listens for the endpoint's next call, if it has handled one and the process has a descriptor left.
    pub(super) fn listen<'a>(&'a self, endpoint: &'a str) -> Option<ListeningTurn<'a>> {
        let mut waiting = lock(&self.waiting);
        let calls = waiting.by_endpoint.get_mut(endpoint)?;
        let link = calls.recent.take()?;
        let wake_up = match &calls.wake_up {
            Some(wake_up) => wake_up.clone(),
            None => {
                let made = Arc::new(WakeUp::new().ok()?);
                calls.wake_up.insert(made).clone()
            }
        };
        calls.listeners.push(ListeningThread {
            thread: thread::current().id(),
            has_call: false,
        });
        Some(ListeningTurn {
            calls: self,
            endpoint,
            link,
            wake_up,
        })
    }

    /// The next call, after waiting for `patience` at most. Those of a peer that `is_held` wait until it no longer is.
    pub(super) fn take(
        &self,
        endpoint: &str,
        patience: Duration,
        is_held: impl Fn(&LinkCall) -> bool,
    ) -> Option<LinkCall> {
        let deadline = Instant::now() + patience;
        let mut guard = lock(&self.waiting);
        let come = guard.come(endpoint);
        loop {
            let waiting = &mut *guard;
            let calls = waiting.by_endpoint.get_mut(endpoint);
            let (next, wake) = calls.map_or((NextCall::Nothing, None), |calls| {
                (calls.next(&is_held), calls.more())
            });
            let mut left = deadline.saturating_duration_since(Instant::now());
            match next {
                NextCall::Call(call) => {
                    waiting.release(&call);
                    drop(guard);
                    if let Some(listening) = wake {
                        listening.raise();
                    }
                    return Some(*call);
                }
                NextCall::Held => left = left.min(UNREAD_PAUSE),
                NextCall::Nothing => {}
            }
            if left.is_zero() || waiting.is_over {
                return None;
            }
            waiting.park(endpoint, 1);
            guard = come
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            guard.park(endpoint, -1);
        }
    }

    pub(super) fn handled(&self, call: &LinkCall) {
        let mut waiting = lock(&self.waiting);
        let endpoint = waiting.by_endpoint.get_mut(&call.endpoint);
        // The link's next call can be taken; whoever handled this one may do something else first.
        let come = endpoint.and_then(|endpoint| {
            let has_more = endpoint.handled(call.accepted);
            endpoint.parked().filter(|_| has_more)
        });
        drop(waiting);
        if let Some(come) = come {
            come.notify_one();
        }
    }

    /// A link is over: nobody waits for what it has asked.
    pub(super) fn forget(&self, link: AcceptedId) {
        let mut waiting = lock(&self.waiting);
        let mut dropped = Vec::new();
        for endpoint in waiting.by_endpoint.values_mut() {
            if let Some(calls) = endpoint.links.remove(&link) {
                endpoint.ready.retain(|other| *other != link);
                dropped.extend(calls.waiting);
            }
        }
        dropped.iter().for_each(|call| waiting.release(call));
        drop(waiting);
    }

    pub(super) fn end(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.is_over = true;
        for endpoint in std::mem::take(&mut waiting.by_endpoint).into_values() {
            endpoint.come.notify_all();
            if let Some(wake_up) = endpoint.wake_up {
                wake_up.raise();
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use exoskel_identity::{Expected, PeerVerifier, Role, VerifiedIdentity};
    use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};
    use exoskel_node::SessionId;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustls::pki_types::UnixTime;

    use super::*;
    use crate::pki::ThrowAwayAuthority;

    pub(in super::super) fn peer() -> Arc<VerifiedIdentity> {
        peer_named("ocean")
    }

    pub(in super::super) fn peer_named(name: &str) -> Arc<VerifiedIdentity> {
        let now = UnixTime::now();
        let authority = ThrowAwayAuthority::new(now).unwrap();
        let credential = authority.issue(Role::Peer, name, now).unwrap();
        let verifier = credential.authority(1).unwrap();
        let expected = Expected {
            roles: &[Role::Peer],
            name: None,
        };
        let verified = verifier.verify(credential.chain(), now, &expected);
        Arc::new(verified.unwrap())
    }

    pub(in super::super) fn link(process: u8, number: u64) -> AcceptedId {
        AcceptedId::from_number(100 * u64::from(process) + number)
    }

    pub(in super::super) fn call(
        peer: &Arc<VerifiedIdentity>,
        process: u8,
        number: u64,
        request: u64,
    ) -> LinkCall {
        LinkCall {
            accepted: link(process, number),
            session: SessionId(u32::from(process)),
            process: Arc::new(PeerProcess {
                node: peer.identity().clone(),
                process: ProcessNumber::new([process; PROCESS_NUMBER_BYTES]),
            }),
            endpoint: "coupler".to_owned(),
            handler: "surface".to_owned(),
            request: Some(request),
            peer: peer.clone(),
            head: Bytes::new(),
            bulk: Vec::new(),
            size: 64,
        }
    }

    fn take(calls: &Calls) -> Option<LinkCall> {
        calls.take("coupler", Duration::ZERO, |_| false)
    }

    fn requests(calls: &Calls) -> Vec<u64> {
        std::iter::from_fn(|| take(calls)?.request).collect()
    }

    #[test]
    fn links_take_turns_and_keep_their_order() {
        let (calls, peer) = (Calls::default(), peer());
        for (link, request) in [(1, 1), (1, 2), (3, 3), (5, 4), (3, 5)] {
            calls.put(call(&peer, 0, link, request)).unwrap();
        }
        let first = take(&calls).unwrap();
        assert_eq!(first.request, Some(1));
        assert_eq!(requests(&calls), [3, 4], "a link that is busy has no turn");
        calls.handled(&first);
        assert_eq!(requests(&calls), [2]);
        calls.handled(&call(&peer, 0, 3, 3));
        assert_eq!(requests(&calls), [5]);
    }

    /// Aim: who opens many links, in many processes, has no more turns than who opens one.
    #[test]
    fn peers_take_turns_however_many_links_they_have() {
        let (calls, crowd, alone) = (Calls::default(), peer(), peer_named("atmosphere"));
        for number in 1..=4 {
            let process = number as u8 % 2;
            calls.put(call(&crowd, process, number, number)).unwrap();
        }
        for number in 1..=2 {
            calls.put(call(&alone, 5, number, 10 + number)).unwrap();
        }
        assert_eq!(requests(&calls), [1, 11, 2, 12, 3, 4]);
    }

    fn is_raised(listening: &ListeningTurn<'_>) -> bool {
        let mut waits = [PollFd::new(&*listening.wake_up, PollFlags::IN)];
        poll(&mut waits, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn who_has_handled_a_call_listens_for_the_next_one_of_its_link() {
        let (calls, peer) = (Calls::default(), peer());
        assert!(calls.listen("coupler").is_none(), "nobody has called");
        calls.put(call(&peer, 0, 1, 1)).unwrap();
        let first = take(&calls).unwrap();
        calls.handled(&first);
        let listening = calls.listen("coupler").unwrap();
        assert_eq!(listening.link, link(0, 1));
        assert!(calls.listen("coupler").is_none(), "one thread is enough");
        assert!(listening.is_to_go_on());
        // What it reads itself interrupts nobody.
        calls.put(call(&peer, 0, 1, 2)).unwrap();
        assert!(!is_raised(&listening) && !listening.is_to_go_on());
        drop(listening);
        assert_eq!(requests(&calls), [2]);
    }

    #[test]
    fn a_call_that_others_bring_interrupts_who_listens() {
        let (calls, peer) = (Calls::default(), peer());
        calls.put(call(&peer, 0, 1, 1)).unwrap();
        calls.handled(&take(&calls).unwrap());
        let listening = calls.listen("coupler").unwrap();
        let put = |number, request| {
            let call = call(&peer, 0, number, request);
            thread::scope(|scope| scope.spawn(|| calls.put(call)).join().unwrap()).unwrap();
        };
        put(3, 2);
        assert!(is_raised(&listening) && !listening.is_to_go_on());
        drop(listening);
        let second = take(&calls).unwrap();
        let listening = calls.listen("coupler").unwrap();
        put(3, 3);
        assert!(!is_raised(&listening), "its link is busy");
        put(5, 4);
        put(7, 5);
        assert!(is_raised(&listening));
        listening.wake_up.take();
        // Of several who listen, one may have taken the wake-up.
        assert_eq!(take(&calls).unwrap().request, Some(4));
        assert!(is_raised(&listening));
        drop(listening);
        calls.handled(&second);
        assert_eq!(requests(&calls), [5, 3]);
        let listening = calls.listen("coupler").unwrap();
        calls.end();
        assert!(is_raised(&listening) && !listening.is_to_go_on());
    }

    #[test]
    fn those_of_a_peer_that_is_held_wait_for_it_alone() {
        let (calls, peer, other) = (Calls::default(), peer(), peer_named("atmosphere"));
        calls.put(call(&peer, 0, 1, 1)).unwrap();
        calls.put(call(&other, 1, 1, 2)).unwrap();
        let held = |call: &LinkCall| call.accepted == link(0, 1);
        let taken = calls.take("coupler", Duration::ZERO, held).unwrap();
        assert_eq!(taken.request, Some(2));
        assert!(calls.take("coupler", Duration::ZERO, held).is_none());
        assert_eq!(requests(&calls), [1]);
    }

    #[test]
    fn what_a_process_has_waiting_is_bounded() {
        let (calls, peer) = (Calls::default(), peer());
        let large = |process, number| LinkCall {
            size: WAITING_BYTES_MAX / 2,
            ..call(&peer, process, number, 1)
        };
        calls.put(large(0, 1)).unwrap();
        assert!(calls.put(large(0, 2)).unwrap_err() > WAITING_BYTES_MAX);
        calls.put(large(1, 1)).unwrap();
        // What somebody handles waits no more.
        let taken = take(&calls).unwrap();
        calls.put(large(0, 1)).unwrap();
        calls.handled(&taken);
        // Nor do the calls of a link that is over.
        calls.forget(link(0, 1));
        calls.forget(link(1, 1));
        assert!(take(&calls).is_none());
        assert!(lock(&calls.waiting).bytes.is_empty());
        calls.put(large(0, 2)).unwrap();
    }
}
