//! A session on its socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use bytes::{Bytes, BytesMut};
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Session, SessionConfig, SessionSecret, Side,
    TrafficClass,
};

use crate::{LiveError, READ_BYTES};

/// The payload of each message.
const PAYLOAD: [u8; 64] = [0x5a; 64];

/// A session on its socket.
pub(crate) struct LiveSession {
    pub(crate) session: Session,
    pub(crate) socket: UnixStream,
    link: LinkId,
    /// Of a message of the peer, on the wire.
    pub(crate) message_bytes: usize,
    /// What the peer has sent and no receive has been waited for yet, as it came: not opened.
    pub(crate) early: BytesMut,
    /// The peer sends nothing more.
    pub(crate) has_ended: bool,
    /// When the session began.
    pub(crate) start: Instant,
}

/// Two sessions on both ends of a socket, each with a link to the other.
pub(crate) fn begin(
    own: &KeyStore,
    other: &KeyStore,
    (first, second): (UnixStream, UnixStream),
) -> Result<(LiveSession, LiveSession), LiveError> {
    let mut secret = [0; 32];
    rand::fill(&mut secret).map_err(|_| LiveError::NoRandomBytes)?;
    let mut client = LiveSession::new(Side::Client, &secret, own, first)?;
    let mut server = LiveSession::new(Side::Server, &secret, other, second)?;
    // Both have said all that they have to say of their links before the first message. What each writes last is a message, from which the
    // other learns how long one is. All of it is less than a socket has room for.
    for (is_client, is_message) in [
        (true, false),
        (false, false),
        (true, false),
        (false, true),
        (true, true),
    ] {
        let (writer, reader) = if is_client {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        if is_message {
            writer.queue()?;
        }
        writer.session.prepare(writer.start.elapsed())?;
        reader.message_bytes = writer.write()?;
        reader.read(&mut vec![0; READ_BYTES])?;
        if reader.early.len() != reader.message_bytes || !writer.is_all_written() {
            return Err(LiveError::NoRoomToBegin);
        }
        reader.open()?;
        while reader.session.poll_event().is_some() {}
    }
    Ok((client, server))
}

impl LiveSession {
    fn new(
        side: Side,
        secret: &[u8; 32],
        keys: &KeyStore,
        socket: UnixStream,
    ) -> Result<Self, LiveError> {
        socket.set_nonblocking(true)?;
        let mut config = SessionConfig::new(side);
        // No record but those of messages: neither heartbeats nor credit.
        config.dead_after = Duration::from_secs(24 * 3600);
        config.heartbeat_every = config.dead_after;
        config.limits.credit_bytes = 1 << 40;
        config.peer_limits.credit_bytes = 1 << 40;
        let secret = SessionSecret::from_bytes(secret);
        let mut session = Session::new(config, secret, keys, Duration::ZERO);
        session.offer(Endpoint::new("node", &["take"]))?;
        let link = session.open_link("node", TrafficClass::Data)?;
        Ok(Self {
            session,
            socket,
            link,
            message_bytes: 0,
            early: BytesMut::new(),
            has_ended: false,
            start: Instant::now(),
        })
    }

    /// Puts a message into the session's queue.
    pub(crate) fn queue(&mut self) -> Result<(), LiveError> {
        let message = Message {
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::from_static(&PAYLOAD),
            bulk: Vec::new(),
            is_gathered: false,
        };
        Ok(self.session.send(self.link, message)?)
    }

    pub(crate) fn is_all_written(&self) -> bool {
        self.session.outgoing().all(<[u8]>::is_empty)
    }

    /// Writes what is prepared, as much as the socket has room for; how many bytes that were.
    pub(crate) fn write(&mut self) -> Result<usize, LiveError> {
        let mut total = 0;
        loop {
            let Some(slice) = self.session.outgoing().find(|slice| !slice.is_empty()) else {
                return Ok(total);
            };
            match self.socket.write(slice) {
                Ok(count) => {
                    self.session.sent(count);
                    total += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(total),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what is there, up to so much, and keeps it; how many bytes that were.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> Result<usize, LiveError> {
        loop {
            match self.socket.read(room) {
                Ok(count) => {
                    self.has_ended = count == 0;
                    self.early.extend_from_slice(&room[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Opens one message of those that are here: no byte of the next one, so that each is opened by itself.
    pub(crate) fn take(&mut self) -> Result<(), LiveError> {
        self.open()?;
        let mut messages = 0;
        while let Some(event) = self.session.poll_event() {
            if let Event::Message { link, size, .. } = event {
                self.session.consumed(link, size);
                messages += 1;
            }
        }
        match messages {
            1 => Ok(()),
            messages => Err(LiveError::NotOneMessage { messages }),
        }
    }

    /// Has the session look at as many bytes as a message has.
    fn open(&mut self) -> Result<(), LiveError> {
        let record = self.early.split_to(self.message_bytes);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let room = self.session.receive_buffer();
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            self.session.received(count, self.start.elapsed())?;
            rest = &rest[count..];
        }
        Ok(())
    }
}
