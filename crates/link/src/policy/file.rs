//! The policy file as it is written: keys, types and spellings, and where in the file they stand.
//! What they mean together is `build`'s.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{SeqAccessDeserializer, StrDeserializer};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::domain::Results;
use super::error::{PolicyError, PolicyProblem};
use crate::Protection;

/// Bytes of a policy file.
pub(crate) const BYTES_MAX: usize = 1024 * 1024;

/// Rules of a policy. Each is compared with those before it, so this bounds the time that reading
/// takes.
pub(crate) const RULES_MAX: usize = 256;

/// Entries of one list of addresses or names.
pub(crate) const LIST_ENTRIES_MAX: usize = 4096;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    #[serde(default)]
    pub(crate) domain: BTreeMap<Spanned<String>, DomainTable>,
    #[serde(default)]
    pub(crate) rule: Vec<Spanned<RuleTable>>,
    #[serde(default)]
    pub(crate) allow: RoleTable,
    #[serde(default)]
    pub(crate) deny: RoleTable,
}

/// `[domain.NAME]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainTable {
    #[serde(default)]
    pub(crate) addresses: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) names: Vec<Spanned<String>>,
    pub(crate) results: Option<ResultsWord>,
}

/// `[[rule]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleTable {
    pub(crate) from: Spanned<OneOrMany<String>>,
    pub(crate) to: Spanned<OneOrMany<String>>,
    pub(crate) class: Option<Spanned<OneOrMany<ClassWord>>>,
    pub(crate) protection: ProtectionWord,
}

/// `[allow]` and `[deny]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleTable {
    pub(crate) managers: Option<Vec<Spanned<String>>>,
    pub(crate) workers: Option<Vec<Spanned<String>>>,
    pub(crate) gateways: Option<Vec<Spanned<String>>>,
    pub(crate) agents: Option<Vec<Spanned<String>>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResultsWord {
    Restricted,
    Pickle,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClassWord {
    Control,
    Code,
    Data,
    Any,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProtectionWord {
    Plain,
    Integrity,
    Encrypted,
}

// The types that the rest of the program uses don't know how they are written.

impl From<ResultsWord> for Results {
    fn from(word: ResultsWord) -> Self {
        match word {
            ResultsWord::Restricted => Self::Restricted,
            ResultsWord::Pickle => Self::Pickle,
        }
    }
}

impl From<ProtectionWord> for Protection {
    fn from(word: ProtectionWord) -> Self {
        match word {
            ProtectionWord::Plain => Self::Plain,
            ProtectionWord::Integrity => Self::Integrity,
            ProtectionWord::Encrypted => Self::Encrypted,
        }
    }
}

/// `"lab"` or `["lab", "office"]`.
#[derive(Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

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

/// Reads the keys and types of a file.
pub(crate) fn read(text: &str) -> Result<PolicyFile, PolicyError> {
    if text.len() > BYTES_MAX {
        return Err(PolicyError {
            line: None,
            problem: PolicyProblem::TooLarge { bytes: text.len() },
        });
    }
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        // The parser may list what it expected on lines of their own.
        let message = error
            .message()
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(", ");
        PolicyError {
            line,
            problem: PolicyProblem::Syntax { message },
        }
    })
}

/// The line, from 1, in which the byte at `offset` stands.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
}
