//! Streams as `exoskel.link_streams` sees them.

use exoskel_net::fork::Owned;
use exoskel_net::links::{BindingId, LinkStream, PeerFailure, StreamFault};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBrokenPipeError, PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{NodeHandle, failed_there, raised};
use crate::error::{ExceptionKind, raise};
use crate::fork;
use crate::options::seconds;

/// Bytes that one call reads or writes, at most.
const BYTES_AT_ONCE_MAX: usize = 1 << 20;

/// One end of a byte stream.
#[pyclass(frozen, name = "LinkStream")]
pub(crate) struct LinkStreamHandle(Owned<LinkStream>);

#[pymethods]
impl LinkStreamHandle {
    /// Adds a stream to an endpoint.
    #[staticmethod]
    fn offer(py: Python<'_>, node: &NodeHandle, endpoint: &str, handler: &str) -> PyResult<()> {
        let added = node.own(py)?.add_stream(endpoint, handler);
        added.map_err(|error| raised(py, &error))
    }

    /// Opens one.
    #[staticmethod]
    fn open(py: Python<'_>, node: &NodeHandle, binding: u64, handler: &str) -> PyResult<Self> {
        let own = node.own(py)?;
        let opened = py.detach(|| own.open_stream(BindingId::from_number(binding), handler));
        let stream = opened.map_err(|error| raised(py, &error))?;
        Ok(Self(Owned::new(stream)?))
    }

    /// Takes the next one that a peer has opened, after waiting for `timeout` seconds at most: the stream, the handler, the peer.
    #[staticmethod]
    fn accept(
        py: Python<'_>,
        node: &NodeHandle,
        endpoint: &str,
        timeout: f64,
    ) -> PyResult<Option<(Self, String, String)>> {
        let (own, patience) = (node.own(py)?, seconds(timeout)?);
        let Some(accepted) = py.detach(|| own.take_stream(endpoint, patience)) else {
            return Ok(None);
        };
        let stream = Self(Owned::new(accepted.stream)?);
        Ok(Some((stream, accepted.handler, accepted.peer)))
    }

    /// Reads into a buffer what is here within `timeout` seconds; nothing if nothing is.
    fn read_into(
        &self,
        py: Python<'_>,
        buffer: PyBuffer<u8>,
        timeout: f64,
    ) -> PyResult<Option<usize>> {
        let (own, patience) = (self.own(py)?, seconds(timeout)?);
        if buffer.readonly() || !buffer.is_c_contiguous() {
            let text = "got a buffer that is read-only or not contiguous, expected one to write to";
            return Err(PyBufferError::new_err(text));
        }
        if buffer.len_bytes() == 0 {
            return Ok(Some(0));
        }
        let (address, length) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        // SAFETY: the buffer is contiguous and writable, and exported until the end of this function. As with files, a program that
        // writes to it from another thread meanwhile finds a mixture.
        let room =
            unsafe { std::slice::from_raw_parts_mut(address, length.min(BYTES_AT_ONCE_MAX)) };
        let read = py.detach(|| own.read(room, patience));
        read.map_err(|fault| stream_fault(py, &fault))
    }

    /// Up to so many bytes that are here.
    fn peek<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let own = self.own(py)?;
        let bytes = py.detach(|| own.peek(count));
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes what there is room for within `timeout` seconds; nothing if there is none.
    fn write(&self, py: Python<'_>, buffer: PyBuffer<u8>, timeout: f64) -> PyResult<Option<usize>> {
        let (own, patience) = (self.own(py)?, seconds(timeout)?);
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "got a buffer that is not contiguous, expected one that is",
            ));
        }
        if buffer.len_bytes() == 0 {
            return Ok(Some(0));
        }
        let (address, length) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        // SAFETY: the buffer is contiguous, and exported until the end of this function. Nothing parses these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address, length.min(BYTES_AT_ONCE_MAX)) };
        let written = py.detach(|| own.write(bytes, patience));
        written.map_err(|fault| stream_fault(py, &fault))
    }

    /// Writes no more.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.finish());
        Ok(())
    }

    /// Whether the other end has everything within `timeout` seconds.
    fn flushed(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (own, patience) = (self.own(py)?, seconds(timeout)?);
        let flushed = py.detach(|| own.flushed(patience));
        flushed.map_err(|fault| stream_fault(py, &fault))
    }

    /// Writes and reads no more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.close());
        Ok(())
    }

    /// Ends it in an error for the other end.
    fn fail(&self, py: Python<'_>, kind: &str, text: &str) -> PyResult<()> {
        let own = self.own(py)?;
        py.detach(|| own.fail(&PeerFailure::new(kind, text)));
        Ok(())
    }
}

impl LinkStreamHandle {
    fn own(&self, py: Python<'_>) -> PyResult<&LinkStream> {
        fork::own(py, &self.0)
    }
}

fn stream_fault(py: Python<'_>, fault: &StreamFault) -> PyErr {
    match fault {
        StreamFault::Link(error) => raised(py, error),
        StreamFault::Failed(failure) => failed_there(py, fault.to_string(), failure),
        StreamFault::Broken(_) => raise(py, ExceptionKind::Link, fault.to_string()),
        StreamFault::Stopped => PyBrokenPipeError::new_err(fault.to_string()),
        StreamFault::Closed => PyValueError::new_err(fault.to_string()),
    }
}
