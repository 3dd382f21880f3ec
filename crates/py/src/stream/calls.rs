//! A queue of numbered outcomes, for `submit`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exoskel_net::fork::Owned;
use exoskel_net::manager::StreamHandle;
use exoskel_net::result_queue::{StreamEnd, Taken};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Feeder, PATIENCE, ResultParts, Walk};
use crate::at_exit;
use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::manager::NoticePrinter;
use crate::pickle::Encoder;

/// A stream without end, whose items are numbered and whose outcomes come as they complete.
#[pyclass(frozen)]
pub(crate) struct SubmitStream(Owned<Submit>);

struct Submit {
    stream: StreamHandle,
    notices: Arc<NoticePrinter>,
    feeder: Mutex<Feeder>,
    /// Outcomes that were taken and not handed out yet.
    taken: Mutex<VecDeque<Walk>>,
    /// Items handed over, and how many of them were taken back.
    submitted: AtomicU64,
    cancelled: AtomicU64,
}

impl Submit {
    /// How many items will have had outcomes.
    fn expected(&self) -> u64 {
        let submitted = self.submitted.load(Ordering::Acquire);
        submitted.saturating_sub(self.cancelled.load(Ordering::Acquire))
    }

    fn walks(&self) -> MutexGuard<'_, VecDeque<Walk>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends outcomes that were taken to a queue of Python's, as triples of number, whether it is a value, and the value or
    /// exception. Each is there before an exception can get in its way.
    fn hand_out(&self, py: Python<'_>, arrived: &Bound<'_, PyAny>) -> PyResult<()> {
        loop {
            let Some(mut walk) = self.walks().pop_front() else {
                return Ok(());
            };
            let handed_out = walk.append_to(py, arrived);
            if walk.is_over() {
                self.stream.taken(walk.first, walk.count);
                self.stream.recycle(&mut walk.spent);
            } else {
                self.walks().push_front(walk);
            }
            handed_out?;
        }
    }
}

impl SubmitStream {
    pub(crate) fn new(
        stream: StreamHandle,
        notices: Arc<NoticePrinter>,
        item_bytes_max: u64,
    ) -> PyResult<Self> {
        Ok(Self(Owned::new(Submit {
            stream,
            notices,
            feeder: Mutex::new(Feeder::new(item_bytes_max, Encoder::of_calls())),
            taken: Mutex::default(),
            submitted: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
        })?))
    }
}

#[pymethods]
impl SubmitStream {
    /// Hands one item over and says its number. Never waits.
    fn submit(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<u64> {
        let own = fork::own(py, &self.0)?;
        let feeder = own.feeder.try_lock();
        let mut feeder =
            feeder.map_err(|_| PyValueError::new_err("this stream is used by another thread"))?;
        feeder.push(&own.stream, item)?;
        // What an item is made of may fork as well.
        fork::own(py, &self.0)?;
        feeder.leave(&own.stream);
        own.submitted.store(feeder.sent, Ordering::Release);
        Ok(feeder.sent - 1)
    }

    /// Takes an item back that no worker has begun.
    fn cancel(&self, py: Python<'_>, index: u64) -> PyResult<bool> {
        let own = fork::own(py, &self.0)?;
        let is_cancelled = py.detach(|| own.stream.cancel(index));
        own.cancelled
            .fetch_add(u64::from(is_cancelled), Ordering::AcqRel);
        Ok(is_cancelled)
    }

    /// Takes all items back that no worker has begun, and says which they are.
    fn cancel_waiting(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let own = fork::own(py, &self.0)?;
        let cancelled = py.detach(|| own.stream.cancel_waiting());
        own.cancelled
            .fetch_add(cancelled.len() as u64, Ordering::AcqRel);
        Ok(cancelled)
    }

    /// Whether no worker has an item, and it has no outcome.
    fn is_waiting(&self, py: Python<'_>, index: u64) -> PyResult<bool> {
        let own = fork::own(py, &self.0)?;
        Ok(py.detach(|| own.stream.is_waiting(index)))
    }

    /// The outcome of an item is wanted no more: it goes when it is there. A forked child wants nothing.
    fn forget(&self, index: u64) {
        if let Some(own) = self.0.get() {
            own.stream.forget(index);
        }
    }

    /// How many items have no outcome yet.
    fn pending(&self) -> u64 {
        let pending = |own: &Submit| own.expected().saturating_sub(own.stream.results.arrived());
        self.0.get().map_or(0, pending)
    }

    /// Appends the outcomes that are there to the queue `arrived`, as triples of number, whether it is a value, and the value or
    /// exception; waits up to `timeout` seconds for the first (in slices, so that Ctrl-C is seen), or, if `to_the_end`, until there
    /// is nothing to wait for. `wake` from another thread ends the wait. What has been appended stays when an exception is raised.
    fn collect(
        &self,
        py: Python<'_>,
        timeout: f64,
        to_the_end: bool,
        arrived: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let own = fork::own(py, &self.0)?;
        let patience = Duration::try_from_secs_f64(timeout.clamp(0.0, PATIENCE.as_secs_f64()))
            .unwrap_or(PATIENCE);
        let results = &own.stream.results;
        let mut taken = results.take();
        if matches!(taken, Taken::Nothing) && !patience.is_zero() && own.walks().is_empty() {
            taken = py.detach(|| match to_the_end {
                true => results.wait_for_all(patience, own.expected()),
                false => results.wait(patience, None),
            });
        }
        let mut ended = None;
        loop {
            match taken {
                Taken::Outcomes(outcomes) => {
                    let walk = Walk::new(outcomes, ResultParts::Calls, None);
                    own.walks().push_back(walk);
                }
                Taken::Nothing => break,
                Taken::Ended(end) => {
                    ended = Some(end);
                    break;
                }
            }
            taken = results.take();
        }
        let is_any = !own.walks().is_empty();
        own.hand_out(py, arrived)?;
        py.check_signals()?;
        own.notices.present(py)?;
        match ended {
            Some(end @ StreamEnd::Closed) if !is_any => {
                at_exit::leave(py, &end)?;
                let text = "the slots were ended before this call had an outcome; ask for results before terminate, and before the end of a Pool's block";
                Err(raise(py, ExceptionKind::NoWorker, text))
            }
            Some(end) if !is_any => Err(error::stream_end(py, &end)),
            _ => Ok(()),
        }
    }

    /// Ends the waits of other threads in `collect`.
    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0)?.stream.results.notify();
        Ok(())
    }

    /// Ends the stream: its items are forgotten.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        fork::own(py, &self.0)?.stream.close();
        Ok(())
    }
}
