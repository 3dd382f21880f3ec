//! Computations and look-ups that would hold up an I/O thread: on another thread, or right here where none can be made.
//!
//! A thread that has nothing more to do stays for a while: the steps of a handshake follow each other closely, and a new thread for each
//! takes longer than some of them do. Where nobody would be held up there is no other thread at all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::fork::OwnProcess;

/// How long a thread stays that has nothing to do.
const STAY_TIME: Duration = Duration::from_secs(1);

type BesideWork = Box<dyn FnOnce() + Send>;

/// Threads that work for one I/O thread.
struct Threads {
    /// A forked child has none of them.
    process: OwnProcess,
    waiting: Mutex<WaitingWork>,
    come: Condvar,
}

#[derive(Default)]
struct WaitingWork {
    jobs: VecDeque<BesideWork>,
    /// Threads that wait for a job, and that none has been left for.
    free: usize,
    /// The I/O thread has ended.
    is_over: bool,
}

/// What an I/O thread has of them.
struct OwnThreads(Arc<Threads>);

impl Drop for OwnThreads {
    fn drop(&mut self) {
        // In a forked child there is nobody to be told, and perhaps a lock that nobody opens.
        if self.0.process.is_this() {
            lock(&self.0.waiting).is_over = true;
            self.0.come.notify_all();
        }
    }
}

thread_local! {
    static THREADS: RefCell<Option<OwnThreads>> = const { RefCell::new(None) };
    static SERVED: Arc<AtomicUsize> = Arc::default();
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// As long as this lives, its thread makes no others, and does all work itself: for a process that is confined afterwards, which takes that
/// it has one thread.
pub(crate) struct Alone(());

impl Alone {
    pub(crate) fn begin() -> Self {
        ALONE.set(true);
        Self(())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        ALONE.set(false);
    }
}

/// Something that this thread serves from time to time, and that a long computation would hold up: a session, or a handshake.
#[derive(Debug)]
pub(crate) struct Served {
    /// How much that thread serves.
    count: Arc<AtomicUsize>,
}

impl Served {
    pub(crate) fn begin() -> Self {
        let count = SERVED.with(Arc::clone);
        count.fetch_add(1, Ordering::Relaxed);
        Self { count }
    }

    /// Does `work` here if nothing else is served on this thread, and as [`beside`] if something is.
    pub(crate) async fn alone_or_beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.count.load(Ordering::Relaxed) == 1 {
            return Some(work());
        }
        beside(work).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does `work` on another thread and waits for it as a task. A process that may have no more threads is slow by this, and goes on.
/// Nothing when the work has panicked.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if ALONE.get() {
        return Some(work());
    }
    let (sender, receiver) = oneshot::channel();
    // A thread that can't be made takes what it was to do with it.
    let job = Arc::new(Mutex::new(Some((work, sender))));
    let theirs = job.clone();
    let run = move || {
        if let Some((work, sender)) = take(&theirs) {
            // Who asked may have gone.
            drop(sender.send(work()));
        }
    };
    let started = Threads::of_this_thread().and_then(|threads| threads.start(Box::new(run)));
    match started {
        Ok(()) => receiver.await.ok(),
        Err(_) => take(&job).map(|(work, _)| work()),
    }
}

impl Threads {
    fn of_this_thread() -> io::Result<Arc<Self>> {
        THREADS.with_borrow_mut(|place| {
            if let Some(OwnThreads(threads)) = place.as_ref()
                && threads.process.is_this()
            {
                return Ok(threads.clone());
            }
            let threads = Arc::new(Self {
                process: OwnProcess::this()?,
                waiting: Mutex::default(),
                come: Condvar::new(),
            });
            Ok(place.insert(OwnThreads(threads)).0.clone())
        })
    }

    /// Has a thread do this, a new one if none is free.
    fn start(self: Arc<Self>, job: BesideWork) -> io::Result<()> {
        let mut waiting = lock(&self.waiting);
        if waiting.free > 0 {
            waiting.free -= 1;
            waiting.jobs.push_back(job);
            drop(waiting);
            self.come.notify_one();
            return Ok(());
        }
        drop(waiting);
        let thread = std::thread::Builder::new().name("exoskel-beside".to_owned());
        let work = move || {
            job();
            while let Some(job) = self.next() {
                job();
            }
        };
        thread.spawn(work).map(drop)
    }

    /// The next job, unless none comes within the time that a thread stays.
    fn next(&self) -> Option<BesideWork> {
        let mut waiting = lock(&self.waiting);
        waiting.free += 1;
        let (mut waiting, _) = self
            .come
            .wait_timeout_while(waiting, STAY_TIME, |waiting| {
                waiting.jobs.is_empty() && !waiting.is_over
            })
            .unwrap_or_else(PoisonError::into_inner);
        let job = waiting.jobs.pop_front();
        if job.is_none() {
            waiting.free -= 1;
        }
        job
    }
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    lock(place).take()
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    async fn who() -> thread::ThreadId {
        beside(|| thread::current().id()).await.unwrap()
    }

    #[tokio::test]
    async fn a_thread_that_is_free_does_the_next_work() {
        let first = who().await;
        assert_ne!(first, thread::current().id());
        // It is free when it says so, which is a moment after its answer.
        while Threads::of_this_thread()
            .unwrap()
            .waiting
            .lock()
            .unwrap()
            .free
            == 0
        {
            thread::yield_now();
        }
        assert_eq!(who().await, first);
    }

    #[tokio::test]
    async fn another_thread_works_where_somebody_would_be_held_up() {
        let handshake = Served::begin();
        let who = async |one: &Served| {
            let done = one.alone_or_beside(|| thread::current().id()).await;
            done.unwrap()
        };
        assert_eq!(who(&handshake).await, thread::current().id());
        let session = Served::begin();
        assert_ne!(who(&handshake).await, thread::current().id());
        drop(session);
        assert_eq!(who(&handshake).await, thread::current().id());
    }

    #[tokio::test]
    async fn a_thread_that_is_to_be_alone_does_all_itself() {
        let alone = Alone::begin();
        assert_eq!(who().await, thread::current().id());
        drop(alone);
        assert_ne!(who().await, thread::current().id());
    }

    #[tokio::test]
    async fn work_that_panics_gives_nothing_and_harms_nobody() {
        assert_eq!(beside(|| -> u8 { panic!("on purpose") }).await, None);
        assert_eq!(beside(|| 7).await, Some(7));
    }

    #[tokio::test]
    async fn as_many_threads_work_as_there_is_work() {
        let barrier = Arc::new(std::sync::Barrier::new(3));
        let work = || {
            let barrier = barrier.clone();
            beside(move || barrier.wait().is_leader())
        };
        let (first, second, third) = tokio::join!(work(), work(), work());
        let leaders = [first, second, third].into_iter().flatten();
        assert_eq!(leaders.filter(|is_leader| *is_leader).count(), 1);
    }
}
