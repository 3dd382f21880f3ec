//! Descriptors for children: sealed memory, and what may be inherited.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// Puts `contents` into anonymous memory that nobody can change any more.
///
/// # Errors
/// When the kernel has no such memory for us.
pub(crate) fn sealed_memory(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(memory);
    io::Write::write_all(&mut file, contents)?;
    io::Seek::rewind(&mut file)?;
    let memory = OwnedFd::from(file);
    rustix::fs::fcntl_add_seals(
        &memory,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(memory)
}

/// Lets the next child inherit a descriptor and says its number.
///
/// Children that another thread starts between this call and the descriptor's end inherit it too, unless they close
/// what they don't know, as Python's `subprocess` does.
pub(crate) fn inheritable(descriptor: BorrowedFd<'_>) -> io::Result<RawFd> {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
    Ok(descriptor.as_raw_fd())
}
