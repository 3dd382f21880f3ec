//! What a configuration says, together with its policy, that may not be meant.

use exoskel_trust::{Rules, Trust};

use super::Configuration;
use crate::admission::CONNECT;
use crate::front::METHODS;
use crate::rule_notes::{is_slip, names_that_nobody_has};

impl Configuration {
    /// What the policy says that may not be meant.
    pub(super) fn notes_on_rules(&self, rules: &Rules, trust: &Trust) -> Vec<String> {
        let Some(policy) = &self.policy else {
            return Vec::new();
        };
        let asked = |word: &str| {
            let by_path = self.rules.paths.actions().map(|(_, action)| action);
            by_path
                .chain([CONNECT])
                .find(|one| word == *one || is_slip(word, one))
        };
        let current = rules.current();
        let slips = current.actions_by_line().filter_map(|(line, action)| {
            let meant = asked(action).filter(|meant| *meant != action)?;
            Some(format!(
                "{}, line {line}: the action {action:?} is asked for nowhere in this configuration: is {meant:?} meant?",
                policy.display()
            ))
        });
        slips.chain(names_that_nobody_has(rules, trust)).collect()
    }

    /// What the path rules say that may not be meant.
    pub(super) fn notes_on_paths(&self) -> Vec<String> {
        let file = self.rules.file.as_ref();
        let file = file.map_or_else(String::new, |file| format!("{}, ", file.display()));
        let unknown = self.rules.paths.unknown_methods();
        let unknown = unknown.map(|(line, method)| {
            let meant = METHODS.iter().find(|one| is_slip(method, one));
            let meant = meant.map_or_else(String::new, |meant| format!(": is {meant:?} meant?"));
            format!("{file}line {line}: the method {method:?} is none of HTTP's{meant}")
        });
        let hidden = self.rules.paths.hidden_in_part();
        let hidden = hidden.map(|(line, hidden)| format!("{file}line {line}: {hidden}"));
        unknown.chain(hidden).collect()
    }
}
