//! What happens at the manager: it meets its workers, and is told what has come.

use exoskel_link::Session;
use exoskel_link::handshake::{Answer, AnswerError, HelloSent, Offer, Refuse, RefuseReason};
use exoskel_link::policy::PlaceProof;
use exoskel_node::manager::recruiter::{Prospect, SlotSource};
use exoskel_node::manager::{Arrival, JoiningSlot};

use super::handshake::{self, Channel, path};
use super::line::Line;
use super::machine::Machine;
use super::scenario::Node;
use super::wires::{ConnectionId, Piece, Way};
use crate::violation::Violation;

use super::manager::SlotSession;

impl Machine {
    /// The manager dials a worker. Its listening socket is there even while the slot is not.
    pub(super) fn dial(&mut self, worker: usize) -> Result<(), Violation> {
        self.check_dial(worker)?;
        if self.workers[worker].is_refusing {
            self.report.refused_dials += 1;
            let source = SlotSource::Host(worker);
            let now = self.manager.clock.shows(self.world.now);
            let machine = &mut self.manager.machine;
            machine.attempt_failed(source, Prospect::Passing, now);
            return Ok(());
        }
        let hello = match HelloSent::new(self.manager_offer(worker)) {
            Ok(hello) => hello,
            Err(error) => return self.world.broken(error.to_string()),
        };
        let id = self.connect(worker);
        let said = Piece::Bytes(hello.bytes().to_vec());
        self.manager.hellos.insert(id, hello);
        self.world.send(id, Way::ToWorker, said)
    }

    /// Something has come to the manager.
    pub(super) fn at_manager(&mut self, id: ConnectionId, piece: Piece) -> Result<(), Violation> {
        if self.has_left(id, Way::ToWorker) {
            return Ok(());
        }
        match piece {
            Piece::Bytes(bytes) if self.manager.sessions.contains_key(&id) => self.hear(id, &bytes),
            Piece::Bytes(bytes) => self.shake_hands(id, &bytes),
            Piece::End => self.hear_end(id),
        }
    }

    pub(super) fn shake_hands(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let (Some(channel), Some(worker)) =
            (self.channels.get(&id).cloned(), self.world.wires.worker(id))
        else {
            return Ok(());
        };
        let (source, begun) = if self.scenario.manager_dials {
            let Some(hello) = self.manager.hellos.remove(&id) else {
                return Ok(());
            };
            let change = self.session_change();
            let keys = &self.manager.keys;
            let begun = channel.answered(hello, bytes.to_vec(), keys, now, change);
            (
                SlotSource::Host(worker),
                begun.map_err(|error| error.to_string()),
            )
        } else {
            let Some(begun) = self.welcome_worker(id, worker, bytes, &channel)? else {
                return Ok(());
            };
            (SlotSource::DialledIn, begun)
        };
        // A certificate that was revoked is found out by whoever verifies it.
        let is_barred = self.is_barred(worker);
        match begun {
            Ok(session) if !is_barred => self.join_slot(id, worker, source, session),
            Ok(_) => {
                self.world.excuse(id);
                self.attempt_failed(id, source, Prospect::Hopeless)
            }
            Err(error) => {
                self.world.check_excused(id, Node::Manager, &error)?;
                self.attempt_failed(id, source, self.prospect(worker))
            }
        }
    }

    /// Answers somebody who dialled in; nothing more comes of it when it was refused.
    pub(super) fn welcome_worker(
        &mut self,
        id: ConnectionId,
        worker: usize,
        bytes: &[u8],
        channel: &Channel,
    ) -> Result<Option<Result<Session, String>>, Violation> {
        let now = self.manager.clock.shows(self.world.now);
        let (offer, change) = (self.manager_offer(worker), self.session_change());
        let (name, is_barred) = (self.scenario.name(worker), self.is_barred(worker));
        let machine = &self.manager.machine;
        if !is_barred && machine.unwanted(&name).is_none() && !machine.has_room() {
            self.manager.waiting.push_back((id, bytes.to_vec()));
            self.report.waited += 1;
            return Ok(None);
        }
        let (machine, keys) = (&mut self.manager.machine, &self.manager.keys);
        let mut is_admitted = false;
        let judge = || {
            if is_barred {
                let text = "its certificate was revoked".into();
                let reason = RefuseReason::NotAllowed;
                return Err(Refuse { reason, text });
            }
            if machine.admit_worker(&name)? == Arrival::Waits {
                return Err(machine.busy_refusal());
            }
            is_admitted = true;
            Ok(())
        };
        let answered = channel.answer(bytes.to_vec(), offer, keys, now, judge, change);
        match answered {
            Ok((answer, session)) => {
                self.world.send(id, Way::ToWorker, Piece::Bytes(answer))?;
                Ok(Some(Ok(session)))
            }
            Err(error) if is_admitted => Ok(Some(Err(error.to_string()))),
            Err(AnswerError::Refused(refuse)) => {
                self.check_refusal(id, worker, &refuse)?;
                let Ok(answer) = Answer::Refuse(refuse).encode() else {
                    return self.world.broken("a refusal that can't be said".to_owned());
                };
                self.world.send(id, Way::ToWorker, Piece::Bytes(answer))?;
                self.hang_up(id, Way::ToWorker)?;
                Ok(None)
            }
            Err(error) => self.world.broken(error.to_string()),
        }
    }

    /// Calls those who wait, for as long as there is room. Says whether anybody was.
    pub(super) fn call_next(&mut self) -> Result<bool, Violation> {
        if !self.manager.machine.has_room() {
            return Ok(false);
        }
        let Some((id, hello)) = self.manager.waiting.pop_front() else {
            return Ok(false);
        };
        if !self.has_left(id, Way::ToWorker) {
            self.begin_patience(id);
            self.shake_hands(id, &hello)?;
        }
        Ok(true)
    }

    /// An attempt to get a slot came to nothing.
    pub(super) fn attempt_failed(
        &mut self,
        id: ConnectionId,
        source: SlotSource,
        prospect: Prospect,
    ) -> Result<(), Violation> {
        let now = self.manager.clock.shows(self.world.now);
        self.manager.hellos.remove(&id);
        self.note_failure(source, prospect);
        self.manager.machine.attempt_failed(source, prospect, now);
        self.abandon(id)
    }

    /// What the manager brings to a handshake with this worker.
    pub(super) fn manager_offer(&self, worker: usize) -> Offer {
        handshake::offer(
            &self.scenario,
            handshake::manager(),
            self.manager.minimum,
            self.scenario.ciphers.clone(),
            path(worker, false, false),
            1 + worker as u32 % 3,
        )
    }

    pub(super) fn join_slot(
        &mut self,
        id: ConnectionId,
        worker: usize,
        source: SlotSource,
        mut session: Session,
    ) -> Result<(), Violation> {
        self.world.check_protections(id, session.protections())?;
        let now = self.manager.clock.shows(self.world.now);
        let peer = JoiningSlot {
            identity: self.scenario.identity(worker),
            address: format!("10.1.0.{worker}"),
            place: format!("10.1.0.{worker}:7600"),
            transport: "tcp".to_owned(),
            proof: PlaceProof::Direct,
            protections: session.protections(),
            own_minimum: self.manager.minimum,
            domain: self.scenario.workers[worker]
                .in_domain
                .then(|| "ours".to_owned()),
            is_trusted: self.scenario.is_trusted(worker),
            slots: Some(1),
            pid: None,
        };
        let machine = &mut self.manager.machine;
        match machine.join(source, &peer, &mut session, now) {
            Ok(number) => {
                self.check_joined(id, worker, peer.protections)?;
                self.report.sessions += 1;
                let line = Line::new(id, Way::ToWorker, session);
                let held = SlotSession {
                    line,
                    worker,
                    session: number,
                };
                self.manager.sessions.insert(id, held);
                self.manager.connections.insert(number, id);
                self.manager.dirty.insert(id);
                Ok(())
            }
            Err(error) => {
                self.check_refused(id, worker, &error)?;
                self.world.excuse(id);
                self.note_failure(source, Prospect::Hopeless);
                self.abandon(id)
            }
        }
    }

    /// The connection has no more bytes.
    pub(super) fn hear_end(&mut self, id: ConnectionId) -> Result<(), Violation> {
        if let Some(held) = self.manager.sessions.get_mut(&id) {
            let _ = held.line.session.0.received_end();
            self.manager.dirty.insert(id);
            return Ok(());
        }
        if self.has_left(id, Way::ToWorker) || !self.channels.contains_key(&id) {
            return Ok(());
        }
        self.give_up_handshake(id)
    }

    /// A handshake comes to nothing.
    pub(super) fn give_up_handshake(&mut self, id: ConnectionId) -> Result<(), Violation> {
        match self.manager.hellos.contains_key(&id) {
            true => {
                let worker = self.world.wires.worker(id).unwrap_or_default();
                self.attempt_failed(id, SlotSource::Host(worker), self.prospect(worker))
            }
            // Somebody who dialled in and said nothing.
            false => self.hang_up(id, Way::ToWorker),
        }
    }
}
