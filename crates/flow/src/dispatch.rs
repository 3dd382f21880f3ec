//! Which slot gets which frame next.

use std::time::Duration;

use crate::frame::{Frame, RecallState};
use crate::item::{ItemState, attempt};
use crate::scheduler::Scheduler;
use crate::slot::{FRAMES_HIDING, Slot, nanos};
use crate::slot_table::{Cursor, Queue, SlotTable};
use crate::stream::{Holder, SegmentState, Stream};
use crate::{Action, FrameId, Index, Lease, SchedulerConfig};

/// The share of what is ready that one frame may have is this part of an equal share, so that the last frames of a
/// stream are small and slots end together.
const SHARE: u64 = 2;

/// A frame is not cut smaller than this part of the frame time, since sending it would cost more than it balances.
const LEAST_PART: u32 = 32;

/// Of the slots that have enough to hide sending, so many are looked at for one frame: what is not worth more work for
/// those with the least to do is hardly worth it for the others, and there may be thousands.
const LOOKS_MAX: u32 = 32;

/// Giving a lease back and getting the next frame costs a round trip in which the serial function rests. It is worth
/// that when the rest of a frame takes longer by this part of the serial function's time at least.
const PASSING_PART: u64 = 4;

/// A slot is slow if its items take more than so many times what they take elsewhere; estimates differ by less from chance.
const SLOW: u64 = 2;

/// After so many frames without one that timed the serial function by itself, the next one does.
const UNTIMED_FRAMES_MAX: u32 = 64;

/// A frame that may be dispatched now.
#[derive(Clone, Copy, Debug)]
struct Choice {
    place: usize,
    segment: u16,
    first: Index,
    count: u32,
    bytes: u64,
    item_nanos: u64,
    suspect: bool,
    lease: Lease,
}

impl Scheduler {
    /// Finds the next frame: the slot with the least to do chooses first.
    pub(crate) fn next_dispatch(&mut self, now: Duration) -> Option<Action> {
        self.reserve_slot(now);
        if self.streams.iter().all(|stream| stream.ready == 0) {
            return None;
        }
        self.slots.index_changes(&self.config, now);
        let found = self.find_choice(now);
        found.map(|(row, choice)| self.dispatch(row, choice, now))
    }

    fn find_choice(&mut self, now: Duration) -> Option<(usize, Choice)> {
        if let Takers::These(mut rows) = self.takers(now) {
            let load = |row: usize| Some((self.slots.get(row)?.load(now), row));
            rows.sort_by_key(|row| load(*row));
            let mut choices = rows.into_iter().filter(|row| self.accepts(*row, now));
            return choices.find_map(|row| Some((row, self.choose(row, now)?)));
        }
        let window_max = nanos(self.config.window_time).saturating_add(self.slots.round_trip_max());
        let (mut behind_hungry, mut behind_filled) = (Cursor::default(), Cursor::default());
        let mut hungry = self.slots.next(Queue::Hungry, &mut behind_hungry, now);
        let mut filled = self.slots.next(Queue::Filled, &mut behind_filled, now);
        let mut looks = 0;
        loop {
            // The others have as much or more to do.
            filled = filled.filter(|turn| turn.load < window_max && looks < LOOKS_MAX);
            let (turn, queue) = match (hungry, filled) {
                (Some(hungry), Some(filled)) if hungry > filled => (filled, Queue::Filled),
                (Some(hungry), _) => (hungry, Queue::Hungry),
                (None, filled) => (filled?, Queue::Filled),
            };
            if self.accepts(turn.row, now)
                && let Some(choice) = self.choose(turn.row, now)
            {
                return Some((turn.row, choice));
            }
            match queue {
                Queue::Hungry => hungry = self.slots.next(queue, &mut behind_hungry, now),
                Queue::Filled => {
                    looks += 1;
                    filled = self.slots.next(queue, &mut behind_filled, now);
                }
            }
        }
    }

    fn accepts(&self, row: usize, now: Duration) -> bool {
        let slot = self.slots.get(row);
        slot.is_some_and(|slot| slot.accepts(&self.config, now))
    }

    fn outlook(&self, now: Duration) -> Outlook<'_> {
        Outlook {
            config: &self.config,
            slots: &self.slots,
            reserved_row: self.reserved_row,
            round_trip: self.slots.round_trip_min(),
            round_trips: self.slots.round_trip_sum(),
            usable: u64::from(self.slots.usable()),
            now,
        }
    }

    /// Who may take something of what is ready. A serial function that is at one slot leaves nothing to all the others, and there
    /// may be thousands who would look.
    fn takers(&self, now: Duration) -> Takers {
        let outlook = self.outlook(now);
        let mut rows = Vec::new();
        for stream in &self.streams {
            if stream.suspects > 0 {
                return Takers::Anyone;
            }
            for segment in &stream.segments {
                if segment.ready.is_empty() {
                    continue;
                }
                let gain = outlook.gain_by_moving(segment);
                let row = match (segment.serial, segment.holder, gain) {
                    (true, Some(_), Some(_)) => continue,
                    (true, Some(holder), None) => Some(holder.row),
                    (true, None, None) => outlook.keeper(segment),
                    (false, _, _) | (true, None, Some(_)) => None,
                };
                match row {
                    Some(row) => rows.push(row),
                    None => return Takers::Anyone,
                }
            }
        }
        Takers::These(rows)
    }

    /// While there are items that must run alone, the slot with the least to do gets nothing else.
    fn reserve_slot(&mut self, now: Duration) {
        let slots = &self.slots;
        let wanted = self.streams.iter().any(|stream| stream.suspects > 0);
        let kept = self
            .reserved_row
            .filter(|row| slots.get(*row).is_some_and(|slot| !slot.draining));
        self.reserved_row = if wanted {
            kept.or_else(|| {
                let usable = slots.iter().filter(|(_, slot)| !slot.draining);
                usable
                    .min_by_key(|(_, slot)| (slot.load(now), slot.running_items))
                    .map(|(row, _)| row)
            })
        } else {
            None
        };
    }

    /// The best frame for this slot: streams in turn, in each of them the latest segment and the oldest item first.
    fn choose(&self, row: usize, now: Duration) -> Option<Choice> {
        let slot = self.slots.get(row)?;
        let places = || (self.turn..self.streams.len()).chain(0..self.turn.min(self.streams.len()));
        let alone = || {
            let suspect =
                |place: usize| choose_suspect(&self.streams[place], place, row, &self.config);
            if slot.running_items == 0 {
                places().find_map(suspect)
            } else {
                None
            }
        };
        if self.reserved_row == Some(row) {
            return alone();
        }
        let view = View {
            all: self.outlook(now),
            slot,
            row,
        };
        places()
            .find_map(|place| view.choose(&self.streams[place], place))
            .or_else(alone)
    }

    fn dispatch(&mut self, row: usize, choice: Choice, now: Duration) -> Action {
        let id = FrameId(self.next_frame);
        self.next_frame += 1;
        self.turn = choice.place + 1;
        self.unworthy_until = None;
        let stream = &mut self.streams[choice.place];
        let count = u64::from(choice.count);
        let grant = stream.grant(
            &self.config,
            choice.segment,
            choice.first..choice.first + count,
        );
        let segment = &mut stream.segments[usize::from(choice.segment)];
        if choice.suspect {
            segment.suspects.remove(&choice.first);
            stream.suspects -= 1;
        } else {
            segment.ready.take_first(count);
        }
        if segment.serial {
            let frames = segment.holder.map_or(0, |holder| holder.frames) + 1;
            segment.holder = Some(Holder { row, frames });
            segment.home = Some(row);
            segment.untimed_frames = match choice.lease {
                Lease::PassedOn => 0,
                _ => segment.untimed_frames.saturating_add(1),
            };
        }
        let frame = Frame {
            id,
            stream: stream.id,
            segment: choice.segment,
            first: choice.first,
            count: choice.count,
            pending: choice.count,
            executed: 0,
            grant,
            item_nanos: choice.item_nanos,
            suspect: choice.suspect,
            lease: choice.lease,
            leased: segment.serial,
            serial_nanos: 0,
            recall: RecallState::Idle,
            since: now,
            sent: None,
        };
        stream.ready -= count;
        stream.out += count;
        stream.reserved = stream.reserved.saturating_add(grant.saturating_mul(count));
        stream.ring.visit(frame.range(), |_, item| {
            item.state = ItemState::Out;
            item.attempt = attempt(id);
        });
        let stream = stream.id;
        let slot = self.slots.get_mut(row).expect("the chosen row has a slot");
        slot.push(frame, choice.bytes, now);
        Action::Dispatch {
            slot: slot.id,
            frame: id,
            stream,
            segment: choice.segment,
            first: choice.first,
            count: choice.count,
            grant,
            lease: choice.lease,
        }
    }
}

/// Who may take something of what is ready.
enum Takers {
    Anyone,
    /// Only who sits here.
    These(Vec<usize>),
}

/// What moving a lease is worth.
#[derive(Clone, Copy, Debug)]
struct Gain {
    /// Items of a frame that lasts until the lease comes round again.
    items: u64,
    /// Moving pays to slots whose round trip, in nanoseconds, is shorter than this.
    reach: u64,
}

/// What is the same for all slots that look for work.
struct Outlook<'a> {
    config: &'a SchedulerConfig,
    slots: &'a SlotTable,
    reserved_row: Option<usize>,
    /// The shortest round trip to any slot, in nanoseconds; 0 if none is known.
    round_trip: u64,
    /// The sum of the round trips to all usable slots, in nanoseconds.
    round_trips: u64,
    usable: u64,
    now: Duration,
}

/// What one slot sees when it looks for work.
struct View<'a> {
    all: Outlook<'a>,
    slot: &'a Slot,
    row: usize,
}

impl Outlook<'_> {
    /// What is gained if a serial function goes on elsewhere while the functions after it run here, if anything is. As long as nobody knows, it
    /// should.
    fn gain_by_moving(&self, segment: &SegmentState) -> Option<Gain> {
        if !segment.rest || self.usable < 2 {
            return None;
        }
        let (Some(item), Some(serial)) = (segment.time.settled(), segment.serial_time.settled())
        else {
            return Some(Gain {
                items: 1,
                reach: u64::MAX,
            });
        };
        let after = item.saturating_sub(serial);
        let wanted = self.items_until_next_turn(segment, serial, after);
        let items = self.full_frame(item.max(1)).max(wanted);
        let (rest, passing) = (after.saturating_mul(items), serial.saturating_mul(items));
        let cost = passing / PASSING_PART + self.round_trip;
        let is_bound_by_serial = serial.saturating_mul(self.usable) >= after;
        let reach = match is_bound_by_serial {
            // Who is far away would only make the serial function rest.
            true => self
                .round_trip
                .saturating_mul(2)
                .max(passing / PASSING_PART),
            false => rest,
        };
        (rest > cost).then_some(Gain {
            items: wanted,
            reach,
        })
    }

    /// How many items keep a slot busy until the lease has been at all others: each of them has it for its round trip and for the serial
    /// function, on as many items.
    ///
    /// Never so many that too few are left for the others: while a slot works on its frame, `items * after`, so many others as there are round
    /// trips in that get one of their own.
    fn items_until_next_turn(&self, segment: &SegmentState, serial: u64, after: u64) -> u64 {
        let after = after.max(1);
        let spare = after.saturating_sub(serial.saturating_mul(self.usable));
        let needed = self.round_trips.div_ceil(spare.max(1));
        let mean = self.round_trips / self.usable.max(1);
        let left = segment.ready.len().saturating_mul(mean) / (SHARE * after);
        needed
            .min(left.isqrt())
            .min(u64::from(self.config.frame_items_max))
    }

    /// The slot where the lease was last, if it is kept there: not if that slot has enough to do with other work, or may get
    /// none.
    fn keeper(&self, segment: &SegmentState) -> Option<usize> {
        let keeps = |home: &usize| {
            self.slots.get(*home).is_some_and(|slot| {
                slot.accepts(self.config, self.now)
                    && slot.running_frames < FRAMES_HIDING
                    && slot.load(self.now) < nanos(self.config.frame_time)
                    && self.reserved_row != Some(*home)
            })
        };
        segment.home.filter(keeps)
    }

    /// How many items of such a time are worth a frame.
    fn full_frame(&self, item_nanos: u64) -> u64 {
        (nanos(self.config.frame_time) / item_nanos)
            .min(u64::from(self.config.frame_items_max))
            .max(1)
    }
}

impl View<'_> {
    fn choose(&self, stream: &Stream, place: usize) -> Option<Choice> {
        if stream.ready == stream.suspects {
            return None;
        }
        let mut segments = stream.segments.iter().enumerate().rev();
        segments.find_map(|(number, segment)| {
            let lease = self.lease(segment)?;
            let frame = self.cut(stream, segment, lease)?;
            Some(Choice {
                place,
                segment: number as u16,
                ..frame
            })
        })
    }

    /// How this slot may run a segment, if it may at all. A lease must not wait in a long queue, so it goes to a slot
    /// that will soon be free. It stays there, with one frame after another, unless something is gained by moving it.
    fn lease(&self, segment: &SegmentState) -> Option<Lease> {
        if segment.ready.is_empty() {
            return None;
        }
        if !segment.serial {
            return Some(Lease::None);
        }
        let gain = self.all.gain_by_moving(segment);
        let may = segment.suspects.is_empty()
            && match (segment.holder, gain) {
                // Not far away for a small gain, unless it would lie where it is.
                (None, Some(gain)) => {
                    let is_near = gain.reach > self.slot.round_trip(self.all.config);
                    self.soon_free() && (is_near || self.is_home(segment))
                }
                (None, None) => self.soon_free() && self.is_home(segment),
                (Some(holder), gain) => holder.row == self.row && gain.is_none(),
            };
        let timed = segment.rest && segment.untimed_frames >= UNTIMED_FRAMES_MAX;
        may.then_some(if gain.is_some() || timed {
            Lease::PassedOn
        } else {
            Lease::Kept
        })
    }

    /// Whether the lease is at home here, or nothing keeps it where it was.
    fn is_home(&self, segment: &SegmentState) -> bool {
        let keeper = self.all.keeper(segment);
        keeper.is_none_or(|keeper| keeper == self.row)
    }

    /// Whether the slot will run dry unless it gets something now.
    fn soon_free(&self) -> bool {
        let near =
            nanos(self.all.config.frame_time).saturating_add(self.slot.round_trip(self.all.config));
        self.slot.running_frames < FRAMES_HIDING || self.slot.load(self.all.now) < near
    }

    /// The oldest ready items, as many as are worth a frame here and now.
    fn cut(&self, stream: &Stream, segment: &SegmentState, lease: Lease) -> Option<Choice> {
        let range = segment.ready.first()?;
        let item_nanos = item_nanos(self.all.config, segment, self.row);
        let known = segment.estimates.get(self.row);
        let grown = u64::from(known.map_or(1, |known| known.items_max));
        let passed = self.items_passed(segment, item_nanos, lease);
        let full = self.all.full_frame(item_nanos).max(passed);
        let share = self.share(segment, item_nanos, lease).max(passed);
        let wanted = full.min(grown).min(share).min(range.end - range.start);
        let bytes_max = self
            .slot
            .frame_bytes_max
            .min(self.all.config.frame_bytes_max);
        let (mut count, mut bytes) = (0, 0u64);
        for item in stream.ring.walk(range.start).take(wanted as usize) {
            let sum = bytes.saturating_add(item.bytes);
            if count > 0 && sum > bytes_max {
                break;
            }
            (count, bytes) = (count + 1, sum);
        }
        if self.slot.running_frames >= FRAMES_HIDING {
            let by_bytes = u64::from(count) < wanted;
            // Small frames are for slots that would run dry; for others the items can wait and become a full one.
            let small = u64::from(count) < full && !by_bytes;
            // Frames that are small only because larger ones, or any, were not tried yet must not fill the window.
            let untried = (grown < full || grown == 1) && !by_bytes;
            // A queue that is long would stand before the frames of the serial stages that follow.
            let in_the_way = !segment.serial && stream.segments.iter().any(|other| other.serial);
            if untried || (small || in_the_way) && !self.soon_free() {
                return None;
            }
            let frame_nanos = item_nanos.saturating_mul(u64::from(count));
            let load = self.slot.load(self.all.now).saturating_add(frame_nanos);
            if load > self.slot.window(self.all.config) {
                return None;
            }
        }
        Some(Choice {
            place: 0,
            segment: 0,
            first: range.start,
            count,
            bytes,
            item_nanos,
            suspect: false,
            lease,
        })
    }

    /// How many items are worth it that a lease comes here for one frame: fewer where they take much longer than elsewhere, since what has
    /// passed a serial function isn't asked back.
    fn items_passed(&self, segment: &SegmentState, item_nanos: u64, lease: Lease) -> u64 {
        let passes = lease == Lease::PassedOn;
        let gain = passes.then(|| self.all.gain_by_moving(segment)).flatten();
        let usual = segment.time.nanos().unwrap_or(0);
        let much = usual.saturating_mul(SLOW).min(item_nanos);
        gain.map_or(0, |gain| gain.items.saturating_mul(much) / item_nanos)
    }

    /// How many of the ready items one frame may have, so that slots end together. What one slot runs is not shared.
    fn share(&self, segment: &SegmentState, item_nanos: u64, lease: Lease) -> u64 {
        let ready = segment.ready.len();
        if lease == Lease::Kept {
            return ready;
        }
        let least = nanos(self.all.config.frame_time / LEAST_PART) / item_nanos;
        ready.div_ceil(SHARE * self.all.usable.max(1)).max(least)
    }
}

/// A frame of the oldest item that must run alone, latest segment first.
fn choose_suspect(
    stream: &Stream,
    place: usize,
    row: usize,
    config: &SchedulerConfig,
) -> Option<Choice> {
    if stream.suspects == 0 {
        return None;
    }
    stream
        .segments
        .iter()
        .enumerate()
        .rev()
        .find_map(|(number, segment)| {
            let first = *segment.suspects.first()?;
            let bytes = stream.ring.get(first)?.bytes;
            (!segment.serial || segment.holder.is_none()).then(|| Choice {
                place,
                segment: number as u16,
                first,
                count: 1,
                bytes,
                item_nanos: item_nanos(config, segment, row),
                suspect: true,
                lease: match (segment.serial, segment.rest) {
                    (false, _) => Lease::None,
                    (true, false) => Lease::Kept,
                    (true, true) => Lease::PassedOn,
                },
            })
        })
}

/// The time of one item here, by what is known: of this slot, else of all, else a guess that keeps windows small.
fn item_nanos(config: &SchedulerConfig, segment: &SegmentState, row: usize) -> u64 {
    let here = segment
        .estimates
        .get(row)
        .and_then(|known| known.time.nanos());
    here.or_else(|| segment.time.nanos())
        .unwrap_or_else(|| nanos(config.frame_time))
        .max(1)
}
