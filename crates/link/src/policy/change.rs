//! What a policy says otherwise than the one before it.

use super::Policy;
use super::rule::Rule;

impl Policy {
    /// What this policy says otherwise than `before`, a phrase for each: domains by their names, rules by their lines, and what
    /// [`Authorization::changes_since`](exoskel_identity::Authorization::changes_since) tells.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for domain in &self.domains {
            let name = &domain.name;
            match before.domains.iter().find(|other| other.name == *name) {
                None => changes.push(format!("the domain `{name}` is new")),
                Some(other) if other != domain => {
                    changes.push(format!("the domain `{name}` has changed"));
                }
                Some(_) => {}
            }
        }
        let mut gone = before.domains.iter();
        gone.by_ref()
            .filter(|domain| !self.domains.iter().any(|other| other.name == domain.name))
            .for_each(|domain| changes.push(format!("the domain `{}` is gone", domain.name)));
        let is_in = |rules: &[Rule], rule: &Rule| {
            let mut rules = rules.iter();
            rules.any(|other| rule.says_the_same_as(other))
        };
        let new = self.rules.iter().filter(|rule| !is_in(&before.rules, rule));
        changes.extend(new.map(|rule| format!("{} is new", rule.name)));
        let gone = before.rules.iter().filter(|rule| !is_in(&self.rules, rule));
        changes.extend(gone.map(|rule| format!("what was {} is gone", rule.name)));
        changes.extend(self.authorization.changes_since(&before.authorization));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: &str = "[domain.lab]\naddresses = [\"10.0.0.0/8\"]\nnames = [\"*.lab\"]\n\n";
    const PLAIN: &str = "[[rule]]\nfrom = \"lab\"\nto = \"lab\"\nprotection = \"plain\"\n";

    #[test]
    fn changes_are_told_by_domain_and_by_line() {
        let policy = |text: &str| Policy::parse(text, 1).unwrap();
        let before = policy(&format!("{LAB}{PLAIN}"));
        assert_eq!(before.changes_since(&before), [""; 0]);
        let moved = policy(&format!("\n\n{LAB}{PLAIN}"));
        assert_eq!(moved.changes_since(&before), [""; 0]);
        let stricter = policy(&format!("{LAB}{}", PLAIN.replace("plain", "encrypted")));
        assert_eq!(
            stricter.changes_since(&before),
            ["rule 1 (line 5) is new", "what was rule 1 (line 5) is gone"]
        );
        let wider = policy(&format!(
            "{}{PLAIN}",
            LAB.replace("10.0.0.0/8", "10.0.0.0/8\", \"192.168.0.0/16")
        ));
        assert_eq!(
            wider.changes_since(&before),
            ["the domain `lab` has changed"]
        );
        let none = policy("[[allow.rule]]\naction = \"coupler.surface\"\nname = \"*.lab\"\n");
        assert_eq!(
            none.changes_since(&before),
            [
                "the domain `lab` is gone",
                "what was rule 1 (line 5) is gone",
                "the [[allow.rule]] at line 1 is new: action \"coupler.surface\" for name \"*.lab\""
            ]
        );
    }
}
