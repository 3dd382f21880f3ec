//! Workers that announce themselves, and who hears them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoskel_identity::authorization::Authorization;
use exoskel_link::policy::Policy;
use exoskel_net::discovery::{Announcement, DiscoveryError, HeardNews, Hearing};
use exoskel_node::manager::hints::HINTS_MAX;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::error::{self, ExceptionKind, raise};
use crate::options::seconds;

/// How long nothing is done before what was heard is looked at.
const LOOKING_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AnnouncementHandle>()?;
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
    let mut hints = BTreeMap::new();
    while begin.elapsed() < time {
        if hearing.is_over(begin.elapsed()) {
            hearing = Hearing::new().map_err(failed)?;
        }
        for heard in hearing.news(begin.elapsed()) {
            match heard {
                HeardNews::There(announcement, hint) => {
                    if hints.len() < HINTS_MAX {
                        hints.insert(announcement, hint);
                    }
                }
                HeardNews::Gone(announcement) => drop(hints.remove(&announcement)),
            }
        }
        py.detach(|| std::thread::sleep(LOOKING_PAUSE));
        py.check_signals()?;
    }
    let rows = hints.into_values().filter_map(|hint| {
        let addresses = hint.dialable().iter().map(ToString::to_string).collect();
        let rules = policy.as_ref().map(Policy::authorization);
        let is_allowed = rules.map(|rules| rules.discovers(&hint.name) == Some(true));
        (!hint.dialable().is_empty()).then_some((hint.name, addresses, is_allowed))
    });
    Ok(rows.collect())
}

/// What hears workers for a manager.
pub(crate) fn hearing(py: Python<'_>, rules: &Authorization) -> PyResult<Hearing> {
    // Of any name, it says nothing where it has no table.
    if rules.discovers("").is_none() {
        let text = "got workers=\"discover\" with a policy that has no [discover], expected one: it says which names may be dialled, \
                    such as workers = [\"*.lab.example.org\"]";
        return Err(raise(py, ExceptionKind::Policy, text));
    }
    Hearing::new().map_err(failed)
}

fn failed(error: DiscoveryError) -> PyErr {
    PyOSError::new_err(error.to_string())
}
