//! What slots say: results, a lease given back, a large result that waits.

use std::ops::Range;
use std::time::Duration;

use crate::item::ItemState;
use crate::scheduler::Scheduler;
use crate::slot::{LeaseEnd, nanos};
use crate::stream::{Stream, WaitingResult};
use crate::{Accepted, Action, Breach, FrameId, Index, Lease, Results, SlotId, StreamId, Then};

/// Announced sizes beyond this are taken as this, so that sums never overflow; no host has so much memory.
const ANNOUNCED_MAX: u64 = 1 << 48;

/// What the results of an answer are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerKind {
    Results,
    /// Exceptions for which items run again.
    Retriable,
    /// What items keep until others are joined.
    Away,
    /// Results of a segment that carries a state, which has so many bytes and comes with them.
    Carried(u64),
}

/// Sums over the items of an answer.
#[derive(Default)]
struct Tally {
    accepted: u32,
    /// Accepted items that have their outcome.
    finished: u64,
    /// Accepted items that were not announced before.
    ran: u32,
    ran_bytes: u64,
    old_bytes: u64,
    new_bytes: u64,
}

impl Scheduler {
    /// Results arrived. Says which of them count; `None` when none does.
    ///
    /// # Errors
    ///
    /// When a result is larger than its grant, or has none, or when the items can't have got so far. Nothing of the answer counts then.
    pub fn results(
        &mut self,
        slot: SlotId,
        results: Results<'_>,
        now: Duration,
    ) -> Result<Option<Accepted<'_>>, Breach> {
        self.take_in(slot, results, AnswerKind::Results, now)
    }

    /// Exceptions arrived that the program wants its items to be run again for. An item runs again, on another slot if
    /// there is one, until it has run [`retries`](crate::SchedulerConfig::retries) times in this segment; then the exception is its
    /// outcome. Says which are outcomes; the tokens of the others are needed again.
    ///
    /// # Errors
    ///
    /// As those of [`results`](Self::results).
    pub fn retriable(
        &mut self,
        slot: SlotId,
        results: Results<'_>,
        now: Duration,
    ) -> Result<Option<Accepted<'_>>, Breach> {
        self.take_in(slot, results, AnswerKind::Retriable, now)
    }

    /// Items were expanded, and wait for what becomes of that: they go on at `reached` when all of it is there ([`join`](Self::join)), or
    /// [end](Self::end_away) without it. The results are what they keep until then. Those of them that count are tokens.
    ///
    /// # Errors
    ///
    /// As those of [`results`](Self::results).
    pub fn expanded(
        &mut self,
        slot: SlotId,
        results: Results<'_>,
        now: Duration,
    ) -> Result<Option<Accepted<'_>>, Breach> {
        self.take_in(slot, results, AnswerKind::Away, now)
    }

    /// Results arrived of a segment that carries a state, with the state behind the last of them, which has `state_bytes`. They count together: if
    /// any does, all do, and so does the state.
    ///
    /// # Errors
    ///
    /// As those of [`results`](Self::results), and when these aren't the items that are next.
    pub fn carried(
        &mut self,
        slot: SlotId,
        results: Results<'_>,
        state_bytes: u64,
        now: Duration,
    ) -> Result<Option<Accepted<'_>>, Breach> {
        self.take_in(slot, results, AnswerKind::Carried(state_bytes), now)
    }

    fn take_in(
        &mut self,
        slot: SlotId,
        results: Results<'_>,
        kind: AnswerKind,
        now: Duration,
    ) -> Result<Option<Accepted<'_>>, Breach> {
        let Results {
            frame,
            first,
            reached,
            sizes,
            ended,
            busy,
        } = results;
        let (retriable, away) = (kind == AnswerKind::Retriable, kind == AnswerKind::Away);
        let count = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
        let Some(row) = self.slots.row(slot) else {
            return Ok(None);
        };
        let answered = first..first.saturating_add(u64::from(count));
        let late = match self.has_late(row) {
            true => self.settle_late(row, frame, answered.clone(), Some(busy), now),
            false => 0,
        };
        let Some(slot) = self.slots.get_mut(row) else {
            return Ok(None);
        };
        slot.receive_owed(frame, answered);
        let Some(position) = slot.position(frame) else {
            return Ok(None);
        };
        let known = &slot.frames[position];
        let (from, grant, whole) = (known.from, known.grant, known.count);
        let (to, leads) = (known.to, known.check_reached(reached, away)?);
        // They were asked back when they had passed the serial function, and go on elsewhere.
        let is_halfway = !leads && reached <= to;
        let is_alone = to == from;
        let goes_beyond = match leads {
            true => to < known.furthest,
            false => reached > to + 1,
        };
        let passed = match leads {
            true => known.furthest,
            false => reached - 1,
        };
        let serial_nanos = known.serial_nanos;
        let busy = match late {
            0 => known.credible(busy, &self.config, now),
            // Nobody knows what the others took.
            _ => Duration::ZERO,
        };
        let range = known.clip(first, count);
        let Ok(place) = self
            .streams
            .binary_search_by_key(&known.stream, |stream| stream.id)
        else {
            return Ok(None);
        };
        let stream = &mut self.streams[place];
        let last = usize::from(reached) == stream.segments.len() && !away;
        let closed = stream.closed;
        // An index of the range is at or behind `first`.
        let size = |index: Index| {
            let position = usize::try_from(index - first).ok();
            position.and_then(|at| sizes.get(at)).copied().unwrap_or(0)
        };
        let has_copies = stream.has_copies();
        if has_copies {
            stream.prefer(frame, range.clone());
        }
        let mut state_bytes = 0;
        if let AnswerKind::Carried(bytes) = kind {
            state_bytes = bytes;
            let total = sizes
                .iter()
                .fold(bytes, |sum, size| sum.saturating_add(*size));
            if !closed {
                stream.check_carried(frame, from, first..first.saturating_add(count.into()))?;
            }
            stream.check_total(frame, grant, range.clone(), total)?;
        } else {
            stream.check_sizes(frame, grant, range.clone(), size)?;
        }
        stream.check_together(frame, range.clone())?;

        let others = match has_copies {
            true => stream.decide(frame, range.clone()),
            false => Vec::new(),
        };
        let arrived = stream.forget_waiting(frame, range.clone());
        slot.receivable = slot.receivable.saturating_sub(arrived);
        let (outcomes, tokens) = (&mut self.outcomes, &mut self.tokens);
        outcomes.clear();
        tokens.clear();
        let mut tally = Tally::default();
        let attempts_max = self.config.retries;
        let mut again = Vec::new();
        stream.ring.visit(range, |index, item| {
            if !item.is_at(frame) {
                return;
            }
            if retriable && !closed && stream.attempts.is_left(index, attempts_max) {
                tally.accepted += 1;
                if item.state == ItemState::Out {
                    tally.ran += 1;
                    tally.ran_bytes = tally.ran_bytes.saturating_add(item.bytes);
                }
                item.state = ItemState::Ready;
                again.push(index);
                return;
            }
            stream.attempts.forget(index);
            let bytes = size(index);
            let is_outcome = last || !ended.is_empty() && ended.binary_search(&index).is_ok();
            tally.accepted += 1;
            tally.finished += u64::from(is_outcome);
            tally.old_bytes = tally.old_bytes.saturating_add(item.bytes);
            tally.new_bytes = tally.new_bytes.saturating_add(bytes);
            if item.state == ItemState::Out {
                tally.ran += 1;
                tally.ran_bytes = tally.ran_bytes.saturating_add(item.bytes);
            }
            item.bytes = bytes;
            item.state = match (closed, is_outcome) {
                (true, _) => ItemState::Gone,
                (false, true) => ItemState::Finished,
                (false, false) if away => ItemState::Away,
                (false, false) => ItemState::Ready,
            };
            if !is_outcome {
                item.segment = reached;
            }
            lengthen(if is_outcome { outcomes } else { tokens }, index);
        });
        if tally.accepted == 0 {
            return Ok(None);
        }

        stream.out -= u64::from(tally.accepted);
        stream.let_go(from, tally.old_bytes);
        if reached == 0 {
            // Another round begins with the first segment.
            let ended: u64 = outcomes.iter().cloned().flatten().map(size).sum();
            stream.held_input = stream
                .held_input
                .saturating_add(tally.new_bytes.saturating_sub(ended));
            stream.held_results = stream.held_results.saturating_add(ended);
        } else {
            stream.held_results = stream.held_results.saturating_add(tally.new_bytes);
        }
        stream.reserved = stream
            .reserved
            .saturating_sub(grant.saturating_mul(u64::from(tally.ran)));
        let finished = u64::from(tally.accepted) - again.len() as u64;
        stream.segments[usize::from(passed)]
            .result_bytes
            .observe(tally.new_bytes.saturating_add(state_bytes), finished);
        if !is_alone && serial_nanos > 0 && !is_halfway {
            let rest = &mut stream.segments[usize::from(from) + 1];
            rest.time.observe(nanos(busy), tally.ran);
            rest.estimate_at(row).time.observe(nanos(busy), tally.ran);
        }
        let known = &mut stream.segments[usize::from(from)];
        known.is_fused |= goes_beyond;
        // What a frame's serial part took was told before and is not in `busy`.
        let time = nanos(busy).saturating_add(serial_nanos.saturating_mul(u64::from(tally.ran)));
        if is_alone && known.rest {
            if !goes_beyond {
                known.serial_time.observe(time, tally.ran);
            }
        } else if !is_halfway {
            known.time.observe(time, tally.ran);
            known.estimate_at(row).time.observe(time, tally.ran);
        }
        if closed {
            stream.ring.trim();
        } else {
            stream.finished += tally.finished;
            if !away {
                tokens
                    .iter()
                    .for_each(|range| stream.make_ready(reached, range.clone()));
            }
            for index in again {
                stream.make_ready_elsewhere(from, index, slot.id);
            }
        }

        let seen = slot.answered(position, busy, now);
        self.lag.observe(seen);
        slot.statistics.items += u64::from(tally.accepted);
        slot.statistics.bytes_received = slot
            .statistics
            .bytes_received
            .saturating_add(tally.new_bytes);
        slot.statistics.busy = slot.statistics.busy.saturating_add(busy);
        if is_halfway {
            slot.frames[position].given_back(tally.ran);
            slot.statistics.recalled += u64::from(tally.ran);
        }
        let frames = slot.running_frames;
        let lease_end = slot.settle(position, tally.ran, tally.ran_bytes, tally.accepted);
        if slot.running_frames < frames {
            stream.segments[usize::from(from)].finished(row, whole);
        }
        let stream_id = stream.id;
        if !others.is_empty() {
            self.copies_decided(frame, others);
        }
        self.end_lease(lease_end);
        self.drop_if_done(place);
        self.stir(now);
        Ok((!closed).then_some(Accepted {
            stream: stream_id,
            from,
            reached,
            outcomes: &self.outcomes,
            tokens: &self.tokens,
        }))
    }

    /// The stream of a frame that a slot has, and the first and the last segment that it runs through.
    pub fn frame(&self, slot: SlotId, frame: FrameId) -> Option<(StreamId, u16, u16)> {
        let (row, position) = self.find(slot, frame)?;
        let known = &self.slots.get(row)?.frames[position];
        Some((known.stream, known.from, known.to))
    }

    /// How many items a frame has that a slot has.
    pub fn frame_items(&self, slot: SlotId, frame: FrameId) -> u32 {
        let found = self.find(slot, frame).and_then(|(row, position)| {
            let known = self.slots.get(row)?.frames.get(position)?;
            Some(known.count)
        });
        found.unwrap_or(0)
    }

    /// Whether a slot owes answers for all of these items, by this frame.
    pub fn owes(&self, slot: SlotId, frame: FrameId, items: Range<Index>) -> bool {
        let found = self.find(slot, frame).and_then(|(row, position)| {
            let known = &self.slots.get(row)?.frames[position];
            let own = known.range();
            let is_own = items.start >= own.start && items.end <= own.end && !items.is_empty();
            let stream = &self.streams[self.place(known.stream)?];
            let count = usize::try_from(items.end.saturating_sub(items.start)).ok()?;
            let owed = stream.ring.walk(items.start).take(count);
            Some(is_own && owed.filter(|item| item.is_at(frame)).count() == count)
        });
        found == Some(true)
    }

    /// The most result bytes that a slot may send now: the grants of all items that it has not answered for, and the
    /// announced results that it was asked for.
    pub fn receivable(&self, slot: SlotId) -> u64 {
        let row = self.slots.row(slot);
        let known = row.and_then(|row| self.slots.get(row));
        known.map_or(0, |slot| slot.receivable)
    }

    /// No item of the frame runs the serial function, or will: another slot may have the lease. `busy` is the time the
    /// slot spent in it on all items of the frame ([`Lease::PassedOn`]), 0 if it is not known.
    pub fn released(&mut self, slot: SlotId, frame: FrameId, busy: Duration, now: Duration) {
        let Some((row, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(row) else {
            return;
        };
        let known = &mut slot.frames[position];
        if !std::mem::take(&mut known.leased) {
            return;
        }
        let busy = known.credible(busy, &self.config, now);
        let (lease_end, count) = (LeaseEnd(known.stream, known.from), known.running());
        if known.lease == Lease::PassedOn {
            known.serial_nanos = nanos(busy) / u64::from(count.max(1));
            let seen = slot.answered(position, busy, now);
            self.lag.observe(seen);
            slot.statistics.busy = slot.statistics.busy.saturating_add(busy);
        }
        slot.speaks(now);
        slot.held_back = false;
        let LeaseEnd(stream, segment) = lease_end;
        if let Some(place) = self.place(stream) {
            self.streams[place].segments[usize::from(segment)]
                .serial_time
                .observe(nanos(busy), count);
        }
        self.end_lease(Some(lease_end));
        self.stir(now);
    }

    /// These items have run, and their result of so many bytes, more than its grant, waits at the slot: that of one item, or of several that were
    /// folded or come with a state, by the name of the first. The others have run as well: they keep the slot busy no longer.
    ///
    /// # Errors
    ///
    /// When it was announced before. The announcement doesn't count then.
    pub fn announced(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        items: Range<Index>,
        bytes: u64,
        now: Duration,
    ) -> Result<(), Breach> {
        let index = items.start;
        let Some((row, position)) = self.find(slot, frame) else {
            return Ok(());
        };
        let item = index..index.saturating_add(1);
        if self.settle_late(row, frame, item.clone(), Some(Duration::ZERO), now) > 0 {
            // It has run to its end all the same.
            self.actions
                .push_back(Action::Interrupt { slot, frame, index });
            return Ok(());
        }
        let Some(at) = self.slots.get_mut(row) else {
            return Ok(());
        };
        let known = &at.frames[position];
        let (stream, to, grant) = (known.stream, known.to, known.grant);
        let end = items.end.min(known.range().end).max(item.end);
        let (from, is_folded) = (known.from, known.then == Then::Fold);
        let Some(place) = self
            .streams
            .binary_search_by_key(&stream, |stream| stream.id)
            .ok()
        else {
            return Ok(());
        };
        let stream = &mut self.streams[place];
        let is_together = is_folded || stream.segments[usize::from(from)].carries;
        let together = item.end..if is_together { end } else { item.end };
        stream.prefer(frame, item.clone());
        let others = stream.decide(frame, item);
        let Some(item) = stream.ring.get_mut(index).filter(|item| item.is_at(frame)) else {
            return Ok(());
        };
        if item.state != ItemState::Out {
            return Err(Breach::AnnouncedTwice { index });
        }
        let closed = stream.closed;
        let (mut ran, mut token_bytes) = (1, item.bytes);
        item.state = match closed {
            true => ItemState::Gone,
            false => ItemState::Announced,
        };
        stream.ring.visit(together, |_, item| {
            if item.is_at(frame) && item.state == ItemState::Out {
                ran += 1;
                token_bytes = token_bytes.saturating_add(item.bytes);
                // It has no result of its own to wait for.
                item.state = match closed {
                    true => ItemState::Gone,
                    false => ItemState::Granted,
                };
            }
        });
        let grants = grant.saturating_mul(ran.into());
        stream.reserved = stream.reserved.saturating_sub(grants);
        let bytes = bytes.min(ANNOUNCED_MAX);
        stream.segments[usize::from(to)]
            .result_bytes
            .observe(bytes.min(self.config.result_budget_bytes), 1);
        if closed {
            stream.out -= u64::from(ran);
            stream.ring.trim();
        } else {
            stream.waiting.insert(
                index,
                WaitingResult {
                    slot,
                    frame,
                    bytes,
                    items: ran,
                    reserved: 0,
                    granted: false,
                },
            );
        }
        at.speaks(now);
        at.held_back = false;
        at.does_something();
        let answered = if closed { ran } else { 0 };
        let lease_end = at.settle(position, ran, token_bytes, answered);
        if !others.is_empty() {
            self.copies_decided(frame, others);
        }
        self.end_lease(lease_end);
        self.drop_if_done(place);
        self.stir(now);
        Ok(())
    }

    /// A frame holds its lease no longer.
    pub(crate) fn end_lease(&mut self, end: Option<LeaseEnd>) {
        let Some(LeaseEnd(stream, segment)) = end else {
            return;
        };
        let Some(place) = self.place(stream) else {
            return;
        };
        let holder = &mut self.streams[place].segments[usize::from(segment)].holder;
        if let Some(held) = holder {
            held.frames -= 1;
            if held.frames == 0 {
                *holder = None;
            }
        }
    }

    /// A frame that is at a slot: the slot's row, and the frame's position in its queue.
    pub(crate) fn find(&self, slot: SlotId, frame: FrameId) -> Option<(usize, usize)> {
        let row = self.slots.row(slot)?;
        Some((row, self.slots.get(row)?.position(frame)?))
    }
}

impl Stream {
    /// Whether each result of a frame is within what was granted.
    fn check_sizes(
        &mut self,
        frame: FrameId,
        grant: u64,
        range: Range<Index>,
        size: impl Fn(Index) -> u64,
    ) -> Result<(), Breach> {
        let waiting = &self.waiting;
        let mut result = Ok(());
        self.ring.visit(range, |index, item| {
            if result.is_err() || !item.is_at(frame) {
                return;
            }
            let got = size(index);
            let announced = waiting.get(&index).map_or(0, |waiting| waiting.bytes);
            result = match item.state {
                ItemState::Announced => Err(Breach::NotGranted { index }),
                ItemState::Granted if got > announced => Err(Breach::OverAnnounced {
                    index,
                    got,
                    announced,
                }),
                ItemState::Out if got > grant => Err(Breach::OverGrant { index, got, grant }),
                _ => Ok(()),
            };
        });
        result
    }

    /// Whether the result of several items that waited is one of all of these, or nobody would wait for the others.
    fn check_together(&self, frame: FrameId, range: Range<Index>) -> Result<(), Breach> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let here = self.waiting.range(range.clone());
        let mut here = here.filter(|(_, waiting)| waiting.frame == frame && waiting.granted);
        let left = |(index, waiting): &(&Index, &WaitingResult)| {
            index.saturating_add(waiting.items.into()) > range.end
        };
        match here.find(left) {
            None => Ok(()),
            Some((index, waiting)) => Err(Breach::AnnouncedOfMore {
                index: *index,
                announced: waiting.items,
            }),
        }
    }

    /// Results of a frame that waited are here now. Says for how many bytes they had been granted.
    fn forget_waiting(&mut self, frame: FrameId, range: Range<Index>) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        let here = self
            .waiting
            .range(range)
            .filter(|(_, waiting)| waiting.frame == frame && waiting.granted);
        let mut granted = 0;
        for index in here.map(|(index, _)| *index).collect::<Vec<_>>() {
            if let Some(waiting) = self.waiting.remove(&index) {
                granted += waiting.bytes;
                self.reserved = self.reserved.saturating_sub(waiting.reserved);
            }
        }
        granted
    }
}

/// Puts the next index behind the last range, or into one of its own.
pub(crate) fn lengthen(ranges: &mut Vec<Range<Index>>, index: Index) {
    match ranges.last_mut() {
        Some(range) if range.end == index => range.end += 1,
        _ => ranges.push(index..index + 1),
    }
}
