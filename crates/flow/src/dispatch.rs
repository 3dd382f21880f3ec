//! Which slot gets which frame next.

use std::time::Duration;

use crate::frame::{Frame, RecallState};
use crate::item::{State, attempt};
use crate::scheduler::Scheduler;
use crate::slot::{Slot, nanos};
use crate::stream::{Lease, SegmentState, Stream};
use crate::{Action, FrameId, Index, SchedulerConfig};

/// The share of what is ready that one frame may have is this part of an equal share, so that the last frames of a
/// stream are small and slots end together.
const SHARE: u64 = 2;

/// A frame is not cut smaller than this part of the frame time, since sending it would cost more than it balances.
const LEAST_PART: u32 = 32;

/// Frames that hide sending behind computing: one runs, one waits.
const FRAMES_HIDING: u32 = 2;

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
}

impl Scheduler {
    /// Finds the next frame: the slot with the least to do chooses first.
    pub(crate) fn next_dispatch(&mut self, now: Duration) -> Option<Action> {
        self.reserve_seat(now);
        if self.streams.iter().all(|stream| stream.ready == 0) {
            return None;
        }
        let mut seats = std::mem::take(&mut self.seats_by_load);
        seats.clear();
        let open = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.accepts(&self.config, now));
        seats.extend(open.map(|(seat, slot)| (slot.load(now), slot.running_items, seat)));
        seats.sort_unstable();
        let usable = u64::from(self.slots.usable());
        let found = seats
            .iter()
            .find_map(|(_, _, seat)| Some((*seat, self.choose(*seat, usable, now)?)));
        self.seats_by_load = seats;
        found.map(|(seat, choice)| self.dispatch(seat, choice, now))
    }

    /// While there are items that must run alone, the slot with the least to do gets nothing else.
    fn reserve_seat(&mut self, now: Duration) {
        let slots = &self.slots;
        let wanted = self.streams.iter().any(|stream| stream.suspects > 0);
        let kept = self
            .reserved_seat
            .filter(|seat| slots.get(*seat).is_some_and(|slot| !slot.draining));
        self.reserved_seat = if wanted {
            kept.or_else(|| {
                let usable = slots.iter().filter(|(_, slot)| !slot.draining);
                usable
                    .min_by_key(|(_, slot)| (slot.load(now), slot.running_items))
                    .map(|(seat, _)| seat)
            })
        } else {
            None
        };
    }

    /// The best frame for this slot: streams in turn, in each of them the latest segment and the oldest item first.
    fn choose(&self, seat: usize, usable: u64, now: Duration) -> Option<Choice> {
        let slot = self.slots.get(seat)?;
        let places = || (self.turn..self.streams.len()).chain(0..self.turn.min(self.streams.len()));
        let alone = || {
            let suspect =
                |place: usize| choose_suspect(&self.streams[place], place, seat, &self.config);
            if slot.running_items == 0 {
                places().find_map(suspect)
            } else {
                None
            }
        };
        if self.reserved_seat == Some(seat) {
            return alone();
        }
        let view = View {
            config: &self.config,
            slot,
            seat,
            usable,
            now,
        };
        places()
            .find_map(|place| view.choose(&self.streams[place], place))
            .or_else(alone)
    }

    fn dispatch(&mut self, seat: usize, choice: Choice, now: Duration) -> Action {
        let id = FrameId(self.next_frame);
        self.next_frame += 1;
        self.turn = choice.place + 1;
        let stream = &mut self.streams[choice.place];
        let count = u64::from(choice.count);
        let grant = stream.grant(&self.config, choice.segment, count);
        let segment = &mut stream.segments[usize::from(choice.segment)];
        if choice.suspect {
            segment.suspects.remove(&choice.first);
            stream.suspects -= 1;
        } else {
            segment.ready.take_first(count);
        }
        if segment.serial {
            let frames = segment.lease.map_or(0, |lease| lease.frames) + 1;
            segment.lease = Some(Lease { seat, frames });
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
            lease: segment.serial,
            movable: !segment.serial && !choice.suspect,
            recall: RecallState::Idle,
            sent: None,
        };
        stream.ready -= count;
        stream.out += count;
        stream.reserved = stream.reserved.saturating_add(grant.saturating_mul(count));
        stream.ring.visit(frame.range(), |_, item| {
            item.state = State::Out;
            item.attempt = attempt(id);
        });
        let stream = stream.id;
        let slot = self
            .slots
            .get_mut(seat)
            .expect("the chosen seat has a slot");
        slot.push(frame, choice.bytes, now);
        Action::Dispatch {
            slot: slot.id,
            frame: id,
            stream,
            segment: choice.segment,
            first: choice.first,
            count: choice.count,
            grant,
        }
    }
}

/// What one slot sees when it looks for work.
struct View<'a> {
    config: &'a SchedulerConfig,
    slot: &'a Slot,
    seat: usize,
    usable: u64,
    now: Duration,
}

impl View<'_> {
    fn choose(&self, stream: &Stream, place: usize) -> Option<Choice> {
        if stream.ready == stream.suspects {
            return None;
        }
        let segments = stream.segments.iter().enumerate().rev();
        segments
            .filter(|(_, segment)| self.may_run(segment))
            .find_map(|(number, segment)| {
                let frame = self.cut(stream, segment)?;
                Some(Choice {
                    place,
                    segment: number as u16,
                    ..frame
                })
            })
    }

    /// The rules of serial functions. A lease must not wait in a long queue, so it goes to a slot that will soon be
    /// free; and where frames follow, only to one frame at a time if parallel functions come after.
    fn may_run(&self, segment: &SegmentState) -> bool {
        if !segment.serial || segment.ready.is_empty() {
            return !segment.ready.is_empty();
        }
        segment.suspects.is_empty()
            && match segment.lease {
                None => self.soon_free(),
                Some(lease) => !segment.rest && lease.seat == self.seat,
            }
    }

    /// Whether the slot will run dry unless it gets something now.
    fn soon_free(&self) -> bool {
        let near = nanos(self.config.frame_time).saturating_add(self.slot.round_trip(self.config));
        self.slot.running_frames < FRAMES_HIDING || self.slot.load(self.now) < near
    }

    /// The oldest ready items, as many as are worth a frame here and now.
    fn cut(&self, stream: &Stream, segment: &SegmentState) -> Option<Choice> {
        let range = segment.ready.first()?;
        let item_nanos = item_nanos(self.config, segment, self.seat);
        let known = segment.seats.get(self.seat);
        let grown = u64::from(known.map_or(1, |known| known.items_max));
        let full = (nanos(self.config.frame_time) / item_nanos)
            .min(u64::from(self.config.frame_items_max))
            .max(1);
        let share = self.share(segment, item_nanos);
        let wanted = full.min(grown).min(share).min(range.end - range.start);
        let (mut count, mut bytes) = (0, 0u64);
        for item in stream.ring.walk(range.start).take(wanted as usize) {
            let sum = bytes.saturating_add(item.bytes);
            if count > 0 && sum > self.config.frame_bytes_max {
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
            let load = self.slot.load(self.now).saturating_add(frame_nanos);
            if load > self.slot.window(self.config) {
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
        })
    }

    /// How many of the ready items one frame may have, so that slots end together. A stage that one slot runs has
    /// nothing to share.
    fn share(&self, segment: &SegmentState, item_nanos: u64) -> u64 {
        let ready = segment.ready.len();
        if segment.serial && !segment.rest {
            return ready;
        }
        let least = nanos(self.config.frame_time / LEAST_PART) / item_nanos;
        ready.div_ceil(SHARE * self.usable.max(1)).max(least)
    }
}

/// A frame of the oldest item that must run alone, latest segment first.
fn choose_suspect(
    stream: &Stream,
    place: usize,
    seat: usize,
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
            (!segment.serial || segment.lease.is_none()).then(|| Choice {
                place,
                segment: number as u16,
                first,
                count: 1,
                bytes,
                item_nanos: item_nanos(config, segment, seat),
                suspect: true,
            })
        })
}

/// The time of one item here, by what is known: of this slot, else of all, else a guess that keeps windows small.
fn item_nanos(config: &SchedulerConfig, segment: &SegmentState, seat: usize) -> u64 {
    let here = segment.seats.get(seat).and_then(|known| known.time.nanos());
    here.or_else(|| segment.time.nanos())
        .unwrap_or_else(|| nanos(config.frame_time))
        .max(1)
}
