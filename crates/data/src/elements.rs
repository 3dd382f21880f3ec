//! What the bytes of an array are: numbers, dates, text of fixed size, or records of them.
//!
//! A description is text as NumPy's `dtype.str` has it (`<f8`, `|b1`, `<M8[ns]`), or an array of fields: each an array of a name,
//! a description, and for arrays within records a shape. It never says "object": a description can't make a pointer of bytes.

use crate::limits::{DIMENSIONS_MAX, FIELD_NESTING_MAX, FIELDS_MAX, NAME_BYTES_MAX};
use crate::reader::{DataItem, Reader, utf8};
use crate::{Fault, weight};

/// The elements of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Bytes of one.
    pub item_bytes: u64,
    /// Bytes there would be if no dimension of an array within a record were 0, and at least one: the elements of an array are
    /// walked over also where they have no bytes.
    pub item_extent: u64,
    /// Whether one has fields, or no type at all: it can be changed then.
    pub is_record: bool,
    /// Fields, those of records within it counted as well.
    fields: u32,
    /// Where in one element something stands that not all bytes are good for.
    particular: Vec<Particular>,
}

/// Some bytes of an element that not every value is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Particular {
    offset: u64,
    length: u64,
    kind: ElementKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementKind {
    /// 0 or 1. NumPy counts and copies by that, and writes beyond its memory when it isn't so.
    Boolean,
    /// Characters of four bytes, in this machine's order or the other.
    Characters { big_endian: bool },
}

impl Elements {
    /// Reads a description.
    ///
    /// # Errors
    /// When it isn't one, or passes a limit.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let mut fields = 0;
        let simple = reader.clone().next_item()?;
        let mut elements = Self {
            item_bytes: 0,
            item_extent: 0,
            is_record: !matches!(simple, DataItem::Text(text) if text.get(1) != Some(&b'V')),
            fields: 0,
            particular: Vec::new(),
        };
        let size = elements.read_at(reader, 0, FIELD_NESTING_MAX, &mut fields)?;
        elements.fields = fields;
        elements.item_bytes = size.bytes;
        elements.item_extent = size.extent.max(1);
        Ok(elements)
    }

    /// What the description costs in memory: each array of records has its own.
    #[must_use]
    pub const fn weight(&self) -> u64 {
        weight::FIELD * self.fields as u64
    }

    /// Whether the bytes are good elements.
    ///
    /// # Errors
    /// When a boolean is neither 0 nor 1, or a character is none.
    pub fn check_contents(&self, bytes: &[u8]) -> Result<(), Fault> {
        if self.particular.is_empty() {
            return Ok(());
        }
        // The commonest: nothing but booleans, or nothing but text.
        if let [only] = self.particular[..]
            && only.length == self.item_bytes
        {
            return only.check(bytes);
        }
        let item_bytes = usize::try_from(self.item_bytes)
            .unwrap_or(usize::MAX)
            .max(1);
        for item in bytes.chunks_exact(item_bytes) {
            for particular in &self.particular {
                // Both are within the item by construction, and an item is within memory.
                let start = particular.offset as usize;
                particular.check(&item[start..start + particular.length as usize])?;
            }
        }
        Ok(())
    }

    /// Reads what stands at an offset; says its size.
    fn read_at(
        &mut self,
        reader: &mut Reader<'_>,
        offset: u64,
        nesting: u32,
        fields: &mut u32,
    ) -> Result<Size, Fault> {
        let position = reader.position();
        let wrong = |got: &'static str| Fault::Malformed {
            position,
            got,
            expected: "the elements of an array: numbers, dates, text of fixed size, or records of them",
        };
        match reader.next_item()? {
            DataItem::Text(text) => {
                let text = utf8(text, position)?;
                let (bytes, kind) = leaf(text).ok_or_else(|| wrong("another description"))?;
                if let Some(kind) = kind {
                    self.particular.push(Particular {
                        offset,
                        length: bytes,
                        kind,
                    });
                }
                Ok(Size {
                    bytes,
                    extent: bytes,
                })
            }
            DataItem::Array(count) => {
                if nesting == 0 {
                    return Err(Fault::Limit {
                        kind: "an array of records",
                        got: u64::from(FIELD_NESTING_MAX) + 1,
                        unit: "levels",
                        maximum: u64::from(FIELD_NESTING_MAX),
                        cure: "return flatter records",
                    });
                }
                if count == 0 {
                    return Err(wrong("a record without fields"));
                }
                let mut size = Size::default();
                for _ in 0..count {
                    let field = self.read_field(reader, offset + size.bytes, nesting, fields)?;
                    // Both are below 2^33 each, so they don't overflow.
                    size.bytes += field.bytes;
                    size.extent += field.extent;
                    if size.extent > ITEM_BYTES_MAX {
                        return Err(wrong("records without end"));
                    }
                }
                Ok(size)
            }
            other => Err(wrong(other.kind())),
        }
    }

    fn read_field(
        &mut self,
        reader: &mut Reader<'_>,
        offset: u64,
        nesting: u32,
        fields: &mut u32,
    ) -> Result<Size, Fault> {
        *fields += 1;
        if *fields > FIELDS_MAX {
            return Err(Fault::Limit {
                kind: "an array of records",
                got: u64::from(*fields),
                unit: "fields",
                maximum: u64::from(FIELDS_MAX),
                cure: "return several arrays",
            });
        }
        let position = reader.position();
        let wrong = |got: &'static str| Fault::Malformed {
            position,
            got,
            expected: "a field: its name, its elements and perhaps a shape",
        };
        let parts = reader.array()?;
        if parts != 2 && parts != 3 {
            return Err(wrong("another number of parts"));
        }
        if reader.text()?.len() as u64 > NAME_BYTES_MAX {
            return Err(wrong("too long a name"));
        }
        let first = self.particular.len();
        let one = self.read_at(reader, offset, nesting - 1, fields)?;
        if parts == 2 {
            return Ok(one);
        }
        let Shape { count, extent } = read_shape(reader)?;
        let extent = one
            .extent
            .max(1)
            .checked_mul(extent)
            .filter(|extent| *extent <= ITEM_BYTES_MAX)
            .ok_or_else(|| wrong("an array without end"))?;
        let bytes = one.bytes * count;
        // An array within the record: what is particular in one element is so in each.
        let apart = (self.particular.len() - first) as u64;
        match &mut self.particular[first..] {
            [] => {}
            [only] if only.length == one.bytes => only.length = bytes,
            _ if count.saturating_mul(apart) > PARTICULAR_MAX => {
                return Err(wrong("too many booleans and texts that lie apart"));
            }
            _ => {
                let known = self.particular.split_off(first);
                for copy in 0..count {
                    self.particular.extend(known.iter().map(|known| Particular {
                        offset: known.offset + copy * one.bytes,
                        ..*known
                    }));
                }
            }
        }
        Ok(Size { bytes, extent })
    }
}

/// The size of an element or of a part of it.
#[derive(Clone, Copy, Default)]
struct Size {
    bytes: u64,
    /// As in [`Elements::item_extent`].
    extent: u64,
}

/// Bytes of one element at most: sums of them never overflow.
const ITEM_BYTES_MAX: u64 = 1 << 31;

/// Places to look at in one element at most.
const PARTICULAR_MAX: u64 = 4096;

impl Particular {
    fn check(&self, bytes: &[u8]) -> Result<(), Fault> {
        let is_good = match self.kind {
            ElementKind::Boolean => bytes.iter().fold(0, |all, byte| all | byte) <= 1,
            ElementKind::Characters { big_endian } => {
                let highest = bytes.chunks_exact(4).map(|character| {
                    let character = [character[0], character[1], character[2], character[3]];
                    if big_endian {
                        u32::from_be_bytes(character)
                    } else {
                        u32::from_le_bytes(character)
                    }
                });
                highest.max().unwrap_or(0) <= u32::from(char::MAX)
            }
        };
        if is_good {
            return Ok(());
        }
        Err(Fault::Malformed {
            position: 0,
            got: match self.kind {
                ElementKind::Boolean => "an array of booleans with another byte than 0 and 1",
                ElementKind::Characters { .. } => "an array of text with a character that is none",
            },
            expected: "good elements",
        })
    }
}

/// A shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements in it.
    pub count: u64,
    /// Elements there would be if no dimension were 0: what the others may make of it.
    pub extent: u64,
}

/// Reads a shape: an array of lengths.
///
/// # Errors
/// When it isn't one, has too many dimensions, or more elements than any machine holds.
pub fn read_shape(reader: &mut Reader<'_>) -> Result<Shape, Fault> {
    let position = reader.position();
    let dimensions = reader.array()?;
    if dimensions > DIMENSIONS_MAX {
        return Err(Fault::Limit {
            kind: "an array",
            got: dimensions,
            unit: "dimensions",
            maximum: DIMENSIONS_MAX,
            cure: "return an array of fewer dimensions",
        });
    }
    let mut shape = Shape {
        count: 1,
        extent: 1,
    };
    for _ in 0..dimensions {
        let length = reader.length()?;
        shape.extent = shape
            .extent
            .checked_mul(length.max(1))
            .filter(|extent| *extent <= EXTENT_MAX)
            .ok_or(Fault::Malformed {
                position,
                got: "a shape of more elements than any machine holds",
                expected: "a shape",
            })?;
        // Never more than the extent.
        shape.count *= length;
    }
    Ok(shape)
}

/// Elements of an array at most.
const EXTENT_MAX: u64 = 1 << 47;

/// The bytes of a simple element, and what not all bytes are good for.
fn leaf(text: &str) -> Option<(u64, Option<ElementKind>)> {
    let mut letters = text.chars();
    let (order, code) = (letters.next()?, letters.next()?);
    let rest = letters.as_str();
    let (digits, unit) = rest
        .find('[')
        .map_or((rest, ""), |position| rest.split_at(position));
    if digits.is_empty() || digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size: u64 = digits.parse().ok()?;
    let is_date = matches!(code, 'M' | 'm');
    if !matches!(order, '<' | '>' | '|') || !(unit.is_empty() || is_date && is_unit(unit)) {
        return None;
    }
    let known: &[u64] = match code {
        'b' => &[1],
        'i' | 'u' => &[1, 2, 4, 8],
        'f' => &[2, 4, 8],
        'c' => &[8, 16],
        'M' | 'm' => &[8],
        'S' | 'V' if size > 0 => return Some((size, None)),
        'U' if size > 0 => {
            let big_endian = order == '>';
            return Some((4 * size, Some(ElementKind::Characters { big_endian })));
        }
        _ => return None,
    };
    known
        .contains(&size)
        .then_some((size, (code == 'b').then_some(ElementKind::Boolean)))
}

/// `[ns]`, `[25s]` and so on.
fn is_unit(text: &str) -> bool {
    let Some(inner) = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    else {
        return false;
    };
    let name = inner.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let multiple = &inner[..inner.len() - name.len()];
    let is_multiple = multiple.is_empty()
        || multiple.len() <= 9 && multiple.parse::<u32>().is_ok_and(|multiple| multiple > 0);
    is_multiple
        && matches!(
            name,
            "Y" | "M" | "W" | "D" | "h" | "m" | "s" | "ms" | "us" | "ns" | "ps" | "fs" | "as"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    #[test]
    fn simple_elements_have_their_sizes() {
        for (text, bytes) in [
            ("|b1", 1),
            ("<i8", 8),
            (">u2", 2),
            ("<f2", 2),
            ("<c16", 16),
            ("<M8[ns]", 8),
            ("<m8[25s]", 8),
            ("<M8", 8),
            ("|S3", 3),
            ("<U2", 8),
            ("|V7", 7),
        ] {
            assert_eq!(leaf(text).map(|leaf| leaf.0), Some(bytes), "{text}");
        }
        for text in [
            "|O8",
            "O",
            "<f16",
            "<c32",
            "f8",
            "<i3",
            "<M8[",
            "<M8[x]",
            "<M8[0s]",
            "<i8[s]",
            "|S0",
            "<U999999999999",
            "",
            "<",
            "<i",
            "<i08x",
            "<f8,<f8",
            "(2,)<f8",
            "<M8[ns]//3",
            "<é8",
        ] {
            assert_eq!(leaf(text), None, "{text}");
        }
    }

    /// Aim: booleans and characters are found wherever in a record they stand. Method: a record of a number, two booleans in an
    /// array, and a character; each byte is damaged in turn.
    #[test]
    fn particular_bytes_are_found_in_records() {
        let mut writer = Writer::default();
        writer.array(3);
        writer.array(2);
        writer.text("a");
        writer.text("<i2");
        writer.array(3);
        writer.text("b");
        writer.text("|b1");
        writer.array(1);
        writer.integer(2);
        writer.array(2);
        writer.text("c");
        writer.text("<U1");
        let elements = Elements::read(&mut Reader::new(writer.as_bytes())).unwrap();
        assert_eq!(elements.item_bytes, 8);
        let good = [[7_u8, 255, 1, 0, 65, 0, 0, 0]; 3].concat();
        assert_eq!(elements.check_contents(&good), Ok(()));
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] = 0x7f;
            let is_particular = matches!(position % 8, 2 | 3 | 6 | 7);
            assert_eq!(
                elements.check_contents(&bad).is_err(),
                is_particular,
                "{position}"
            );
        }
    }
}
