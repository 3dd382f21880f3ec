//! Inboxes: what is posted to a name, for a thread that takes it in its own time.
//!
//! A thread that waits at an inbox reads by itself what the sessions bring that have brought something to inboxes before: no other thread is
//! woken, neither the node's own nor one that handles calls. All other sessions are read by the node's thread, which wakes who waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use exoskel_node::SessionId;
use exoskel_node::links::{AcceptedId, LinkCall, LinkError, MessageContents, PeerFailure};

use super::calls::{Calls, waiting_too_much};
use super::fair_queue::FairQueue;
use super::intake::HandlerKind;
use super::{LinkNode, LinkShared, PATIENCE, RunningSession, lock};
use crate::connection::{LENDING_TIME, wait_at_all};
use crate::wake_up::WakeUp;

/// Sessions that one waiting thread reads, at most: those that have brought something last.
const READ_HERE_MAX: usize = 16;

/// An inbox, for who takes from it.
pub struct LinkInbox {
    shared: Arc<LinkShared>,
    inbox: Arc<SharedInbox>,
    /// Whether the node has a thread that reads when nobody else does.
    has_thread: bool,
}

/// What waits in an inbox.
#[derive(Default)]
pub(super) struct SharedInbox {
    state: Mutex<InboxState>,
    come: Condvar,
}

#[derive(Default)]
struct InboxState {
    /// In turns of the peers.
    waiting: FairQueue<LinkCall>,
    /// The thread that waits here and reads.
    reader: Option<ThreadId>,
    /// Wakes it when others bring something.
    wake_up: Option<Arc<WakeUp>>,
    /// Threads that wait until somebody brings something.
    parked: usize,
    /// Somebody has brought something who doesn't wait here.
    is_brought: bool,
    /// The same, when something was taken last, soon after the time before.
    is_brought_soon: bool,
    /// When something was taken last.
    taken: Option<Instant>,
    is_over: bool,
}

/// The sessions that have brought something to inboxes, the last one first.
#[derive(Default)]
pub(super) struct Feeders(Mutex<Vec<SessionId>>);

impl Feeders {
    fn add(&self, session: SessionId) {
        let mut known = lock(&self.0);
        if known.contains(&session) {
            return;
        }
        known.truncate(READ_HERE_MAX - 1);
        known.insert(0, session);
    }

    fn remove(&self, session: SessionId) {
        lock(&self.0).retain(|&one| one != session);
    }
}

/// How a wait at an inbox has ended.
enum Waited {
    /// Something may be there.
    Read,
    /// Another thread has to bring it.
    Nobody,
}

impl LinkNode {
    /// Adds an inbox to an endpoint, for links that are opened from now on.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::HandlerTaken`].
    pub fn add_inbox(&self, endpoint: &str, name: &str) -> Result<LinkInbox, LinkError> {
        let inbox = Arc::<SharedInbox>::default();
        let kind = HandlerKind::Inbox(inbox.clone());
        self.shared.add_kind(endpoint, name, kind)?;
        Ok(LinkInbox {
            shared: self.shared.clone(),
            inbox,
            has_thread: self.has_thread(),
        })
    }
}

impl LinkInbox {
    /// Takes what has come first, after waiting for `patience` at most. [`LinkInbox::taken`] or [`LinkInbox::refused`] is due then.
    #[must_use]
    pub fn take(&self, patience: Duration) -> Option<LinkCall> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(call) = self.take_waiting() {
                return Some(call);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.is_over() {
                return None;
            }
            let left = left.min(PATIENCE);
            match self.shared.read_for(&self.inbox, left, left.is_zero()) {
                Waited::Read if left.is_zero() && self.is_empty() => return None,
                Waited::Read => {}
                Waited::Nobody if left.is_zero() => return None,
                Waited::Nobody => self.inbox.park(left),
            }
        }
    }

    /// The same for what has been read already.
    #[must_use]
    pub fn take_waiting(&self) -> Option<LinkCall> {
        let call = self.inbox.pop()?;
        self.shared.calls.waits_no_more(&call);
        Some(call)
    }

    /// Whether other threads have to be woken to bring something, though this one takes so often that it may as well read by itself:
    /// [`read_on`](Self::read_on).
    #[must_use]
    pub fn is_brought(&self) -> bool {
        self.has_thread && lock(&self.inbox.state).is_brought_soon
    }

    /// Reads what is there, and has this thread read next time.
    pub fn read_on(&self) {
        // Somebody else may read.
        let _ = self.shared.read_for(&self.inbox, Duration::ZERO, false);
    }

    /// Whether nothing waits in it. More may have come that nobody has read yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.inbox.state).waiting.is_empty()
    }

    /// How much waits in it.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.inbox.state).waiting.len()
    }

    /// Whether the node is closed: nothing can be taken any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        lock(&self.inbox.state).is_over
    }

    /// What was taken has been read: its sender may send more, and has its answer if it wants one.
    pub fn taken(&self, call: &LinkCall, answer: Option<MessageContents>) {
        if let Some(answer) = answer {
            self.shared.answer_now(call, answer, false);
        }
        self.shared.give_back(call);
    }

    /// What was taken is nothing for an inbox.
    pub fn refused(&self, call: &LinkCall, failure: &PeerFailure) {
        self.shared.answer_failure(call, failure);
        self.shared.give_back(call);
    }
}

impl SharedInbox {
    fn put(&self, call: LinkCall) {
        let mut state = lock(&self.state);
        let process = call.process.clone();
        state.waiting.push(&process, call);
        let me = thread::current().id();
        state.is_brought |= state.reader != Some(me);
        match &state.reader {
            Some(reader) if *reader != me => {
                let wake_up = state.wake_up.clone();
                drop(state);
                if let Some(wake_up) = wake_up {
                    wake_up.raise();
                }
            }
            // It has brought itself something, and looks.
            Some(_) if state.waiting.len() == 1 => {}
            _ if state.parked > 0 => {
                drop(state);
                self.come.notify_one();
            }
            _ => {}
        }
    }

    fn pop(&self) -> Option<LinkCall> {
        let mut state = lock(&self.state);
        let call = state.waiting.pop(|_| true)?;
        let (now, is_brought) = (Instant::now(), std::mem::take(&mut state.is_brought));
        let before = state.taken.replace(now);
        let is_soon = before.is_some_and(|before| now - before < LENDING_TIME);
        state.is_brought_soon = is_brought && is_soon;
        let is_left = !state.waiting.is_empty() && state.parked > 0;
        drop(state);
        if is_left {
            self.come.notify_one();
        }
        Some(call)
    }

    fn is_wanted(&self) -> bool {
        let state = lock(&self.state);
        state.waiting.is_empty() && !state.is_over
    }

    fn park(&self, patience: Duration) {
        let mut state = lock(&self.state);
        state.parked += 1;
        let waited = self.come.wait_timeout_while(state, patience, |state| {
            state.waiting.is_empty() && !state.is_over
        });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.parked -= 1;
    }

    /// Has this thread wait by reading, unless another one does or the process is out of descriptors.
    fn begin_reading(&self) -> Option<Arc<WakeUp>> {
        let mut state = lock(&self.state);
        if state.reader.is_some() || state.is_over {
            return None;
        }
        let wake_up = match &state.wake_up {
            Some(wake_up) => wake_up.clone(),
            None => {
                let made = Arc::new(WakeUp::new().ok()?);
                state.wake_up.insert(made).clone()
            }
        };
        state.reader = Some(thread::current().id());
        Some(wake_up)
    }

    /// Says whether others wait here, who can't know that nobody reads.
    fn end_reading(&self, wake_up: &WakeUp) -> bool {
        let mut state = lock(&self.state);
        state.reader = None;
        wake_up.take();
        let is_parked = state.parked > 0;
        drop(state);
        if is_parked {
            self.come.notify_one();
        }
        is_parked
    }

    /// Drops what has come by a link that has no right to it any more.
    fn forget(&self, link: AcceptedId, calls: &Calls) {
        lock(&self.state).waiting.retain(|call| {
            let is_over = call.accepted == link;
            if is_over {
                calls.waits_no_more(call);
            }
            !is_over
        });
    }

    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.waiting = FairQueue::default();
        let wake_up = state.wake_up.take();
        drop(state);
        self.come.notify_all();
        if let Some(wake_up) = wake_up {
            wake_up.raise();
        }
    }
}

impl LinkShared {
    /// Something has come for an inbox.
    pub(super) fn inbox_asked(self: &Arc<Self>, inbox: &SharedInbox, call: LinkCall) {
        if let Err(got) = self.calls.waits(&call) {
            return self.end_for_waiting(call.accepted, waiting_too_much(got));
        }
        self.feeders.add(call.session);
        let accepted = call.accepted;
        inbox.put(call);
        if !self.is_kept(accepted) {
            // The link has ended meanwhile.
            self.forget_in_inboxes(accepted);
        }
    }

    /// Drops what has come by a link that has no right to it any more.
    pub(super) fn forget_in_inboxes(&self, link: AcceptedId) {
        for inbox in self.intake.inboxes() {
            inbox.forget(link, &self.calls);
        }
    }

    pub(super) fn end_inboxes(&self) {
        for inbox in self.intake.inboxes() {
            inbox.end();
        }
    }

    /// Reads on this thread until something is in the inbox, for `patience` at most, where nobody else reads; with `is_left_to_nobody`, where
    /// nobody would read soon.
    fn read_for(
        self: &Arc<Self>,
        inbox: &SharedInbox,
        patience: Duration,
        is_left_to_nobody: bool,
    ) -> Waited {
        let feeders = lock(&self.feeders.0).clone();
        if feeders.is_empty() {
            return Waited::Nobody;
        }
        let Some(wake_up) = inbox.begin_reading() else {
            return Waited::Nobody;
        };
        let mut lives = Vec::with_capacity(feeders.len());
        for session in feeders {
            match self.live(session) {
                Some(live) if live.borrow(is_left_to_nobody) => lives.push(live),
                Some(_) => {}
                None => self.feeders.remove(session),
            }
        }
        let waited = match lives.is_empty() {
            true => Waited::Nobody,
            false => self.read_all_for(inbox, &mut lives, &wake_up, Instant::now() + patience),
        };
        let is_parked = inbox.end_reading(&wake_up);
        // Who waits for an answer doesn't know that nobody reads.
        let is_last = is_parked || self.waiting.load(Ordering::SeqCst) > 0;
        for live in lives {
            live.give_back(is_last);
        }
        waited
    }

    fn read_all_for(
        self: &Arc<Self>,
        inbox: &SharedInbox,
        lives: &mut Vec<Arc<RunningSession>>,
        wake_up: &WakeUp,
        deadline: Instant,
    ) -> Waited {
        loop {
            lives.retain(|live| {
                let goes_on = live
                    .connection
                    .read_borrowed(|event| self.event(live, event));
                if !goes_on {
                    live.give_back(true);
                }
                goes_on
            });
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !inbox.is_wanted() {
                return Waited::Read;
            }
            if lives.is_empty() {
                return Waited::Nobody;
            }
            let connections: Vec<_> = lives.iter().map(|live| &*live.connection).collect();
            if wait_at_all(&connections, left, wake_up).is_err() {
                // The tasks find out why.
                return Waited::Nobody;
            }
            wake_up.take();
        }
    }
}

impl RunningSession {
    fn borrow(&self, is_left_to_nobody: bool) -> bool {
        if self.is_read_here.swap(true, Ordering::Acquire) {
            return false;
        }
        let is_borrowed = self.connection.borrow_reading(is_left_to_nobody);
        if !is_borrowed {
            self.is_read_here.store(false, Ordering::Release);
        }
        is_borrowed
    }

    fn give_back(&self, is_last: bool) {
        self.connection.give_reading_back(is_last);
        self.is_read_here.store(false, Ordering::Release);
    }
}
