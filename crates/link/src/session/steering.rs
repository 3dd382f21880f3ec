//! What the peer's control messages do: links, credit, keys, protections, the end.

use exoskel_identity::PeerText;

use crate::control::ControlMessage;
use crate::error::{CodecError, LinkRefusal, SessionError};
use crate::limits::Limits;
use crate::message::{Event, LinkId};
use crate::protection::Protection;
use crate::resumption::{LinkLife, Resumption};
use crate::session::Session;
use crate::session::link::{Link, LinkState, LinkTraffic, signed};

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
            ControlMessage::LinkAccept {
                link,
                protection,
                handlers,
                resumption,
            } => self.peer_accepts(link, protection, handlers, resumption),
            ControlMessage::LinkRefuse { link, reason } => self.peer_refuses(link, reason),
            ControlMessage::LinkEnd { link, reason } => self.peer_ends_link(link, reason),
            ControlMessage::LinkProtection { link, protection } => {
                self.peer_raises_link(link, protection)
            }
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
            right,
            life,
            early,
        } = message
        else {
            return Ok(());
        };
        if protection < self.receiving.of(class) {
            return Err((
                id,
                "its protection is below what this session has for its class",
            ));
        }
        // What leaves before the answer has the protection that the opener states: only the strictest is surely enough.
        let sends_early = !early.is_empty() && !life.is_resumed();
        if sends_early && protection < Protection::Encrypted {
            return Err((id, "it sends early messages on a link that isn't encrypted"));
        }
        let limits = &self.config.limits;
        let credit = self.config.peer_limits.credit_bytes;
        let mut link = Link::new(false, class, job, credit, limits.credit_bytes);
        let handlers = self.endpoints.get(&endpoint);
        link.handlers = handlers.map(|handlers| handlers.len() as u16);
        if handlers.is_none() {
            link.life = life;
            link.early = early.len() as u16;
        }
        (link.sending, link.receiving) = (protection, protection);
        let asks = handlers.is_none() && self.config.asks;
        if handlers.is_none() {
            link.state = if asks {
                LinkState::Asked
            } else {
                LinkState::Refused
            };
        }
        self.links
            .add_peers(id, link, limits.links_max)
            .map_err(|why| (id, why))?;
        if let Some(handlers) = handlers {
            self.control.push_back(ControlMessage::LinkAccept {
                link: id,
                protection,
                handlers: handlers.clone(),
                resumption: None,
            });
            self.events.push_back(Event::LinkOpened {
                link: id,
                endpoint,
                class,
                job,
            });
        } else if asks {
            self.events.push_back(Event::LinkAsked {
                link: id,
                endpoint: endpoint.into(),
                protection,
                right,
                life,
                early: early.into_iter().map(PeerText::from).collect(),
            });
        } else {
            self.control.push_back(ControlMessage::LinkRefuse {
                link: id,
                reason: LinkRefusal::UnknownEndpoint,
            });
        }
        Ok(())
    }

    /// A link of the peer that waits for our answer.
    fn asked(&mut self, id: LinkId) -> Result<&mut Link, SessionError> {
        let link = self.links.get_mut(id);
        link.filter(|link| !link.opened_here && link.state == LinkState::Asked)
            .ok_or(SessionError::UnknownLink(id))
    }

    /// Whether the peer still waits for our answer to a link that it asked for: it may have closed it since.
    pub fn is_asked(&self, id: LinkId) -> bool {
        let link = self.links.get(id);
        link.is_some_and(|link| !link.opened_here && link.state == LinkState::Asked)
    }

    /// Lets the peer in by a link that it asked for ([`Event::LinkAsked`]), to these handlers, with this protection or what it asked for,
    /// whichever is stricter.
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`] when nobody waits for this answer, [`SessionError::Limit`] for too many handlers or long names.
    pub fn accept_link(
        &mut self,
        id: LinkId,
        handlers: Vec<String>,
        protection: Protection,
    ) -> Result<(), SessionError> {
        self.accept(id, handlers, protection, None)
    }

    /// As [`accept_link`](Self::accept_link), for a link that was asked for as one that outlives the session, or that comes from an
    /// earlier one.
    ///
    /// # Errors
    /// As [`accept_link`](Self::accept_link).
    pub fn accept_lasting_link(
        &mut self,
        id: LinkId,
        handlers: Vec<String>,
        protection: Protection,
        resumption: Resumption,
    ) -> Result<(), SessionError> {
        self.accept(id, handlers, protection, Some(resumption))
    }

    fn accept(
        &mut self,
        id: LinkId,
        handlers: Vec<String>,
        protection: Protection,
        resumption: Option<Resumption>,
    ) -> Result<(), SessionError> {
        super::check_names(handlers.iter().map(String::as_str), handlers.len())?;
        let link = self.asked(id)?;
        link.state = LinkState::Open;
        match resumption {
            None => link.life = LinkLife::OneSession,
            Some(resumption) => {
                link.window = link.window.saturating_sub(signed(resumption.withheld));
            }
        }
        link.handlers = Some(handlers.len() as u16);
        let protection = protection.max(link.sending);
        (link.sending, link.receiving) = (protection, protection);
        self.control.push_back(ControlMessage::LinkAccept {
            link: id,
            protection,
            handlers,
            resumption,
        });
        Ok(())
    }

    /// Doesn't let the peer in by a link that it asked for.
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`] when nobody waits for this answer.
    pub fn refuse_link(&mut self, id: LinkId, reason: LinkRefusal) -> Result<(), SessionError> {
        self.asked(id)?.state = LinkState::Refused;
        self.control
            .push_back(ControlMessage::LinkRefuse { link: id, reason });
        Ok(())
    }

    /// Ends a link that the peer opened and this side accepted: what it still sends is dropped, and what waits to go out.
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`] when it has ended, [`SessionError::Direction`] for a link that this side opened.
    pub fn end_link(&mut self, id: LinkId, reason: LinkRefusal) -> Result<(), SessionError> {
        let link = self.links.get_mut(id);
        let link = link.ok_or(SessionError::UnknownLink(id))?;
        if link.opened_here {
            return Err(SessionError::Direction {
                link: id,
                why: "close_link ends what this side opened",
            });
        }
        if link.state != LinkState::Open {
            return Err(SessionError::UnknownLink(id));
        }
        link.state = LinkState::Refused;
        self.backlog -= link.drop_queue();
        self.control
            .push_back(ControlMessage::LinkEnd { link: id, reason });
        Ok(())
    }

    /// Makes a link's own protection stricter, from the next record on that this side seals; the peer does the same with the other
    /// direction. What is weaker than what holds is ignored.
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`] when it has ended.
    pub fn raise_link(&mut self, id: LinkId, protection: Protection) -> Result<(), SessionError> {
        let link = self.links.get_mut(id);
        let link = link.ok_or(SessionError::UnknownLink(id))?;
        if protection > link.sending {
            self.control.push_back(ControlMessage::LinkProtection {
                link: id,
                protection,
            });
        }
        Ok(())
    }

    /// What holds for records of a link in both directions, none when it has ended.
    pub fn link_protection(&self, id: LinkId) -> Option<Protection> {
        let link = self.links.get(id)?;
        let sending = self.sending.of(link.class).max(link.sending);
        Some(sending.min(self.receiving.of(link.class).max(link.receiving)))
    }

    /// What a link has carried so far, none when it has ended.
    pub fn link_traffic(&self, id: LinkId) -> Option<LinkTraffic> {
        Some(self.links.get(id)?.traffic)
    }

    fn peer_raises_link(&mut self, id: LinkId, protection: Protection) -> SteeringFault {
        // It may have ended on its way.
        let Some(link) = self.links.get_mut(id) else {
            return Ok(());
        };
        if protection < link.receiving {
            return Err((id, "it makes the protection of a link weaker"));
        }
        link.receiving = protection;
        let is_new = protection > link.sending;
        self.events.push_back(Event::LinkProtectionRaised {
            link: id,
            protection,
        });
        if is_new {
            self.control.push_back(ControlMessage::LinkProtection {
                link: id,
                protection,
            });
        }
        Ok(())
    }

    fn peer_ends_link(&mut self, id: LinkId, reason: LinkRefusal) -> SteeringFault {
        let link = self.links.get_mut(id);
        let Some(link) = link.filter(|link| link.opened_here && link.handlers.is_some()) else {
            return Err((id, "it ends a link that it has not accepted"));
        };
        // What it was in the middle of never comes to an end.
        link.assembly = None;
        self.refused(id, reason);
        Ok(())
    }

    fn peer_accepts(
        &mut self,
        id: LinkId,
        protection: Protection,
        handlers: Vec<String>,
        resumption: Option<Resumption>,
    ) -> SteeringFault {
        let link = self.unanswered(id)?;
        match (link.life, resumption) {
            (LinkLife::OneSession, Some(_)) => {
                return Err((id, "it keeps a link that was to end with its session"));
            }
            (LinkLife::Resumed { .. }, None) => {
                return Err((id, "it opens anew what was to be resumed"));
            }
            (LinkLife::Lasting { .. }, Some(new)) if new != Resumption::default() => {
                return Err((id, "it has received something by a link that is new"));
            }
            (_, None) => link.life = LinkLife::OneSession,
            (_, Some(resumption)) => {
                link.credit = link.credit.saturating_sub(signed(resumption.withheld));
            }
        }
        if protection < link.sending {
            return Err((id, "it accepts with less protection than was asked for"));
        }
        (link.sending, link.receiving) = (protection, protection);
        link.waits = false;
        if !link.is_ready && link.can_send() {
            link.is_ready = true;
            self.ready.push_back(id);
        }
        let link = self.unanswered(id)?;
        link.handlers = Some(handlers.len() as u16);
        let handlers = handlers.into_iter().map(PeerText::from).collect();
        self.events.push_back(Event::LinkAccepted {
            link: id,
            handlers,
            resumption,
        });
        Ok(())
    }

    fn peer_refuses(&mut self, id: LinkId, reason: LinkRefusal) -> SteeringFault {
        self.unanswered(id)?;
        self.refused(id, reason);
        Ok(())
    }

    /// Takes in that the peer wants nothing of a link of this side, or nothing more.
    fn refused(&mut self, id: LinkId, reason: LinkRefusal) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        self.backlog -= link.drop_queue();
        if link.state != LinkState::Closed {
            link.state = LinkState::Closed;
            self.control
                .push_back(ControlMessage::LinkClose { link: id });
        }
        self.events
            .push_back(Event::LinkRefused { link: id, reason });
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
            LinkState::Refused | LinkState::Asked => {
                if link.state == LinkState::Asked {
                    self.events.push_back(Event::LinkClosed { link: id });
                }
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
        link.credited = link.credited.saturating_add(bytes);
        if link.is_lasting() || (had_none && link.credit > 0) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyStore, SessionSecret};
    use crate::protection::{Protections, TrafficClass};
    use crate::session::{SessionConfig, Side};

    fn opening(protection: Protection, life: LinkLife) -> ControlMessage {
        ControlMessage::LinkOpen {
            link: LinkId(1),
            job: 0,
            class: TrafficClass::Data,
            protection,
            endpoint: "coupler".to_owned(),
            right: Vec::new(),
            life,
            early: vec!["surface".to_owned()],
        }
    }

    /// Who sends early messages doesn't know yet how much protection the other end wants.
    #[test]
    fn early_messages_of_a_link_that_is_not_encrypted_end_the_session() {
        for protection in Protection::ALL {
            let mut config = SessionConfig::new(Side::Server);
            config.asks = true;
            config.protections = Protections {
                control: Protection::Integrity,
                code: Protection::Integrity,
                data: Protection::Plain,
            };
            let keys = KeyStore::in_ordinary_memory(1);
            let secret = SessionSecret::from_bytes(&[1; 32]);
            let mut session = Session::new(config, secret, &keys, core::time::Duration::ZERO);
            let opened = session.handle_control(opening(protection, LinkLife::OneSession), 0);
            assert_eq!(opened.is_ok(), protection == Protection::Encrypted);
        }
    }
}
