//! One connection's state machine: messages in, sealed bytes out, and the other way round.

mod assembly;
mod closing;
mod config;
mod head_memory;
mod inbox;
mod link;
mod outbox;
mod receiving;
mod reception;
mod sending;
mod steering;
mod timing;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use closing::{CLOSING_TIME, Ended};
pub use config::{EpochLimits, SessionConfig, Side};

use crate::control::{
    ControlMessage, EARLY_HANDLERS_MAX, HANDLERS_MAX, NAME_BYTES_MAX, RIGHT_BYTES_MAX,
};
use crate::error::SessionError;
use crate::keys::{DirectionKeys, KeyStore, SessionSecret};
use crate::limits::Limits;
use crate::message::{Endpoint, Event, LinkId, Message, MessageKind};
use crate::protection::{Protection, Protections, TrafficClass};
#[cfg(doc)]
use crate::resumption::Resumption;
use crate::resumption::{LinkLife, ResumptionKey};
use crate::sealing::{Opener, Sealer};
use assembly::Pool;
use closing::Closing;
use head_memory::HeadMemory;
use inbox::Inbox;
pub use link::LinkTraffic;
use link::{Link, LinkState, LinkTable, SendBacklog};
use outbox::Outbox;
pub use reception::SharedReception;
use timing::Timing;
pub use timing::UNVERIFIED_BYTES_PER_SECOND;

/// Credit goes back with the next message when it is this part of what a link has.
const CREDIT_ALONG: u64 = 32;

/// What two nodes share after one mutual authentication, over one connection.
///
/// The owner moves bytes and tells the time: [`prepare`](Self::prepare), write [`outgoing`](Self::outgoing), report
/// [`sent`](Self::sent); read into [`receive_buffer`](Self::receive_buffer), report [`received`](Self::received); then
/// [`poll_event`](Self::poll_event) until there is none. Times are durations since any fixed start.
///
/// # Security
/// Both sides must have been authenticated by the handshake that gave the secret. Every error of
/// [`received`](Self::received) is final: the session takes nothing more, and its Close tells the peer why.
pub struct Session {
    config: SessionConfig,
    binding: [u8; 32],
    resumption_key: ResumptionKey,
    sealer: Sealer,
    opener: Opener,
    /// What holds for the records that this side seals, and for those that it opens. They differ while a change is
    /// under way.
    sending: Protections,
    receiving: Protections,
    links: LinkTable,
    endpoints: BTreeMap<String, Vec<String>>,
    control: VecDeque<ControlMessage>,
    /// Links that have something to send and credit for it, each once.
    ready: VecDeque<LinkId>,
    outbox: Outbox,
    inbox: Inbox,
    head_memory: HeadMemory,
    /// Links for which credit goes back with the next message.
    credit_along: Vec<LinkId>,
    /// The link whose message was last in the middle of its segments: the next read is sized for it.
    streaming: Option<LinkId>,
    pool: Pool,
    events: VecDeque<Event>,
    backlog: SendBacklog,
    /// What [`limit_reception`](Self::limit_reception) said last.
    reception_max: Option<u64>,
    /// What [`share_reception`](Self::share_reception) said.
    shared_reception: Option<Arc<SharedReception>>,
    timing: Timing,
    closing: Closing,
    counts: Counts,
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records sealed.
    pub records_sealed: u64,
    /// Records opened and found good.
    pub records_opened: u64,
    /// Message bytes that went out by protection, in the order of [`Protection::ALL`].
    pub bytes_sealed: [u64; 3],
    /// Message bytes that came in by protection.
    pub bytes_opened: [u64; 3],
    /// The peer's word on how many records it had opened at its last heartbeat.
    pub peer_records_opened: u64,
    /// How often this side has changed its keys.
    pub epoch_sealing: u64,
    /// How often the peer has.
    pub epoch_opening: u64,
}

impl Session {
    /// Starts a session with the secret that the handshake derived. The secret is used up. What is expanded of its keys is in `keys`, which
    /// all sessions of a node share.
    pub fn new(
        mut config: SessionConfig,
        secret: SessionSecret,
        keys: &KeyStore,
        now: Duration,
    ) -> Self {
        config.segment_bytes = config.segment_bytes.clamp(1024, crate::SEGMENT_BYTES_MAX);
        let (side, cipher) = (config.side, config.cipher);
        let of_sender = |sender| DirectionKeys::new(keys, &secret, sender, cipher);
        Self {
            binding: secret.binding(),
            resumption_key: secret.resumption_key(),
            sealer: Sealer::new(of_sender(side), now),
            opener: Opener::new(of_sender(side.peer())),
            sending: config.protections,
            receiving: config.protections,
            links: LinkTable::new(side),
            endpoints: BTreeMap::new(),
            control: VecDeque::new(),
            ready: VecDeque::new(),
            outbox: Outbox::default(),
            inbox: Inbox::new(),
            head_memory: HeadMemory::default(),
            credit_along: Vec::new(),
            streaming: None,
            pool: Pool::default(),
            events: VecDeque::new(),
            backlog: SendBacklog::default(),
            reception_max: None,
            shared_reception: None,
            timing: Timing::new(now),
            closing: Closing::default(),
            counts: Counts::default(),
            config,
        }
    }

    /// Offers an endpoint to the peer; its startpoints can open links to it from now on.
    ///
    /// # Errors
    /// [`SessionError::Limit`] when a name or the number of handlers is over its limit.
    pub fn offer(&mut self, endpoint: Endpoint) -> Result<(), SessionError> {
        let names = endpoint.handlers.iter().chain([&endpoint.name]);
        check_names(names.map(String::as_str), endpoint.handlers.len())?;
        self.endpoints.insert(endpoint.name, endpoint.handlers);
        Ok(())
    }

    /// Opens a link from a startpoint here to an endpoint of the peer. Messages can be sent at once; if the peer
    /// refuses the link ([`Event::LinkRefused`]) they are dropped.
    ///
    /// # Errors
    /// [`SessionError::Limit`] when the peer takes no more links, [`SessionError::Closed`] after the end.
    pub fn open_link(
        &mut self,
        endpoint: &str,
        class: TrafficClass,
    ) -> Result<LinkId, SessionError> {
        let id = self.add_link(endpoint, class)?;
        self.control.push_back(ControlMessage::LinkOpen {
            link: id,
            job: self.config.job,
            class,
            // That of its class when it is sealed: protections may have been raised in between.
            protection: Protection::Plain,
            endpoint: endpoint.to_owned(),
            right: Vec::new(),
            life: LinkLife::OneSession,
            early: Vec::new(),
        });
        Ok(id)
    }

    /// Asks the peer for a link to an endpoint that is not open to everybody, with at least this protection. `right` makes what it is to
    /// be let in by of the new link's number. Nothing goes out on the link before the peer has answered.
    ///
    /// # Errors
    /// As [`open_link`](Self::open_link); and for a right of too many bytes.
    pub fn request_link(
        &mut self,
        endpoint: &str,
        protection: Protection,
        right: impl FnOnce(LinkId) -> Vec<u8>,
    ) -> Result<LinkId, SessionError> {
        self.request_lasting_link(endpoint, protection, |link| {
            (right(link), LinkLife::OneSession)
        })
    }

    /// As [`request_link`](Self::request_link), for a link that outlives the session, or comes from an earlier one.
    ///
    /// # Errors
    /// As [`request_link`](Self::request_link).
    pub fn request_lasting_link(
        &mut self,
        endpoint: &str,
        protection: Protection,
        open: impl FnOnce(LinkId) -> (Vec<u8>, LinkLife),
    ) -> Result<LinkId, SessionError> {
        self.request_early_link(endpoint, protection, &[], open)
    }

    /// As [`request_lasting_link`](Self::request_lasting_link), for a link with early messages: those for the handlers that are named here.
    /// They don't wait for the answer, unless the link comes from an earlier session. Their handler is [`Message::EARLY_HANDLER`] and the
    /// place of its name, whatever the answer says.
    ///
    /// # Errors
    /// As [`request_link`](Self::request_link); for too many names; and for names with a new link that isn't to be encrypted.
    pub fn request_early_link(
        &mut self,
        endpoint: &str,
        protection: Protection,
        early: &[String],
        open: impl FnOnce(LinkId) -> (Vec<u8>, LinkLife),
    ) -> Result<LinkId, SessionError> {
        let class = TrafficClass::Data;
        limit(
            "early handlers",
            early.len() as u64,
            EARLY_HANDLERS_MAX as u64,
        )?;
        check_names(early.iter().map(String::as_str), early.len())?;
        let id = self.add_link(endpoint, class)?;
        let (right, life) = open(id);
        // What is resumed may lack what was sent before, and waits for the answer.
        let sends_early = !early.is_empty() && !life.is_resumed();
        let checked = limit("right bytes", right.len() as u64, RIGHT_BYTES_MAX as u64);
        // Nobody knows before the answer whether less than the strictest is enough.
        let checked = match sends_early && protection < Protection::Encrypted {
            true => limit("early handlers of a link that isn't encrypted", 1, 0),
            false => checked,
        };
        let Some(link) = self.links.get_mut(id).filter(|_| checked.is_ok()) else {
            self.links.remove(id);
            return checked.map(|()| id);
        };
        link.waits = !sends_early;
        link.early = early.len() as u16;
        link.life = life;
        (link.sending, link.receiving) = (protection, protection);
        self.control.push_back(ControlMessage::LinkOpen {
            link: id,
            job: self.config.job,
            class,
            protection,
            endpoint: endpoint.to_owned(),
            right,
            life,
            early: early.to_vec(),
        });
        Ok(id)
    }

    fn add_link(&mut self, endpoint: &str, class: TrafficClass) -> Result<LinkId, SessionError> {
        self.check_open()?;
        limit("name bytes", endpoint.len() as u64, NAME_BYTES_MAX as u64)?;
        let credit = self.config.peer_limits.credit_bytes;
        let (job, window) = (self.config.job, self.config.limits.credit_bytes);
        let link = Link::new(true, class, job, credit, window);
        let maximum = self.config.peer_limits.links_max;
        let Some(id) = self.links.add_own(link, maximum) else {
            return limit("links_max", u64::from(maximum) + 1, maximum.into())
                .map(|()| LinkId::CONTROL);
        };
        Ok(id)
    }

    /// Ends a link that this side opened, after everything queued on it.
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`], or [`SessionError::Direction`] when the peer opened it.
    pub fn close_link(&mut self, link: LinkId) -> Result<(), SessionError> {
        let end = self
            .links
            .get_mut(link)
            .ok_or(SessionError::UnknownLink(link))?;
        if !end.opened_here {
            return Err(SessionError::Direction {
                link,
                why: "the side that opened it closes it",
            });
        }
        if end.state == LinkState::Open {
            end.state = LinkState::Closing;
            self.settle(link);
        }
        Ok(())
    }

    /// Queues a message; never blocks. What is queued and not yet sealed counts in [`queued_bytes`](Self::queued_bytes).
    ///
    /// # Errors
    /// [`SessionError::UnknownLink`], [`SessionError::Direction`] or [`SessionError::Limit`]; nothing is queued then.
    pub fn send(&mut self, link: LinkId, message: Message) -> Result<(), SessionError> {
        self.check_open()?;
        let peer = &self.config.peer_limits;
        let parts_max = peer.bulk_parts_max.min(Limits::BULK_PARTS_CEILING);
        limit(
            "bulk_parts_max",
            message.part_count() as u64,
            parts_max.into(),
        )?;
        let size = message.size();
        limit(
            "message_bytes_max",
            size - Message::OVERHEAD_BYTES,
            peer.message_bytes_max,
        )?;
        limit(
            "queued_bytes_max",
            (self.backlog + SendBacklog::one(size)).memory(),
            self.config.limits.queued_bytes_max,
        )?;
        let end = self
            .links
            .get_mut(link)
            .ok_or(SessionError::UnknownLink(link))?;
        let forward = matches!(message.kind, MessageKind::Post | MessageKind::Request(_));
        if forward != end.opened_here {
            let why =
                "requests and posts go from startpoint to endpoint, replies and failures back";
            return Err(SessionError::Direction { link, why });
        }
        if end.state != LinkState::Open && end.opened_here || end.state == LinkState::Refused {
            return Err(SessionError::UnknownLink(link));
        }
        let is_known = end.handlers.is_some() || (end.early > 0 && !end.waits);
        if forward && is_known && !end.has_handler(message.handler) {
            let handlers = end.handlers.unwrap_or_default();
            return limit(
                "handlers of the endpoint",
                u64::from(message.handler) + 1,
                handlers.into(),
            );
        }
        end.queue.push_back(message);
        end.backlog = end.backlog + SendBacklog::one(size);
        self.backlog = self.backlog + SendBacklog::one(size);
        if !end.is_ready && end.can_send() {
            end.is_ready = true;
            self.ready.push_back(link);
        }
        while let Some(link) = self.credit_along.pop() {
            self.acknowledge(link);
        }
        Ok(())
    }

    /// The most bytes of a message that the peer takes.
    pub fn peer_message_bytes_max(&self) -> u64 {
        self.config.peer_limits.message_bytes_max
    }

    /// Bytes of messages that are queued and not yet sealed.
    pub fn queued_bytes(&self) -> u64 {
        self.backlog.bytes
    }

    /// The memory that such messages take.
    pub fn queued_memory(&self) -> u64 {
        self.backlog.memory()
    }

    /// How many of them there are.
    pub fn queued_count(&self) -> u64 {
        self.backlog.messages
    }

    /// Messages that are queued on a link, and of which nothing is sealed yet.
    pub fn queued_messages(&self, link: LinkId) -> usize {
        self.links.get(link).map_or(0, |end| end.queue.len())
    }

    /// The next event, in the order in which things happened. After [`abort`](Self::abort) only the end is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            if self.closing.counts(&event) {
                return Some(event);
            }
        }
    }

    /// The application is done with a message of this size; credit goes back to the peer. True when a record is to be
    /// written for it: the peer may be waiting.
    pub fn consumed(&mut self, link: LinkId, size: u64) -> bool {
        let window = self.config.limits.credit_bytes;
        let Some(end) = self.links.get_mut(link) else {
            return false;
        };
        // The number of a link that ended may be in use again: never give back more than was taken.
        let taken = link::signed(window).saturating_sub(end.window);
        let taken = u64::try_from(taken)
            .unwrap_or(0)
            .saturating_sub(end.returned);
        let before = end.returned;
        end.returned += size.min(taken);
        let back = end.window.saturating_add(link::signed(end.returned));
        // A record for each message would cost more than it brings; a peer that has none left waits for it.
        let is_worth_a_record = end.returned >= window / 4 || (end.window <= 0 && back > 0);
        // Beside a message it costs little, and what the peer keeps until then needn't leave its processor's cache.
        let along = window / CREDIT_ALONG;
        if !is_worth_a_record && before < along && end.returned >= along {
            self.credit_along.push(link);
        }
        is_worth_a_record && self.acknowledge(link)
    }

    /// Gives back at once all credit that waits for more of it: the peer learns what has been dealt with. True when a record is to be
    /// written for it.
    pub fn acknowledge(&mut self, link: LinkId) -> bool {
        let Some(end) = self.links.get_mut(link).filter(|end| end.returned > 0) else {
            return false;
        };
        end.window = end.window.saturating_add(link::signed(end.returned));
        let bytes = core::mem::take(&mut end.returned);
        self.credit_along.retain(|one| *one != link);
        self.control
            .push_back(ControlMessage::Credit { link, bytes });
        true
    }

    /// The application expects at most so many bytes from now on, in all messages together that are half here and the one that
    /// begins. A message that announces more ends the session with [`SessionError::PeerLimit`], before it takes memory.
    /// Without this, each message is held to [`Limits::message_bytes_max`], and all that are half here to twice that.
    pub fn limit_reception(&mut self, bytes: u64) {
        self.reception_max = Some(bytes);
    }

    /// Counts what is here of messages that aren't whole together with what is at other sessions of the same peer, from the next message on.
    /// All of them have at most twice [`Limits::message_bytes_max`] together: the session in which more comes ends with
    /// [`SessionError::PeerLimit`].
    pub fn share_reception(&mut self, shared: Arc<SharedReception>) {
        self.shared_reception = Some(shared);
    }

    /// The room that a buffer needs behind the contents it is to receive.
    pub const RECEIVE_ROOM_BYTES: usize = crate::record::HEADER_BYTES;

    /// Gives a received bulk buffer back, or another in its place, so that the next message needs no fresh memory.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.pool.give(buffer);
    }

    /// Makes the session's protections stricter, as after a reload of the policy. What is weaker than what holds is
    /// ignored: a looser policy counts from the next session on.
    pub fn raise_protections(&mut self, minimum: Protections) {
        let raised = self.sending.stricter(minimum);
        if raised != self.sending && !self.closing.close_sealed {
            self.control.push_back(ControlMessage::Protections(raised));
        }
    }

    /// What proofs that are made for this session contain: the same at both ends, and at no other session.
    pub fn binding(&self) -> &[u8; 32] {
        &self.binding
    }

    /// By which links that were opened in this session are resumed in a later one: both ends have the same, and nobody else has it.
    pub fn resumption_key(&self) -> &ResumptionKey {
        &self.resumption_key
    }

    /// The bytes of all credit that has come back on a link: at least so many bytes of messages have been consumed by the peer, those
    /// that it [withheld](Resumption::withheld) included. 0 when the link has ended.
    pub fn credited(&self, link: LinkId) -> u64 {
        self.links.get(link).map_or(0, |end| end.credited)
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            records_sealed: self.sealer.counter(),
            records_opened: self.opener.counter(),
            epoch_sealing: self.sealer.epoch(),
            epoch_opening: self.opener.epoch(),
            ..self.counts
        }
    }

    /// What holds for the records of this side now.
    pub fn protections(&self) -> Protections {
        self.sending
    }

    /// What protects link 0: encryption as soon as anything of the session is encrypted, never less than integrity.
    fn control_protection(protections: Protections) -> Protection {
        protections.strictest().max(Protection::Integrity)
    }
}

/// Holds the names of an endpoint or its handlers, and the number of these, to their limits.
fn check_names<'a>(
    names: impl Iterator<Item = &'a str>,
    handlers: usize,
) -> Result<(), SessionError> {
    let longest = names.map(str::len).max().unwrap_or(0);
    limit("name bytes", longest as u64, NAME_BYTES_MAX as u64)?;
    limit(
        "handlers of an endpoint",
        handlers as u64,
        HANDLERS_MAX as u64,
    )
}

fn limit(name: &'static str, got: u64, maximum: u64) -> Result<(), SessionError> {
    if got <= maximum {
        return Ok(());
    }
    Err(SessionError::Limit {
        limit: name,
        got,
        maximum,
    })
}
