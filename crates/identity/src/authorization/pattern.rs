//! Patterns of who somebody is: host names, distinguished names, attribute names.

use std::cmp::Ordering;
use std::fmt;

use super::facts::Facts;
use super::name_pattern::{NamePattern, PatternProblem};
use crate::distinguished_name::written_type;
use crate::limits::PATTERN_BYTES_MAX;
use crate::slash_name::{is_slash_name, normal_form};
use crate::verified::VerifiedIdentity;
use crate::voms::{CAPABILITY, ROLE, is_part_byte};

/// A pattern of who somebody is. Its spelling says of what it is one:
///
/// - `lab*.example.org`, `*`: names in certificates of a private authority and host names, label by label between dots;
/// - `/DC=org/DC=grid/CN=Alice`: distinguished names in slash form, part by part between slashes;
/// - `/vo/group/Role=production`: attributes that a virtual organisation gave, part by part.
///
/// A part of the latter two may hold one `*`, which stands for any characters but a slash. A `/*` at the end stands for
/// whatever follows, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityPattern {
    /// As it was written.
    text: Box<str>,
    kind: PatternKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternKind {
    Name(NamePattern),
    Subject(SlashPattern),
    Attribute(SlashPattern),
}

impl IdentityPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`PatternProblem`] when it could not be meant so.
    pub fn parse(text: &str) -> Result<Self, PatternProblem> {
        let kind = if !text.starts_with('/') {
            PatternKind::Name(NamePattern::parse(text)?)
        } else if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternProblem::PathTooLong);
        } else if is_slash_name(text) && !starts_with_value(text) {
            PatternKind::Subject(SlashPattern::parse(&normal_form(text))?)
        } else {
            PatternKind::Attribute(attribute_pattern(text)?)
        };
        Ok(Self {
            text: text.into(),
            kind,
        })
    }

    /// Whether the pattern is one of attributes, which belong to people and never to a host.
    pub fn is_of_attributes(&self) -> bool {
        matches!(self.kind, PatternKind::Attribute(_))
    }

    /// Whether the pattern is one of distinguished names.
    pub fn is_of_subjects(&self) -> bool {
        matches!(self.kind, PatternKind::Subject(_))
    }

    /// The type of a part that no distinguished name has, as `XX` of `/DC=org/XX=Alice`; nothing when all types are known. A pattern of
    /// something else has none.
    pub fn unknown_type(&self) -> Option<&str> {
        let PatternKind::Subject(_) = &self.kind else {
            return None;
        };
        let mut parts = self.text.split('/');
        parts.find_map(|part| {
            let (kind, _) = part.split_once('=')?;
            // What stands behind a slash of a value can be anything: `CN=host/a b=c`.
            let is_type = !kind.is_empty()
                && kind
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
            (is_type && written_type(part).is_none()).then_some(kind)
        })
    }

    /// The virtual organisation of which attributes are meant; nothing for another kind of pattern.
    pub fn organisation(&self) -> Option<&str> {
        match &self.kind {
            PatternKind::Attribute(pattern) => pattern.parts.first().map(AsRef::as_ref),
            _ => None,
        }
    }

    /// Whether the pattern is one of names in certificates of a private authority, and of host names.
    pub fn is_of_names(&self) -> bool {
        matches!(self.kind, PatternKind::Name(_))
    }

    /// Whether a node of this name, and of this distinguished name in slash form if it has one, is one of those meant.
    ///
    /// # Security
    /// Both must have been proven, or be our own.
    pub fn matches_node(&self, name: &str, subject: Option<&str>) -> bool {
        match &self.kind {
            PatternKind::Name(pattern) => pattern.matches(name),
            PatternKind::Subject(pattern) => {
                subject.is_some_and(|subject| pattern.matches(&normal_form(subject)))
            }
            PatternKind::Attribute(_) => false,
        }
    }

    /// Whether it lets in somebody who has proven who they are, as a rule of a policy with this pattern would.
    ///
    /// # Security
    /// A name that the holder of an independent proxy chose lets nobody in; an attribute does.
    pub fn lets_in(&self, who: &VerifiedIdentity) -> bool {
        self.admits(&Facts::of(who))
    }

    /// Whether it lets somebody in. Whoever holds an independent proxy chose its name, which is therefore none to be let in by.
    pub(crate) fn admits(&self, facts: &Facts<'_>) -> bool {
        (self.is_of_attributes() || !facts.independent) && self.matches(facts)
    }

    pub(crate) fn matches(&self, facts: &Facts<'_>) -> bool {
        match &self.kind {
            PatternKind::Name(pattern) => pattern.matches(facts.name),
            PatternKind::Subject(pattern) => facts
                .subject
                .as_ref()
                .is_some_and(|subject| pattern.matches(subject.as_str())),
            PatternKind::Attribute(_) => {
                facts.fqans.iter().any(|fqan| self.matches_attribute(fqan))
            }
        }
    }

    /// Whether it keeps somebody out. A name also stands for every proxy of its owner: an independent one has a name of its
    /// own and must not be a way around. Who the owner is comes from the chain, not from how the proxy spells its name.
    pub(crate) fn bars(&self, facts: &Facts<'_>) -> bool {
        match &self.kind {
            PatternKind::Subject(pattern) => facts.barred_names().any(|name| pattern.matches(name)),
            _ => self.matches(facts),
        }
    }

    /// Whether it is a pattern of attributes and this is one of those meant. `fqan` is in the form that
    /// [`Fqan`](crate::Fqan) displays.
    pub fn matches_attribute(&self, fqan: &str) -> bool {
        matches!(&self.kind, PatternKind::Attribute(pattern) if pattern.matches(fqan))
    }

    /// Whether it means one name only, and which, in the form by which names are compared.
    pub(crate) fn only_subject(&self) -> Option<String> {
        match &self.kind {
            PatternKind::Subject(pattern) if !pattern.has_wildcard() => {
                Some(normal_form(&self.text))
            }
            _ => None,
        }
    }
}

/// By the bytes of what was written, which say all of a pattern.
impl Ord for IdentityPattern {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for IdentityPattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for IdentityPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// `/Role=...`, which has the form of a distinguished name and could never be meant as one.
fn starts_with_value(text: &str) -> bool {
    let first = text.trim_start_matches('/');
    [ROLE, CAPABILITY]
        .iter()
        .any(|mark| first.starts_with(mark))
}

/// `Role=NULL` and `Capability=NULL`, which old grid-mapfiles are full of, mean that there is none.
fn attribute_pattern(text: &str) -> Result<SlashPattern, PatternProblem> {
    let none = |part: &&str| *part != "Role=NULL" && *part != "Capability=NULL";
    let parts: Vec<&str> = text.split('/').skip(1).filter(none).collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(PatternProblem::EmptyPart);
    }
    for (index, part) in parts.iter().enumerate() {
        let value = [ROLE, CAPABILITY]
            .iter()
            .find_map(|mark| part.strip_prefix(mark));
        // Whose attributes they are must be said: nobody means all the organisations that will ever be trusted.
        if index == 0 && (part.contains('*') || value.is_some()) {
            return Err(PatternProblem::NoOrganisation);
        }
        let foreign = |character: &char| {
            !(character.is_ascii() && is_part_byte(*character as u8)) && *character != '*'
        };
        if let Some(character) = value.unwrap_or(part).chars().find(foreign) {
            return Err(PatternProblem::AttributeCharacter(character));
        }
    }
    SlashPattern::parse(&format!("/{}", parts.join("/")))
}

/// Parts between slashes, each with one `*` at most, and perhaps a `*` for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlashPattern {
    parts: Box<[Box<str>]>,
    and_below: bool,
}

impl SlashPattern {
    fn parse(text: &str) -> Result<Self, PatternProblem> {
        let (head, and_below) = match text.strip_suffix("/*") {
            Some(head) => (head, true),
            None => (text, false),
        };
        let parts: Box<[Box<str>]> = head.split('/').skip(1).map(Box::from).collect();
        if parts.is_empty() || parts.iter().any(|part| part.is_empty()) {
            return Err(PatternProblem::EmptyPart);
        }
        if parts.iter().any(|part| part.matches('*').count() > 1) {
            return Err(PatternProblem::SecondWildcardInPart);
        }
        Ok(Self { parts, and_below })
    }

    fn matches(&self, text: &str) -> bool {
        let mut parts = text.split('/').skip(1);
        let all = self
            .parts
            .iter()
            .all(|pattern| parts.next().is_some_and(|part| part_matches(pattern, part)));
        all && (self.and_below || parts.next().is_none())
    }

    fn has_wildcard(&self) -> bool {
        self.and_below || self.parts.iter().any(|part| part.contains('*'))
    }
}

fn part_matches(pattern: &str, part: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == part,
        Some((start, end)) => {
            part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(pattern: &str, name: &str) -> bool {
        IdentityPattern::parse(pattern)
            .unwrap()
            .matches_node("x", Some(name))
    }

    fn attribute(pattern: &str, fqan: &str) -> bool {
        let fqan: crate::voms::Fqan = fqan.parse().unwrap();
        IdentityPattern::parse(pattern)
            .unwrap()
            .matches_attribute(&fqan.to_string())
    }

    #[test]
    fn a_star_stays_inside_its_part() {
        for (pattern, name) in [
            ("/DC=org/CN=Alice", "/DC=org/CN=Alice"),
            ("/dc=ORG/cn=alice", "/DC=org/CN=Alice"),
            ("/DC=org/CN=*", "/DC=org/CN=Alice Smith"),
            (
                "/DC=org/CN=host/*.example.org",
                "/DC=org/CN=host/a.b.example.org",
            ),
            ("/DC=org/*", "/DC=org/OU=people/CN=Alice"),
            ("/DC=org/*", "/DC=org"),
            (
                "/O=x/Email=*@example.org",
                "/O=x/emailAddress=a@example.org",
            ),
            ("/CN=J\u{fc}rgen", "/CN=J\\xC3\\xBCrgen"),
        ] {
            assert!(subject(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("/DC=org/CN=Alice", "/DC=org/CN=Alice/CN=proxy"),
            ("/DC=org/CN=*", "/DC=org/CN=host/evil"),
            ("/DC=org/CN=*", "/DC=org/OU=x/CN=a"),
            ("/DC=org/*", "/DC=organic/CN=a"),
            ("/DC=org/CN=a*a", "/DC=org/CN=a"),
            ("/DC=org/CN=Alice", "/CN=Alice"),
        ] {
            assert!(!subject(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn attributes_match_part_by_part() {
        for (pattern, fqan) in [
            ("/vo", "/vo/Role=NULL/Capability=NULL"),
            ("/vo/Role=NULL/Capability=NULL", "/vo"),
            ("/vo/Role=production", "/vo/Role=production/Capability=NULL"),
            ("/vo/Role=production/Capability=NULL", "/vo/Role=production"),
            ("/vo/Role=production/*", "/vo/Role=production"),
            ("/vo/Role=*", "/vo/Role=production"),
            ("/vo/*", "/vo/group/Role=x"),
            ("/vo/*", "/vo"),
            ("/vo/*/Role=x", "/vo/group/Role=x"),
        ] {
            assert!(attribute(pattern, fqan), "{pattern} {fqan}");
        }
        for (pattern, fqan) in [
            ("/vo", "/vo/Role=production"),
            ("/vo", "/vo/group"),
            ("/vo", "/vo2"),
            ("/VO", "/vo"),
            ("/vo/Role=*", "/vo"),
            ("/vo/Role=production", "/vo/group/Role=production"),
            ("/vo/*", "/vo2/Role=x"),
        ] {
            assert!(!attribute(pattern, fqan), "{pattern} {fqan}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let long = format!("/CN={}", "a".repeat(PATTERN_BYTES_MAX));
        for (pattern, problem) in [
            ("/", PatternProblem::EmptyPart),
            ("//CN=a", PatternProblem::EmptyPart),
            ("/vo//x", PatternProblem::EmptyPart),
            ("/DC=org/CN=a/", PatternProblem::EmptyPart),
            ("/*", PatternProblem::NoOrganisation),
            ("/*/Role=production", PatternProblem::NoOrganisation),
            ("/Role=production", PatternProblem::NoOrganisation),
            ("/vo/Role=a*b*", PatternProblem::SecondWildcardInPart),
            ("/DC=org/CN=**", PatternProblem::SecondWildcardInPart),
            (
                "/vo/gr\u{fc}n",
                PatternProblem::AttributeCharacter('\u{fc}'),
            ),
            ("/vo/a b", PatternProblem::AttributeCharacter(' ')),
            (&long, PatternProblem::PathTooLong),
        ] {
            assert_eq!(IdentityPattern::parse(pattern), Err(problem), "{pattern}");
        }
    }
}
