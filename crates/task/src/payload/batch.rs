//! Lists of records with an index: what the manager keeps of items, and what it looks at when an answer comes.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{Format, RecordError, RecordHead, RecordWriter, get_varint, put_varint};
use crate::message::PARTS_MAX;
use crate::outcome::Origin;
use crate::tokens::Collected;

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

/// Which of many records are those of one item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListHead {
    /// The first of them.
    pub(crate) first: u32,
    /// How many, what is no part included.
    pub(crate) count: u32,
    /// The first one is no part.
    pub(crate) has_state: bool,
}

/// How many records the lists of an answer may have: those of one item with the most, and of others beside it. What is known of each takes more
/// memory than a small record does.
const LISTED_MAX: u32 = 2 * PARTS_MAX;

impl ListHead {
    fn read(lists: &[u8], position: &mut usize, first: u32) -> Result<Self, RecordError> {
        let head = get_varint(lists, position)?;
        let has_state = head & 1 != 0;
        let count = head >> 1;
        if count > u64::from(PARTS_MAX) + u64::from(has_state) {
            return Err(RecordError("an item made into more parts than the limit"));
        }
        if has_state && count == 0 {
            return Err(RecordError("a list without what it says it has"));
        }
        Ok(Self {
            first,
            // Below the limit.
            count: count as u32,
            has_state,
        })
    }

    /// All of its records, by their places.
    pub(crate) fn records(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }

    /// Those that are parts.
    pub(crate) fn parts(&self) -> Range<usize> {
        self.first as usize + usize::from(self.has_state)..(self.first + self.count) as usize
    }
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

    /// For how many records there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
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

    /// Reads lists of records: how many each item has, whether the first of them is no part, and then the records. Says where those begin.
    ///
    /// # Errors
    /// When they aren't well-formed, are another number, or an item has more than it may.
    pub(crate) fn read_lists(
        &mut self,
        lists: &Bytes,
        parts: usize,
        count: u32,
        heads: &mut Vec<ListHead>,
    ) -> Result<Bytes, RecordError> {
        heads.clear();
        let (mut position, mut records) = (0, 0_u32);
        for _ in 0..count {
            let head = ListHead::read(lists, &mut position, records)?;
            // Neither is near the end of its numbers.
            records += head.count;
            if records > LISTED_MAX {
                return Err(RecordError("more parts in an answer than the limit"));
            }
            heads.push(head);
        }
        let rest = lists.slice(position..);
        self.read(&rest, parts, records)?;
        Ok(rest)
    }

    /// Reads the heads anew, of a list that should hold `count` items behind one more record. Says how that is written, whether it is an
    /// exception, and how many bytes and bulk parts are its own; it isn't in the index.
    ///
    /// # Errors
    /// As those of [`read`](Self::read).
    pub(crate) fn read_behind_first(
        &mut self,
        records: &[u8],
        parts: usize,
        count: u32,
    ) -> Result<(Format, bool, usize, usize), RecordError> {
        let all = count.checked_add(1);
        let all = all.ok_or(RecordError("more records than could be counted"))?;
        self.read(records, parts, all)?;
        let first = self.0.remove(0);
        for entry in &mut self.0 {
            entry.end -= first.end;
            entry.parts -= first.parts;
        }
        let (end, parts) = (first.end as usize, first.parts as usize);
        Ok((first.format, first.exception, end, parts))
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

    /// One item that is a list: of these records, the first of which is no part if it says so.
    pub(crate) fn list(
        count: u64,
        has_state: bool,
        parts: impl IntoIterator<Item = Collected>,
        origin: Arc<Origin>,
    ) -> Self {
        let mut records = BytesMut::new();
        let is_data = !origin.is_trusted();
        let head = count << 2 | u64::from(is_data) << 1 | u64::from(has_state);
        put_varint(&mut records, head);
        let mut bulk = Vec::new();
        for part in parts {
            records.extend_from_slice(&part.records);
            bulk.extend(part.bulk);
        }
        let end = u32::try_from(records.len()).unwrap_or(u32::MAX);
        Self {
            records: records.freeze(),
            offsets: vec![0, end],
            bulk_starts: if bulk.is_empty() {
                Vec::new()
            } else {
                vec![(0, 0)]
            },
            bulk,
            exceptions: Vec::new(),
            origin,
        }
    }

    /// The memory that is its own, without the place of the batch itself.
    pub(crate) fn bytes(&self) -> u64 {
        let bulk: usize = self.bulk.iter().map(Bytes::len).sum();
        let words = self.offsets.len() + 2 * self.bulk_starts.len() + self.exceptions.len();
        let places = words * size_of::<u32>() + self.bulk.len() * size_of::<Bytes>();
        (self.records.len() + bulk + places) as u64
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

    /// One item, counted from the batch's own first, by itself.
    pub(crate) fn single(&self, item: u32) -> Self {
        let (records, bulk) = self.range(item, 1);
        // No more than all records together.
        let end = records.len() as u32;
        let is_exception = self.exceptions.binary_search(&item).is_ok();
        Self {
            records,
            offsets: vec![0, end],
            bulk_starts: match bulk {
                [] => Vec::new(),
                _ => vec![(0, 0)],
            },
            bulk: bulk.to_vec(),
            exceptions: match is_exception {
                true => vec![0],
                false => Vec::new(),
            },
            origin: self.origin.clone(),
        }
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

    /// Moves all that `other` holds to the end of this one.
    pub fn append(&mut self, other: &mut Self) {
        let position = u32::try_from(self.writer.position()).unwrap_or(u32::MAX);
        let (count, parts) = (self.writer.count(), self.writer.bulk.len());
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let offsets = other.offsets.drain(..);
        self.offsets.extend(offsets.map(|offset| position + offset));
        let starts = other.bulk_starts.drain(..);
        self.bulk_starts
            .extend(starts.map(|(item, start)| (count + item, parts + start)));
        let exceptions = other.exceptions.drain(..);
        self.exceptions.extend(exceptions.map(|item| count + item));
        self.writer.append(&mut other.writer);
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
