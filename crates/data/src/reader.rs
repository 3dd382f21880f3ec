//! One item after the other: heads, numbers, text and bytes. Containers are the caller's business.

use minicbor::data::Type;
use minicbor::decode::{Decoder, Error};

use crate::{Fault, weight};

/// One data item without its contents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DataItem<'a> {
    /// Null.
    Null,
    /// A boolean.
    Boolean(bool),
    /// An integer that fits 64 bits with a sign.
    Integer(i64),
    /// An integer from 2^63 on.
    Unsigned(u64),
    /// -1 minus this, below -2^63.
    Negative(u64),
    /// A float of 64 bits.
    Float(f64),
    /// Text, as bytes that nobody has looked at yet: [`utf8`] makes it text, and what was [checked](crate::Checked) is known to be.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An array of so many values, which follow.
    Array(u64),
    /// A map of so many pairs, which follow.
    Map(u64),
    /// A tag, whose content follows.
    Tag(u64),
}

impl DataItem<'_> {
    /// The kind, for people.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "None",
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) | Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "a list",
            Self::Map(_) => "a dict",
            Self::Tag(_) => "a tagged value",
        }
    }
}

/// The commonest items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CommonItem<'a> {
    /// A float.
    Float(f64),
    /// An integer that fits 64 bits with a sign.
    Integer(i64),
    /// Text of less than 256 bytes, as [`DataItem::Text`] has it.
    Text(&'a [u8]),
}

/// Makes text of bytes.
///
/// # Errors
/// [`Fault::Malformed`] when they are no UTF-8.
pub fn utf8(bytes: &[u8], position: usize) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Malformed {
        position,
        got: "text that isn't UTF-8",
        expected: "text",
    })
}

/// Reads items in order.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Where the next item begins.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next item.
    ///
    /// # Errors
    /// [`Fault::Malformed`] when the bytes end, or hold what this format doesn't have: lengths that are not told, floats of
    /// other sizes, `undefined` and other simple values, text that isn't UTF-8.
    #[inline]
    pub fn next_item(&mut self) -> Result<DataItem<'a>, Fault> {
        match self.common() {
            Some(item) => Ok(item),
            None => self.any(),
        }
    }

    /// The heads that nearly all items have, each read in one step; the position moves only if it is one of them.
    #[inline]
    fn common(&mut self) -> Option<DataItem<'a>> {
        let rest = self.bytes.get(self.position..)?;
        let (&head, rest) = rest.split_first()?;
        let (item, length) = match head {
            0x00..=0x17 => (DataItem::Integer(i64::from(head)), 0),
            0x18 => (DataItem::Integer(i64::from(*rest.first()?)), 1),
            0x19 => (
                DataItem::Integer(i64::from(u16::from_be_bytes(*rest.first_chunk()?))),
                2,
            ),
            0x1a => (
                DataItem::Integer(i64::from(u32::from_be_bytes(*rest.first_chunk()?))),
                4,
            ),
            0x1b => {
                let value = u64::from_be_bytes(*rest.first_chunk()?);
                (
                    i64::try_from(value).map_or(DataItem::Unsigned(value), DataItem::Integer),
                    8,
                )
            }
            0x20..=0x37 => (DataItem::Integer(-1 - i64::from(head - 0x20)), 0),
            0x38 => (DataItem::Integer(-1 - i64::from(*rest.first()?)), 1),
            0x39 => (
                DataItem::Integer(-1 - i64::from(u16::from_be_bytes(*rest.first_chunk()?))),
                2,
            ),
            0x3a => (
                DataItem::Integer(-1 - i64::from(u32::from_be_bytes(*rest.first_chunk()?))),
                4,
            ),
            0x3b => {
                let value = u64::from_be_bytes(*rest.first_chunk()?);
                let item = i64::try_from(value).map_or(DataItem::Negative(value), |value| {
                    DataItem::Integer(-1 - value)
                });
                (item, 8)
            }
            0x60..=0x77 => {
                let length = usize::from(head - 0x60);
                (DataItem::Text(rest.get(..length)?), length)
            }
            0x78 => {
                let length = usize::from(*rest.first()?);
                (DataItem::Text(rest.get(1..=length)?), length + 1)
            }
            0x80..=0x97 => (DataItem::Array(u64::from(head - 0x80)), 0),
            0xa0..=0xb7 => (DataItem::Map(u64::from(head - 0xa0)), 0),
            0xd9 => (
                DataItem::Tag(u64::from(u16::from_be_bytes(*rest.first_chunk()?))),
                2,
            ),
            0xf4 | 0xf5 => (DataItem::Boolean(head == 0xf5), 0),
            0xf6 => (DataItem::Null, 0),
            0xfb => (DataItem::Float(f64::from_be_bytes(*rest.first_chunk()?)), 8),
            _ => return None,
        };
        self.position += 1 + length;
        Some(item)
    }

    /// The next item if it is a number or short text; else the position stays.
    #[inline(always)]
    pub fn common_ahead(&mut self) -> Option<CommonItem<'a>> {
        let rest = self.bytes.get(self.position..)?;
        match *rest.first()? {
            0xfb => {
                let value = rest[1..].first_chunk::<8>()?;
                self.position += 9;
                Some(CommonItem::Float(f64::from_be_bytes(*value)))
            }
            0x60..=0x78 => self.text_ahead().map(CommonItem::Text),
            0x00..=0x3b => {
                let start = self.position;
                match self.common()? {
                    DataItem::Integer(value) => Some(CommonItem::Integer(value)),
                    _ => {
                        // An integer of more than 63 bits.
                        self.position = start;
                        None
                    }
                }
            }
            _ => None,
        }
    }

    /// The next item if it is text of less than 256 bytes.
    #[inline]
    fn text_ahead(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.position..)?;
        let (start, length) = match *rest {
            [head @ 0x60..=0x77, ..] => (1, usize::from(head - 0x60)),
            [0x78, length, ..] => (2, usize::from(length)),
            _ => return None,
        };
        let text = rest.get(start..start + length)?;
        self.position += start + length;
        Some(text)
    }

    /// Passes over numbers, truth values, nulls and short ASCII, so many at most, and stops at what is anything else or damaged. Says
    /// how many of them there were, and what they weigh.
    pub(crate) fn pass_common(&mut self, most: u64) -> (u64, u64) {
        let (mut passed, mut weight) = (0, 0_u64);
        while passed < most {
            let Some(head) = self.bytes.get(self.position) else {
                break;
            };
            let (length, item_weight) = match head {
                0x00..=0x17 | 0x20..=0x37 => (1, weight::NUMBER),
                0x18 | 0x38 => (2, weight::NUMBER),
                0x19 | 0x39 => (3, weight::NUMBER),
                0x1a | 0x3a => (5, weight::NUMBER),
                0x1b | 0x3b | 0xfb => (9, weight::NUMBER),
                0xf4..=0xf6 => (1, 0),
                0x60..=0x78 => {
                    let position = self.position;
                    match self.text_ahead() {
                        Some(text) if text.is_ascii() => {
                            passed += 1;
                            weight = weight.saturating_add(weight::text_of(text.len() as u64, 1));
                            continue;
                        }
                        _ => {
                            self.position = position;
                            break;
                        }
                    }
                }
                _ => break,
            };
            if self.remaining() < length {
                break;
            }
            self.position += length;
            passed += 1;
            weight = weight.saturating_add(item_weight);
        }
        (passed, weight)
    }

    /// Any item, or what is wrong.
    #[cold]
    fn any(&mut self) -> Result<DataItem<'a>, Fault> {
        let mut decoder = Decoder::new(self.bytes);
        decoder.set_position(self.position);
        let item = read(&mut decoder).map_err(|error| fault(self.position, &error))?;
        self.position = decoder.position();
        Ok(item)
    }

    /// An item of one kind.
    ///
    /// # Errors
    /// [`Fault::Malformed`] when it is another, or as [`Self::next_item`].
    pub fn expect<T>(
        &mut self,
        expected: &'static str,
        take: impl FnOnce(DataItem<'a>) -> Option<T>,
    ) -> Result<T, Fault> {
        let position = self.position;
        let item = self.next_item()?;
        let got = item.kind();
        take(item).ok_or(Fault::Malformed {
            position,
            got,
            expected,
        })
    }

    /// The head of an array of exactly so many values.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn expect_array(&mut self, count: u64, expected: &'static str) -> Result<(), Fault> {
        self.expect(expected, |item| {
            (item == DataItem::Array(count)).then_some(())
        })
    }

    /// An integer of 64 bits.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn integer(&mut self) -> Result<i64, Fault> {
        self.expect("an integer of 64 bits", |item| match item {
            DataItem::Integer(value) => Some(value),
            _ => None,
        })
    }

    /// An integer of 64 bits, or null.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn integer_or_null(&mut self) -> Result<Option<i64>, Fault> {
        self.expect("an integer of 64 bits or None", |item| match item {
            DataItem::Integer(value) => Some(Some(value)),
            DataItem::Null => Some(None),
            _ => None,
        })
    }

    /// A length: an integer that isn't negative.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn length(&mut self) -> Result<u64, Fault> {
        self.expect("a length", |item| match item {
            DataItem::Integer(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// A float.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn float(&mut self) -> Result<f64, Fault> {
        self.expect("a float", |item| match item {
            DataItem::Float(value) => Some(value),
            _ => None,
        })
    }

    /// Text.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn text(&mut self) -> Result<&'a str, Fault> {
        let position = self.position;
        let bytes = self.expect("text", |item| match item {
            DataItem::Text(bytes) => Some(bytes),
            _ => None,
        })?;
        utf8(bytes, position)
    }

    /// Bytes.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        self.expect("bytes", |item| match item {
            DataItem::Bytes(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// The head of an array.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn array(&mut self) -> Result<u64, Fault> {
        self.expect("a list", |item| match item {
            DataItem::Array(count) => Some(count),
            _ => None,
        })
    }

    /// The head of a map.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn map(&mut self) -> Result<u64, Fault> {
        self.expect("a dict", |item| match item {
            DataItem::Map(count) => Some(count),
            _ => None,
        })
    }
}

fn read<'a>(decoder: &mut Decoder<'a>) -> Result<DataItem<'a>, Error> {
    let unknown = |what: Type| Error::type_mismatch(what);
    Ok(match decoder.datatype()? {
        Type::U8 | Type::U16 | Type::U32 => DataItem::Integer(i64::from(decoder.u32()?)),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => DataItem::Integer(decoder.i64()?),
        Type::U64 => {
            let value = decoder.u64()?;
            i64::try_from(value).map_or(DataItem::Unsigned(value), DataItem::Integer)
        }
        // Below -2^63.
        Type::Int => {
            DataItem::Negative(u64::try_from(-1 - i128::from(decoder.int()?)).unwrap_or(u64::MAX))
        }
        Type::F64 => DataItem::Float(decoder.f64()?),
        Type::String => DataItem::Text(decoder.str()?.as_bytes()),
        Type::Bytes => DataItem::Bytes(decoder.bytes()?),
        Type::Array => DataItem::Array(decoder.array()?.ok_or_else(|| unknown(Type::ArrayIndef))?),
        Type::Map => DataItem::Map(decoder.map()?.ok_or_else(|| unknown(Type::MapIndef))?),
        Type::Tag => DataItem::Tag(decoder.tag()?.as_u64()),
        Type::Null => {
            decoder.null()?;
            DataItem::Null
        }
        Type::Bool => DataItem::Boolean(decoder.bool()?),
        other => return Err(unknown(other)),
    })
}

fn fault(position: usize, error: &Error) -> Fault {
    let (got, expected) = if error.is_end_of_input() {
        ("the end of the record", "the rest of the value")
    } else if error.is_type_mismatch() {
        (
            "an item that this format doesn't have",
            "null, a boolean, an integer, a float of 64 bits, text, bytes, or an array, map or tag whose length is told",
        )
    } else {
        ("text that isn't UTF-8 or a head that isn't CBOR", "CBOR")
    };
    Fault::Malformed {
        position,
        got,
        expected,
    }
}
