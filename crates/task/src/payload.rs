//! Items as they travel: records one behind the other, bulk buffers beside them.
//!
//! A *record* is one item's body with a small head: `varint(length << 3 | data << 2 | exception << 1 | extra)`. `data`
//! says how the body is written ([`Format`]). If `extra` is set, there follow `varint(splices)`, each splice's offset in
//! the body as a varint, and `varint(buffers)`. Each splice and each buffer owns one bulk part, splices first. A splice
//! is where the contents of a large `bytes` object belong in a pickle: the opcode that announces it, length included,
//! stays in the record, so the bulk part can't become code. Data has no splices.
//!
//! A range of items is a slice of such a list, so the manager moves ranges without reading bodies.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::outcome::Origin;

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

/// What the head of one record of a list says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// How its body is written.
    pub(crate) format: Format,
    /// Whether its body is an exception.
    pub(crate) exception: bool,
    /// Where it ends in the list.
    end: u32,
    /// Bulk parts up to its last one.
    parts: u32,
}

/// The heads of a list of records that came from elsewhere.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex(Vec<Entry>);

impl RecordIndex {
    /// Reads the heads anew, of a list that should hold `count` items with `parts` bulk parts.
    ///
    /// # Errors
    /// When the list isn't well-formed or holds another number of them.
    pub(crate) fn read(
        &mut self,
        records: &[u8],
        parts: usize,
        count: u32,
    ) -> Result<(), RecordError> {
        self.0.clear();
        let (mut position, mut seen) = (0, 0_usize);
        // The count is a claim, which the bytes must bear out one by one.
        for _ in 0..count {
            let head = RecordHead::read(records, &mut position)?;
            seen += head.parts();
            self.0.push(Entry {
                format: head.format,
                exception: head.exception,
                end: offset(position)?,
                parts: offset(seen)?,
            });
        }
        if position != records.len() || seen != parts {
            return Err(RecordError(
                "another number of items or bulk parts than it says",
            ));
        }
        Ok(())
    }

    /// Puts the bytes of each item into `sizes`, as its sender has counted them, when its bulk parts have these.
    pub(crate) fn sizes(&self, bulk: impl Iterator<Item = usize>, sizes: &mut Vec<u64>) {
        let mut bulk = bulk.fuse();
        sizes.clear();
        let (mut end, mut parts) = (0, 0);
        for entry in &self.0 {
            let beside = bulk.by_ref().take((entry.parts - parts) as usize);
            let beside: u64 = beside.map(|length| length as u64).sum();
            sizes.push(u64::from(entry.end - end) + beside);
            (end, parts) = (entry.end, entry.parts);
        }
    }

    /// The entries in order.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Where the records of a run of items are in the list.
    pub(crate) fn bytes(&self, run: Range<usize>) -> Range<usize> {
        self.end(run.start)..self.end(run.end)
    }

    /// Which bulk parts a run of items owns.
    pub(crate) fn parts(&self, run: Range<usize>) -> Range<usize> {
        self.parts_end(run.start)..self.parts_end(run.end)
    }

    /// A batch of a run of items, whose records and bulk parts were taken out of the list by [`Self::bytes`] and
    /// [`Self::parts`].
    pub(crate) fn batch(
        &self,
        run: Range<usize>,
        records: Bytes,
        bulk: Vec<Bytes>,
        origin: Arc<Origin>,
    ) -> Batch {
        let (base, parts_base) = (self.end(run.start), self.parts_end(run.start));
        // Differences of what fits a u32.
        let offsets = (run.start..=run.end).map(|item| (self.end(item) - base) as u32);
        let owners = run
            .clone()
            .filter(|item| !self.parts(*item..*item + 1).is_empty());
        let starts = owners.map(|item| {
            let start = self.parts_end(item) - parts_base;
            ((item - run.start) as u32, start as u32)
        });
        let exceptions = run.clone().filter(|item| self.0[*item].exception);
        Batch {
            records,
            offsets: offsets.collect(),
            bulk,
            bulk_starts: starts.collect(),
            exceptions: exceptions.map(|item| (item - run.start) as u32).collect(),
            origin,
        }
    }

    fn end(&self, items: usize) -> usize {
        items
            .checked_sub(1)
            .map_or(0, |last| self.0[last].end as usize)
    }

    fn parts_end(&self, items: usize) -> usize {
        items
            .checked_sub(1)
            .map_or(0, |last| self.0[last].parts as usize)
    }
}

/// Consecutive items of one origin, kept by the manager until their outcomes are known.
#[derive(Debug, Clone)]
pub struct Batch {
    records: Bytes,
    /// Where each record begins, and at last where the last one ends.
    offsets: Vec<u32>,
    bulk: Vec<Bytes>,
    /// For items that own bulk parts: (item, first part), in order.
    bulk_starts: Vec<(u32, u32)>,
    /// Items that are exceptions, in order.
    exceptions: Vec<u32>,
    origin: Arc<Origin>,
}

impl Batch {
    /// Indexes a list of records that came from elsewhere.
    ///
    /// # Errors
    /// When the list isn't well-formed or holds another number of items or bulk parts than it should.
    pub fn parse(
        records: Bytes,
        bulk: Vec<Bytes>,
        count: u32,
        origin: Arc<Origin>,
    ) -> Result<Self, RecordError> {
        let mut index = RecordIndex::default();
        index.read(&records, bulk.len(), count)?;
        Ok(index.batch(0..index.0.len(), records, bulk, origin))
    }

    /// Who made these bytes, and how they may be read.
    #[must_use]
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The items that are exceptions, counted from the batch's own first, in order.
    #[must_use]
    pub fn exceptions(&self) -> &[u32] {
        &self.exceptions
    }

    /// Items in the batch.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.offsets.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The records and bulk parts of items `first .. first + count`, counted from the batch's own first.
    #[must_use]
    pub fn range(&self, first: u32, count: u32) -> (Bytes, &[Bytes]) {
        let end = first + count;
        let records = self
            .records
            .slice(self.offsets[first as usize] as usize..self.offsets[end as usize] as usize);
        (
            records,
            &self.bulk[self.bulk_start(first)..self.bulk_start(end)],
        )
    }

    /// Each item's size in bytes, bulk included.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self
            .offsets
            .windows(2)
            .map(|pair| u64::from(pair[1] - pair[0]))
            .collect();
        for (position, (item, start)) in self.bulk_starts.iter().enumerate() {
            let end = self
                .bulk_starts
                .get(position + 1)
                .map_or(self.bulk.len(), |next| next.1 as usize);
            sizes[*item as usize] += self.bulk[*start as usize..end]
                .iter()
                .map(|part| part.len() as u64)
                .sum::<u64>();
        }
        sizes
    }

    fn bulk_start(&self, item: u32) -> usize {
        let position = self.bulk_starts.partition_point(|(owner, _)| *owner < item);
        self.bulk_starts
            .get(position)
            .map_or(self.bulk.len(), |(_, start)| *start as usize)
    }
}

/// Collects items into a [`Batch`].
#[derive(Debug, Default)]
pub struct BatchBuilder {
    writer: RecordWriter,
    offsets: Vec<u32>,
    bulk_starts: Vec<(u32, u32)>,
    exceptions: Vec<u32>,
}

impl BatchBuilder {
    /// Appends one item, as [`RecordWriter::push`] does.
    pub fn push(&mut self, format: Format, body: &[u8], splices: &[u32], bulk: Vec<Bytes>) {
        // A batch is handed over long before its records reach 4 GiB, bulk parts are not in them.
        self.mark();
        if !bulk.is_empty() {
            let start = u32::try_from(self.writer.bulk.len()).unwrap_or(u32::MAX);
            self.bulk_starts.push((self.writer.count(), start));
        }
        self.writer.push(format, false, body, splices, bulk);
    }

    /// Appends an exception in the place of an item that can't be sent: it is the item's outcome.
    pub fn push_exception(&mut self, format: Format, body: &[u8]) {
        self.mark();
        self.exceptions.push(self.writer.count());
        self.writer.push(format, true, body, &[], []);
    }

    fn mark(&mut self) {
        self.offsets
            .push(u32::try_from(self.writer.position()).unwrap_or(u32::MAX));
    }

    /// Items so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.writer.count()
    }

    /// Bytes so far, bulk included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// The finished batch of what `origin` made; the builder starts anew.
    pub fn take(&mut self, origin: Arc<Origin>) -> Batch {
        let end = u32::try_from(self.writer.position()).unwrap_or(u32::MAX);
        let (_, records, bulk) = self.writer.take();
        let mut offsets = std::mem::take(&mut self.offsets);
        offsets.push(end);
        Batch {
            records,
            offsets,
            bulk,
            bulk_starts: std::mem::take(&mut self.bulk_starts),
            exceptions: std::mem::take(&mut self.exceptions),
            origin,
        }
    }
}

fn offset(position: usize) -> Result<u32, RecordError> {
    u32::try_from(position).map_err(|_| RecordError("more than 4 GiB of records in one message"))
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
