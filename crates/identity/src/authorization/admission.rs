//! Who may do business with us by role: the lists of `[allow]` and `[deny]`.

use std::fmt;

use super::bans::Bans;
use super::facts::Facts;
use super::pattern::IdentityPattern;
use super::rule::RuleSource;
use crate::claim::Role;

/// Patterns by role, for those who are let in or kept out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleLists {
    /// In the order of [`Role::ALL`]. Nothing: the file has no such list.
    lists: [Option<Vec<IdentityPattern>>; Role::ALL.len()],
}

impl RoleLists {
    pub(crate) fn set(&mut self, role: Role, patterns: Vec<IdentityPattern>) {
        self.lists[position(role)] = Some(patterns);
    }

    fn of(&self, role: Role) -> Option<&[IdentityPattern]> {
        self.lists[position(role)].as_deref()
    }
}

fn position(role: Role) -> usize {
    match role {
        Role::Manager => 0,
        Role::Worker => 1,
        Role::Gateway => 2,
        Role::Agent => 3,
        Role::Peer => 4,
    }
}

/// The plural by which a role's list goes in the file.
pub(crate) const fn list_name(role: Role) -> &'static str {
    match role {
        Role::Manager => "managers",
        Role::Worker => "workers",
        Role::Gateway => "gateways",
        Role::Agent => "agents",
        Role::Peer => "peers",
    }
}

/// Whether a peer may do business with us, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Allow {
        /// The pattern that lets it in; nothing, when the file has no list for its role.
        pattern: Option<String>,
        /// Its role.
        role: Role,
    },
    /// It may not: a pattern of `[deny]` matches.
    Deny {
        /// The pattern.
        pattern: String,
        /// Its role.
        role: Role,
    },
    /// It may not: it is banned.
    Banned {
        /// The pattern.
        pattern: String,
        /// Where it stands.
        source: RuleSource,
    },
    /// It may not: it is an independent proxy, whose holder chose its name, and none of the list's attributes is its.
    Independent {
        /// Its role.
        role: Role,
    },
    /// It may not: a manager has its work done, which is what a limited proxy is not for.
    Limited,
    /// It may not: `[allow]` has no list for its role, and an authority of the grid vouches for it, which vouches for
    /// everybody.
    NoList {
        /// Its role.
        role: Role,
    },
    /// It may not: `[allow]` has a list for its role, and nothing there matches.
    NotListed {
        /// Its role.
        role: Role,
    },
}

impl Admission {
    /// Whether the peer may do business with us.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow {
                pattern: Some(pattern),
                role,
            } => {
                write!(
                    formatter,
                    "allowed by \"{pattern}\" in [allow] {}",
                    list_name(*role)
                )
            }
            Self::Allow {
                pattern: None,
                role,
            } => {
                write!(
                    formatter,
                    "allowed, as [allow] has no list of {}",
                    list_name(*role)
                )
            }
            Self::Deny { pattern, role } => {
                write!(
                    formatter,
                    "refused by \"{pattern}\" in [deny] {}",
                    list_name(*role)
                )
            }
            Self::Banned { pattern, source } => {
                write!(formatter, "refused, as \"{pattern}\" is banned ({source})")
            }
            Self::Limited => formatter.write_str(
                "refused, as its proxy is a limited one, with which no jobs are started: make a full one",
            ),
            Self::NoList { role } => {
                write!(
                    formatter,
                    "refused, as [allow] has no list of {}, and the authorities of a grid know everybody: \
                     list its name or an attribute there",
                    list_name(*role)
                )
            }
            Self::Independent { role } => {
                write!(
                    formatter,
                    "refused, as its holder chose the name of its independent proxy, and [allow] {} has no attribute for it",
                    list_name(*role)
                )
            }
            Self::NotListed { role } => {
                write!(
                    formatter,
                    "refused, as [allow] {} has no pattern for it",
                    list_name(*role)
                )
            }
        }
    }
}

/// Judges a peer. What is denied stays denied, whatever else allows it.
pub(crate) fn admission(
    allow: &RoleLists,
    deny: &RoleLists,
    bans: &Bans,
    facts: &Facts<'_>,
    chosen: bool,
) -> Admission {
    let role = facts.role;
    if let Some((pattern, source)) = bans.about(facts) {
        let pattern = pattern.to_string();
        return Admission::Banned { pattern, source };
    }
    let denied = deny.of(role).unwrap_or_default();
    if let Some(pattern) = denied.iter().find(|pattern| pattern.bars(facts)) {
        let pattern = pattern.to_string();
        return Admission::Deny { pattern, role };
    }
    if facts.limited && role == Role::Manager {
        return Admission::Limited;
    }
    match allow.of(role) {
        None if facts.is_of_grid && !chosen => Admission::NoList { role },
        None => Admission::Allow {
            pattern: None,
            role,
        },
        Some(patterns) => match patterns.iter().find(|pattern| pattern.admits(facts)) {
            Some(pattern) => Admission::Allow {
                pattern: Some(pattern.to_string()),
                role,
            },
            None if facts.independent => Admission::Independent { role },
            None => Admission::NotListed { role },
        },
    }
}
