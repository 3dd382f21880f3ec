//! What of a program comes first: what is nearest to its end.

use std::ops::Range;

use super::{Program, Then};

/// Segments of a line that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRange {
    pub(crate) line: u16,
    pub(crate) segments: Range<usize>,
}

impl Program {
    /// All segments, in the order in which they get slots. What an item is made into comes before further items that are made into others, and what
    /// it is joined to comes before both: otherwise no item would be done before the parts of all have been.
    pub(crate) fn order(&self) -> Vec<SegmentRange> {
        let mut order = Vec::new();
        let mut is_placed = vec![false; self.lines.len()];
        self.place(0, &mut is_placed, &mut order);
        // What is folded has lines of its own for that, to which no expansion leads.
        let others = (0u16..).zip(&self.lines).zip(is_placed);
        let others = others.filter(|(_, is_placed)| !is_placed);
        let whole = others.map(|((line, known), _)| SegmentRange {
            line,
            segments: 0..known.segments.len(),
        });
        let mut first: Vec<_> = whole.collect();
        first.reverse();
        first.extend(order);
        first
    }

    fn place(&self, line: u16, is_placed: &mut [bool], order: &mut Vec<SegmentRange>) {
        is_placed[usize::from(line)] = true;
        let segments = &self.lines[usize::from(line)].segments;
        let mut end = segments.len();
        for (number, segment) in segments.iter().enumerate().rev() {
            let Then::Expand { line: parts, .. } = segment.then else {
                continue;
            };
            if is_placed.get(usize::from(parts)) != Some(&false) {
                continue;
            }
            let segments = number + 1..end;
            if !segments.is_empty() {
                order.push(SegmentRange { line, segments });
            }
            self.place(parts, is_placed, order);
            end = number + 1;
        }
        let segments = 0..end;
        order.push(SegmentRange { line, segments });
    }
}
