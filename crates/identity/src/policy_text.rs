//! How the one policy file is written: spellings that all its tables share. Links read some of its tables, this crate
//! the others, and both from one text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Bytes of a policy file.
pub const BYTES_MAX: usize = 1024 * 1024;

/// Entries of one list.
pub const LIST_ENTRIES_MAX: usize = 4096;

/// `"lab"` or `["lab", "office"]`.
#[derive(Clone, Debug)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// By hand rather than as an untagged enum, whose errors don't say what was expected.
struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a word in quotation marks, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        T::deserialize(StrDeserializer::new(text)).map(|one| OneOrMany(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMany)
    }
}

/// The line, from 1, in which the byte at `offset` stands.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
}

/// Where in the text the TOML reader stopped and what it says, on one line: it may list what it expected on lines of
/// their own.
pub fn syntax(text: &str, error: &toml::de::Error) -> (Option<usize>, String) {
    let line = error.span().map(|span| line_of(text, span.start));
    if error.message() == "invalid type: map, expected a sequence" {
        let message = "got one table, expected a list of them: write its head as [[...]]";
        return (line, message.to_owned());
    }
    let message = error.message().lines().map(str::trim);
    (line, message.collect::<Vec<_>>().join(", "))
}
