//! Whom a gateway connects with whom: `[[allow.tunnel]]` and `[[deny.tunnel]]`.

use super::bans::Bans;
use super::decision::Decision;
use super::facts::Facts;
use super::pattern::IdentityPattern;
use super::rule::RuleSource;

/// One rule: whoever is meant by `from` may be connected with a node that is meant by `to`, or may not.
#[derive(Clone, Debug)]
pub(crate) struct TunnelRule {
    pub(crate) line: usize,
    pub(crate) from: Vec<IdentityPattern>,
    pub(crate) to: Vec<IdentityPattern>,
}

impl TunnelRule {
    /// Whether it says the same as another, wherever both stand.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        self.from == other.from && self.to == other.to
    }

    /// Whether it is about the node to reach, by the name that the node will have to prove.
    fn leads_to(&self, node: &str) -> bool {
        let subject = node.starts_with('/').then_some(node);
        self.to
            .iter()
            .any(|pattern| pattern.matches_node(node, subject))
    }

    fn names_patterns(&self) -> String {
        let quoted = self.from.iter().map(|pattern| format!("\"{pattern}\""));
        quoted.collect::<Vec<_>>().join(" or ")
    }
}

/// Judges a tunnel. A ban wins over everything, a rule that denies over all that allow, and what nothing allows is refused.
pub(crate) fn decide(
    allow: &[TunnelRule],
    deny: &[TunnelRule],
    bans: &Bans,
    facts: &Facts<'_>,
    node: &str,
) -> Decision {
    let asked = format!("a tunnel to {node} asked by {facts}");
    let decided = |allowed, rule, is_ban, reason: String| Decision {
        allowed,
        rule,
        is_ban,
        reason: format!("{asked}: {reason}"),
    };
    if let Some((pattern, source)) = bans.about(facts) {
        let reason = format!("\"{pattern}\" is banned ({source})");
        return decided(false, Some(source), true, reason);
    }
    let mut denying = deny.iter().filter(|rule| rule.leads_to(node));
    if let Some(rule) = denying.find(|rule| rule.from.iter().any(|one| one.bars(facts))) {
        let source = RuleSource::Policy { line: rule.line };
        let reason = format!("denied by the rule at {source}");
        return decided(false, Some(source), false, reason);
    }
    let mut about = allow.iter().filter(|rule| rule.leads_to(node)).peekable();
    let Some(first) = about.peek().copied() else {
        let reason = "no [[allow.tunnel]] of the policy leads there".to_owned();
        return decided(false, None, false, reason);
    };
    match about.find(|rule| rule.from.iter().any(|one| one.admits(facts))) {
        Some(rule) => {
            let source = RuleSource::Policy { line: rule.line };
            let reason = format!("allowed by the rule at {source}");
            decided(true, Some(source), false, reason)
        }
        None => {
            let reason = format!(
                "no [[allow.tunnel]] of the policy fits: the one at line {} asks for {}",
                first.line,
                first.names_patterns()
            );
            decided(false, None, false, reason)
        }
    }
}
