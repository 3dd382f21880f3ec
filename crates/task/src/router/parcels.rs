//! Answers that are taken apart: what is known of their records, and where each of them goes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{FrameId, Index};

use super::bulk_parts::BulkParts;
use crate::outcome::{Contents, Origin};
use crate::payload::{Batch, Format, ListHead, RecordError, RecordIndex, RecordReader};
use crate::tokens::{Collected, Tokens};

/// Some results of one frame.
pub(super) struct Arrived {
    pub(super) frame: FrameId,
    /// The segment that the items have reached.
    pub(super) reached: u16,
    /// Exceptions for which items run again.
    pub(super) retriable: bool,
    pub(super) first: Index,
    pub(super) busy: Duration,
    pub(super) records: Bytes,
    pub(super) bulk: Vec<Vec<u8>>,
}

impl Arrived {
    /// Results that have reached no segment, and are no reasons to run again.
    pub(super) fn new(
        frame: u64,
        first: Index,
        busy: u64,
        records: Bytes,
        bulk: Vec<Vec<u8>>,
    ) -> Self {
        Self {
            frame: FrameId(frame),
            reached: 0,
            retriable: false,
            first,
            busy: Duration::from_nanos(busy),
            records,
            bulk,
        }
    }
}

/// The state that came with results.
pub(super) struct ArrivedState {
    pub(super) value: Collected,
    pub(super) format: Format,
    pub(super) is_exception: bool,
}

/// Where a result that counts goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultWay {
    /// It is an outcome.
    Outcome,
    /// It waits for others.
    Part,
    /// It is a token for this segment.
    Token(u16),
}

/// What is known of the records of an answer before they are taken apart.
#[derive(Debug, Default)]
pub(super) struct Heads {
    pub(super) index: RecordIndex,
    /// Which of the records are those of each item, where that isn't one.
    pub(super) lists: Vec<ListHead>,
    pub(super) sizes: Vec<u64>,
    /// Items whose records are outcomes wherever they are in the program: exceptions, and what is refused.
    pub(super) ended: Vec<Index>,
    /// Those of them that are pickles and must be data.
    pub(super) refused: Vec<Index>,
    /// What counts, and where it goes.
    pub(super) accepted: Vec<(Range<Index>, ResultWay)>,
}

/// Of how many records what is known of them is kept: a single answer with very many would hold its memory for ever.
const KEPT_RECORDS_MAX: usize = 1 << 16;

impl Heads {
    /// Its memory serves the next answer.
    pub(super) fn kept(self) -> Self {
        match self.sizes.capacity() > KEPT_RECORDS_MAX || self.index.capacity() > KEPT_RECORDS_MAX {
            true => Self::default(),
            false => self,
        }
    }

    pub(super) fn read(&mut self, arrived: &Arrived, count: u32) -> Result<(), RecordError> {
        self.ended.clear();
        self.refused.clear();
        self.index
            .read(&arrived.records, arrived.bulk.len(), count)?;
        self.index
            .sizes(arrived.bulk.iter().map(Vec::len), &mut self.sizes);
        Ok(())
    }

    /// Reads the results of a segment that carries a state, with the state before them.
    pub(super) fn read_carried(
        &mut self,
        mut arrived: Arrived,
        count: u32,
    ) -> Result<(Arrived, ArrivedState), RecordError> {
        self.ended.clear();
        self.refused.clear();
        let (format, is_exception, end, parts) =
            self.index
                .read_behind_first(&arrived.records, arrived.bulk.len(), count)?;
        let records = arrived.records.split_to(end);
        let rest = arrived.bulk.split_off(parts);
        let bulk = std::mem::replace(&mut arrived.bulk, rest);
        let bulk = bulk.into_iter().map(Bytes::from).collect();
        self.index
            .sizes(arrived.bulk.iter().map(Vec::len), &mut self.sizes);
        let state = ArrivedState {
            value: Collected { records, bulk },
            format,
            is_exception,
        };
        Ok((arrived, state))
    }

    /// Cuts outcomes apart that aren't the users': what has ended is by itself, and all else waits for others if it is `kept`.
    pub(super) fn part(&mut self, kept: bool) {
        if self
            .accepted
            .iter()
            .all(|(_, way)| *way != ResultWay::Outcome)
        {
            return;
        }
        let mut parted = Vec::with_capacity(self.accepted.len());
        for (range, way) in self.accepted.drain(..) {
            if way != ResultWay::Outcome {
                parted.push((range, way));
                continue;
            }
            for index in range {
                let has_ended = self.ended.binary_search(&index).is_ok();
                match parted.last_mut() {
                    Some((last, ResultWay::Part)) if kept && !has_ended && last.end == index => {
                        last.end += 1;
                    }
                    _ if kept && !has_ended => parted.push((index..index + 1, ResultWay::Part)),
                    _ => parted.push((index..index + 1, ResultWay::Outcome)),
                }
            }
        }
        self.accepted = parted;
    }

    /// Finds what can't go on, when these are results of `origin` that it made of `tokens`.
    pub(super) fn judge(&mut self, arrived: &Arrived, origin: &Arc<Origin>, tokens: &Tokens) {
        let all_trusted = origin.is_trusted() && tokens.are_trusted();
        for (index, entry) in (arrived.first..Index::MAX).zip(self.index.entries()) {
            let is_refused = !all_trusted
                && entry.format == Format::Pickle
                && !(origin.is_trusted() && tokens.is_trusted(index));
            if is_refused {
                self.refused.push(index);
            }
            if is_refused || entry.exception {
                self.ended.push(index);
            }
        }
    }
}

/// Consecutive results that go the same way.
pub(super) enum Parcel {
    Token(u16, Index, Batch),
    Part(Index, Batch),
    Outcome(Range<Index>, Contents),
}

/// The origin of what `maker` made of a token.
pub(super) fn origin_of(maker: &Arc<Origin>, token: Option<&Arc<Origin>>) -> Arc<Origin> {
    // A token that isn't known can't be trusted.
    let stranger = || {
        let worker = maker.worker.clone();
        let format = Format::Data;
        Arc::new(Origin { worker, format })
    };
    token.map_or_else(stranger, |token| maker.least_trusted(token))
}

/// An answer that is taken apart, from its first record to its last.
pub(super) struct Parcels<'a> {
    index: &'a RecordIndex,
    refused: &'a [Index],
    origin: &'a Arc<Origin>,
    first: Index,
    /// How often items have run whose exceptions are outcomes although they are reasons to run again.
    attempts: Option<u32>,
    records: Bytes,
    bulk: BulkParts,
    pub(super) done: Vec<Parcel>,
}

impl<'a> Parcels<'a> {
    pub(super) fn new(
        arrived: Arrived,
        index: &'a RecordIndex,
        refused: &'a [Index],
        origin: &'a Arc<Origin>,
        attempts: Option<u32>,
    ) -> Self {
        Self {
            attempts,
            index,
            refused,
            origin,
            first: arrived.first,
            records: arrived.records,
            bulk: BulkParts::new(arrived.bulk),
            done: Vec::new(),
        }
    }

    /// Cuts results out that count, where the origins of the tokens differ and where some are refused. They lie behind
    /// those that were cut out before.
    pub(super) fn cut(&mut self, range: Range<Index>, way: ResultWay, tokens: &Tokens) {
        if !self.origin.is_trusted() || tokens.are_trusted() {
            return self.cut_run(range, way, self.origin.clone());
        }
        for (run, token) in tokens.origins(range) {
            let origin = origin_of(self.origin, token);
            self.cut_run(run, way, origin);
        }
    }

    pub(super) fn cut_run(&mut self, run: Range<Index>, way: ResultWay, origin: Arc<Origin>) {
        let refused = self.refused;
        let is_refused =
            |index: Index| !refused.is_empty() && refused.binary_search(&index).is_ok();
        let mut left = run;
        while !left.is_empty() {
            let refuses = is_refused(left.start);
            let end = if refused.is_empty() {
                left.end
            } else {
                left.clone()
                    .find(|index| is_refused(*index) != refuses)
                    .unwrap_or(left.end)
            };
            let part = left.start..end;
            left.start = end;
            let (records, bulk) = self.take(&part);
            self.done.push(match (refuses, way) {
                (true, _) => Parcel::Outcome(part, Contents::Refused(origin.clone())),
                (false, ResultWay::Outcome) => {
                    let reader = RecordReader::new(records, bulk);
                    let contents = match self.attempts {
                        None => Contents::Records(reader, origin.clone()),
                        Some(attempts) => Contents::Exhausted {
                            records: reader,
                            origin: origin.clone(),
                            attempts,
                        },
                    };
                    Parcel::Outcome(part, contents)
                }
                (false, way) => {
                    let bulk = bulk.into_iter().map(Bytes::from).collect();
                    let places = self.places(&part);
                    let batch = self.index.batch(places, records, bulk, origin.clone());
                    match way {
                        ResultWay::Token(segment) => Parcel::Token(segment, part.start, batch),
                        _ => Parcel::Part(part.start, batch),
                    }
                }
            });
        }
    }

    /// The records of some items and their bulk parts.
    fn take(&mut self, items: &Range<Index>) -> (Bytes, Vec<Vec<u8>>) {
        let places = self.places(items);
        let records = self.records.slice(self.index.bytes(places.clone()));
        let parts = self.index.parts(places);
        (records, self.bulk.take(parts).collect())
    }

    /// Where items stand in the answer: what counts is in it, so these are no more than its count.
    fn places(&self, items: &Range<Index>) -> Range<usize> {
        (items.start - self.first) as usize..(items.end - self.first) as usize
    }
}
