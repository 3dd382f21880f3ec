//! How many items a frame has: as many as are worth sending, few enough that slots end together.

use super::{Choice, Outlook, View};
use crate::slot::{FRAMES_HIDING, nanos};
use crate::stream::{SegmentState, Stream};
use crate::{Lease, SchedulerConfig, Then};

/// The share of what is ready that one frame may have is this part of an equal share, so that the last frames of a
/// stream are small and slots end together.
const SHARE: u64 = 2;

/// A frame is not cut smaller than this part of the frame time, since sending it would cost more than it balances.
const LEAST_PART: u32 = 32;

/// A slot is slow if its items take more than so many times what they take elsewhere; estimates differ by less from chance.
const SLOW: u64 = 2;

impl Outlook<'_> {
    /// How many items of such a time are worth a frame.
    pub(super) fn full_frame(&self, item_nanos: u64) -> u64 {
        (nanos(self.config.frame_time) / item_nanos)
            .min(u64::from(self.config.frame_items_max))
            .max(1)
    }

    /// How many items of such a time are worth a frame that is folded into one result.
    fn full_fold(&self, item_nanos: u64) -> u64 {
        (nanos(self.config.fold_time) / item_nanos)
            .min(u64::from(self.config.frame_items_max))
            .max(1)
    }

    /// How many items keep a slot busy until the lease has been at all others: each of them has it for its round trip and for the serial
    /// function, on as many items.
    ///
    /// Never so many that too few are left for the others: while a slot works on its frame, `items * after`, so many others as there are round
    /// trips in that get one of their own.
    pub(super) fn items_until_next_turn(
        &self,
        segment: &SegmentState,
        serial: u64,
        after: u64,
    ) -> u64 {
        let after = after.max(1);
        let spare = after.saturating_sub(serial.saturating_mul(self.usable));
        let needed = self.round_trips.div_ceil(spare.max(1));
        let mean = self.round_trips / self.usable.max(1);
        let left = segment.ready.len().saturating_mul(mean) / (SHARE * after);
        needed
            .min(left.isqrt())
            .min(u64::from(self.config.frame_items_max))
    }
}

impl View<'_> {
    /// The oldest ready items, as many as are worth a frame here and now.
    pub(super) fn cut(
        &self,
        stream: &Stream,
        segment: &SegmentState,
        lease: Lease,
        is_alone: bool,
    ) -> Option<Choice> {
        let range = segment.ready.first()?;
        let item_nanos = match segment.serial_time.nanos().filter(|_| is_alone) {
            Some(serial) => serial.max(1),
            None => item_nanos(self.all.config, segment, self.row),
        };
        let known = segment.estimates.get(self.row);
        let grown = u64::from(known.map_or(1, |known| known.items_max));
        let passed = self.items_passed(segment, item_nanos, lease);
        let full = match segment.then {
            Then::Fold => self.all.full_fold(item_nanos),
            _ => self.all.full_frame(item_nanos).max(passed),
        };
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
            from: 0,
            to: 0,
            first: range.start,
            count,
            bytes,
            item_nanos,
            suspect: false,
            failed: None,
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

/// The time of one item here, by what is known: of this slot, else of all, else a guess that keeps windows small.
pub(super) fn item_nanos(config: &SchedulerConfig, segment: &SegmentState, row: usize) -> u64 {
    let here = segment
        .estimates
        .get(row)
        .and_then(|known| known.time.nanos());
    here.or_else(|| segment.time.nanos())
        .unwrap_or_else(|| nanos(config.frame_time))
        .max(1)
}
