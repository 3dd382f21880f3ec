//! Items that wait for what they were made into: it comes back in any order, and as one list.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use exoskel_flow::Index;

use super::lines::ItemLine;
use super::order::Made;
use super::{Effect, Router, Stream};
use crate::outcome::{Contents, Origin};
use crate::payload::Batch;
use crate::tokens::{Collected, Tokens};

/// What one item was made into: consecutive items of another line.
#[derive(Debug)]
pub(super) struct Block {
    end: Index,
    /// How many of them have no outcome.
    left: u64,
    /// The line and the number of the item, and the segment at which it goes on.
    parent: (u16, Index),
    join: u16,
    /// What it is given back beside the outcomes, and who made that.
    state: Option<Collected>,
    origin: Arc<Origin>,
    /// The item has its outcome already.
    is_dead: bool,
}

/// Blocks by the first item of each.
#[derive(Debug, Default)]
pub(super) struct KeptBlocks {
    by_first: BTreeMap<Index, Block>,
    /// The memory that they and their states take.
    bytes: u64,
}

/// A block, and that its item is away. Nodes of a map may be half empty.
const BLOCK_BYTES: u64 = 2 * (size_of::<(Index, Block)>() + size_of::<[(u16, Index); 2]>()) as u64;

impl Block {
    fn bytes(&self) -> u64 {
        BLOCK_BYTES + self.state.as_ref().map_or(0, Collected::bytes)
    }
}

impl KeptBlocks {
    fn insert(&mut self, first: Index, block: Block) {
        self.bytes += block.bytes();
        self.by_first.insert(first, block);
    }

    fn remove(&mut self, first: Index) -> Option<Block> {
        let block = self.by_first.remove(&first)?;
        self.bytes -= block.bytes();
        Some(block)
    }
}

impl Stream {
    /// The memory that is kept of what its items were made into, but for the scheduler's own and what waits to be made in its order.
    fn kept_bytes(&self) -> u64 {
        let of_line = |(number, line): (usize, &ItemLine)| {
            // The first segment of the first line has the user's items, which have budgets of their own.
            let tokens = line.tokens.iter().skip(usize::from(number == 0));
            tokens.map(Tokens::bytes).sum::<u64>() + line.parts.bytes() + line.blocks.bytes
        };
        self.lines.iter().enumerate().map(of_line).sum()
    }
}

impl ItemLine {
    /// The block that an item is in.
    fn block_of(&mut self, index: Index) -> Option<(Index, &mut Block)> {
        let (first, block) = self.blocks.by_first.range_mut(..=index).next_back()?;
        (index < block.end).then_some((*first, block))
    }

    /// Whether nobody waits for an item.
    pub(super) fn is_dead(&mut self, index: Index) -> bool {
        self.dead > 0 && self.block_of(index).is_some_and(|(_, block)| block.is_dead)
    }
}

impl Router {
    /// A part has ended without a result. Says whose outcome that is, if it is news.
    pub(super) fn end_part(
        &mut self,
        number: u64,
        line: u16,
        index: Index,
        now: Duration,
    ) -> Option<(u16, Index)> {
        let state = self.line(number, line)?;
        let id = state.id;
        let (first, block) = state.block_of(index)?;
        block.left = block.left.saturating_sub(1);
        let (was_dead, end, parent) = (block.is_dead, block.end, block.parent);
        block.is_dead = true;
        state.dead += usize::from(!was_dead);
        self.scheduler.taken(id, index, 1, now);
        if !was_dead {
            self.drop_parts(number, line, first..end, now);
        }
        self.forget_dead(number, line, first);
        if was_dead {
            return None;
        }
        let stream = self.streams.get_mut(&number)?;
        stream.away.remove(&parent);
        let id = stream.lines.get(usize::from(parent.0))?.id;
        self.scheduler.end_away(id, parent.1, now);
        Some(parent)
    }

    /// Of these items nobody wants what is here: what is at slots goes when it comes.
    fn drop_parts(&mut self, number: u64, line: u16, items: Range<Index>, now: Duration) {
        let mut to_drop = vec![(line, items)];
        while let Some((line, items)) = to_drop.pop() {
            let first = items.start;
            for index in items {
                let Some(stream) = self.streams.get_mut(&number) else {
                    return;
                };
                let Some(state) = stream.lines.get_mut(usize::from(line)) else {
                    return;
                };
                let item = index..index + 1;
                if let Some(segment) = self.scheduler.withdraw(state.id, index) {
                    if let Some(tokens) = state.tokens.get_mut(usize::from(segment)) {
                        tokens.release(&item);
                    }
                } else if self.scheduler.is_finished(state.id, index) {
                    // It has been counted.
                    state.parts.release(&item);
                    self.scheduler.taken(state.id, index, 1, now);
                    continue;
                } else if let Some((below, block)) = stream.away.remove(&(line, index)) {
                    self.scheduler.end_away(state.id, index, now);
                    self.scheduler.taken(state.id, index, 1, now);
                    if let Some(below_state) = stream.lines.get_mut(usize::from(below))
                        && let Some(known) = below_state.blocks.by_first.get_mut(&block)
                        && !std::mem::replace(&mut known.is_dead, true)
                    {
                        to_drop.push((below, block..known.end));
                        below_state.dead += 1;
                    }
                } else {
                    continue;
                }
                let state = &mut stream.lines[usize::from(line)];
                state.end_rounds(index..index + 1);
                if let Some((_, block)) = state.block_of(index) {
                    block.left = block.left.saturating_sub(1);
                }
            }
            self.forget_dead(number, line, first);
        }
    }

    /// A block that nobody waits for goes when nothing of it is left.
    fn forget_dead(&mut self, number: u64, line: u16, first: Index) {
        let Some(state) = self.line(number, line) else {
            return;
        };
        let block = state.blocks.by_first.get(&first);
        if block.is_some_and(|block| block.is_dead && block.left == 0) {
            state.blocks.remove(first);
            state.dead -= 1;
        }
    }

    /// Outcomes of consecutive parts are here.
    pub(super) fn parts_came(
        &mut self,
        number: u64,
        line: u16,
        items: Range<Index>,
        now: Duration,
    ) {
        let mut position = items.start;
        while position < items.end {
            let Some(state) = self.line(number, line) else {
                return;
            };
            let id = state.id;
            let Some((first, block)) = state.block_of(position) else {
                return;
            };
            let run = position..block.end.min(items.end);
            position = run.end;
            let count = run.end - run.start;
            block.left = block.left.saturating_sub(count);
            let is_complete = block.left == 0;
            if block.is_dead {
                for index in run.clone() {
                    state.parts.release(&(index..index + 1));
                }
                // As many as one answer has.
                self.scheduler.taken(id, run.start, count as u32, now);
                self.forget_dead(number, line, first);
            } else if is_complete && let Some(block) = state.blocks.remove(first) {
                self.complete(number, line, first, block, now);
            }
        }
    }

    /// All parts of an item are here: it goes on.
    fn complete(&mut self, number: u64, line: u16, first: Index, block: Block, now: Duration) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let (parent_line, parent) = block.parent;
        stream.away.remove(&block.parent);
        let Some(state) = stream.lines.get_mut(usize::from(line)) else {
            return;
        };
        let items = first..block.end;
        let Some(collected) = state.parts.collect(items.clone()) else {
            let lost = Effect::LostTrack { stream: number };
            return self.effects.push_back(lost);
        };
        let origins = state.parts.origins(items.clone());
        let origin = origins.fold(block.origin.clone(), |least, (_, origin)| {
            origin.map_or_else(|| least.clone(), |origin| least_of(&least, origin))
        });
        state.parts.release(&items);
        let count = items.end - items.start;
        // No item is made into more.
        self.scheduler.taken(state.id, first, count as u32, now);
        let has_state = block.state.is_some();
        let parts = block.state.into_iter().chain([collected]);
        let list = Batch::list(count + u64::from(has_state), has_state, parts, origin);
        let bytes = list.sizes().iter().sum();
        let Some(state) = stream.lines.get_mut(usize::from(parent_line)) else {
            return;
        };
        if self.scheduler.join(state.id, parent, bytes, now)
            && let Some(tokens) = state.tokens.get_mut(usize::from(block.join))
        {
            tokens.insert(parent, list);
        }
    }

    /// Items were made into others, and wait for those to go on at segment `join`.
    pub(super) fn send_away(
        &mut self,
        number: u64,
        lines: (u16, u16),
        join: u16,
        made: Made,
        now: Duration,
    ) {
        let (line, below) = lines;
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let lines = stream.lines.iter().skip(1);
        let known: u64 = lines.map(|line| self.scheduler.state_bytes(line.id)).sum();
        let comes = made.parts.as_ref().map_or(0, Batch::bytes);
        let kept = stream.kept_bytes() + known + comes;
        let Some(state) = stream.lines.get_mut(usize::from(below)) else {
            return;
        };
        let config = self.scheduler.config();
        let maximum = config.submitted_max;
        let bytes_max = config.kept_bytes_most(self.message_bytes_max);
        let progress = self.scheduler.progress(state.id).unwrap_or_default();
        let inside = progress.admitted - progress.taken;
        let parts: u64 = made.counts.iter().map(|count| u64::from(*count)).sum();
        let has_too_many = inside.saturating_add(parts) > u64::from(maximum);
        if has_too_many || kept > bytes_max {
            let recurs = line == below;
            for index in made.first..made.first + made.counts.len() as u64 {
                let contents = match has_too_many {
                    true => Contents::TooManyParts { maximum, recurs },
                    false => Contents::TooManyBytes {
                        maximum: bytes_max,
                        recurs,
                    },
                };
                self.refuse_parts(number, line, index, contents, now);
            }
            return;
        }
        let mut base = 0;
        if let Some(parts) = made.parts {
            let admitted = self.scheduler.admit_made(state.id, &parts.sizes(), now);
            base = admitted.unwrap_or(0);
            if let Some(tokens) = state.tokens.first_mut() {
                tokens.insert(base, parts);
            }
        }
        let mut kept = made.state;
        let mut empty = Vec::new();
        for (parent, count) in (made.first..).zip(made.counts) {
            let block = Block {
                end: base + u64::from(count),
                left: count.into(),
                parent: (line, parent),
                join,
                state: kept.take(),
                origin: made.origin.clone(),
                is_dead: false,
            };
            if count == 0 {
                empty.push(block);
            } else {
                stream.away.insert((line, parent), (below, base));
                state.blocks.insert(base, block);
            }
            base += u64::from(count);
        }
        for block in empty {
            self.complete(number, below, block.end, block, now);
        }
    }

    /// An item that is away has that as its outcome.
    fn refuse_parts(
        &mut self,
        number: u64,
        line: u16,
        index: Index,
        contents: Contents,
        now: Duration,
    ) {
        if let Some(state) = self.line(number, line) {
            let id = state.id;
            self.scheduler.end_away(id, index, now);
            self.settle(number, line, index, contents, now);
        }
    }

    /// Items came back that nobody waits for, of a line with such: what they became goes.
    pub(super) fn drop_unwanted(
        &mut self,
        number: u64,
        line: u16,
        items: Range<Index>,
        now: Duration,
    ) {
        for index in items {
            let is_dead = self
                .line(number, line)
                .is_some_and(|state| state.is_dead(index));
            if is_dead {
                self.drop_parts(number, line, index..index + 1, now);
                let block = self
                    .line(number, line)
                    .and_then(|state| state.block_of(index));
                if let Some(first) = block.map(|(first, _)| first) {
                    self.forget_dead(number, line, first);
                }
            }
        }
    }
}

/// The less trusted one.
pub(super) fn least_of(first: &Arc<Origin>, second: &Arc<Origin>) -> Arc<Origin> {
    if first.is_trusted() {
        second.clone()
    } else {
        first.clone()
    }
}
