//! Memory shared between Python and the node without a copy.
//!
//! The node's threads never take the GIL: what they drop here only leaves a note, and the reference is given back by
//! the next thread that holds the GIL.

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::memory;

/// A `bytes` object as an owner of [`Bytes`]: immutable, so its address and contents stay.
pub(crate) struct BytesOwner {
    object: Py<PyBytes>,
    address: *const u8,
    length: usize,
}

// SAFETY: the memory belongs to an immutable object that this owner keeps alive; only its reference count needs the
// GIL, and `Py` defers that when it is dropped without it.
unsafe impl Send for BytesOwner {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for BytesOwner {}

impl BytesOwner {
    pub(crate) fn share(object: &Bound<'_, PyBytes>) -> Bytes {
        let contents = object.as_bytes();
        let (address, length) = (contents.as_ptr(), contents.len());
        Bytes::from_owner(Self {
            object: object.clone().unbind(),
            address,
            length,
        })
    }
}

impl AsRef<[u8]> for BytesOwner {
    fn as_ref(&self) -> &[u8] {
        let _ = &self.object;
        // SAFETY: `object` keeps this memory, and `bytes` objects never change.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// A memoryview that keeps somebody's buffer exported, as an owner of [`Bytes`].
///
/// The contents can be changed by the program that owns them (an array that is sent and written to at once); what is
/// sent then is what was there at the time of sealing. Nothing here parses these bytes.
pub(crate) struct ViewOwner {
    view: Py<PyAny>,
    address: *const u8,
    length: usize,
}

// SAFETY: the view keeps the export, and with it the memory, alive; nobody else holds the view, so it isn't released.
unsafe impl Send for ViewOwner {}
// SAFETY: as above.
unsafe impl Sync for ViewOwner {}

impl ViewOwner {
    /// Shares the memory of `view`, a contiguous memoryview made for this purpose.
    pub(crate) fn share(view: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let buffer = pyo3::buffer::PyBuffer::<u8>::get(view)?;
        let (address, length) = (
            buffer.buf_ptr().cast::<u8>().cast_const(),
            buffer.len_bytes(),
        );
        Ok(Bytes::from_owner(Self {
            view: view.clone().unbind(),
            address,
            length,
        }))
    }

    /// The same for a view whose memory is known.
    ///
    /// # Safety
    /// `view` is a memoryview that nobody else has, of contiguous memory: `length` bytes from `address` on.
    pub(crate) unsafe fn of(view: Bound<'_, PyAny>, address: *const u8, length: usize) -> Self {
        Self {
            view: view.unbind(),
            address,
            length,
        }
    }
}

impl From<ViewOwner> for Bytes {
    fn from(owner: ViewOwner) -> Self {
        Self::from_owner(owner)
    }
}

impl AsRef<[u8]> for ViewOwner {
    fn as_ref(&self) -> &[u8] {
        let _ = &self.view;
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the exported buffer is contiguous, `length` bytes long, and exported until `view` goes.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// A received bulk part, offered to Python as writable memory (PEP 3118).
#[pyclass(frozen)]
pub(crate) struct OwnedBuffer {
    memory: Memory,
}

struct Memory {
    address: *mut u8,
    length: usize,
    /// Owns what `address` points to; never touched again while the object lives.
    owner: Vec<u8>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        memory::put_by(std::mem::take(&mut self.owner));
    }
}

// SAFETY: the memory is owned and never reallocated; Python code synchronises its own accesses, as for a bytearray.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl OwnedBuffer {
    pub(crate) fn new(mut owner: Vec<u8>) -> Self {
        let (address, length) = (owner.as_mut_ptr(), owner.len());
        Self {
            memory: Memory {
                address,
                length,
                owner,
            },
        }
    }
}

#[pymethods]
impl OwnedBuffer {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let memory = &slf.get().memory;
        let length = ffi::Py_ssize_t::try_from(memory.length)
            .map_err(|_| PyBufferError::new_err("got a buffer larger than the address space"))?;
        // SAFETY: `view` comes from the interpreter; the memory outlives it because the view holds `slf`.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.address.cast(), length, 0, flags)
        };
        if status == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    fn __len__(&self) -> usize {
        self.memory.length
    }
}
