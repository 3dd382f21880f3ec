//! What an array's elements are: anything of a fixed size, in NumPy's words.

use std::fmt;
use std::str::FromStr;

/// Bytes of one element, at most.
const ELEMENT_BYTES_MAX: u32 = 1 << 16;

/// An element type as in NumPy's array interface: byte order, kind, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType {
    kind: char,
    bytes: u32,
    is_big_endian: bool,
}

/// A text that names no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "got the element type {0:?}, expected a byte order (optional), a kind and its bytes, as \"f8\", \"<i4\", \">c16\", \"b1\" or \"V24\""
)]
pub struct ElementError(pub String);

impl ElementType {
    /// A double.
    pub const FLOAT64: Self = Self {
        kind: 'f',
        bytes: 8,
        is_big_endian: cfg!(target_endian = "big"),
    };

    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.bytes
    }

    /// What has to be turned round when byte orders differ: a half of a complex number, a character of a text, otherwise all of it. 1 if
    /// there is nothing to turn.
    #[must_use]
    pub fn swapped_bytes(self) -> u32 {
        match self.kind {
            'c' => self.bytes / 2,
            'U' => 4,
            'S' | 'V' | 'b' => 1,
            _ => self.bytes,
        }
    }

    /// Whether values of this type are values of the other, but for their byte order.
    #[must_use]
    pub fn is_same_value(self, other: Self) -> bool {
        self.kind == other.kind && self.bytes == other.bytes
    }

    /// Whether bytes have to be turned round between the two.
    #[must_use]
    pub fn is_swapped(self, other: Self) -> bool {
        self.is_big_endian != other.is_big_endian && self.swapped_bytes() > 1
    }
}

impl FromStr for ElementType {
    type Err = ElementError;

    fn from_str(text: &str) -> Result<Self, ElementError> {
        let wrong = || ElementError(text.chars().take(64).collect());
        let (order, rest) = match text.chars().next() {
            Some(order @ ('<' | '>' | '=' | '|')) => (order, &text[1..]),
            _ => ('=', text),
        };
        let kind = rest.chars().next().ok_or_else(wrong)?;
        let count = rest[kind.len_utf8()..]
            .parse::<u32>()
            .map_err(|_| wrong())?;
        let bytes = match (kind, count) {
            ('b', 1)
            | ('i' | 'u', 1 | 2 | 4 | 8)
            | ('f', 2 | 4 | 8 | 12 | 16)
            | ('c', 8 | 16 | 24 | 32)
            | ('M' | 'm', 8)
            | ('S' | 'V', 1..=ELEMENT_BYTES_MAX) => count,
            ('U', 1..) => count
                .checked_mul(4)
                .filter(|bytes| *bytes <= ELEMENT_BYTES_MAX)
                .ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        let is_big_endian = match order {
            '>' => true,
            '<' => false,
            _ => cfg!(target_endian = "big"),
        };
        Ok(Self {
            kind,
            bytes,
            is_big_endian,
        })
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.swapped_bytes(), self.is_big_endian) {
            (1, _) => "|",
            (_, true) => ">",
            (_, false) => "<",
        };
        let count = if self.kind == 'U' {
            self.bytes / 4
        } else {
            self.bytes
        };
        write!(formatter, "{order}{}{count}", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_numpy_reads_them() {
        for (text, bytes, swapped) in [
            ("<f8", 8, 8),
            (">c16", 16, 8),
            ("|b1", 1, 1),
            ("|V24", 24, 1),
            ("<U3", 12, 4),
            ("|S5", 5, 1),
            ("<i4", 4, 4),
        ] {
            let element: ElementType = text.parse().unwrap();
            assert_eq!((element.bytes(), element.swapped_bytes()), (bytes, swapped));
            assert_eq!(element.to_string(), text);
        }
        assert_eq!("f8".parse(), Ok(ElementType::FLOAT64));
        for text in ["", "f", "f3", "x8", "i16", "V0", "é8", "f8f", "U99999", "<"] {
            let wrong: Result<ElementType, _> = text.parse();
            assert_eq!(wrong, Err(ElementError(text.to_owned())));
        }
    }

    #[test]
    fn only_byte_orders_differ() {
        let [little, big, short] = ["<f8", ">f8", "<f4"].map(|text| text.parse().unwrap());
        let little: ElementType = little;
        assert!(little.is_same_value(big) && little.is_swapped(big));
        assert!(!little.is_same_value(short));
    }
}
