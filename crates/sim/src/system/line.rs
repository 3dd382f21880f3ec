//! One end of a connection: a session, and what moves its bytes and tells it the time.

use std::time::Duration;

use exoskel_link::{CloseReason, Ended, Event as LinkEvent, Session, SessionError};

use super::clock::Clock;
use super::scenario::Node;
use super::wires::{ConnectionId, Piece, Way};
use super::world::{Event, World};
use crate::violation::Violation;

/// The most bytes of one write.
const WRITE_MAX: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: ConnectionId,
    /// Which way it writes.
    pub(super) way: Way,
    pub(super) session: SessionOf,
    timer: Option<Duration>,
}

/// A session keeps its secrets out of `Debug`.
pub(super) struct SessionOf(pub(super) Session);

impl std::fmt::Debug for SessionOf {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Session")
    }
}

impl Line {
    pub(super) fn new(id: ConnectionId, way: Way, session: Session) -> Self {
        Self {
            id,
            way,
            session: SessionOf(session),
            timer: None,
        }
    }

    /// Takes bytes in; gives the events that were there until the end or an error.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        now: Duration,
    ) -> (Vec<LinkEvent>, Result<(), SessionError>) {
        let mut events = Vec::new();
        let mut left = bytes;
        while !left.is_empty() {
            let session = &mut self.session.0;
            let buffer = session.receive_buffer();
            let count = buffer.len().min(left.len());
            buffer[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            let result = session.received(count, now);
            events.extend(std::iter::from_fn(|| session.poll_event()));
            if result.is_err() {
                return (events, result);
            }
        }
        (events, Ok(()))
    }

    /// Writes what there is, as far as the wire takes it.
    pub(super) fn write(&mut self, world: &mut World, clock: Clock) -> Result<(), Violation> {
        loop {
            let session = &mut self.session.0;
            if let Err(error) = session.prepare(clock.shows(world.now)) {
                return world.broken(format!("could not seal: {error}"));
            }
            if session.outgoing_bytes() == 0 {
                return Ok(());
            }
            let room = world.wires.room(self.id, self.way);
            let most = room.min(1 + world.random.below(WRITE_MAX));
            if most == 0 {
                return Ok(());
            }
            let mut bytes = Vec::with_capacity(most.min(4096) as usize);
            for slice in session.outgoing() {
                let left = most as usize - bytes.len();
                bytes.extend_from_slice(&slice[..slice.len().min(left)]);
                if bytes.len() as u64 == most {
                    break;
                }
            }
            session.sent(bytes.len());
            world.send(self.id, self.way, Piece::Bytes(bytes))?;
        }
    }

    pub(super) fn close(&mut self, reason: CloseReason) {
        self.session.0.close(reason);
    }

    /// Writes, keeps the timer, and sees whether the session is over. An error of the session needs a fault that explains it.
    pub(super) fn tend(
        &mut self,
        world: &mut World,
        clock: Clock,
        node: Node,
    ) -> Result<Option<Ended>, Violation> {
        self.write(world, clock)?;
        self.arm(world, clock);
        let ended = self.session.0.ended();
        if let Some(Ended::Session(error)) = &ended {
            world.check_excused(self.id, node, error)?;
        }
        Ok(ended)
    }

    /// A timer came, at a time of the world that the node's clock shows as `now`. It is planned anew by [`tend`](Self::tend), unless that
    /// one was not the last that was planned.
    pub(super) fn keep_time(&mut self, at: Duration, now: Duration) {
        self.timer = self.timer.filter(|timer| at < *timer);
        let _ = self.session.0.handle_timeout(now);
    }

    /// Plans the next timer, unless an earlier one is planned.
    fn arm(&mut self, world: &mut World, clock: Clock) {
        let due = self.session.0.next_timeout();
        let due = due.map(|due| clock.when(due).max(world.now));
        if let Some(due) = due.filter(|due| self.timer.is_none_or(|timer| *due < timer)) {
            self.timer = Some(world.plan_timer(due, Event::Timer(self.id, self.way)));
        }
    }
}
