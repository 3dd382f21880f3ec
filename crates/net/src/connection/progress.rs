//! A connection without a task: whoever has it asks again and again, and nobody has to be woken.

use std::io::{self, IoSliceMut};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use exoskel_link::{Ended, Event};

use super::{Connection, Reader, Reading};
use crate::epoll_set::Telling;

/// So often nothing comes before the time is looked at: a clock costs as much as a small message.
const LOOKS_BETWEEN_TIMES: u32 = 1024;

impl Connection {
    /// Reads what is there, hands it out, and writes what is queued. Never waits. Says whether anything was there.
    ///
    /// This is for a connection that nobody [runs](Self::run), and one thread at a time. Messages are [queued](Self::queue), by `handle` as
    /// well: what is queued leaves before this returns, as far as the transport takes it.
    ///
    /// # Errors
    /// How the session has ended.
    pub fn progress(&self, mut handle: impl FnMut(Event)) -> Result<bool, Ended> {
        let mut reader = self.read_by_poller().map_err(|error| self.broken(error))?;
        while !self.hand_out(&mut reader.left, &mut handle) {}
        let mut session = self.lock();
        let mut slices = session.receive_buffers().map(IoSliceMut::new);
        let now = match self.transport.look_vectored(&mut slices) {
            Ok(count) => {
                let now = self.now();
                // What is wrong with the bytes, the session knows.
                let _ = match count {
                    0 => session.received_end(),
                    _ => session.received(count, now),
                };
                Some(now)
            }
            Err(error) if is_nothing(&error) => None,
            Err(error) => return Err(session.ended_by(error)),
        };
        let is_time = now.is_none() && self.count_look();
        if is_time {
            let _ = session.handle_timeout(self.now());
        }
        if now.is_some() || is_time {
            while let Some(event) = session.poll_event() {
                drop(session);
                handle(event);
                session = self.lock();
            }
        } else if session.outgoing_bytes() == 0 && session.queued_bytes() == 0 {
            return Ok(false);
        }
        drop(reader);
        let emptied = self.empty_mailbox(&mut session);
        let written = self.write_by(&mut session, now, |slices| self.transport.write_now(slices));
        let ended = session.ended();
        if let Some(ended) = ended {
            self.transport.shutdown_write();
            return Err(ended);
        }
        emptied?;
        match written {
            Some(error) if !is_nothing(&error) => Err(session.ended_by(error)),
            _ => Ok(now.is_some()),
        }
    }

    /// Takes over the reading, and has nobody told of what comes: telling costs more than a small message.
    fn read_by_poller(&self) -> io::Result<MutexGuard<'_, Reading>> {
        let mut reader = self.reader();
        if reader.by == Reader::Task {
            self.transport
                .tell_task(&self.readiness, Telling::Nothing)?;
            reader.by = Reader::Poller;
        }
        Ok(reader)
    }

    /// Gives the reading back to the connection's task, if it is gone.
    pub(super) fn read_by_task(&self) -> io::Result<()> {
        let mut reader = self.reader();
        if reader.by == Reader::Poller {
            self.transport.tell_task(&self.readiness, Telling::Now)?;
            reader.by = Reader::Task;
        }
        Ok(())
    }

    /// Whether the time is to be looked at.
    fn count_look(&self) -> bool {
        // Only one thread counts.
        let looks = self.looks.load(Relaxed).wrapping_add(1);
        self.looks.store(looks, Relaxed);
        looks.is_multiple_of(LOOKS_BETWEEN_TIMES)
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
