//! A part of an array, as Python writes it: `[::2, 10:20]`.

use std::fmt;

use crate::DIMENSIONS_MAX;

/// Regular indices of one axis: `start`, `start + step` and so on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisSelection {
    /// The first index.
    pub start: u64,
    /// From one to the next, at least 1.
    pub step: u64,
    /// How many.
    pub count: u64,
}

/// Of each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    axes: Vec<AxisSelection>,
}

/// A selection that an array hasn't got.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// It can't be read.
    #[error(
        "got the selection {got:?}, expected slices as in \"[::2, 10:20]\", with steps of at least 1"
    )]
    Text {
        /// The beginning of it.
        got: String,
    },
    /// Of another array.
    #[error("got a selection of {got} axes, expected at most the {expected} of the array")]
    Axes {
        /// As many as it has.
        got: usize,
        /// As the array has.
        expected: usize,
    },
}

impl AxisSelection {
    /// The whole axis.
    #[must_use]
    pub fn all(length: u64) -> Self {
        Self {
            start: 0,
            step: 1,
            count: length,
        }
    }

    /// As Python slices a sequence: what lies beyond its end isn't there, and a negative number counts from the end.
    fn slice(length: u64, start: Option<i64>, stop: Option<i64>, step: u64) -> Self {
        let place = |index: i64| match u64::try_from(index) {
            Ok(index) => index.min(length),
            Err(_) => length.saturating_sub(index.unsigned_abs()),
        };
        let start = start.map_or(0, place);
        let stop = stop.map_or(length, place);
        Self {
            start,
            step,
            count: stop.saturating_sub(start).div_ceil(step),
        }
    }
}

impl AxisSelection {
    /// Whether some index is in both.
    fn meets(self, other: Self) -> bool {
        let last = |axis: Self| {
            let count = axis.count.checked_sub(1)?;
            Some(i128::from(axis.start) + i128::from(axis.step) * i128::from(count))
        };
        let (Some(own_last), Some(other_last)) = (last(self), last(other)) else {
            return false;
        };
        let (start, other_start) = (i128::from(self.start), i128::from(other.start));
        let (step, other_step) = (i128::from(self.step), i128::from(other.step));
        let (divisor, factor) = bezout(step, other_step);
        let distance = other_start - start;
        if distance % divisor != 0 {
            return false;
        }
        // Of the indices that are in both when nothing ends, the first one from where both have begun.
        let period = other_step / divisor;
        let steps = (distance / divisor % period * (factor % period)).rem_euclid(period);
        let common = step * period;
        let first = start + step * steps;
        let missing = (other_start - first).max(0);
        let first = first + (missing + common - 1) / common * common;
        first <= own_last.min(other_last)
    }
}

/// The greatest common divisor of two numbers, and what the first one is to be multiplied by to give it, modulo the second one.
fn bezout(first: i128, second: i128) -> (i128, i128) {
    let (mut one, mut other) = ((first, 1), (second, 0));
    while other.0 != 0 {
        let quotient = one.0 / other.0;
        (one, other) = (
            other,
            (one.0 - quotient * other.0, one.1 - quotient * other.1),
        );
    }
    one
}

impl Selection {
    /// All of an array.
    #[must_use]
    pub fn all(shape: &[u64]) -> Self {
        let axes = shape.iter().map(|length| AxisSelection::all(*length));
        Self {
            axes: axes.collect(),
        }
    }

    /// Reads `[::2, 10:20]`, of an array of this shape. Axes that aren't named are whole.
    ///
    /// # Errors
    /// [`SelectionError`].
    pub fn parse(text: &str, shape: &[u64]) -> Result<Self, SelectionError> {
        let wrong = || SelectionError::Text {
            got: text.chars().take(128).collect(),
        };
        let inner = text.trim().strip_prefix('[').ok_or_else(wrong)?;
        let inner = inner.strip_suffix(']').ok_or_else(wrong)?.trim();
        let mut axes = Vec::new();
        for (number, part) in inner.split(',').enumerate() {
            let is_last = number > 0 && part.trim().is_empty();
            if inner.is_empty() || is_last {
                break;
            }
            if number >= shape.len().min(DIMENSIONS_MAX) {
                return Err(SelectionError::Axes {
                    got: inner.split(',').count(),
                    expected: shape.len(),
                });
            }
            axes.push(parse_slice(part, shape[number]).ok_or_else(wrong)?);
        }
        let rest = shape.iter().skip(axes.len());
        axes.extend(rest.map(|length| AxisSelection::all(*length)));
        Ok(Self { axes })
    }

    /// How many axes a text names, whatever the shape will be.
    ///
    /// # Errors
    /// [`SelectionError`].
    pub fn named_axes(text: &str) -> Result<usize, SelectionError> {
        // An axis that isn't named is whole: as long as no axis that is named can be.
        Self::parse(text, &[u64::MAX; DIMENSIONS_MAX])?;
        let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
        let words = inner.split(',').filter(|part| !part.trim().is_empty());
        Ok(words.count())
    }

    /// Axis by axis.
    #[must_use]
    pub fn axes(&self) -> &[AxisSelection] {
        &self.axes
    }

    /// Whether some element is in both selections of an array.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let mut axes = self.axes.iter().zip(&other.axes);
        axes.all(|(own, other)| own.meets(*other))
    }

    /// How many indices of each axis.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.count).collect()
    }
}

fn parse_slice(text: &str, length: u64) -> Option<AxisSelection> {
    let mut numbers = [None; 3];
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    for (number, part) in numbers.iter_mut().zip(parts) {
        let part = part.trim();
        if !part.is_empty() {
            *number = Some(part.parse::<i64>().ok()?);
        }
    }
    let [start, stop, step] = numbers;
    let step = u64::try_from(step.unwrap_or(1))
        .ok()
        .filter(|step| *step > 0)?;
    Some(AxisSelection::slice(length, start, stop, step))
}

impl fmt::Display for Selection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for (number, axis) in self.axes.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            let stop = axis.start + axis.step * axis.count;
            write!(formatter, "{comma}{}:{stop}", axis.start)?;
            if axis.step > 1 {
                write!(formatter, ":{}", axis.step)?;
            }
        }
        formatter.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, step: u64, count: u64) -> AxisSelection {
        AxisSelection { start, step, count }
    }

    #[test]
    fn slices_are_those_of_python() {
        for (text, expected) in [
            (":", of(0, 1, 10)),
            ("::2", of(0, 2, 5)),
            ("1::3", of(1, 3, 3)),
            ("2:5", of(2, 1, 3)),
            ("-3:", of(7, 1, 3)),
            (":-3", of(0, 1, 7)),
            ("-99:99", of(0, 1, 10)),
            ("8:3", of(8, 1, 0)),
            ("12:", of(10, 1, 0)),
        ] {
            let parsed = Selection::parse(&format!("[{text}]"), &[10]);
            assert_eq!(parsed.unwrap().axes(), [expected], "{text}");
        }
        let whole = Selection::parse("[]", &[4, 5]).unwrap();
        assert_eq!(whole, Selection::all(&[4, 5]));
        assert_eq!(Selection::parse("[1:2,]", &[4, 5]).unwrap().shape(), [1, 5]);
        assert_eq!(
            Selection::parse("[::2, 1:3]", &[4, 5]).unwrap().to_string(),
            "[0:4:2, 1:3]"
        );
    }

    #[test]
    fn axes_are_counted_without_a_shape() {
        for (text, expected) in [("[]", 0), ("[:]", 1), ("[::2, -5:9]", 2), ("[1:2,]", 1)] {
            assert_eq!(Selection::named_axes(text), Ok(expected), "{text}");
        }
        assert!(Selection::named_axes("[1]").is_err());
        assert!(Selection::named_axes("[:,:,:,:,:,:,:,:,:]").is_err());
    }

    #[test]
    fn selections_that_have_an_element_in_common_overlap() {
        let indices =
            |axis: AxisSelection| (0..axis.count).map(move |i| axis.start + i * axis.step);
        let axes = (0..5).flat_map(|start| {
            (1..7).flat_map(move |step| (0..5).map(move |count| of(start, step, count)))
        });
        let axes: Vec<AxisSelection> = axes.collect();
        for one in &axes {
            for other in &axes {
                let expected = indices(*one).any(|index| indices(*other).any(|it| it == index));
                assert_eq!(one.meets(*other), expected, "{one:?} {other:?}");
            }
        }
        let huge = of(1, i64::MAX as u64, 3);
        assert!(huge.meets(huge) && !huge.meets(of(2, i64::MAX as u64, 3)));
        assert!(huge.meets(of(0, 1, u64::MAX)) && !huge.meets(of(0, i64::MAX as u64 - 1, 2)));
        let selection = |text| Selection::parse(text, &[10, 10]).unwrap();
        let left = selection("[:, :5]");
        assert!(left.overlaps(&selection("[::3, 4:]")));
        assert!(!left.overlaps(&selection("[::3, 5:]")));
        assert!(!selection("[::2, :]").overlaps(&selection("[1::2, :]")));
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "[",
            ":",
            "[1]",
            "[::0]",
            "[::-1]",
            "[a:b]",
            "[1:2:3:4]",
            "[1.5:2]",
            "[,:]",
        ] {
            let parsed = Selection::parse(text, &[10, 10]);
            assert!(matches!(parsed, Err(SelectionError::Text { .. })), "{text}");
        }
        let parsed = Selection::parse("[:, :, :]", &[10, 10]);
        assert!(matches!(
            parsed,
            Err(SelectionError::Axes {
                got: 3,
                expected: 2
            })
        ));
    }
}
