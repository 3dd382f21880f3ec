//! A state that is carried through a segment: items come to it in their order, and the next frame begins when the last one has been answered for.

use std::ops::Range;

use crate::item::ItemState;
use crate::stream::{SegmentState, Stream};
use crate::{Breach, FrameId, Index};

impl SegmentState {
    /// Whether the first of these items may be next here: any may, unless a state comes to it from the item before.
    pub(crate) fn has_turn(&self, items: Option<Range<Index>>) -> bool {
        !self.carries || items.is_some_and(|items| items.start == self.passed)
    }
}

impl Stream {
    /// Looks which items have passed the segments that carry a state.
    pub(crate) fn advance_carried(&mut self) {
        let ring = &self.ring;
        let carrying = self.segments.iter_mut().enumerate();
        for (number, segment) in carrying.filter(|(_, segment)| segment.carries) {
            let first = segment.passed.max(ring.base());
            let passed = ring.walk(first).take_while(|item| {
                let has_ended = matches!(
                    item.state,
                    ItemState::Finished | ItemState::Returned | ItemState::Gone
                );
                has_ended || usize::from(item.segment) > number
            });
            segment.passed = first + passed.count() as u64;
        }
    }

    /// Whether there is an item that must run alone, and may run now.
    pub(crate) fn has_suspects(&self) -> bool {
        let mut segments = self.segments.iter();
        self.suspects > 0
            && segments.any(|segment| {
                let first = segment.suspects.first();
                first.is_some_and(|first| segment.has_turn(Some(*first..*first + 1)))
            })
    }

    /// Whether a frame may answer for these items of a segment that carries a state, whose next one comes with the answer: it has all of them, and
    /// all items before them have passed the segment.
    pub(crate) fn check_carried(
        &mut self,
        frame: FrameId,
        segment: u16,
        items: Range<Index>,
    ) -> Result<(), Breach> {
        self.advance_carried();
        let expected = self.segments[usize::from(segment)].passed;
        let (first, count) = (items.start, items.end.saturating_sub(items.start));
        let items = self.ring.walk(first).take(count as usize);
        let has_all = items.filter(|item| item.is_at(frame)).count() as u64 == count;
        match first == expected && has_all {
            true => Ok(()),
            false => Err(Breach::CarriedOthers { first, expected }),
        }
    }

    /// Whether the results of a frame with the state that comes with them, `total` bytes, are within what was granted for all of them.
    pub(crate) fn check_total(
        &self,
        frame: FrameId,
        grant: u64,
        items: Range<Index>,
        total: u64,
    ) -> Result<(), Breach> {
        let mut granted = 0u64;
        let first = items.start;
        let count = items.end.saturating_sub(items.start) as usize;
        for (index, item) in (first..).zip(self.ring.walk(first).take(count)) {
            if !item.is_at(frame) {
                continue;
            }
            granted = granted.saturating_add(match item.state {
                ItemState::Announced => return Err(Breach::NotGranted { index }),
                ItemState::Granted => self.waiting.get(&index).map_or(0, |waiting| waiting.bytes),
                _ => grant,
            });
        }
        match total > granted {
            true => Err(Breach::CarriedOverGrant {
                got: total,
                granted,
            }),
            false => Ok(()),
        }
    }
}
