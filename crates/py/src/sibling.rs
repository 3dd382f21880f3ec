//! Forks siblings: children of this process's parent, which are to it what it has started itself.

use std::ffi::CString;
use std::io;

use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The `prctl` that tells where the C library keeps the number of this thread.
const PR_GET_TID_ADDRESS: libc::c_int = 40;

/// Forks this process, as `os.fork` does; but its parent gets the child. That one waits for it, and hears how it has ended.
///
/// It is for processes with one thread: what another thread holds would be held for ever in the child.
///
/// # Errors
/// ``OSError`` when there can be no other process; `ENOSYS` where this can't be done, or there are other threads.
#[pyfunction]
pub(crate) fn fork_sibling(_py: Python<'_>) -> PyResult<i32> {
    let thread = number_of_thread().map_err(with_number)?;
    // SAFETY: the interpreter's lock is held, and each call has its counterpart below.
    unsafe { ffi::PyOS_BeforeFork() };
    let forked = clone(thread);
    // SAFETY: as above; which of the two processes this is decides which call follows.
    unsafe {
        match forked {
            Ok(0) => ffi::PyOS_AfterFork_Child(),
            Ok(_) | Err(_) => ffi::PyOS_AfterFork_Parent(),
        }
    }
    forked.map_err(with_number)
}

/// Makes an exception whose `errno` is set.
fn with_number(error: io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    }
}

/// The place where the C library keeps the number of this thread, which must be the only one.
fn number_of_thread() -> io::Result<*mut libc::pid_t> {
    let unsupported = || io::Error::from_raw_os_error(libc::ENOSYS);
    let mut place: *mut libc::pid_t = std::ptr::null_mut();
    // SAFETY: it writes one pointer, to `place`.
    let code = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut place) };
    if code != 0 || place.is_null() || std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(unsupported());
    }
    // SAFETY: the kernel has this pointer from the C library, and writes to it when the thread ends. Some libraries have
    // something else there.
    let is_number = unsafe { place.read() == libc::gettid() };
    is_number.then_some(place).ok_or_else(unsupported)
}

/// What the C library's `fork` does where there is one thread, with the parent's parent as parent. Handlers of `pthread_atfork` are not
/// called.
fn clone(thread: *mut libc::pid_t) -> io::Result<libc::pid_t> {
    let flags =
        libc::CLONE_PARENT | libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
    let none = 0usize;
    // SAFETY: without CLONE_VM this is a fork. The child goes on with a copy of this stack, and has its own number where the C library
    // looks for it.
    #[cfg(target_arch = "x86_64")]
    let forked =
        unsafe { libc::syscall(libc::SYS_clone, flags as usize, none, none, thread, none) };
    // SAFETY: as above; the last two arguments have changed places.
    #[cfg(target_arch = "aarch64")]
    let forked =
        unsafe { libc::syscall(libc::SYS_clone, flags as usize, none, none, none, thread) };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let forked = {
        let _ = (flags, none, thread);
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        number => i32::try_from(number).map_err(io::Error::other),
    }
}

/// Writes a value over the one of the same length that this process was started with, where others see its environment: its own is
/// that of the process which it was forked from.
#[pyfunction]
pub(crate) fn overwrite_environment(name: &str, value: &str) -> PyResult<()> {
    let name = CString::new(name)?;
    let value = CString::new(value)?;
    // SAFETY: Python's own code changes the environment only with the interpreter's lock held, as it is here.
    let place = unsafe { libc::getenv(name.as_ptr()) };
    if place.is_null() {
        return Ok(());
    }
    // SAFETY: `getenv` gives text that ends with a zero byte, in memory that may be written to; exactly its length is.
    unsafe {
        if libc::strlen(place) == value.as_bytes().len() {
            place.copy_from_nonoverlapping(value.as_ptr(), value.as_bytes().len());
        }
    }
    Ok(())
}
