//! Regions and transfers as `exoskel.link_regions` sees them, and contents that go to several endpoints.

use std::sync::Arc;
use std::time::Duration;

use exoskel_net::fork::Owned;
use exoskel_net::links::{
    ArrayMemory, ArrayPart, BindingId, MessageContents, OwnRegion, PartError, RegionLayout,
    Transfer, TransferError,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::{NodeHandle, encoded, failed_there, raised};
use crate::buffer::ViewOwner;
use crate::error::{ExceptionKind, raise};
use crate::fork;
use crate::options::seconds;

/// A part of an array: the first byte, an element's bytes, and the counts and distances of its elements, the outermost first.
type PartSteps = (u64, u64, Vec<(u64, u64)>);

/// The memory of an array that Python has.
struct ViewMemory {
    view: Py<PyAny>,
    address: *mut u8,
    length: usize,
}

// SAFETY: the view keeps the export, and with it the memory, alive; nobody else holds the view, so it isn't released.
unsafe impl Send for ViewMemory {}
// SAFETY: as above. Python's own threads may read and write meanwhile, as they may while another thread of Python does.
unsafe impl Sync for ViewMemory {}

impl ViewMemory {
    /// Takes the memory of `view`, a contiguous memoryview made for this purpose.
    fn new(view: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(view)?;
        if !buffer.is_c_contiguous() || (is_written && buffer.readonly()) {
            return Err(PyBufferError::new_err(
                "got an array that is read-only or not contiguous, expected a contiguous one that can be written to",
            ));
        }
        Ok(Self {
            view: view.clone().unbind(),
            address: buffer.buf_ptr().cast(),
            length: buffer.len_bytes(),
        })
    }
}

impl ArrayMemory for ViewMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn append_to(&self, offset: usize, length: usize, bytes: &mut Vec<u8>) {
        let _ = &self.view;
        assert!(offset <= self.length && length <= self.length - offset);
        bytes.reserve(length);
        // SAFETY: what is read lies within the exported memory, as just checked; what is written, within the reserved room, of which
        // then `length` bytes more are initialised. The two don't overlap: the vector is ours.
        unsafe {
            let end = bytes.as_mut_ptr().add(bytes.len());
            std::ptr::copy_nonoverlapping(self.address.add(offset), end, length);
            bytes.set_len(bytes.len() + length);
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.length && bytes.len() <= self.length - offset);
        // SAFETY: what is written lies within the exported memory, which is writable, as `new` and the line above have checked; `bytes`
        // was received, so it is elsewhere.
        unsafe {
            let place = self.address.add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
    }
}

/// An array that peers read, and may write.
#[pyclass(frozen, name = "LinkRegion")]
pub(crate) struct LinkRegionHandle(Owned<OwnRegion>);

#[pymethods]
impl LinkRegionHandle {
    /// Adds a region to an endpoint.
    #[staticmethod]
    fn offer(
        py: Python<'_>,
        node: &NodeHandle,
        endpoint: &str,
        name: &str,
        layout: (String, u64, Vec<u64>),
        view: &Bound<'_, PyAny>,
        is_writable: bool,
    ) -> PyResult<Self> {
        let memory = Box::new(ViewMemory::new(view, is_writable)?);
        let (type_text, item_bytes, shape) = layout;
        let layout = RegionLayout {
            type_text,
            item_bytes,
            shape,
        };
        if layout.bytes() != Some(memory.length as u64) {
            return Err(PyValueError::new_err(
                "got a shape that isn't that of the memory",
            ));
        }
        let own = node.own(py)?;
        let added = own.add_region(endpoint, name, layout, memory, is_writable);
        let region = added.map_err(|error| raised(py, &error))?;
        Ok(Self(Owned::new(region)?))
    }

    /// Keeps peers out, if that can be had within `timeout` seconds.
    fn hold(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (own, patience) = (fork::own(py, &self.0)?, seconds(timeout)?);
        Ok(py.detach(|| own.hold(patience)))
    }

    /// Lets them at it again.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let own = fork::own(py, &self.0)?;
        py.detach(|| own.release());
        Ok(())
    }
}

/// A part of a peer's region that is read or written.
#[pyclass(frozen, name = "LinkTransfer")]
pub(crate) struct LinkTransferHandle(Owned<Arc<Transfer>>);

#[pymethods]
impl LinkTransferHandle {
    /// Asks what a region holds, by one of its two names.
    #[staticmethod]
    fn describe(
        py: Python<'_>,
        node: &NodeHandle,
        binding: u64,
        handler: String,
    ) -> PyResult<Self> {
        let own = node.own(py)?;
        let id = BindingId::from_number(binding);
        let asked = py.detach(|| own.describe_region(id, handler));
        let transfer = asked.map_err(|error| raised(py, &error))?;
        Ok(Self(Owned::new(transfer)?))
    }

    /// Reads a part into the array behind `view`.
    #[staticmethod]
    fn get(
        py: Python<'_>,
        node: &NodeHandle,
        binding: u64,
        name: &str,
        part: PartSteps,
        view: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let own = node.own(py)?;
        let part = array_part(py, &part)?;
        let into = Box::new(ViewMemory::new(view, true)?);
        let id = BindingId::from_number(binding);
        let asked = py.detach(|| own.get_region(id, name, &part, into));
        let transfer = asked.map_err(|error| transfer_error(py, &error))?;
        Ok(Self(Owned::new(transfer)?))
    }

    /// Writes the array behind `view` into a part.
    #[staticmethod]
    fn put(
        py: Python<'_>,
        node: &NodeHandle,
        binding: u64,
        name: &str,
        part: PartSteps,
        view: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let own = node.own(py)?;
        let part = array_part(py, &part)?;
        let from = ViewOwner::share(view)?;
        let id = BindingId::from_number(binding);
        let asked = py.detach(|| own.put_region(id, name, &part, from));
        let transfer = asked.map_err(|error| transfer_error(py, &error))?;
        Ok(Self(Owned::new(transfer)?))
    }

    /// Whether it is done within `timeout` seconds.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (own, patience) = (fork::own(py, &self.0)?, seconds(timeout)?);
        let done = py.detach(|| own.wait(patience.min(Duration::from_secs(3600))));
        done.map_err(|error| transfer_error(py, &error))
    }

    /// Whether waiting would return at once.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(fork::own(py, &self.0)?.is_over())
    }

    /// What the region holds: the text of the type, an element's bytes, and the shape.
    fn layout(&self, py: Python<'_>) -> PyResult<Option<(String, u64, Vec<u64>)>> {
        let layout = fork::own(py, &self.0)?.layout();
        Ok(layout.map(|layout| (layout.type_text, layout.item_bytes, layout.shape)))
    }
}

/// The contents of a message, encoded once for several links.
#[pyclass(frozen, name = "LinkContents")]
pub(crate) struct LinkContentsHandle(MessageContents);

#[pymethods]
impl LinkContentsHandle {
    #[new]
    fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        encoded(value, "arguments").map(Self)
    }

    /// Makes a request of it and returns its number.
    fn request(
        &self,
        py: Python<'_>,
        node: &NodeHandle,
        binding: u64,
        handler: &str,
    ) -> PyResult<u64> {
        let own = node.own(py)?;
        let id = BindingId::from_number(binding);
        let made = py.detach(|| own.request(id, handler, self.0.clone()));
        made.map_err(|error| raised(py, &error))
    }

    /// Sends it one way.
    fn post(&self, py: Python<'_>, node: &NodeHandle, binding: u64, handler: &str) -> PyResult<()> {
        let own = node.own(py)?;
        let id = BindingId::from_number(binding);
        let posted = py.detach(|| own.post(id, handler, self.0.clone()));
        posted.map_err(|error| raised(py, &error))
    }
}

fn array_part(py: Python<'_>, (offset, item_bytes, steps): &PartSteps) -> PyResult<ArrayPart> {
    let part = ArrayPart::new(*offset, *item_bytes, steps);
    part.map_err(|error| transfer_error(py, &error.into()))
}

fn transfer_error(py: Python<'_>, error: &TransferError) -> PyErr {
    match error {
        TransferError::Link(error) => raised(py, error),
        TransferError::Refused(failure) => failed_there(py, error.to_string(), failure),
        TransferError::Part(PartError::Outside { .. }) => PyIndexError::new_err(error.to_string()),
        TransferError::Part(_) => PyValueError::new_err(error.to_string()),
        TransferError::Broken(_) => raise(py, ExceptionKind::Link, error.to_string()),
    }
}
