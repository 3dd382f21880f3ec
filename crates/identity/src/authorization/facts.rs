//! What rules look at.

use std::fmt;

use crate::claim::Role;
use crate::slash_name::SlashName;
use crate::verified::VerifiedIdentity;
use crate::voms::{AttributeFault, VomsAttributes};

/// What is proven about somebody, in the forms by which rules compare.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) role: Role,
    pub(crate) name: &'a str,
    /// What people call them: the distinguished name in a grid, which rules are written in, also of a host.
    pub(crate) asker: &'a str,
    /// The distinguished name; nothing for certificates of a private authority, in which it means nothing.
    pub(crate) subject: Option<SlashName>,
    /// Whose proxy an independent one is. What is denied to them is denied to it.
    pub(crate) owners: Vec<SlashName>,
    /// Whether an authority of a grid vouches for them, which it does for everybody. A host can have an empty subject.
    pub(crate) is_of_grid: bool,
    /// The attributes, the primary one first, as they are displayed.
    pub(crate) fqans: Vec<String>,
    pub(crate) vos: Vec<&'a str>,
    pub(crate) limited: bool,
    /// Whether its holder chose the subject, as that of an independent proxy. Then `name` and `subject` say what somebody is
    /// called, and never that they are let in.
    pub(crate) independent: bool,
    /// For people: the attributes that came along and don't count.
    pub(crate) faults: &'a [AttributeFault],
}

impl<'a> Facts<'a> {
    pub(crate) fn of(who: &'a VerifiedIdentity) -> Self {
        Self {
            role: who.role(),
            name: who.name(),
            asker: who
                .grid_subject()
                .filter(|subject| !subject.is_empty())
                .unwrap_or_else(|| who.name()),
            subject: who.grid_subject().and_then(SlashName::parse),
            owners: who
                .owners()
                .iter()
                .filter_map(|name| SlashName::parse(name))
                .collect(),
            is_of_grid: who.grid_subject().is_some(),
            fqans: who.fqans().map(ToString::to_string).collect(),
            vos: who.attributes().iter().map(VomsAttributes::vo).collect(),
            limited: who.proxy().is_some_and(|proxy| proxy.limited),
            independent: who.is_independent(),
            faults: who.attribute_faults(),
        }
    }
}

impl Facts<'_> {
    /// The names by which somebody can be kept out: their own and their owners'.
    pub(crate) fn barred_names(&self) -> impl Iterator<Item = &str> {
        self.subject
            .iter()
            .chain(&self.owners)
            .map(SlashName::as_str)
    }
}

/// Who asks, in a few words.
impl fmt::Display for Facts<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.asker)?;
        if self.limited {
            formatter.write_str(" (limited proxy)")?;
        }
        if self.independent {
            formatter.write_str(" (independent proxy)")?;
        }
        match self.fqans.as_slice() {
            [] => formatter.write_str(" without attributes"),
            fqans => write!(formatter, " with {}", fqans.join(", ")),
        }
    }
}
