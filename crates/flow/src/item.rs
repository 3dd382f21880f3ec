//! The state of the items of one stream, in a ring: a few bytes each, found by index, gone when taken.

use std::collections::VecDeque;
use std::ops::Range;

use crate::{FrameId, Index};

/// Items that a ring keeps room for.
const ROOM_KEPT: usize = 1 << 16;

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemState {
    /// Held here, waiting for a slot.
    Ready,
    /// At a slot, queued or running.
    Out,
    /// Run; its result waits at the slot for a grant.
    Announced,
    /// Run; its result has its grant and is on the way.
    Granted,
    /// Waits for what becomes of the items that it was expanded to.
    Away,
    /// Has its outcome, which the user has not taken.
    Finished,
    /// Has its outcome, which is its token and which the user has not taken.
    Returned,
    /// Taken, cancelled or given up with its stream.
    Gone,
}

/// One item. 16 bytes, since there are tens of thousands of them and each step walks over runs of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Bytes of the token or outcome that is held here.
    pub(crate) bytes: u64,
    /// The low half of the number of the frame it is in: enough to tell the few frames alive at a time apart.
    pub(crate) attempt: u32,
    /// The segment it waits for or is in.
    pub(crate) segment: u16,
    pub(crate) state: ItemState,
    /// How many slots were lost while it ran alone.
    pub(crate) charge: u8,
}

impl Item {
    /// Whether a slot owes an answer for this item, by this frame.
    pub(crate) fn is_at(&self, frame: FrameId) -> bool {
        matches!(
            self.state,
            ItemState::Out | ItemState::Announced | ItemState::Granted
        ) && self.attempt == attempt(frame)
    }
}

/// What items remember of a frame number.
pub(crate) fn attempt(frame: FrameId) -> u32 {
    frame.0 as u32
}

/// The items from the oldest that is not gone to the youngest admitted.
#[derive(Debug, Default)]
pub(crate) struct ItemRing {
    base: Index,
    items: VecDeque<Item>,
}

impl ItemRing {
    /// One past the youngest index.
    pub(crate) fn end(&self) -> Index {
        self.base + self.items.len() as u64
    }

    /// The memory that the ring takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.items.capacity() * size_of::<Item>()) as u64
    }

    pub(crate) fn base(&self) -> Index {
        self.base
    }

    pub(crate) fn admit(&mut self, sizes: &[u64]) {
        self.items.extend(sizes.iter().map(|&bytes| Item {
            bytes,
            attempt: 0,
            segment: 0,
            state: ItemState::Ready,
            charge: 0,
        }));
    }

    pub(crate) fn get(&self, index: Index) -> Option<&Item> {
        self.items.get(self.position(index)?)
    }

    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut Item> {
        let position = self.position(index)?;
        self.items.get_mut(position)
    }

    /// Visits the items of a range, without those that are gone from the ring.
    pub(crate) fn visit(&mut self, range: Range<Index>, mut visit: impl FnMut(Index, &mut Item)) {
        let first = range.start.max(self.base);
        let end = range.end.min(self.end());
        if first >= end {
            return;
        }
        // Below the ring's length, so the conversion cannot cut anything off.
        let positions = (first - self.base) as usize..(end - self.base) as usize;
        for (index, item) in (first..).zip(self.items.range_mut(positions)) {
            visit(index, item);
        }
    }

    /// The items from `first` on, to look at.
    pub(crate) fn walk(&self, first: Index) -> impl Iterator<Item = &Item> {
        let position = self.position(first).unwrap_or(self.items.len());
        self.items.range(position.min(self.items.len())..)
    }

    /// The first item from `first` on that is still to have a result and doesn't wait for others, or the end.
    pub(crate) fn unsettled(&self, first: Index) -> Index {
        let first = first.max(self.base);
        let settled = self.walk(first).take_while(|item| {
            matches!(
                item.state,
                ItemState::Finished | ItemState::Returned | ItemState::Away | ItemState::Gone
            )
        });
        first + settled.count() as u64
    }

    /// Lets go of the oldest items as far as they are gone.
    pub(crate) fn trim(&mut self) {
        while self
            .items
            .front()
            .is_some_and(|item| item.state == ItemState::Gone)
        {
            self.items.pop_front();
            self.base += 1;
        }
        // What a burst of millions needed goes back when they are gone.
        let room = self.items.capacity();
        if room > ROOM_KEPT && self.items.len() < room / 4 {
            self.items.shrink_to(room / 2);
        }
    }

    fn position(&self, index: Index) -> Option<usize> {
        usize::try_from(index.checked_sub(self.base)?).ok()
    }
}
