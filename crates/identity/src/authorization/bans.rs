//! Who is kept out, whatever else lets them in.

use std::collections::{BTreeMap, HashMap};

use super::facts::Facts;
use super::pattern::IdentityPattern;
use super::rule::RuleSource;

/// Bans. A ban of a distinguished name holds for every proxy of its owner too, as [`IdentityPattern::bars`] says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bans {
    /// Whole names, by the form in which they are compared: sites ban thousands of them.
    subjects: HashMap<String, (IdentityPattern, RuleSource)>,
    patterns: Vec<(IdentityPattern, RuleSource)>,
}

impl Bans {
    pub(crate) fn add(&mut self, pattern: IdentityPattern, source: RuleSource) {
        match pattern.only_subject() {
            // The first of two that are the same is the one that people find.
            Some(subject) => {
                self.subjects.entry(subject).or_insert((pattern, source));
            }
            None => self.patterns.push((pattern, source)),
        }
    }

    pub(crate) fn forget_list(&mut self) {
        let from_policy = |source: &RuleSource| matches!(source, RuleSource::Policy { .. });
        self.subjects.retain(|_, (_, source)| from_policy(source));
        self.patterns.retain(|(_, source)| from_policy(source));
    }

    /// Each pattern, with where it stands.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = (RuleSource, &IdentityPattern)> {
        let all = self.subjects.values().chain(&self.patterns);
        all.map(|(pattern, source)| (*source, pattern))
    }

    /// Which bans are new and which are gone, a phrase for each.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let (now, then) = (self.entries(), before.entries());
        let new = now.iter().filter(|(name, _)| !then.contains_key(*name));
        let new = new.map(|(name, source)| format!("the ban of \"{name}\" ({source}) is new"));
        let gone = then.keys().filter(|name| !now.contains_key(*name));
        new.chain(gone.map(|name| format!("the ban of \"{name}\" is gone")))
            .collect()
    }

    fn entries(&self) -> BTreeMap<String, RuleSource> {
        let all = self.subjects.values().chain(&self.patterns);
        all.map(|(pattern, source)| (pattern.to_string(), *source))
            .collect()
    }

    /// The ban that is about this one.
    pub(crate) fn about(&self, facts: &Facts<'_>) -> Option<(&IdentityPattern, RuleSource)> {
        let whole = facts
            .barred_names()
            .find_map(|name| self.subjects.get(name));
        let ban = whole.or_else(|| {
            self.patterns
                .iter()
                .find(|(pattern, _)| pattern.bars(facts))
        });
        ban.map(|(pattern, source)| (pattern, *source))
    }
}
