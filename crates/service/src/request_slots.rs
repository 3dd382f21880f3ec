//! How many requests run and how many wait, of all clients and of each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use exoskel_identity::VerifiedIdentity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connections::host;
use crate::limits::Limits;

/// The slots of one server, over all its connections.
#[derive(Debug)]
pub(crate) struct RequestSlots {
    running: Arc<Semaphore>,
    /// Room in the queue, that of running requests included: who gets none here need not wait.
    queue: Arc<Semaphore>,
    wait: Duration,
    shares: Shares,
}

/// The slot of a running request; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    _running: OwnedSemaphorePermit,
    _queue: OwnedSemaphorePermit,
    _part: HeldPart,
}

/// Why there is no slot for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// The client itself holds as many as one may.
    OfThisIdentity,
    /// All clients together do, and the queue is full or does not move.
    OfAll,
}

impl RequestSlots {
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
            shares: Shares::new(limits.requests_per_identity_max),
        }
    }

    /// The share of somebody in these slots.
    pub(crate) fn share_of(&self, identity: &VerifiedIdentity) -> Arc<Share> {
        self.shares.of(identity)
    }

    /// The share of a stranger: of all strangers of its host.
    pub(crate) fn share_of_stranger(&self, address: IpAddr) -> Arc<Share> {
        self.shares.of_stranger(address)
    }

    /// A slot, at once or after some waiting.
    pub(crate) async fn take(&self, share: &Arc<Share>) -> Result<RequestSlot, NoSlot> {
        let part = share.take().ok_or(NoSlot::OfThisIdentity)?;
        let queue = self.queue.clone().try_acquire_owned();
        let queue = queue.map_err(|_| NoSlot::OfAll)?;
        let running = match self.running.clone().try_acquire_owned() {
            Ok(running) => running,
            Err(_) => {
                let waiting = self.running.clone().acquire_owned();
                let waited = tokio::time::timeout(self.wait, waiting).await;
                waited
                    .map_err(|_| NoSlot::OfAll)?
                    .map_err(|_| NoSlot::OfAll)?
            }
        };
        Ok(RequestSlot {
            _running: running,
            _queue: queue,
            _part: part,
        })
    }
}

/// How much of something each identity holds.
#[derive(Debug)]
pub(crate) struct Shares {
    of_one_max: usize,
    /// One entry for each identity that has a connection. There are never more than connections.
    table: Arc<ShareTable>,
}

type ShareTable = Mutex<HashMap<String, Weak<Share>>>;

/// What one identity holds, over all its connections.
#[derive(Debug)]
pub(crate) struct Share {
    owner: String,
    held: AtomicUsize,
    max: usize,
    table: Arc<ShareTable>,
}

/// One of what an identity may hold.
#[derive(Debug)]
pub(crate) struct HeldPart(Arc<Share>);

impl Shares {
    pub(crate) fn new(of_one_max: usize) -> Self {
        Self {
            of_one_max,
            table: Arc::default(),
        }
    }

    /// The share of somebody, whatever proxies and however many connections they use.
    pub(crate) fn of(&self, identity: &VerifiedIdentity) -> Arc<Share> {
        self.named(owner(identity))
    }

    /// The share of all strangers of a host.
    pub(crate) fn of_stranger(&self, address: IpAddr) -> Arc<Share> {
        self.named(format!("stranger at {}", host(address.to_canonical())))
    }

    fn named(&self, owner: String) -> Arc<Share> {
        let mut table = locked(&self.table);
        if let Some(share) = table.get(&owner).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Share {
            owner: owner.clone(),
            held: AtomicUsize::new(0),
            max: self.of_one_max,
            table: self.table.clone(),
        });
        table.insert(owner, Arc::downgrade(&share));
        share
    }
}

impl Share {
    /// One more, if it is not too much.
    pub(crate) fn take(self: &Arc<Self>) -> Option<HeldPart> {
        let more = |held: usize| (held < self.max).then_some(held + 1);
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(HeldPart(self.clone()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut table = locked(&self.table);
        // Somebody may have come back meanwhile, and has a share of their own.
        if table
            .get(&self.owner)
            .is_some_and(|known| known.strong_count() == 0)
        {
            table.remove(&self.owner);
        }
    }
}

impl Drop for HeldPart {
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

fn locked(table: &ShareTable) -> MutexGuard<'_, HashMap<String, Weak<Share>>> {
    // Nothing panics while it is held.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
