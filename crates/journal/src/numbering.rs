//! Which item a stream's n-th one is.

/// The items of a run that goes on: those from the watermark on, without those that have their results already.
#[derive(Debug, Clone, Default)]
pub struct ItemNumbers {
    watermark: u64,
    /// For each item that is left out: how many of the others come before it.
    left_out: Vec<u64>,
}

impl ItemNumbers {
    /// The items from `watermark` on without `early`, which are sorted and not before it.
    #[must_use]
    pub fn new(watermark: u64, early: impl IntoIterator<Item = u64>) -> Self {
        let others = |(count, index): (usize, u64)| {
            index.saturating_sub(watermark).saturating_sub(count as u64)
        };
        Self {
            watermark,
            left_out: early.into_iter().enumerate().map(others).collect(),
        }
    }

    /// The index of the item that is the `nth` to be run, from 0.
    #[must_use]
    pub fn index_of(&self, nth: u64) -> u64 {
        let before = self.left_out.partition_point(|others| *others <= nth);
        self.watermark + nth + before as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: the numbers are those of the items that are left. Method: each subset of eight items left out, beside a filter.
    #[test]
    fn numbers_are_those_of_the_items_that_are_left() {
        for left_out in 0_u32..256 {
            let early: Vec<u64> = (0..8)
                .filter(|bit| left_out >> bit & 1 == 1)
                .map(|bit| bit + 5)
                .collect();
            let numbers = ItemNumbers::new(5, early.iter().copied());
            let expected = (5..).filter(|index| !early.contains(index));
            for (nth, index) in expected.take(12).enumerate() {
                assert_eq!(numbers.index_of(nth as u64), index, "without {early:?}");
            }
        }
    }
}
