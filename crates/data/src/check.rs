//! A whole value, held against the limits before anything is made of it.

mod decimal;
mod place;

use decimal::check_decimal;
use place::{Follows, Permitted};

use crate::elements::{Elements, read_shape};
use crate::fault::limit;
use crate::limits::{
    EXCEPTION_TEXT_BYTES_MAX, EXPANDED_MEMORY_BYTES_MIN, FRACTION_BYTES_MAX, INTEGER_BYTES_MAX,
    KEY_INTEGER_BYTES_MAX, LIBRARY_NUMBERS, LIBRARY_PIECE_BYTES, LIBRARY_PIECES_MIN,
    MEMORY_BYTES_MIN, MEMORY_PER_BYTE_MAX, NAME_BYTES_MAX, NESTING_MAX, PATH_BYTES_MAX,
    TRACEBACK_BYTES_MAX, TRACEBACK_LINES_MAX,
};
use crate::reader::{DataItem, Reader, utf8};
use crate::{Fault, tags, weight};

/// A value that is known to be good: well-formed, within the limits, with every bulk part in its place.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    body: &'a [u8],
}

impl<'a> Checked<'a> {
    /// Checks a record's body and its bulk parts.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn new<Part: AsRef<[u8]>>(body: &'a [u8], parts: &[Part]) -> Result<Self, Fault> {
        Self::sent_as(body, parts, None)
    }

    /// The same for what may have been compressed, to so many bytes: those are what its sender has paid for.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn sent_as<Part: AsRef<[u8]>>(
        body: &'a [u8],
        parts: &[Part],
        compressed_bytes: Option<u64>,
    ) -> Result<Self, Fault> {
        let mut checker = Checker::new(body, parts, compressed_bytes);
        checker.value()?;
        checker.end()?;
        Ok(Self { body })
    }

    /// A walk over the value.
    #[must_use]
    pub fn reader(&self) -> Reader<'a> {
        Reader::new(self.body)
    }
}

/// An exception that is known to be good.
#[derive(Clone, Debug)]
pub struct CheckedException<'a> {
    /// Its class: `ValueError` for a builtin one, else module and name with a colon between.
    pub kind: &'a str,
    /// Its text.
    pub text: &'a str,
    /// The lines of its traceback.
    pub traceback: Vec<&'a str>,
    /// What the program's own function made of it; null if there is none.
    pub data: Checked<'a>,
}

impl<'a> CheckedException<'a> {
    /// Checks a record's body: an array of class, text, an array of lines, and data or null. It has no bulk parts.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn new(body: &'a [u8]) -> Result<Self, Fault> {
        let mut checker = Checker::<&[u8]>::new(body, &[], None);
        let reader = &mut checker.reader;
        reader.expect_array(
            4,
            "an exception: its class, its text, its traceback, its data",
        )?;
        let kind = limited(reader.text()?, "the name of a class", NAME_BYTES_MAX)?;
        let text = limited(
            reader.text()?,
            "an exception's text",
            EXCEPTION_TEXT_BYTES_MAX,
        )?;
        let lines = reader.array()?;
        if lines > TRACEBACK_LINES_MAX {
            return Err(limit(
                "a traceback",
                lines,
                "lines",
                TRACEBACK_LINES_MAX,
                SHORTER,
            ));
        }
        let (mut traceback, mut bytes) = (Vec::new(), 0);
        for _ in 0..lines {
            let line = reader.text()?;
            bytes += line.len() as u64;
            traceback.push(line);
        }
        if bytes > TRACEBACK_BYTES_MAX {
            return Err(limit(
                "a traceback",
                bytes,
                "bytes",
                TRACEBACK_BYTES_MAX,
                SHORTER,
            ));
        }
        let start = checker.reader.position();
        checker.value()?;
        checker.end()?;
        Ok(Self {
            kind,
            text,
            traceback,
            data: Checked {
                body: &body[start..],
            },
        })
    }
}

const SHORTER: &str = "the sender cuts it";

struct Checker<'a, 'p, Part> {
    reader: Reader<'a>,
    parts: &'p [Part],
    next_part: usize,
    weight: u64,
    weight_max: u64,
    library_pieces: u64,
    /// What came, before it was expanded.
    message_bytes: u64,
}

impl<'a, 'p, Part: AsRef<[u8]>> Checker<'a, 'p, Part> {
    fn new(body: &'a [u8], parts: &'p [Part], compressed_bytes: Option<u64>) -> Self {
        let bulk: u64 = parts.iter().map(|part| part.as_ref().len() as u64).sum();
        let whole_bytes = body.len() as u64 + bulk;
        let message_bytes = compressed_bytes.map_or(whole_bytes, |bytes| bytes.min(whole_bytes));
        let weight_of = |bytes: u64| bytes.saturating_mul(MEMORY_PER_BYTE_MAX);
        let mut weight_max = weight_of(whole_bytes).saturating_add(MEMORY_BYTES_MIN);
        if compressed_bytes.is_some() {
            // Each bulk part weighs what it holds at least, so it can't be spent on anything else.
            let expanded_max = weight_of(message_bytes)
                .saturating_add(bulk)
                .saturating_add(EXPANDED_MEMORY_BYTES_MIN);
            weight_max = weight_max.min(expanded_max);
        }
        Self {
            reader: Reader::new(body),
            parts,
            next_part: 0,
            weight: 0,
            weight_max,
            library_pieces: 0,
            message_bytes,
        }
    }

    fn end(&self) -> Result<(), Fault> {
        let wrong = |got, expected| Fault::Malformed {
            position: self.reader.position(),
            got,
            expected,
        };
        if self.reader.remaining() > 0 {
            return Err(wrong("more bytes", "the end of the record"));
        }
        if self.next_part < self.parts.len() {
            return Err(wrong("the end of the record", "a place for each bulk part"));
        }
        Ok(())
    }

    /// One value with all that it holds. Without recursion: what a stranger nests must not reach the end of the stack.
    fn value(&mut self) -> Result<(), Fault> {
        let mut outer: Vec<Follows> = Vec::new();
        let mut current = Follows::values(1, Permitted::Anywhere);
        loop {
            if current.takes_anything() {
                let (passed, weight) = self.reader.pass_common(current.count);
                self.weigh(weight)?;
                current.pass(passed);
            }
            if current.count == 0 {
                match outer.pop() {
                    Some(next) => current = next,
                    None => return Ok(()),
                }
                continue;
            }
            let follows = self.head(current.next())?;
            if follows.count == 0 {
                continue;
            }
            if outer.len() >= NESTING_MAX as usize {
                return Err(limit(
                    "values within values",
                    u64::from(NESTING_MAX) + 1,
                    "levels",
                    u64::from(NESTING_MAX),
                    "return a flatter result",
                ));
            }
            outer.push(std::mem::replace(&mut current, follows));
        }
    }

    /// A value without what it holds. Each value held has at least one byte, so a count that lies ends with the bytes.
    #[inline]
    fn head(&mut self, place: Permitted) -> Result<Follows, Fault> {
        let position = self.reader.position();
        let item = self.reader.next_item()?;
        if place == Permitted::Count && !is_number(&item) {
            return Err(Fault::Malformed {
                position,
                got: item.kind(),
                expected: "a number as a count of a counter",
            });
        }
        let weight = match item {
            DataItem::Null | DataItem::Boolean(_) => return Ok(Follows::NOTHING),
            DataItem::Integer(_)
            | DataItem::Unsigned(_)
            | DataItem::Negative(_)
            | DataItem::Float(_) => weight::NUMBER,
            DataItem::Text(bytes) if bytes.is_ascii() => weight::text_of(bytes.len() as u64, 1),
            DataItem::Text(bytes) => weight::text(utf8(bytes, position)?),
            DataItem::Bytes(bytes) => weight::bytes(bytes.len() as u64),
            DataItem::Array(count) => {
                not_as_key(place, position, "a list")?;
                self.weigh(weight::list(count))?;
                self.piece(place)?;
                return Ok(Follows::values(count, place.contents()));
            }
            DataItem::Map(count) => {
                not_as_key(place, position, "a dict")?;
                self.weigh(weight::map(count))?;
                return Ok(Follows::pairs(count, place));
            }
            DataItem::Tag(tag) => return self.tagged(tag, position, place),
        };
        self.weigh(weight)?;
        Ok(Follows::NOTHING)
    }

    fn tagged(&mut self, tag: u64, position: usize, place: Permitted) -> Result<Follows, Fault> {
        let wrong = |got| Fault::Malformed {
            position,
            got,
            expected: "a tag of plain data with its content",
        };
        match tag {
            tags::TUPLE => {
                let count = self.reader.array()?;
                self.weigh(weight::tuple(count))?;
                Ok(Follows::values(count, place))
            }
            tags::FROZEN_SET | tags::SET => {
                if tag == tags::SET {
                    not_as_key(place, position, "a set")?;
                }
                let count = self.reader.array()?;
                self.weigh(weight::set(count))?;
                Ok(Follows::values(count, Permitted::Key))
            }
            tags::COUNTER | tags::ORDERED_MAP => {
                not_as_key(place, position, "a dict")?;
                let count = self.reader.map()?;
                self.weigh(weight::ordered_map(count))?;
                let of_values = if tag == tags::COUNTER {
                    Permitted::Count
                } else {
                    place
                };
                Ok(Follows::pairs(count, of_values))
            }
            tags::DEFAULT_MAP => {
                not_as_key(place, position, "a dict")?;
                self.reader.expect_array(2, "a factory and a dict")?;
                let factory = self.reader.integer_or_null()?;
                if factory.is_some_and(|number| {
                    usize::try_from(number).map_or(true, |number| number >= tags::FACTORIES.len())
                }) {
                    return Err(wrong("a factory that isn't known"));
                }
                let count = self.reader.map()?;
                self.weigh(weight::ordered_map(count))?;
                Ok(Follows::pairs(count, place))
            }
            tags::DEQUE => {
                not_as_key(place, position, "a deque")?;
                self.reader
                    .expect_array(2, "the greatest length and the items")?;
                let longest = self.reader.integer_or_null()?;
                let count = self.reader.array()?;
                if longest.is_some_and(|longest| {
                    u64::try_from(longest).map_or(true, |longest| longest < count)
                }) {
                    return Err(wrong("a deque longer than it may be"));
                }
                self.weigh(weight::deque(count))?;
                Ok(Follows::values(count, place.contents()))
            }
            tags::OBJECT_ARRAY => {
                not_as_key(place, position, "an array")?;
                self.piece(place)?;
                self.reader.expect_array(2, "a shape and values")?;
                let shape = read_shape(&mut self.reader)?;
                let count = self.reader.array()?;
                if count != shape.count {
                    return Err(wrong(
                        "an array of objects of another number than its shape says",
                    ));
                }
                self.weigh(weight::ARRAY + weight::list(shape.extent).saturating_mul(2))?;
                Ok(Follows::values(count, place.contents()))
            }
            tags::REGISTERED => {
                self.instance()?;
                // What is hashed and compared is the program's own object, made of whatever comes.
                let of_it = match place {
                    Permitted::Anywhere | Permitted::OfLibrary | Permitted::Count => {
                        Permitted::Anywhere
                    }
                    Permitted::Key | Permitted::OfKey => Permitted::OfKey,
                };
                Ok(Follows::values(1, of_it))
            }
            tags::LIBRARY => {
                not_as_key(place, position, "a library's object")?;
                if LIBRARY_NUMBERS.contains(&self.instance()?) {
                    return Ok(Follows::values(1, place.contents()));
                }
                self.piece(Permitted::OfLibrary)?;
                Ok(Follows::values(1, Permitted::OfLibrary))
            }
            tags::EXCEPTION => {
                not_as_key(place, position, "an exception")?;
                self.reader.expect_array(3, "class, text and data")?;
                limited(self.reader.text()?, "the name of a class", NAME_BYTES_MAX)?;
                let text = limited(
                    self.reader.text()?,
                    "an exception's text",
                    EXCEPTION_TEXT_BYTES_MAX,
                )?;
                self.weigh(weight::INSTANCE + weight::text(text))?;
                Ok(Follows::values(1, Permitted::Anywhere))
            }
            _ => self.simple(tag, position, place).map(|()| Follows::NOTHING),
        }
    }

    /// The name of an instance, whose data follows.
    fn instance(&mut self) -> Result<&'a str, Fault> {
        self.reader.expect_array(2, "a name and data")?;
        let name = limited(self.reader.text()?, "the name of a class", NAME_BYTES_MAX)?;
        self.weigh(weight::INSTANCE)?;
        Ok(name)
    }

    /// What holds no other values.
    fn simple(&mut self, tag: u64, position: usize, place: Permitted) -> Result<(), Fault> {
        let wrong = |got| Fault::Malformed {
            position,
            got,
            expected: "a tag of plain data with its content",
        };
        match tag {
            tags::BIG_POSITIVE | tags::BIG_NEGATIVE => self.big_integer(place),
            tags::PART => {
                let length = self.part()?.as_ref().len() as u64;
                self.weigh(weight::bytes(length))
            }
            tags::BYTE_ARRAY => {
                not_as_key(place, position, "a bytearray")?;
                let length = self.contents()?.len() as u64;
                self.weigh(weight::byte_array(length))
            }
            tags::COMPLEX => {
                self.reader.expect_array(2, "two floats")?;
                self.reader.float()?;
                self.reader.float()?;
                self.weigh(weight::COMPLEX)
            }
            tags::RANGE | tags::SLICE => {
                if tag == tags::SLICE {
                    not_as_key(place, position, "a slice")?;
                }
                self.reader.expect_array(3, "start, stop and step")?;
                for _ in 0..3 {
                    if tag == tags::SLICE {
                        self.reader.integer_or_null()?;
                    } else {
                        self.reader.integer()?;
                    }
                }
                self.weigh(weight::SMALL)
            }
            tags::CONSTANT => match self.reader.length()? {
                0 | 1 => Ok(()),
                _ => Err(wrong("a constant that isn't known")),
            },
            tags::SURROGATE_TEXT => {
                let length = self.reader.bytes()?.len() as u64;
                self.weigh(weight::byte_array(length.saturating_mul(4)))
            }
            tags::DATE => self.integers(3, "year, month and day"),
            tags::TIME => {
                self.reader
                    .expect_array(6, "hour, minute, second, microsecond, fold and time zone")?;
                self.time(5)
            }
            tags::DATE_TIME => {
                self.reader
                    .expect_array(9, "year to microsecond, fold and time zone")?;
                self.time(8)
            }
            tags::DURATION => self.integers(3, "days, seconds and microseconds"),
            tags::TIME_ZONE => self.time_zone(),
            tags::DECIMAL => {
                let text = self.reader.text()?;
                check_decimal(text, position)?;
                self.weigh(weight::SMALL + text.len() as u64)
            }
            tags::FRACTION => {
                self.reader.expect_array(2, "numerator and denominator")?;
                for _ in 0..2 {
                    self.whole_number(place)?;
                }
                self.weigh(weight::INSTANCE)
            }
            tags::UUID => {
                if self.reader.bytes()?.len() != 16 {
                    return Err(wrong("a UUID of another length than 16 bytes"));
                }
                self.weigh(weight::INSTANCE)
            }
            tags::PATH => {
                self.reader.expect_array(2, "flavour and text")?;
                if self.reader.length()? > 2 {
                    return Err(wrong("a path of a flavour that isn't known"));
                }
                let bytes = match self.reader.next_item()? {
                    DataItem::Text(text) => utf8(text, position)?.len(),
                    DataItem::Tag(tags::SURROGATE_TEXT) => self.reader.bytes()?.len(),
                    other => return Err(wrong(other.kind())),
                } as u64;
                if bytes > PATH_BYTES_MAX {
                    return Err(limit(
                        "a path",
                        bytes,
                        "bytes",
                        PATH_BYTES_MAX,
                        "return it as text",
                    ));
                }
                self.weigh(weight::INSTANCE + 4 * bytes)
            }
            tags::ARRAY => {
                not_as_key(place, position, "an array")?;
                self.piece(place)?;
                self.array(position)
            }
            tags::SCALAR => self.scalar(position, place),
            _ => Err(wrong("another tag")),
        }
    }

    /// The content of a big integer.
    fn big_integer(&mut self, place: Permitted) -> Result<(), Fault> {
        let bytes = self.reader.bytes()?.len() as u64;
        let (maximum, cure) = match place {
            Permitted::Anywhere | Permitted::OfLibrary | Permitted::Count => {
                (INTEGER_BYTES_MAX, "return it as bytes or text")
            }
            Permitted::Key | Permitted::OfKey => (KEY_INTEGER_BYTES_MAX, "use text as the key"),
        };
        if bytes > maximum {
            return Err(limit("an integer", bytes, "bytes", maximum, cure));
        }
        self.weigh(weight::integer(bytes))
    }

    /// A part of a fraction.
    fn whole_number(&mut self, place: Permitted) -> Result<(), Fault> {
        let bytes = self.reader.expect("an integer", |item| match item {
            DataItem::Integer(_) | DataItem::Unsigned(_) | DataItem::Negative(_) => Some(None),
            DataItem::Tag(tags::BIG_POSITIVE | tags::BIG_NEGATIVE) => Some(Some(())),
            _ => None,
        })?;
        let Some(()) = bytes else {
            return Ok(());
        };
        let bytes = self.reader.bytes()?.len() as u64;
        // As a key it is compared with others, which takes the square of its length.
        let maximum = match place {
            Permitted::Key | Permitted::OfKey => KEY_INTEGER_BYTES_MAX,
            _ => FRACTION_BYTES_MAX,
        };
        if bytes > maximum {
            return Err(limit(
                "a part of a fraction",
                bytes,
                "bytes",
                maximum,
                "return numerator and denominator as integers",
            ));
        }
        self.weigh(weight::integer(bytes))
    }

    fn integers(&mut self, count: u64, expected: &'static str) -> Result<(), Fault> {
        self.reader.expect_array(count, expected)?;
        for _ in 0..count {
            self.reader.integer()?;
        }
        self.weigh(weight::SMALL)
    }

    /// So many integers, and a time zone or null.
    fn time(&mut self, integers: u32) -> Result<(), Fault> {
        for _ in 0..integers {
            self.reader.integer()?;
        }
        self.weigh(weight::SMALL)?;
        let has_zone = self
            .reader
            .expect("a time zone or None", |item| match item {
                DataItem::Null => Some(false),
                DataItem::Tag(tags::TIME_ZONE) => Some(true),
                _ => None,
            })?;
        if has_zone { self.time_zone() } else { Ok(()) }
    }

    fn time_zone(&mut self) -> Result<(), Fault> {
        self.reader
            .expect_array(3, "seconds, microseconds and a name")?;
        self.reader.integer()?;
        self.reader.integer()?;
        let name = self.reader.expect("text or None", |item| match item {
            DataItem::Null => Some(&b""[..]),
            DataItem::Text(text) => Some(text),
            _ => None,
        })?;
        let name = utf8(name, self.reader.position())?;
        limited(name, "the name of a time zone", NAME_BYTES_MAX)?;
        self.weigh(2 * weight::SMALL + 4 * name.len() as u64)
    }

    fn array(&mut self, position: usize) -> Result<(), Fault> {
        self.reader
            .expect_array(4, "elements, shape, order and contents")?;
        let elements = Elements::read(&mut self.reader)?;
        let shape = read_shape(&mut self.reader)?;
        let order = self.reader.length()?;
        let wrong = |got| Fault::Malformed {
            position,
            got,
            expected: "an array: elements, shape, order, and as many bytes as they say",
        };
        if order > 1 {
            return Err(wrong("an order that isn't known"));
        }
        let contents = self.contents()?;
        let bytes = shape.count.checked_mul(elements.item_bytes);
        if bytes != Some(contents.len() as u64) {
            return Err(wrong("another number of bytes"));
        }
        elements.check_contents(contents)?;
        // An empty array can become a full one in one step (a sum over the dimension that is 0).
        self.weigh(
            weight::ARRAY
                .saturating_add(shape.extent.saturating_mul(elements.item_extent))
                .saturating_add(elements.weight()),
        )
    }

    fn scalar(&mut self, position: usize, place: Permitted) -> Result<(), Fault> {
        self.reader.expect_array(2, "elements and contents")?;
        let elements = Elements::read(&mut self.reader)?;
        let contents = self.reader.bytes()?;
        if contents.len() as u64 != elements.item_bytes {
            return Err(Fault::Malformed {
                position,
                got: "a scalar of another number of bytes than its type has",
                expected: "a scalar",
            });
        }
        if elements.is_record {
            not_as_key(place, position, "a NumPy record")?;
        }
        elements.check_contents(contents)?;
        self.weigh(
            weight::SCALAR
                .saturating_add(elements.item_extent.saturating_mul(4))
                .saturating_add(elements.weight()),
        )
    }

    /// Bytes that stand here or beside the record.
    fn contents<'c>(&mut self) -> Result<&'c [u8], Fault>
    where
        'a: 'c,
        'p: 'c,
    {
        let here = self.reader.expect("bytes", |item| match item {
            DataItem::Bytes(bytes) => Some(Some(bytes)),
            DataItem::Tag(tags::PART) => Some(None),
            _ => None,
        })?;
        match here {
            Some(bytes) => Ok(bytes),
            None => Ok(self.part()?.as_ref()),
        }
    }

    /// The next bulk part. Each is used once, in order.
    fn part(&mut self) -> Result<&'p Part, Fault> {
        let position = self.reader.position();
        let length = self.reader.length()?;
        let part = self.parts.get(self.next_part);
        let part = part.filter(|part| part.as_ref().len() as u64 == length);
        self.next_part += 1;
        part.ok_or(Fault::Malformed {
            position,
            got: "a bulk part that isn't there or has another length",
            expected: "the next bulk part",
        })
    }

    /// Counts what a library must make.
    fn piece(&mut self, place: Permitted) -> Result<(), Fault> {
        self.library_pieces += u64::from(place == Permitted::OfLibrary);
        let maximum = LIBRARY_PIECES_MIN + self.message_bytes / LIBRARY_PIECE_BYTES;
        if self.library_pieces <= maximum {
            return Ok(());
        }
        Err(limit(
            "an answer with objects of libraries",
            self.library_pieces,
            "objects, arrays and lists that they are made of",
            maximum,
            "return fewer, larger ones",
        ))
    }

    #[inline]
    fn weigh(&mut self, bytes: u64) -> Result<(), Fault> {
        self.weight = self.weight.saturating_add(bytes);
        if self.weight <= self.weight_max {
            return Ok(());
        }
        Err(Fault::Memory {
            maximum: self.weight_max,
            message: self.message_bytes,
        })
    }
}

const fn is_number(item: &DataItem<'_>) -> bool {
    matches!(
        item,
        DataItem::Boolean(_)
            | DataItem::Integer(_)
            | DataItem::Unsigned(_)
            | DataItem::Negative(_)
            | DataItem::Float(_)
            | DataItem::Tag(
                tags::BIG_POSITIVE
                    | tags::BIG_NEGATIVE
                    | tags::COMPLEX
                    | tags::DECIMAL
                    | tags::FRACTION
                    | tags::SCALAR
            )
    )
}

fn not_as_key(place: Permitted, position: usize, kind: &'static str) -> Result<(), Fault> {
    match place {
        Permitted::Anywhere | Permitted::OfKey | Permitted::OfLibrary | Permitted::Count => Ok(()),
        Permitted::Key => Err(Fault::Key { position, kind }),
    }
}

fn limited<'a>(text: &'a str, kind: &'static str, maximum: u64) -> Result<&'a str, Fault> {
    if text.len() as u64 <= maximum {
        return Ok(text);
    }
    Err(limit(
        kind,
        text.len() as u64,
        "bytes",
        maximum,
        "use less text",
    ))
}
