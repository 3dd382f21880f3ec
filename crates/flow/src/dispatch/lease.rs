//! Who runs a serial function: whether its lease stays where it is, or moves to another slot.

use super::{Outlook, View};
use crate::Lease;
use crate::slot::{FRAMES_HIDING, nanos};
use crate::stream::{SegmentState, Stream};

/// Giving a lease back and getting the next frame costs a round trip in which the serial function rests. It is worth
/// that when the rest of a frame takes longer by this part of the serial function's time at least.
const PASSING_PART: u64 = 4;

/// After so many frames without one that timed the serial function by itself, the next one does.
const UNTIMED_FRAMES_MAX: u32 = 64;

/// A serial segment runs by itself only if an item takes at least this part of the frame time behind it: to send it once more, to write and to
/// read it must cost little beside that.
const HOP_PART: u64 = 16;

/// What moving a lease is worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gain {
    /// Items of a frame that lasts until the lease comes round again.
    pub(super) items: u64,
    /// Moving pays to slots whose round trip, in nanoseconds, is shorter than this.
    reach: u64,
}

impl Outlook<'_> {
    /// What is gained if a serial function goes on elsewhere while the functions after it run here, if anything is. As long as nobody knows, it
    /// should.
    pub(super) fn gain_by_moving(&self, segment: &SegmentState) -> Option<Gain> {
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

    /// Whether a serial segment runs by itself: its frames end with it, and others go on with what it has done. That costs a hop more, and is worth it
    /// where a lease that goes with its items would wait for so long behind those that run where it comes to that slots would have
    /// nothing to do: longer than half of what all of them need for the items of its frame.
    pub(super) fn is_alone(&self, stream: &Stream, number: usize) -> bool {
        let segment = &stream.segments[number];
        if !segment.rest || segment.is_fused || self.usable < 2 {
            return false;
        }
        let rest = stream.segments[number + 1].time.settled();
        let (Some(serial), Some(rest)) = (segment.serial_time.settled(), rest) else {
            return false;
        };
        // The hop more must be cheap beside what it is for: its own work, and the bytes of what travels.
        let frame_time = nanos(self.config.frame_time).max(1);
        let bytes_max = self
            .config
            .grant_bytes
            .saturating_mul((rest / frame_time).max(1));
        if rest < frame_time / HOP_PART || segment.result_bytes.bytes() > bytes_max {
            return false;
        }
        let parallel = stream.segments.iter().filter(|other| !other.serial);
        let wait = parallel.map(|other| other.time.residual()).max();
        let items = self.full_frame(serial.saturating_add(rest));
        let turn = serial.saturating_mul(items);
        let cycle = turn
            .saturating_add(self.round_trip)
            .saturating_add(wait.unwrap_or(0));
        let needed = rest.saturating_mul(items).saturating_add(turn) / self.usable;
        cycle.saturating_mul(2) > needed
    }

    /// The slot where the lease was last, if it is kept there: not if that slot has enough to do with other work, or may get
    /// none.
    pub(super) fn keeper(&self, segment: &SegmentState) -> Option<usize> {
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
}

impl View<'_> {
    /// How this slot may run a segment, if it may at all. A lease must not wait in a long queue, so it goes to a slot
    /// that will soon be free. It stays there, with one frame after another, unless something is gained by moving it.
    pub(super) fn lease(&self, segment: &SegmentState, is_alone: bool) -> Option<Lease> {
        if segment.ready.is_empty() {
            return None;
        }
        if !segment.serial {
            return Some(Lease::None);
        }
        let gain = self.all.gain_by_moving(segment).filter(|_| !is_alone);
        // Where items have their turns, suspects that have theirs later don't wait for it before others.
        let may = (segment.carries || segment.suspects.is_empty())
            && match (segment.holder, gain) {
                // Not far away for a small gain, unless it would lie where it is.
                (None, Some(gain)) => {
                    let is_near = gain.reach > self.slot.round_trip(self.all.config);
                    self.soon_free() && (is_near || self.is_home(segment))
                }
                (None, None) => self.soon_free() && self.is_home(segment),
                (Some(holder), gain) => holder.row == self.row && gain.is_none(),
            };
        let timed = segment.rest && !is_alone && segment.untimed_frames >= UNTIMED_FRAMES_MAX;
        may.then_some(if gain.is_some() || timed {
            Lease::PassedOn
        } else {
            Lease::Kept
        })
    }

    /// Whether the lease is at home here, or nothing keeps it where it was.
    pub(super) fn is_home(&self, segment: &SegmentState) -> bool {
        let keeper = self.all.keeper(segment);
        keeper.is_none_or(|keeper| keeper == self.row)
    }
}
