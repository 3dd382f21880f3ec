//! Which slot gets which frame next.

mod frame_size;
mod lease;

use std::ops::Range;
use std::time::Duration;

use self::frame_size::item_nanos;
use crate::frame::{Frame, RecallState};
use crate::item::{ItemState, attempt};
use crate::scheduler::Scheduler;
use crate::slot::{FRAMES_HIDING, Slot, nanos};
use crate::slot_table::{Cursor, Queue, SlotTable};
use crate::stream::{Holder, SegmentState, Stream};
use crate::{Action, FrameId, Index, Lease, SchedulerConfig, SlotId};

/// Of the slots that have enough to hide sending, so many are looked at for one frame: what is not worth more work for
/// those with the least to do is hardly worth it for the others, and there may be thousands.
const LOOKS_MAX: u32 = 32;

/// A frame that may be dispatched now.
#[derive(Clone, Copy, Debug)]
struct Choice {
    place: usize,
    from: u16,
    to: u16,
    first: Index,
    count: u32,
    bytes: u64,
    item_nanos: u64,
    suspect: bool,
    /// The slot that it has failed at, of a single item that runs again.
    failed: Option<SlotId>,
    lease: Lease,
}

impl Scheduler {
    /// Finds the next frame: the slot with the least to do chooses first.
    pub(crate) fn next_dispatch(&mut self, now: Duration) -> Option<Action> {
        self.streams.iter_mut().for_each(Stream::advance_carried);
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
            for (number, segment) in stream.segments.iter().enumerate() {
                if !segment.elsewhere.is_empty() {
                    return Takers::Anyone;
                }
                if segment.ready.is_empty() || !segment.has_turn(segment.ready.first()) {
                    continue;
                }
                let is_alone = outlook.is_alone(stream, number);
                let gain = outlook.gain_by_moving(segment).filter(|_| !is_alone);
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
        let wanted = self.streams.iter().any(Stream::has_suspects);
        let kept = self
            .reserved_row
            .filter(|row| slots.get(*row).is_some_and(Slot::is_usable));
        self.reserved_row = if wanted {
            kept.or_else(|| {
                let usable = slots.iter().filter(|(_, slot)| slot.is_usable());
                usable
                    .min_by_key(|(_, slot)| (slot.load(now), slot.running_items))
                    .map(|(row, _)| row)
            })
        } else {
            None
        };
    }

    /// The best frame for this slot: streams in turn, in each of them what is nearest to its end, and the oldest item first.
    fn choose(&self, row: usize, now: Duration) -> Option<Choice> {
        let slot = self.slots.get(row)?;
        let turns = || (self.turn..self.streams.len()).chain(0..self.turn.min(self.streams.len()));
        let places = || {
            turns().flat_map(|first| {
                let order = &self.streams[first].order;
                order
                    .iter()
                    .map(move |range| (first + usize::from(range.line), &range.segments))
            })
        };
        let alone = || {
            let suspect = |(place, segments): (usize, &Range<usize>)| {
                choose_suspect(&self.streams[place], (place, segments), row, &self.config)
            };
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
            .find_map(|(place, segments)| view.choose(&self.streams[place], (place, segments)))
            .or_else(alone)
    }

    fn dispatch(&mut self, row: usize, choice: Choice, now: Duration) -> Action {
        let id = FrameId(self.next_frame);
        self.next_frame += 1;
        let Stream { line, lines, .. } = self.streams[choice.place];
        self.turn = choice.place + usize::from(lines - line);
        self.expect_recall(now);
        self.look_below(choice.place);
        let stream = &mut self.streams[choice.place];
        let count = u64::from(choice.count);
        let grant = stream.grant(
            &self.config,
            (choice.from, choice.to),
            choice.first..choice.first + count,
        );
        let furthest = choice.from + u16::from(stream.segments[usize::from(choice.from)].rest);
        let then = stream.segments[usize::from(furthest)].then;
        let segment = &mut stream.segments[usize::from(choice.from)];
        if choice.suspect {
            segment.suspects.remove(&choice.first);
            stream.suspects -= 1;
        } else if let Some(failed) = choice.failed {
            segment.take_retry(failed, choice.first);
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
            from: choice.from,
            to: choice.to,
            furthest,
            then,
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
            from: choice.from,
            to: choice.to,
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

impl View<'_> {
    fn choose(&self, stream: &Stream, (place, range): (usize, &Range<usize>)) -> Option<Choice> {
        if stream.ready == stream.suspects {
            return None;
        }
        let segments = || range.clone().zip(&stream.segments[range.clone()]).rev();
        // What stands before a serial segment that is alone here waits, and others wait for it.
        let at_home = |number: usize, segment: &SegmentState| {
            segment.home == Some(self.row) && (!segment.rest || self.all.is_alone(stream, number))
        };
        let first = segments().find_map(|(number, segment)| {
            let is_first = segment.serial && !segment.ready.is_empty() && at_home(number, segment);
            is_first.then(|| self.frame_of(stream, place, number))?
        });
        first.or_else(|| segments().find_map(|(number, _)| self.frame_of(stream, place, number)))
    }

    /// A frame that begins with this segment.
    fn frame_of(&self, stream: &Stream, place: usize, number: usize) -> Option<Choice> {
        let segment = &stream.segments[number];
        if !segment.has_turn(segment.ready.first()) {
            return None;
        }
        let is_alone = self.all.is_alone(stream, number);
        let again = || self.retry(stream, segment);
        let cut = || self.cut(stream, segment, self.lease(segment, is_alone)?, is_alone);
        let frame = again().or_else(cut)?;
        let from = number as u16;
        let to = from + u16::from(segment.rest && !is_alone);
        Some(Choice {
            place,
            from,
            to,
            ..frame
        })
    }

    /// An item that runs again: not at the slot that it failed at, as long as there is another one. It is by itself, so that it is not
    /// held up by what may fail as well.
    fn retry(&self, stream: &Stream, segment: &SegmentState) -> Option<Choice> {
        if segment.elsewhere.is_empty()
            || self.slot.running_frames >= FRAMES_HIDING && !self.soon_free()
        {
            return None;
        }
        let (failed, first) = segment.retry_at(self.slot.id, self.all.usable < 2)?;
        Some(Choice {
            place: 0,
            from: 0,
            to: 0,
            first,
            count: 1,
            bytes: stream.ring.get(first)?.bytes,
            item_nanos: item_nanos(self.all.config, segment, self.row),
            suspect: false,
            failed: Some(failed),
            lease: Lease::None,
        })
    }

    /// Whether the slot will run dry unless it gets something now.
    fn soon_free(&self) -> bool {
        let near =
            nanos(self.all.config.frame_time).saturating_add(self.slot.round_trip(self.all.config));
        self.slot.running_frames < FRAMES_HIDING || self.slot.load(self.all.now) < near
    }
}

/// A frame of the oldest item that must run alone, latest segment first.
fn choose_suspect(
    stream: &Stream,
    (place, range): (usize, &Range<usize>),
    row: usize,
    config: &SchedulerConfig,
) -> Option<Choice> {
    if stream.suspects == 0 {
        return None;
    }
    let segments = range.clone().zip(&stream.segments[range.clone()]).rev();
    segments.into_iter().find_map(|(number, segment)| {
        let first = *segment.suspects.first()?;
        let bytes = stream.ring.get(first)?.bytes;
        let may = segment.has_turn(Some(first..first + 1))
            && (!segment.serial || segment.holder.is_none());
        may.then(|| Choice {
            place,
            from: number as u16,
            to: number as u16 + u16::from(segment.rest),
            first,
            count: 1,
            bytes,
            item_nanos: item_nanos(config, segment, row),
            suspect: true,
            failed: None,
            lease: match (segment.serial, segment.rest) {
                (false, _) => Lease::None,
                (true, false) => Lease::Kept,
                (true, true) => Lease::PassedOn,
            },
        })
    })
}
