//! Shared memory as what carries a session: a ring of bytes for each direction, beside the Unix socket over which the two ends have met.
//!
//! The socket stays: a byte on it wakes the side that has said that it sleeps, its end is the peer's end, and who is at its other end the
//! kernel has proved.

mod flow;
mod memory;
#[cfg(test)]
mod model;
pub(crate) mod passing;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exoskel_link::Side;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::sync::Notify;

use crate::epoll_set::{EpollSet, Telling, wait_here};
use crate::fork::Owned;
use crate::socket::Socket;
use crate::wake_up::WakeUp;
use flow::{Doorbell, RingReader, RingWriter, Rung};
use memory::{RingHalf, SharedMapping};
use passing::PassedMemory;
pub use passing::SharedMemoryError;

/// So many bytes are taken from the doorbell at once, and so often in a row. A peer that keeps to the rules rings a few times at most.
const BELLS_AT_ONCE: usize = 64;
const BELLS_IN_A_ROW: usize = 16;

/// Two rings and their doorbell: this side's end.
#[derive(Debug)]
pub struct MemoryRings {
    doorbell: Socket,
    memory: OwnedMapping,
    side: Side,
    reader: Mutex<RingReader>,
    writer: Mutex<RingWriter>,
    /// The peer may have made room.
    room: Notify,
    state: MemoryRingsState,
}

struct OwnedMapping(Owned<SharedMapping>);

impl std::fmt::Debug for OwnedMapping {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SharedMapping")
    }
}

/// What this side knows, and keeps to itself.
#[derive(Debug, Default)]
struct MemoryRingsState {
    /// The socket has ended: nobody takes what is written.
    is_peer_gone: AtomicBool,
    /// The end has been read: nobody listens to the doorbell for the sake of reading.
    is_read: AtomicBool,
    /// This side wants to read nothing more.
    is_shut: AtomicBool,
}

impl MemoryRings {
    /// Goes on through memory where a socket has been.
    ///
    /// # Errors
    /// As [`Owned::new`].
    pub(crate) fn new(doorbell: Socket, memory: PassedMemory, side: Side) -> io::Result<Self> {
        Ok(Self {
            doorbell,
            memory: OwnedMapping(Owned::new(memory.0)?),
            side,
            reader: Mutex::new(RingReader::new()),
            writer: Mutex::new(RingWriter::new()),
            room: Notify::new(),
            state: MemoryRingsState::default(),
        })
    }

    /// The socket beside it.
    pub(crate) fn doorbell(&self) -> &Socket {
        &self.doorbell
    }

    /// As [`Transport::read_vectored`](crate::transport::Transport::read_vectored).
    pub(crate) fn read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_by(|reader, incoming| reader.read(incoming, self, slices))
    }

    /// As [`Transport::look_vectored`](crate::transport::Transport::look_vectored).
    pub(crate) fn look_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // What it wrote before it went is there.
        let is_gone = is_set(&self.state.is_peer_gone);
        let read = self.read_by(|reader, incoming| reader.look(incoming, self, slices));
        match read {
            Err(error) if is_gone && error.kind() == io::ErrorKind::WouldBlock => {
                self.state.is_read.store(true, Ordering::Relaxed);
                Ok(0)
            }
            read => read,
        }
    }

    fn read_by(
        &self,
        read: impl FnOnce(&mut RingReader, &RingHalf<'_>) -> io::Result<Option<usize>>,
    ) -> io::Result<usize> {
        let incoming = self.direction(self.side.peer())?;
        if is_set(&self.state.is_shut) {
            return Ok(0);
        }
        let read = read(&mut self.reader(), &incoming)?;
        if read.is_none() {
            self.state.is_read.store(true, Ordering::Relaxed);
        }
        Ok(read.unwrap_or_default())
    }

    /// As [`Transport::try_write_vectored`](crate::transport::Transport::try_write_vectored).
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let outgoing = self.direction(self.side)?;
        if is_set(&self.state.is_peer_gone) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.writer().write(&outgoing, self, slices)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    /// Waits as a task until something can be written, or nothing ever will.
    pub(crate) async fn writable(&self, readiness: &EpollSet) -> io::Result<()> {
        loop {
            let outgoing = self.direction(self.side)?;
            if is_set(&self.state.is_peer_gone) || self.writer().look_for_room(&outgoing)? > 0 {
                return Ok(());
            }
            if is_set(&self.state.is_read) {
                readiness.heard().await?;
                self.hear()?;
            } else {
                // Who reads hears the doorbell, and tells.
                self.room.notified().await;
            }
        }
    }

    /// As [`Transport::tell_task`](crate::transport::Transport::tell_task).
    pub(crate) fn tell_task(&self, readiness: &EpollSet, telling: Telling) -> io::Result<()> {
        let telling = match telling {
            // Nobody rings for what is here already.
            Telling::Bytes | Telling::Now if !self.sleep()? => Telling::Now,
            asked => asked,
        };
        readiness.tell(&self.doorbell, telling)
    }

    /// As [`Transport::wait_here`](crate::transport::Transport::wait_here).
    pub(crate) fn wait_here(&self, patience: Duration, wake_up: Option<&WakeUp>) -> io::Result<()> {
        if self.sleep()? {
            wait_here(&self.doorbell, patience, wake_up)?;
        }
        Ok(())
    }

    /// As [`Transport::shutdown_write`](crate::transport::Transport::shutdown_write). The socket stays open for wake-ups.
    pub(crate) fn shutdown_write(&self) {
        // A forked child has nothing to end.
        if let Ok(outgoing) = self.direction(self.side) {
            self.writer().end(&outgoing, self);
        }
    }

    /// As [`Transport::shutdown_read`](crate::transport::Transport::shutdown_read).
    pub(crate) fn shutdown_read(&self) {
        self.state.is_shut.store(true, Ordering::Relaxed);
        self.doorbell.shutdown_read();
    }

    /// As [`Transport::fall_asleep`](crate::transport::Transport::fall_asleep).
    pub(crate) fn fall_asleep(&self) -> io::Result<bool> {
        self.sleep()
    }

    /// As [`Transport::wake`](crate::transport::Transport::wake).
    pub(crate) fn wake(&self, is_told: bool) -> io::Result<()> {
        let incoming = self.direction(self.side.peer())?;
        self.reader().wake(&incoming);
        if is_told {
            // Who waits for all sockets again is told again of what is left.
            self.hear_once()?;
        }
        Ok(())
    }

    /// Asks to be woken. False when there is something to read.
    fn sleep(&self) -> io::Result<bool> {
        let incoming = self.direction(self.side.peer())?;
        Ok(self.reader().sleep(&incoming)?)
    }

    fn direction(&self, sender: Side) -> io::Result<RingHalf<'_>> {
        let memory = self.memory.0.get().ok_or_else(|| {
            io::Error::other("shared memory belongs to the process that opened the session, this is a forked child of it")
        })?;
        Ok(memory.direction(sender))
    }

    fn reader(&self) -> MutexGuard<'_, RingReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, RingWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes some of what the peer has rung.
    fn hear_once(&self) -> io::Result<Rung> {
        let mut bells = [0; BELLS_AT_ONCE];
        match rustix::net::recv(self.doorbell.as_fd(), &mut bells[..], RecvFlags::DONTWAIT) {
            // A process that ended with wake-ups unread resets the socket. What it wrote into the memory is there all the same.
            Ok((_, 0)) | Err(Errno::CONNRESET) => {
                self.gone();
                Ok(Rung::End)
            }
            Ok(_) => {
                self.room.notify_one();
                Ok(Rung::Part)
            }
            Err(Errno::AGAIN) => Ok(Rung::Everything),
            Err(Errno::INTR) => Ok(Rung::Part),
            Err(error) => Err(error.into()),
        }
    }

    fn gone(&self) {
        self.state.is_peer_gone.store(true, Ordering::Relaxed);
        self.room.notify_one();
    }
}

impl Doorbell for MemoryRings {
    fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(self.doorbell.as_fd(), &[0], flags) {
                // A socket that is full of wake-ups wakes.
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => return self.gone(),
            }
        }
    }

    fn hear(&self) -> io::Result<Rung> {
        for _ in 0..BELLS_IN_A_ROW {
            match self.hear_once()? {
                Rung::Part => {}
                rung => return Ok(rung),
            }
        }
        Ok(Rung::Part)
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}
