//! Which local account somebody works under.

use std::collections::{BTreeMap, HashMap};

use super::facts::Facts;
use super::pattern::IdentityPattern;
use super::rule::RuleSource;

/// Accounts by distinguished names and attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountMap {
    /// Whole names, by the form in which they are compared.
    subjects: HashMap<String, MappedAccount>,
    /// The others, in the order in which they were written.
    patterns: Vec<MappedAccount>,
}

/// One entry.
#[derive(Clone, Debug)]
struct MappedAccount {
    pattern: IdentityPattern,
    account: String,
    source: RuleSource,
}

impl AccountMap {
    /// Whose account is another one than `before`, a phrase for each.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        let (now, then) = (self.entries(), before.entries());
        for (name, account) in &now {
            match then.get(name) {
                Some(old) if old == account => {}
                Some(_) => changes.push(format!("\"{name}\" has another account")),
                None => changes.push(format!("\"{name}\" is new")),
            }
        }
        let gone = then.keys().filter(|name| !now.contains_key(*name));
        changes.extend(gone.map(|name| format!("\"{name}\" is gone")));
        let order = |map: &Self| -> Vec<String> {
            let patterns = map.patterns.iter().map(|one| one.pattern.to_string());
            patterns.collect()
        };
        if changes.is_empty() && order(self) != order(before) {
            changes.push("the order of its patterns has changed".to_owned());
        }
        changes
    }

    /// Each pattern, with where it stands.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (RuleSource, &IdentityPattern)> {
        let all = self.subjects.values().chain(&self.patterns);
        all.map(|one| (one.source, &one.pattern))
    }

    /// Each name and pattern as it is written, with the account that counts.
    fn entries(&self) -> BTreeMap<String, &str> {
        let patterns = self.patterns.iter().rev();
        let patterns = patterns.map(|one| (one.pattern.to_string(), one.account.as_str()));
        let subjects = self.subjects.iter();
        patterns
            .chain(subjects.map(|(subject, one)| (subject.clone(), one.account.as_str())))
            .collect()
    }

    /// Adds an entry. Of two for one name, the first counts.
    pub(crate) fn add(&mut self, pattern: IdentityPattern, account: String, source: RuleSource) {
        let subject = pattern.only_subject();
        let mapped = MappedAccount {
            pattern,
            account,
            source,
        };
        match subject {
            Some(subject) => {
                self.subjects.entry(subject).or_insert(mapped);
            }
            None => self.patterns.push(mapped),
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
                    .find(|one| one.pattern.matches_attribute(fqan))
            })
        };
        let by_pattern = || {
            self.patterns
                .iter()
                .find(|one| one.pattern.is_of_subjects() && one.pattern.admits(facts))
        };
        whole
            .or_else(|| by_attribute().or_else(by_pattern))
            .map(|one| one.account.as_str())
    }
}
