//! Patterns of endpoints' names: `flux.*`, `*`.

use std::fmt;

use crate::control::NAME_BYTES_MAX;

/// A pattern that names of endpoints are held against.
///
/// Names and patterns are compared label by label, between dots; capitals count, as they do in the names of endpoints. A label of a
/// pattern may hold one `*`, which stands for any characters of that label, never for a dot. The pattern `*` alone is every name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointPattern(Box<str>);

/// What is wrong with a pattern of endpoints' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointProblem {
    /// Nothing between the quotation marks.
    #[error("it is empty; every endpoint is `*`")]
    Empty,
    /// No name is that long.
    #[error(
        "it is longer than {NAME_BYTES_MAX} bytes, the most that the name of an endpoint can have"
    )]
    TooLong,
    /// `.flux`, `flux..heat`
    #[error(
        "it has an empty label: a pattern has no dot at its start or end and no two in a row; \
         every endpoint below `flux` is `flux.*`"
    )]
    EmptyLabel,
    /// `a*b*c`
    #[error("it has two `*` between two dots, expected one at most")]
    SecondWildcard,
    /// The wildcards of other tools, and what no name holds.
    #[error("it holds {0:?}: `*` is the only wildcard")]
    Character(char),
}

impl EndpointPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, EndpointProblem> {
        if text.is_empty() {
            return Err(EndpointProblem::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(EndpointProblem::TooLong);
        }
        let foreign = |character: &char| character.is_control() || "?[]{}".contains(*character);
        if let Some(character) = text.chars().find(foreign) {
            return Err(EndpointProblem::Character(character));
        }
        for label in text.split('.') {
            if label.is_empty() {
                return Err(EndpointProblem::EmptyLabel);
            }
            if label.matches('*').count() > 1 {
                return Err(EndpointProblem::SecondWildcard);
            }
        }
        Ok(Self(text.into()))
    }

    /// Whether the endpoint of this name is one of those meant.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.is_every_name() || self.labels_fit(name, label_matches)
    }

    /// Whether every name that the other one means is meant here.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.is_every_name() || (!other.is_every_name() && self.labels_fit(&other.0, label_covers))
    }

    fn is_every_name(&self) -> bool {
        &*self.0 == "*"
    }

    /// Whether both have as many labels, and each of ours fits the one in its place.
    fn labels_fit(&self, other: &str, fits: fn(&str, &str) -> bool) -> bool {
        let mut others = other.split('.');
        let all = self
            .0
            .split('.')
            .all(|label| others.next().is_some_and(|other| fits(label, other)));
        all && others.next().is_none()
    }
}

impl fmt::Display for EndpointPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn label_matches(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        // An empty label is no label: `flux.*` must not mean `flux.`.
        Some((start, end)) => {
            !label.is_empty()
                && label.len() >= start.len() + end.len()
                && label.starts_with(start)
                && label.ends_with(end)
        }
    }
}

fn label_covers(pattern: &str, other: &str) -> bool {
    match (pattern.split_once('*'), other.split_once('*')) {
        (_, None) => label_matches(pattern, other),
        (None, Some(_)) => false,
        (Some((start, end)), Some((other_start, other_end))) => {
            other_start.starts_with(start) && other_end.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> EndpointPattern {
        EndpointPattern::parse(text).unwrap()
    }

    #[test]
    fn a_star_stays_inside_its_label() {
        for (text, name) in [
            ("coupler", "coupler"),
            ("flux.*", "flux.heat"),
            ("flux.h*t", "flux.heat"),
            ("*.heat", "flux.heat"),
            ("*", "flux.heat.north"),
            ("*", ""),
        ] {
            assert!(pattern(text).matches(name), "{text} {name}");
        }
        for (text, name) in [
            ("coupler", "Coupler"),
            ("flux.*", "flux"),
            ("flux.*", "flux."),
            ("flux.*", "flux.heat.north"),
            ("flux.*", "fluxes.heat"),
            ("flux.hh*", "flux.h"),
            ("flux.ab*ba", "flux.aba"),
        ] {
            assert!(!pattern(text).matches(name), "{text} {name}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for (text, problem) in [
            ("", EndpointProblem::Empty),
            (".flux", EndpointProblem::EmptyLabel),
            ("flux.", EndpointProblem::EmptyLabel),
            ("flux..heat", EndpointProblem::EmptyLabel),
            ("**", EndpointProblem::SecondWildcard),
            ("flux.[ab]", EndpointProblem::Character('[')),
            ("flux.?", EndpointProblem::Character('?')),
            ("flux\n", EndpointProblem::Character('\n')),
            (&long, EndpointProblem::TooLong),
        ] {
            assert_eq!(EndpointPattern::parse(text), Err(problem), "{text:?}");
        }
    }

    proptest! {
        /// A rule is refused as unreachable when an earlier pattern covers its own, so that must mean all of its names.
        #[test]
        fn who_covers_another_means_all_its_names(
            one in "[ab*.]{1,6}", other in "[ab*.]{1,6}", name in "[ab.]{0,8}",
        ) {
            let (Ok(one), Ok(other)) = (EndpointPattern::parse(&one), EndpointPattern::parse(&other)) else {
                return Ok(());
            };
            prop_assert!(one.covers(&one));
            if one.covers(&other) && other.matches(&name) {
                prop_assert!(one.matches(&name), "{one} {other} {name}");
            }
        }
    }
}
