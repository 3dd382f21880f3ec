//! Sealing and opening records. One number per direction counts all records; each is used once.
//!
//! On the wire an `encrypted` or `integrity` record is header, body, tag. A `plain` record is header, tag, body: its tag
//! covers the header alone, and standing in front it is checked before one byte of the body is put anywhere.

use core::time::Duration;

use crate::error::SessionError;
use crate::keys::DirectionKeys;
use crate::message::LinkId;
use crate::protection::Protection;
use crate::record::{HEADER_BYTES, RecordHeader, TAG_BYTES};
use crate::session::EpochLimits;

/// What a record is longer than its body.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// One direction's way to its keys, its record number and what it has done with the keys of this epoch. The number and the epoch are here and
/// not with the keys, which come and go.
struct Direction {
    keys: DirectionKeys,
    counter: u64,
    epoch_records: u64,
    epoch_bytes: u64,
}

impl Direction {
    fn new(keys: DirectionKeys) -> Self {
        Self {
            keys,
            counter: 0,
            epoch_records: 0,
            epoch_bytes: 0,
        }
    }

    /// Takes the next record number. It is gone whatever becomes of the record.
    fn take_number(&mut self, length: u32) -> Result<u64, SessionError> {
        let number = self.counter;
        self.counter = number.checked_add(1).ok_or(SessionError::Exhausted)?;
        self.epoch_records += 1;
        self.epoch_bytes += u64::from(length);
        Ok(number)
    }

    fn advance(&mut self) {
        self.keys.advance();
        self.epoch_records = 0;
        self.epoch_bytes = 0;
    }
}

/// The sending direction.
pub(crate) struct Sealer {
    direction: Direction,
    epoch_start: Duration,
}

impl Sealer {
    pub(crate) fn new(keys: DirectionKeys, now: Duration) -> Self {
        Self {
            direction: Direction::new(keys),
            epoch_start: now,
        }
    }

    /// How many records have been sealed.
    pub(crate) fn counter(&self) -> u64 {
        self.direction.counter
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.direction.keys.epoch()
    }

    /// Whether the epoch's keys have done enough.
    pub(crate) fn is_worn(&self, limits: &EpochLimits, now: Duration) -> bool {
        self.direction.epoch_records >= limits.records_max
            || self.direction.epoch_bytes >= limits.bytes_max
            || now.saturating_sub(self.epoch_start) >= limits.age_max
    }

    pub(crate) fn advance(&mut self, now: Duration) {
        self.direction.advance();
        self.epoch_start = now;
    }

    /// Ends a batch of records: the keys in hand go back to the store.
    pub(crate) fn release(&mut self) {
        self.direction.keys.release();
    }

    /// Seals a record whose body already stands in `record`, between room for the header and for the tag.
    pub(crate) fn seal_in_place(
        &mut self,
        protection: Protection,
        header: RecordHeader,
        record: &mut [u8],
    ) -> Result<(), SessionError> {
        let number = self.direction.take_number(header.length)?;
        let key = self.direction.keys.get(protection);
        let encoded = header.encode();
        let tag_start = record.len() - TAG_BYTES;
        let tag = if protection == Protection::Encrypted {
            let body = &mut record[HEADER_BYTES..tag_start];
            key.seal(number, &encoded, body)
        } else {
            // The authenticated bytes are body, then header: in one piece without moving the body, here and at the
            // receiver, which reads the body to its final place.
            record[tag_start..].copy_from_slice(&encoded);
            key.seal(number, &record[HEADER_BYTES..], &mut [])
        };
        record[..HEADER_BYTES].copy_from_slice(&encoded);
        record[tag_start..].copy_from_slice(&tag.map_err(|_| SessionError::Exhausted)?);
        Ok(())
    }

    /// Seals a record from a body that stands elsewhere into `record`, without a copy in between when it is encrypted.
    pub(crate) fn seal_from(
        &mut self,
        protection: Protection,
        header: RecordHeader,
        body: &[u8],
        record: &mut [u8],
    ) -> Result<(), SessionError> {
        if protection != Protection::Encrypted {
            record[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
            return self.seal_in_place(protection, header, record);
        }
        let number = self.direction.take_number(header.length)?;
        let key = self.direction.keys.get(protection);
        let encoded = header.encode();
        record[..HEADER_BYTES].copy_from_slice(&encoded);
        let (sealed, tag) = record[HEADER_BYTES..].split_at_mut(body.len());
        key.seal_to(number, &encoded, body, sealed, tag)
            .map_err(|_| SessionError::Exhausted)
    }

    /// Numbers a record that has no tag.
    pub(crate) fn number(&mut self, header: RecordHeader) -> Result<(), SessionError> {
        self.direction.take_number(header.length).map(drop)
    }

    /// Seals the header of a plain record: gives header and tag, which the body follows as it is.
    pub(crate) fn seal_header(
        &mut self,
        header: RecordHeader,
    ) -> Result<[u8; OVERHEAD_BYTES], SessionError> {
        let number = self.direction.take_number(header.length)?;
        let key = self.direction.keys.get(Protection::Plain);
        let encoded = header.encode();
        let tag = key
            .seal(number, &encoded, &mut [])
            .map_err(|_| SessionError::Exhausted)?;
        let mut front = [0; OVERHEAD_BYTES];
        front[..HEADER_BYTES].copy_from_slice(&encoded);
        front[HEADER_BYTES..].copy_from_slice(&tag);
        Ok(front)
    }
}

/// The receiving direction.
pub(crate) struct Opener {
    direction: Direction,
}

impl Opener {
    pub(crate) fn new(keys: DirectionKeys) -> Self {
        Self {
            direction: Direction::new(keys),
        }
    }

    /// How many records have been opened, which is the number of the next.
    pub(crate) fn counter(&self) -> u64 {
        self.direction.counter
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.direction.keys.epoch()
    }

    pub(crate) fn advance(&mut self) {
        self.direction.advance();
    }

    /// Whether the peer has used its keys far beyond the limits.
    pub(crate) fn is_overworn(&self, limits: &EpochLimits) -> bool {
        // The peer notices after the record that crosses its limit, and its limits may be somewhat wider than ours.
        self.direction.epoch_records > limits.records_max.saturating_mul(2)
            || self.direction.epoch_bytes > limits.bytes_max.saturating_mul(2)
    }

    /// Ends a batch of records: the keys in hand go back to the store.
    pub(crate) fn release(&mut self) {
        self.direction.keys.release();
    }

    /// Opens a whole record, given as header, body and tag; gives the body.
    pub(crate) fn open_in_place<'a>(
        &mut self,
        protection: Protection,
        header: RecordHeader,
        record: &'a mut [u8],
    ) -> Result<&'a mut [u8], SessionError> {
        let tag_start = record.len() - TAG_BYTES;
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&record[tag_start..]);
        self.open_segment(protection, header, &mut record[HEADER_BYTES..], &tag)?;
        Ok(&mut record[HEADER_BYTES..tag_start])
    }

    /// Opens a body where it stands; `room` is the body and room for a header behind it.
    pub(crate) fn open_segment(
        &mut self,
        protection: Protection,
        header: RecordHeader,
        room: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), SessionError> {
        let number = self.direction.take_number(header.length)?;
        let key = self.direction.keys.get(protection);
        let encoded = header.encode();
        let (body, behind) = room.split_at_mut(header.length as usize);
        let opened = if protection == Protection::Encrypted {
            key.open(number, &encoded, tag, body)
        } else {
            behind[..HEADER_BYTES].copy_from_slice(&encoded);
            let covered = &room[..header.length as usize + HEADER_BYTES];
            key.open(number, covered, tag, &mut [])
        };
        opened.map_err(|_| refused(number, header.link))
    }

    /// Numbers a record that has no tag.
    pub(crate) fn number(&mut self, header: RecordHeader) -> Result<(), SessionError> {
        self.direction.take_number(header.length).map(drop)
    }

    /// Checks the header of a plain record.
    pub(crate) fn open_header(
        &mut self,
        header: RecordHeader,
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), SessionError> {
        let number = self.direction.take_number(header.length)?;
        let key = self.direction.keys.get(Protection::Plain);
        let encoded = header.encode();
        key.open(number, &encoded, tag, &mut [])
            .map_err(|_| refused(number, header.link))
    }
}

fn refused(counter: u64, link: LinkId) -> SessionError {
    SessionError::Authentication { counter, link }
}
