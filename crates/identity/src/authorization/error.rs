//! What can be wrong with rules about who may do what. Whoever wrote them must act, so every message says where and what
//! to write instead.

use std::fmt;

use thiserror::Error;

use super::name_pattern::PatternProblem;
use crate::limits::{AUTHORIZATION_RULES_MAX, WORD_BYTES_MAX};
use crate::policy_text::LIST_ENTRIES_MAX;

/// Rules that can't be used: of a policy file, a ban list or a grid-mapfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationError {
    /// The line, from 1; nothing, when it is about the file as a whole.
    pub line: Option<usize>,
    /// What is wrong there.
    pub problem: AuthorizationProblem,
}

impl fmt::Display for AuthorizationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        self.problem.fmt(formatter)
    }
}

impl std::error::Error for AuthorizationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem.source()
    }
}

impl From<AuthorizationProblem> for AuthorizationError {
    fn from(problem: AuthorizationProblem) -> Self {
        Self {
            line: None,
            problem,
        }
    }
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuthorizationProblem {
    /// A file beyond its limit.
    #[error("the {what} has {got} bytes, expected {max} at most")]
    TooLarge {
        /// Which file.
        what: &'static str,
        /// Its bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// What a file looks like between the moments when its writer opens it and writes it. Nobody is let in for that moment.
    #[error(
        "the {what} has no byte, like one that is being written: one that is meant to hold nothing has a line, such as \
         \"# nothing\""
    )]
    Empty {
        /// Which file.
        what: &'static str,
    },
    /// Not TOML, or not the keys and types of a policy.
    #[error("{message}")]
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// A list beyond its limit.
    #[error("`{list}` has {count} entries, expected {LIST_ENTRIES_MAX} at most")]
    TooManyEntries {
        /// Which list.
        list: &'static str,
        /// How many.
        count: usize,
    },
    /// More rules than anybody can oversee.
    #[error("got {count} rules in `{list}`, expected {AUTHORIZATION_RULES_MAX} at most")]
    TooManyRules {
        /// Which list.
        list: &'static str,
        /// How many.
        count: usize,
    },
    /// A pattern that can't be meant.
    #[error("{list}: pattern {text:?}: {problem}")]
    Pattern {
        /// Where it stands.
        list: String,
        /// The pattern.
        text: String,
        /// What is wrong with it.
        problem: PatternProblem,
    },
    /// A pattern of one kind of name where another kind is asked for.
    #[error("{list}: got {text:?}, expected {expected}")]
    WrongKind {
        /// Where it stands.
        list: String,
        /// The pattern.
        text: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A rule for everybody, which nobody writes by leaving something out.
    #[error(
        "this rule has neither `name` nor `dn` nor `vo` nor `fqan`, so it would be about everybody that any trusted \
         authority knows: if that is meant, write dn = \"*\""
    )]
    NoCondition,
    /// A list without an entry.
    #[error("`{key}` is empty, so this rule would never apply: name one, or leave the rule out")]
    EmptyList {
        /// The key.
        key: &'static str,
    },
    /// The name of an action, or of a virtual organisation.
    #[error(
        "`{key}`: got {text:?}, expected 1 to {WORD_BYTES_MAX} letters, digits and . - _ : / +"
    )]
    BadWord {
        /// The key.
        key: &'static str,
        /// What stood there.
        text: String,
    },
    /// `["any", "read"]`
    #[error(
        "`action` has \"any\" and others beside it: \"any\" is every action already, write it alone"
    )]
    AnyAmongActions,
    /// Which of the two would be meant?
    #[error("an entry of [accounts] map needs either `dn` or `fqan`")]
    MapSubject,
    /// Not the name of an account.
    #[error(
        "got account {text:?}, expected 1 to {WORD_BYTES_MAX} letters, digits and . - _, starting with a letter or `_`"
    )]
    BadAccount {
        /// What stood there.
        text: String,
    },
    /// `.atlas`
    #[error(
        "got the pool account {text:?}: leases of pool accounts are not kept here; map to one account, or have the \
         site's account mapping service do it"
    )]
    PoolAccount {
        /// What stood there.
        text: String,
    },
    /// A line of a grid-mapfile.
    #[error(
        "got {text:?}, expected a name in quotation marks and an account: \"/DC=org/CN=Alice\" alice"
    )]
    BadMapLine {
        /// The line.
        text: String,
    },
    /// A line of a ban list.
    #[error(
        "got {text:?}, expected one name like /DC=org/CN=Alice, attribute like /vo/Role=pilot or host name; \
         a name with spaces stands in quotation marks"
    )]
    BadBan {
        /// The line.
        text: String,
    },
}
