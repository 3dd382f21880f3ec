//! Contents that are compressed before they are sealed, and expanded by whoever handles them.
//!
//! A compressed text is as long as it has surprises. Who can choose a part of it and sees its length learns the rest: so nothing that
//! is encrypted is compressed unless its program says that it may be.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;
use exoskel_link::{LinkId, Protection};
use exoskel_node::SessionId;
use exoskel_node::links::{BindingId, LinkCall, MARK, MessageContents};
use thiserror::Error;

use super::{LinkNode, LinkShared, lock};

/// Parts below this are sent as they are.
const PART_BYTES_MIN: usize = 4096;

/// Heads above that go as they are, and none is expanded to more: arrays travel in other parts.
const HEAD_BYTES_MAX: u64 = 16 << 20;

/// The fastest level: links are faster than the others.
const LEVEL: i32 = 1;

/// What follows the mark in the head of compressed contents.
const OPERATION: u8 = b'z';

/// Bytes in front of the list of parts: mark, operation, and their number.
const FRONT_BYTES: usize = 4;

/// Of each part: whether it is compressed, and its bytes.
const ENTRY_BYTES: usize = 9;

/// Whether what an end sends is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    #[default]
    Never,
    /// On links that aren't encrypted.
    UnlessEncrypted,
    /// On all links. Who sees the length of what is sent may learn something of it.
    EvenEncrypted,
}

/// Whether a receiver takes a head and bulk parts that were compressed to so many bytes.
pub type ExpansionCheck = fn(&[u8], &[Bytes], u64) -> bool;

/// Contents of a call or an answer as they were before they were compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandedContents {
    /// The in-band bytes.
    pub head: Bytes,
    /// The out-of-band buffers.
    pub bulk: Vec<Vec<u8>>,
    /// How many bytes have come, if they were compressed: what they hold is to be held against these.
    pub compressed_bytes: Option<u64>,
}

/// Why contents can't be expanded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExpansionError {
    /// They are larger than what is taken.
    #[error("got contents of {got} bytes when expanded, expected at most {expected}")]
    TooLarge {
        /// As they say.
        got: u64,
        /// What is taken.
        expected: u64,
    },
    /// Their head is larger than what is taken.
    #[error(
        "got a head of {got} bytes when expanded, expected at most {HEAD_BYTES_MAX}: send it without compression, or arrays in it"
    )]
    HeadTooLarge {
        /// As it says.
        got: u64,
    },
    /// They aren't what they say.
    #[error("got compressed contents that are damaged: {0}")]
    Damaged(&'static str),
}

/// What is compressed, by endpoint and by binding.
#[derive(Default)]
pub(super) struct Compressions {
    endpoints: Mutex<BTreeMap<String, CompressionUse>>,
    bindings: Mutex<BTreeMap<BindingId, CompressionUse>>,
}

/// When contents are compressed, and by whose word they aren't after all.
#[derive(Clone, Copy)]
struct CompressionUse {
    compression: Compression,
    check: ExpansionCheck,
}

impl LinkNode {
    /// Has the answers of an endpoint compressed, but for those that the check is against.
    pub fn compress_endpoint(
        &self,
        endpoint: &str,
        compression: Compression,
        check: ExpansionCheck,
    ) {
        let mut endpoints = lock(&self.shared.compressions.endpoints);
        endpoints.insert(endpoint.to_owned(), CompressionUse { compression, check });
    }

    /// The contents of a call or an answer as they were before they were compressed, if they were.
    ///
    /// # Errors
    /// [`ExpansionError`], also for what is larger than the messages that this node takes.
    pub fn expanded(
        &self,
        head: Bytes,
        bulk: Vec<Vec<u8>>,
    ) -> Result<ExpandedContents, ExpansionError> {
        let bytes_max = lock(&self.shared.terms).limits.message_bytes_max;
        expand(head, bulk, bytes_max)
    }

    /// Has the requests and posts of a binding compressed, once its link is open, but for those that the check is against.
    pub fn compress_binding(&self, id: BindingId, compression: Compression, check: ExpansionCheck) {
        let mut bindings = lock(&self.shared.compressions.bindings);
        bindings.insert(id, CompressionUse { compression, check });
    }
}

impl LinkShared {
    pub(super) fn compressed_answer(
        &self,
        call: &LinkCall,
        contents: MessageContents,
    ) -> MessageContents {
        let endpoints = lock(&self.compressions.endpoints);
        let Some(wanted) = endpoints.get(&call.endpoint).copied() else {
            return contents;
        };
        drop(endpoints);
        let place = lock(&self.machine).place_of(call.accepted);
        self.compressed(wanted, place, contents)
    }

    pub(super) fn compressed_call(
        &self,
        id: BindingId,
        contents: MessageContents,
    ) -> MessageContents {
        let bindings = lock(&self.compressions.bindings);
        let Some(wanted) = bindings.get(&id).copied() else {
            return contents;
        };
        drop(bindings);
        let place = lock(&self.machine).session_of(id);
        self.compressed(wanted, place, contents)
    }

    pub(super) fn forget_compression(&self, id: BindingId) {
        lock(&self.compressions.bindings).remove(&id);
    }

    fn compressed(
        &self,
        wanted: CompressionUse,
        place: Option<(SessionId, LinkId)>,
        contents: MessageContents,
    ) -> MessageContents {
        let compression = wanted.compression;
        if compression == Compression::Never {
            return contents;
        }
        // What waits for its link goes as it is, unless it may be compressed anyhow: nobody knows yet how it will be protected.
        let protection = place.and_then(|(session, link)| {
            let live = self.live(session)?;
            live.connection
                .with(|session| session.link_protection(link))
        });
        match (compression, protection) {
            (Compression::UnlessEncrypted, None | Some(Protection::Encrypted)) => contents,
            _ => compress(contents, wanted.check),
        }
    }
}

/// Whether a head is that of compressed contents.
pub(super) fn is_compressed(head: &[u8]) -> bool {
    head.starts_with(&[MARK, OPERATION])
}

/// Compresses the parts that become smaller by it. Contents of which no part does stay as they are, and so do those that a receiver
/// doesn't take from so few bytes.
fn compress(contents: MessageContents, check: ExpansionCheck) -> MessageContents {
    let MessageContents {
        head,
        bulk,
        is_gathered,
    } = contents;
    let bulk = match is_gathered {
        true => vec![bulk.concat().into()],
        false => bulk,
    };
    let is_head_long = head.len() as u64 > HEAD_BYTES_MAX;
    let smaller = |part: &Bytes| {
        if part.len() < PART_BYTES_MIN {
            return None;
        }
        // What can't be compressed goes as it is.
        let compressed = zstd::bulk::compress(part, LEVEL).ok()?;
        (compressed.len() < part.len() - part.len() / 8).then(|| Bytes::from(compressed))
    };
    let smaller_head = if is_head_long { None } else { smaller(&head) };
    let smaller_bulk: Vec<Option<Bytes>> = bulk.iter().map(smaller).collect();
    if smaller_head.is_none() && smaller_bulk.iter().all(Option::is_none) {
        return MessageContents {
            head,
            bulk,
            is_gathered: false,
        };
    }
    let mut front = vec![MARK, OPERATION];
    front.extend(((bulk.len() + 1) as u16).to_be_bytes());
    let parts = std::iter::once((&smaller_head, &head)).chain(smaller_bulk.iter().zip(&bulk));
    for (smaller, part) in parts {
        front.push(u8::from(smaller.is_some()));
        front.extend((part.len() as u64).to_be_bytes());
    }
    front.extend(smaller_head.as_ref().unwrap_or(&head));
    let parts = smaller_bulk.into_iter().zip(&bulk);
    let sent = MessageContents {
        head: front.into(),
        bulk: parts
            .map(|(smaller, part)| smaller.unwrap_or_else(|| part.clone()))
            .collect(),
        is_gathered: false,
    };
    if check(&head, &bulk, bytes_of(&sent.head, &sent.bulk)) {
        sent
    } else {
        MessageContents {
            head,
            bulk,
            is_gathered: false,
        }
    }
}

/// What contents have in bytes, as both ends count them.
fn bytes_of<Part: AsRef<[u8]>>(head: &[u8], bulk: &[Part]) -> u64 {
    let bulk: u64 = bulk.iter().map(|part| part.as_ref().len() as u64).sum();
    head.len() as u64 + bulk
}

/// Contents as they were before they were compressed, if they were.
///
/// # Errors
/// [`ExpansionError`]. Nothing larger than what is taken is made, whatever the contents say.
fn expand(
    head: Bytes,
    bulk: Vec<Vec<u8>>,
    bytes_max: u64,
) -> Result<ExpandedContents, ExpansionError> {
    if !is_compressed(&head) {
        return Ok(ExpandedContents {
            head,
            bulk,
            compressed_bytes: None,
        });
    }
    let compressed_bytes = Some(bytes_of(&head, &bulk));
    let damaged = ExpansionError::Damaged;
    let count = head
        .get(2..FRONT_BYTES)
        .and_then(|count| count.try_into().ok());
    let count = usize::from(count.map_or(0, u16::from_be_bytes));
    if count != bulk.len() + 1 {
        return Err(damaged("they have another number of parts than they say"));
    }
    let (entries, first) = head[FRONT_BYTES..]
        .split_at_checked(ENTRY_BYTES * count)
        .ok_or_else(|| damaged("their list of parts is cut off"))?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    debug_assert!(rest.is_empty());
    let mut lengths = Vec::with_capacity(count);
    for &[flag, ref length @ ..] in entries {
        lengths.push((flag, u64::from_be_bytes(*length)));
    }
    let got = lengths
        .iter()
        .fold(0_u64, |sum, (_, length)| sum.saturating_add(*length));
    if got > bytes_max {
        return Err(ExpansionError::TooLarge {
            got,
            expected: bytes_max,
        });
    }
    if let (1, got) = lengths[0]
        && got > HEAD_BYTES_MAX
    {
        return Err(ExpansionError::HeadTooLarge { got });
    }
    let expanded = |part: &[u8], (flag, length): (u8, u64)| {
        let length = length as usize;
        let bytes = match flag {
            0 => part.to_vec(),
            1 => zstd::bulk::decompress(part, length)
                .map_err(|_| damaged("a part is none of zstd, or larger than it says"))?,
            _ => return Err(damaged("a part is compressed in an unknown way")),
        };
        if bytes.len() != length {
            return Err(damaged("a part has other bytes than it says"));
        }
        Ok(bytes)
    };
    let head = expanded(first, lengths[0])?;
    let mut parts = Vec::with_capacity(bulk.len());
    for (part, entry) in bulk.into_iter().zip(lengths[1..].iter().copied()) {
        parts.push(match entry {
            (0, length) if part.len() as u64 == length => part,
            entry => expanded(&part, entry)?,
        });
    }
    Ok(ExpandedContents {
        head: head.into(),
        bulk: parts,
        compressed_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(contents: &MessageContents) -> (Bytes, Vec<Vec<u8>>) {
        let bulk = contents.bulk.iter().map(|part| part.to_vec()).collect();
        (contents.head.clone(), bulk)
    }

    /// What is expanded of what was sent is what was there.
    fn expanded(sent: &MessageContents, contents: &MessageContents) {
        let (head, bulk) = received(sent);
        let compressed_bytes = Some(bytes_of(&head, &bulk));
        let got = expand(head, bulk, 1 << 30);
        let (head, bulk) = received(contents);
        let expected = ExpandedContents {
            head,
            bulk,
            compressed_bytes,
        };
        assert_eq!(got, Ok(expected));
    }

    fn noise(count: usize) -> Bytes {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn contents_come_back_and_only_what_becomes_smaller_is_compressed() {
        let zeros = Bytes::from(vec![0; 100_000]);
        let contents = MessageContents {
            head: Bytes::from_static(b"\x80"),
            bulk: vec![
                zeros.clone(),
                noise(50_000),
                Bytes::from_static(b"small"),
                Bytes::new(),
            ],
            is_gathered: false,
        };
        let sent = compress(contents.clone(), |_, _, _| true);
        assert!(is_compressed(&sent.head) && sent.bulk[0].len() < 1000);
        assert_eq!(sent.bulk[1..], contents.bulk[1..]);
        expanded(&sent, &contents);

        let head_only = MessageContents {
            head: zeros,
            bulk: vec![],
            is_gathered: false,
        };
        expanded(&compress(head_only.clone(), |_, _, _| true), &head_only);

        let as_it_is = MessageContents {
            head: noise(5000),
            bulk: vec![noise(50_000)],
            is_gathered: false,
        };
        assert_eq!(compress(as_it_is.clone(), |_, _, _| true), as_it_is);
    }

    #[test]
    fn what_a_receiver_does_not_take_from_so_few_bytes_goes_as_it_is() {
        let contents = MessageContents {
            head: Bytes::from(vec![0x80; 100_000]),
            bulk: vec![Bytes::from(vec![0; 100_000])],
            is_gathered: false,
        };
        assert_eq!(
            compress(contents.clone(), |head, bulk, sent| {
                assert_eq!((head.len(), bulk[0].len()), (100_000, 100_000));
                assert!(sent < 1000);
                false
            }),
            contents
        );
    }

    #[test]
    fn long_heads_are_neither_compressed_nor_expanded() {
        let contents = |head_bytes: u64| MessageContents {
            head: Bytes::from(vec![0x80; head_bytes as usize]),
            bulk: vec![Bytes::from(vec![0; 100_000])],
            is_gathered: false,
        };
        let longest = contents(HEAD_BYTES_MAX);
        let sent = compress(longest.clone(), |_, _, _| true);
        assert!(sent.head.len() < 10_000);
        expanded(&sent, &longest);
        let too_long = contents(HEAD_BYTES_MAX + 1);
        let sent = compress(too_long.clone(), |_, _, _| true);
        assert!(sent.head.len() as u64 > HEAD_BYTES_MAX && sent.bulk[0].len() < 1000);
        expanded(&sent, &too_long);

        // A sender that does it all the same.
        let mut head = vec![MARK, OPERATION, 0, 1, 1];
        head.extend((HEAD_BYTES_MAX + 1).to_be_bytes());
        head.extend(zstd::bulk::compress(&too_long.head, LEVEL).unwrap());
        assert!(head.len() < 2000);
        assert_eq!(
            expand(head.into(), Vec::new(), 1 << 30),
            Err(ExpansionError::HeadTooLarge {
                got: HEAD_BYTES_MAX + 1
            })
        );
    }

    #[test]
    fn bombs_and_damaged_contents_are_refused() {
        let contents = MessageContents {
            head: Bytes::from_static(b"\x80"),
            bulk: vec![Bytes::from(vec![0; 10_000_000])],
            is_gathered: false,
        };
        let (head, bulk) = received(&compress(contents, |_, _, _| true));
        assert!(head.len() + bulk[0].len() < 2000);
        assert_eq!(
            expand(head.clone(), bulk.clone(), 1 << 20),
            Err(ExpansionError::TooLarge {
                got: 10_000_001,
                expected: 1 << 20
            })
        );
        let changed = |place: usize, bytes: &[u8]| {
            let mut head = head.to_vec();
            head[place..place + bytes.len()].copy_from_slice(bytes);
            expand(head.into(), bulk.clone(), 1 << 20)
        };
        let length = FRONT_BYTES + ENTRY_BYTES + 1;
        // It says less than it becomes.
        assert!(matches!(
            changed(length, &1000_u64.to_be_bytes()),
            Err(ExpansionError::Damaged(_))
        ));
        assert!(matches!(
            changed(length, &u64::MAX.to_be_bytes()),
            Err(ExpansionError::TooLarge { .. })
        ));
        assert!(matches!(
            changed(2, &[0, 9]),
            Err(ExpansionError::Damaged(_))
        ));
        assert!(changed(length - 1, &[7]).is_err());
        for cut in 2..head.len() {
            let cut = expand(head.slice(..cut), bulk.clone(), 1 << 30);
            assert!(matches!(cut, Err(ExpansionError::Damaged(_))));
        }
        let other = expand(head, vec![b"no zstd".to_vec()], 1 << 30);
        assert!(matches!(other, Err(ExpansionError::Damaged(_))));
    }
}
