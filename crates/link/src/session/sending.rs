//! The way out: which record is next, and its sealing. Sealing is lazy, so that control overtakes bulk and a number is
//! given in the order in which records leave.

use core::time::Duration;

use bytes::Bytes;

use crate::control::ControlMessage;
use crate::envelope::Envelope;
use crate::error::SessionError;
use crate::message::{LinkId, Message};
use crate::protection::Protection;
use crate::record::{HEAD_BYTES_MAX, HEADER_BYTES, RecordHeader, RecordKind};
use crate::sealing::OVERHEAD_BYTES;
use crate::session::Session;
use crate::session::link::{LinkState, Progress, SendBacklog};

/// So much is sealed ahead of the writer: enough for one write while the next segment is sealed, little enough that
/// control does not wait long behind it.
const AHEAD_BYTES: usize = 512 * 1024;
/// A plain body up to this size is copied behind its header: cheaper than two more slices in the write.
const COPY_BYTES_MAX: usize = 8 * 1024;

impl Session {
    /// Seals ahead what can go out now, about 512 KiB at most. Call before [`outgoing`](Self::outgoing), and again
    /// when some of it was written.
    ///
    /// # Errors
    /// [`SessionError::Exhausted`] when the record numbers are used up.
    pub fn prepare(&mut self, now: Duration) -> Result<(), SessionError> {
        let sealed = self.seal_ahead(now);
        self.sealer.release();
        self.begin_closing_time(now);
        sealed
    }

    fn seal_ahead(&mut self, now: Duration) -> Result<(), SessionError> {
        while self.outbox.bytes() < AHEAD_BYTES && !self.closing.close_sealed {
            match self.seal_next(now) {
                Ok(true) => self.timing.sealed(now),
                Ok(false) => break,
                Err(error) => {
                    // The record that failed has used its number, so no other may follow, not even a Close.
                    self.closing.close_sealed = true;
                    self.closing.failure = Some(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The slices to write, in order; report with [`sent`](Self::sent).
    pub fn outgoing(&self) -> impl Iterator<Item = &[u8]> {
        self.outbox.slices()
    }

    /// How many bytes [`outgoing`](Self::outgoing) holds.
    pub fn outgoing_bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// So many bytes of [`outgoing`](Self::outgoing) were written.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
    }

    /// Seals the one record that is next, or says that there is none.
    fn seal_next(&mut self, now: Duration) -> Result<bool, SessionError> {
        if self.closing.failure.is_none() {
            if self.sealer.is_worn(&self.config.epoch, now) {
                self.seal_control(ControlMessage::KeyUpdate)?;
                self.sealer.advance(now);
                return Ok(true);
            }
            if let Some(message) = self.control.pop_front() {
                self.seal_control(message)?;
                return Ok(true);
            }
            if self.timing.wants_heartbeat(now, &self.config) && self.outbox.bytes() == 0 {
                self.return_credit();
                let (sealed, opened) = (self.sealer.counter(), self.opener.counter());
                self.seal_control(ControlMessage::Heartbeat { sealed, opened })?;
                return Ok(true);
            }
            if let Some(link) = self.ready.pop_front() {
                self.seal_record_of(link)?;
                return Ok(true);
            }
        }
        let Some(reason) = self.final_reason() else {
            return Ok(false);
        };
        if self.closing.failure.is_none() && !self.is_aborted() {
            // The peer takes for lost what it has no word of.
            self.return_credit();
            if let Some(message) = self.control.pop_front() {
                self.seal_control(message)?;
                return Ok(true);
            }
        }
        self.seal_control(ControlMessage::Close(reason))?;
        self.closing.close_sealed = true;
        Ok(true)
    }

    /// Credit of links that last, which says what has arrived.
    fn return_credit(&mut self) {
        let returned = self.links.take_returned().into_iter();
        self.control
            .extend(returned.map(|(link, bytes)| ControlMessage::Credit { link, bytes }));
    }

    fn seal_control(&mut self, mut message: ControlMessage) -> Result<(), SessionError> {
        // What holds is known only now: protections may have been raised since the message was queued.
        match &mut message {
            ControlMessage::LinkOpen {
                class, protection, ..
            } => *protection = self.sending.of(*class).max(*protection),
            ControlMessage::LinkProtection { link, protection } => {
                let own = self.links.get(*link).map(|link| link.sending);
                *protection = own.unwrap_or_default().max(*protection);
            }
            ControlMessage::Protections(raised) => *raised = raised.stricter(self.sending),
            _ => {}
        }
        let mut body = Vec::with_capacity(64);
        message
            .encode(&mut body)
            .map_err(|_| SessionError::Exhausted)?;
        let protection = Self::control_protection(self.sending);
        let header = header(RecordKind::Control, true, LinkId::CONTROL, 0, body.len());
        let sealer = &mut self.sealer;
        self.outbox.append(body.len() + OVERHEAD_BYTES, |record| {
            record[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
            sealer.seal_in_place(protection, header, record)
        })?;
        match message {
            ControlMessage::Protections(protections) => self.sending = protections,
            // What was stated is what the answer is held to.
            ControlMessage::LinkOpen {
                link, protection, ..
            } => {
                if let Some(link) = self.links.get_mut(link) {
                    (link.sending, link.receiving) = (protection, protection);
                }
            }
            ControlMessage::LinkProtection { link, protection } => {
                if let Some(link) = self.links.get_mut(link) {
                    link.sending = protection;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Seals the next record of a link that is ready, then puts the link back in line if it has more.
    fn seal_record_of(&mut self, id: LinkId) -> Result<(), SessionError> {
        let Some(link) = self.links.get_mut(id) else {
            return Ok(());
        };
        link.is_ready = false;
        if let Some(progress) = &mut link.current {
            let protection = self.sending.of(link.class).max(link.sending);
            let segment = RecordSegment::next(progress, self.config.segment_bytes);
            let header = header(segment.kind, segment.end, id, link.job, segment.length);
            self.counts.bytes_sealed[usize::from(protection.code())] += segment.length as u64;
            if self.config.is_private && protection == Protection::Plain {
                self.sealer.number(header)?;
                if segment.length > COPY_BYTES_MAX {
                    let body = segment.stretches();
                    self.outbox.append_untagged(header.encode(), body);
                } else {
                    self.outbox
                        .append(segment.length + HEADER_BYTES, |record| {
                            record[..HEADER_BYTES].copy_from_slice(&header.encode());
                            segment.copy_to(&mut record[HEADER_BYTES..]);
                            Ok(())
                        })?;
                }
            } else if segment.kind == RecordKind::Bulk && protection == Protection::Plain {
                if segment.length > COPY_BYTES_MAX {
                    let front = self.sealer.seal_header(header)?;
                    self.outbox.append_plain(front, segment.stretches());
                } else {
                    let sealer = &mut self.sealer;
                    self.outbox
                        .append(segment.length + OVERHEAD_BYTES, |record| {
                            segment.copy_to(&mut record[OVERHEAD_BYTES..]);
                            record[..OVERHEAD_BYTES].copy_from_slice(&sealer.seal_header(header)?);
                            Ok(())
                        })?;
                }
            } else {
                let protection = protection.max(Protection::Integrity);
                let sealer = &mut self.sealer;
                self.outbox
                    .append(segment.length + OVERHEAD_BYTES, |record| {
                        if segment.more.is_empty() {
                            return sealer.seal_from(protection, header, &segment.first, record);
                        }
                        segment.copy_to(&mut record[HEADER_BYTES..]);
                        sealer.seal_in_place(protection, header, record)
                    })?;
            }
            if segment.end {
                let size = progress.message.size();
                link.current = None;
                link.backlog -= SendBacklog::one(size);
                self.backlog -= SendBacklog::one(size);
            }
        } else if link.credit > 0
            && let Some(message) = link.queue.pop_front()
        {
            let protection = self.sending.of(link.class).max(link.sending);
            let is_tagged = !(self.config.is_private && protection == Protection::Plain);
            let protection = protection.max(Protection::Integrity);
            let size = message.size();
            link.credit -= super::link::signed(size);
            link.traffic.sent(size - Message::OVERHEAD_BYTES);
            let envelope_bytes = Envelope::encoded_bytes(&message);
            let first = message.head.len().min(HEAD_BYTES_MAX - envelope_bytes);
            let progress = Progress::after_first(message, first);
            let length = envelope_bytes + first;
            let end = progress.is_done();
            let header = header(RecordKind::Head, end, id, link.job, length);
            let sealer = &mut self.sealer;
            self.counts.bytes_sealed[usize::from(protection.code())] += first as u64;
            let overhead = if is_tagged {
                OVERHEAD_BYTES
            } else {
                HEADER_BYTES
            };
            self.outbox.append(length + overhead, |record| {
                let (envelope, rest) = record[HEADER_BYTES..].split_at_mut(envelope_bytes);
                Envelope::encode(&progress.message, envelope);
                rest[..first].copy_from_slice(&progress.message.head[..first]);
                if is_tagged {
                    return sealer.seal_in_place(protection, header, record);
                }
                record[..HEADER_BYTES].copy_from_slice(&header.encode());
                sealer.number(header)
            })?;
            if end {
                link.backlog -= SendBacklog::one(size);
                self.backlog -= SendBacklog::one(size);
            } else {
                link.current = Some(progress);
            }
        }
        if link.can_send() {
            link.is_ready = true;
            self.ready.push_back(id);
        } else {
            self.settle(id);
        }
        Ok(())
    }

    /// Tells the peer of a link's end when the link wants to end and nothing of it is left to send.
    pub(super) fn settle(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if link.state != LinkState::Closing || !link.is_flushed() {
            return;
        }
        if link.opened_here {
            link.state = LinkState::Closed;
            self.control
                .push_back(ControlMessage::LinkClose { link: id });
        } else {
            self.links.remove(id);
            self.control
                .push_back(ControlMessage::LinkClosed { link: id });
        }
    }
}

fn header(kind: RecordKind, end: bool, link: LinkId, job: u32, length: usize) -> RecordHeader {
    RecordHeader {
        kind,
        end,
        link,
        job,
        length: length as u32,
    }
}

/// The bytes of a message that its next record carries.
struct RecordSegment {
    kind: RecordKind,
    first: Bytes,
    /// Of a gathered part, where the first stretch is not all.
    more: Vec<Bytes>,
    length: usize,
    end: bool,
}

impl RecordSegment {
    fn next(progress: &mut Progress, segment_bytes: usize) -> Self {
        let first = progress.take(segment_bytes);
        let kind = match progress.part {
            0 => RecordKind::HeadMore,
            _ => RecordKind::Bulk,
        };
        progress.skip_full();
        let (mut more, mut length) = (Vec::new(), first.len());
        while kind == RecordKind::Bulk
            && progress.message.is_gathered
            && !progress.is_done()
            && length < segment_bytes
        {
            let stretch = progress.take(segment_bytes - length);
            length += stretch.len();
            more.push(stretch);
            progress.skip_full();
        }
        Self {
            kind,
            first,
            more,
            length,
            end: progress.is_done(),
        }
    }

    fn stretches(&self) -> impl Iterator<Item = Bytes> {
        std::iter::once(&self.first).chain(&self.more).cloned()
    }

    fn copy_to(&self, mut room: &mut [u8]) {
        for stretch in std::iter::once(&self.first).chain(&self.more) {
            let (place, rest) = room.split_at_mut(stretch.len());
            place.copy_from_slice(stretch);
            room = rest;
        }
    }
}

impl Progress {
    /// A message whose first record carries so many bytes of its head.
    fn after_first(message: Message, first: usize) -> Self {
        let mut progress = Self {
            message,
            part: 0,
            offset: first,
        };
        progress.skip_full();
        progress
    }

    fn is_done(&self) -> bool {
        self.part > self.message.bulk.len()
    }

    /// At most so many of the bytes that come next, of those that lie in a row.
    fn take(&mut self, bytes_max: usize) -> Bytes {
        let bytes = match self.part.checked_sub(1) {
            None => &self.message.head,
            Some(index) => &self.message.bulk[index],
        };
        let until = bytes.len().min(self.offset + bytes_max);
        let bytes = bytes.slice(self.offset..until);
        self.offset = until;
        bytes
    }

    /// Moves on to the next part that has bytes left.
    fn skip_full(&mut self) {
        while !self.is_done() {
            let length = match self.part.checked_sub(1) {
                None => self.message.head.len(),
                Some(index) => self.message.bulk[index].len(),
            };
            if self.offset < length {
                break;
            }
            self.part += 1;
            self.offset = 0;
        }
    }
}
