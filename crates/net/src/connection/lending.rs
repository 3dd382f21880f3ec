//! A connection that a thread reads for a while: for one that waits at several connections, and comes back soon.
//!
//! To tell the connection's task of what comes, or to tell it nothing, costs as much as a small message. So a thread that has read, and that
//! has come back soon before, leaves the reading to nobody: it goes on with it when it comes back. If it doesn't, the task takes over.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use exoskel_link::Event;

use super::{Connection, READS_IN_A_ROW, Reader, Reading, events_of};
use crate::epoll_set::{Telling, wait_at};
use crate::wake_up::WakeUp;

/// How long nobody reads after a thread has read that comes back soon. What comes meanwhile waits so long for others, at most about twice.
pub(crate) const LENDING_TIME: Duration = Duration::from_millis(2);

/// How threads borrow the reading.
#[derive(Default)]
pub(super) struct Lending {
    /// When one has given it back last.
    given_back: Duration,
    /// Whether it has been borrowed soon after that.
    is_soon: bool,
    /// `given_back`, when the task looked last.
    seen: Duration,
    /// Whether something is left to be read.
    is_left: bool,
}

impl Connection {
    /// Has this thread read, unless somebody else does; with `is_left_to_nobody`, only if nobody does. [`Connection::give_reading_back`] is
    /// due then.
    pub(crate) fn borrow_reading(&self, is_left_to_nobody: bool) -> bool {
        if self.with(|session| session.is_ending()) {
            return false;
        }
        // Whoever waits at other connections as well doesn't wait for this one.
        let Ok(mut reader) = self.reader.try_lock() else {
            return false;
        };
        match reader.by {
            Reader::Thread | Reader::Poller => return false,
            Reader::Nobody => {}
            Reader::Task if is_left_to_nobody => return false,
            Reader::Task => {
                let told = self.transport.tell_task(&self.readiness, Telling::Nothing);
                if let Err(fault) = told {
                    drop(reader);
                    self.failed(fault);
                    return false;
                }
            }
        }
        reader.by = Reader::Thread;
        let lending = &mut reader.lending;
        lending.is_soon = self.now().saturating_sub(lending.given_back) < LENDING_TIME;
        true
    }

    /// Reads what is there, for who has borrowed the reading; never waits. Says whether the peer can still send something.
    pub(crate) fn read_borrowed(&self, mut handle: impl FnMut(Event)) -> bool {
        let mut reader = self.reader();
        let read = self.look(&mut reader, &mut handle);
        drop(reader);
        match read {
            Ok(false) => return !self.with(|session| session.is_ending()),
            Ok(true) => {}
            Err(fault) => {
                self.failed(fault);
                return false;
            }
        }
        self.answer_what_was_read()
    }

    /// Gives back what was borrowed: to the task; or to nobody, if this thread has come back soon and may do so again. `is_last`: it
    /// won't, or others wait for what comes.
    pub(crate) fn give_reading_back(&self, is_last: bool) {
        let mut reader = self.reader();
        reader.lending.given_back = self.now();
        // Room for what is left to write is told to who reads.
        let is_all_done =
            reader.left.is_empty() && !reader.lending.is_left && self.unwritten_bytes() == 0;
        if !is_last && reader.lending.is_soon && is_all_done {
            reader.by = Reader::Nobody;
            drop(reader);
            if !self.is_lent.swap(true, Ordering::SeqCst) {
                // It looks whether somebody comes back.
                self.wake.notify_one();
            }
            return;
        }
        reader.by = Reader::Task;
        let told = self.transport.tell_task(&self.readiness, Telling::Now);
        drop(reader);
        if let Err(fault) = told {
            self.failed(fault);
        }
    }

    /// For the task: takes over what nobody has come back for, or what `is_needed` now. Says when to look again, if that is due.
    pub(super) fn take_reading_over(&self, is_needed: bool) -> io::Result<Option<Duration>> {
        let mut reader = self.reader();
        let lending = &mut reader.lending;
        let since = self.now().saturating_sub(lending.given_back);
        // To be told that somebody has begun again would cost as much as to look once more.
        let is_used =
            std::mem::replace(&mut lending.seen, lending.given_back) != lending.given_back;
        match reader.by {
            Reader::Nobody if !is_needed && since < LENDING_TIME => {
                return Ok(Some(LENDING_TIME - since));
            }
            Reader::Nobody => {
                reader.by = Reader::Task;
                self.transport.tell_task(&self.readiness, Telling::Now)?;
            }
            Reader::Thread if is_used => return Ok(Some(LENDING_TIME)),
            Reader::Thread | Reader::Task | Reader::Poller => {}
        }
        self.is_lent.store(false, Ordering::SeqCst);
        Ok(None)
    }

    fn failed(&self, fault: io::Error) {
        self.mailbox().fault.get_or_insert(fault);
        self.wake.notify_one();
    }

    /// Reads and hands out. Says whether anything was there.
    fn look(&self, reader: &mut Reading, handle: &mut impl FnMut(Event)) -> io::Result<bool> {
        let mut is_any = !reader.left.is_empty();
        reader.lending.is_left = true;
        if !self.hand_out(&mut reader.left, handle) {
            return Ok(true);
        }
        for _ in 0..READS_IN_A_ROW {
            let mut session = self.lock();
            let mut slices = session.receive_buffers().map(IoSliceMut::new);
            let count = match self.transport.look_vectored(&mut slices) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    reader.lending.is_left = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            is_any = true;
            let result = match count {
                0 => session.received_end(),
                _ => session.received(count, self.now()),
            };
            reader.left.extend(events_of(&mut session));
            drop(session);
            let is_all = self.hand_out(&mut reader.left, handle);
            if count == 0 || result.is_err() || !is_all {
                break;
            }
        }
        Ok(is_any)
    }
}

/// Waits until one of these has something to read, for who has borrowed all of them: for `patience` at most, less when a signal comes or the
/// wake-up is raised.
pub(crate) fn wait_at_all(
    connections: &[&Connection],
    patience: Duration,
    wake_up: &WakeUp,
) -> io::Result<()> {
    let asleep = connections
        .iter()
        .map_while(|one| match one.transport.fall_asleep() {
            Ok(true) => Some(Ok(one.transport.socket())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        })
        .collect::<io::Result<Vec<_>>>()?;
    // Nobody waits while one of them has something.
    let ready = if asleep.len() == connections.len() {
        wait_at(&asleep, patience, wake_up)?
    } else {
        vec![false; asleep.len()]
    };
    for (connection, is_ready) in connections.iter().zip(ready) {
        connection.transport.wake(is_ready)?;
    }
    Ok(())
}
