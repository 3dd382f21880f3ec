//! The tokens that wait at one segment of one stream, by item.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::payload::Batch;

/// Batches by their first item. A batch goes when all of its items are through.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    batches: BTreeMap<u64, Stored>,
}

#[derive(Debug)]
struct Stored {
    batch: Batch,
    remaining: u32,
}

/// The tokens of one frame.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) records: Bytes,
    pub(crate) bulk: Vec<Bytes>,
    pub(crate) restricted: bool,
}

impl Tokens {
    pub(crate) fn insert(&mut self, first: u64, batch: Batch) {
        let remaining = batch.count();
        self.batches.insert(first, Stored { batch, remaining });
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
            collected.restricted |= stored.batch.restricted;
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
    use crate::payload::{BatchBuilder, RecordReader};

    fn batch(values: Range<u8>) -> Batch {
        let mut builder = BatchBuilder::default();
        for value in values {
            builder.push(&[value], &[], Vec::new());
        }
        builder.take()
    }

    #[test]
    fn ranges_span_batches_and_go_when_released() {
        let mut tokens = Tokens::default();
        tokens.insert(0, batch(0..4));
        tokens.insert(4, batch(4..6));
        let collected = tokens.collect(3..6).unwrap();
        let mut reader = RecordReader::new(collected.records, Vec::new());
        let values: Vec<u8> = std::iter::from_fn(|| reader.next_record().unwrap())
            .map(|record| record.pickle[0])
            .collect();
        assert_eq!(values, [3, 4, 5]);
        assert!(tokens.collect(5..7).is_none());
        tokens.release(&(0..3));
        assert!(tokens.collect(0..4).is_some());
        tokens.release(&(3..5));
        assert!(tokens.collect(3..4).is_none());
        assert_eq!(tokens.batches.len(), 1);
    }
}
