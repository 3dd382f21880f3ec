//! Who may do business with us: the `[allow]` and `[deny]` tables.

use std::fmt;

use exoskel_identity::{Identity, Role};

use super::pattern::NamePattern;

/// Name patterns by role, for those who are let in or kept out.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleLists {
    /// In the order of [`Role::ALL`]. Nothing: the file has no such list.
    lists: [Option<Vec<NamePattern>>; Role::ALL.len()],
}

impl RoleLists {
    pub(crate) fn set(&mut self, role: Role, patterns: Vec<NamePattern>) {
        self.lists[position(role)] = Some(patterns);
    }

    fn of(&self, role: Role) -> Option<&[NamePattern]> {
        self.lists[position(role)].as_deref()
    }
}

fn position(role: Role) -> usize {
    match role {
        Role::Manager => 0,
        Role::Worker => 1,
        Role::Gateway => 2,
        Role::Agent => 3,
    }
}

/// The plural by which a role's list goes in the file.
pub(crate) const fn list_name(role: Role) -> &'static str {
    match role {
        Role::Manager => "managers",
        Role::Worker => "workers",
        Role::Gateway => "gateways",
        Role::Agent => "agents",
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
pub(crate) fn admission(allow: &RoleLists, deny: &RoleLists, peer: &Identity) -> Admission {
    let role = peer.role;
    let matching = |patterns: &[NamePattern]| {
        patterns
            .iter()
            .find(|pattern| pattern.matches(&peer.name))
            .map(ToString::to_string)
    };
    if let Some(pattern) = deny.of(role).and_then(matching) {
        return Admission::Deny { pattern, role };
    }
    match allow.of(role) {
        None => Admission::Allow {
            pattern: None,
            role,
        },
        Some(patterns) => match matching(patterns) {
            Some(pattern) => Admission::Allow {
                pattern: Some(pattern),
                role,
            },
            None => Admission::NotListed { role },
        },
    }
}
