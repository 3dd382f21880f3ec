//! The envelope of a message: its first record says everything about its size, so that nothing later can surprise.

use crate::codec::{Reader, over};
use crate::error::CodecError;
use crate::limits::Limits;
use crate::message::{Message, MessageKind};

/// The bytes of an envelope without bulk lengths.
const FIXED_BYTES: usize = 2 + 1 + 8 + 8 + 2;

/// What the first record of a message says about the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) handler: u16,
    pub(crate) kind: MessageKind,
    pub(crate) head_bytes: u64,
    pub(crate) bulk_bytes: Vec<u64>,
}

impl Envelope {
    /// What the message takes from its link's credit; saturates, so that absurd lengths stay over every limit.
    pub(crate) fn size(&self) -> u64 {
        self.bulk_bytes.iter().fold(
            Message::OVERHEAD_BYTES.saturating_add(self.head_bytes),
            |sum, &bytes| sum.saturating_add(bytes),
        )
    }

    /// How many bytes the envelope of this message has.
    pub(crate) fn encoded_bytes(message: &Message) -> usize {
        FIXED_BYTES + 8 * message.part_count()
    }

    /// Writes the envelope of a message whose number of parts has been checked.
    pub(crate) fn encode(message: &Message, out: &mut [u8]) {
        let (code, id) = match message.kind {
            MessageKind::Post => (0, 0),
            MessageKind::Request(id) => (1, id),
            MessageKind::Reply(id) => (2, id),
            MessageKind::Failure(id) => (3, id),
        };
        let parts = message.part_count() as u16;
        out[0..2].copy_from_slice(&message.handler.to_be_bytes());
        out[2] = code;
        out[3..11].copy_from_slice(&u64::to_be_bytes(id));
        out[11..19].copy_from_slice(&(message.head.len() as u64).to_be_bytes());
        out[19..21].copy_from_slice(&parts.to_be_bytes());
        let fields = out[FIXED_BYTES..].chunks_exact_mut(8);
        for (length, field) in message.part_lengths().zip(fields) {
            field.copy_from_slice(&length.to_be_bytes());
        }
    }

    /// Reads an envelope and gives the first in-band bytes that follow it.
    pub(crate) fn read<'a>(
        bytes: &'a [u8],
        limits: &Limits,
    ) -> Result<(Self, &'a [u8]), CodecError> {
        let mut reader = Reader::new(bytes);
        let handler = reader.u16("handler")?;
        let code = reader.u8("message kind")?;
        let id = reader.u64("request number")?;
        let head_bytes = reader.u64("head length")?;
        let parts = reader.u16("number of bulk parts")?;
        let kind = match (code, id) {
            (0, 0) => MessageKind::Post,
            (0, _) => {
                return Err(CodecError::Unknown {
                    what: "request number of a post",
                    got: id,
                });
            }
            (1, _) => MessageKind::Request(id),
            (2, _) => MessageKind::Reply(id),
            (3, _) => MessageKind::Failure(id),
            _ => {
                return Err(CodecError::Unknown {
                    what: "message kind",
                    got: code.into(),
                });
            }
        };
        if parts > limits.bulk_parts_max {
            return Err(over(
                "bulk_parts_max",
                parts.into(),
                limits.bulk_parts_max.into(),
            ));
        }
        let lengths = reader.take("bulk lengths", 8 * usize::from(parts))?;
        let (lengths, _) = lengths.as_chunks::<8>();
        let envelope = Self {
            handler,
            kind,
            head_bytes,
            bulk_bytes: lengths
                .iter()
                .map(|&length| u64::from_be_bytes(length))
                .collect(),
        };
        let size = envelope.size() - Message::OVERHEAD_BYTES;
        if size > limits.message_bytes_max {
            return Err(over("message_bytes_max", size, limits.message_bytes_max));
        }
        let head = reader.rest();
        if head.len() as u64 > head_bytes {
            return Err(over(
                "in-band bytes of the first record",
                head.len() as u64,
                head_bytes,
            ));
        }
        Ok((envelope, head))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = MessageKind> {
        prop_oneof![
            Just(MessageKind::Post),
            any::<u64>().prop_map(MessageKind::Request),
            any::<u64>().prop_map(MessageKind::Reply),
            any::<u64>().prop_map(MessageKind::Failure),
        ]
    }

    proptest! {
        #[test]
        fn an_envelope_reads_back(
            handler: u16, kind in kinds(), head in vec(any::<u8>(), 0..50), parts in vec(0_usize..100, 0..20), is_gathered: bool,
        ) {
            let bulk: Vec<Bytes> = parts.iter().map(|&length| Bytes::from(vec![0; length])).collect();
            let message = Message { handler, kind, head: head.into(), bulk, is_gathered };
            let mut bytes = vec![0; Envelope::encoded_bytes(&message)];
            Envelope::encode(&message, &mut bytes);
            bytes.extend_from_slice(&message.head);
            let (envelope, rest) = Envelope::read(&bytes, &Limits::default()).unwrap();
            prop_assert_eq!(envelope.handler, handler);
            prop_assert_eq!(envelope.kind, kind);
            prop_assert_eq!(envelope.size(), message.size());
            prop_assert_eq!(rest, message.head);
            let each: Vec<u64> = parts.iter().map(|&length| length as u64).collect();
            prop_assert_eq!(envelope.bulk_bytes, if is_gathered { vec![each.iter().sum()] } else { each });
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200)) {
            if let Ok((envelope, _)) = Envelope::read(&bytes, &Limits::default()) {
                prop_assert!(envelope.size() <= Limits::default().message_bytes_max + Message::OVERHEAD_BYTES);
            }
        }
    }

    /// Lengths whose sum leaves 64 bits must not come out small.
    #[test]
    fn huge_lengths_do_not_wrap_around() {
        let mut bytes = vec![0, 0, 0];
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&(1_u64 << 63).to_be_bytes());
        bytes.extend_from_slice(&[0, 1]);
        bytes.extend_from_slice(&(1_u64 << 63).to_be_bytes());
        assert!(Envelope::read(&bytes, &Limits::default()).is_err());
    }
}
