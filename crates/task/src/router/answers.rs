//! What slots say, carried to the scheduler and the users.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{FrameId, Sizes, SlotId};

use super::{Effect, Router};
use crate::message::ToManager;
use crate::outcome::{Contents, Outcomes};
use crate::payload::{Batch, RecordError, RecordReader, check_records};

impl Router {
    /// A slot has answered. What it prints, and that it is ready, is the driver's affair and passed over here.
    ///
    /// # Errors
    /// When the records can't be read. Nothing of the answer counts then: the items stay with the slot, and go to
    /// another one when the driver dismisses this one.
    pub fn answer(
        &mut self,
        slot: u32,
        answer: ToManager,
        bulk: Vec<Vec<u8>>,
        now: Duration,
    ) -> Result<(), RecordError> {
        let id = SlotId(slot);
        match answer {
            ToManager::Results {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let results = Results {
                    frame: FrameId(frame),
                    first,
                    count,
                    busy: Duration::from_nanos(busy),
                    records,
                    bulk,
                };
                self.results(slot, results, now)?;
            }
            ToManager::Released { frame, busy } => {
                let busy = Duration::from_nanos(busy);
                self.scheduler.released(id, FrameId(frame), busy, now);
            }
            ToManager::Recalled {
                frame,
                first,
                count,
            } => self
                .scheduler
                .recalled(id, FrameId(frame), first, count, now),
            ToManager::Announced {
                frame,
                index,
                bytes,
                ..
            } => self
                .scheduler
                .announced(id, FrameId(frame), index, bytes, now),
            ToManager::Output { .. } | ToManager::Ready { .. } => {}
        }
        Ok(())
    }

    fn results(&mut self, slot: u32, results: Results, now: Duration) -> Result<(), RecordError> {
        let Results {
            frame,
            first,
            count,
            busy,
            records,
            bulk,
        } = results;
        // What the scheduler has counted is done. So what can't be read must not reach it.
        check_records(&records, bulk.len(), count)?;
        let bytes = records.len() as u64 + bulk.iter().map(|part| part.len() as u64).sum::<u64>();
        let sizes = Sizes::Total { count, bytes };
        let Some(accepted) = self
            .scheduler
            .results(SlotId(slot), frame, first, sizes, busy, now)
        else {
            return Ok(());
        };
        let (segment, last) = (usize::from(accepted.segment), accepted.last);
        let ranges: Vec<Range<u64>> = accepted.ranges.to_vec();
        let whole = ranges.len() == 1 && ranges[0] == (first..first + u64::from(count));
        let Some(&number) = self.numbers.get(&accepted.stream) else {
            return Ok(());
        };
        let (Some(stream), Some(known)) = (self.streams.get_mut(&number), self.slots.get(&slot))
        else {
            return Ok(());
        };
        let origin = &known.origin;
        for range in &ranges {
            stream.tokens[segment].release(range);
        }
        let mut deliver = |first, count, reader| {
            let outcomes = Outcomes {
                first,
                count,
                contents: Contents::Records(reader, origin.clone()),
            };
            let stream = number;
            self.effects.push_back(Effect::Deliver { stream, outcomes });
        };
        if whole && last {
            deliver(first, count, RecordReader::new(records, bulk));
            return Ok(());
        }
        let bulk = bulk.into_iter().map(Bytes::from).collect();
        let batch = Batch::parse(records, bulk, count, origin.restricted)?;
        for range in ranges {
            let part = batch.part(range.start - first, range.end - range.start);
            if last {
                deliver(range.start, part.count(), part.into_reader());
            } else if let Some(tokens) = stream.tokens.get_mut(segment + 1) {
                tokens.insert(range.start, part);
            }
        }
        Ok(())
    }
}

/// Some results of one frame.
struct Results {
    frame: FrameId,
    first: u64,
    count: u32,
    busy: Duration,
    records: Bytes,
    bulk: Vec<Vec<u8>>,
}
