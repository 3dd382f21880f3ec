//! What `net`'s drivers do over sockets: carries events of sessions to the machines of manager and slots, and does what
//! these want.

use bytes::Bytes;
use exoskel_link::{
    CloseReason, Ended, Event as LinkEvent, LinkId, Message, Session, SessionError,
};
use exoskel_node::SessionId;
use exoskel_node::manager::ManagerAction;
use exoskel_node::slot::SlotAnswer;
use exoskel_task::slot_queue::{Outgoing, Overdue};

use super::at_worker::streams_of;
use super::interpreter::SHARED;
use super::machine::Machine;
use super::scenario::Node;
use super::wires::{ConnectionId, Way};
use super::worker::{SlotProcess, State};
use super::world::Event;
use crate::violation::Violation;

impl Machine {
    /// Whatever was said, what follows from it is done now.
    pub(super) fn manage(&mut self) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        loop {
            while let Some(action) = self.manager.machine.poll_action(now) {
                self.act(action)?;
            }
            if let Some(id) = self.manager.dirty.pop_first() {
                self.tend(id)?;
            } else if !self.call_next()? {
                break;
            }
        }
        if let Some(wake) = self.manager.machine.next_timeout() {
            if wake <= now {
                let what = format!("the manager wants to be woken {:?} ago", now - wake);
                return self.world.broken(what);
            }
            let at = self.manager.clock.when(wake).max(self.world.now);
            if self.manager.wake.is_none_or(|planned| at < planned) {
                self.manager.wake = Some(self.world.plan_timer(at, Event::Wake));
            }
        }
        self.serve_users()?;
        self.check_manager()
    }

    /// A timer of the machine came; it may have been planned before an earlier one.
    pub(super) fn woken(&mut self) {
        self.manager.wake = self
            .manager
            .wake
            .filter(|planned| self.world.now < *planned);
    }

    fn act(&mut self, action: ManagerAction) -> Result<(), Violation> {
        match action {
            ManagerAction::Send {
                session,
                link,
                message,
            } => return self.queue(session, link, message),
            ManagerAction::LimitReception { session, bytes } => {
                self.change(session, |session| session.limit_reception(bytes));
            }
            ManagerAction::Close { session, reason } => {
                self.change(session, |session| session.close(reason));
            }
            ManagerAction::Abort { session, reason } => {
                self.check_abort(session, &reason)?;
                self.change(session, |session| session.abort(reason));
            }
            // Nobody reads what was under way when the run was given up.
            ManagerAction::Deliver { stream, .. }
                if self.streams.users[stream as usize].is_given_up => {}
            ManagerAction::Deliver { stream, outcomes } => {
                self.check_origin(stream, &outcomes)?;
                let allowed = self.report.slots_lost.min(u64::from(u32::MAX)) as u32;
                let attempts = self.scenario.config.retries;
                let delivered = self.streams.deliver(stream, outcomes, allowed, attempts);
                return delivered.or_else(|what| self.world.broken(what));
            }
            ManagerAction::Dial(worker) => return self.dial(worker),
            ManagerAction::GiveUp { stream, waited } => return self.give_up(stream, waited),
            // What the user reads is of no consequence.
            ManagerAction::Wanted(_) => {}
            ManagerAction::Unwanted { worker, why } => {
                return self.check_unwanted(&worker.name, &why);
            }
            ManagerAction::SendPiece {
                session,
                link,
                piece,
            } => {
                let (digest, contents) = SHARED;
                let from = usize::try_from(piece.offset).unwrap_or(usize::MAX);
                let found = contents.get(from..).filter(|_| piece.digest == digest);
                let message = piece.message(found.map(Bytes::from_static));
                return self.queue(session, link, message);
            }
            ManagerAction::Tell(_) => {}
            ManagerAction::Total { stream, count } => {
                let told = self.streams.users[stream as usize].told_total(count);
                return told.or_else(|what| self.world.broken(format!("stream {stream}: {what}")));
            }
            ManagerAction::Ends { stream, ends } => {
                if let Some(run) = self.journals.run(stream as usize) {
                    run.told_ends(ends);
                }
            }
            other @ (ManagerAction::Start(_)
            | ManagerAction::End(_)
            | ManagerAction::LostTrack { .. }
            | ManagerAction::Hearsay { .. }) => {
                return self.world.broken(format!("the manager wants {other:?}"));
            }
        }
        Ok(())
    }

    fn change(&mut self, session: SessionId, change: impl FnOnce(&mut Session)) {
        if let Some((id, held)) = self.manager.session_of(session) {
            change(&mut held.line.session.0);
            self.manager.dirty.insert(id);
        }
    }

    fn queue(
        &mut self,
        session: SessionId,
        link: LinkId,
        message: Message,
    ) -> Result<(), Violation> {
        let Some((id, held)) = self.manager.session_of(session) else {
            return self
                .world
                .broken(format!("a message for {session}, which is gone"));
        };
        if let Err(error) = held.line.session.0.send(link, message) {
            // An ending session takes no more.
            if !matches!(error, SessionError::Closed(_)) {
                self.world.check_excused(id, Node::Manager, &error)?;
            }
            self.manager.machine.not_sent(session, &error);
        }
        self.manager.dirty.insert(id);
        Ok(())
    }

    /// Writes, keeps the timer, and sees whether the session is over.
    fn tend(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let clock = self.manager.clock;
        let Some(held) = self.manager.sessions.get_mut(&id) else {
            return Ok(());
        };
        let Some(ended) = held.line.tend(&mut self.world, clock, Node::Manager)? else {
            return Ok(());
        };
        if let Ended::Session(_) = &ended {
            self.report.slots_lost += 1;
        }
        let now = clock.shows(self.world.now);
        if let Some(held) = self.manager.sessions.remove(&id) {
            self.report.keys_changed += held.line.session.0.counts().epoch_sealing;
            self.manager.connections.remove(&held.session);
            self.note_end(&held, &ended);
            self.manager.machine.ended(held.session, &ended, now);
        }
        self.hang_up(id, Way::ToWorker)
    }

    pub(super) fn hear(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let Some(held) = self.manager.sessions.get_mut(&id) else {
            return Ok(());
        };
        // What is wrong with them is known when the session is asked how it is.
        let (events, _) = held.line.receive(bytes, now);
        let session = held.session;
        self.manager.dirty.insert(id);
        for event in events {
            self.note_event(id, &event)?;
            if let (LinkEvent::Message { link, size, .. }, Some(held)) =
                (&event, self.manager.sessions.get_mut(&id))
            {
                held.line.session.0.consumed(*link, *size);
            }
            self.manager.machine.event(session, event, now);
        }
        Ok(())
    }

    /// A session's timer came.
    pub(super) fn manager_timer(&mut self, id: ConnectionId) {
        let now = self.manager.clock.shows(self.world.now);
        if let Some(held) = self.manager.sessions.get_mut(&id) {
            held.line.keep_time(self.world.now, now);
            self.manager.dirty.insert(id);
        }
    }

    /// A session has something to write, perhaps.
    pub(super) fn stir_manager(&mut self, id: ConnectionId) {
        self.manager.dirty.insert(id);
    }

    pub(super) fn worker_hears(
        &mut self,
        number: usize,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let now = self.workers[number].clock.shows(self.world.now);
        let Some(process) = self.workers[number].process() else {
            return self.worker_handshake(number, id, bytes, now);
        };
        // What is wrong with them is known when the session is asked how it is.
        let (events, _) = process.line.receive(bytes, now);
        let mut outgoing = Vec::new();
        for event in events {
            match process.take_in(event) {
                Ok(answers) => outgoing.extend(answers),
                Err(what) => return self.world.broken(what),
            }
        }
        self.post_all(number, outgoing)?;
        self.work(number)
    }

    /// A session's timer came.
    pub(super) fn worker_timer(&mut self, id: ConnectionId) -> Result<(), Violation> {
        let Some(number) = self.world.wires.worker(id) else {
            return Ok(());
        };
        let now = self.workers[number].clock.shows(self.world.now);
        let Some(process) = self.workers[number]
            .process()
            .filter(|process| process.line.id == id)
        else {
            return Ok(());
        };
        process.line.keep_time(self.world.now, now);
        self.tend_worker(number)
    }

    /// The process for which a timer was planned, if it is still there.
    fn process_of(&mut self, number: usize, life: u32) -> Option<&mut SlotProcess> {
        let worker = &mut self.workers[number];
        (worker.life == life).then(|| worker.process()).flatten()
    }

    /// Results have waited for long enough.
    pub(super) fn flush(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let now = self.workers[number].clock.shows(self.world.now);
        let Some(process) = self.process_of(number, life) else {
            return Ok(());
        };
        process.flush = None;
        let outgoing = process.machine.flush(now);
        self.post_all(number, outgoing)?;
        self.tend_worker(number)
    }

    /// What runs may be overdue.
    pub(super) fn look(&mut self, number: usize, life: u32) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let now = worker.clock.shows(self.world.now);
        let streams = streams_of(&self.former, &self.streams, worker.manager_life);
        if worker.life != life {
            return Ok(());
        }
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        // One that was planned before a sooner one would plan the next one once more, and there would be ever more of them.
        if process.look.is_none_or(|planned| planned > self.world.now) {
            return Ok(());
        }
        process.look = None;
        match process.machine.look(now) {
            None => {}
            Some(Overdue::Tell) => {
                let told = process.interpreter.told(&mut process.machine, streams, now);
                if let Some(turn) = told {
                    self.turn(number, turn)?;
                    return self.work(number);
                }
            }
            Some(Overdue::Leave(answers)) => {
                self.post_all(number, answers)?;
                if let Some(process) = self.workers[number].process() {
                    process.line.close(CloseReason::ShuttingDown);
                }
            }
        }
        self.tend_worker(number)
    }

    pub(super) fn post_all(
        &mut self,
        number: usize,
        outgoing: impl IntoIterator<Item = Outgoing>,
    ) -> Result<(), Violation> {
        let Some(process) = self.workers[number].process() else {
            return Ok(());
        };
        for outgoing in outgoing {
            let message = SlotAnswer::from(outgoing).message;
            match process
                .line
                .session
                .0
                .send(process.machine.results(), message)
            {
                // Its end is noticed elsewhere.
                Ok(()) | Err(SessionError::Closed(_)) => {}
                Err(error) => {
                    let id = process.line.id;
                    self.world.check_excused(id, Node::Worker(number), &error)?;
                    let reason = CloseReason::Fault(error.to_string().into());
                    process.line.session.0.abort(reason);
                }
            }
        }
        Ok(())
    }

    /// Writes, keeps timers, and sees whether the session is over.
    pub(super) fn tend_worker(&mut self, number: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[number];
        let (clock, life) = (worker.clock, worker.life);
        let State::Up(process) = &mut worker.state else {
            return Ok(());
        };
        if process.machine.has_left() {
            process.line.close(CloseReason::ShuttingDown);
        }
        let node = Node::Worker(number);
        let ended = process.line.tend(&mut self.world, clock, node)?;
        let flush = process.machine.flush_at().map(|due| clock.when(due));
        if let Some(due) = flush
            && process.flush.is_none_or(|planned| due < planned)
        {
            let event = Event::Flush(number, life);
            process.flush = Some(self.world.plan_timer(due, event));
        }
        let look = process.machine.look_at(clock.shows(self.world.now));
        if let Some(at) = look.map(|at| clock.when(at))
            && process.look.is_none_or(|planned| at < planned)
        {
            let event = Event::Look(number, life);
            process.look = Some(self.world.plan_timer(at, event));
        }
        ended.map_or(Ok(()), |_| self.depart(number))
    }
}
