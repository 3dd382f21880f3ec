//! Which local account somebody works under.

use std::collections::HashMap;

use super::facts::Facts;
use super::pattern::IdentityPattern;

/// Accounts by distinguished names and attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountMap {
    /// Whole names, by the form in which they are compared.
    subjects: HashMap<String, String>,
    /// The others, in the order in which they were written.
    patterns: Vec<(IdentityPattern, String)>,
}

impl AccountMap {
    /// Adds an entry. Of two for one name, the first counts.
    pub(crate) fn add(&mut self, pattern: IdentityPattern, account: String) {
        match pattern.only_subject() {
            Some(subject) => {
                self.subjects.entry(subject).or_insert(account);
            }
            None => self.patterns.push((pattern, account)),
        }
    }

    /// A whole name decides first. Then the attributes in their owner's order, who puts that first as whose holder they
    /// want to work; then patterns of names. An independent proxy has attributes only: its holder chose its name.
    pub(crate) fn account(&self, facts: &Facts<'_>) -> Option<&str> {
        let subject = facts.subject.as_ref().filter(|_| !facts.independent);
        let whole = subject.and_then(|subject| self.subjects.get(subject.as_str()));
        let by_attribute = || {
            facts.fqans.iter().find_map(|fqan| {
                self.patterns
                    .iter()
                    .find(|(pattern, _)| pattern.matches_attribute(fqan))
            })
        };
        let by_pattern = || {
            self.patterns
                .iter()
                .find(|(pattern, _)| pattern.is_of_subjects() && pattern.admits(facts))
        };
        whole
            .or_else(|| {
                by_attribute()
                    .or_else(by_pattern)
                    .map(|(_, account)| account)
            })
            .map(String::as_str)
    }
}
