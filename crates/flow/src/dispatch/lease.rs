//! Who runs a serial function: whether its lease stays where it is, or moves to another slot.

use super::{Outlook, View};
use crate::Lease;
use crate::slot::{FRAMES_HIDING, nanos};
use crate::stream::SegmentState;

/// Giving a lease back and getting the next frame costs a round trip in which the serial function rests. It is worth
/// that when the rest of a frame takes longer by this part of the serial function's time at least.
const PASSING_PART: u64 = 4;

/// After so many frames without one that timed the serial function by itself, the next one does.
const UNTIMED_FRAMES_MAX: u32 = 64;

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
    pub(super) fn lease(&self, segment: &SegmentState) -> Option<Lease> {
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
    pub(super) fn is_home(&self, segment: &SegmentState) -> bool {
        let keeper = self.all.keeper(segment);
        keeper.is_none_or(|keeper| keeper == self.row)
    }
}
