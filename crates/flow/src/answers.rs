//! What slots say: results, a lease given back, a large result that waits.

use std::ops::Range;
use std::time::Duration;

use crate::item::State;
use crate::scheduler::Scheduler;
use crate::slot::{LeaseEnd, nanos};
use crate::stream::{Stream, Waiting};
use crate::{Accepted, FrameId, Index, Lease, Sizes, SlotId};

/// Announced sizes beyond this are taken as this, so that sums never overflow; no host has so much memory.
const ANNOUNCED_MAX: u64 = 1 << 48;

/// Sums over the items of an answer.
#[derive(Default)]
struct Tally {
    accepted: u32,
    /// Those of them that were not announced before.
    ran: u32,
    ran_bytes: u64,
    old_bytes: u64,
    new_bytes: u64,
}

impl Scheduler {
    /// Results of consecutive items arrived (values and exceptions alike), from `first` on; `busy` is the time the
    /// slot spent on them, 0 if it is not known. Says which of them count; `None` when none does.
    pub fn results(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        first: Index,
        sizes: Sizes<'_>,
        busy: Duration,
        now: Duration,
    ) -> Option<Accepted<'_>> {
        let seat = self.slots.seat(slot)?;
        let position = self.slots.get(seat)?.position(frame)?;
        let slot = self.slots.get_mut(seat)?;
        let known = &slot.frames[position];
        let (segment, grant, whole) = (known.segment, known.grant, known.count);
        let serial_nanos = known.serial_nanos;
        let range = known.clip(first, sizes.count());
        let place = self
            .streams
            .binary_search_by_key(&known.stream, |stream| stream.id)
            .ok()?;
        let stream = &mut self.streams[place];
        let last = usize::from(segment) + 1 == stream.segments.len();
        let closed = stream.closed;

        stream.forget_waiting(frame, range.clone());
        let accepted = &mut self.accepted;
        accepted.clear();
        let mut tally = Tally::default();
        stream.ring.visit(range, |index, item| {
            if !item.is_at(frame) {
                return;
            }
            let bytes = sizes.at(index - first);
            tally.accepted += 1;
            tally.old_bytes = tally.old_bytes.saturating_add(item.bytes);
            tally.new_bytes = tally.new_bytes.saturating_add(bytes);
            if item.state == State::Out {
                tally.ran += 1;
                tally.ran_bytes = tally.ran_bytes.saturating_add(item.bytes);
            }
            item.bytes = bytes;
            item.state = match (closed, last) {
                (true, _) => State::Gone,
                (false, true) => State::Finished,
                (false, false) => State::Ready,
            };
            item.segment += u16::from(!last);
            match accepted.last_mut() {
                Some(range) if range.end == index => range.end += 1,
                _ => accepted.push(index..index + 1),
            }
        });
        if tally.accepted == 0 {
            return None;
        }

        stream.out -= u64::from(tally.accepted);
        stream.let_go(segment, tally.old_bytes);
        stream.held_results = stream.held_results.saturating_add(tally.new_bytes);
        stream.reserved = stream
            .reserved
            .saturating_sub(grant.saturating_mul(u64::from(tally.ran)));
        let known = &mut stream.segments[usize::from(segment)];
        known
            .result_bytes
            .observe(tally.new_bytes, u64::from(tally.accepted));
        // What a frame's serial part took was told before and is not in `busy`.
        let time = nanos(busy).saturating_add(serial_nanos.saturating_mul(u64::from(tally.ran)));
        known.time.observe(time, tally.ran);
        known.at_seat(seat).time.observe(time, tally.ran);
        if closed {
            stream.ring.trim();
        } else if last {
            stream.finished += u64::from(tally.accepted);
        } else {
            accepted
                .iter()
                .for_each(|range| stream.make_ready(segment + 1, range.clone()));
        }

        slot.answered(position, busy, now);
        slot.statistics.items += u64::from(tally.accepted);
        slot.statistics.bytes_received += tally.new_bytes;
        slot.statistics.busy += busy;
        let frames = slot.running_frames;
        let lease_end = slot.settle(position, tally.ran, tally.ran_bytes, tally.accepted);
        if slot.running_frames < frames {
            stream.segments[usize::from(segment)].finished(seat, whole);
        }
        let stream_id = stream.id;
        self.end_lease(lease_end);
        self.drop_if_done(place);
        self.stir(now);
        (!closed).then_some(Accepted {
            stream: stream_id,
            segment,
            last,
            ranges: &self.accepted,
        })
    }

    /// No item of the frame runs the serial function, or will: another slot may have the lease. `busy` is the time the
    /// slot spent in it on all items of the frame ([`Lease::PassedOn`]), 0 if it is not known.
    pub fn released(&mut self, slot: SlotId, frame: FrameId, busy: Duration, now: Duration) {
        let Some((seat, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(slot) = self.slots.get_mut(seat) else {
            return;
        };
        let known = &mut slot.frames[position];
        if !std::mem::take(&mut known.leased) {
            return;
        }
        let (lease_end, count) = (LeaseEnd(known.stream, known.segment), known.running());
        if known.lease == Lease::PassedOn {
            known.serial_nanos = nanos(busy) / u64::from(count.max(1));
            slot.answered(position, busy, now);
            slot.statistics.busy += busy;
        }
        slot.progress = now;
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

    /// An item has run, and its result of so many bytes, more than its grant, waits at the slot.
    pub fn announced(
        &mut self,
        slot: SlotId,
        frame: FrameId,
        index: Index,
        bytes: u64,
        now: Duration,
    ) {
        let Some((seat, position)) = self.find(slot, frame) else {
            return;
        };
        let Some(at) = self.slots.get_mut(seat) else {
            return;
        };
        let known = &at.frames[position];
        let (stream, segment, grant) = (known.stream, known.segment, known.grant);
        let Some(place) = self
            .streams
            .binary_search_by_key(&stream, |stream| stream.id)
            .ok()
        else {
            return;
        };
        let stream = &mut self.streams[place];
        let Some(item) = stream
            .ring
            .get_mut(index)
            .filter(|item| item.is_at(frame) && item.state == State::Out)
        else {
            return;
        };
        let token_bytes = item.bytes;
        let closed = stream.closed;
        item.state = if closed {
            State::Gone
        } else {
            State::Announced
        };
        stream.reserved = stream.reserved.saturating_sub(grant);
        let bytes = bytes.min(ANNOUNCED_MAX);
        stream.segments[usize::from(segment)]
            .result_bytes
            .observe(bytes, 1);
        if closed {
            stream.out -= 1;
            stream.ring.trim();
        } else {
            stream.waiting.insert(
                index,
                Waiting {
                    slot,
                    frame,
                    bytes,
                    granted: false,
                },
            );
        }
        at.progress = now;
        at.held_back = false;
        let lease_end = at.settle(position, 1, token_bytes, u32::from(closed));
        self.end_lease(lease_end);
        self.drop_if_done(place);
        self.stir(now);
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

    /// The seat and the place in its queue of a frame that is at a slot.
    pub(crate) fn find(&self, slot: SlotId, frame: FrameId) -> Option<(usize, usize)> {
        let seat = self.slots.seat(slot)?;
        Some((seat, self.slots.get(seat)?.position(frame)?))
    }
}

impl Stream {
    /// Results of a frame that waited are here now.
    fn forget_waiting(&mut self, frame: FrameId, range: Range<Index>) {
        if self.waiting.is_empty() {
            return;
        }
        let here = self
            .waiting
            .range(range)
            .filter(|(_, waiting)| waiting.frame == frame);
        for index in here.map(|(index, _)| *index).collect::<Vec<_>>() {
            if let Some(waiting) = self
                .waiting
                .remove(&index)
                .filter(|waiting| waiting.granted)
            {
                self.reserved = self.reserved.saturating_sub(waiting.bytes);
            }
        }
    }
}
