//! How many requests run and how many wait, of all clients and of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::Limits;

/// The places of one server, over all its connections.
#[derive(Debug)]
pub(crate) struct Places {
    running: Arc<Semaphore>,
    /// Places in the queue, those of running requests included: who gets none here need not wait.
    queue: Arc<Semaphore>,
    wait: Duration,
    of_one_identity_max: usize,
    /// One entry for each identity that has a connection. There are never more than connections.
    shares: Arc<Shares>,
}

type Shares = Mutex<HashMap<String, Weak<Share>>>;

/// What one identity holds of the places, over all its connections.
#[derive(Debug)]
pub(crate) struct Share {
    owner: String,
    held: AtomicUsize,
    shares: Arc<Shares>,
}

/// A request's place; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _running: OwnedSemaphorePermit,
    _queue: OwnedSemaphorePermit,
    _part: Part,
}

/// One place less for an identity's other requests.
#[derive(Debug)]
struct Part(Arc<Share>);

/// Why there is no place for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The client itself holds as many as one may.
    OfThisIdentity,
    /// All clients together do, and the queue is full or does not move.
    OfAll,
}

impl Places {
    pub(crate) fn new(limits: &Limits) -> Self {
        let semaphore = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self {
            running: semaphore(limits.requests_max),
            queue: semaphore(
                limits
                    .requests_max
                    .saturating_add(limits.requests_waiting_max),
            ),
            wait: limits.request_wait_time,
            of_one_identity_max: limits.requests_per_identity_max,
            shares: Arc::default(),
        }
    }

    /// The share of somebody, whatever proxies and however many connections they use.
    pub(crate) fn share_of(&self, identity: &VerifiedIdentity) -> Arc<Share> {
        let owner = owner(identity);
        let mut shares = locked(&self.shares);
        if let Some(share) = shares.get(&owner).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Share {
            owner: owner.clone(),
            held: AtomicUsize::new(0),
            shares: self.shares.clone(),
        });
        shares.insert(owner, Arc::downgrade(&share));
        share
    }

    /// A place, at once or after some waiting.
    pub(crate) async fn take(&self, share: &Arc<Share>) -> Result<Place, NoPlace> {
        let part = share
            .take(self.of_one_identity_max)
            .ok_or(NoPlace::OfThisIdentity)?;
        let queue = self.queue.clone().try_acquire_owned();
        let queue = queue.map_err(|_| NoPlace::OfAll)?;
        let running = match self.running.clone().try_acquire_owned() {
            Ok(running) => running,
            Err(_) => {
                let waiting = self.running.clone().acquire_owned();
                let waited = tokio::time::timeout(self.wait, waiting).await;
                waited
                    .map_err(|_| NoPlace::OfAll)?
                    .map_err(|_| NoPlace::OfAll)?
            }
        };
        Ok(Place {
            _running: running,
            _queue: queue,
            _part: part,
        })
    }
}

impl Share {
    fn take(self: &Arc<Self>, max: usize) -> Option<Part> {
        let more = |held: usize| (held < max).then_some(held + 1);
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(Part(self.clone()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = locked(&self.shares);
        // Somebody may have come back meanwhile, and has a share of their own.
        if shares
            .get(&self.owner)
            .is_some_and(|known| known.strong_count() == 0)
        {
            shares.remove(&self.owner);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who is behind an identity: a person can make as many independent proxies, each with a subject of its own, as they like.
fn owner(identity: &VerifiedIdentity) -> String {
    let end_entity = identity.owners().last().map(String::as_str);
    end_entity
        .or_else(|| identity.grid_subject())
        .map_or_else(|| identity.identity().to_string(), str::to_owned)
}

fn locked(shares: &Shares) -> MutexGuard<'_, HashMap<String, Weak<Share>>> {
    // Nothing panics while it is held.
    shares.lock().unwrap_or_else(PoisonError::into_inner)
}
