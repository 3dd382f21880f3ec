//! Where the outcomes of one stream wait for the user: the only place that the driver and user threads share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use exoskel_task::outcome::{Contents, Origin, Outcomes};
pub use exoskel_task::router::OpenError;

use crate::manager::Attempt;

/// Attempts that one line tells of, at most.
const RECENT_MAX: usize = 5;

/// In which order outcomes are handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeOrder {
    /// The items' own.
    Admission,
    /// As they come.
    Completion,
}

/// What a look into the queue found.
#[derive(Debug)]
pub enum Taken {
    /// Outcomes.
    Outcomes(Outcomes),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come: the reason.
    Ended(StreamEnd),
}

/// Why a stream has ended before all of its items had their outcomes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamEnd {
    /// Its manager was closed.
    #[error("the manager was closed")]
    Closed,
    /// It could not be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The input of an item is gone.
    #[error("lost track of an item's input; this is a defect of exoskel")]
    LostTrack,
    /// Nobody is left to work and nobody can be found: the last attempt at each place where one has failed.
    #[error("no worker is left and none can be found: {}", recent(.0))]
    NoWorker(Arc<[Attempt]>),
}

/// The last of many reasons, on one line.
fn recent(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "none was asked".to_owned();
    }
    let recent = attempts.len().saturating_sub(RECENT_MAX);
    let texts: Vec<String> = attempts[recent..].iter().map(Attempt::to_string).collect();
    texts.join("; ")
}

/// The shared end of a stream.
#[derive(Debug)]
pub struct ResultQueue {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// How many items may have been admitted altogether.
    admissible: AtomicU64,
    /// Whether slots wait for items, so that the next one should leave at once.
    hungry: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    order: OutcomeOrder,
    next: u64,
    waiting: u32,
    ordered: BTreeMap<u64, Outcomes>,
    completed: VecDeque<Outcomes>,
    ended: Option<StreamEnd>,
    notified: u64,
}

impl ResultQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(order: OutcomeOrder) -> Self {
        let inner = Inner {
            order,
            next: 0,
            waiting: 0,
            ordered: BTreeMap::new(),
            completed: VecDeque::new(),
            ended: None,
            notified: 0,
        };
        Self {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            admissible: AtomicU64::new(1),
            hungry: AtomicBool::new(true),
        }
    }

    /// Puts outcomes in (driver's side).
    pub fn deliver(&self, outcomes: Outcomes) {
        let mut inner = self.lock();
        match inner.order {
            OutcomeOrder::Admission => {
                let wake = outcomes.first == inner.next;
                inner.ordered.insert(outcomes.first, outcomes);
                if !wake {
                    return;
                }
            }
            OutcomeOrder::Completion => inner.completed.push_back(outcomes),
        }
        if inner.waiting > 0 {
            drop(inner);
            self.changed.notify_all();
        }
    }

    /// Ends the stream for everybody who waits (driver's side).
    pub fn end(&self, end: StreamEnd) {
        self.lock().ended.get_or_insert(end);
        self.changed.notify_all();
    }

    /// Wakes everybody who waits, so that they look around.
    pub fn notify(&self) {
        let mut inner = self.lock();
        inner.notified += 1;
        if inner.waiting > 0 {
            drop(inner);
            self.changed.notify_all();
        }
    }

    /// Looks for outcomes without waiting.
    #[must_use]
    pub fn take(&self) -> Taken {
        self.lock().take()
    }

    /// Looks for outcomes and waits for at most `patience`, less if [`ResultQueue::notify`] is called or it becomes possible
    /// to admit items beyond `admitted`.
    #[must_use]
    pub fn wait(&self, patience: Duration, admitted: Option<u64>) -> Taken {
        let deadline = Instant::now() + patience;
        let mut inner = self.lock();
        let notified = inner.notified;
        loop {
            let taken = inner.take();
            if !matches!(taken, Taken::Nothing)
                || inner.notified != notified
                || admitted.is_some_and(|admitted| self.admissible() > admitted)
            {
                return taken;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Taken::Nothing;
            }
            inner.waiting += 1;
            inner = self
                .changed
                .wait_timeout(inner, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            inner.waiting -= 1;
        }
    }

    /// How many items may have been admitted altogether by now.
    #[must_use]
    pub fn admissible(&self) -> u64 {
        self.admissible.load(Ordering::Acquire)
    }

    /// Says how many items may have been admitted altogether (driver's side).
    pub fn set_admissible(&self, total: u64) {
        if self.admissible.swap(total, Ordering::AcqRel) < total {
            let inner = self.lock();
            if inner.waiting > 0 {
                drop(inner);
                self.changed.notify_all();
            }
        }
    }

    /// Whether slots wait for items.
    #[must_use]
    pub fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed)
    }

    /// Says whether slots wait for items (driver's side).
    pub fn set_hungry(&self, hungry: bool) {
        self.hungry.store(hungry, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take(&mut self) -> Taken {
        let outcomes = match self.order {
            OutcomeOrder::Completion => self.completed.pop_front(),
            OutcomeOrder::Admission => {
                let next = self.next;
                self.ordered
                    .first_entry()
                    .filter(|entry| *entry.key() == next)
                    .map(|entry| entry.remove())
            }
        };
        match (outcomes, &self.ended) {
            (Some(outcomes), _) => {
                self.next = outcomes.first + u64::from(outcomes.count);
                Taken::Outcomes(outcomes)
            }
            (None, Some(end)) => Taken::Ended(end.clone()),
            (None, None) => Taken::Nothing,
        }
    }
}
