//! How many requests run and how many wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::Limits;

/// The places of one server, over all its connections.
#[derive(Debug)]
pub(crate) struct Places {
    running: Arc<Semaphore>,
    /// Places in the queue, those of running requests included: who gets none here need not wait.
    queue: Arc<Semaphore>,
    wait: Duration,
}

/// A request's place; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _running: OwnedSemaphorePermit,
    _queue: OwnedSemaphorePermit,
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
        }
    }

    /// A place, at once or after some waiting; none when the queue is full or does not move.
    pub(crate) async fn take(&self) -> Option<Place> {
        let queue = self.queue.clone().try_acquire_owned().ok()?;
        let running = match self.running.clone().try_acquire_owned() {
            Ok(running) => running,
            Err(_) => {
                let waiting = self.running.clone().acquire_owned();
                tokio::time::timeout(self.wait, waiting).await.ok()?.ok()?
            }
        };
        Some(Place {
            _running: running,
            _queue: queue,
        })
    }
}
