//! What slots say, carried to the router and the user.

use std::time::Duration;

use bytes::Bytes;
use exoskel_identity::Colours;
use exoskel_link::{Event, MessageKind};
use exoskel_task::message::ReceivedMessage;
use exoskel_task::router::Answered;

use super::notice::{Notice, Output, readable};
use super::{ManagerAction, ManagerLink, ManagerMachine, PieceWanted, Presence};
use crate::session::SessionId;

impl ManagerMachine {
    /// Something has happened in a session.
    pub fn event(&mut self, session: SessionId, event: Event, now: Duration) {
        let user = self.endpoints.user_of(session, &event);
        let Event::Message {
            handler,
            kind,
            head,
            bulk,
            ..
        } = event
        else {
            return;
        };
        let Some(slot) = self.slots.get(&session) else {
            return;
        };
        if !slot.origin.is_trusted() && self.held_anew.last() != Some(&session) {
            // It may send less than before.
            self.held_anew.push(session);
        }
        match (user, kind) {
            (Some(ManagerLink::Results), MessageKind::Post) => {
                let message = ReceivedMessage {
                    handler,
                    head,
                    bulk,
                };
                match self.router.receive(session.0, message, now) {
                    Ok(answered) => self.answered(session, answered, now),
                    Err(error) => self.dismiss(session, error.to_string()),
                }
            }
            // Nothing here answers: whoever asks would wait for ever.
            (Some(ManagerLink::Results | ManagerLink::Slot), kind) => {
                self.dismiss(session, format!("got {kind:?}, expected a post"));
            }
            (None, _) => {}
        }
    }

    fn answered(&mut self, session: SessionId, answered: Answered, now: Duration) {
        match answered {
            Answered::Items => {}
            Answered::Differs(packages) => self.differs(session, &packages),
            Answered::Ready(lacks) => self.ready(session, &lacks, now),
            Answered::Initialized(error) => self.initialized(session, &error, now),
            Answered::Fetch {
                digest,
                offset,
                bytes,
            } => {
                let piece = PieceWanted {
                    digest,
                    offset,
                    bytes,
                };
                self.send_piece(session, piece);
            }
            Answered::Leaving => self.leaving(session, now),
            Answered::Probed => self.probed(session, now),
            Answered::Heard(heard) => self.hearsay(session, heard, now),
            Answered::Output { stream, text } => self.printed(session, stream, &text),
        }
    }

    fn probed(&mut self, session: SessionId, now: Duration) {
        let Some(slot) = self.slots.get_mut(&session) else {
            return;
        };
        slot.presence = match slot.presence {
            Presence::AskedTooEarly => {
                self.router.probe_slot(session.0);
                Presence::Asked
            }
            Presence::Asked | Presence::Certain => {
                self.router.resume_slot(session.0, now);
                Presence::Certain
            }
        };
    }

    fn send_piece(&mut self, session: SessionId, piece: PieceWanted) {
        if let Some(slot) = self.slots.get(&session) {
            let link = slot.code;
            self.actions.push_back(ManagerAction::SendPiece {
                session,
                link,
                piece,
            });
        }
    }

    fn printed(&mut self, session: SessionId, stream: u8, text: &Bytes) {
        let Some(slot) = self.slots.get(&session) else {
            return;
        };
        let colours = if slot.origin.is_trusted() {
            Colours::Kept
        } else {
            Colours::Escaped
        };
        let output = Output {
            worker: slot.origin.worker.clone(),
            stream,
            text: readable(text).into(),
            colours,
        };
        self.tell(Notice::Output(output));
    }
}
