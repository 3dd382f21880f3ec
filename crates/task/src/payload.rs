//! Items as they travel: records one behind the other, bulk buffers beside them.
//!
//! A *record* is one item's pickle with a small head: `varint(length << 2 | exception << 1 | extra)`, and if `extra`
//! is set `varint(splices)`, each splice's offset in the pickle as a varint, `varint(buffers)`. Each splice and each
//! buffer owns one bulk part, splices first. A splice is where the contents of a large `bytes` object belong in the
//! pickle: the opcode that announces it, length included, stays in the record, so the bulk part can't become code.
//!
//! A range of items is a slice of such a list, so the manager moves ranges without looking at items.

use bytes::{BufMut, Bytes, BytesMut};

/// Splices and buffers of one item at most: a pickle with more holes than this is put together by its sender.
pub const EXTRA_PARTS_MAX: u64 = 65_536;

/// A record that isn't one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("got a malformed item record: {0}; the peer's version of exoskel may differ")]
pub struct RecordError(&'static str);

/// One item taken out of a list of records.
#[derive(Debug, Default)]
pub struct Record {
    /// Whether the pickle holds an exception instead of a value.
    pub exception: bool,
    /// The pickle, without the contents of its splices.
    pub pickle: Bytes,
    /// Where in the pickle the first bulk parts belong.
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
    /// Appends one item: its pickle, the offsets of its splices, and its bulk parts (splices first).
    pub fn push(
        &mut self,
        exception: bool,
        pickle: &[u8],
        splices: &[u32],
        bulk: impl IntoIterator<Item = Bytes>,
    ) {
        let bulk_before = self.bulk.len();
        for part in bulk {
            self.bulk_bytes += part.len() as u64;
            self.bulk.push(part);
        }
        let parts = self.bulk.len() - bulk_before;
        let head = (pickle.len() as u64) << 2 | u64::from(exception) << 1 | u64::from(parts != 0);
        put_varint(&mut self.records, head);
        if parts != 0 {
            put_varint(&mut self.records, splices.len() as u64);
            for splice in splices {
                put_varint(&mut self.records, u64::from(*splice));
            }
            put_varint(&mut self.records, (parts - splices.len()) as u64);
        }
        self.records.put_slice(pickle);
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
        let pickle = self.records.slice(head.pickle.clone());
        let mut bulk = Vec::with_capacity(head.parts());
        for _ in 0..head.parts() {
            bulk.push(
                self.bulk
                    .next()
                    .ok_or(RecordError("fewer bulk parts than it says"))?,
            );
        }
        Ok(Some(Record {
            exception: head.exception,
            pickle,
            splices: head.splices,
            bulk,
        }))
    }

    /// The next record's pickle when it is a plain value without bulk parts: the fast way for small items.
    pub fn next_small(&mut self) -> Option<&[u8]> {
        let mut position = self.position;
        let head = get_varint(&self.records, &mut position).ok()?;
        if head & 3 != 0 {
            return None;
        }
        let end = position.checked_add(usize::try_from(head >> 2).ok()?)?;
        let pickle = self.records.get(position..end)?;
        self.position = end;
        Some(pickle)
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
    exception: bool,
    splices: Vec<u32>,
    buffers: u64,
    pickle: std::ops::Range<usize>,
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
            usize::try_from(head >> 2).map_err(|_| RecordError("a length that fits no machine"))?;
        if head & 1 != 0 {
            let count = get_varint(records, position)?;
            if count > EXTRA_PARTS_MAX {
                return Err(RecordError("more splices than the limit"));
            }
            for _ in 0..count {
                let offset = u32::try_from(get_varint(records, position)?);
                let offset = offset.map_err(|_| RecordError("a splice outside its pickle"))?;
                if offset as usize > length || splices.last().is_some_and(|last| *last > offset) {
                    return Err(RecordError("a splice outside its pickle"));
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
        let end = end.ok_or(RecordError("a pickle longer than the message"))?;
        let pickle = *position..end;
        *position = end;
        Ok(Self {
            exception: head & 2 != 0,
            splices,
            buffers,
            pickle,
        })
    }
}

/// Whether a list of records that came from elsewhere holds so many items and bulk parts.
///
/// # Errors
/// When it isn't well-formed or holds another number of them.
pub fn check_records(records: &[u8], parts: usize, count: u32) -> Result<(), RecordError> {
    let (mut position, mut seen) = (0, 0_usize);
    for _ in 0..count {
        seen += RecordHead::read(records, &mut position)?.parts();
    }
    if position != records.len() || seen != parts {
        return Err(RecordError(
            "another number of items or bulk parts than it says",
        ));
    }
    Ok(())
}

/// Consecutive items kept by the manager until their outcomes are known.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    records: Bytes,
    /// Where each record begins, and at last where the last one ends.
    offsets: Vec<u32>,
    bulk: Vec<Bytes>,
    /// For items that own bulk parts: (item, first part), in order.
    bulk_starts: Vec<(u32, u32)>,
    /// Whether somebody outside the trusted domains made these bytes.
    pub restricted: bool,
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
        restricted: bool,
    ) -> Result<Self, RecordError> {
        // The count is a claim; each record has at least one byte.
        let mut offsets = Vec::with_capacity((count as usize).min(records.len()) + 1);
        let mut bulk_starts = Vec::new();
        let mut parts = 0_usize;
        let mut position = 0;
        for item in 0..count {
            offsets.push(offset(position)?);
            let head = RecordHead::read(&records, &mut position)?;
            if head.parts() != 0 {
                bulk_starts.push((item, offset(parts)?));
                parts += head.parts();
            }
        }
        if position != records.len() || parts != bulk.len() {
            return Err(RecordError(
                "another number of items or bulk parts than it says",
            ));
        }
        offsets.push(offset(position)?);
        Ok(Self {
            records,
            offsets,
            bulk,
            bulk_starts,
            restricted,
        })
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

    /// A batch of `count` of these items, from `first` on, both within the batch.
    #[must_use]
    pub fn part(&self, first: u64, count: u64) -> Self {
        // Both are within a batch, whose count is a u32.
        let (first, count) = (first as u32, count as u32);
        let (records, bulk) = self.range(first, count);
        let base = self.offsets[first as usize];
        let bulk_base = self.bulk_start(first) as u32;
        Self {
            records,
            offsets: self.offsets[first as usize..=(first + count) as usize]
                .iter()
                .map(|offset| offset - base)
                .collect(),
            bulk: bulk.to_vec(),
            bulk_starts: self
                .bulk_starts
                .iter()
                .filter(|(item, _)| (first..first + count).contains(item))
                .map(|(item, start)| (item - first, start - bulk_base))
                .collect(),
            restricted: self.restricted,
        }
    }

    /// A walk over all items.
    #[must_use]
    pub fn into_reader(self) -> RecordReader {
        RecordReader::new(self.records, self.bulk.into_iter().map(Vec::from).collect())
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
}

impl BatchBuilder {
    /// Appends one item, as [`RecordWriter::push`] does.
    pub fn push(&mut self, pickle: &[u8], splices: &[u32], bulk: Vec<Bytes>) {
        // A batch is handed over long before its records reach 4 GiB, bulk parts are not in them.
        self.mark();
        if !bulk.is_empty() {
            let start = u32::try_from(self.writer.bulk.len()).unwrap_or(u32::MAX);
            self.bulk_starts.push((self.writer.count(), start));
        }
        self.writer.push(false, pickle, splices, bulk);
    }

    /// Appends an exception in the place of an item that could not be sent: it goes through the program unopened and
    /// is the item's outcome.
    pub fn push_exception(&mut self, pickle: &[u8]) {
        self.mark();
        self.writer.push(true, pickle, &[], []);
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

    /// The finished batch; the builder starts anew.
    pub fn take(&mut self) -> Batch {
        let end = u32::try_from(self.writer.position()).unwrap_or(u32::MAX);
        let (_, records, bulk) = self.writer.take();
        let mut offsets = std::mem::take(&mut self.offsets);
        offsets.push(end);
        Batch {
            records,
            offsets,
            bulk,
            bulk_starts: std::mem::take(&mut self.bulk_starts),
            restricted: false,
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
            for (pickle, bulk) in &items {
                builder.push(pickle, &[], bulk.iter().cloned().map(Bytes::from).collect());
            }
            let batch = builder.take();
            let count = items.len();
            let first = cut.0 as usize % count;
            let length = cut.1 as usize % (count - first + 1);
            let (records, bulk) = batch.range(first as u32, length as u32);
            let parsed = Batch::parse(records.clone(), bulk.to_vec(), length as u32, false).unwrap();
            prop_assert_eq!(&parsed.sizes(), &batch.sizes()[first..first + length]);
            let mut reader = RecordReader::new(records, bulk.iter().map(|part| part.to_vec()).collect());
            for (pickle, bulk) in &items[first..first + length] {
                let record = reader.next_record().unwrap().unwrap();
                prop_assert_eq!(&record.pickle[..], &pickle[..]);
                prop_assert_eq!(&record.bulk, bulk);
            }
            prop_assert!(reader.next_record().unwrap().is_none());
        }

        /// Arbitrary bytes never panic.
        #[test]
        fn garbage_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0_u32..5) {
            let _ = Batch::parse(Bytes::from(bytes.clone()), Vec::new(), count, false);
            let mut reader = RecordReader::new(Bytes::from(bytes), Vec::new());
            while let Ok(Some(_)) = reader.next_record() {}
        }
    }
}
