//! What a policy says otherwise than the one before it.

use exoskel_identity::authorization::RuleChanges;

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
        let (then, now) = (&before.rules, &self.rules);
        let about = Rule::is_about_the_same_as;
        let rules = RuleChanges::between(then, now, Rule::says_the_same_as, about);
        let changed = rules.changed.iter().map(|(rule, old)| {
            let (name, now, then) = (rule.name, rule.protection, old.protection);
            match rule.is_about_the_same_as(old) {
                true => format!("{name} has changed: {now}, it was {then}"),
                false => format!("{name} has changed: it is about other wires or links"),
            }
        });
        changes.extend(changed);
        let new = rules.new.iter();
        changes.extend(new.map(|rule| format!("{} is new", rule.name)));
        let gone = rules.gone.iter();
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
            ["rule 1 (line 5) has changed: encrypted, it was plain"]
        );
        // A rule before it is new, and the changed one is still the same one.
        let first = "[[rule]]\nfrom = \"lab\"\nto = \"lab\"\nendpoint = \"flux.*\"\nprotection = \"integrity\"\n";
        let both = policy(&format!(
            "{LAB}{first}{}",
            PLAIN.replace("plain", "encrypted")
        ));
        assert_eq!(
            both.changes_since(&before),
            [
                "rule 2 (line 10) has changed: encrypted, it was plain",
                "rule 1 (line 5) is new"
            ]
        );
        let elsewhere = policy(&format!("{LAB}{first}"));
        assert_eq!(
            elsewhere.changes_since(&before),
            ["rule 1 (line 5) has changed: it is about other wires or links"]
        );
        let rule = |name: &str| {
            policy(&format!(
                "[[allow.rule]]\naction = \"coupler.surface\"\nname = \"{name}\"\n"
            ))
        };
        assert_eq!(
            rule("*.lab").changes_since(&rule("a.lab")),
            [
                "the [[allow.rule]] at line 1 has changed: action \"coupler.surface\" for name \"*.lab\"; \
                 it was: action \"coupler.surface\" for name \"a.lab\""
            ]
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
