//! Rules about named actions: `[[allow.rule]]` and `[[deny.rule]]`.

use std::fmt;

use super::facts::Facts;
use super::pattern::IdentityPattern;

/// The word for everybody.
pub(crate) const EVERYBODY: &str = "*";

/// Where somebody wrote down what decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// The policy file.
    Policy {
        /// The line, from 1.
        line: usize,
    },
    /// The ban list.
    BanList {
        /// The line, from 1.
        line: usize,
    },
    /// The grid-mapfile.
    GridMapfile {
        /// The line, from 1.
        line: usize,
    },
}

impl RuleSource {
    /// The line, from 1.
    pub fn line(self) -> usize {
        match self {
            Self::Policy { line } | Self::BanList { line } | Self::GridMapfile { line } => line,
        }
    }
}

impl fmt::Display for RuleSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { line } => write!(formatter, "line {line} of the policy"),
            Self::BanList { line } => write!(formatter, "line {line} of the ban list"),
            Self::GridMapfile { line } => write!(formatter, "line {line} of the grid-mapfile"),
        }
    }
}

/// Which actions a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Actions {
    Any,
    These(Vec<String>),
}

impl Actions {
    fn holds(&self, action: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(actions) => actions.iter().any(|one| one == action),
        }
    }
}

/// One rule: whoever meets all its conditions. A condition of several patterns is met by one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) line: usize,
    pub(crate) actions: Actions,
    pub(crate) names: Option<Vec<IdentityPattern>>,
    pub(crate) subjects: Option<Vec<IdentityPattern>>,
    pub(crate) vos: Option<Vec<String>>,
    pub(crate) fqans: Option<Vec<IdentityPattern>>,
    pub(crate) limited: Option<bool>,
    pub(crate) independent: Option<bool>,
}

impl Rule {
    pub(crate) fn is_about(&self, action: &str) -> bool {
        self.actions.holds(action)
    }

    pub(crate) fn named_actions(&self) -> impl Iterator<Item = &str> {
        let named: &[String] = match &self.actions {
            Actions::Any => &[],
            Actions::These(actions) => actions,
        };
        named.iter().map(String::as_str)
    }

    /// Whether it is about everybody, whatever they show.
    pub(crate) fn is_about_everybody(&self) -> bool {
        let everybody = |patterns: &Vec<IdentityPattern>| {
            patterns
                .iter()
                .any(|pattern| pattern.to_string() == EVERYBODY)
        };
        self.subjects.as_ref().is_none_or(everybody)
            && self.vos.is_none()
            && self.fqans.is_none()
            && self.limited.is_none()
            && self.independent.is_none()
    }

    /// Whether it says the same as another, wherever both stand.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        let moved = Self {
            line: other.line,
            ..self.clone()
        };
        moved == *other
    }

    /// Its patterns of distinguished names and attributes.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &IdentityPattern> {
        let subjects = self.subjects.iter().flatten();
        subjects.chain(self.fqans.iter().flatten())
    }

    /// The virtual organisations that it names.
    pub(crate) fn organisations(&self) -> impl Iterator<Item = &str> {
        self.vos.iter().flatten().map(String::as_str)
    }

    /// Whether it lets somebody in.
    pub(crate) fn allows(&self, facts: &Facts<'_>) -> bool {
        self.unmet(facts, self.lets_in()).is_empty()
    }

    /// How its patterns let somebody in: names that the holder of an independent proxy chose count only where the rule says that
    /// it is about such proxies.
    fn lets_in(&self) -> fn(&IdentityPattern, &Facts<'_>) -> bool {
        if self.independent == Some(true) {
            IdentityPattern::matches
        } else {
            IdentityPattern::admits
        }
    }

    /// Whether it keeps somebody out, a proxy with a name of its own included.
    pub(crate) fn denies(&self, facts: &Facts<'_>) -> bool {
        self.unmet(facts, IdentityPattern::bars).is_empty()
    }

    /// What somebody whom it does not let in lacks, in the words of the file.
    pub(crate) fn lacking(&self, facts: &Facts<'_>) -> String {
        let unmet = self.unmet(facts, self.lets_in());
        unmet
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" and ")
    }

    fn unmet(
        &self,
        facts: &Facts<'_>,
        is_meant: impl Fn(&IdentityPattern, &Facts<'_>) -> bool,
    ) -> Vec<Condition<'_>> {
        let met = |patterns: &Vec<IdentityPattern>| patterns.iter().any(|one| is_meant(one, facts));
        let member = |vos: &Vec<String>| vos.iter().any(|vo| facts.vos.contains(&vo.as_str()));
        // A person's distinguished name is none of these, whatever its pattern: `*` is every name of a private authority.
        let is_named =
            |patterns: &Vec<IdentityPattern>| !facts.name.starts_with('/') && met(patterns);
        let name = self.names.as_ref().filter(|patterns| !is_named(patterns));
        let subject = self.subjects.as_ref().filter(|patterns| !met(patterns));
        let vo = self.vos.as_ref().filter(|vos| !member(vos));
        let fqan = self.fqans.as_ref().filter(|patterns| !met(patterns));
        let limited = self.limited.filter(|limited| *limited != facts.limited);
        let independent = self
            .independent
            .filter(|independent| *independent != facts.independent);
        let named = |patterns| match facts.independent {
            true => Condition::ProvenSubject(patterns),
            false => Condition::Subject(patterns),
        };
        let conditions = [
            name.map(|patterns| Condition::Name(patterns)),
            subject.map(|patterns| named(patterns)),
            vo.map(|vos| Condition::Vo(vos)),
            fqan.map(|patterns| Condition::Fqan(patterns)),
            limited.map(Condition::Limited),
            independent.map(Condition::Independent),
        ];
        conditions.into_iter().flatten().collect()
    }
}

/// What it is about, and for whom, in the words of the file.
impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.actions {
            Actions::Any => formatter.write_str("any action")?,
            Actions::These(actions) => write!(formatter, "action {}", list(actions, ", "))?,
        }
        let conditions = [
            self.names.as_deref().map(Condition::Name),
            self.subjects.as_deref().map(Condition::Subject),
            self.vos.as_deref().map(Condition::Vo),
            self.fqans.as_deref().map(Condition::Fqan),
            self.limited.map(Condition::Limited),
            self.independent.map(Condition::Independent),
        ];
        for (index, condition) in conditions.into_iter().flatten().enumerate() {
            let between = if index == 0 { " for" } else { " and" };
            write!(formatter, "{between} {condition}")?;
        }
        Ok(())
    }
}

/// One condition of a rule.
enum Condition<'a> {
    Name(&'a [IdentityPattern]),
    Subject(&'a [IdentityPattern]),
    /// The same, asked of an independent proxy.
    ProvenSubject(&'a [IdentityPattern]),
    Vo(&'a [String]),
    Fqan(&'a [IdentityPattern]),
    Limited(bool),
    Independent(bool),
}

impl fmt::Display for Condition<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(patterns) => write!(formatter, "name {}", alternatives(patterns)),
            Self::Subject(patterns) => write!(formatter, "dn {}", alternatives(patterns)),
            Self::ProvenSubject(patterns) => write!(
                formatter,
                "dn {}, and not by a name that the holder of an independent proxy chose (unless it says independent = true)",
                alternatives(patterns)
            ),
            Self::Vo(vos) => write!(formatter, "vo {}", alternatives(vos)),
            Self::Fqan(patterns) => write!(formatter, "fqan {}", alternatives(patterns)),
            Self::Limited(false) => formatter.write_str("a proxy that is not limited"),
            Self::Limited(true) => formatter.write_str("a limited proxy"),
            Self::Independent(false) => formatter.write_str("a proxy that is not independent"),
            Self::Independent(true) => formatter.write_str("an independent proxy"),
        }
    }
}

/// Alternatives that a message lists.
const LISTED_MAX: usize = 4;

fn alternatives<T: fmt::Display>(entries: &[T]) -> String {
    list(entries, " or ")
}

fn list<T: fmt::Display>(entries: &[T], between: &str) -> String {
    let mut text: Vec<String> = entries
        .iter()
        .take(LISTED_MAX)
        .map(|entry| format!("\"{entry}\""))
        .collect();
    if entries.len() > LISTED_MAX {
        text.push(format!("{} others", entries.len() - LISTED_MAX));
    }
    text.join(between)
}
