//! `[discover]`: which workers a manager may dial because somebody on the network has said that they are there.
//!
//! What is heard is a hint, which everybody may send. So only names that stand here are dialled, and the certificate must prove the name.

use serde::Deserialize;
use toml::Spanned;

use super::error::{AuthorizationError, AuthorizationProblem};
use super::name_pattern::NamePattern;
use crate::policy_text::{LIST_ENTRIES_MAX, line_of};

/// `[discover]`, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscoverTable {
    workers: Spanned<Vec<Spanned<String>>>,
}

/// Names that may be dialled when they are heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiscoverRules {
    workers: Vec<NamePattern>,
}

impl DiscoverRules {
    pub(super) fn allow(&self, name: &str) -> bool {
        self.workers.iter().any(|pattern| pattern.matches(name))
    }
}

/// Checks the table, if there is one.
pub(super) fn build(
    table: Option<DiscoverTable>,
    text: &str,
) -> Result<Option<DiscoverRules>, AuthorizationError> {
    let Some(DiscoverTable { workers }) = table else {
        return Ok(None);
    };
    let entries = workers.get_ref();
    let at = |start, problem| AuthorizationError {
        line: Some(line_of(text, start)),
        problem,
    };
    if entries.is_empty() {
        let problem = AuthorizationProblem::EmptyList {
            key: "discover.workers",
        };
        return Err(at(workers.span().start, problem));
    }
    if entries.len() > LIST_ENTRIES_MAX {
        let problem = AuthorizationProblem::TooManyEntries {
            list: "discover.workers",
            count: entries.len(),
        };
        return Err(at(workers.span().start, problem));
    }
    let pattern = |entry: &Spanned<String>| {
        NamePattern::parse(entry.get_ref()).map_err(|problem| {
            let problem = AuthorizationProblem::Pattern {
                list: "[discover] workers".to_owned(),
                text: entry.get_ref().clone(),
                problem,
            };
            at(entry.span().start, problem)
        })
    };
    let workers = entries.iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(Some(DiscoverRules { workers }))
}

#[cfg(test)]
mod tests {
    use crate::authorization::Authorization;

    #[test]
    fn names_that_stand_there_may_be_dialled() {
        let text = "[discover]\nworkers = [\"*.lab.example.org\", \"ocean.example.org\"]\n";
        let rules = Authorization::parse(text).unwrap();
        assert_eq!(rules.discovers("n1.lab.example.org"), Some(true));
        assert_eq!(rules.discovers("OCEAN.example.org"), Some(true));
        assert_eq!(rules.discovers("lab.example.org"), Some(false));
        assert_eq!(
            rules.discovers("/DC=org/CN=n1.lab.example.org"),
            Some(false)
        );
        let without = Authorization::parse("[allow]\nworkers = [\"*\"]\n").unwrap();
        assert_eq!(without.discovers("n1.lab.example.org"), None);
    }

    #[test]
    fn what_can_not_be_meant_is_an_error_with_its_line() {
        for (entries, words) in [
            ("workers = []", "line 2: `discover.workers` is empty"),
            (
                "workers = [\n\"a[b\"]",
                "line 3: [discover] workers: pattern \"a[b\"",
            ),
            ("workers = [\"/vo/*\"]", "it holds '/'"),
            ("hosts = [\"a\"]", "unknown field `hosts`"),
            ("", "missing field `workers`"),
        ] {
            let text = format!("[discover]\n{entries}\n");
            let error = Authorization::parse(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{entries}: {error}");
        }
    }
}
