//! Two real sessions of the link machine over the simulated network, with a hand on the wire between them.

use std::time::Duration;

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    CloseReason, Ended, Endpoint, Event as LinkEvent, LinkId, Message, MessageKind, Protections,
    Session, SessionConfig, SessionError, SessionSecret, Side, TrafficClass,
};

use crate::agenda::Agenda;
use crate::network::{LinkModel, ModelWire};
use crate::violation::Violation;
use exoskel_determinism::RunDigest;
use exoskel_determinism::SplitMix64;

/// Messages are queued as long as no more than this waits for the wire.
const QUEUED_MAX: u64 = 1 << 20;

/// The most bytes of one write.
const WRITE_MAX: u64 = 64 << 10;

/// A conversation with more steps is one without end.
const STEPS_MAX: u64 = 200_000;

/// What happens to the wire, before a step (events are numbered from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFault {
    /// The connection ends: both sides read the end of the stream after what was already on the way.
    Cut(u64),
    /// Nothing arrives any more, and nobody is told.
    Silence(u64),
    /// One bit of the next bytes that arrive is another.
    Flip(u64),
}

/// Everything a conversation depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Of all randomness.
    pub seed: u64,
    /// How many messages each side sends.
    pub messages: u64,
    /// Bytes of a message's parts, up to this.
    pub bytes_max: u64,
    /// What the link does to them.
    pub protections: Protections,
    /// The wire.
    pub link: LinkModel,
    /// How long the receiving application may take to be done with a message.
    pub consume_time: Duration,
    /// After so much silence a peer is dead.
    pub dead_after: Duration,
    /// What happens to the wire.
    pub fault: Option<WireFault>,
}

/// How a conversation went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationReport {
    /// How many events there were.
    pub steps: u64,
    /// Of all bytes and their times.
    pub digest: u64,
    /// When it was over.
    pub ended_at: Duration,
    /// Messages that arrived whole at the client and at the server.
    pub received: [u64; 2],
    /// How each side's session ended: in good order, or by an error.
    pub ends: [Result<(), SessionError>; 2],
}

enum Event {
    Arrive(Side, Vec<u8>),
    End(Side),
    Consumed(Side, LinkId, u64),
    Timer(Side),
}

struct Party {
    session: Session,
    link: LinkId,
    sent: u64,
    received: u64,
    timer: Option<Duration>,
    end: Option<Result<(), SessionError>>,
}

struct ConversationRun {
    conversation: Conversation,
    parties: [Party; 2],
    agenda: Agenda<Event>,
    wire: ModelWire,
    random: SplitMix64,
    now: Duration,
    steps: u64,
    digest: RunDigest,
    silent: bool,
    flip: bool,
}

impl Conversation {
    /// A quiet one over a wire without faults.
    pub fn new(seed: u64, messages: u64, bytes_max: u64, protections: Protections) -> Self {
        Self {
            seed,
            messages,
            bytes_max,
            protections,
            link: LinkModel::default(),
            consume_time: Duration::from_micros(200),
            dead_after: Duration::from_secs(5),
            fault: None,
        }
    }

    /// Plays it to its end.
    ///
    /// # Errors
    ///
    /// The first broken promise: a message that is not the next one that was sent, an error without a fault on the
    /// wire, a standstill.
    pub fn run(&self) -> Result<ConversationReport, Violation> {
        let mut run = ConversationRun::new(self.clone())?;
        run.pump()?;
        while run.parties.iter().any(|party| party.end.is_none()) {
            run.step()?;
        }
        let [client, server] = run.parties;
        Ok(ConversationReport {
            steps: run.steps,
            digest: run.digest.value(),
            ended_at: run.now,
            received: [client.received, server.received],
            ends: [client.end.unwrap_or(Ok(())), server.end.unwrap_or(Ok(()))],
        })
    }

    /// The message of a side with this number: the same whenever it is asked for.
    fn message(&self, from: Side, number: u64) -> Message {
        let mut random =
            SplitMix64::new(self.seed ^ number.rotate_left(20) ^ (place(from) as u64) << 60);
        let mut part = |most: u64| {
            let mut fill = SplitMix64::new(random.next_u64());
            let length = random.below(most + 1) as usize;
            let bytes: Vec<u8> = std::iter::repeat_with(|| fill.next_u64().to_le_bytes())
                .flatten()
                .take(length)
                .collect();
            Bytes::from(bytes)
        };
        let head = part(self.bytes_max / 8);
        let bulk = (0..number % 3).map(|_| part(self.bytes_max)).collect();
        Message {
            handler: 0,
            kind: MessageKind::Post,
            head,
            bulk,
            is_gathered: false,
        }
    }
}

impl ConversationRun {
    fn new(conversation: Conversation) -> Result<Self, Violation> {
        let mut random = SplitMix64::new(conversation.seed);
        let mut secret = [0; 32];
        secret
            .iter_mut()
            .for_each(|byte| *byte = random.next_u64() as u8);
        let party = |side| -> Result<Party, SessionError> {
            let mut config = SessionConfig::new(side);
            config.protections = conversation.protections;
            config.dead_after = conversation.dead_after;
            config.heartbeat_every = conversation.dead_after / 4;
            let mut session = Session::new(
                config,
                SessionSecret::from_bytes(&secret),
                &KeyStore::in_ordinary_memory(1),
                Duration::ZERO,
            );
            session.offer(Endpoint::new("sink", &["take"]))?;
            let link = session.open_link("sink", TrafficClass::Data)?;
            Ok(Party {
                session,
                link,
                sent: 0,
                received: 0,
                timer: None,
                end: None,
            })
        };
        let refuse = |error: SessionError| Violation {
            seed: conversation.seed,
            step: 0,
            at: Duration::ZERO,
            what: error.to_string(),
        };
        let parties = [
            party(Side::Client).map_err(refuse)?,
            party(Side::Server).map_err(refuse)?,
        ];
        Ok(Self {
            wire: ModelWire::new(conversation.link.clone(), random.next_u64()),
            parties,
            agenda: Agenda::new(),
            random,
            now: Duration::ZERO,
            steps: 0,
            digest: RunDigest::default(),
            silent: false,
            flip: false,
            conversation,
        })
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.conversation.fault {
            Some(WireFault::Cut(step)) if step == self.steps => self.cut(),
            Some(WireFault::Silence(step)) if step == self.steps => self.silent = true,
            Some(WireFault::Flip(step)) if step == self.steps => self.flip = true,
            _ => {}
        }
        let Some((now, event)) = self.agenda.next() else {
            return self.broken("standstill".to_owned());
        };
        if self.steps == STEPS_MAX {
            return self.broken("no end within the steps allowed".to_owned());
        }
        self.now = now;
        self.steps += 1;
        self.digest.word(now.as_nanos() as u64);
        match event {
            Event::Arrive(..) | Event::End(_) if self.silent => {}
            Event::Arrive(side, bytes) => self.arrive(side, bytes)?,
            Event::End(side) => {
                let over = self.party(side).session.received_end();
                self.end(side, over)?;
            }
            Event::Consumed(side, link, size) => {
                self.party(side).session.consumed(link, size);
            }
            Event::Timer(side) => {
                self.party(side).timer = None;
                let result = self.party(side).session.handle_timeout(now);
                if result.is_err() {
                    self.end(side, result)?;
                }
            }
        }
        self.pump()
    }

    /// Nothing that is sent from now on arrives; what is on the way does, and then the end.
    fn cut(&mut self) {
        for side in [Side::Client, Side::Server] {
            if let Some(at) = self.wire.send(side, 0, self.now) {
                self.agenda.plan(at, Event::End(side.peer()));
            }
        }
        self.wire.cut();
    }

    fn arrive(&mut self, side: Side, mut bytes: Vec<u8>) -> Result<(), Violation> {
        if std::mem::take(&mut self.flip) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.digest.bytes(&bytes);
        let now = self.now;
        let mut left = bytes.as_slice();
        while !left.is_empty() && self.party(side).end.is_none() {
            let session = &mut self.party(side).session;
            let buffer = session.receive_buffer();
            let count = buffer.len().min(left.len());
            buffer[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            let result = session.received(count, now);
            self.read_events(side)?;
            if result.is_err() {
                self.end(side, result)?;
            }
        }
        Ok(())
    }

    fn read_events(&mut self, side: Side) -> Result<(), Violation> {
        while let Some(event) = self.party(side).session.poll_event() {
            match event {
                LinkEvent::Message {
                    link,
                    head,
                    bulk,
                    size,
                    ..
                } => {
                    let number = self.party(side).received;
                    let expected = self.conversation.message(side.peer(), number);
                    let same = expected.head == head
                        && expected
                            .bulk
                            .iter()
                            .map(|part| &part[..])
                            .eq(bulk.iter().map(Vec::as_slice));
                    if !same {
                        return self.broken(format!(
                            "message {number} to the {side:?} is not what was sent"
                        ));
                    }
                    self.party(side).received += 1;
                    let at = self.now
                        + self
                            .random
                            .between(Duration::ZERO, self.conversation.consume_time);
                    self.agenda.plan(at, Event::Consumed(side, link, size));
                }
                LinkEvent::Closed { .. } => {
                    self.party(side).session.close(CloseReason::Finished);
                }
                LinkEvent::LinkRefused { link, reason } => {
                    return self.broken(format!("{link} was refused: {reason}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Both sides queue what they have to say, write, and set their timers.
    fn pump(&mut self) -> Result<(), Violation> {
        for side in [Side::Client, Side::Server] {
            if self.party(side).end.is_some() {
                continue;
            }
            self.speak(side)?;
            self.write(side)?;
            let at = self.now;
            let party = self.party(side);
            match party.session.ended() {
                Some(Ended::Session(error)) => {
                    self.end(side, Err(error))?;
                    continue;
                }
                Some(Ended::Closed(_) | Ended::Transport(_)) => {
                    self.end(side, Ok(()))?;
                    continue;
                }
                None => {}
            }
            let due = party
                .session
                .next_timeout()
                .filter(|due| party.timer.is_none_or(|timer| *due < timer));
            if let Some(due) = due {
                party.timer = Some(due);
                self.agenda.plan(due.max(at), Event::Timer(side));
            }
        }
        Ok(())
    }

    fn speak(&mut self, side: Side) -> Result<(), Violation> {
        let all = self.conversation.messages;
        loop {
            let party = &self.parties[place(side)];
            if party.sent == all
                || party.session.is_closed()
                || party.session.queued_bytes() > QUEUED_MAX
            {
                break;
            }
            let message = self.conversation.message(side, party.sent);
            let party = self.party(side);
            let link = party.link;
            party.sent += 1;
            if let Err(error) = party.session.send(link, message) {
                return self.broken(format!("the {side:?} could not send: {error}"));
            }
        }
        // The client ends the conversation when it has heard everything and the server must have, too: its Close
        // comes after all it said.
        let party = self.party(side);
        if side == Side::Client
            && party.sent == all
            && party.received == all
            && !party.session.is_closed()
        {
            party.session.close(CloseReason::Finished);
        }
        Ok(())
    }

    fn write(&mut self, side: Side) -> Result<(), Violation> {
        loop {
            let now = self.now;
            if let Err(error) = self.party(side).session.prepare(now) {
                return self.end(side, Err(error));
            }
            let most = 1 + self.random.below(WRITE_MAX) as usize;
            let session = &mut self.party(side).session;
            let bytes: Vec<u8> = session.outgoing().flatten().take(most).copied().collect();
            if bytes.is_empty() {
                return Ok(());
            }
            session.sent(bytes.len());
            if let Some(at) = self.wire.send(side, bytes.len() as u64, now) {
                self.agenda.plan(at, Event::Arrive(side.peer(), bytes));
            }
        }
    }

    /// A session is over. Without a fault on the wire it must be so in good order.
    fn end(&mut self, side: Side, result: Result<(), SessionError>) -> Result<(), Violation> {
        if let (Err(error), None) = (&result, self.conversation.fault) {
            return self.broken(format!("the {side:?} met an error on a good wire: {error}"));
        }
        let party = self.party(side);
        if party.end.is_some() {
            return Ok(());
        }
        party.end = Some(result);
        // Who is done with a connection closes it; the peer reads the end after the last bytes.
        let now = self.now;
        if let Some(at) = self.wire.send(side, 0, now) {
            self.agenda.plan(at, Event::End(side.peer()));
        }
        Ok(())
    }

    fn party(&mut self, side: Side) -> &mut Party {
        &mut self.parties[place(side)]
    }

    fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation {
            seed: self.conversation.seed,
            step: self.steps,
            at: self.now,
            what,
        })
    }
}

fn place(side: Side) -> usize {
    match side {
        Side::Client => 0,
        Side::Server => 1,
    }
}
