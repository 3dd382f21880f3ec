//! Items that are made into others in their order: those enter another line as there is room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use exoskel_flow::{Index, LineRole};

use super::lines::ItemLine;
use super::{Effect, Router};
use crate::outcome::{Contents, Origin, Outcomes};
use crate::payload::{Batch, RecordReader};
use crate::tokens::Collected;

/// What consecutive items came to that have their place in the line of what they make.
#[derive(Debug)]
pub(super) enum OrderedPlace {
    /// For each of them, how many others it was made into; and those, if there are any.
    Made(Vec<u32>, Option<Batch>),
    /// One has its outcome instead.
    Ended(Contents),
}

/// What consecutive items were made into.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) first: Index,
    /// How many others, for each of them.
    pub(super) counts: Vec<u32>,
    pub(super) parts: Option<Batch>,
    /// What the first of them, which is the only one then, is given back later.
    pub(super) state: Option<Collected>,
    pub(super) origin: Arc<Origin>,
}

impl ItemLine {
    /// Where in the line below ends what the user's items were made into, now that items from `first` on are made into so many others
    /// each, of which the first would be the `admitted`th one there.
    fn pass_ends(
        &mut self,
        is_users: bool,
        first: Index,
        counts: &[u32],
        admitted: Index,
    ) -> Vec<Index> {
        let mut passed = Vec::new();
        let mut end_below = admitted;
        let is_at = |ends: &VecDeque<Index>, place| ends.front().is_some_and(|end| *end <= place);
        while is_at(&self.ends, first) {
            self.ends.pop_front();
            passed.push(end_below);
        }
        for (place, count) in (first + 1..).zip(counts) {
            end_below += u64::from(*count);
            if is_users {
                passed.push(end_below);
            }
            while is_at(&self.ends, place) {
                self.ends.pop_front();
                passed.push(end_below);
            }
        }
        passed
    }

    /// What the user's items are made into ends at these places of this line.
    fn take_ends(&mut self, stream: u64, ends: Vec<Index>, effects: &mut VecDeque<Effect>) {
        if ends.is_empty() {
            return;
        }
        match self.role {
            LineRole::User => effects.push_back(Effect::Ends { stream, ends }),
            _ => self.ends.extend(ends),
        }
    }
}

impl Router {
    /// Items were made into others, which follow each other in their order.
    pub(super) fn place(&mut self, number: u64, line: u16, made: Made) {
        if let Some(state) = self.line(number, line) {
            let place = OrderedPlace::Made(made.counts, made.parts);
            state.places.insert(made.first, place);
        }
    }

    /// What was made of items enters as there is room for it, in their order.
    pub(super) fn advance(&mut self, number: u64, now: Duration) {
        let stream = self.streams.get(&number);
        let Some(stream) = stream.filter(|stream| stream.lines.len() > 1) else {
            return;
        };
        // There are no more than steps.
        let lines = stream.lines.len() as u16;
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for line in (0..lines).rev() {
                has_moved |= self.advance_line(number, line, now);
            }
        }
        for line in 0..lines {
            self.end_line(number, line);
        }
        self.end_folding(number, now);
    }

    /// Says whether anything has entered, or has ended where nothing has.
    fn advance_line(&mut self, number: u64, line: u16, now: Duration) -> bool {
        let mut has_moved = false;
        while self.enter_next(number, line, now).is_some() {
            has_moved = true;
        }
        let has_ended = self.flush_ends(number, line).is_some();
        has_moved || has_ended
    }

    /// What the next items of a line came to enters the line of what they make, if it is here and there is room.
    fn enter_next(&mut self, number: u64, line: u16, now: Duration) -> Option<()> {
        let stream = self.streams.get_mut(&number)?;
        let [state, below] = {
            let LineRole::Ordered { line: below } = stream.lines.get(usize::from(line))?.role
            else {
                return None;
            };
            let both = [usize::from(line), usize::from(below)];
            stream.lines.get_disjoint_mut(both).ok()?
        };
        // Somebody waits for the next item, so there are places if there is nothing else.
        if *state.places.first_key_value()?.0 != state.next || self.scheduler.tickets(below.id) == 0
        {
            return None;
        }
        let (first, place) = state.places.pop_first()?;
        let LineRole::Ordered { line: below_line } = state.role else {
            return None;
        };
        if stream.tells_ends {
            let counts = match &place {
                OrderedPlace::Made(counts, _) => counts,
                OrderedPlace::Ended(_) => &vec![1],
            };
            let admitted = self.scheduler.progress(below.id)?.admitted;
            let ends = state.pass_ends(line == 0, first, counts, admitted);
            below.take_ends(number, ends, &mut self.effects);
        }
        let (count, ended) = match place {
            OrderedPlace::Made(counts, parts) => {
                if let Some(parts) = parts {
                    let sizes = parts.sizes();
                    let base = self.scheduler.admit_made(below.id, &sizes, now)?;
                    if below.is_end() {
                        for index in base..base + sizes.len() as u64 {
                            self.scheduler.finish(below.id, index, now);
                        }
                        let outcomes = Outcomes {
                            first: base,
                            count: parts.count(),
                            contents: Contents::Records(reader_of(&parts), parts.origin().clone()),
                        };
                        let stream = number;
                        self.effects.push_back(Effect::Deliver { stream, outcomes });
                    } else if let Some(tokens) = below.tokens.first_mut() {
                        tokens.insert(base, parts);
                    }
                }
                // No more than one answer has.
                (counts.len() as u32, None)
            }
            OrderedPlace::Ended(contents) => {
                let base = self.scheduler.admit_made(below.id, &[0], now)?;
                self.scheduler.finish(below.id, base, now);
                (1, Some((base, contents)))
            }
        };
        state.next += u64::from(count);
        self.scheduler.taken(state.id, first, count, now);
        if let Some((index, contents)) = ended {
            self.settle(number, below_line, index, contents, now);
        }
        if line == 0 {
            self.admit_backlog(number, now);
        }
        Some(())
    }

    /// What the user's items were made into may end at the next item of a line, although that one is not here: nothing is between.
    fn flush_ends(&mut self, number: u64, line: u16) -> Option<()> {
        let stream = self.streams.get_mut(&number)?;
        let LineRole::Ordered { line: below } = stream.lines.get(usize::from(line))?.role else {
            return None;
        };
        let both = [usize::from(line), usize::from(below)];
        let [state, below] = stream.lines.get_disjoint_mut(both).ok()?;
        if state.ends.front().is_none_or(|end| *end > state.next) {
            return None;
        }
        let admitted = self.scheduler.progress(below.id)?.admitted;
        let ends = state.pass_ends(false, state.next, &[], admitted);
        below.take_ends(number, ends, &mut self.effects);
        Some(())
    }

    /// The line of what the items of this one make ends, when all of them have made it.
    fn end_line(&mut self, number: u64, line: u16) -> Option<()> {
        let stream = self.streams.get_mut(&number)?;
        let has_input = line == 0 && stream.input_ended && stream.backlog.is_empty();
        let LineRole::Ordered { line: below_line } = stream.lines.get(usize::from(line))?.role
        else {
            return None;
        };
        let both = [usize::from(line), usize::from(below_line)];
        let [state, below] = stream.lines.get_disjoint_mut(both).ok()?;
        let admitted = self.scheduler.progress(state.id)?.admitted;
        let has_ended = has_input || state.has_ended;
        if !has_ended || state.next < admitted || std::mem::replace(&mut below.has_ended, true) {
            return None;
        }
        self.scheduler.end_of_input(below.id);
        if below.role == LineRole::User {
            let count = self.scheduler.progress(below.id)?.admitted;
            let stream = number;
            self.effects.push_back(Effect::Total { stream, count });
        }
        Some(())
    }
}

/// A reader of a whole batch.
fn reader_of(batch: &Batch) -> RecordReader {
    let (records, bulk) = batch.range(0, batch.count());
    let bulk = bulk.iter().map(|part| Vec::from(part.clone())).collect();
    RecordReader::new(records, bulk)
}
