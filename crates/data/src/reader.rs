//! One item after the other: heads, numbers, text and bytes. Containers are the caller's business.

use minicbor::data::Type;
use minicbor::decode::{Decoder, Error};

use crate::Fault;

/// One data item without its contents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
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
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An array of so many values, which follow.
    Array(u64),
    /// A map of so many pairs, which follow.
    Map(u64),
    /// A tag, whose content follows.
    Tag(u64),
}

impl Item<'_> {
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

/// Reads items in order.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    decoder: Decoder<'a>,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            decoder: Decoder::new(bytes),
        }
    }

    /// Where the next item begins.
    #[must_use]
    pub fn position(&self) -> usize {
        self.decoder.position()
    }

    /// Bytes that are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.decoder.input().len() - self.decoder.position()
    }

    /// The next item.
    ///
    /// # Errors
    /// [`Fault::Malformed`] when the bytes end, or hold what this format doesn't have: lengths that are not told, floats of
    /// other sizes, `undefined` and other simple values, text that isn't UTF-8.
    #[inline]
    pub fn next_item(&mut self) -> Result<Item<'a>, Fault> {
        let position = self.decoder.position();
        self.read().map_err(|error| fault(position, &error))
    }

    /// An item of one kind.
    ///
    /// # Errors
    /// [`Fault::Malformed`] when it is another, or as [`Self::next_item`].
    pub fn expect<T>(
        &mut self,
        expected: &'static str,
        take: impl FnOnce(Item<'a>) -> Option<T>,
    ) -> Result<T, Fault> {
        let position = self.decoder.position();
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
        self.expect(expected, |item| (item == Item::Array(count)).then_some(()))
    }

    /// An integer of 64 bits.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn integer(&mut self) -> Result<i64, Fault> {
        self.expect("an integer of 64 bits", |item| match item {
            Item::Integer(value) => Some(value),
            _ => None,
        })
    }

    /// An integer of 64 bits, or null.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn integer_or_null(&mut self) -> Result<Option<i64>, Fault> {
        self.expect("an integer of 64 bits or None", |item| match item {
            Item::Integer(value) => Some(Some(value)),
            Item::Null => Some(None),
            _ => None,
        })
    }

    /// A length: an integer that isn't negative.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn length(&mut self) -> Result<u64, Fault> {
        self.expect("a length", |item| match item {
            Item::Integer(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// A float.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn float(&mut self) -> Result<f64, Fault> {
        self.expect("a float", |item| match item {
            Item::Float(value) => Some(value),
            _ => None,
        })
    }

    /// Text.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn text(&mut self) -> Result<&'a str, Fault> {
        self.expect("text", |item| match item {
            Item::Text(text) => Some(text),
            _ => None,
        })
    }

    /// Bytes.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        self.expect("bytes", |item| match item {
            Item::Bytes(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// The head of an array.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn array(&mut self) -> Result<u64, Fault> {
        self.expect("a list", |item| match item {
            Item::Array(count) => Some(count),
            _ => None,
        })
    }

    /// The head of a map.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub fn map(&mut self) -> Result<u64, Fault> {
        self.expect("a dict", |item| match item {
            Item::Map(count) => Some(count),
            _ => None,
        })
    }

    #[inline]
    fn read(&mut self) -> Result<Item<'a>, Error> {
        let decoder = &mut self.decoder;
        let unknown = |what: Type| Error::type_mismatch(what);
        Ok(match decoder.datatype()? {
            Type::U8 | Type::U16 | Type::U32 => Item::Integer(i64::from(decoder.u32()?)),
            Type::I8 | Type::I16 | Type::I32 | Type::I64 => Item::Integer(decoder.i64()?),
            Type::U64 => {
                let value = decoder.u64()?;
                i64::try_from(value).map_or(Item::Unsigned(value), Item::Integer)
            }
            // Below -2^63.
            Type::Int => {
                Item::Negative(u64::try_from(-1 - i128::from(decoder.int()?)).unwrap_or(u64::MAX))
            }
            Type::F64 => Item::Float(decoder.f64()?),
            Type::String => Item::Text(decoder.str()?),
            Type::Bytes => Item::Bytes(decoder.bytes()?),
            Type::Array => Item::Array(decoder.array()?.ok_or_else(|| unknown(Type::ArrayIndef))?),
            Type::Map => Item::Map(decoder.map()?.ok_or_else(|| unknown(Type::MapIndef))?),
            Type::Tag => Item::Tag(decoder.tag()?.as_u64()),
            Type::Null => {
                decoder.null()?;
                Item::Null
            }
            Type::Bool => Item::Boolean(decoder.bool()?),
            other => return Err(unknown(other)),
        })
    }
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
