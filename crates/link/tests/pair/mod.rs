//! Two sessions wired together in memory, with a hand on the wire between them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test file uses its own part")]

use core::time::Duration;

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Protection, Protections, Session, SessionConfig,
    SessionError, SessionSecret, Side, TrafficClass,
};

/// Protections of a wire in a trusted domain: data in clear, the rest authenticated.
pub(crate) const TRUSTED: Protections = Protections {
    control: Protection::Integrity,
    code: Protection::Integrity,
    data: Protection::Plain,
};

/// A client, a server, and a clock that the test moves.
pub(crate) struct Pair {
    pub(crate) client: Session,
    pub(crate) server: Session,
    pub(crate) now: Duration,
}

impl Pair {
    pub(crate) fn new(protections: Protections) -> Self {
        Self::with(protections, |_| {})
    }

    /// A pair whose both ends are configured alike.
    pub(crate) fn with(protections: Protections, change: impl Fn(&mut SessionConfig)) -> Self {
        Self::from_secret([1; 32], protections, change)
    }

    pub(crate) fn from_secret(
        secret: [u8; 32],
        protections: Protections,
        change: impl Fn(&mut SessionConfig),
    ) -> Self {
        let session = |side| {
            let mut config = SessionConfig::new(side);
            config.protections = protections;
            change(&mut config);
            let mut session = Session::new(
                config,
                SessionSecret::from_bytes(&secret),
                &KeyStore::in_ordinary_memory(1),
                Duration::ZERO,
            );
            session
                .offer(Endpoint::new("echo", &["first", "second"]))
                .unwrap();
            session
        };
        Self {
            client: session(Side::Client),
            server: session(Side::Server),
            now: Duration::ZERO,
        }
    }

    /// A pair with a data link from client to server, quiet.
    pub(crate) fn linked(protections: Protections) -> (Self, LinkId) {
        let mut pair = Self::new(protections);
        let link = pair.client.open_link("echo", TrafficClass::Data).unwrap();
        pair.settle();
        drain(&mut pair.client);
        drain(&mut pair.server);
        (pair, link)
    }

    /// Moves bytes both ways until none are left.
    pub(crate) fn settle(&mut self) {
        loop {
            let forth = outgoing(&mut self.client, self.now);
            feed(&mut self.server, &forth, self.now).unwrap();
            let back = outgoing(&mut self.server, self.now);
            feed(&mut self.client, &back, self.now).unwrap();
            if forth.is_empty() && back.is_empty() {
                break;
            }
        }
    }

    /// What the client would write now, all of it.
    pub(crate) fn sent_by_client(&mut self) -> Vec<u8> {
        outgoing(&mut self.client, self.now)
    }

    pub(crate) fn sent_by_server(&mut self) -> Vec<u8> {
        outgoing(&mut self.server, self.now)
    }

    pub(crate) fn give_server(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        feed(&mut self.server, bytes, self.now)
    }

    pub(crate) fn give_client(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        feed(&mut self.client, bytes, self.now)
    }
}

/// Takes everything that a session wants to write.
pub(crate) fn outgoing(session: &mut Session, now: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        session.prepare(now).unwrap();
        let before = bytes.len();
        for slice in session.outgoing() {
            bytes.extend_from_slice(slice);
        }
        session.sent(bytes.len() - before);
        if bytes.len() == before {
            return bytes;
        }
    }
}

/// Hands bytes to a session as its buffers take them.
pub(crate) fn feed(session: &mut Session, bytes: &[u8], now: Duration) -> Result<(), SessionError> {
    feed_in_steps(session, bytes, now, usize::MAX, false)
}

/// The same in steps of at most so many bytes, by one buffer or by both.
pub(crate) fn feed_in_steps(
    session: &mut Session,
    mut bytes: &[u8],
    now: Duration,
    step: usize,
    vectored: bool,
) -> Result<(), SessionError> {
    while !bytes.is_empty() {
        let mut moved = 0;
        let mut put = |buffer: &mut [u8]| {
            let count = buffer.len().min(bytes.len()).min(step - moved);
            buffer[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            moved += count;
        };
        if vectored {
            session.receive_buffers().into_iter().for_each(&mut put);
        } else {
            put(session.receive_buffer());
        }
        assert!(moved > 0, "a session must always take bytes");
        session.received(moved, now)?;
    }
    Ok(())
}

pub(crate) fn drain(session: &mut Session) -> Vec<Event> {
    core::iter::from_fn(|| session.poll_event()).collect()
}

pub(crate) fn post(head: &[u8], bulk: &[&[u8]]) -> Message {
    message(MessageKind::Post, head, bulk)
}

pub(crate) fn message(kind: MessageKind, head: &[u8], bulk: &[&[u8]]) -> Message {
    Message {
        handler: 1,
        kind,
        head: Bytes::copy_from_slice(head),
        bulk: bulk
            .iter()
            .map(|part| Bytes::copy_from_slice(part))
            .collect(),
        is_gathered: false,
    }
}

/// Bytes that are not all alike.
pub(crate) fn pattern(count: usize, seed: u8) -> Vec<u8> {
    (0..count)
        .map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ seed)
        .collect()
}

/// Head and bulk of all messages among the events.
pub(crate) fn messages(events: Vec<Event>) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let content = |event| match event {
        Event::Message { head, bulk, .. } => Some((head.to_vec(), bulk)),
        _ => None,
    };
    events.into_iter().filter_map(content).collect()
}

/// Splits a stream into its records by their headers. Plain bulk has its tag in front, which changes no length.
pub(crate) fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
        let (record, rest) = bytes.split_at(length as usize + 32);
        records.push(record.to_vec());
        bytes = rest;
    }
    records
}
