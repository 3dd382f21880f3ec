//! Where a worker listens, held by its supervisor.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use exoskel_net::address::Address;
use exoskel_net::host_file::{HostLine, start_options};
use exoskel_net::listening::{ListenError, Listening};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{ExceptionKind, raise};

/// A listening socket; its descriptor is for slots to inherit.
#[pyclass(frozen)]
pub(crate) struct Listener {
    listening: Mutex<Option<Listening>>,
}

#[pymethods]
impl Listener {
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Self> {
        let listening = bind(py, address)?;
        Ok(Self {
            listening: Mutex::new(Some(listening)),
        })
    }

    /// One that this process has inherited.
    #[staticmethod]
    fn inherited(descriptor: RawFd) -> PyResult<Self> {
        if descriptor < 0 {
            let text = format!("got the descriptor {descriptor}, expected one that is open");
            return Err(PyValueError::new_err(text));
        }
        // SAFETY: whoever has started this process has left it for this, and said its number.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let listening = Listening::inherited(descriptor)?;
        Ok(Self {
            listening: Mutex::new(Some(listening)),
        })
    }

    /// Where it listens, with the port that it has.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.with(|listening| listening.address().to_string())
    }

    /// The descriptor's number.
    fn fileno(&self) -> PyResult<RawFd> {
        self.with(|listening| listening.as_fd().as_raw_fd())
    }

    /// Leaves it to a process that is to have it. Returns its descriptor, which is the caller's; the file of a Unix socket stays.
    fn leave(&self) -> PyResult<RawFd> {
        Ok(self.take()?.leave().into_raw_fd())
    }

    /// Closes it; the file of a Unix socket goes.
    fn close(&self) {
        drop(self.lock().take());
    }
}

impl Listener {
    /// The socket, for a node.
    pub(crate) fn take(&self) -> PyResult<Listening> {
        let closed = || PyValueError::new_err("the listener is closed");
        self.lock().take().ok_or_else(closed)
    }

    fn with<T>(&self, look: impl FnOnce(&Listening) -> T) -> PyResult<T> {
        let closed = || PyValueError::new_err("the listener is closed");
        self.lock().as_ref().map(look).ok_or_else(closed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Listening>> {
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens at an address.
pub(crate) fn bind(py: Python<'_>, text: &str) -> PyResult<Listening> {
    let address: Address = parse(text)?;
    py.detach(|| Listening::bind(&address))
        .map_err(|error: ListenError| raise(py, ExceptionKind::Link, error.to_string()))
}

/// Reads an address.
pub(crate) fn parse(text: &str) -> PyResult<Address> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("{error}")))
}

/// A worker as a line names it: its host and port, or its path and none; the name in its certificate; how it is started.
type HostWords = (String, Option<u16>, String, Vec<(String, String)>);

/// Reads a line that names a worker.
#[pyfunction]
pub(crate) fn read_host(text: &str, default_port: u16) -> PyResult<HostWords> {
    let line = HostLine::read(text, default_port);
    let line = line.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let HostLine { address, name } = line;
    let options = start_options(text).into_iter();
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let options = options.collect();
    Ok(match address {
        Address::Unix(path) => (path.to_string_lossy().into_owned(), None, name, options),
        Address::Tcp(place) => {
            let (host, port) = place.rsplit_once(':').unwrap_or((&place, ""));
            let host = host.trim_start_matches('[').trim_end_matches(']');
            (host.to_owned(), port.parse().ok(), name, options)
        }
    })
}
