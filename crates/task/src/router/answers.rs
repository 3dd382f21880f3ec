//! What slots say, carried to the scheduler and the users.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Breach, FrameId, Index, Results, SlotId};
use thiserror::Error;

use super::{Effect, Router};
use crate::message::{Digest, MessageError, ReceivedMessage, ToManager};
use crate::outcome::{Contents, Origin, Outcomes};
use crate::payload::{Batch, Format, RecordError, RecordIndex, RecordReader};
use crate::tokens::Tokens;

/// A slot broke the rules: nothing of its answer counts, and its session must end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError {
    /// It isn't what its handler takes.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Bulk parts where there are no results that they belong to.
    #[error("got {0} bulk parts beside no results, expected none")]
    Bulk(usize),
    /// It can never be sent: the item would wait for ever.
    #[error(
        "got item {index} announced with {bytes} bytes, expected at most {maximum} (message_bytes_max)"
    )]
    Announced {
        /// The item.
        index: Index,
        /// The size of its result.
        bytes: u64,
        /// The most bytes of a message.
        maximum: u64,
    },
    /// What isn't an exception is no reason to run again.
    #[error("got a value among exceptions to run again for, expected exceptions only")]
    NoException,
    /// The records can't be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It sent more than it may.
    #[error(transparent)]
    Breach(#[from] Breach),
}

/// What a slot has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Something of items, which the router has taken in.
    Items,
    /// It has packages of other versions than the manager, one line for each.
    Differs(Vec<String>),
    /// It has its settings and may get work with [`Router::add_slot`], unless it lacks these modules.
    Ready(Vec<String>),
    /// Its initializer has run; the text of what it raised, UTF-8 if the slot is honest, or nothing.
    Initialized(Bytes),
    /// It wants a piece of shared contents.
    Fetch {
        /// Their name.
        digest: Digest,
        /// Where the piece begins.
        offset: u64,
        /// Its bytes at most.
        bytes: u32,
    },
    /// It finishes what runs, gives back the rest and gets nothing more.
    Leaving,
    /// It is still there.
    Probed,
    /// What a task printed or logged.
    Output {
        /// 0 standard output, 1 standard error, 2 log.
        stream: u8,
        /// The text, UTF-8 if the slot is honest.
        text: Bytes,
    },
}

impl Router {
    /// A message of a slot has come.
    ///
    /// # Errors
    /// When it can't be read, or is larger than was granted. Nothing of it counts then: the items stay with the slot, and
    /// go to another one when the driver dismisses this one.
    pub fn receive(
        &mut self,
        slot: u32,
        message: ReceivedMessage,
        now: Duration,
    ) -> Result<Answered, ReceiveError> {
        let ReceivedMessage {
            handler,
            head,
            bulk,
        } = message;
        let answer = ToManager::decode(handler, head)?;
        if !bulk.is_empty() && !answer.takes_bulk() {
            return Err(ReceiveError::Bulk(bulk.len()));
        }
        let id = SlotId(slot);
        let retriable = matches!(answer, ToManager::Retriable { .. });
        match answer {
            ToManager::Results {
                frame,
                first,
                count,
                busy,
                records,
            }
            | ToManager::Retriable {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let arrived = Arrived {
                    frame: FrameId(frame),
                    retriable,
                    first,
                    busy: Duration::from_nanos(busy),
                    records,
                    bulk,
                };
                let mut heads = std::mem::take(&mut self.heads);
                let read = heads.read(&arrived, count);
                let result = read
                    .map_err(ReceiveError::from)
                    .and_then(|()| self.results(slot, arrived, &mut heads, now));
                // Its memory serves the next answer.
                self.heads = heads;
                result?;
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
            } => {
                let maximum = self.message_bytes_max;
                if bytes > maximum {
                    return Err(ReceiveError::Announced {
                        index,
                        bytes,
                        maximum,
                    });
                }
                self.scheduler
                    .announced(id, FrameId(frame), index, bytes, now)?;
            }
            ToManager::Output { stream, text } => return Ok(Answered::Output { stream, text }),
            ToManager::Ready { lacks } => return Ok(Answered::Ready(lacks)),
            ToManager::Differs { packages } => return Ok(Answered::Differs(packages)),
            ToManager::Initialized { error } => return Ok(Answered::Initialized(error)),
            ToManager::Fetch {
                digest,
                offset,
                bytes,
            } => {
                return Ok(Answered::Fetch {
                    digest,
                    offset,
                    bytes,
                });
            }
            ToManager::Leaving => {
                self.scheduler.drain_slot(id, now);
                return Ok(Answered::Leaving);
            }
            ToManager::Probed => return Ok(Answered::Probed),
        }
        Ok(Answered::Items)
    }

    fn results(
        &mut self,
        slot: u32,
        arrived: Arrived,
        heads: &mut Heads,
        now: Duration,
    ) -> Result<(), ReceiveError> {
        let id = SlotId(slot);
        let Some((stream, segment)) = self.scheduler.frame(id, arrived.frame) else {
            // Late. The scheduler may still have counted on its bytes.
            return Ok(self.count(id, &arrived, heads, now).map(|_| ())?);
        };
        let (number, segment) = (self.numbers.get(&stream).copied(), usize::from(segment));
        let tokens = number.and_then(|number| self.streams.get(&number)?.tokens.get(segment));
        let (Some(known), Some(tokens)) = (self.slots.get(&slot), tokens) else {
            // Nobody wants the stream any more.
            return Ok(self.count(id, &arrived, heads, now).map(|_| ())?);
        };
        let origin = known.origin.clone();
        if arrived.retriable && !heads.index.entries().iter().all(|entry| entry.exception) {
            return Err(ReceiveError::NoException);
        }
        // A slot may say so of any program.
        let wanted = number.and_then(|number| self.streams.get(&number)?.rules.retries_on);
        let mut arrived = arrived;
        arrived.retriable &= wanted.is_some();
        heads.judge(&arrived, &origin, tokens);
        if !self.count(id, &arrived, heads, now)? {
            return Ok(());
        }
        let Some((number, stream)) =
            number.and_then(|number| Some((number, self.streams.get_mut(&number)?)))
        else {
            return Ok(());
        };
        let (before, after) = stream.tokens.split_at_mut(segment + 1);
        let tokens = &mut before[segment];
        let attempts = self.scheduler.config().retries;
        let attempts = arrived.retriable.then_some(attempts);
        let mut parcels = Parcels::new(arrived, &heads.index, &heads.refused, &origin, attempts);
        for (range, is_outcome) in heads.accepted.drain(..) {
            parcels.cut(range.clone(), is_outcome, tokens);
            tokens.release(&range);
        }
        for parcel in parcels.done {
            let (first, count, contents) = match parcel {
                Parcel::Token(first, batch) => {
                    if let Some(next) = after.first_mut() {
                        next.insert(first, batch);
                    }
                    continue;
                }
                Parcel::Outcome(run, contents) => {
                    // As many as the items of one answer.
                    (run.start, (run.end - run.start) as u32, contents)
                }
            };
            let outcomes = Outcomes {
                first,
                count,
                contents,
            };
            let stream = number;
            self.effects.push_back(Effect::Deliver { stream, outcomes });
        }
        Ok(())
    }

    /// Lets the scheduler count what has arrived. Says whether any of it counts; what does is in `heads`.
    fn count(
        &mut self,
        slot: SlotId,
        arrived: &Arrived,
        heads: &mut Heads,
        now: Duration,
    ) -> Result<bool, Breach> {
        let results = Results {
            frame: arrived.frame,
            first: arrived.first,
            sizes: &heads.sizes,
            ended: &heads.ended,
            busy: arrived.busy,
        };
        let accepted = if arrived.retriable {
            self.scheduler.retriable(slot, results, now)?
        } else {
            self.scheduler.results(slot, results, now)?
        };
        let Some(accepted) = accepted else {
            return Ok(false);
        };
        let outcomes = accepted.outcomes.iter().map(|range| (range.clone(), true));
        let tokens = accepted.tokens.iter().map(|range| (range.clone(), false));
        heads.accepted.clear();
        heads.accepted.extend(outcomes.chain(tokens));
        // Bulk parts are handed out in the order of items.
        heads
            .accepted
            .sort_unstable_by_key(|(range, _)| range.start);
        Ok(true)
    }
}

/// Some results of one frame.
struct Arrived {
    frame: FrameId,
    /// Exceptions for which items run again.
    retriable: bool,
    first: Index,
    busy: Duration,
    records: Bytes,
    bulk: Vec<Vec<u8>>,
}

/// What is known of the records of an answer before they are taken apart.
#[derive(Debug, Default)]
pub(super) struct Heads {
    index: RecordIndex,
    sizes: Vec<u64>,
    /// Items whose records are outcomes wherever they are in the program: exceptions, and what is refused.
    ended: Vec<Index>,
    /// Those of them that are pickles and must be data.
    refused: Vec<Index>,
    /// What counts, and whether it is outcomes.
    accepted: Vec<(Range<Index>, bool)>,
}

impl Heads {
    fn read(&mut self, arrived: &Arrived, count: u32) -> Result<(), RecordError> {
        self.ended.clear();
        self.refused.clear();
        self.index
            .read(&arrived.records, arrived.bulk.len(), count)?;
        self.index
            .sizes(arrived.bulk.iter().map(Vec::len), &mut self.sizes);
        Ok(())
    }

    /// Finds what can't go on, when these are results of `origin` that it made of `tokens`.
    fn judge(&mut self, arrived: &Arrived, origin: &Arc<Origin>, tokens: &Tokens) {
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
enum Parcel {
    Token(Index, Batch),
    Outcome(Range<Index>, Contents),
}

/// An answer that is taken apart, from its first record to its last.
struct Parcels<'a> {
    index: &'a RecordIndex,
    refused: &'a [Index],
    origin: &'a Arc<Origin>,
    first: Index,
    /// How often items have run whose exceptions are outcomes although they are reasons to run again.
    attempts: Option<u32>,
    records: Bytes,
    bulk: std::vec::IntoIter<Vec<u8>>,
    /// Bulk parts taken so far.
    taken: usize,
    done: Vec<Parcel>,
}

impl<'a> Parcels<'a> {
    fn new(
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
            bulk: arrived.bulk.into_iter(),
            taken: 0,
            done: Vec::new(),
        }
    }

    /// Cuts results out that count, where the origins of the tokens differ and where some are refused. They lie behind
    /// those that were cut out before.
    fn cut(&mut self, range: Range<Index>, is_outcome: bool, tokens: &Tokens) {
        if !self.origin.is_trusted() || tokens.are_trusted() {
            return self.cut_run(range, is_outcome, self.origin.clone());
        }
        for (run, token) in tokens.origins(range) {
            // A token that isn't known can't be trusted.
            let stranger = || {
                let worker = self.origin.worker.clone();
                let format = Format::Data;
                Arc::new(Origin { worker, format })
            };
            let origin = token.map_or_else(stranger, |token| self.origin.least_trusted(token));
            self.cut_run(run, is_outcome, origin);
        }
    }

    fn cut_run(&mut self, run: Range<Index>, is_outcome: bool, origin: Arc<Origin>) {
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
            self.done.push(match (refuses, is_outcome) {
                (true, _) => Parcel::Outcome(part, Contents::Refused(origin.clone())),
                (false, true) => {
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
                (false, false) => {
                    let bulk = bulk.into_iter().map(Bytes::from).collect();
                    let places = self.places(&part);
                    let batch = self.index.batch(places, records, bulk, origin.clone());
                    Parcel::Token(part.start, batch)
                }
            });
        }
    }

    /// The records of some items and their bulk parts.
    fn take(&mut self, items: &Range<Index>) -> (Bytes, Vec<Vec<u8>>) {
        let places = self.places(items);
        let records = self.records.slice(self.index.bytes(places.clone()));
        let parts = self.index.parts(places);
        // Those between belong to results that came too late.
        let late = parts.start - self.taken;
        self.taken = parts.end;
        let bulk = self.bulk.by_ref().skip(late).take(parts.len()).collect();
        (records, bulk)
    }

    /// Where items stand in the answer: what counts is in it, so these are no more than its count.
    fn places(&self, items: &Range<Index>) -> Range<usize> {
        (items.start - self.first) as usize..(items.end - self.first) as usize
    }
}
