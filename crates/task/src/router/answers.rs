//! What slots say, carried to the scheduler and the users.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Accepted, Breach, FrameId, Index, LineRole, Results, SlotId, Then};
use thiserror::Error;

use super::lines::ItemLine;
use super::parcels::{Arrived, Heads, Parcel, Parcels, ResultWay, origin_of};
use super::{Effect, Router};
use crate::message::{Digest, HeardWorker, MessageError, ReceivedMessage, ToManager};
use crate::outcome::Outcomes;
use crate::payload::RecordError;

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
    /// No frame has so many: what is known of each would take more memory than they do.
    #[error("got an answer for {count} items, expected at most {maximum}, as a frame has")]
    ItemsOfNoFrame {
        /// How many it says there are.
        count: u32,
        /// How many a frame may have.
        maximum: u32,
    },
    /// What isn't an exception is no reason to run again.
    #[error("got a value among exceptions to run again for, expected exceptions only")]
    NoException,
    /// A part is a value.
    #[error("got an exception among the parts of an item, expected values only")]
    ExceptionAmongParts,
    /// The segment gives lists.
    #[error("got a result of a segment that gives parts, expected its parts")]
    NotExpanded,
    /// The segment gives no lists.
    #[error("got parts of an item, expected its result")]
    NotExpanding,
    /// The segment gives one result for many items.
    #[error("got results of items that are folded, expected one of all")]
    NotFolded,
    /// Somebody else has them, or nobody.
    #[error("got a result of items that the slot doesn't have, expected one of those of its frame")]
    FoldedOthers,
    /// The segment carries a state, which must come with results.
    #[error("got results without the state behind them, expected both: their segment carries one")]
    NotCarried,
    /// The segment carries no state.
    #[error("got a state with results of a segment that carries none")]
    NotCarrying,
    /// A state is a value.
    #[error("got an exception as a state, expected a value")]
    ExceptionAsState,
    /// It could not travel with items.
    #[error("got a state of {bytes} bytes, expected at most {maximum}, half of a message")]
    StateTooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most that it may have.
        maximum: u64,
    },
    /// The segment gives a result for each item.
    #[error("got one result of many items, expected one of each")]
    NotFolding,
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
    /// All workers that its worker hears on its network now.
    Heard(Vec<HeardWorker>),
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
        let reached = match answer {
            ToManager::Results { reached, .. } => Some(reached),
            _ => None,
        };
        if let ToManager::Results { count, .. }
        | ToManager::Retriable { count, .. }
        | ToManager::Expanded { count, .. }
        | ToManager::Carried { count, .. } = answer
        {
            let maximum = self.scheduler.config().frame_items_max.max(1);
            if count > maximum {
                return Err(ReceiveError::ItemsOfNoFrame { count, maximum });
            }
        }
        match answer {
            ToManager::Results {
                frame,
                first,
                count,
                busy,
                records,
                ..
            }
            | ToManager::Retriable {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let arrived = Arrived {
                    reached: reached.unwrap_or(0),
                    retriable: reached.is_none(),
                    ..Arrived::new(frame, first, busy, records, bulk)
                };
                let mut heads = std::mem::take(&mut self.heads);
                let read = heads.read(&arrived, count);
                let result = read
                    .map_err(ReceiveError::from)
                    .and_then(|()| self.results(slot, arrived, &mut heads, now));
                self.heads = heads.kept();
                result?;
            }
            ToManager::Expanded {
                frame,
                first,
                count,
                busy,
                lists: records,
            } => {
                let arrived = Arrived::new(frame, first, busy, records, bulk);
                let mut heads = std::mem::take(&mut self.heads);
                let result = self.expanded(slot, arrived, count, &mut heads, now);
                self.heads = heads.kept();
                result?;
            }
            ToManager::Folded {
                frame,
                first,
                count,
                busy,
                record: records,
            } => {
                let arrived = Arrived::new(frame, first, busy, records, bulk);
                let mut heads = std::mem::take(&mut self.heads);
                let result = self.folded(slot, arrived, count, &mut heads, now);
                self.heads = heads.kept();
                result?;
            }
            ToManager::Carried {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let arrived = Arrived::new(frame, first, busy, records, bulk);
                let mut heads = std::mem::take(&mut self.heads);
                let result = self.carried(slot, arrived, count, &mut heads, now);
                self.heads = heads.kept();
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
            } => {
                let frame = FrameId(frame);
                self.forget_kept(id, frame);
                self.scheduler.recalled(id, frame, first, count, now);
            }
            ToManager::Announced {
                frame,
                index,
                count,
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
                let items = index..index.saturating_add(count.into());
                self.scheduler
                    .announced(id, FrameId(frame), items, bytes, now)?;
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
            ToManager::Heard { workers } => return Ok(Answered::Heard(workers)),
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
        let mut arrived = arrived;
        let Some((stream, from, to)) = self.scheduler.frame(id, arrived.frame) else {
            // Late. The scheduler may still have counted on its bytes.
            return Ok(self.count(id, &arrived, heads, now).map(|_| ())?);
        };
        if arrived.retriable {
            // Exceptions are the same wherever they come from.
            arrived.reached = to + 1;
        }
        let place = self.numbers.get(&stream).copied();
        let state = place.and_then(|(number, line)| {
            let stream = self.streams.get(&number)?;
            Some((stream, stream.lines.get(usize::from(line))?))
        });
        let (Some(known), Some((stream, state))) = (self.slots.get(&slot), state) else {
            // Nobody wants the stream any more.
            return Ok(self.count(id, &arrived, heads, now).map(|_| ())?);
        };
        let Some(tokens) = state.tokens.get(usize::from(from)) else {
            return Ok(());
        };
        // An exception may hold what a state has seen.
        let origin = match state.carried.get(&from) {
            Some(carried) => origin_of(&known.origin, Some(carried.origin())),
            None => known.origin.clone(),
        };
        if arrived.retriable && !heads.index.entries().iter().all(|entry| entry.exception) {
            return Err(ReceiveError::NoException);
        }
        // A slot may say so of any program.
        arrived.retriable &= stream.rules.retries_on.is_some();
        heads.judge(&arrived, &origin, tokens);
        let is_users = state.role == LineRole::User;
        if heads.ended.len() < heads.index.entries().len() {
            if state.carried.contains_key(&from) {
                return Err(ReceiveError::NotCarried);
            }
            state.check_kind(arrived.reached)?;
        }
        let counted = match state.again(to, arrived.reached) {
            Some(again) => self.count_rounds(id, &arrived, heads, again, now)?,
            None => self.count(id, &arrived, heads, now)?,
        };
        let frame = arrived.frame;
        if let Some((number, line)) = place
            && let Some(state) = self.line(number, line)
        {
            state.drop_kept(from, slot, frame);
        }
        let Some((number, line)) = place.filter(|_| counted) else {
            return Ok(());
        };
        let attempts = self.scheduler.config().retries;
        let attempts = arrived.retriable.then_some(attempts);
        let Some(state) = self.line(number, line) else {
            return Ok(());
        };
        if !is_users {
            heads.part(state.keeps_parts());
        }
        if matches!(state.then(to), Then::Repeat { from, .. } if from != arrived.reached) {
            let items = heads.accepted.iter().map(|(range, _)| range.clone());
            items.for_each(|items| state.end_loop(to, items));
        }
        let Some(tokens) = state.tokens.get_mut(usize::from(from)) else {
            return Ok(());
        };
        let mut parcels = Parcels::new(arrived, &heads.index, &heads.refused, &origin, attempts);
        for (range, way) in heads.accepted.drain(..) {
            parcels.cut(range.clone(), way, tokens);
            tokens.release(&range);
        }
        let done = parcels.done;
        self.hand_on((number, line), done, now);
        Ok(())
    }

    /// Hands results on that count: to the users, to other segments, or to what waits for them.
    pub(super) fn hand_on(
        &mut self,
        (number, line): (u64, u16),
        parcels: Vec<Parcel>,
        now: Duration,
    ) {
        for parcel in parcels {
            let Some(state) = self.line(number, line) else {
                return;
            };
            match parcel {
                Parcel::Token(segment, first, batch) => {
                    let items = first..first + u64::from(batch.count());
                    if let Some(tokens) = state.tokens.get_mut(usize::from(segment)) {
                        tokens.insert(first, batch);
                    }
                    if state.dead > 0 {
                        self.drop_unwanted(number, line, items, now);
                    }
                }
                Parcel::Part(first, batch) => {
                    let items = first..first + u64::from(batch.count());
                    state.parts.insert(first, batch);
                    match state.role {
                        LineRole::Joined => self.parts_came(number, line, items, now),
                        _ => self.partials_came(number, line, items, now),
                    }
                }
                Parcel::Outcome(run, contents) if state.role == LineRole::User => {
                    let outcomes = Outcomes {
                        first: run.start,
                        // As many as the items of one answer.
                        count: (run.end - run.start) as u32,
                        contents,
                    };
                    let stream = number;
                    self.effects.push_back(Effect::Deliver { stream, outcomes });
                }
                Parcel::Outcome(run, contents) => {
                    self.settle(number, line, run.start, contents, now);
                }
            }
        }
        self.advance(number, now);
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
            reached: arrived.reached,
            sizes: &heads.sizes,
            ended: &heads.ended,
            busy: arrived.busy,
        };
        let accepted = if arrived.retriable {
            self.scheduler.retriable(slot, results, now)?
        } else {
            self.scheduler.results(slot, results, now)?
        };
        heads.accepted.clear();
        Ok(accept(&mut heads.accepted, accepted))
    }

    /// The same, of items that have another round before them. Those that have gone as many as they may go on at the next segment.
    fn count_rounds(
        &mut self,
        slot: SlotId,
        arrived: &Arrived,
        heads: &mut Heads,
        again: Again,
        now: Duration,
    ) -> Result<bool, Breach> {
        let Some((stream, ..)) = self.scheduler.frame(slot, arrived.frame) else {
            return Ok(false);
        };
        let Some(&(number, line)) = self.numbers.get(&stream) else {
            return Ok(false);
        };
        heads.accepted.clear();
        let (mut start, mut counts) = (0, false);
        while start < heads.sizes.len() {
            let Some(state) = self.line(number, line) else {
                return Ok(counts);
            };
            let is_over = |place: usize| {
                let round = state.next_round(again.last, arrived.first + place as u64);
                again.at_most.is_some_and(|most| round >= most)
            };
            let ends = is_over(start);
            let end = (start..heads.sizes.len()).find(|place| is_over(*place) != ends);
            let end = end.unwrap_or(heads.sizes.len());
            let results = Results {
                frame: arrived.frame,
                first: arrived.first + start as u64,
                reached: if ends {
                    again.last + 1
                } else {
                    arrived.reached
                },
                sizes: &heads.sizes[start..end],
                ended: &heads.ended,
                // Nobody knows what each of them took.
                busy: arrived.busy * u32::from(start == 0),
            };
            start = end;
            let before = heads.accepted.len();
            let accepted = self.scheduler.results(slot, results, now)?;
            counts |= accept(&mut heads.accepted, accepted);
            let Some(state) = self.line(number, line) else {
                return Ok(counts);
            };
            for (range, way) in &heads.accepted[before..] {
                match way {
                    ResultWay::Token(_) if !ends && again.at_most.is_some() => {
                        state.count_round(again.last, range.clone());
                    }
                    _ => state.end_loop(again.last, range.clone()),
                }
            }
        }
        Ok(counts)
    }
}

/// Puts what counts in the order of items, in which bulk parts are handed out. Says whether there is any.
pub(super) fn accept(
    counts: &mut Vec<(Range<Index>, ResultWay)>,
    accepted: Option<Accepted<'_>>,
) -> bool {
    let Some(accepted) = accepted else {
        return false;
    };
    let before = counts.len();
    let outcomes = accepted.outcomes.iter();
    let outcomes = outcomes.map(|range| (range.clone(), ResultWay::Outcome));
    let tokens = accepted.tokens.iter();
    let tokens = tokens.map(|range| (range.clone(), ResultWay::Token(accepted.reached)));
    counts.extend(outcomes.chain(tokens));
    counts[before..].sort_unstable_by_key(|(range, _)| range.start);
    true
}

/// What items have before them that go another round.
#[derive(Clone, Copy)]
pub(super) struct Again {
    /// The last segment of the loop.
    last: u16,
    at_most: Option<u32>,
}

impl ItemLine {
    /// Whether items that have reached this segment go another round, when their frame runs through to `to`.
    fn again(&self, to: u16, reached: u16) -> Option<Again> {
        let Then::Repeat { from, at_most } = self.ways.get(usize::from(to))?.0 else {
            return None;
        };
        let last = to;
        (reached == from && from < to).then_some(Again { last, at_most })
    }

    /// Whether there can be a result of each item, when items have reached this segment.
    fn check_kind(&self, reached: u16) -> Result<(), ReceiveError> {
        let last = usize::from(reached).checked_sub(1);
        match last.and_then(|last| self.ways.get(last)) {
            Some((Then::Expand { after, .. }, _)) if *after != Some(reached) => {
                Err(ReceiveError::NotExpanded)
            }
            Some((Then::Fold, _)) => Err(ReceiveError::NotFolded),
            _ => Ok(()),
        }
    }
}
