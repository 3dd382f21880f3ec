//! Whether somebody may do something, and why, in words that a site's administrator can act on.

use std::fmt;

use super::facts::Facts;
use super::pattern::IdentityPattern;
use super::rule::{Rule, RuleSource};
use crate::peer_text::PeerText;

/// Whether somebody may do something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    /// Whether they may.
    pub allowed: bool,
    /// The rule or the ban that decides; nothing, when no rule is about them.
    pub rule: Option<RuleSource>,
    /// Whether it is a ban that decides.
    pub is_ban: bool,
    /// What was asked, and what decided or is missing.
    pub reason: String,
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

/// Rules that a refusal lists.
const LISTED_MAX: usize = 8;

impl Decision {
    pub(crate) fn banned(
        facts: &Facts<'_>,
        action: &str,
        pattern: &IdentityPattern,
        source: RuleSource,
    ) -> Self {
        Self {
            allowed: false,
            rule: Some(source),
            is_ban: true,
            reason: format!(
                "{}: \"{pattern}\" is banned ({source})",
                asked(facts, action)
            ),
        }
    }

    pub(crate) fn denied(facts: &Facts<'_>, action: &str, rule: &Rule) -> Self {
        let source = RuleSource::Policy { line: rule.line };
        Self {
            allowed: false,
            rule: Some(source),
            is_ban: false,
            reason: format!("{}: denied by the rule at {source}", asked(facts, action)),
        }
    }

    pub(crate) fn allowed(facts: &Facts<'_>, action: &str, rule: &Rule) -> Self {
        let source = RuleSource::Policy { line: rule.line };
        Self {
            allowed: true,
            rule: Some(source),
            is_ban: false,
            reason: format!("{}: allowed by the rule at {source}", asked(facts, action)),
        }
    }

    /// No rule lets them in: says what each would ask for.
    pub(crate) fn unmet(facts: &Facts<'_>, action: &str, rules: &[Rule]) -> Self {
        let about: Vec<&Rule> = rules.iter().filter(|rule| rule.is_about(action)).collect();
        let mut reasons: Vec<String> = about
            .iter()
            .take(LISTED_MAX)
            .map(|rule| {
                format!(
                    "the one at line {} asks for {}",
                    rule.line,
                    rule.lacking(facts)
                )
            })
            .collect();
        if about.len() > LISTED_MAX {
            reasons.push(format!(
                "{} others don't fit either",
                about.len() - LISTED_MAX
            ));
        }
        let rules = match reasons.as_slice() {
            [] => "no [[allow.rule]] of the policy is about this action".to_owned(),
            reasons => format!(
                "no [[allow.rule]] of the policy fits: {}",
                reasons.join("; ")
            ),
        };
        let faults: Vec<String> = facts.faults.iter().map(ToString::to_string).collect();
        let faults = match faults.as_slice() {
            [] => String::new(),
            faults => format!("; attributes that don't count: {}", faults.join("; ")),
        };
        Self {
            allowed: false,
            rule: None,
            is_ban: false,
            reason: format!("{}: {rules}{faults}", asked(facts, action)),
        }
    }
}

fn asked(facts: &Facts<'_>, action: &str) -> String {
    format!("action {} asked by {facts}", PeerText::new(action))
}
