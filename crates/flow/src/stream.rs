//! One stream of items through one program: what is ready, what is held, how many more may enter.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::config::{FRAMES_UNTIMED, WINDOWS_INSIDE};
use crate::estimate::{Average, Estimate, SlotEstimate};
use crate::item::{ItemRing, ItemState};
use crate::program::SegmentRange;
use crate::ranges::RangeSet;
use crate::slot::nanos;
use crate::stragglers::Copies;
use crate::{
    FrameId, Index, ProgramLine, SchedulerConfig, SlotId, StreamId, StreamOptions, StreamProgress,
    Then, Tickets,
};

/// The slot that has the lease of a serial function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) row: usize,
    /// Frames at that slot that have not given the lease back.
    pub(crate) frames: u32,
}

/// What is known of one segment of the program in this stream.
#[derive(Debug, Default)]
pub(crate) struct SegmentState {
    pub(crate) serial: bool,
    /// A state is carried through it from item to item, in their order.
    pub(crate) carries: bool,
    /// All items before this one have passed it, or have ended, if it carries a state.
    pub(crate) passed: Index,
    /// A parallel segment follows this serial one, so that a frame can go on into it.
    pub(crate) rest: bool,
    /// What becomes of its results.
    pub(crate) then: Then,
    /// Items that any slot may run.
    pub(crate) ready: RangeSet,
    /// Items that must run alone.
    pub(crate) suspects: BTreeSet<Index>,
    /// Items that run again, by the slot that they have failed at, which gets them only if it is alone.
    pub(crate) elsewhere: BTreeMap<SlotId, BTreeSet<Index>>,
    pub(crate) holder: Option<Holder>,
    /// Who had the lease last, and gets it again unless something is gained by moving it.
    pub(crate) home: Option<usize>,
    /// Values between this serial segment and the parallel one behind it can't travel: a slot has gone on by itself.
    pub(crate) is_fused: bool,
    /// Frames since the serial function was last timed by itself.
    pub(crate) untimed_frames: u32,
    /// This segment alone, if it is serial.
    pub(crate) serial_time: Estimate,
    /// All that frames run which begin here, over all slots: a first guess for those that have not run it.
    pub(crate) time: Estimate,
    /// By the slots' rows.
    pub(crate) estimates: Vec<SlotEstimate>,
    /// The most items that a frame may have at any slot.
    pub(crate) grown: u32,
    /// Of results that are tokens for the next segment, or outcomes.
    pub(crate) result_bytes: Average,
}

impl SegmentState {
    pub(crate) fn estimate_at(&mut self, row: usize) -> &mut SlotEstimate {
        if row >= self.estimates.len() {
            self.estimates.resize(row + 1, SlotEstimate::default());
        }
        &mut self.estimates[row]
    }

    /// The oldest item that runs again and may do so here, with the slot that it failed at.
    pub(crate) fn retry_at(&self, slot: SlotId, is_alone: bool) -> Option<(SlotId, Index)> {
        let others = self
            .elsewhere
            .iter()
            .filter(|(failed, _)| is_alone || **failed != slot);
        let oldest = others.filter_map(|(failed, items)| Some((*items.first()?, *failed)));
        oldest.min().map(|(index, failed)| (failed, index))
    }

    /// An item that runs again waits no longer. Says whether it did.
    pub(crate) fn take_retry(&mut self, failed: SlotId, index: Index) -> bool {
        let Some(items) = self.elsewhere.get_mut(&failed) else {
            return false;
        };
        let was_there = items.remove(&index);
        if items.is_empty() {
            self.elsewhere.remove(&failed);
        }
        was_there
    }

    /// A frame of so many items was finished there.
    pub(crate) fn finished(&mut self, row: usize, frame_items: u32) {
        let known = self.estimate_at(row);
        known.finished(frame_items);
        self.grown = known.items_max.max(self.grown);
    }
}

/// A result that is larger than its grant and waits at a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingResult {
    pub(crate) slot: SlotId,
    pub(crate) frame: FrameId,
    pub(crate) bytes: u64,
    /// How many items it is the result of.
    pub(crate) items: u32,
    /// What of it counts against the room for results: nothing of the oldest item's, which always moves.
    pub(crate) reserved: u64,
    pub(crate) granted: bool,
}

/// How often items have run in their segments in vain. Few have.
#[derive(Debug, Default)]
pub(crate) struct Attempts(BTreeMap<Index, u32>);

impl Attempts {
    /// Counts an attempt in vain. Says whether that was not the last one.
    pub(crate) fn is_left(&mut self, index: Index, most: u32) -> bool {
        let count = self.0.entry(index).or_insert(0);
        *count = count.saturating_add(1);
        *count < most
    }

    /// The item goes on.
    pub(crate) fn forget(&mut self, index: Index) {
        if !self.0.is_empty() {
            self.0.remove(&index);
        }
    }
}

/// The state of a stream, or of another line of one.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    /// Its number among the lines of its program, and how many there are. They stand side by side.
    pub(crate) line: u16,
    pub(crate) lines: u16,
    /// Of the first line: what of all lines comes first.
    pub(crate) order: Vec<SegmentRange>,
    /// Its items were made of others that have tickets.
    pub(crate) is_inner: bool,
    /// Bytes of what its items were made into, when that was last looked at: they take up the room for its results.
    pub(crate) held_below: u64,
    /// No item before this one is still to have a result, but for those that wait for others. There may be more of those.
    settled: Index,
    pub(crate) segments: Vec<SegmentState>,
    pub(crate) ring: ItemRing,
    pub(crate) waiting: BTreeMap<Index, WaitingResult>,
    pub(crate) attempts: Attempts,
    /// Of items that are at two slots.
    pub(crate) copies: Copies,
    pub(crate) input_ended: bool,
    /// Nobody wants it any more; it stays until the slots have answered.
    pub(crate) closed: bool,
    /// Ready items of all segments, and how many of them are suspects.
    pub(crate) ready: u64,
    pub(crate) suspects: u64,
    /// Items a slot owes an answer for.
    pub(crate) out: u64,
    pub(crate) finished: u64,
    pub(crate) taken: u64,
    /// Bytes of tokens that have passed no segment, and that are outcomes themselves.
    pub(crate) held_input: u64,
    /// Bytes of tokens and outcomes that came back from slots.
    pub(crate) held_results: u64,
    /// Bytes of results that may arrive without asking again.
    pub(crate) reserved: u64,
    /// For how long an item may run in a segment.
    pub(crate) time_limit: Option<Duration>,
    tickets: Tickets,
    input_bytes: Average,
}

impl Stream {
    pub(crate) fn new(
        id: StreamId,
        place: (u16, u16),
        line: &ProgramLine,
        options: StreamOptions,
    ) -> Self {
        let segments = (0u16..)
            .zip(&line.segments)
            .map(|(number, segment)| SegmentState {
                serial: segment.serial,
                carries: segment.carries.is_some(),
                rest: line.furthest(number) > number,
                then: segment.then,
                ..SegmentState::default()
            });
        Self {
            id,
            line: place.0,
            lines: place.1,
            order: Vec::new(),
            is_inner: line.is_inner(),
            held_below: 0,
            settled: 0,
            segments: segments.collect(),
            ring: ItemRing::default(),
            waiting: BTreeMap::new(),
            attempts: Attempts::default(),
            copies: Copies::default(),
            input_ended: false,
            closed: false,
            ready: 0,
            suspects: 0,
            out: 0,
            finished: 0,
            taken: 0,
            held_input: 0,
            held_results: 0,
            reserved: 0,
            time_limit: options.time_limit,
            tickets: options.tickets,
            input_bytes: Average::default(),
        }
    }

    /// Items between admission and taking.
    pub(crate) fn inside(&self) -> u64 {
        self.ring.end() - self.taken
    }

    /// How many more items may enter now, when a slot's window holds so much work.
    pub(crate) fn tickets(&self, config: &SchedulerConfig, slots: u32, window_nanos: u64) -> u32 {
        if self.input_ended || self.is_inner {
            return 0;
        }
        let inside = self.inside();
        if self.tickets == Tickets::Unbounded {
            let room = u64::from(config.submitted_max.max(1)).saturating_sub(inside);
            return u32::try_from(room).unwrap_or(u32::MAX);
        }
        let most = u64::from(config.tickets_max.max(1));
        // Two items for each slot keep it busy; one more lets an outcome wait for the user meanwhile.
        let fewest = (2 * u64::from(slots) + 1).min(most);
        let wanted = WINDOWS_INSIDE * u64::from(slots) * self.window_items(config, window_nanos);
        let result_bytes = self
            .segments
            .iter()
            .map(|segment| segment.result_bytes.bytes())
            .max()
            .unwrap_or(0);
        let by_results = config
            .result_budget_bytes
            .checked_div(result_bytes)
            .unwrap_or(u64::MAX);
        let limit = wanted.min(by_results).clamp(fewest, most);
        let input_room = config.input_budget_bytes.saturating_sub(self.held_input);
        let by_input = input_room
            .checked_div(self.input_bytes.bytes())
            .unwrap_or(u64::MAX);
        let free = limit
            .saturating_sub(inside)
            .min(by_input.max(fewest.saturating_sub(inside)));
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    /// Items that the window of one slot holds, by what is known of the fastest segment.
    fn window_items(&self, config: &SchedulerConfig, window_nanos: u64) -> u64 {
        let folds = self
            .segments
            .last()
            .is_some_and(|last| last.then == Then::Fold);
        let window_nanos = match folds {
            true => window_nanos.max(nanos(config.fold_time)),
            false => window_nanos,
        };
        let fastest = self
            .segments
            .iter()
            .filter_map(|segment| segment.time.nanos())
            .min();
        let by_time = fastest.map_or(0, |item| window_nanos / item.max(1));
        let grown = self.segments.iter().map(|segment| segment.grown).max();
        let next = u64::from(grown.unwrap_or(1).max(1).min(config.frame_items_max.max(1)));
        let by_growth = FRAMES_UNTIMED * next;
        by_time.max(by_growth)
    }

    pub(crate) fn admit(&mut self, sizes: &[u64]) -> Index {
        let first = self.ring.end();
        let total = sizes
            .iter()
            .fold(0u64, |sum, size| sum.saturating_add(*size));
        self.ring.admit(sizes);
        self.input_bytes.observe(total, sizes.len() as u64);
        self.held_input = self.held_input.saturating_add(total);
        self.make_ready(0, first..self.ring.end());
        first
    }

    /// The items' tokens wait for this segment.
    pub(crate) fn make_ready(&mut self, segment: u16, range: Range<Index>) {
        self.ready += range.end - range.start;
        self.segments[usize::from(segment)].ready.insert(range);
    }

    /// The item's token waits for this segment, and the item must run alone.
    pub(crate) fn make_suspect(&mut self, segment: u16, index: Index) {
        self.ready += 1;
        self.suspects += 1;
        self.segments[usize::from(segment)].suspects.insert(index);
    }

    /// The item's token waits for this segment again, elsewhere than at this slot. What a serial function has next is its
    /// oldest item, wherever that is.
    pub(crate) fn make_ready_elsewhere(&mut self, segment: u16, index: Index, failed: SlotId) {
        let known = &mut self.segments[usize::from(segment)];
        if known.serial {
            return self.make_ready(segment, index..index + 1);
        }
        known.elsewhere.entry(failed).or_default().insert(index);
        self.ready += 1;
    }

    /// Takes an item out of what is ready, if it is.
    pub(crate) fn unready(&mut self, index: Index) -> bool {
        let Some(item) = self
            .ring
            .get(index)
            .filter(|item| item.state == ItemState::Ready)
        else {
            return false;
        };
        let segment = &mut self.segments[usize::from(item.segment)];
        let mut slots = segment.elsewhere.iter();
        let failed = slots.find_map(|(failed, items)| items.contains(&index).then_some(*failed));
        if segment.suspects.remove(&index) {
            self.suspects -= 1;
        } else if let Some(failed) = failed {
            segment.take_retry(failed, index);
        } else if !segment.ready.remove(index) {
            return false;
        }
        self.ready -= 1;
        true
    }

    /// The items from `first` on that wait for a slot.
    pub(crate) fn waiting(&self, first: Index) -> impl Iterator<Item = Index> {
        let first = first.max(self.ring.base());
        let items = (first..).zip(self.ring.walk(first));
        items
            .filter(|(_, item)| item.state == ItemState::Ready)
            .map(|(index, _)| index)
    }

    /// Bytes held for an item at this segment are held no more.
    pub(crate) fn let_go(&mut self, segment: u16, bytes: u64) {
        let held = self.held_at(segment);
        *held = held.saturating_sub(bytes);
    }

    /// What the tokens are counted in that wait for this segment, or are there.
    pub(crate) fn held_at(&mut self, segment: u16) -> &mut u64 {
        match segment {
            0 => &mut self.held_input,
            _ => &mut self.held_results,
        }
    }

    /// The item has its outcome without a result.
    pub(crate) fn finish_without_result(&mut self, index: Index) {
        self.attempts.forget(index);
        let Some(item) = self.ring.get_mut(index) else {
            return;
        };
        item.state = ItemState::Finished;
        let (segment, bytes) = (item.segment, std::mem::take(&mut item.bytes));
        self.finished += 1;
        self.let_go(segment, bytes);
    }

    /// The token of an item that waits for its first segment is its outcome.
    pub(crate) fn finish(&mut self, index: Index) -> bool {
        let has_begun = self.ring.get(index).is_none_or(|item| item.segment > 0);
        if has_begun || !self.unready(index) {
            return false;
        }
        if let Some(item) = self.ring.get_mut(index) {
            item.state = ItemState::Returned;
        }
        self.finished += 1;
        true
    }

    /// The user has these outcomes. Says how many of them there were.
    pub(crate) fn take(&mut self, range: Range<Index>) -> u32 {
        let (mut count, mut results, mut items) = (0, 0u64, 0u64);
        self.ring.visit(range, |_, item| {
            let bytes = match item.state {
                ItemState::Finished => &mut results,
                ItemState::Returned => &mut items,
                _ => return,
            };
            *bytes = bytes.saturating_add(item.bytes);
            item.state = ItemState::Gone;
            count += 1;
        });
        self.taken += u64::from(count);
        self.held_results = self.held_results.saturating_sub(results);
        self.held_input = self.held_input.saturating_sub(items);
        self.ring.trim();
        count
    }

    /// Takes an item out of the stream for good that waits for its first segment.
    pub(crate) fn cancel(&mut self, index: Index) -> bool {
        let has_begun = self.ring.get(index).is_none_or(|item| item.segment > 0);
        if has_begun || !self.unready(index) {
            return false;
        }
        self.finish_without_result(index);
        self.take(index..index + 1);
        true
    }

    /// The item whose result may come, whatever the budget says: the oldest that the user has not taken. Parts of other items are only
    /// taken when all of an item are there, so of those it is the oldest that has no outcome and doesn't wait for others.
    pub(crate) fn oldest(&mut self) -> Index {
        if !self.is_inner {
            return self.ring.base();
        }
        self.settled = self.ring.unsettled(self.settled);
        self.settled
    }

    /// What each of these items keeps while it is away has so many bytes.
    pub(crate) fn keep(&mut self, items: Range<Index>, bytes: u64) {
        let (mut count, mut before) = (0, 0u64);
        self.ring.visit(items, |_, item| {
            if item.state == ItemState::Away {
                count += 1;
                before = before.saturating_add(std::mem::replace(&mut item.bytes, bytes));
            }
        });
        let held = self.held_results.saturating_sub(before);
        self.held_results = held.saturating_add(bytes.saturating_mul(count));
    }

    /// An item that waited for its parts goes on, with a token of so many bytes, at the segment that it waited for.
    pub(crate) fn join(&mut self, index: Index, bytes: u64) -> bool {
        let Some(item) = self.away(index) else {
            return false;
        };
        item.state = ItemState::Ready;
        let before = std::mem::replace(&mut item.bytes, bytes);
        let segment = item.segment;
        self.settled = self.settled.min(index);
        self.let_go(segment, before);
        let held = self.held_at(segment);
        *held = held.saturating_add(bytes);
        self.make_ready(segment, index..index + 1);
        true
    }

    /// An item that waited for its parts has its outcome without a result.
    pub(crate) fn end_away(&mut self, index: Index) -> bool {
        let is_away = self.away(index).is_some();
        if is_away {
            self.finish_without_result(index);
        }
        is_away
    }

    fn away(&mut self, index: Index) -> Option<&mut crate::item::Item> {
        let item = self.ring.get_mut(index);
        item.filter(|item| item.state == ItemState::Away)
    }

    /// Takes an item out for good that is at no slot, wherever it is.
    pub(crate) fn withdraw(&mut self, index: Index) -> bool {
        if !self.unready(index) {
            return false;
        }
        self.finish_without_result(index);
        self.take(index..index + 1);
        true
    }

    /// Its number, if all that it will ever have is at slots.
    pub(crate) fn ending(&self) -> Option<StreamId> {
        (self.input_ended && self.ready == 0 && !self.closed).then_some(self.id)
    }

    /// Room for results, in bytes.
    pub(crate) fn result_room(&self, config: &SchedulerConfig) -> u64 {
        config
            .result_budget_bytes
            .saturating_sub(self.held_results.saturating_add(self.reserved))
            .saturating_sub(self.held_below)
    }

    /// Nobody wants the stream: what waits here is given up. Says which results are on the way here all the same.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = (Index, WaitingResult)> + use<> {
        self.closed = true;
        // It may be gone before the others of its program.
        (self.line, self.lines) = (0, 1);
        self.order.clear();
        for segment in &mut self.segments {
            segment.ready.clear();
            segment.suspects.clear();
            segment.elsewhere.clear();
        }
        self.attempts = Attempts::default();
        (self.ready, self.suspects) = (0, 0);
        let waiting = std::mem::take(&mut self.waiting);
        self.ring.visit(0..Index::MAX, |_, item| {
            if matches!(
                item.state,
                ItemState::Ready
                    | ItemState::Finished
                    | ItemState::Returned
                    | ItemState::Announced
                    | ItemState::Granted
                    | ItemState::Away
            ) {
                item.state = ItemState::Gone;
            }
        });
        self.ring.trim();
        waiting.into_iter().filter(|(_, waiting)| waiting.granted)
    }

    pub(crate) fn progress(&self) -> StreamProgress {
        StreamProgress {
            admitted: self.ring.end(),
            finished: self.finished,
            taken: self.taken,
            ready: self.ready,
            out: self.out,
            input_ended: self.input_ended,
        }
    }
}
