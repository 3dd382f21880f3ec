//! Patterns of identity names: `lab*.example.org`, `*`.

use std::fmt;

use crate::claim::host_of;
use crate::limits::{NAME_BYTES_MAX, PATTERN_BYTES_MAX};

/// A pattern that names of certificates are held against.
///
/// Names and patterns are compared label by label, between dots, without regard to case. A label
/// of a pattern may hold one `*`, which stands for any characters of that label, never for a dot:
/// `*.example.org` is every host directly under `example.org`, as in TLS certificates. The pattern
/// `*` alone is every name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePattern {
    /// In small letters, as identities are.
    text: String,
}

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternProblem {
    /// Nothing between the quotation marks.
    #[error("it is empty")]
    Empty,
    /// No name is that long.
    #[error("it is longer than {NAME_BYTES_MAX} bytes, the most that a name can have")]
    TooLong,
    /// `.example.org`, `a..b`, `example.org.`
    #[error(
        "it has an empty label: a pattern has no dot at its start or end and no two in a row; \
         every host under a domain is `*.example.org`"
    )]
    EmptyLabel,
    /// `a*b*c`
    #[error("it has two `*` between two dots, expected one at most")]
    SecondWildcard,
    /// Also the wildcards of other tools: `?`, `[a-z]`, `{a,b}`, `!`.
    #[error(
        "it holds {0:?}: names hold letters, digits and `. - _ : @ +`, and `*` is the only wildcard"
    )]
    Character(char),
    /// A distinguished or an attribute name beyond its limit.
    #[error("it is longer than {PATTERN_BYTES_MAX} bytes")]
    PathTooLong,
    /// `/DC=org//CN=a`, `/vo/`
    #[error(
        "it has an empty part between two slashes or at its end; whatever is below a name is `/DC=org/*`"
    )]
    EmptyPart,
    /// `/vo/Role=a*b*`
    #[error("it has two `*` between two slashes, expected one at most")]
    SecondWildcardInPart,
    /// `/*/Role=production`, `/Role=production`
    #[error(
        "it does not say of which virtual organisation: expected its name after the first slash, \
         as in `/vo/Role=production`"
    )]
    NoOrganisation,
    /// `/vo/a b`
    #[error(
        "it holds {0:?}: attributes hold letters, digits and `. - _ : @ +`, and `*` is the only wildcard"
    )]
    AttributeCharacter(char),
}

impl NamePattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternProblem> {
        if text.is_empty() {
            return Err(PatternProblem::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(PatternProblem::TooLong);
        }
        let allowed =
            |character: char| character.is_ascii_alphanumeric() || ".-_:@+*".contains(character);
        if let Some(character) = text.chars().find(|character| !allowed(*character)) {
            return Err(PatternProblem::Character(character));
        }
        for label in text.split('.') {
            if label.is_empty() {
                return Err(PatternProblem::EmptyLabel);
            }
            if label.matches('*').count() > 1 {
                return Err(PatternProblem::SecondWildcard);
            }
        }
        Ok(Self {
            text: text.to_ascii_lowercase(),
        })
    }

    /// Whether the name is one of those meant. A job's process goes by the name of its host.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if self.text == "*" {
            return true;
        }
        // A distinguished name can end like a host name, whose owner is somebody else.
        if name.contains('/') {
            return false;
        }
        let mut labels = host_of(name).split('.');
        let all = self.text.split('.').all(|pattern| {
            labels
                .next()
                .is_some_and(|label| label_matches(pattern, label))
        });
        all && labels.next().is_none()
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn label_matches(pattern: &str, label: &str) -> bool {
    let Some((start, end)) = pattern.split_once('*') else {
        return pattern.eq_ignore_ascii_case(label);
    };
    let (start, end, label) = (start.as_bytes(), end.as_bytes(), label.as_bytes());
    // An empty label is no label: `*.example.org` must not match a name that starts with a dot.
    !label.is_empty()
        && label.len() >= start.len() + end.len()
        && label[..start.len()].eq_ignore_ascii_case(start)
        && label[label.len() - end.len()..].eq_ignore_ascii_case(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        NamePattern::parse(pattern).unwrap().matches(name)
    }

    #[test]
    fn a_star_stays_inside_its_label() {
        for (pattern, name) in [
            ("lab1.example.org", "lab1.example.org"),
            ("LAB1.example.org", "lab1.Example.org"),
            ("lab*.example.org", "lab12.example.org"),
            ("lab*.example.org", "lab.example.org"),
            ("*.example.org", "a.example.org"),
            ("*-gpu.*.example.org", "n7-gpu.site.example.org"),
            ("*@example.org", "alice@example.org"),
            ("*", "any.name.at.all"),
            ("*", "/DC=org/CN=Alice"),
            // A job's process goes by its host.
            (
                "lab1.example.org",
                "lab1.example.org#1.00112233445566778899aabbccddeeff",
            ),
            (
                "*.example.org",
                "lab1.example.org#1.00112233445566778899aabbccddeeff",
            ),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("lab*.example.org", "lab1.example.org.evil.net"),
            ("lab*.example.org", "lab1.x.example.org"),
            ("lab*.example.org", "xlab1.example.org"),
            ("*.example.org", "example.org"),
            ("*.example.org", ".example.org"),
            ("a*a.example.org", "a.example.org"),
            ("*.example.org", "/DC=org/CN=a.example.org"),
            ("*.*", "single"),
            ("lab1", ""),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for (pattern, problem) in [
            ("", PatternProblem::Empty),
            (".example.org", PatternProblem::EmptyLabel),
            ("a..b", PatternProblem::EmptyLabel),
            ("example.org.", PatternProblem::EmptyLabel),
            ("**.example.org", PatternProblem::SecondWildcard),
            ("lab[1-9]", PatternProblem::Character('[')),
            ("lab 1", PatternProblem::Character(' ')),
            ("größe", PatternProblem::Character('ö')),
            (&long, PatternProblem::TooLong),
        ] {
            assert_eq!(NamePattern::parse(pattern), Err(problem), "{pattern}");
        }
    }
}
