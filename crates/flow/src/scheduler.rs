//! The machine: slots, streams and events in, actions out.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::estimate::Lag;
use crate::item::ItemState;
use crate::overdue::OwedAnswers;
use crate::slot::{Slot, nanos};
use crate::slot_table::SlotTable;
use crate::stream::Stream;
use crate::workload::Gone;
use crate::{
    Action, Cancel, FlowError, Index, Program, SchedulerConfig, SlotId, SlotStatistics, StreamId,
    StreamOptions, StreamProgress,
};

/// Decides which slot runs which items next. It owns numbers only; tokens and results stay with the driver.
///
/// After every call that tells it something, and when [`Scheduler::next_timeout`] has come, the driver calls
/// [`Scheduler::poll_action`] until there is none. `now` is the time since any start, the same for all calls, and
/// never goes back.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) slots: SlotTable,
    /// By ascending number.
    pub(crate) streams: Vec<Stream>,
    /// The stream whose turn is next, as a place in `streams`.
    pub(crate) turn: usize,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) next_frame: u64,
    next_stream: u32,
    /// Something has happened since there was last nothing to do.
    pub(crate) stirred: bool,
    /// When there may be something to do though nothing happens.
    pub(crate) wake: Option<Duration>,
    /// The row of the slot that is kept free for items that must run alone.
    pub(crate) reserved_row: Option<usize>,
    stalled_since: Option<Duration>,
    /// Until then, no slot has anything that is worth asking back, unless one gets more.
    pub(crate) unworthy_until: Option<Duration>,
    /// Slots that rest, and until when.
    rests: BTreeSet<(Duration, SlotId)>,
    /// How often in a row a second copy was in vain; half as much after each time that it wasn't.
    pub(crate) copy_doubt: u32,
    /// Until then, nobody looks for items that run for too long.
    pub(crate) copies_until: Option<Duration>,
    /// What slots have to answer within a time.
    pub(crate) owed_answers: OwedAnswers,
    /// How late answers are.
    pub(crate) lag: Lag,
    /// How often in a row work was asked back in vain; half as much after each time that it wasn't.
    pub(crate) recall_doubt: u32,
    /// What slots and streams did that are gone.
    pub(crate) gone: Gone,
    /// The ranges of the last answer, outcomes and what goes on: kept to save allocations.
    pub(crate) outcomes: Vec<Range<Index>>,
    pub(crate) tokens: Vec<Range<Index>>,
}

impl Scheduler {
    /// A scheduler without slots and streams.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            config,
            slots: SlotTable::default(),
            streams: Vec::new(),
            turn: 0,
            actions: VecDeque::new(),
            next_frame: 0,
            next_stream: 0,
            stirred: false,
            wake: None,
            reserved_row: None,
            stalled_since: None,
            unworthy_until: None,
            copies_until: None,
            rests: BTreeSet::new(),
            owed_answers: OwedAnswers::default(),
            copy_doubt: 0,
            lag: Lag::default(),
            recall_doubt: 0,
            gone: Gone::default(),
            outcomes: Vec::new(),
            tokens: Vec::new(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// A slot is there and may get work.
    ///
    /// # Errors
    ///
    /// When the number is in use, or there are too many slots.
    pub fn add_slot(&mut self, slot: SlotId, now: Duration) -> Result<(), FlowError> {
        if self.slots.row(slot).is_some() {
            return Err(FlowError::SlotExists(slot));
        }
        if self.slots.len() >= self.config.slots_max as usize {
            return Err(FlowError::TooManySlots {
                limit: self.config.slots_max,
            });
        }
        let row = self.slots.add(Slot::new(slot, now));
        for segment in self
            .streams
            .iter_mut()
            .flat_map(|stream| &mut stream.segments)
        {
            *segment.estimate_at(row) = Default::default();
        }
        self.stir(now);
        Ok(())
    }

    /// The slot gets frames with so many bytes of items at most, unless a single item has more.
    pub fn limit_frames(&mut self, slot: SlotId, bytes: u64) {
        let slot = self.slots.row(slot).and_then(|row| self.slots.get_mut(row));
        if let Some(slot) = slot {
            slot.frame_bytes_max = bytes;
        }
    }

    /// The slot gets nothing more; what it has it may finish. Remove it when it has nothing outstanding.
    pub fn drain_slot(&mut self, slot: SlotId, now: Duration) {
        if let Some(row) = self.slots.row(slot) {
            self.slots.drain(row);
            self.stir(now);
        }
    }

    /// The slot that was to be [drained](Self::drain_slot) may get work again.
    pub fn keep_slot(&mut self, slot: SlotId, now: Duration) {
        if let Some(row) = self.slots.row(slot) {
            self.slots.keep(row);
            self.stir(now);
        }
    }

    /// The slot gets nothing more until it [resumes](Self::resume_slot).
    pub fn suspend_slot(&mut self, slot: SlotId) {
        let slot = self.slots.row(slot).and_then(|row| self.slots.get_mut(row));
        if let Some(slot) = slot {
            slot.suspended = true;
        }
    }

    /// The slot may get work again.
    pub fn resume_slot(&mut self, slot: SlotId, now: Duration) {
        let slot = self.slots.row(slot).and_then(|row| self.slots.get_mut(row));
        if let Some(slot) = slot
            && std::mem::take(&mut slot.suspended)
        {
            self.stir(now);
        }
    }

    /// Opens a stream of items through a program. The program's other lines are streams of the numbers that follow.
    ///
    /// # Errors
    ///
    /// When there are too many streams.
    pub fn open_stream(
        &mut self,
        program: &Program,
        options: StreamOptions,
        now: Duration,
    ) -> Result<StreamId, FlowError> {
        let limit = self.config.streams_max;
        // There are no more than steps.
        let lines = program.lines().len() as u16;
        let last = self.next_stream.checked_add(lines.into());
        let (true, Some(last)) = (self.streams.len() < limit as usize, last) else {
            return Err(FlowError::TooManyStreams { limit });
        };
        let id = StreamId(self.next_stream);
        self.next_stream = last;
        for (number, line) in (0..lines).zip(program.lines()) {
            let id = StreamId(id.0 + u32::from(number));
            let mut line = Stream::new(id, (number, lines), line, options);
            if number == 0 {
                line.order = program.order();
            }
            self.streams.push(line);
        }
        self.stir(now);
        Ok(id)
    }

    /// Forgets a stream with all of its lines: items that wait are gone, answers that still come are dropped. Slots that have items of it
    /// are asked to drop them ([`Action::Recall`]); results that wait there for a grant are no longer known here.
    pub fn close_stream(&mut self, stream: StreamId, now: Duration) {
        let lines = self.open(stream).map_or(0, |open| open.lines);
        for number in 0..u32::from(lines) {
            self.close_line(StreamId(stream.0 + number), now);
        }
    }

    fn close_line(&mut self, stream: StreamId, now: Duration) {
        if let Some(place) = self
            .place(stream)
            .filter(|place| !self.streams[*place].closed)
        {
            for (index, waiting) in self.streams[place].close() {
                let row = self.slots.row(waiting.slot);
                if let Some(slot) = row.and_then(|row| self.slots.get_mut(row)) {
                    slot.owed.insert((waiting.frame, index), waiting.bytes);
                }
            }
            self.forget_progress(place);
            self.end_copies(place);
            self.recall_closed(place);
            self.drop_if_done(place);
            self.stir(now);
        }
    }

    /// How many items may be admitted now. 0 when the stream is unknown or its input has ended.
    pub fn tickets(&self, stream: StreamId) -> u32 {
        let usable = self.slots.usable();
        let window = match self.slots.len() {
            0 => 0,
            _ => nanos(self.config.window_time).saturating_add(self.slots.round_trip_max()),
        };
        self.open(stream)
            .map_or(0, |stream| stream.tickets(&self.config, usable, window))
    }

    /// Consecutive items enter; `sizes` are the bytes of their tokens. Says the index of the first.
    ///
    /// # Errors
    ///
    /// When the stream is unknown or its input has ended, or when there are fewer tickets than items.
    pub fn admit(
        &mut self,
        stream: StreamId,
        sizes: &[u64],
        now: Duration,
    ) -> Result<Index, FlowError> {
        let tickets = self.tickets(stream);
        let open = self
            .open_mut(stream)
            .ok_or(FlowError::UnknownStream(stream))?;
        if open.input_ended {
            return Err(FlowError::InputEnded(stream));
        }
        if sizes.len() > tickets as usize {
            return Err(FlowError::NoTickets {
                items: sizes.len(),
                tickets,
            });
        }
        let first = open.admit(sizes);
        self.stir(now);
        Ok(first)
    }

    /// Items enter that others were made into, which have tickets or had them. Says the index of the first; nothing if the stream is unknown.
    pub fn admit_made(&mut self, line: StreamId, sizes: &[u64], now: Duration) -> Option<Index> {
        let first = self.open_mut(line)?.admit(sizes);
        self.stir(now);
        Some(first)
    }

    /// What each of these items, which were [expanded](Self::expanded), keeps until it is joined has so many bytes.
    pub fn keep(&mut self, stream: StreamId, items: Range<Index>, bytes: u64) {
        if let Some(open) = self.open_mut(stream) {
            open.keep(items, bytes);
        }
    }

    /// All is there that an item waits for that was [expanded](Self::expanded): it goes on with a token of so many bytes. Says whether it was away.
    pub fn join(&mut self, stream: StreamId, index: Index, bytes: u64, now: Duration) -> bool {
        let joined = self
            .open_mut(stream)
            .is_some_and(|open| open.join(index, bytes));
        if joined {
            self.stir(now);
        }
        joined
    }

    /// An item that is away has its outcome, without a result of its own. Says whether it was away.
    pub fn end_away(&mut self, stream: StreamId, index: Index, now: Duration) -> bool {
        let ended = self
            .open_mut(stream)
            .is_some_and(|open| open.end_away(index));
        if ended {
            self.stir(now);
        }
        ended
    }

    /// Takes an item out for good that is at no slot, whatever segments it has passed, and says for which one its token is.
    pub fn withdraw(&mut self, stream: StreamId, index: Index) -> Option<u16> {
        let open = self.open_mut(stream)?;
        let segment = open.ring.get(index)?.segment;
        open.withdraw(index).then_some(segment)
    }

    /// The token of an item that no slot has had is its outcome. Says whether that was possible.
    pub fn finish(&mut self, stream: StreamId, index: Index, now: Duration) -> bool {
        let finished = self.open_mut(stream).is_some_and(|open| open.finish(index));
        if finished {
            self.stir(now);
        }
        finished
    }

    /// No more items will come.
    pub fn end_of_input(&mut self, stream: StreamId) {
        if let Some(stream) = self.open_mut(stream) {
            stream.input_ended = true;
        }
    }

    /// The user took the outcomes of these items: their tickets and bytes come back. Items without an outcome in
    /// the range are passed over. Says how many were taken.
    pub fn taken(&mut self, stream: StreamId, first: Index, count: u32, now: Duration) -> u32 {
        let Some(open) = self.open_mut(stream) else {
            return 0;
        };
        let count = open.take(first..first.saturating_add(u64::from(count)));
        // Only a result that waits for a grant can move because of this.
        if !open.waiting.is_empty() {
            self.stir(now);
        }
        count
    }

    /// Takes an item out before it runs, if it is at no slot.
    pub fn cancel(&mut self, stream: StreamId, index: Index, now: Duration) -> Cancel {
        if self.open_mut(stream).is_some_and(|open| open.cancel(index)) {
            self.stir(now);
            Cancel::Removed
        } else {
            Cancel::TooLate
        }
    }

    /// The items from `first` on that are at no slot and have no outcome: those that [`cancel`](Self::cancel) would take out.
    pub fn waiting(&self, stream: StreamId, first: Index) -> impl Iterator<Item = Index> {
        let items = self.open(stream).map(|open| open.waiting(first));
        items.into_iter().flatten()
    }

    /// What to do next, if anything.
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if !self.stirred && self.wake.is_none_or(|wake| now < wake) {
            return None;
        }
        self.end_rests(now);
        self.slots.index_changes(&self.config, now);
        self.grant_waiting();
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if let Some(action) = self.next_dispatch(now) {
            return Some(action);
        }
        self.stirred = false;
        self.wake = self.rests.first().map(|(until, _)| *until);
        self.recall_for_idle(now);
        self.copy_stragglers(now);
        self.look_for_overdue(now);
        self.actions.pop_front()
    }

    /// A slot has given back what nobody had asked for: others come first for a while, as it could take the same again for ever.
    pub(crate) fn rest(&mut self, row: usize, now: Duration) {
        let Some(slot) = self.slots.get_mut(row) else {
            return;
        };
        if let Some(until) = slot.gives_back(now) {
            self.rests.insert((until, slot.id));
        }
    }

    fn end_rests(&mut self, now: Duration) {
        while let Some((until, slot)) = self.rests.first().copied() {
            if until > now {
                break;
            }
            self.rests.pop_first();
            let at = self.slots.row(slot).and_then(|row| self.slots.get_mut(row));
            if let Some(at) = at
                && at.rests_until.is_some_and(|until| until <= now)
            {
                at.rests_until = None;
            }
        }
    }

    /// When to call [`Scheduler::poll_action`] although nothing has happened.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.wake
    }

    /// For how long there has been work and no slot that may get it. The caller decides when to give up.
    pub fn stalled(&self, now: Duration) -> Option<Duration> {
        self.stalled_since.map(|since| now.saturating_sub(since))
    }

    /// What a slot did so far.
    pub fn slot_statistics(&self, slot: SlotId) -> Option<SlotStatistics> {
        self.slots.get(self.slots.row(slot)?).map(Slot::totals)
    }

    /// Whether there is a slot that has nothing.
    pub fn is_somebody_idle(&self) -> bool {
        self.slots.empty() > 0
    }

    /// How far a stream is.
    pub fn progress(&self, stream: StreamId) -> Option<StreamProgress> {
        self.open(stream).map(Stream::progress)
    }

    /// Whether the item has its outcome and waits to be taken.
    pub fn is_finished(&self, stream: StreamId, index: Index) -> bool {
        let item = self.open(stream).and_then(|stream| stream.ring.get(index));
        item.is_some_and(|item| matches!(item.state, ItemState::Finished | ItemState::Returned))
    }

    /// Result bytes of a stream that are held by the driver, and those that may arrive without asking again.
    pub fn result_bytes(&self, stream: StreamId) -> (u64, u64) {
        self.open(stream)
            .map_or((0, 0), |stream| (stream.held_results, stream.reserved))
    }

    /// Bytes of a stream's items that have passed no segment and are not taken.
    pub fn item_bytes(&self, stream: StreamId) -> u64 {
        self.open(stream).map_or(0, |stream| stream.held_input)
    }

    /// Bytes that the scheduler itself takes for the items of a line, those among them that are gone and behind others that aren't.
    pub fn state_bytes(&self, line: StreamId) -> u64 {
        self.open(line).map_or(0, |line| line.ring.bytes())
    }

    /// Something has happened: there may be something to do.
    pub(crate) fn stir(&mut self, now: Duration) {
        self.stirred = true;
        let stalled =
            self.slots.usable() == 0 && self.streams.iter().any(|stream| stream.ready > 0);
        self.stalled_since = if stalled {
            self.stalled_since.or(Some(now))
        } else {
            None
        };
    }

    /// Where a stream stands in the table, closed ones included.
    pub(crate) fn place(&self, stream: StreamId) -> Option<usize> {
        self.streams
            .binary_search_by_key(&stream, |stream| stream.id)
            .ok()
    }

    /// Closed streams leave when no slot owes an answer.
    pub(crate) fn drop_if_done(&mut self, place: usize) {
        if self.streams[place].closed && self.streams[place].out == 0 {
            self.streams.remove(place);
            if self.turn > place {
                self.turn -= 1;
            }
        }
    }

    fn open(&self, stream: StreamId) -> Option<&Stream> {
        self.place(stream)
            .map(|place| &self.streams[place])
            .filter(|stream| !stream.closed)
    }

    fn open_mut(&mut self, stream: StreamId) -> Option<&mut Stream> {
        let place = self.place(stream)?;
        Some(&mut self.streams[place]).filter(|stream| !stream.closed)
    }
}
