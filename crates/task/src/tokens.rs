//! The tokens that wait at one segment of one stream, by item.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::outcome::Origin;
use crate::payload::{Batch, RecordReader};

/// Batches by their first item. A batch goes when all of its items are through.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    batches: BTreeMap<u64, Stored>,
    /// Batches whose origin is not trusted.
    untrusted: usize,
    /// The memory that all batches take.
    bytes: u64,
    /// Each item is a batch by itself, since it may come here again while others of its batch still wait.
    is_single: bool,
}

#[derive(Debug)]
struct Stored {
    batch: Batch,
    remaining: u32,
    bytes: u64,
}

/// Nodes of a map may be half empty.
const STORED_BYTES: u64 = 2 * size_of::<(u64, Stored)>() as u64;

/// The tokens of one frame.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) records: Bytes,
    pub(crate) bulk: Vec<Bytes>,
}

impl Collected {
    /// A walk over it.
    pub(crate) fn into_reader(self) -> RecordReader {
        let bulk = self.bulk.into_iter().map(Vec::from).collect();
        RecordReader::new(self.records, bulk)
    }

    /// Its records, and those of others behind them.
    pub(crate) fn before(&self, others: Self) -> Self {
        let mut records = BytesMut::with_capacity(self.records.len() + others.records.len());
        records.extend_from_slice(&self.records);
        records.extend_from_slice(&others.records);
        let bulk = self.bulk.iter().cloned().chain(others.bulk);
        Self {
            records: records.freeze(),
            bulk: bulk.collect(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let bulk: usize = self.bulk.iter().map(Bytes::len).sum();
        (self.records.len() + bulk) as u64
    }
}

impl Tokens {
    /// Of a segment in a loop.
    pub(crate) fn singles() -> Self {
        Self {
            is_single: true,
            ..Self::default()
        }
    }

    pub(crate) fn insert(&mut self, first: u64, batch: Batch) {
        if self.is_single && batch.count() > 1 {
            for (index, item) in (first..).zip(0..batch.count()) {
                self.insert(index, batch.single(item));
            }
            return;
        }
        let remaining = batch.count();
        self.untrusted += usize::from(!batch.origin().is_trusted());
        let bytes = STORED_BYTES + batch.bytes();
        self.bytes += bytes;
        let stored = Stored {
            batch,
            remaining,
            bytes,
        };
        self.batches.insert(first, stored);
    }

    /// The memory that they take. A batch takes all of its own until the last of its items is through.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all tokens here are of trusted origins.
    pub(crate) fn are_trusted(&self) -> bool {
        self.untrusted == 0
    }

    /// Whether the token of this item is here and of a trusted origin.
    pub(crate) fn is_trusted(&self, item: u64) -> bool {
        let found = self.origins(item..item.saturating_add(1)).next();
        found.is_some_and(|(_, origin)| origin.is_some_and(|origin| origin.is_trusted()))
    }

    /// These items, cut where the origins of their tokens change; none for an item whose token isn't here.
    pub(crate) fn origins(
        &self,
        items: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Option<&Arc<Origin>>)> {
        let mut position = items.start;
        let origin_at = |items: Range<u64>| {
            let before = self.batches.range(..=items.start).next_back();
            let found = before.and_then(|(first, stored)| {
                let (_, count) = overlap(*first, stored.batch.count(), &items)?;
                Some((u64::from(count), stored.batch.origin()))
            });
            found.map_or((1, None), |(count, origin)| (count, Some(origin)))
        };
        std::iter::from_fn(move || {
            if position >= items.end {
                return None;
            }
            let start = position;
            let (count, origin) = origin_at(start..items.end);
            position += count;
            while position < items.end {
                let (count, next) = origin_at(position..items.end);
                if next != origin {
                    break;
                }
                position += count;
            }
            Some((start..position, origin))
        })
    }

    /// The tokens of these items; none if one isn't here.
    pub(crate) fn collect(&self, items: Range<u64>) -> Option<Collected> {
        let mut collected = Collected::default();
        let mut joined = BytesMut::new();
        let mut position = items.start;
        while position < items.end {
            let (first, stored) = self.batches.range(..=position).next_back()?;
            let (start, count) = overlap(*first, stored.batch.count(), &(position..items.end))?;
            let (records, bulk) = stored.batch.range(start, count);
            collected.bulk.extend_from_slice(bulk);
            position += u64::from(count);
            if joined.is_empty() && position == items.end {
                collected.records = records;
                return Some(collected);
            }
            joined.extend_from_slice(&records);
        }
        collected.records = joined.freeze();
        Some(collected)
    }

    /// These items don't need their tokens any more.
    pub(crate) fn release(&mut self, items: &Range<u64>) {
        let mut position = items.start;
        while position < items.end {
            let Some((&first, stored)) = self.batches.range_mut(..=position).next_back() else {
                return;
            };
            let Some((_, count)) = overlap(first, stored.batch.count(), &(position..items.end))
            else {
                return;
            };
            stored.remaining = stored.remaining.saturating_sub(count);
            if stored.remaining == 0 {
                self.untrusted -= usize::from(!stored.batch.origin().is_trusted());
                self.bytes -= stored.bytes;
                self.batches.remove(&first);
            }
            position += u64::from(count);
        }
    }
}

/// Where `items` begins in a batch, and how many of them it holds.
fn overlap(first: u64, count: u32, items: &Range<u64>) -> Option<(u32, u32)> {
    let start = u32::try_from(items.start.checked_sub(first)?).ok()?;
    let left = count.checked_sub(start).filter(|left| *left > 0)?;
    let wanted = u32::try_from(items.end - items.start).unwrap_or(u32::MAX);
    Some((start, left.min(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{BatchBuilder, Format};

    fn batch(values: Range<u8>, origin: Arc<Origin>) -> Batch {
        let mut builder = BatchBuilder::default();
        for value in values {
            builder.push(Format::Data, &[value], &[], Vec::new());
        }
        builder.take(origin)
    }

    #[test]
    fn ranges_span_batches_and_go_when_released() {
        let mut tokens = Tokens::default();
        tokens.insert(0, batch(0..4, Origin::user()));
        tokens.insert(4, batch(4..6, Origin::user()));
        let collected = tokens.collect(3..6).unwrap();
        let mut reader = RecordReader::new(collected.records, Vec::new());
        let values: Vec<u8> = std::iter::from_fn(|| reader.next_record().unwrap())
            .map(|record| record.body[0])
            .collect();
        assert_eq!(values, [3, 4, 5]);
        assert!(tokens.collect(5..7).is_none());
        tokens.release(&(0..3));
        assert!(tokens.collect(0..4).is_some());
        tokens.release(&(3..5));
        assert!(tokens.collect(3..4).is_none());
        assert_eq!(tokens.batches.len(), 1);
        assert!(tokens.bytes() > STORED_BYTES);
        tokens.release(&(5..6));
        assert_eq!(tokens.bytes(), 0);
    }

    #[test]
    fn ranges_are_cut_where_origins_change() {
        let stranger = Arc::new(Origin {
            worker: "stranger".to_owned(),
            format: Format::Data,
        });
        let mut tokens = Tokens::default();
        tokens.insert(0, batch(0..4, Origin::user()));
        assert!(tokens.are_trusted());
        tokens.insert(4, batch(4..6, stranger.clone()));
        tokens.insert(8, batch(8..9, Origin::user()));
        assert!(!tokens.are_trusted());
        let cut: Vec<_> = tokens.origins(2..9).collect();
        let (user, nobody) = (Origin::user(), None);
        let expected = [
            (2..4, Some(&user)),
            (4..6, Some(&stranger)),
            (6..8, nobody),
            (8..9, Some(&user)),
        ];
        assert_eq!(cut, expected);
        tokens.release(&(4..6));
        assert!(tokens.are_trusted());
    }
}
