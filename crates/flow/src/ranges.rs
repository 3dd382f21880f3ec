//! A set of indexes kept as ranges: what is ready comes and goes in runs, so no work is done item by item.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Index;

/// A set of indexes: disjoint ranges that never touch, by their start.
#[derive(Debug, Default)]
pub struct RangeSet {
    ends: BTreeMap<Index, Index>,
    len: u64,
}

impl RangeSet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no index in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a range that has no index in common with the set.
    pub fn insert(&mut self, range: Range<Index>) {
        if range.is_empty() {
            return;
        }
        self.len += range.end - range.start;
        let mut end = range.end;
        if let Some(after) = self.ends.remove(&end) {
            end = after;
        }
        if let Some((_, before)) = self.ends.range_mut(..range.start).next_back() {
            debug_assert!(*before <= range.start, "ranges overlap");
            if *before == range.start {
                *before = end;
                return;
            }
        }
        self.ends.insert(range.start, end);
    }

    /// The first range, as long as it goes without a gap.
    pub(crate) fn first(&self) -> Option<Range<Index>> {
        self.ends.first_key_value().map(|(start, end)| *start..*end)
    }

    /// Takes `count` indexes off the first range; it must have them.
    pub(crate) fn take_first(&mut self, count: u64) {
        if let Some((start, end)) = self.ends.pop_first() {
            debug_assert!(count <= end - start, "the first range is shorter");
            self.len -= count;
            if start + count < end {
                self.ends.insert(start + count, end);
            }
        }
    }

    /// Takes one index out, if it is there.
    pub(crate) fn remove(&mut self, index: Index) -> bool {
        let Some((&start, &end)) = self.ends.range(..=index).next_back() else {
            return false;
        };
        if index >= end {
            return false;
        }
        self.len -= 1;
        self.ends.remove(&start);
        if start < index {
            self.ends.insert(start, index);
        }
        if index + 1 < end {
            self.ends.insert(index + 1, end);
        }
        true
    }

    /// The parts of a range that are in the set, in order.
    #[must_use]
    pub fn overlap(&self, range: Range<Index>) -> Vec<Range<Index>> {
        let before = self.ends.range(..range.start).next_back();
        let inside = self.ends.range(range.clone());
        before
            .into_iter()
            .chain(inside)
            .map(|(start, end)| range.start.max(*start)..range.end.min(*end))
            .filter(|part| !part.is_empty())
            .collect()
    }

    /// Takes a range out whose indexes are all in the set.
    pub fn remove_range(&mut self, range: Range<Index>) {
        let Some((&start, &end)) = self.ends.range(..=range.start).next_back() else {
            return;
        };
        debug_assert!(range.end <= end, "the range isn't in the set");
        self.len -= range.end - range.start;
        self.ends.remove(&start);
        if start < range.start {
            self.ends.insert(start, range.start);
        }
        if range.end < end {
            self.ends.insert(range.end, end);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Aim: the set is a set, and its ranges are as few as can be. Method: the same steps on a `BTreeSet`.
        #[test]
        fn behaves_like_a_set_of_indexes(steps in prop::collection::vec((0u8..4, 0u64..60, 1u64..8), 0..120)) {
            let mut ranges = RangeSet::default();
            let mut model = BTreeSet::new();
            for (step, start, count) in steps {
                match step {
                    0 if (start..start + count).all(|index| !model.contains(&index)) => {
                        ranges.insert(start..start + count);
                        model.extend(start..start + count);
                    }
                    1 => prop_assert_eq!(ranges.remove(start), model.remove(&start)),
                    2 => {
                        let parts = ranges.overlap(start..start + count);
                        let flat: Vec<_> = parts.iter().cloned().flatten().collect();
                        let expected: Vec<_> = model.range(start..start + count).copied().collect();
                        prop_assert_eq!(flat, expected);
                        for part in parts {
                            model.retain(|index| !part.contains(index));
                            ranges.remove_range(part);
                        }
                    }
                    _ => {
                        if let Some(first) = ranges.first() {
                            let count = count.min(first.end - first.start);
                            ranges.take_first(count);
                            model.retain(|index| *index >= first.start + count);
                        }
                    }
                }
                prop_assert_eq!(ranges.len(), model.len() as u64);
                prop_assert_eq!(ranges.is_empty(), model.is_empty());
                let flat: Vec<_> = ranges.ends.iter().flat_map(|(start, end)| *start..*end).collect();
                prop_assert_eq!(&flat, &model.iter().copied().collect::<Vec<_>>());
                let gaps = model.iter().filter(|index| !model.contains(&(*index + 1))).count();
                prop_assert_eq!(ranges.ends.len(), gaps);
            }
        }
    }
}
