//! The way in: bytes to records to messages. The bodies of segments are read to their final place and opened there.

use core::time::Duration;

use crate::envelope::Envelope;
use crate::error::SessionError;
use crate::limits::Limits;
use crate::message::{Event, LinkId, Message, MessageKind};
use crate::protection::Protection;
use crate::record::{HEADER_BYTES, RecordHeader, RecordKind, TAG_BYTES};
use crate::sealing::OVERHEAD_BYTES;
use crate::session::Session;
use crate::session::assembly::Assembly;
use crate::session::inbox::Inbound;
use crate::session::link::{Link, LinkState, signed};
use crate::session::reception::CountedReception;

/// Before a body of at least this size only its header is read, so that the body itself can be read to its place.
const DIRECT_BYTES_MIN: u64 = 16 * 1024;

impl Session {
    /// Where the next bytes of the connection go; never empty. Inside a segment this is the segment's final place.
    pub fn receive_buffer(&mut self) -> &mut [u8] {
        let [first, second] = self.receive_buffers();
        if first.is_empty() { second } else { first }
    }

    /// The same in two slices for a vectored read: the rest of a segment (may be empty), and what follows it.
    pub fn receive_buffers(&mut self) -> [&mut [u8]; 2] {
        let limit = self.lookahead();
        let Inbound::Body { header, done, .. } = self.inbox.state else {
            return [&mut [], self.inbox.room(limit)];
        };
        let assembly = self
            .links
            .get_mut(header.link)
            .and_then(|link| link.assembly.as_mut());
        match assembly {
            Some(assembly) => [
                assembly.room(done, header.length as usize),
                self.inbox.room(limit),
            ],
            None => [&mut [], self.inbox.room(limit)],
        }
    }

    /// So many bytes were read into [`receive_buffer`](Self::receive_buffer) or, from the front on, into
    /// [`receive_buffers`](Self::receive_buffers).
    ///
    /// # Errors
    /// What is wrong with them. The session is over then; [`prepare`](Self::prepare) still seals a Close that tells the
    /// peer. Messages that were complete before stay in the events.
    pub fn received(&mut self, bytes: usize, now: Duration) -> Result<(), SessionError> {
        if let Some(failure) = &self.closing.failure {
            return Err(failure.clone());
        }
        if bytes == 0 {
            return Ok(());
        }
        self.timing.heard(bytes, now, self.config.dead_after);
        let (records, events) = (self.opener.counter(), self.events.len());
        let mut behind = bytes;
        if let Inbound::Body { header, done, .. } = &mut self.inbox.state {
            let direct = behind.min(header.length as usize - *done);
            *done += direct;
            behind -= direct;
        }
        self.inbox.filled(behind);
        let stopped = loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(self.fail(error)),
            }
        };
        self.opener.release();
        if self.opener.counter() > records {
            self.timing.verified(now);
        }
        self.renew_closing_time(events, now);
        self.begin_closing_time(now);
        stopped
    }

    /// How many bytes to read behind the current segment, if a read of more would put the next segment's body into the
    /// wrong place.
    fn lookahead(&self) -> Option<usize> {
        let (link, length, tag) = match self.inbox.state {
            Inbound::Start => (self.streaming?, 0, 0),
            Inbound::Body {
                header,
                protection: Protection::Plain,
                ..
            } => (header.link, header.length, 0),
            Inbound::Body { header, .. } | Inbound::Tag { header, .. } => {
                (header.link, header.length, TAG_BYTES)
            }
        };
        let link = self.links.get(link)?;
        let assembly = link.assembly.as_ref()?;
        if assembly.due_after(length as usize) < DIRECT_BYTES_MIN {
            return None;
        }
        let is_plain = assembly.next_is_bulk(length as usize)
            && self.receiving.of(link.class).max(link.receiving) == Protection::Plain;
        let front = if is_plain && !self.config.is_private {
            OVERHEAD_BYTES
        } else {
            HEADER_BYTES
        };
        (tag + front)
            .checked_sub(self.inbox.len())
            .filter(|&missing| missing > 0)
    }

    /// Takes one step with the bytes at hand; false when more are needed.
    fn step(&mut self) -> Result<bool, SessionError> {
        match self.inbox.state {
            _ if self.closing.peer_closed => {
                if self.inbox.is_empty() {
                    return Ok(false);
                }
                Err(SessionError::RecordAfterClose)
            }
            Inbound::Start => self.step_start(),
            Inbound::Body {
                header,
                protection,
                done,
            } => self.step_body(header, protection, done),
            Inbound::Tag { header, protection } => {
                let Some(&tag) = self.inbox.peek::<TAG_BYTES>() else {
                    return Ok(false);
                };
                self.inbox.take(TAG_BYTES);
                let assembly = assembly_of(&mut self.links, header.link, self.opener.counter())?;
                let segment = assembly.segment(header.length as usize);
                self.opener
                    .open_segment(protection, header, segment, &tag)?;
                self.finish_segment(header, protection)?;
                Ok(true)
            }
        }
    }

    fn step_start(&mut self) -> Result<bool, SessionError> {
        let Some(bytes) = self.inbox.peek::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let counter = self.opener.counter();
        let header =
            RecordHeader::read(bytes).map_err(|source| SessionError::Header { counter, source })?;
        if self.opener.is_overworn(&self.config.epoch) {
            return Err(SessionError::PeerLimit {
                limit: "records or bytes of an epoch",
                got: self.opener.counter(),
                maximum: self.config.epoch.records_max,
            });
        }
        match header.kind {
            RecordKind::Control | RecordKind::Head => {
                // No link: said when the record is opened.
                let is_tagged = header.kind == RecordKind::Control || self.is_tagged(header);
                let overhead = if is_tagged {
                    OVERHEAD_BYTES
                } else {
                    HEADER_BYTES
                };
                let count = header.length as usize + overhead;
                if self.inbox.len() < count {
                    // A header that names no open link is known to be wrong before its body is here.
                    if header.kind == RecordKind::Head {
                        self.link_for(header)?;
                    }
                    return Ok(false);
                }
                if header.kind == RecordKind::Control {
                    self.open_control(header, count)?;
                } else {
                    self.open_head(header, count)?;
                }
            }
            RecordKind::HeadMore | RecordKind::Bulk => return self.begin_segment(header),
        }
        Ok(true)
    }

    fn open_control(&mut self, header: RecordHeader, count: usize) -> Result<(), SessionError> {
        let protection = Self::control_protection(self.receiving);
        let record = self.inbox.take(count);
        let counter = self.opener.counter();
        let body = self.opener.open_in_place(protection, header, record)?;
        let message = crate::control::ControlMessage::read(body)
            .map_err(|source| SessionError::Content { counter, source })?;
        self.handle_control(message, counter)
    }

    fn open_head(&mut self, header: RecordHeader, count: usize) -> Result<(), SessionError> {
        let counter = self.opener.counter();
        let protection = self.protection_of(header)?;
        let is_tagged = self.is_tagged(header);
        let record = self.inbox.take(count);
        let body = if is_tagged {
            self.opener.open_in_place(protection, header, record)?
        } else {
            self.opener.number(header)?;
            &mut record[HEADER_BYTES..]
        };
        let (envelope, first) = Envelope::read(body, &self.config.limits)
            .map_err(|source| SessionError::Content { counter, source })?;
        let unexpected = |why| SessionError::Unexpected {
            counter,
            link: header.link,
            why,
        };
        let half_here: u64 = self.links.iter().filter_map(Link::half_here).sum();
        let got = half_here.saturating_add(envelope.size() - Message::OVERHEAD_BYTES);
        check_reception(got, self.reception_max, &self.config.limits)?;
        let Some(link) = self.links.get_mut(header.link) else {
            return Err(unexpected("no such link is open"));
        };
        if link.assembly.is_some() {
            return Err(unexpected("a message starts before the last one ended"));
        }
        check_direction(link, &envelope).map_err(unexpected)?;
        if link.window <= 0 {
            return Err(SessionError::PeerLimit {
                limit: "credit_bytes",
                got: envelope.size(),
                maximum: self.config.limits.credit_bytes,
            });
        }
        link.window = link.window.saturating_sub(signed(envelope.size()));
        self.counts.bytes_opened[usize::from(protection.code())] += first.len() as u64;
        if first.len() as u64 == envelope.head_bytes && envelope.bulk_bytes.is_empty() {
            if !header.end {
                return Err(unexpected(
                    "its end flag does not agree with the message's lengths",
                ));
            }
            link.traffic.received(envelope.head_bytes);
            if link.state != LinkState::Refused {
                self.events.push_back(Event::Message {
                    link: header.link,
                    handler: envelope.handler,
                    kind: envelope.kind,
                    head: self.head_memory.head(first),
                    bulk: Vec::new(),
                    size: envelope.size(),
                });
            }
            return Ok(());
        }
        let parts = envelope.bulk_bytes.len();
        let counted = CountedReception::new(self.shared_reception.as_ref(), parts);
        let assembly = Assembly::new(envelope, first, &mut self.pool, counted);
        assembly.counted.check(half_here_max(&self.config.limits))?;
        if assembly.is_complete() != header.end {
            return Err(unexpected(
                "its end flag does not agree with the message's lengths",
            ));
        }
        link.assembly = Some(assembly);
        self.streaming = Some(header.link);
        self.deliver_complete(header.link);
        Ok(())
    }

    /// A segment's header is here. Its body's place is prepared; nothing else is done before the header is verified.
    fn begin_segment(&mut self, header: RecordHeader) -> Result<bool, SessionError> {
        let counter = self.opener.counter();
        let mut protection = self.protection_of(header)?;
        if header.kind == RecordKind::HeadMore {
            protection = protection.max(Protection::Integrity);
        }
        if !self.is_tagged(header) {
            self.opener.number(header)?;
            self.inbox.take(HEADER_BYTES);
            // Its body follows, and nothing else.
            protection = Protection::Plain;
        } else if protection == Protection::Plain {
            let Some(front) = self.inbox.peek::<OVERHEAD_BYTES>() else {
                return Ok(false);
            };
            let mut tag = [0; TAG_BYTES];
            tag.copy_from_slice(&front[HEADER_BYTES..]);
            self.opener.open_header(header, &tag)?;
            self.inbox.take(OVERHEAD_BYTES);
        } else {
            self.inbox.take(HEADER_BYTES);
        }
        let assembly = assembly_of(&mut self.links, header.link, counter)?;
        assembly
            .begin(header.kind, header.length as usize, header.end)
            .map_err(|why| SessionError::Unexpected {
                counter,
                link: header.link,
                why,
            })?;
        self.streaming = Some(header.link);
        self.inbox.state = Inbound::Body {
            header,
            protection,
            done: 0,
        };
        Ok(true)
    }

    fn step_body(
        &mut self,
        header: RecordHeader,
        protection: Protection,
        mut done: usize,
    ) -> Result<bool, SessionError> {
        let length = header.length as usize;
        let count = self.inbox.len().min(length - done);
        if count > 0 {
            let assembly = assembly_of(&mut self.links, header.link, self.opener.counter())?;
            let room = assembly.room(done, length);
            room[..count].copy_from_slice(self.inbox.take(count));
            done += count;
        }
        if done < length {
            self.inbox.state = Inbound::Body {
                header,
                protection,
                done,
            };
            return Ok(false);
        }
        if protection == Protection::Plain {
            self.finish_segment(header, protection)?;
        } else {
            self.inbox.state = Inbound::Tag { header, protection };
        }
        Ok(true)
    }

    fn finish_segment(
        &mut self,
        header: RecordHeader,
        protection: Protection,
    ) -> Result<(), SessionError> {
        self.inbox.state = Inbound::Start;
        self.counts.bytes_opened[usize::from(protection.code())] += u64::from(header.length);
        let assembly = assembly_of(&mut self.links, header.link, self.opener.counter())?;
        assembly.finish(header.length as usize);
        if !assembly.is_complete() {
            assembly.counted.check(half_here_max(&self.config.limits))?;
        }
        self.deliver_complete(header.link);
        Ok(())
    }

    fn deliver_complete(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if let Some(assembly) = link.assembly.take_if(|assembly| assembly.is_complete())
            && link.state != LinkState::Refused
        {
            link.traffic.received(assembly.bytes());
            self.events.push_back(assembly.into_event(id));
        }
    }

    /// Whether a record of a link has a tag: see [`SessionConfig::is_private`](super::SessionConfig::is_private).
    fn is_tagged(&self, header: RecordHeader) -> bool {
        let is_plain =
            |link: &Link| self.receiving.of(link.class).max(link.receiving) == Protection::Plain;
        !(self.config.is_private && self.links.get(header.link).is_some_and(is_plain))
    }

    /// The link's protection for a record of its own; a Head is never below integrity.
    fn protection_of(&self, header: RecordHeader) -> Result<Protection, SessionError> {
        let link = self.link_for(header)?;
        let protection = self.receiving.of(link.class).max(link.receiving);
        match header.kind {
            RecordKind::Bulk => Ok(protection),
            _ => Ok(protection.max(Protection::Integrity)),
        }
    }

    /// The link that a header names, if it is one that can get a record of this job.
    fn link_for(&self, header: RecordHeader) -> Result<&Link, SessionError> {
        let unexpected = |why| SessionError::Unexpected {
            counter: self.opener.counter(),
            link: header.link,
            why,
        };
        let Some(link) = self.links.get(header.link) else {
            return Err(unexpected("no such link is open"));
        };
        if link.job != header.job {
            return Err(unexpected("its job is not the link's"));
        }
        Ok(link)
    }
}

/// What messages that are half here have together at most: as one session's peer has announced them, and as they have come to all sessions of
/// a certificate.
const fn half_here_max(limits: &Limits) -> u64 {
    limits.message_bytes_max.saturating_mul(2)
}

/// Holds the bytes of all messages that are half here, and of the one that begins, to what this side has memory for.
fn check_reception(got: u64, expected: Option<u64>, limits: &Limits) -> Result<(), SessionError> {
    let (limit, maximum) = match expected {
        Some(expected) => ("what is expected of it now, in bytes", expected),
        None => (
            "twice message_bytes_max in messages that are half here",
            half_here_max(limits),
        ),
    };
    if got <= maximum {
        return Ok(());
    }
    Err(SessionError::PeerLimit {
        limit,
        got,
        maximum,
    })
}

fn assembly_of(
    links: &mut super::link::LinkTable,
    link: LinkId,
    counter: u64,
) -> Result<&mut Assembly, SessionError> {
    let assembly = links.get_mut(link).and_then(|end| end.assembly.as_mut());
    assembly.ok_or(SessionError::Unexpected {
        counter,
        link,
        why: "it continues a message that has not started",
    })
}

/// Requests and posts reach endpoints, replies and failures reach startpoints, and nothing comes after a LinkClose.
fn check_direction(link: &Link, envelope: &Envelope) -> Result<(), &'static str> {
    let forward = matches!(envelope.kind, MessageKind::Post | MessageKind::Request(_));
    if forward == link.opened_here {
        return Err("its kind goes against the link's direction");
    }
    if forward && link.state == LinkState::Closing {
        return Err("it came after the link's end");
    }
    if forward && link.state != LinkState::Refused && !link.has_handler(envelope.handler) {
        return Err("the endpoint has no such handler");
    }
    Ok(())
}
