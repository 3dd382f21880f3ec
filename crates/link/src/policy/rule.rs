//! Rules: which protection a pair of domains gets, and how the one that decides is found.

use std::fmt;

use crate::{Protection, TrafficClass};

use super::domain::{DomainSet, Membership};
use super::endpoint::EndpointPattern;
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

    pub(crate) const DATA: Self = Self {
        control: false,
        code: false,
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

/// What a wire is asked about: a class, or one link of that class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyQuestion<'a> {
    pub(crate) class: TrafficClass,
    /// The endpoint of the link.
    pub(crate) endpoint: Option<&'a str>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) name: RuleName,
    pub(crate) from: RuleEnd,
    pub(crate) to: RuleEnd,
    pub(crate) classes: Classes,
    /// The endpoints whose links it is about; nothing: all of them, and each class as a whole.
    pub(crate) endpoints: Option<Vec<EndpointPattern>>,
    pub(crate) protection: Protection,
}

impl Rule {
    /// Comes after all rules of the file: what stays inside the machine needs no cipher.
    pub(crate) const BUILT_IN: Self = Self {
        name: RuleName::BuiltIn,
        from: RuleEnd::Domains(DomainSet::HOST),
        to: RuleEnd::Domains(DomainSet::HOST),
        classes: Classes::ALL,
        endpoints: None,
        protection: Protection::Plain,
    };

    /// Whether it says the same as another, wherever both stand.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        let moved = Self {
            name: other.name,
            ..self.clone()
        };
        moved == *other
    }

    /// Whether it is about the same traffic of the same wires as another.
    pub(crate) fn is_about_the_same_as(&self, other: &Self) -> bool {
        let same = Self {
            protection: other.protection,
            ..self.clone()
        };
        same.says_the_same_as(other)
    }

    /// Whether it says something of this traffic, on whatever wire.
    pub(crate) fn is_about(&self, question: PolicyQuestion<'_>) -> bool {
        self.classes.contains(question.class) && self.admits_endpoint(question.endpoint)
    }

    fn admits_endpoint(&self, endpoint: Option<&str>) -> bool {
        match (&self.endpoints, endpoint) {
            (None, _) => true,
            (Some(patterns), Some(name)) => patterns.iter().any(|pattern| pattern.matches(name)),
            (Some(_), None) => false,
        }
    }

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
        self.classes.covers(other.classes) && self.covers_endpoints(other) && (straight || crossed)
    }

    fn covers_endpoints(&self, other: &Self) -> bool {
        match (&self.endpoints, &other.endpoints) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(others)) => others
                .iter()
                .all(|other| ours.iter().any(|pattern| pattern.covers(other))),
        }
    }
}

/// What nothing may go below, and why. Only bulk data can be plain: whoever can alter code or control on a wire owns both of its
/// ends. Between hosts nobody reads what steers, either.
fn minimum(class: TrafficClass, one: &Membership, other: &Membership) -> (Protection, Raise) {
    let is_inside = [one, other]
        .iter()
        .all(|end| end.certain.intersects(DomainSet::HOST));
    match class {
        TrafficClass::Control if !is_inside => (Protection::Encrypted, Raise::ControlBetweenHosts),
        TrafficClass::Control | TrafficClass::Code => {
            (Protection::Integrity, Raise::Minimum(class))
        }
        TrafficClass::Data => (Protection::Plain, Raise::Minimum(class)),
    }
}

/// The least that a link of this class between the two can get, whatever its endpoint is called.
pub(crate) fn least(
    rules: &[Rule],
    one: &Membership,
    other: &Membership,
    class: TrafficClass,
) -> Protection {
    let whole = PolicyQuestion {
        class,
        endpoint: None,
    };
    let of_class = decide(rules, one, other, whole).protection;
    let of_endpoints = rules
        .iter()
        .filter(|rule| rule.endpoints.is_some() && rule.classes.contains(class))
        .filter(|rule| rule.fit(one, other) == Fit::Certain)
        .map(|rule| rule.protection);
    let (minimum, _) = minimum(class, one, other);
    of_endpoints.fold(of_class, Protection::min).max(minimum)
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
    question: PolicyQuestion<'_>,
) -> ProtectionVerdict {
    let mut strictest: Option<(Protection, RuleName)> = None;
    let mut decision = (Protection::Encrypted, DecidedBy::Default);
    for rule in rules.iter().filter(|rule| rule.is_about(question)) {
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
    let (minimum, reason) = minimum(question.class, one, other);
    verdict.raise(minimum, reason);
    verdict
}
