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
    /// The distinguished name; nothing for certificates of a private authority, in which it means nothing.
    pub(crate) subject: Option<SlashName>,
    /// The attributes, the primary one first, as they are displayed.
    pub(crate) fqans: Vec<String>,
    pub(crate) vos: Vec<&'a str>,
    pub(crate) limited: bool,
    /// For people: the attributes that came along and don't count.
    pub(crate) faults: &'a [AttributeFault],
}

impl<'a> Facts<'a> {
    pub(crate) fn of(who: &'a VerifiedIdentity) -> Self {
        Self {
            role: who.role(),
            name: who.name(),
            subject: who.grid_subject().and_then(SlashName::parse),
            fqans: who.fqans().map(ToString::to_string).collect(),
            vos: who.attributes().iter().map(VomsAttributes::vo).collect(),
            limited: who.proxy().is_some_and(|proxy| proxy.limited),
            faults: who.attribute_faults(),
        }
    }
}

/// Who asks, in a few words.
impl fmt::Display for Facts<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.name)?;
        if self.limited {
            formatter.write_str(" (limited proxy)")?;
        }
        match self.fqans.as_slice() {
            [] => formatter.write_str(" without attributes"),
            fqans => write!(formatter, " with {}", fqans.join(", ")),
        }
    }
}
