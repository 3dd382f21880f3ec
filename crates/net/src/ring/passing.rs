//! How the memory of two rings comes from one process to the other: made, sealed and sent by the one, received, checked and mapped by the other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use exoskel_link::Side;
use exoskel_link::handshake::MemoryName;
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::flow::{RingMemory, Word};
use super::memory::{MEMORY_BYTES, SharedMapping};

/// What keeps the memory from being made smaller (and every process that has it mapped from being killed), or anything else.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The byte that a descriptor travels with.
const WITH_DESCRIPTOR: u8 = b'm';

/// Why memory that a peer has sent can't be what it should be. Somebody stands between the two, or the peer's software is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedMemoryError {
    /// No descriptor came where one was announced.
    #[error(
        "got no descriptor, expected one of shared memory: somebody between the two ends has taken it away"
    )]
    NoDescriptor,
    /// The descriptor is of something else.
    #[error(
        "got a descriptor that is no sealed memory, expected shared memory: the peer's software is at fault"
    )]
    NoMemory,
    /// Somebody could make the memory smaller.
    #[error(
        "got shared memory that can change its size, expected it to be sealed: the peer's software is at fault"
    )]
    NotSealed,
    /// It has another size.
    #[error(
        "got shared memory of {got} bytes, expected {expected}: update the older of the two installations"
    )]
    Size {
        /// What came.
        got: u64,
        /// What this side can use.
        expected: u64,
    },
    /// It is not the memory of which the peer spoke.
    #[error(
        "got shared memory {got}, expected {expected}: somebody between the two ends has replaced it"
    )]
    Replaced {
        /// What came over the socket, or what the peer says that it got.
        got: MemoryName,
        /// What was said inside the handshake, or what this side sent.
        expected: MemoryName,
    },
}

/// Memory that this side has made.
pub(crate) struct NewMemory {
    pub(crate) descriptor: OwnedFd,
    pub(crate) name: MemoryName,
    pub(crate) memory: PassedMemory,
}

/// Memory that both sides have found good.
#[derive(Debug)]
pub(crate) struct PassedMemory(pub(super) SharedMapping);

impl NewMemory {
    /// Makes memory for both directions.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("exoskel-ring", flags)?;
        // All of it now: a page that the kernel hasn't got later would kill both processes.
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, MEMORY_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&descriptor, SEALS)?;
        let mapping = SharedMapping::new(&descriptor)?;
        // Who has read nothing yet wants to be woken by the first byte.
        for side in [Side::Client, Side::Server] {
            mapping
                .direction(side)
                .store(Word::ReaderSleeps, 1, Relaxed);
        }
        Ok(Self {
            name: name(descriptor.as_fd())?,
            descriptor,
            memory: PassedMemory(mapping),
        })
    }
}

/// Maps memory that a peer has sent, when it is what the peer has said it is. An error of the first kind ends the handshake; one of
/// the second kind is this machine's, and the session goes on without shared memory.
pub(crate) fn map(
    descriptor: &OwnedFd,
    expected: MemoryName,
) -> Result<io::Result<PassedMemory>, SharedMemoryError> {
    let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(|_| SharedMemoryError::NoMemory)?;
    if !seals.contains(SEALS) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(SharedMemoryError::NotSealed);
    }
    // Behind the seals nothing of this changes any more.
    let got = name(descriptor.as_fd()).map_err(|_| SharedMemoryError::NoMemory)?;
    if got != expected {
        return Err(SharedMemoryError::Replaced { got, expected });
    }
    let bytes = MEMORY_BYTES as u64;
    if got.bytes != bytes {
        return Err(SharedMemoryError::Size {
            got: got.bytes,
            expected: bytes,
        });
    }
    Ok(SharedMapping::new(descriptor).map(PassedMemory))
}

/// Names memory as no other on this machine is named while somebody has it open.
fn name(descriptor: BorrowedFd<'_>) -> io::Result<MemoryName> {
    let stat = rustix::fs::fstat(descriptor)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(MemoryName {
        device: stat.st_dev,
        inode: stat.st_ino,
        bytes: u64::try_from(stat.st_size).unwrap_or_default(),
    })
}

/// Sends a descriptor, with one byte.
pub(crate) fn send(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let byte = [IoSlice::new(&[WITH_DESCRIPTOR])];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &byte, &mut control, flags)? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(()),
    }
}

/// Receives one byte, and the descriptor with it, if there is one. Others that came along are closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?;
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.next().and_then(|mut first| first.next()))
}
