//! The endpoints of a process, and whose each link is: several users share one session, and none sees another's messages.

use std::collections::BTreeMap;

use exoskel_link::{Endpoint, Event, LinkId, Session, SessionError, TrafficClass};

use crate::session::SessionId;

/// The endpoints that a process offers on each of its sessions, and the links of all of them, by their users.
///
/// What a `User` is, is the machine's affair: it finds its own again when something comes by one of its links.
#[derive(Debug)]
pub struct Endpoints<User> {
    offered: Vec<(Endpoint, User)>,
    sessions: BTreeMap<SessionId, Vec<(LinkId, User)>>,
}

impl<User> Default for Endpoints<User> {
    fn default() -> Self {
        Self {
            offered: Vec::new(),
            sessions: BTreeMap::new(),
        }
    }
}

impl<User: Copy> Endpoints<User> {
    /// A process that offers these.
    #[must_use]
    pub fn new(offered: Vec<(Endpoint, User)>) -> Self {
        let sessions = BTreeMap::new();
        Self { offered, sessions }
    }

    /// A session has begun: it gets all endpoints.
    ///
    /// # Errors
    /// When the session is over already.
    pub fn begin(&mut self, id: SessionId, session: &mut Session) -> Result<(), SessionError> {
        let mut offered = self.offered.iter();
        offered.try_for_each(|(endpoint, _)| session.offer(endpoint.clone()))?;
        self.sessions.insert(id, Vec::new());
        Ok(())
    }

    /// Opens a link for a user.
    ///
    /// # Errors
    /// When the session is over already, or has as many links as it may.
    pub fn open(
        &mut self,
        id: SessionId,
        session: &mut Session,
        endpoint: &str,
        class: TrafficClass,
        user: User,
    ) -> Result<LinkId, SessionError> {
        let link = session.open_link(endpoint, class)?;
        self.sessions.entry(id).or_default().push((link, user));
        Ok(link)
    }

    /// Whose this event is; nobody's, if it is of the session as a whole or of a link that nobody has.
    pub fn user_of(&mut self, id: SessionId, event: &Event) -> Option<User> {
        let links = self.sessions.get_mut(&id)?;
        let position = |wanted: &LinkId| links.iter().position(|(link, _)| link == wanted);
        match event {
            Event::Message { link, .. } | Event::LinkAccepted { link, .. } => {
                Some(links[position(link)?].1)
            }
            Event::LinkOpened { link, endpoint, .. } => {
                let mut offered = self.offered.iter();
                let (_, user) = offered.find(|(offered, _)| offered.name == *endpoint)?;
                links.push((*link, *user));
                Some(*user)
            }
            Event::LinkRefused { link, .. } | Event::LinkClosed { link, .. } => {
                let place = position(link)?;
                Some(links.swap_remove(place).1)
            }
            _ => None,
        }
    }

    /// The session is over.
    pub fn end(&mut self, id: SessionId) {
        self.sessions.remove(&id);
    }
}
