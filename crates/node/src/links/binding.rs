//! Startpoints that this process has bound, and what waits for their links.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use exoskel_identity::PeerText;
use exoskel_link::capability::Startpoint;
use exoskel_link::{
    EARLY_HANDLERS_MAX, LinkId, LinkLife, LinkRefusal, Message, MessageKind, Protection,
    Resumption, Session, SessionError,
};

use super::endpoint::is_name;
use super::hints::has_place;
use super::lasting::LastingEnd;
use super::{
    EndedProcess, Happening, LOOKUP_ENDPOINT, LinkError, MessageContents, OutgoingMessage,
    PeerProcess, REQUESTS_MAX, RegionMessage, RequestId, StreamMessage, WAITING_BYTES_MAX,
    WaitingQueue, WantedProcess, lost,
};
use crate::session::SessionId;

/// A bound startpoint. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingId(pub(super) u64);

impl BindingId {
    /// The one of this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for BindingId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "binding {}", self.0)
    }
}

/// A request or post that waits for a link.
pub(super) struct Waiting {
    pub(super) handler: String,
    pub(super) request: Option<RequestId>,
    pub(super) contents: MessageContents,
}

impl Waiting {
    fn bytes(&self) -> u64 {
        self.contents.size()
    }

    fn is_told_post(&self) -> bool {
        self.request.is_none() && is_told(&self.contents.head)
    }

    fn into_message(self, handler: u16) -> Message {
        Message {
            handler,
            kind: self.request.map_or(MessageKind::Post, MessageKind::Request),
            head: self.contents.head,
            bulk: self.contents.bulk,
            is_gathered: self.contents.is_gathered,
        }
    }
}

pub(super) struct Binding {
    pub(super) startpoint: Startpoint,
    /// Where it leads.
    pub(super) peer: WantedProcess,
    /// Whether it leads to whoever is found by its hints, and to no other process of the node.
    pub(super) is_by_hints: bool,
    /// How its owner came to mean this process.
    pub(super) means: EndedProcess,
    /// What its owner requires besides.
    pub(super) minimum: Protection,
    /// The strictest that this program's policy has asked for since its link was asked for.
    pub(super) policy_asked: Protection,
    /// The session and the link that carry it, from the moment at which the link is asked for.
    pub(super) place: Option<(SessionId, LinkId)>,
    /// Whether the other end has accepted.
    pub(super) is_open: bool,
    /// When it has: in its first session, if there have been several.
    pub(super) since: Duration,
    /// What it accepts on this link.
    handlers: Vec<PeerText>,
    /// The link's name, if it is asked for as one that outlives its session.
    name: Option<u64>,
    /// What is kept of it, if it does.
    pub(super) lasting: Option<LastingEnd>,
    /// The handlers that its LinkOpens name: of messages that don't wait for the first answer.
    early: Vec<String>,
    /// Such messages have gone, and the other end has not accepted yet: its handlers are not known.
    is_unanswered: bool,
    /// Something is for a handler that the other end didn't have when the link was asked for: the link is to be asked for again, on the
    /// session that carries it.
    is_outdated: bool,
    /// Since when it has waited for another session, and why it has lost the last one.
    pub(super) away: Option<(Duration, String)>,
    /// Why there is no link, if the last attempt to have one came to nothing.
    pub(super) failure: Option<String>,
    /// What its owner has to hear of posts before the next call.
    unsaid: Option<LinkError>,
    waiting: WaitingQueue,
    waiting_bytes: u64,
    /// Requests without an answer.
    requests: BTreeSet<RequestId>,
    /// Its owner has closed it: it goes when its posts are known to have arrived, or can't any more.
    is_leaving: bool,
}

impl Binding {
    pub(super) fn new(startpoint: Startpoint) -> Self {
        // Whoever looks an endpoint up doesn't know yet which process has it.
        let is_lookup = startpoint.endpoint() == LOOKUP_ENDPOINT;
        let peer = WantedProcess {
            node: startpoint.node().clone(),
            process: (!is_lookup).then(|| startpoint.process()),
        };
        Self {
            startpoint,
            peer,
            is_by_hints: false,
            means: EndedProcess::default(),
            minimum: Protection::Plain,
            policy_asked: Protection::Plain,
            place: None,
            is_open: false,
            since: Duration::ZERO,
            handlers: Vec::new(),
            name: None,
            lasting: None,
            early: Vec::new(),
            is_unanswered: false,
            is_outdated: false,
            away: None,
            failure: None,
            unsaid: None,
            waiting: WaitingQueue::new(),
            waiting_bytes: 0,
            requests: BTreeSet::new(),
            is_leaving: false,
        }
    }

    /// Whether it needs a link that nobody has asked for.
    pub(super) fn is_wanted(&self) -> bool {
        self.place.is_none() && (self.away.is_some() || !self.waiting.is_empty())
    }

    /// The link of this session that carries it, if its handlers are to be asked for again.
    pub(super) fn outdated_link(&self, id: SessionId) -> Option<LinkId> {
        let (session, link) = self.place.filter(|_| self.is_outdated)?;
        (session == id).then_some(link)
    }

    /// Whether a session leads where it does, by what is known of the session.
    pub(super) fn leads_to(&self, process: &PeerProcess, dialled_by: &[String]) -> bool {
        let own = self.startpoint.hints();
        let is_there = || own.iter().any(|hint| has_place(dialled_by, hint));
        self.peer.is(process) && (!self.is_by_hints || is_there())
    }

    /// Whether all of its hints are among these.
    pub(super) fn has_been_tried_at(&self, hints: &[String]) -> bool {
        let own = self.startpoint.hints();
        own.iter().all(|hint| has_place(hints, hint))
    }

    pub(super) fn check_room(
        &mut self,
        request: Option<RequestId>,
        head: &[u8],
    ) -> Result<(), LinkError> {
        // A stream or a transfer may have failed already, and tell nobody what another one of its messages comes to.
        if self.unsaid.is_some() && !is_of_part(head) {
            return self.unsaid.take().map_or(Ok(()), Err);
        }
        if request.is_some() && self.requests.len() >= REQUESTS_MAX {
            return Err(LinkError::TooManyRequests);
        }
        Ok(())
    }

    pub(super) fn asked(&mut self, request: Option<RequestId>) {
        self.requests.extend(request);
    }

    /// Its owner has closed it. Says whether it has posts that still have to go, or whose arrival is not known.
    pub(super) fn close(&mut self) -> (bool, Vec<Happening>) {
        let happened = lost(std::mem::take(&mut self.requests), &LinkError::Closed);
        self.waiting.retain(Waiting::is_told_post);
        self.is_leaving = self.has_unknown_posts();
        (self.is_leaving, happened)
    }

    /// Whether posts of it still have to go, or nobody knows whether they have arrived.
    pub(super) fn has_unknown_posts(&self) -> bool {
        self.waiting.iter().any(Waiting::is_told_post) || self.kept_posts() > 0
    }

    /// The posts that went out, and of which nobody knows whether they have arrived.
    fn kept_posts(&self) -> usize {
        self.lasting.as_ref().map_or(0, LastingEnd::unknown_posts)
    }

    /// Whether startpoints are asked for by it.
    pub(super) fn is_lookup(&self) -> bool {
        self.startpoint.endpoint() == LOOKUP_ENDPOINT
    }

    /// Whether its owner has closed it, and its posts have not gone yet, or nobody has confirmed that they have arrived.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether its owner has closed it, and nothing of it can go any more.
    pub(super) fn is_left(&self) -> bool {
        self.is_leaving && self.place.is_none() && !self.has_unknown_posts()
    }

    /// The bytes of requests and posts that wait for the link, or of which nobody knows whether they have arrived.
    pub(super) fn pending_bytes(&self) -> u64 {
        let kept = self.lasting.as_ref().map_or(0, LastingEnd::kept_bytes);
        self.waiting_bytes + kept
    }

    /// An answer to this request has come, and no handler runs before the ones of what was sent before it: all of it has arrived.
    pub(super) fn answered(&mut self, request: RequestId) {
        if let Some(lasting) = &mut self.lasting {
            lasting.answered(request);
        }
    }

    /// Says whether it was still waited for.
    pub(super) fn forget(&mut self, request: RequestId) -> bool {
        self.requests.remove(&request)
    }

    /// Takes a message: what it gives is to be sent now.
    pub(super) fn take(&mut self, waiting: Waiting) -> Result<Option<OutgoingMessage>, LinkError> {
        // What was asked for earlier goes first.
        let waits = self.lasting.is_none() || self.is_unanswered || !self.waiting.is_empty();
        if !self.is_open && waits {
            self.check_allowed(&waiting.handler)?;
            self.wait(waiting)?;
            return Ok(None);
        }
        if self.lasting.is_some() && self.number_of(&waiting.handler).is_none() {
            // The other end may have added it since, and its rules decide now.
            self.check_allowed(&waiting.handler)?;
            self.wait(waiting)?;
            self.is_outdated = self.is_open;
            self.is_open = false;
            return Ok(None);
        }
        self.take_known(waiting)
    }

    /// Takes a message for a handler that the other end has named.
    fn take_known(&mut self, waiting: Waiting) -> Result<Option<OutgoingMessage>, LinkError> {
        let message = self.message(waiting)?;
        let place = self.place.filter(|_| self.is_open);
        if let Some(lasting) = &mut self.lasting {
            let bytes = lasting.kept_bytes().saturating_add(message.size());
            if place.is_none() && bytes > WAITING_BYTES_MAX {
                return Err(LinkError::TooMuchWaits { got: bytes });
            }
            lasting.keep(message.clone());
        }
        Ok(place.map(|(session, link)| OutgoingMessage {
            session,
            link,
            message,
        }))
    }

    /// Refuses a handler that the startpoint doesn't allow, whatever the other end says.
    fn check_allowed(&self, handler: &str) -> Result<(), LinkError> {
        let Some(allowed) = self.startpoint.allowance().handlers else {
            return Ok(());
        };
        if allowed.contains(handler) {
            return Ok(());
        }
        Err(LinkError::NoHandler {
            handler: handler.to_owned(),
            endpoint: self.startpoint.endpoint().to_owned(),
            known: allowed.into_iter().map(PeerText::from).collect(),
        })
    }

    fn wait(&mut self, waiting: Waiting) -> Result<(), LinkError> {
        let bytes = self.waiting_bytes.saturating_add(waiting.bytes());
        if bytes > WAITING_BYTES_MAX {
            return Err(LinkError::TooMuchWaits { got: bytes });
        }
        self.waiting_bytes = bytes;
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Asks for the link on a session: a new one, which outlives the session if it has a `name`, or the one that was lost. What waits for a
    /// new one follows at once if that gives nothing away: the link is encrypted, and what gets lost with the session is sent again. For that
    /// the other end has to have the session as well: it `is_shared`.
    pub(super) fn ask(
        &mut self,
        id: SessionId,
        session: &mut Session,
        same_host: bool,
        is_shared: bool,
        minimum: Protection,
        name: Option<u64>,
    ) -> Result<(LinkId, Vec<Happening>), SessionError> {
        let protection = self.startpoint.needs(same_host).max(self.minimum);
        let protection = protection.max(minimum);
        self.policy_asked = minimum;
        let binding = *session.binding();
        if let Some(lasting) = &mut self.lasting {
            lasting.attempt += 1;
        }
        if self.lasting.is_none() {
            let is_early = is_shared && name.is_some() && protection == Protection::Encrypted;
            self.early = match is_early && !self.is_lookup() {
                true => self.early_handlers(),
                false => Vec::new(),
            };
        }
        let (startpoint, lasting) = (&self.startpoint, &self.lasting);
        let (endpoint, early) = (startpoint.endpoint(), &self.early[..]);
        let link = session.request_early_link(endpoint, protection, early, |link| {
            let number = link.number();
            let life = match (lasting, name) {
                (Some(end), _) => LinkLife::Resumed {
                    name: end.name,
                    attempt: end.attempt,
                    received: end.received,
                    proof: end
                        .key
                        .prove(&binding, number, end.name, end.attempt, end.received),
                },
                (None, Some(name)) => LinkLife::Lasting { name },
                (None, None) => LinkLife::OneSession,
            };
            (startpoint.right(&binding, number).encode(), life)
        })?;
        self.place = Some((id, link));
        self.is_outdated = false;
        self.name = name;
        let is_early = self.lasting.is_none() && !self.early.is_empty();
        let happened = match name.filter(|_| is_early) {
            Some(name) => self.send_early(session, link, name),
            None => Vec::new(),
        };
        Ok((link, happened))
    }

    /// The handlers of the first messages that wait, as many as a LinkOpen can name.
    fn early_handlers(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for waiting in &self.waiting {
            if names.contains(&waiting.handler) {
                continue;
            }
            if names.len() == EARLY_HANDLERS_MAX || !is_name(&waiting.handler) {
                break;
            }
            names.push(waiting.handler.clone());
        }
        names
    }

    /// Sends what needn't wait for the answer to the LinkOpen that has just been queued.
    fn send_early(&mut self, session: &mut Session, link: LinkId, name: u64) -> Vec<Happening> {
        let key = session.resumption_key().clone();
        self.lasting = Some(LastingEnd::new(name, key));
        self.is_unanswered = true;
        let mut happened = Vec::new();
        while let Some(waiting) = self.waiting.pop_front() {
            let named = self.early.iter().position(|name| *name == waiting.handler);
            let Some(place) = named else {
                self.waiting.push_front(waiting);
                break;
            };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(waiting.bytes());
            let (request, is_told_post) = (waiting.request, waiting.is_told_post());
            let message = waiting.into_message(Message::EARLY_HANDLER + place as u16);
            if let Some(lasting) = &mut self.lasting {
                lasting.keep(message.clone());
            }
            if let Err(error) = self.send(session, link, message) {
                happened.append(&mut self.lose(request, is_told_post, &error));
            }
        }
        happened
    }

    /// The other end has said which handlers it has: nothing comes of early messages for others, which it drops.
    fn lose_unknown(&mut self) -> Vec<Happening> {
        let kept = self.lasting.iter().flat_map(LastingEnd::kept);
        let unknown = kept.filter_map(|message| {
            let place = message.handler.checked_sub(Message::EARLY_HANDLER)?;
            let name = self.early.get(usize::from(place))?;
            let request = match message.kind {
                MessageKind::Request(request) => Some(request),
                _ => None,
            };
            let is_told_post = request.is_none() && is_told(&message.head);
            let is_known = self.handlers.iter().any(|known| known.is(name));
            (!is_known).then(|| (request, is_told_post, self.no_handler(name.clone())))
        });
        let unknown: Vec<_> = unknown.collect();
        unknown
            .into_iter()
            .flat_map(|(request, is_told_post, error)| self.lose(request, is_told_post, &error))
            .collect()
    }

    /// The link is open: what has waited goes out.
    pub(super) fn opened(
        &mut self,
        session: &mut Session,
        link: LinkId,
        handlers: Vec<PeerText>,
        resumption: Option<Resumption>,
        now: Duration,
    ) -> Vec<Happening> {
        let is_first = self.is_unanswered || self.lasting.is_none();
        let resumed = self.lasting.as_mut().filter(|end| end.attempt > 0);
        if let Some(lasting) = resumed {
            let said = resumption.unwrap_or_default();
            let resumed = lasting.resume(said.received, said.withheld);
            let error = match resumed {
                Ok(()) => send_all(session, link, lasting).err().map(LinkError::from),
                Err(impossible) => Some(LinkError::ImpossibleCount {
                    node: self.peer.node.clone(),
                    got: impossible.got,
                    least: impossible.least,
                    most: impossible.most,
                }),
            };
            if let Some(error) = error {
                // It may have ended by itself.
                let _ = session.close_link(link);
                return self.fail(&error);
            }
        }
        let mut happened = Vec::new();
        // Numbers of messages that are kept stay those of their handlers.
        if is_first || handlers.starts_with(&self.handlers) {
            self.handlers = handlers;
        }
        if is_first {
            self.since = now;
            happened.append(&mut self.lose_unknown());
            self.lasting = match (self.lasting.take(), self.name, resumption) {
                // Early messages have gone, and are kept.
                (Some(lasting), _, Some(_)) => Some(lasting),
                (None, Some(name), Some(_)) => {
                    let key = session.resumption_key().clone();
                    Some(LastingEnd::new(name, key))
                }
                _ => None,
            };
        }
        (self.away, self.failure) = (None, None);
        (self.is_open, self.is_unanswered) = (true, false);
        self.waiting_bytes = 0;
        for waiting in std::mem::take(&mut self.waiting) {
            let (request, is_told_post) = (waiting.request, waiting.is_told_post());
            let sent = self.take_known(waiting).and_then(|outgoing| {
                let Some(outgoing) = outgoing else {
                    return Ok(());
                };
                self.send(session, link, outgoing.message)
            });
            if let Err(error) = sent {
                happened.append(&mut self.lose(request, is_told_post, &error));
            }
        }
        happened
    }

    /// Sends the newest message.
    fn send(
        &mut self,
        session: &mut Session,
        link: LinkId,
        message: Message,
    ) -> Result<(), LinkError> {
        let kind = message.kind;
        match session.send(link, message) {
            // A session that ends says so, and so does a link that the other end has ended at once.
            Ok(()) | Err(SessionError::UnknownLink(_)) => Ok(()),
            Err(_) if session.is_ending() => Ok(()),
            Err(error) => {
                self.take_back();
                Err(LinkError::of_message(error, kind))
            }
        }
    }

    /// Nothing comes of a request or post.
    fn lose(
        &mut self,
        request: Option<RequestId>,
        is_told_post: bool,
        error: &LinkError,
    ) -> Vec<Happening> {
        match request.filter(|request| self.forget(*request)) {
            Some(request) => lost([request], error),
            // Whoever posted hears of it at the next call, unless there is something else to hear.
            None if is_told_post => {
                self.lose_posts(1, error);
                vec![Happening::Warning(error.to_string())]
            }
            None => Vec::new(),
        }
    }

    /// The newest message was not sent, and won't be.
    pub(super) fn take_back(&mut self) {
        if let Some(lasting) = &mut self.lasting {
            lasting.take_back();
        }
    }

    /// A message on the open link.
    fn message(&self, waiting: Waiting) -> Result<Message, LinkError> {
        let Some(handler) = self.number_of(&waiting.handler) else {
            return Err(self.no_handler(waiting.handler));
        };
        Ok(waiting.into_message(handler))
    }

    fn number_of(&self, handler: &str) -> Option<u16> {
        let mut handlers = self.handlers.iter();
        let place = handlers.position(|known| known.is(handler))?;
        Some(place as u16)
    }

    fn no_handler(&self, handler: String) -> LinkError {
        LinkError::NoHandler {
            handler,
            endpoint: self.startpoint.endpoint().to_owned(),
            known: self.handlers.clone(),
        }
    }

    /// Whether it may go over to another session: it outlives its session, or nothing has been sent on it.
    pub(super) fn can_move(&self) -> bool {
        self.lasting.is_some() || !self.is_open
    }

    /// The session has ended, and the link waits for another one.
    pub(super) fn leave(&mut self, now: Duration, why: &str) {
        self.place = None;
        self.is_open = false;
        self.is_outdated = false;
        if self.lasting.is_some() || !self.waiting.is_empty() {
            self.away.get_or_insert_with(|| (now, why.to_owned()));
        }
    }

    /// There is no link, or none any more: nothing that waits gets an answer. The next request asks anew.
    pub(super) fn fail(&mut self, error: &LinkError) -> Vec<Happening> {
        let waiting = self.waiting.iter().filter(|one| one.is_told_post());
        let posts = waiting.count() + self.kept_posts();
        if posts > 0 {
            self.lose_posts(posts, error);
        }
        self.place = None;
        self.is_open = false;
        self.failure = Some(error.to_string());
        self.lasting = None;
        self.early.clear();
        self.is_unanswered = false;
        self.is_outdated = false;
        self.away = None;
        self.handlers.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
        lost(std::mem::take(&mut self.requests), error)
    }

    /// The other end doesn't open the link, or has ended it.
    pub(super) fn refused(&mut self, reason: LinkRefusal) -> Vec<Happening> {
        let error = LinkError::Refused {
            node: self.startpoint.node().clone(),
            endpoint: self.startpoint.endpoint().to_owned(),
            reason,
        };
        self.fail(&error)
    }

    /// The binding's owner has to hear of this, and of what it has not heard yet, as far as the reason is the same.
    fn lose_posts(&mut self, more: usize, error: &LinkError) {
        let reason = error.to_string();
        match &mut self.unsaid {
            Some(LinkError::PostsLost { posts, why, .. }) if *why == reason => *posts += more,
            unsaid => {
                *unsaid = Some(LinkError::PostsLost {
                    endpoint: self.startpoint.endpoint().to_owned(),
                    posts: more,
                    why: reason,
                });
            }
        }
    }

    /// What its owner would have had to hear of posts, who has closed it.
    pub(super) fn take_unsaid(&mut self) -> Option<LinkError> {
        Some(match self.unsaid.take()? {
            LinkError::PostsLost {
                endpoint,
                posts,
                why,
            } => LinkError::ClosedPostsLost {
                endpoint,
                posts,
                why,
            },
            error => error,
        })
    }
}

/// Whether the owner of a binding has to hear that a post with this head is lost. A stream's own are told by the stream.
pub(super) fn is_told(head: &[u8]) -> bool {
    StreamMessage::read(head).is_none()
}

/// Whether a message with this head is a stream's or a region's, and no call of the program's.
fn is_of_part(head: &[u8]) -> bool {
    StreamMessage::read(head).is_some() || RegionMessage::read(head).is_some()
}

/// Sends what the peer lacks. A session that ends says so by itself, and so does a link that the other end has ended.
pub(super) fn send_all(
    session: &mut Session,
    link: LinkId,
    lasting: &LastingEnd,
) -> Result<(), SessionError> {
    for message in lasting.kept() {
        match session.send(link, message.clone()) {
            Ok(()) => {}
            Err(SessionError::UnknownLink(_)) => break,
            Err(_) if session.is_ending() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
