//! The record header: what stands in front of every record, in clear and authenticated.

use crate::codec::{Reader, over};
use crate::error::CodecError;
use crate::message::LinkId;

/// The bytes of a record's header.
pub(crate) const HEADER_BYTES: usize = 16;
/// The bytes of a record's tag.
pub const TAG_BYTES: usize = 16;
/// The largest body of a record. 256 KiB keep both ends' second-level caches warm while a segment is sealed,
/// written, read and opened.
pub const SEGMENT_BYTES_MAX: usize = 256 * 1024;
/// The largest body of a Head record, envelope and first in-band bytes together: it has to fit in the receive
/// buffer as a whole, because nothing of it is looked at before it is verified.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The largest body of a Control record.
pub(crate) const CONTROL_BYTES_MAX: usize = 16 * 1024;

/// The record ends a message.
pub(crate) const FLAG_END: u8 = 1;

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RecordKind {
    /// A message of the session's own, on link 0.
    Control,
    /// The start of a message: its envelope and first in-band bytes.
    Head,
    /// More in-band bytes.
    HeadMore,
    /// A segment of a bulk part.
    Bulk,
}

impl RecordKind {
    fn code(self) -> u8 {
        match self {
            Self::Control => 1,
            Self::Head => 2,
            Self::HeadMore => 3,
            Self::Bulk => 4,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Control),
            2 => Some(Self::Head),
            3 => Some(Self::HeadMore),
            4 => Some(Self::Bulk),
            _ => None,
        }
    }

    fn length_max(self) -> usize {
        match self {
            Self::Control => CONTROL_BYTES_MAX,
            Self::Head => HEAD_BYTES_MAX,
            Self::HeadMore | Self::Bulk => SEGMENT_BYTES_MAX,
        }
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) end: bool,
    pub(crate) link: LinkId,
    pub(crate) job: u32,
    pub(crate) length: u32,
}

impl RecordHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.code();
        bytes[1] = if self.end { FLAG_END } else { 0 };
        bytes[4..8].copy_from_slice(&self.link.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.job.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Reads a header. It is not verified yet: only what is needed to find the record's end and its key is judged.
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let code = reader.u8("record kind")?;
        let flags = reader.u8("record flags")?;
        let reserved = reader.u16("reserved field")?;
        let link = LinkId(reader.u32("link")?);
        let job = reader.u32("job")?;
        let length = reader.u32("record length")?;
        let unknown = |what, got: u64| CodecError::Unknown { what, got };
        let kind =
            RecordKind::from_code(code).ok_or_else(|| unknown("record kind", code.into()))?;
        if flags & !FLAG_END != 0 {
            return Err(unknown("record flags", flags.into()));
        }
        if reserved != 0 {
            return Err(unknown("reserved field", reserved.into()));
        }
        if (kind == RecordKind::Control) != (link == LinkId::CONTROL) {
            return Err(unknown("link of this record kind", link.0.into()));
        }
        let limit = kind.length_max();
        if length as usize > limit {
            return Err(over("record length", length.into(), limit as u64));
        }
        // An empty segment would carry nothing but cost a record number; no sender has a reason for it.
        if length == 0 {
            return Err(unknown("record length", 0));
        }
        Ok(Self {
            kind,
            end: flags & FLAG_END != 0,
            link,
            job,
            length,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever reads as a header writes back as the same bytes, so no two byte strings mean the same.
        #[test]
        fn headers_have_one_spelling(bytes: [u8; HEADER_BYTES], kind in 0_u8..6, small in 0_u8..3) {
            let mut bytes = bytes;
            if let Ok(header) = RecordHeader::read(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
            bytes[0] = kind;
            bytes[1..4].copy_from_slice(&[small & 1, 0, 0]);
            bytes[12..14].copy_from_slice(&[0, small]);
            if let Ok(header) = RecordHeader::read(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_length_of_the_largest_number_is_refused() {
        let header = RecordHeader {
            kind: RecordKind::Bulk,
            end: false,
            link: LinkId(1),
            job: 0,
            length: u32::MAX,
        };
        let error = RecordHeader::read(&header.encode());
        assert_eq!(
            error,
            Err(over("record length", u64::from(u32::MAX), 256 * 1024))
        );
    }
}
