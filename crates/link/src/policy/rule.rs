//! Rules: which protection a pair of domains gets, and how the one that decides is found.

use std::fmt;

use crate::{Protection, TrafficClass};

use super::domain::{DomainSet, Membership};
use super::verdict::{DecidedBy, ProtectionVerdict, Raise, RuleName};

/// Who may stand at one end of a rule's wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleEnd {
    /// Anybody, in a domain or not.
    Any,
    /// A member of one of these.
    Domains(DomainSet),
}

impl RuleEnd {
    fn fit(self, membership: &Membership) -> Fit {
        match self {
            Self::Any => Fit::Certain,
            Self::Domains(domains) if domains.intersects(membership.certain) => Fit::Certain,
            Self::Domains(domains) if domains.intersects(membership.possible) => Fit::Possible,
            Self::Domains(_) => Fit::Never,
        }
    }

    /// Whether everybody who fits `other` fits here.
    fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Domains(_), Self::Any) => false,
            (Self::Domains(ours), Self::Domains(others)) => ours.holds_all_of(others),
        }
    }

    pub(crate) fn names_host(self) -> bool {
        matches!(self, Self::Domains(domains) if domains.intersects(DomainSet::HOST))
    }

    /// Whether a wire inside the machine can stand here.
    pub(crate) fn admits_host(self) -> bool {
        self == Self::Any || self.names_host()
    }
}

/// How far a wire is one of a rule's. Greater is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// It is not.
    Never,
    /// It could be: the rule may make things stricter, never easier.
    Possible,
    /// It is.
    Certain,
}

/// A set of traffic classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes {
    pub(crate) control: bool,
    pub(crate) code: bool,
    pub(crate) data: bool,
}

impl Classes {
    pub(crate) const ALL: Self = Self {
        control: true,
        code: true,
        data: true,
    };

    pub(crate) fn contains(self, class: TrafficClass) -> bool {
        match class {
            TrafficClass::Control => self.control,
            TrafficClass::Code => self.code,
            TrafficClass::Data => self.data,
        }
    }

    fn covers(self, other: Self) -> bool {
        (self.control || !other.control) && (self.code || !other.code) && (self.data || !other.data)
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return formatter.write_str("any class");
        }
        let mut separator = "";
        for (word, there) in [
            ("control", self.control),
            ("code", self.code),
            ("data", self.data),
        ] {
            if there {
                write!(formatter, "{separator}{word}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: RuleName,
    pub(crate) from: RuleEnd,
    pub(crate) to: RuleEnd,
    pub(crate) classes: Classes,
    pub(crate) protection: Protection,
}

impl Rule {
    /// Comes after all rules of the file: what stays inside the machine needs no cipher.
    pub(crate) const BUILT_IN: Self = Self {
        name: RuleName::BuiltIn,
        from: RuleEnd::Domains(DomainSet::HOST),
        to: RuleEnd::Domains(DomainSet::HOST),
        classes: Classes::ALL,
        protection: Protection::Plain,
    };

    /// How far a wire between the two is one of this rule's. A wire has no direction (replies
    /// travel where their requests did), so both ways round count.
    pub(crate) fn fit(&self, one: &Membership, other: &Membership) -> Fit {
        let straight = self.from.fit(one).min(self.to.fit(other));
        let crossed = self.from.fit(other).min(self.to.fit(one));
        straight.max(crossed)
    }

    /// Whether this rule, standing first, leaves the other one nothing to decide.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let straight = self.from.covers(other.from) && self.to.covers(other.to);
        let crossed = self.from.covers(other.to) && self.to.covers(other.from);
        self.classes.covers(other.classes) && (straight || crossed)
    }
}

/// What nothing may go below. Only bulk data can be plain: whoever can alter code or control on a
/// wire owns both of its ends.
pub(crate) const fn floor(class: TrafficClass) -> Protection {
    match class {
        TrafficClass::Control | TrafficClass::Code => Protection::Integrity,
        TrafficClass::Data => Protection::Plain,
    }
}

/// Finds the protection of a wire between the two.
///
/// The first rule that certainly fits decides; none leaves `encrypted`. Rules before it that could
/// fit only raise. So taking certainty away from a wire, which is all that a peer's claims can do,
/// never lowers its protection.
pub(crate) fn decide(
    rules: &[Rule],
    one: &Membership,
    other: &Membership,
    class: TrafficClass,
) -> ProtectionVerdict {
    let mut strictest: Option<(Protection, RuleName)> = None;
    let mut decision = (Protection::Encrypted, DecidedBy::Default);
    for rule in rules.iter().filter(|rule| rule.classes.contains(class)) {
        match rule.fit(one, other) {
            Fit::Never => {}
            Fit::Possible => {
                if strictest.is_none_or(|(protection, _)| rule.protection > protection) {
                    strictest = Some((rule.protection, rule.name));
                }
            }
            Fit::Certain => {
                decision = (rule.protection, DecidedBy::Rule(rule.name));
                break;
            }
        }
    }
    let (protection, decided_by) = decision;
    let mut verdict = ProtectionVerdict {
        protection,
        said: protection,
        decided_by,
        raised_by: None,
    };
    if let Some((protection, name)) = strictest {
        verdict.raise(protection, Raise::Rule(name));
    }
    verdict.raise(floor(class), Raise::Minimum(class));
    verdict
}
