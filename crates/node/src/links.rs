//! The machine of a program's own links: endpoints that it offers, startpoints that it is bound to, and who may do what by them.
//!
//! A startpoint is bound once and keeps its binding, whatever session carries its link. Requests that are made before there is a link
//! wait for it, within a limit. Whoever drives the machine dials where it [wants](LinkMachine::take_wants) to get, sends the messages
//! that it gives, and hands out the calls.

mod binding;
mod ended;
mod endpoint;
mod error;
mod hints;
mod judgement;
mod lasting;
mod listing;
mod lookup;
mod marked;
mod met;
mod peer;
mod redial;
mod regions;
mod sessions;
mod streams;
mod trouble;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_identity::{Identity, PeerText, VerifiedIdentity};
use exoskel_link::capability::{Caveat, KEY_ID_BYTES, NewStartpoint, RootKey, Startpoint};
use exoskel_link::handshake::ProcessNumber;
use exoskel_link::policy::Policy;
use exoskel_link::{
    Event, LinkId, LinkLife, LinkRefusal, Message, MessageKind, NAME_BYTES_MAX, Protection,
    Session, SessionError,
};

pub use self::binding::BindingId;
use self::binding::{Binding, Waiting};
use self::ended::EndedLinks;
pub use self::endpoint::AcceptedId;
use self::endpoint::{AcceptedLink, OwnEndpoint};
pub use self::error::LinkError;
pub use self::hints::is_same_place;
use self::lasting::LastingEnd;
pub use self::listing::{EndpointRow, OpenLinkRow};
use self::lookup::NodePlace;
pub use self::lookup::{LOOKUP_ENDPOINT, LOOKUP_HANDLER};
pub use self::marked::{MARK, PeerFailure};
use self::met::MetSessions;
pub use self::peer::{
    EndedProcess, FailedAttempts, Hindrance, PeerProcess, SessionPeer, WantedProcess,
};
use self::redial::Dialling;
pub use self::regions::{
    ArrayPart, PartError, REGION_DIMENSIONS_MAX, REGION_LEVELS_MAX, REGION_PIECE_BYTES_MAX,
    RegionLayout, RegionMessage,
};
pub use self::sessions::{AWAY_BYTES_MAX, AWAY_LINKS_MAX};
pub use self::streams::{
    LinkStreamEnd, STREAM_KEPT_BYTES_MAX, STREAM_PIECE_BYTES_MAX, STREAM_PIECES_MAX, StreamAction,
    StreamFault, StreamMessage,
};
pub use self::trouble::TroubledLink;
use crate::session::SessionId;

/// Bytes of requests and posts that wait for one link at most.
pub const WAITING_BYTES_MAX: u64 = 64 << 20;

/// Requests of one binding that wait for their answers, at most.
pub const REQUESTS_MAX: usize = 65_536;

/// Answers with startpoints that wait until their peer reads them, at most.
const LOOKUPS_WAITING_MAX: usize = 1024;

/// A request of this process. No number is used twice.
pub type RequestId = u64;

/// What a message carries besides its head: buffers that are not copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageContents {
    /// The in-band bytes.
    pub head: Bytes,
    /// The out-of-band buffers.
    pub bulk: Vec<Bytes>,
    /// All of `bulk` is one buffer for the receiver, sent from where its stretches lie.
    pub is_gathered: bool,
}

impl MessageContents {
    /// How many bytes a message of them counts.
    #[must_use]
    pub fn size(&self) -> u64 {
        let bulk: u64 = self.bulk.iter().map(|part| part.len() as u64).sum();
        Message::OVERHEAD_BYTES + self.head.len() as u64 + bulk
    }
}

/// A message to be sent on a link of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The session.
    pub session: SessionId,
    /// The link.
    pub link: LinkId,
    /// The message.
    pub message: Message,
}

/// A request or post that has come for one of our handlers.
#[derive(Clone, Debug)]
pub struct LinkCall {
    /// By which link it came, whatever session carries that now: calls of one link are handled one after the other.
    pub accepted: AcceptedId,
    /// The session that has brought it.
    pub session: SessionId,
    /// The endpoint's name.
    pub endpoint: String,
    /// The handler's name.
    pub handler: String,
    /// The number of a request; none for a post.
    pub request: Option<u64>,
    /// Who asks.
    pub peer: Arc<VerifiedIdentity>,
    /// Which process of that node it is.
    pub process: Arc<PeerProcess>,
    /// The in-band bytes.
    pub head: Bytes,
    /// The out-of-band buffers.
    pub bulk: Vec<Vec<u8>>,
    /// What to give back when it is handled ([`LinkMachine::handled`], [`Session::consumed`]).
    pub size: u64,
}

/// Errors about posts of closed bindings that are kept for whoever closes the node. The log has all.
const UNHEARD_MAX: usize = 64;

/// What a call holds beside its message.
const CALL_BYTES: u64 = 512;

impl LinkCall {
    /// The memory that it takes while it waits, in bytes: more than it counts on the wire.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.size.saturating_add(CALL_BYTES)
    }
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestAnswer {
    /// The handler's reply.
    Reply {
        /// The in-band bytes.
        head: Bytes,
        /// The out-of-band buffers.
        bulk: Vec<Vec<u8>>,
    },
    /// The handler's failure, in the same form.
    Failure {
        /// The in-band bytes.
        head: Bytes,
    },
    /// It has no answer, and will have none.
    Lost(LinkError),
}

/// What an event came to.
#[derive(Debug)]
pub enum Happening {
    /// To be handled.
    Call(LinkCall),
    /// The opener of a link has closed it: what has come is handled, and nothing else comes.
    LinkClosed(AcceptedId, LinkError),
    /// A link that others have opened is over, and why: nobody waits for what it has asked.
    LinkOver(AcceptedId, LinkError),
    /// The session is one too many between two processes, and is to be closed ([`CloseReason::Finished`](exoskel_link::CloseReason)).
    Close(SessionId),
    /// A request has its answer.
    Answered(RequestId, RequestAnswer),
    /// One line for the log: who was let in, or not, and why.
    Audit(String),
    /// As an audit line, and the program's owner should hear of it at once: nobody waits for what it is about.
    Warning(String),
}

/// A link that a peer has opened and that rules are against now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarredLink {
    /// The link.
    pub accepted: AcceptedId,
    /// Who has opened it.
    pub peer: Identity,
    /// What is against it.
    pub reason: String,
}

/// A session that links need: to whom, and where that node may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The process that has the endpoint.
    pub peer: WantedProcess,
    /// Where it may be found, the best first.
    pub hints: Vec<String>,
}

/// What our policy wants at least for a link to an endpoint of this name, with the peer of a session.
pub type LinkPolicy<'a> = dyn Fn(&str) -> Protection + 'a;

/// A session as the machine knows it.
struct LinkSession {
    peer: SessionPeer,
    process: Arc<PeerProcess>,
    /// By which it was dialled, if we did.
    hints: Vec<String>,
    /// Its links go over to another one: it is one too many, or a new one is wanted.
    is_retiring: bool,
    links: BTreeMap<LinkId, Use>,
    /// Links that their openers have closed, and of which calls are not handled yet.
    closed: Vec<AcceptedId>,
}

/// Whose a link of a session is.
#[derive(Clone, Copy)]
enum Use {
    Own(BindingId),
    Accepted(AcceptedId),
    /// By which the peer asks for startpoints.
    Lookup,
}

/// What somebody wants to open.
struct AskedLink<'a> {
    link: LinkId,
    endpoint: &'a str,
    protection: Protection,
    right: &'a [u8],
    life: LinkLife,
    early: Vec<PeerText>,
}

/// The links of one process, without sockets, threads and clocks.
pub struct LinkMachine {
    /// Which process we are.
    process: ProcessNumber,
    /// How long a link waits for another session; nothing: links end with their sessions.
    patience: Duration,
    endpoints: BTreeMap<String, OwnEndpoint>,
    sessions: BTreeMap<SessionId, LinkSession>,
    bindings: BTreeMap<BindingId, Binding>,
    bindings_made: u64,
    /// What the owners of closed bindings have not heard of their posts: at most [`UNHEARD_MAX`], the first ones.
    unheard: Vec<LinkError>,
    /// Links that others have opened, and their openers' names for those that outlive their sessions.
    accepted: BTreeMap<AcceptedId, AcceptedLink>,
    accepted_made: u64,
    names: BTreeMap<(Arc<PeerProcess>, u64), AcceptedId>,
    /// Those of them that their openers have closed, and may not know that all of them has come.
    ended: EndedLinks,
    /// In which sessions others have opened links, or may think that they have.
    met: MetSessions,
    /// Names of our own.
    names_made: u64,
    requests_made: u64,
    dialling: Dialling,
    /// Whether the program ends.
    is_leaving: bool,
    /// Whose rules say what peers may do.
    policy: Arc<Policy>,
    /// What startpoints say that rules give out.
    place: Option<NodePlace>,
}

impl LinkMachine {
    /// The links of the process of this number, as its handshakes state it. A link that loses its session waits for another one for so
    /// long; with a `patience` of nothing it ends.
    #[must_use]
    pub fn new(process: ProcessNumber, patience: Duration) -> Self {
        Self {
            process,
            patience,
            endpoints: BTreeMap::new(),
            sessions: BTreeMap::new(),
            bindings: BTreeMap::new(),
            bindings_made: 0,
            unheard: Vec::new(),
            accepted: BTreeMap::new(),
            accepted_made: 0,
            names: BTreeMap::new(),
            ended: EndedLinks::default(),
            met: MetSessions::default(),
            names_made: 0,
            requests_made: 0,
            dialling: Dialling::default(),
            is_leaving: false,
            policy: Arc::default(),
            place: None,
        }
    }

    /// Offers an endpoint with handlers. Both numbers must be random and new.
    ///
    /// # Errors
    /// [`LinkError::EndpointTaken`], or [`LinkError::Capability`] for a name that can't travel.
    pub fn offer(
        &mut self,
        name: &str,
        minimum: Protection,
        key_id: [u8; KEY_ID_BYTES],
        secret: [u8; 32],
    ) -> Result<(), LinkError> {
        if name.starts_with(lookup::RESERVED) {
            return Err(LinkError::EndpointReserved(name.to_owned()));
        }
        if self.endpoints.contains_key(name) {
            return Err(LinkError::EndpointTaken(name.to_owned()));
        }
        let key = RootKey::new(name, key_id, secret)?;
        self.endpoints
            .insert(name.to_owned(), OwnEndpoint::new(key, minimum));
        Ok(())
    }

    /// Adds a handler to an endpoint. Links that are open are asked for again by whoever calls it, unless they end with their sessions.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`]; [`LinkError::HandlerTaken`].
    pub fn add_handler(&mut self, endpoint: &str, handler: &str) -> Result<(), LinkError> {
        self.own(endpoint)?.add_handler(handler)
    }

    /// Makes a startpoint of one of our endpoints.
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::Capability`].
    pub fn startpoint(
        &mut self,
        endpoint: &str,
        node: Identity,
        hints: Vec<String>,
        bearer: bool,
        caveats: Vec<Caveat>,
    ) -> Result<Startpoint, LinkError> {
        let process = self.process;
        let own = self.own(endpoint)?;
        let minimum = own.minimum;
        Ok(own.key.issue(NewStartpoint {
            node,
            process,
            hints,
            minimum,
            bearer,
            caveats,
        })?)
    }

    /// Takes a startpoint back, with all copies of it; gives the links that rest on it, which the caller ends by [`LinkMachine::end_link`].
    ///
    /// # Errors
    /// [`LinkError::NoEndpoint`], [`LinkError::Capability`].
    pub fn revoke(&mut self, endpoint: &str, number: u64) -> Result<Vec<AcceptedId>, LinkError> {
        self.own(endpoint)?.key.revoke(number)?;
        Ok(self.accepted_where(|accepted| {
            accepted.endpoint == endpoint && accepted.number == number && !accepted.by_rule
        }))
    }

    /// Says who this node is and where it may be found, the best first, to peers to whom rules give startpoints. Without it, nobody gets
    /// one.
    pub fn give_out(&mut self, node: Identity, hints: Vec<String>) {
        let process = self.process;
        self.place = Some(NodePlace {
            node,
            process,
            hints,
        });
    }

    /// Has this policy's rules decide from now on; gives the links that they are against. The caller ends them by
    /// [`LinkMachine::end_link`].
    pub fn set_policy(&mut self, policy: Arc<Policy>) -> Vec<BarredLink> {
        let rules = policy.authorization();
        let mut barred = Vec::new();
        // Those that their opener has closed as well: their calls may still wait.
        for (number, accepted) in &self.accepted {
            if let Some(decision) = accepted.is_barred(rules, &accepted.identity) {
                barred.push(BarredLink {
                    accepted: *number,
                    peer: accepted.identity.identity().clone(),
                    reason: decision.reason,
                });
            }
        }
        self.policy = policy;
        barred
    }

    /// The links whose right has ended by now; the caller ends them.
    #[must_use]
    pub fn expired(&self, now_unix: u64) -> Vec<AcceptedId> {
        self.accepted_where(|accepted| accepted.expires.is_some_and(|at| at <= now_unix))
    }

    fn accepted_where(&self, fits: impl Fn(&AcceptedLink) -> bool) -> Vec<AcceptedId> {
        let fitting = self.accepted.iter().filter(|(_, accepted)| fits(accepted));
        fitting.map(|(number, _)| *number).collect()
    }

    /// Ends a link that a peer has opened to one of our endpoints. If a session carries it, [`Session::end_link`] is for the caller.
    pub fn end_link(&mut self, number: AcceptedId) -> Option<(SessionId, LinkId)> {
        let place = self.accepted.get(&number)?.place;
        self.drop_accepted(number);
        let (id, link) = place?;
        self.sessions.get_mut(&id)?.links.remove(&link);
        place
    }

    /// The session that carries a link which a peer has opened, if there is one.
    #[must_use]
    pub fn place_of(&self, number: AcceptedId) -> Option<(SessionId, LinkId)> {
        self.accepted.get(&number)?.place
    }

    /// Whether calls of a link which a peer has opened are still to be handled: it isn't over.
    #[must_use]
    pub fn is_kept(&self, number: AcceptedId) -> bool {
        self.accepted.contains_key(&number)
    }

    /// The bytes of answers that wait for another session to carry a link which a peer has opened.
    #[must_use]
    pub fn unsent_bytes(&self, number: AcceptedId) -> u64 {
        let away = self.accepted.get(&number).filter(|one| one.place.is_none());
        away.map_or(0, AcceptedLink::kept_bytes)
    }

    /// Binds a startpoint: requests can be made by it at once.
    pub fn bind(&mut self, startpoint: Startpoint) -> BindingId {
        self.bindings_made += 1;
        let id = BindingId(self.bindings_made);
        self.bindings.insert(id, Binding::new(startpoint));
        id
    }

    /// As [`bind`](Self::bind), for whoever is found by the startpoint's hints: no session leads there that was not made by one of them.
    pub fn bind_by_hints(&mut self, startpoint: Startpoint) -> BindingId {
        let id = self.bind(startpoint);
        if let Some(binding) = self.bindings.get_mut(&id) {
            binding.is_by_hints = true;
        }
        id
    }

    /// As [`bind`](Self::bind), for a startpoint that a lookup has found.
    pub fn bind_looked_up(&mut self, startpoint: Startpoint) -> BindingId {
        let id = self.bind(startpoint);
        if let Some(binding) = self.bindings.get_mut(&id) {
            binding.means = EndedProcess::LookedUp;
        }
        id
    }

    /// The startpoint of a binding.
    #[must_use]
    pub fn startpoint_of(&self, id: BindingId) -> Option<&Startpoint> {
        Some(&self.bindings.get(&id)?.startpoint)
    }

    /// The session that carries a binding's link, if there is one.
    #[must_use]
    pub fn session_of(&self, id: BindingId) -> Option<(SessionId, LinkId)> {
        self.bindings.get(&id)?.place
    }

    /// Drops a binding: its requests are lost, and its link ends when its posts have gone. If a link is given it is for the caller to
    /// close: what is queued on it leaves first. The binding stays until the other end confirms that all of its posts have arrived.
    pub fn unbind(&mut self, id: BindingId) -> (Option<(SessionId, LinkId)>, Vec<Happening>) {
        let binding = self.bindings.get_mut(&id);
        let Some(binding) = binding.filter(|one| !one.is_leaving()) else {
            return (None, Vec::new());
        };
        let (is_leaving, mut happened) = binding.close();
        if is_leaving {
            // What is not open yet is closed when it is.
            return (binding.place.filter(|_| binding.is_open), happened);
        }
        let place = binding.place;
        happened.extend(self.drop_binding(id));
        if let Some((session, link)) = place
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.links.remove(&link);
        }
        (place, happened)
    }

    /// The bindings that are there, those that wait for their posts to go included.
    pub fn bindings(&self) -> impl Iterator<Item = BindingId> {
        self.bindings.keys().copied()
    }

    /// Whether posts of closed bindings still have to go, or nobody has confirmed that they have arrived.
    #[must_use]
    pub fn is_delivering(&self) -> bool {
        let mut leaving = self.bindings.values().filter(|one| one.is_leaving());
        leaving.any(Binding::has_unknown_posts)
    }

    /// Gives up on posts of closed bindings, and says what was lost of such, ever since this was asked last.
    pub fn abandon(&mut self, now: Duration) -> Vec<LinkError> {
        let leaving = self.bindings.iter();
        let leaving = leaving.filter(|(_, binding)| binding.is_leaving());
        let leaving: Vec<_> = leaving
            .map(|(id, _)| (*id, self.trouble_of(*id, now)))
            .collect();
        for (id, trouble) in leaving {
            if let Some(binding) = self.bindings.get_mut(&id) {
                let why = trouble.unwrap_or_else(|| "nobody has answered yet".to_owned());
                let error = match binding.is_open {
                    true => LinkError::Unconfirmed,
                    false => LinkError::NoLink { why },
                };
                binding.fail(&error);
            }
            // Who asks is told, and writes it down.
            self.drop_binding(id);
        }
        std::mem::take(&mut self.unheard)
    }

    /// Closed bindings whose posts can't go any more go as well.
    fn drop_left(&mut self) -> Vec<Happening> {
        let left = self
            .bindings
            .iter()
            .filter(|(_, binding)| binding.is_left());
        let left: Vec<_> = left.map(|(id, _)| *id).collect();
        left.into_iter()
            .flat_map(|id| self.drop_binding(id))
            .collect()
    }

    /// The other end has confirmed that all of a link of ours has come, which its owner has closed.
    fn confirmed(&mut self, id: SessionId, link: LinkId) -> Vec<Happening> {
        let Some(known) = self.sessions.get_mut(&id) else {
            return Vec::new();
        };
        let Some(&Use::Own(number)) = known.links.get(&link) else {
            return Vec::new();
        };
        // The number may be another link's by now, which was asked for before this was read: that one is not open yet.
        let binding = self.bindings.get(&number);
        if !binding.is_some_and(|one| one.is_leaving() && one.is_open) {
            return Vec::new();
        }
        known.links.remove(&link);
        self.drop_binding(number).into_iter().collect()
    }

    /// A closed binding goes. Its owner makes no call by it that could say what has become of its posts: the log has it, and whoever
    /// closes the node hears it.
    fn drop_binding(&mut self, id: BindingId) -> Option<Happening> {
        let error = self.bindings.remove(&id)?.take_unsaid()?;
        let told = Happening::Audit(error.to_string());
        if self.unheard.len() < UNHEARD_MAX {
            self.unheard.push(error);
        }
        Some(told)
    }

    /// The bytes of a binding's requests and posts of which nobody knows yet whether they have arrived, and of those that wait.
    #[must_use]
    pub fn pending_bytes(&self, id: BindingId) -> u64 {
        self.bindings.get(&id).map_or(0, Binding::pending_bytes)
    }

    /// Has a binding's link protected at least so from the next record on. The caller raises the link if it has a place.
    ///
    /// # Errors
    /// [`LinkError::Closed`].
    pub fn require(
        &mut self,
        id: BindingId,
        protection: Protection,
    ) -> Result<Option<(SessionId, LinkId)>, LinkError> {
        let binding = self.bindings.get_mut(&id).ok_or(LinkError::Closed)?;
        binding.minimum = binding.minimum.max(protection);
        // A link that is asked for is raised when it is open: the answer may be under way, and say what was asked.
        Ok(binding.place.filter(|_| binding.is_open))
    }

    /// Makes a request. What is given is to be sent; if nothing is, it waits for a link.
    ///
    /// # Errors
    /// [`LinkError`]; nothing waits then.
    pub fn request(
        &mut self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
    ) -> Result<(RequestId, Option<OutgoingMessage>), LinkError> {
        let number = self.requests_made + 1;
        let outgoing = self.message(id, handler, Some(number), contents)?;
        self.requests_made = number;
        Ok((number, outgoing))
    }

    /// Sends one way.
    ///
    /// # Errors
    /// As [`LinkMachine::request`].
    pub fn post(
        &mut self,
        id: BindingId,
        handler: &str,
        contents: MessageContents,
    ) -> Result<Option<OutgoingMessage>, LinkError> {
        self.message(id, handler, None, contents)
    }

    fn message(
        &mut self,
        id: BindingId,
        handler: &str,
        request: Option<RequestId>,
        contents: MessageContents,
    ) -> Result<Option<OutgoingMessage>, LinkError> {
        let binding = self.bindings.get_mut(&id);
        let binding = binding.filter(|one| !one.is_leaving());
        let binding = binding.ok_or(LinkError::Closed)?;
        binding.check_room(request, &contents.head)?;
        let waiting = Waiting {
            handler: handler.to_owned(),
            request,
            contents,
        };
        let outgoing = binding.take(waiting)?;
        binding.asked(request);
        Ok(outgoing)
    }

    /// Nobody waits for this answer any more.
    pub fn forget(&mut self, id: BindingId, request: RequestId) {
        if let Some(binding) = self.bindings.get_mut(&id) {
            binding.forget(request);
        }
    }

    /// The answer to a call. What is given is to be sent; if nothing is, nobody waits for it, or it goes over the next session.
    pub fn answer(
        &mut self,
        call: &LinkCall,
        contents: MessageContents,
        is_failure: bool,
    ) -> Option<OutgoingMessage> {
        let number = call.request?;
        let kind = if is_failure {
            MessageKind::Failure(number)
        } else {
            MessageKind::Reply(number)
        };
        let message = Message {
            handler: 0,
            kind,
            head: contents.head,
            bulk: contents.bulk,
            is_gathered: contents.is_gathered,
        };
        let accepted = self.accepted.get_mut(&call.accepted)?;
        if let Some(lasting) = &mut accepted.lasting {
            lasting.keep(message.clone());
        }
        let (session, link) = accepted.place?;
        Some(OutgoingMessage {
            session,
            link,
            message,
        })
    }

    /// Something has happened in a session. `session` is that one. `now_unix` is the time of the calendar in seconds, by which rights
    /// expire; `now` is the one of the caller's clock.
    ///
    /// # Errors
    /// Why the session has to end: the peer does what nobody does who keeps to the protocol.
    pub fn event(
        &mut self,
        id: SessionId,
        session: &mut Session,
        event: Event,
        policy: &LinkPolicy<'_>,
        now_unix: u64,
        now: Duration,
    ) -> Result<Vec<Happening>, SessionError> {
        let Some(known) = self.sessions.get_mut(&id) else {
            return Ok(Vec::new());
        };
        match event {
            Event::LinkAsked {
                link,
                endpoint,
                protection,
                right,
                life,
                early,
            } => {
                // Whoever has asked may have closed it since.
                if !session.is_asked(link) {
                    return Ok(Vec::new());
                }
                if endpoint.raw_for_comparison() == LOOKUP_ENDPOINT {
                    if early.iter().any(|name| !name.is(LOOKUP_HANDLER)) {
                        session.refuse_link(link, LinkRefusal::UnknownEndpoint)?;
                        return Ok(Vec::new());
                    }
                    // Whom the policy lets in may ask. Between hosts, nobody else reads for what.
                    let least = if known.peer.same_host {
                        Protection::Plain
                    } else {
                        Protection::Encrypted
                    };
                    let handlers = vec![LOOKUP_HANDLER.to_owned()];
                    session.accept_link(link, handlers, least.max(policy(LOOKUP_ENDPOINT)))?;
                    known.links.insert(link, Use::Lookup);
                    return Ok(Vec::new());
                }
                let asked = AskedLink {
                    link,
                    endpoint: endpoint.raw_for_comparison(),
                    protection,
                    right: &right,
                    life,
                    early,
                };
                self.asked(id, session, asked, policy, now_unix, now)
            }
            Event::LinkAccepted {
                link,
                handlers,
                resumption,
            } => {
                let Some(Use::Own(number)) = known.links.get(&link) else {
                    return Ok(Vec::new());
                };
                let Some(binding) = self.bindings.get_mut(number) else {
                    return Ok(Vec::new());
                };
                // More may have been required meanwhile, by its owner or by a policy that was read again.
                let asked = policy(binding.startpoint.endpoint());
                binding.policy_asked = binding.policy_asked.max(asked);
                let minimum = binding.minimum.max(asked);
                session.raise_link(link, minimum)?;
                let has_brought = |end: &LastingEnd| {
                    let said = resumption.unwrap_or_default();
                    end.lacked(said.received)
                };
                let has_brought = binding.lasting.as_ref().is_some_and(has_brought);
                let mut happened = binding.opened(session, link, handlers, resumption, now);
                if self.dialling.found(&known.process) {
                    let line = format!("the way to {} is back", known.process.node);
                    happened.push(Happening::Audit(line));
                }
                if has_brought {
                    // The last session has.
                    self.dialling.worked(&known.process);
                }
                if binding.is_leaving() && binding.is_open {
                    // What it has sent leaves first. The other end may have ended it meanwhile.
                    let _ = session.close_link(link);
                    // The end of the link confirms its posts.
                    if !binding.has_unknown_posts() {
                        let number = *number;
                        known.links.remove(&link);
                        happened.extend(self.drop_binding(number));
                    }
                }
                happened.append(&mut self.drop_left());
                Ok(happened)
            }
            Event::LinkRefused { link, reason } => {
                let Some(Use::Own(number)) = known.links.remove(&link) else {
                    return Ok(Vec::new());
                };
                let mut happened = match self.bindings.get_mut(&number) {
                    Some(binding) => binding.refused(reason),
                    None => Vec::new(),
                };
                happened.append(&mut self.drop_left());
                Ok(happened)
            }
            Event::LinkClosed { link } => {
                if let Some(Use::Own(_)) = known.links.get(&link) {
                    return Ok(self.confirmed(id, link));
                }
                let Some(Use::Accepted(number)) = known.links.remove(&link) else {
                    return Ok(Vec::new());
                };
                self.remember_ended(id, number);
                if self.close_accepted(number) {
                    self.note_closed(id, number)?;
                }
                let why = "the other end has closed its link".to_owned();
                Ok(vec![Happening::LinkClosed(
                    number,
                    LinkError::LinkEnded(why),
                )])
            }
            Event::Credit { link } => {
                self.dialling.worked(&known.process);
                self.credited(id, session, link);
                Ok(Vec::new())
            }
            Event::Message {
                link,
                handler,
                kind,
                head,
                bulk,
                size,
            } => match (known.links.get(&link), kind) {
                (Some(Use::Accepted(number)), MessageKind::Post | MessageKind::Request(_)) => {
                    self.dialling.worked(&known.process);
                    let Some(accepted) = self.accepted.get_mut(number) else {
                        return Ok(Vec::new());
                    };
                    if let Some(lasting) = &mut accepted.lasting {
                        lasting.received += 1;
                    }
                    // The session has held the number to the handlers that were accepted, and those that the LinkOpen names. Who has
                    // sent an early message for another one knows by the answer that nothing comes of it.
                    let Some(name) = accepted.handler(handler).cloned() else {
                        session.consumed(link, size);
                        return Ok(Vec::new());
                    };
                    accepted.held = accepted.held.saturating_add(size);
                    accepted.held_calls += 1;
                    let request = match kind {
                        MessageKind::Request(number) => Some(number),
                        _ => None,
                    };
                    Ok(vec![Happening::Call(LinkCall {
                        accepted: *number,
                        session: id,
                        endpoint: accepted.endpoint.clone(),
                        handler: name,
                        request,
                        peer: known.peer.identity.clone(),
                        process: known.process.clone(),
                        head,
                        bulk,
                        size,
                    })])
                }
                (Some(Use::Lookup), kind) => {
                    session.consumed(link, size);
                    let peer = known.peer.identity.clone();
                    let lookups = known.links.iter();
                    let lookups = lookups.filter(|(_, user)| matches!(user, Use::Lookup));
                    let waiting: usize = lookups
                        .map(|(link, _)| session.queued_messages(*link))
                        .sum();
                    if waiting >= LOOKUPS_WAITING_MAX {
                        return Err(SessionError::PeerLimit {
                            limit: "startpoints that were asked for and not taken",
                            got: waiting as u64 + 1,
                            maximum: LOOKUPS_WAITING_MAX as u64,
                        });
                    }
                    match kind {
                        MessageKind::Request(request) => {
                            Ok(self.look_up(session, link, request, &peer, &head))
                        }
                        _ => Ok(Vec::new()),
                    }
                }
                (Some(&Use::Own(number)), MessageKind::Reply(request)) => {
                    self.dialling.worked(&known.process);
                    let answer = RequestAnswer::Reply { head, bulk };
                    session.consumed(link, size);
                    Ok(self.answered(number, request, answer))
                }
                (Some(&Use::Own(number)), MessageKind::Failure(request)) => {
                    session.consumed(link, size);
                    Ok(self.answered(number, request, RequestAnswer::Failure { head }))
                }
                // A link that has just ended.
                _ => {
                    session.consumed(link, size);
                    Ok(Vec::new())
                }
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Gives a peer a startpoint, if rules allow it.
    fn look_up(
        &mut self,
        session: &mut Session,
        link: LinkId,
        request: u64,
        peer: &VerifiedIdentity,
        head: &[u8],
    ) -> Vec<Happening> {
        let asked = core::str::from_utf8(head.get(..NAME_BYTES_MAX).unwrap_or(head));
        let asked = asked.unwrap_or("a name that is no text");
        let shown = PeerText::new(asked).unquoted();
        let own = self.endpoints.get_mut(asked);
        let rules = self.policy.authorization();
        let answer = lookup::answer(own, &shown, self.place.as_ref(), peer, rules);
        let message = Message {
            handler: 0,
            kind: (answer.kind)(request),
            head: answer.head,
            bulk: Vec::new(),
            is_gathered: false,
        };
        let mut happened = vec![Happening::Audit(answer.audit)];
        // A session that ends says so by itself.
        if let Err(error) = session.send(link, message)
            && !session.is_ending()
        {
            let who = peer.identity();
            let line = format!("a startpoint of {shown} for {who} can't be sent: {error}");
            happened.push(Happening::Audit(line));
        }
        happened
    }

    /// An answer that nobody waits for any more is dropped; so is one that was never asked for.
    fn answered(&mut self, id: BindingId, request: u64, answer: RequestAnswer) -> Vec<Happening> {
        let Some(binding) = self.bindings.get_mut(&id) else {
            return Vec::new();
        };
        if let Some(lasting) = &mut binding.lasting {
            lasting.received += 1;
        }
        binding.answered(request);
        if !binding.forget(request) {
            return Vec::new();
        }
        vec![Happening::Answered(request, answer)]
    }

    fn own(&mut self, endpoint: &str) -> Result<&mut OwnEndpoint, LinkError> {
        let own = self.endpoints.get_mut(endpoint);
        own.ok_or_else(|| LinkError::NoEndpoint(endpoint.to_owned()))
    }
}

/// What waits is lost for this reason.
fn lost(requests: impl IntoIterator<Item = RequestId>, error: &LinkError) -> Vec<Happening> {
    let answered = |request| Happening::Answered(request, RequestAnswer::Lost(error.clone()));
    requests.into_iter().map(answered).collect()
}

/// Messages in the order in which they were made.
type WaitingQueue = VecDeque<Waiting>;
