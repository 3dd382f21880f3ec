//! Answers that are lists: what items are made into.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{Index, Results, SlotId, Then};

use super::Router;
use super::answers::ReceiveError;
use super::bulk_parts::BulkParts;
use super::order::Made;
use super::parcels::{Arrived, Heads, origin_of};
use crate::outcome::{Contents, Origin};
use crate::payload::{Format, ListHead};
use crate::tokens::{Collected, Tokens};

impl Router {
    pub(super) fn expanded(
        &mut self,
        slot: u32,
        arrived: Arrived,
        count: u32,
        heads: &mut Heads,
        now: Duration,
    ) -> Result<(), ReceiveError> {
        let id = SlotId(slot);
        let records = heads.read_lists(&arrived, count)?;
        let frame = self.scheduler.frame(id, arrived.frame);
        let place = frame.and_then(|(stream, from, to)| {
            let (number, line) = *self.numbers.get(&stream)?;
            Some((number, line, from, to))
        });
        let state = place.and_then(|(number, line, from, to)| {
            let state = self.streams.get(&number)?.lines.get(usize::from(line))?;
            let last = state.segments.len() as u16;
            let carries = state.carried.contains_key(&from);
            let tokens = state.tokens.get(usize::from(from))?;
            Some((state.then(to), tokens, last, carries))
        });
        let (Some(known), Some((then, tokens, last, carries)), Some((number, line, from, _))) =
            (self.slots.get(&slot), state, place)
        else {
            // Late. The scheduler may still have counted on its bytes.
            let reached = frame.map_or(1, |(_, _, to)| to + 1);
            self.scheduler
                .results(id, heads.results(&arrived, reached), now)?;
            return Ok(());
        };
        let Then::Expand {
            line: below, join, ..
        } = then
        else {
            return Err(ReceiveError::NotExpanding);
        };
        if carries {
            return Err(ReceiveError::NotCarried);
        }
        let origin = known.origin.clone();
        heads.judge_lists(&arrived, &origin, tokens);
        let results = heads.results(&arrived, join.unwrap_or(last));
        let accepted = match join {
            Some(_) => self.scheduler.expanded(id, results, now)?,
            None => self.scheduler.results(id, results, now)?,
        };
        let Some(accepted) = accepted else {
            return Ok(());
        };
        let counts = accepted.outcomes.iter().chain(accepted.tokens);
        let mut counts: Vec<Range<Index>> = counts.cloned().collect();
        counts.sort_unstable_by_key(|range| range.start);
        let Some(state) = self.line(number, line) else {
            return Ok(());
        };
        let Some(tokens) = state.tokens.get_mut(usize::from(from)) else {
            return Ok(());
        };
        let mut cutter = Cutter {
            heads,
            first: arrived.first,
            records,
            bulk: BulkParts::new(arrived.bulk),
        };
        let mut made = Vec::new();
        for range in counts {
            for (run, token) in tokens.origins(range.clone()) {
                cutter.cut(run, &origin_of(&origin, token), &mut made);
            }
            tokens.release(&range);
        }
        for made in made {
            match (made, join) {
                (Expansion::Refused(index, origin), _) => {
                    let contents = Contents::Refused(origin);
                    self.settle(number, line, index, contents, now);
                }
                (Expansion::Made(made), None) => self.place(number, line, *made),
                (Expansion::Made(made), Some(join)) => {
                    let items = made.first..made.first + made.counts.len() as u64;
                    // What they were made into is counted where it is.
                    let kept = made.state.as_ref().map_or(0, Collected::bytes);
                    if let Some(state) = self.line(number, line) {
                        let id = state.id;
                        self.scheduler.keep(id, items.clone(), kept);
                    }
                    self.send_away(number, (line, below), join, *made, now);
                    self.drop_unwanted(number, line, items, now);
                }
            }
        }
        self.advance(number, now);
        Ok(())
    }
}

/// What an item came to, or several in a row.
enum Expansion {
    Made(Box<Made>),
    Refused(Index, Arc<Origin>),
}

/// Lists that are taken apart, from the first to the last.
struct Cutter<'a> {
    heads: &'a Heads,
    first: Index,
    records: Bytes,
    bulk: BulkParts,
}

impl Cutter<'_> {
    /// Cuts out what consecutive items of one origin came to. They lie behind those that were cut out before.
    fn cut(&mut self, items: Range<Index>, origin: &Arc<Origin>, done: &mut Vec<Expansion>) {
        let mut start = items.start;
        while start < items.end {
            let mut end = start + 1;
            if self.is_refused(start) {
                done.push(Expansion::Refused(start, origin.clone()));
            } else {
                // Those of several items are one batch, unless there is something else between them.
                let is_plain = |index| !self.list(index).has_state && !self.is_refused(index);
                if is_plain(start) {
                    let stop = (start..items.end).find(|index| !is_plain(*index));
                    end = stop.unwrap_or(items.end);
                }
                done.push(Expansion::Made(Box::new(self.made(start..end, origin))));
            }
            start = end;
        }
    }

    fn made(&mut self, items: Range<Index>, origin: &Arc<Origin>) -> Made {
        let (first, last) = (self.list(items.start), self.list(items.end - 1));
        let state = first.records().start..first.parts().start;
        let state = first.has_state.then(|| self.take(state));
        let parts = first.parts().start..last.parts().end;
        let batch = (!parts.is_empty()).then(|| {
            let Collected { records, bulk } = self.take(parts.clone());
            let index = &self.heads.index;
            index.batch(parts, records, bulk, origin.clone())
        });
        Made {
            first: items.start,
            counts: items
                .map(|index| self.list(index).parts().len() as u32)
                .collect(),
            parts: batch,
            state,
            origin: origin.clone(),
        }
    }

    /// What counts is in the answer, so there is one for each item.
    fn list(&self, index: Index) -> ListHead {
        self.heads.lists[(index - self.first) as usize]
    }

    fn is_refused(&self, index: Index) -> bool {
        self.heads.refused.binary_search(&index).is_ok()
    }

    /// Some records and their bulk parts.
    fn take(&mut self, places: Range<usize>) -> Collected {
        let index = &self.heads.index;
        let records = self.records.slice(index.bytes(places.clone()));
        let parts = index.parts(places);
        Collected {
            records,
            bulk: self.bulk.take(parts).map(Bytes::from).collect(),
        }
    }
}

impl Heads {
    /// Reads the heads of lists. Says where their records are.
    fn read_lists(&mut self, arrived: &Arrived, count: u32) -> Result<Bytes, ReceiveError> {
        self.ended.clear();
        self.refused.clear();
        let (lists, parts) = (&mut self.lists, arrived.bulk.len());
        let records = self
            .index
            .read_lists(&arrived.records, parts, count, lists)?;
        if self.index.entries().iter().any(|entry| entry.exception) {
            return Err(ReceiveError::ExceptionAmongParts);
        }
        let mut sizes = Vec::new();
        self.index
            .sizes(arrived.bulk.iter().map(Vec::len), &mut sizes);
        self.sizes.clear();
        let lists = self.lists.iter();
        let of_items = lists.map(|list| sizes[list.records()].iter().sum::<u64>());
        self.sizes.extend(of_items);
        Ok(records)
    }

    /// Finds what must be data and isn't, when `origin` made these of `tokens`.
    fn judge_lists(&mut self, arrived: &Arrived, origin: &Arc<Origin>, tokens: &Tokens) {
        if origin.is_trusted() && tokens.are_trusted() {
            return;
        }
        for (index, list) in (arrived.first..Index::MAX).zip(&self.lists) {
            let mut entries = self.index.entries()[list.records()].iter();
            let has_pickle = entries.any(|entry| entry.format == Format::Pickle);
            if has_pickle && !(origin.is_trusted() && tokens.is_trusted(index)) {
                self.refused.push(index);
                self.ended.push(index);
            }
        }
    }

    /// As the scheduler is told of them.
    pub(super) fn results(&self, arrived: &Arrived, reached: u16) -> Results<'_> {
        Results {
            frame: arrived.frame,
            first: arrived.first,
            reached,
            sizes: &self.sizes,
            ended: &self.ended,
            busy: arrived.busy,
        }
    }
}
