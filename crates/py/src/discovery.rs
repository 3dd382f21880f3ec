//! Workers that announce themselves, and who hears them.

use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoskel_identity::authorization::Authorization;
use exoskel_link::policy::Policy;
use exoskel_net::discovery::{Announcement, DiscoveryError, HeardNews, Hearing};
use exoskel_net::hearing_worker::{HeardFile, HearingWorker};
use exoskel_node::heard::HeardList;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::error::{self, ExceptionKind, raise};
use crate::options::seconds;
use crate::slot::take;

/// How long nothing is done before what was heard is looked at.
const LOOKING_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AnnouncementHandle>()?;
    module.add_class::<HearingWorkerHandle>()?;
    module.add_function(wrap_pyfunction!(discover, module)?)
}

/// A worker that says that it is there, until it is closed.
#[pyclass(name = "Announcement", frozen)]
struct AnnouncementHandle(Mutex<Option<Announcement>>);

#[pymethods]
impl AnnouncementHandle {
    #[new]
    #[pyo3(signature = (name, address, port))]
    fn new(name: &str, address: Option<&str>, port: u16) -> PyResult<Self> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                let text = format!("got the address {text:?}, expected an IP address");
                PyValueError::new_err(text)
            })
        };
        let address = address.map(parse).transpose()?;
        let announcement = Announcement::new(name, address, port).map_err(failed)?;
        Ok(Self(Mutex::new(Some(announcement))))
    }

    /// Takes it back.
    fn close(&self, py: Python<'_>) {
        let announcement = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(announcement));
    }
}

/// Hears other workers, and writes down who is there.
#[pyclass(name = "HearingWorker", frozen)]
struct HearingWorkerHandle(Mutex<HearingWorker>);

#[pymethods]
impl HearingWorkerHandle {
    /// Takes the descriptor over.
    #[new]
    fn new(descriptor: RawFd) -> PyResult<Self> {
        let hearing = HearingWorker::new(HeardFile::new(take(descriptor))).map_err(failed)?;
        Ok(Self(Mutex::new(hearing)))
    }

    /// Takes up what has been heard meanwhile.
    fn look(&self) -> PyResult<()> {
        let mut hearing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(hearing.look()?)
    }
}

/// A worker that was heard: its name, where it is reached, and whether the policy lets managers dial it.
type HeardRow = (String, Vec<String>, Option<bool>);

/// Hears for so many seconds who is there.
#[pyfunction]
#[pyo3(signature = (time, policy))]
fn discover(py: Python<'_>, time: f64, policy: Option<&str>) -> PyResult<Vec<HeardRow>> {
    let policy = policy.map(|text| Policy::parse(text, 1)).transpose();
    let policy = policy.map_err(|error| error::policy(py, &error))?;
    let (begin, time) = (Instant::now(), seconds(time)?);
    let mut hearing = Hearing::new().map_err(failed)?;
    let rules = policy.as_ref().map(Policy::authorization);
    let is_allowed = |name: &str| rules.map(|rules| rules.discovers(name) == Some(true));
    let mut list = HeardList::default();
    while begin.elapsed() < time {
        if hearing.is_over(begin.elapsed()) {
            hearing = Hearing::new().map_err(failed)?;
        }
        for heard in hearing.news(begin.elapsed()) {
            match heard {
                HeardNews::There(announcement, hint) => {
                    let is_wanted = is_allowed(&hint.name) != Some(false);
                    list.heard(announcement, hint, is_wanted);
                }
                HeardNews::Gone(announcement) => list.gone(&announcement),
            }
        }
        py.detach(|| std::thread::sleep(LOOKING_PAUSE));
        py.check_signals()?;
    }
    let rows = list.hints().filter_map(|hint| {
        let addresses: Vec<_> = hint.dialable().iter().map(ToString::to_string).collect();
        let is_allowed = is_allowed(&hint.name);
        (!addresses.is_empty()).then(|| (hint.name.clone(), addresses, is_allowed))
    });
    Ok(rows.collect())
}

/// What hears workers for a manager.
pub(crate) fn hearing(py: Python<'_>, rules: &Authorization) -> PyResult<Hearing> {
    // Of any name, it says nothing where it has no table.
    if rules.discovers("").is_none() {
        let text = "got workers=\"discover\" without a policy that has a [discover], expected one (policy=): it says which names may be dialled, \
                    such as workers = [\"*.lab.example.org\"]";
        return Err(raise(py, ExceptionKind::Policy, text));
    }
    Hearing::new().map_err(failed)
}

fn failed(error: DiscoveryError) -> PyErr {
    PyOSError::new_err(error.to_string())
}
