//! The bulk parts of an answer, handed out from its first record to its last.

use std::ops::Range;
use std::vec;

/// What is left of the bulk parts of an answer.
#[derive(Debug)]
pub(super) struct BulkParts {
    parts: vec::IntoIter<Vec<u8>>,
    /// Those handed out or passed over so far.
    passed: usize,
}

impl BulkParts {
    pub(super) fn new(parts: Vec<Vec<u8>>) -> Self {
        Self {
            parts: parts.into_iter(),
            passed: 0,
        }
    }

    /// The parts at these places, which must not lie before those taken so far. Those between belong to results that came too
    /// late: nobody takes them.
    pub(super) fn take(&mut self, places: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
        let late = places.start.saturating_sub(self.passed);
        // Now, and not when the first part is asked for: there may be none to ask for.
        if late > 0 {
            self.parts.nth(late - 1);
        }
        self.passed = places.end;
        self.parts.by_ref().take(places.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> BulkParts {
        BulkParts::new((0..6).map(|part| vec![part]).collect())
    }

    #[test]
    fn parts_between_belong_to_nobody() {
        let mut parts = parts();
        assert_eq!(parts.take(1..3).collect::<Vec<_>>(), [vec![1], vec![2]]);
        assert_eq!(parts.take(5..6).collect::<Vec<_>>(), [vec![5]]);
    }

    #[test]
    fn results_without_parts_behind_late_ones_pass_over_theirs() {
        let mut parts = parts();
        assert_eq!(parts.take(3..3).count(), 0);
        assert_eq!(parts.take(3..4).collect::<Vec<_>>(), [vec![3]]);
    }
}
