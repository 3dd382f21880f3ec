//! What the peer's control messages do: links, credit, keys, protections, the end.

use exoskel_identity::PeerText;

use crate::control::ControlMessage;
use crate::error::{CodecError, LinkRefusal, SessionError};
use crate::limits::Limits;
use crate::message::{Event, LinkId};
use crate::session::Session;
use crate::session::link::{Link, LinkState, signed};

impl Session {
    /// Does what a verified control message says. `counter` is its record's number.
    pub(super) fn handle_control(
        &mut self,
        message: ControlMessage,
        counter: u64,
    ) -> Result<(), SessionError> {
        self.check_control_queue()?;
        let outcome = match message {
            ControlMessage::LinkOpen { .. } => self.peer_opens(message),
            ControlMessage::LinkAccept { link, handlers } => self.peer_accepts(link, handlers),
            ControlMessage::LinkRefuse { link, reason } => self.peer_refuses(link, reason),
            ControlMessage::LinkClose { link } => self.peer_closes_link(link),
            ControlMessage::LinkClosed { link } => self.link_is_closed(link),
            ControlMessage::Credit { link, bytes } => self.peer_grants(link, bytes),
            ControlMessage::Heartbeat { sealed, opened } => {
                self.counts.peer_records_opened = opened;
                if sealed != counter || opened > self.sealer.counter() {
                    Err((
                        LinkId::CONTROL,
                        "the counts of its heartbeat are not those of this session",
                    ))
                } else {
                    Ok(())
                }
            }
            ControlMessage::KeyUpdate => {
                self.opener.advance();
                Ok(())
            }
            ControlMessage::Protections(protections) => {
                if !protections.satisfies(self.receiving) {
                    return Err(SessionError::Content {
                        counter,
                        source: CodecError::Unknown {
                            what: "protections weaker than those that hold",
                            got: protections.strictest().code().into(),
                        },
                    });
                }
                self.receiving = protections;
                self.events
                    .push_back(Event::ProtectionsRaised { protections });
                self.raise_protections(protections);
                Ok(())
            }
            ControlMessage::Close(reason) => {
                self.closing.peer_closes(&reason);
                self.events.push_back(Event::Closed { reason });
                Ok(())
            }
        };
        outcome.map_err(|(link, why)| SessionError::Unexpected { counter, link, why })
    }

    /// A peer that makes us answer and doesn't read the answers would fill our memory with them.
    fn check_control_queue(&self) -> Result<(), SessionError> {
        let queued = self.control.len();
        if queued > Limits::CONTROL_QUEUE_MAX {
            return Err(SessionError::PeerLimit {
                limit: "control_queue_max",
                got: queued as u64,
                maximum: Limits::CONTROL_QUEUE_MAX as u64,
            });
        }
        Ok(())
    }

    fn peer_opens(&mut self, message: ControlMessage) -> SteeringFault {
        let ControlMessage::LinkOpen {
            link: id,
            job,
            class,
            protection,
            endpoint,
        } = message
        else {
            return Ok(());
        };
        if protection != self.receiving.of(class) {
            return Err((
                id,
                "its protection is not what this session has for its class",
            ));
        }
        let limits = &self.config.limits;
        let credit = self.config.peer_limits.credit_bytes;
        let mut link = Link::new(false, class, job, credit, limits.credit_bytes);
        let handlers = self.endpoints.get(&endpoint);
        link.handlers = handlers.map(|handlers| handlers.len() as u16);
        if handlers.is_none() {
            link.state = LinkState::Refused;
        }
        self.links
            .add_peers(id, link, limits.links_max)
            .map_err(|why| (id, why))?;
        if let Some(handlers) = handlers {
            self.control.push_back(ControlMessage::LinkAccept {
                link: id,
                handlers: handlers.clone(),
            });
            self.events.push_back(Event::LinkOpened {
                link: id,
                endpoint,
                class,
                job,
            });
        } else {
            self.control.push_back(ControlMessage::LinkRefuse {
                link: id,
                reason: LinkRefusal::UnknownEndpoint,
            });
        }
        Ok(())
    }

    fn peer_accepts(&mut self, id: LinkId, handlers: Vec<String>) -> SteeringFault {
        let link = self.unanswered(id)?;
        link.handlers = Some(handlers.len() as u16);
        let handlers = handlers.into_iter().map(PeerText::from).collect();
        self.events
            .push_back(Event::LinkAccepted { link: id, handlers });
        Ok(())
    }

    fn peer_refuses(&mut self, id: LinkId, reason: LinkRefusal) -> SteeringFault {
        let link = self.unanswered(id)?;
        let dropped = core::mem::take(&mut link.queued_bytes);
        link.queue.clear();
        link.current = None;
        if link.state != LinkState::Closed {
            link.state = LinkState::Closed;
            self.control
                .push_back(ControlMessage::LinkClose { link: id });
        }
        self.queued_bytes -= dropped;
        self.events
            .push_back(Event::LinkRefused { link: id, reason });
        Ok(())
    }

    /// A link of this side that the peer has neither accepted nor refused.
    fn unanswered(&mut self, id: LinkId) -> Result<&mut Link, (LinkId, &'static str)> {
        self.links
            .get_mut(id)
            .filter(|link| link.opened_here && link.handlers.is_none())
            .ok_or((id, "it answers an opening that was not asked"))
    }

    fn peer_closes_link(&mut self, id: LinkId) -> SteeringFault {
        let Some(link) = self.links.get_mut(id).filter(|link| !link.opened_here) else {
            return Err((id, "it closes a link that the peer has not opened"));
        };
        match link.state {
            LinkState::Refused => {
                self.links.remove(id);
                self.control
                    .push_back(ControlMessage::LinkClosed { link: id });
            }
            LinkState::Open if link.assembly.is_none() => {
                link.state = LinkState::Closing;
                self.events.push_back(Event::LinkClosed { link: id });
                self.settle(id);
            }
            _ => return Err((id, "it closes a link in the middle of a message or twice")),
        }
        Ok(())
    }

    fn link_is_closed(&mut self, id: LinkId) -> SteeringFault {
        let is_due = |link: &&mut Link| {
            link.opened_here && link.state == LinkState::Closed && link.assembly.is_none()
        };
        let Some(link) = self.links.get_mut(id).filter(is_due) else {
            return Err((id, "it confirms the end of a link that has not ended"));
        };
        let was_accepted = link.handlers.is_some();
        self.links.remove(id);
        if was_accepted {
            self.events.push_back(Event::LinkClosed { link: id });
        }
        Ok(())
    }

    fn peer_grants(&mut self, id: LinkId, bytes: u64) -> SteeringFault {
        let maximum = signed(self.config.peer_limits.credit_bytes);
        // Credit for a link that has just ended crosses the end on its way.
        let Some(link) = self.links.get_mut(id) else {
            return Ok(());
        };
        let had_none = link.credit <= 0;
        link.credit = link.credit.saturating_add(signed(bytes));
        if link.credit > maximum {
            return Err((id, "it grants more credit than was used"));
        }
        if had_none && link.credit > 0 {
            self.events.push_back(Event::Credit { link: id });
        }
        if !link.is_ready && link.can_send() {
            link.is_ready = true;
            self.ready.push_back(id);
        }
        Ok(())
    }
}

/// What does not fit, and on which link.
type SteeringFault = Result<(), (LinkId, &'static str)>;
