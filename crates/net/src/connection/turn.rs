//! Turns of a peer at the thread that serves its connections: however many it has, it gets as much time as a peer with one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long what was read is handed out before the task looks at other connections again: few bytes may take long to deal with.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(1);

/// The turns of one peer, for all its connections that one thread serves. Who has used up the turn keeps it until others have had theirs.
#[derive(Debug)]
pub struct PeerTurn {
    /// First come, first served.
    free: Arc<Semaphore>,
    used_nanoseconds: AtomicU64,
}

/// A turn that somebody has.
pub(super) struct TakenTurn(OwnedSemaphorePermit);

/// Waits for a turn. It keeps its place in line while other things are waited for as well.
pub(super) type TurnWait = Pin<Box<dyn Future<Output = TakenTurn> + Send>>;

impl Default for PeerTurn {
    fn default() -> Self {
        Self {
            free: Arc::new(Semaphore::new(1)),
            used_nanoseconds: AtomicU64::new(0),
        }
    }
}

impl PeerTurn {
    /// The turn, unless another connection of the peer has it.
    pub(super) fn try_take(&self) -> Option<TakenTurn> {
        self.free.clone().try_acquire_owned().ok().map(TakenTurn)
    }

    pub(super) fn take(&self) -> TurnWait {
        let free = self.free.clone();
        Box::pin(async move {
            match free.acquire_owned().await {
                Ok(permit) => TakenTurn(permit),
                // Nobody closes it.
                Err(_) => std::future::pending().await,
            }
        })
    }

    /// Gives the turn back after so long. If it is used up, all others who wait for the thread come first.
    pub(super) async fn give_back(&self, taken: TakenTurn, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let used = self.used_nanoseconds.load(Relaxed).saturating_add(time);
        let is_over = u128::from(used) >= TURN_TIME.as_nanos();
        // Only who has the turn counts.
        let used = if is_over { 0 } else { used };
        self.used_nanoseconds.store(used, Relaxed);
        if is_over {
            tokio::task::yield_now().await;
        }
        drop(taken.0);
    }
}
