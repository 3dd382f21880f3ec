//! Items as they travel: records one behind the other, bulk buffers beside them.
//!
//! A *record* is one item's body with a small head: `varint(length << 3 | data << 2 | exception << 1 | extra)`. `data`
//! says how the body is written ([`Format`]). If `extra` is set, there follow `varint(splices)`, each splice's offset in
//! the body as a varint, and `varint(buffers)`. Each splice and each buffer owns one bulk part, splices first. A splice
//! is where the contents of a large `bytes` object belong in a pickle: the opcode that announces it, length included,
//! stays in the record, so the bulk part can't become code. Data has no splices.
//!
//! A range of items is a slice of such a list, so the manager moves ranges without reading bodies.

mod batch;

pub use batch::{Batch, BatchBuilder};
pub(crate) use batch::{ListHead, RecordIndex};

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

/// How the body of a record is written, which is how it must be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// A pickle: a program, which only those may run who trust its maker.
    Pickle,
    /// Plain data, which runs nothing.
    #[default]
    Data,
}

/// Splices and buffers of one item at most: a body with more holes than this is put together by its sender.
pub const EXTRA_PARTS_MAX: u64 = 65_536;

/// A record that isn't one.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("got a malformed item record: {0}; the peer's version of exoskel may differ")]
pub struct RecordError(&'static str);

/// One item taken out of a list of records.
#[derive(Debug, Default)]
pub struct Record {
    /// How the body is written.
    pub format: Format,
    /// Whether the body is an exception instead of a value.
    pub exception: bool,
    /// The body, without the contents of its splices.
    pub body: Bytes,
    /// Where in the body the first bulk parts belong.
    pub splices: Vec<u32>,
    /// The bulk parts: those of the splices, then the out-of-band buffers.
    pub bulk: Vec<Vec<u8>>,
}

/// Appends items to a list of records.
#[derive(Debug, Default)]
pub struct RecordWriter {
    records: BytesMut,
    bulk: Vec<Bytes>,
    bulk_bytes: u64,
    count: u32,
}

impl RecordWriter {
    /// Appends one item: its body, the offsets of its splices, and its bulk parts (splices first).
    pub fn push(
        &mut self,
        format: Format,
        exception: bool,
        body: &[u8],
        splices: &[u32],
        bulk: impl IntoIterator<Item = Bytes>,
    ) {
        let bulk_before = self.bulk.len();
        for part in bulk {
            self.bulk_bytes += part.len() as u64;
            self.bulk.push(part);
        }
        let parts = self.bulk.len() - bulk_before;
        let head = (body.len() as u64) << 3
            | u64::from(format == Format::Data) << 2
            | u64::from(exception) << 1
            | u64::from(parts != 0);
        put_varint(&mut self.records, head);
        if parts != 0 {
            put_varint(&mut self.records, splices.len() as u64);
            for splice in splices {
                put_varint(&mut self.records, u64::from(*splice));
            }
            put_varint(&mut self.records, (parts - splices.len()) as u64);
        }
        self.records.put_slice(body);
        self.count += 1;
    }

    /// Moves all that `other` holds to the end of this one.
    pub fn append(&mut self, other: &mut Self) {
        self.records.put_slice(&other.records);
        self.bulk.append(&mut other.bulk);
        self.bulk_bytes += std::mem::take(&mut other.bulk_bytes);
        self.count += std::mem::take(&mut other.count);
        other.records.clear();
    }

    /// Items so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes so far, bulk included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records.len() as u64 + self.bulk_bytes
    }

    /// Length of the records alone: where the next one begins.
    #[must_use]
    pub fn position(&self) -> usize {
        self.records.len()
    }

    /// Takes what was written and starts anew.
    pub fn take(&mut self) -> (u32, Bytes, Vec<Bytes>) {
        let count = std::mem::take(&mut self.count);
        self.bulk_bytes = 0;
        (
            count,
            self.records.split().freeze(),
            std::mem::take(&mut self.bulk),
        )
    }
}

/// Walks over a list of records.
#[derive(Debug, Default)]
pub struct RecordReader {
    records: Bytes,
    position: usize,
    bulk: std::vec::IntoIter<Vec<u8>>,
}

impl RecordReader {
    /// A walk over `records`, whose bulk parts are `bulk` in order.
    #[must_use]
    pub fn new(records: Bytes, bulk: Vec<Vec<u8>>) -> Self {
        Self {
            records,
            position: 0,
            bulk: bulk.into_iter(),
        }
    }

    /// The next record, or none at the end.
    ///
    /// # Errors
    /// When the bytes are not a record.
    pub fn next_record(&mut self) -> Result<Option<Record>, RecordError> {
        if self.position >= self.records.len() {
            return Ok(None);
        }
        let head = RecordHead::read(&self.records, &mut self.position)?;
        let body = self.records.slice(head.body.clone());
        let mut bulk = Vec::with_capacity(head.parts());
        for _ in 0..head.parts() {
            bulk.push(
                self.bulk
                    .next()
                    .ok_or(RecordError("fewer bulk parts than it says"))?,
            );
        }
        Ok(Some(Record {
            format: head.format,
            exception: head.exception,
            body,
            splices: head.splices,
            bulk,
        }))
    }

    /// The head of a list of records: how many follow, how what is made of it must be written, and whether the first of them is no part; none at
    /// the end.
    ///
    /// # Errors
    /// When the bytes are no such head.
    pub fn next_list(&mut self) -> Result<Option<(u64, Format, bool)>, RecordError> {
        if self.position >= self.records.len() {
            return Ok(None);
        }
        let head = get_varint(&self.records, &mut self.position)?;
        let format = match head & 2 {
            0 => Format::Pickle,
            _ => Format::Data,
        };
        Ok(Some((head >> 2, format, head & 1 != 0)))
    }

    /// The next record's body when it is a value without bulk parts: the fast way for small items.
    pub fn next_small(&mut self) -> Option<(Format, &[u8])> {
        let mut position = self.position;
        let head = get_varint(&self.records, &mut position).ok()?;
        if head & 3 != 0 {
            return None;
        }
        let end = position.checked_add(usize::try_from(head >> 3).ok()?)?;
        let body = self.records.get(position..end)?;
        self.position = end;
        Some((format_of(head), body))
    }

    /// Where the next record begins.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Goes back to an earlier [`RecordReader::position`], as long as no record with bulk parts lies between.
    pub fn rewind(&mut self, position: usize) {
        self.position = position;
    }

    /// Whether all records have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.position >= self.records.len()
    }
}

struct RecordHead {
    format: Format,
    exception: bool,
    splices: Vec<u32>,
    buffers: u64,
    body: Range<usize>,
}

impl RecordHead {
    fn parts(&self) -> usize {
        // Both are at most EXTRA_PARTS_MAX: checked when read.
        self.splices.len() + usize::try_from(self.buffers).unwrap_or(usize::MAX)
    }

    /// Reads a head at `position` and moves it behind the record.
    fn read(records: &[u8], position: &mut usize) -> Result<Self, RecordError> {
        let head = get_varint(records, position)?;
        let mut splices = Vec::new();
        let mut buffers = 0;
        let length =
            usize::try_from(head >> 3).map_err(|_| RecordError("a length that fits no machine"))?;
        if head & 1 != 0 {
            let count = get_varint(records, position)?;
            if count > EXTRA_PARTS_MAX {
                return Err(RecordError("more splices than the limit"));
            }
            if count > 0 && format_of(head) == Format::Data {
                return Err(RecordError("a splice in plain data"));
            }
            for _ in 0..count {
                let offset = u32::try_from(get_varint(records, position)?);
                let offset = offset.map_err(|_| RecordError("a splice outside its body"))?;
                if offset as usize > length || splices.last().is_some_and(|last| *last > offset) {
                    return Err(RecordError("a splice outside its body"));
                }
                splices.push(offset);
            }
            buffers = get_varint(records, position)?;
            if buffers > EXTRA_PARTS_MAX {
                return Err(RecordError("more buffers than the limit"));
            }
        }
        let end = position
            .checked_add(length)
            .filter(|end| *end <= records.len());
        let end = end.ok_or(RecordError("a body longer than the message"))?;
        let body = *position..end;
        *position = end;
        Ok(Self {
            format: format_of(head),
            exception: head & 2 != 0,
            splices,
            buffers,
            body,
        })
    }
}

fn format_of(head: u64) -> Format {
    if head & 4 == 0 {
        Format::Pickle
    } else {
        Format::Data
    }
}

/// Appends `value` in groups of seven bits, the lowest first (LEB128).
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        // The mask leaves seven bits.
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads what [`put_varint`] wrote.
///
/// # Errors
/// When the bytes end too soon or hold more than 64 bits.
pub fn get_varint(bytes: &[u8], position: &mut usize) -> Result<u64, RecordError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes
            .get(*position)
            .ok_or(RecordError("it ends too soon"))?;
        *position += 1;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && low > 1 {
            break;
        }
        value |= low << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(RecordError("a number of more than 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Origin;
    use proptest::prelude::*;

    type Item = (Vec<u8>, Vec<Vec<u8>>);

    fn items() -> impl Strategy<Value = Vec<Item>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        proptest::collection::vec((bytes(), proptest::collection::vec(bytes(), 0..3)), 1..30)
    }

    proptest! {
        /// Any range of any batch reads back as exactly its items.
        #[test]
        fn ranges_read_back(items in items(), cut in any::<(u16, u16)>()) {
            let mut builder = BatchBuilder::default();
            for (body, bulk) in &items {
                builder.push(Format::Pickle, body, &[], bulk.iter().cloned().map(Bytes::from).collect());
            }
            let batch = builder.take(Origin::user());
            let count = items.len();
            let first = cut.0 as usize % count;
            let length = cut.1 as usize % (count - first + 1);
            let (records, bulk) = batch.range(first as u32, length as u32);
            let parsed = Batch::parse(records.clone(), bulk.to_vec(), length as u32, Origin::user()).unwrap();
            prop_assert_eq!(&parsed.sizes(), &batch.sizes()[first..first + length]);
            let mut reader = RecordReader::new(records, bulk.iter().map(|part| part.to_vec()).collect());
            for (body, bulk) in &items[first..first + length] {
                let record = reader.next_record().unwrap().unwrap();
                prop_assert_eq!(&record.body[..], &body[..]);
                prop_assert_eq!(&record.bulk, bulk);
            }
            prop_assert!(reader.next_record().unwrap().is_none());
        }

        /// Aim: two builders joined make the batch that one would have made. Method: cut a list anywhere, an exception here and there.
        #[test]
        fn joined_builders_are_one(items in items(), cut in any::<u16>(), exception in any::<u16>()) {
            let cut = cut as usize % (items.len() + 1);
            let exception = exception as usize % items.len();
            let build = |builder: &mut BatchBuilder, numbers: Range<usize>| {
                for number in numbers {
                    let (body, bulk) = &items[number];
                    let bulk = bulk.iter().cloned().map(Bytes::from).collect();
                    match number == exception {
                        true => builder.push_exception(Format::Pickle, body),
                        false => builder.push(Format::Pickle, body, &[], bulk),
                    }
                }
            };
            let (mut whole, mut first, mut second) = Default::default();
            build(&mut whole, 0..items.len());
            build(&mut first, 0..cut);
            build(&mut second, cut..items.len());
            first.append(&mut second);
            prop_assert_eq!(second.count(), 0);
            prop_assert_eq!(first.bytes(), whole.bytes());
            let (joined, whole) = (first.take(Origin::user()), whole.take(Origin::user()));
            prop_assert_eq!(joined.exceptions(), whole.exceptions());
            prop_assert_eq!(joined.sizes(), whole.sizes());
            for item in 0..whole.count() {
                prop_assert_eq!(joined.range(item, 1), whole.range(item, 1));
            }
        }

        /// Arbitrary bytes never panic.
        #[test]
        fn garbage_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0_u32..5) {
            let _ = Batch::parse(Bytes::from(bytes.clone()), Vec::new(), count, Origin::user());
            let mut reader = RecordReader::new(Bytes::from(bytes), Vec::new());
            while let Ok(Some(_)) = reader.next_record() {}
        }
    }

    /// Aim: a record says how it is written, and data with splices is none. Method: one of each kind, then a splice.
    #[test]
    fn each_record_says_how_it_is_written() {
        let mut writer = RecordWriter::default();
        writer.push(Format::Pickle, false, b"pickle", &[], []);
        writer.push(Format::Data, false, b"data", &[], []);
        writer.push(Format::Data, true, b"raised", &[], []);
        writer.push(
            Format::Data,
            false,
            b"array",
            &[],
            [Bytes::from_static(b"cells")],
        );
        let (count, records, _) = writer.take();
        let mut reader = RecordReader::new(records, vec![b"cells".to_vec()]);
        assert_eq!(reader.next_small(), Some((Format::Pickle, &b"pickle"[..])));
        assert_eq!(reader.next_small(), Some((Format::Data, &b"data"[..])));
        assert_eq!(reader.next_small(), None, "an exception");
        let raised = reader.next_record().unwrap().unwrap();
        assert_eq!((raised.format, raised.exception), (Format::Data, true));
        let array = reader.next_record().unwrap().unwrap();
        assert_eq!((array.format, array.exception), (Format::Data, false));
        assert_eq!(
            (&array.body[..], array.bulk),
            (&b"array"[..], vec![b"cells".to_vec()])
        );
        assert_eq!(count, 4);
        writer.push(
            Format::Data,
            false,
            b"data",
            &[2],
            [Bytes::from_static(b"spliced")],
        );
        let (_, records, bulk) = writer.take();
        let refused = Batch::parse(records, bulk, 1, Origin::user()).map(|batch| batch.count());
        assert_eq!(refused, Err(RecordError("a splice in plain data")));
    }
}
