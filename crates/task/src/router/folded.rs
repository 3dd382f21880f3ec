//! Streams whose items are folded into one: partial results, and lists of neighbours among them that are combined.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Index, LineRole, Program, SlotId, Then};

use super::answers::ReceiveError;
use super::blocks::least_of;
use super::parcels::{Arrived, Heads, origin_of};
use super::{Effect, Router, Stream};
use crate::outcome::{Contents, Origin, Outcomes};
use crate::payload::{Batch, Format};
use crate::tokens::Collected;

/// So many partial results that follow each other are combined in one go.
const COMBINED_MAX: usize = 16;

/// Two at least, if together they have so many bytes.
const COMBINED_BYTES: u64 = 4 * 1024 * 1024;

/// How far the items of a stream are folded.
#[derive(Debug)]
pub(super) struct Reduction {
    /// The line whose items are folded, that of lists of partial results, and that of the last list.
    line: u16,
    combine: u16,
    last: u16,
    has_initial: bool,
    /// By the first item of each.
    partials: BTreeMap<Index, Partial>,
    /// Which items the lists are of that are being combined.
    combining: BTreeMap<Index, Range<Index>>,
    /// The last list is on its way.
    is_ending: bool,
    /// It has its outcome.
    is_over: bool,
}

/// What consecutive items were folded into.
#[derive(Debug)]
struct Partial {
    end: Index,
    value: Collected,
    origin: Arc<Origin>,
}

impl Reduction {
    /// Of a program that folds.
    pub(super) fn of(program: &Program) -> Option<Self> {
        let mut lines = (0..).zip(program.lines());
        lines.find_map(|(line, known)| match known.role {
            LineRole::Folded {
                combine,
                last,
                has_initial,
            } => Some(Self {
                line,
                combine,
                last,
                has_initial,
                partials: BTreeMap::new(),
                combining: BTreeMap::new(),
                is_ending: false,
                is_over: false,
            }),
            _ => None,
        })
    }

    /// The neighbours of a partial result, itself included, if they are worth combining.
    fn neighbours(&self, first: Index) -> Option<Range<Index>> {
        let mut start = first;
        for (before, partial) in self.partials.range(..first).rev().take(COMBINED_MAX) {
            if partial.end != start {
                break;
            }
            start = *before;
        }
        let mut run = start..start;
        let (mut count, mut bytes) = (0, 0);
        for (next, partial) in self.partials.range(start..).take(COMBINED_MAX) {
            if *next != run.end {
                break;
            }
            run.end = partial.end;
            count += 1;
            bytes += partial.value.bytes();
        }
        (count >= COMBINED_MAX || count > 1 && bytes >= COMBINED_BYTES).then_some(run)
    }

    /// Takes partial results out, as a list.
    fn take(&mut self, items: &Range<Index>) -> Batch {
        let mut later = self.partials.split_off(&items.start);
        let mut beyond = later.split_off(&items.end);
        self.partials.append(&mut beyond);
        let origins = later.values().map(|partial| partial.origin.clone());
        let origin = origins.reduce(|first, second| least_of(&first, &second));
        let count = later.len() as u64;
        let values = later.into_values().map(|partial| partial.value);
        Batch::list(count, false, values, origin.unwrap_or_else(Origin::user))
    }
}

impl Router {
    /// This is the outcome of all items.
    pub(super) fn end_reduction(&mut self, number: u64, contents: Contents) {
        let stream = self.streams.get_mut(&number);
        let Some(reduction) = stream.and_then(|stream| stream.reduction.as_mut()) else {
            return;
        };
        if std::mem::replace(&mut reduction.is_over, true) {
            return;
        }
        reduction.partials.clear();
        let outcomes = Outcomes {
            first: 0,
            count: 1,
            contents,
        };
        let stream = number;
        self.effects.push_back(Effect::Deliver { stream, outcomes });
        self.effects.push_back(Effect::Total { stream, count: 1 });
    }

    /// A slot has one result of consecutive items.
    pub(super) fn folded(
        &mut self,
        slot: u32,
        arrived: Arrived,
        count: u32,
        heads: &mut Heads,
        now: Duration,
    ) -> Result<(), ReceiveError> {
        let id = SlotId(slot);
        heads.read(&arrived, 1)?;
        let Some((stream, from, to)) = self.scheduler.frame(id, arrived.frame) else {
            // Late. The scheduler may still have counted on its bytes.
            self.scheduler
                .results(id, heads.results(&arrived, 1), now)?;
            return Ok(());
        };
        let items = arrived.first..arrived.first.saturating_add(count.into());
        let place = self.numbers.get(&stream).copied();
        if place.is_some() && !self.scheduler.owes(id, arrived.frame, items.clone()) {
            return Err(ReceiveError::FoldedOthers);
        }
        // A claim that has been borne out, or is cut to what the frame has.
        let most = self.scheduler.frame_items(id, arrived.frame);
        heads.sizes.resize(count.min(most) as usize, 0);
        let state = place.and_then(|(number, line)| {
            let state = self.streams.get(&number)?.lines.get(usize::from(line))?;
            Some((state, state.tokens.get(usize::from(from))?))
        });
        let (Some(known), Some((state, tokens)), Some((number, line))) =
            (self.slots.get(&slot), state, place)
        else {
            // Nobody wants the stream any more.
            self.scheduler
                .results(id, heads.results(&arrived, to + 1), now)?;
            return Ok(());
        };
        if state.then(to) != Then::Fold {
            return Err(ReceiveError::NotFolding);
        }
        let reached = state.segments.len() as u16;
        let origins = tokens.origins(items.clone());
        let origins = origins.map(|(_, token)| origin_of(&known.origin, token));
        let origin = origins.reduce(|first, second| least_of(&first, &second));
        let origin = origin.unwrap_or_else(|| known.origin.clone());
        let (format, is_exception) = heads
            .index
            .entries()
            .first()
            .map_or((Format::Data, false), |entry| {
                (entry.format, entry.exception)
            });
        let results = heads.results(&arrived, reached);
        if self.scheduler.results(id, results, now)?.is_none() {
            return Ok(());
        }
        let Some(state) = self.line(number, line) else {
            return Ok(());
        };
        if let Some(tokens) = state.tokens.get_mut(usize::from(from)) {
            tokens.release(&items);
        }
        let id = state.id;
        self.scheduler.taken(id, items.start, count, now);
        let value = Collected {
            records: arrived.records,
            bulk: arrived.bulk.into_iter().map(Bytes::from).collect(),
        };
        if !origin.allows(format) {
            self.end_reduction(number, Contents::Refused(origin));
        } else if is_exception {
            self.end_reduction(number, Contents::Records(value.into_reader(), origin));
        } else {
            self.take_partial(number, items, value, origin, now);
        }
        self.admit_backlog(number, now);
        self.advance(number, now);
        Ok(())
    }

    /// A partial result is here.
    fn take_partial(
        &mut self,
        number: u64,
        items: Range<Index>,
        value: Collected,
        origin: Arc<Origin>,
        now: Duration,
    ) {
        let stream = self.streams.get_mut(&number);
        let Some(stream) = stream else {
            return;
        };
        let Some(reduction) = &mut stream.reduction else {
            return;
        };
        if reduction.is_over {
            return;
        }
        let end = items.end;
        let partial = Partial { end, value, origin };
        reduction.partials.insert(items.start, partial);
        if let Some(run) = reduction.neighbours(items.start) {
            let list = reduction.take(&run);
            let line = reduction.combine;
            if let Some(index) = self.admit_list(number, line, list, now)
                && let Some(reduction) = self.reduction(number)
            {
                reduction.combining.insert(index, run);
            }
        }
    }

    fn reduction(&mut self, number: u64) -> Option<&mut Reduction> {
        self.streams.get_mut(&number)?.reduction.as_mut()
    }

    /// A list becomes an item of this line. Says which.
    fn admit_list(&mut self, number: u64, line: u16, list: Batch, now: Duration) -> Option<Index> {
        let stream = self.streams.get_mut(&number)?;
        let state = stream.lines.get_mut(usize::from(line))?;
        let index = self.scheduler.admit_made(state.id, &list.sizes(), now)?;
        state.tokens.first_mut()?.insert(index, list);
        Some(index)
    }

    /// Lists of partial results have been combined.
    pub(super) fn partials_came(
        &mut self,
        number: u64,
        line: u16,
        items: Range<Index>,
        now: Duration,
    ) {
        for index in items {
            let Some(state) = self.line(number, line) else {
                return;
            };
            let (id, role, item) = (state.id, state.role, index..index + 1);
            let origin = state.parts.origins(item.clone()).next();
            let origin = origin.and_then(|(_, origin)| origin.cloned());
            let (Some(value), Some(origin)) = (state.parts.collect(item.clone()), origin) else {
                continue;
            };
            state.parts.release(&item);
            self.scheduler.taken(id, index, 1, now);
            if role == LineRole::Total {
                let contents = Contents::Records(value.into_reader(), origin);
                self.end_reduction(number, contents);
            } else if let Some(reduction) = self.reduction(number)
                && let Some(run) = reduction.combining.remove(&index)
            {
                self.take_partial(number, run, value, origin, now);
            }
        }
    }

    /// When all items are folded, what is left is combined at last.
    pub(super) fn end_folding(&mut self, number: u64, now: Duration) -> Option<()> {
        let stream = self.streams.get_mut(&number)?;
        let has_input = stream.input_ended && stream.backlog.is_empty();
        let Stream {
            lines, reduction, ..
        } = stream;
        let reduction = reduction.as_mut()?;
        let state = lines.get(usize::from(reduction.line))?;
        let has_ended = state.has_ended || reduction.line == 0 && has_input;
        if !has_ended || reduction.is_ending || reduction.is_over || !reduction.combining.is_empty()
        {
            return None;
        }
        let admitted = self.scheduler.progress(state.id)?.admitted;
        let partials = reduction.partials.iter();
        let folded: u64 = partials.map(|(first, partial)| partial.end - first).sum();
        if folded < admitted {
            return None;
        }
        reduction.is_ending = true;
        if admitted == 0 && !reduction.has_initial {
            self.end_reduction(number, Contents::NothingToReduce);
            return None;
        }
        let list = reduction.take(&(0..admitted));
        let last = reduction.last;
        self.admit_list(number, last, list, now).map(drop)
    }
}
