//! Who may do what: the tables `[allow]`, `[deny]` and `[accounts]` of the one policy file, with a site's ban list and
//! grid-mapfile. `docs/policy.md` is the guide to the file.
//!
//! A ban wins over everything, a rule that denies over every rule that allows, and what nothing allows is refused.

mod account_map;
mod admission;
mod bans;
mod build;
mod decision;
mod error;
mod facts;
mod file;
mod name_pattern;
mod pattern;
mod rule;
mod site_lists;
#[cfg(test)]
mod tests;

use self::account_map::AccountMap;
use self::admission::RoleLists;
use self::bans::Bans;
use self::facts::Facts;
use self::rule::Rule;
use crate::verified::VerifiedIdentity;

pub use self::admission::Admission;
pub use self::decision::Decision;
pub use self::error::{AuthorizationError, AuthorizationProblem};
pub use self::file::{AccountsTable, AllowTable, AuthorizationTables, DenyTable};
pub use self::name_pattern::PatternProblem;
pub use self::pattern::IdentityPattern;
pub use self::rule::RuleSource;

/// Who may do what at one site.
#[derive(Clone, Debug, Default)]
pub struct Authorization {
    allowed_roles: RoleLists,
    denied_roles: RoleLists,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    bans: Bans,
    accounts: AccountMap,
    mapped_by_file: AccountMap,
    ban_list: Option<String>,
    grid_mapfile: Option<String>,
}

impl Authorization {
    /// Reads the tables of a policy file. Those about wires are left to `exoskel_link::policy`.
    ///
    /// # Errors
    /// [`AuthorizationError`] names the line and what to write instead. A file with an error is refused as a whole: half
    /// a policy would be a different one.
    pub fn parse(policy: &str) -> Result<Self, AuthorizationError> {
        build::build(file::read(policy)?, policy)
    }

    /// Takes tables that somebody has read as a part of the whole file, `policy`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn from_tables(
        tables: AuthorizationTables,
        policy: &str,
    ) -> Result<Self, AuthorizationError> {
        build::build(tables, policy)
    }

    /// These rules with a ban list in place of an earlier one: a distinguished name, an attribute, a host name, or a
    /// pattern of them a line.
    ///
    /// # Errors
    /// [`AuthorizationError`] when a line can't be read, or there is not a single byte, as in a file that is being written. Half a
    /// list would let somebody in: keep what you have, and say so.
    pub fn with_bans(&self, list: &str) -> Result<Self, AuthorizationError> {
        let mut changed = self.clone();
        changed.bans.forget_list();
        site_lists::read_bans(list, &mut changed.bans)?;
        Ok(changed)
    }

    /// These rules with a grid-mapfile in place of an earlier one. The policy's own map counts first.
    ///
    /// # Errors
    /// [`AuthorizationError`] when a line can't be read.
    pub fn with_grid_mapfile(&self, text: &str) -> Result<Self, AuthorizationError> {
        let mapped_by_file = site_lists::read_grid_mapfile(text)?;
        Ok(Self {
            mapped_by_file,
            ..self.clone()
        })
    }

    /// The path of the ban list, as the policy has it. The caller reads it, and reads it again when it changes.
    pub fn ban_list(&self) -> Option<&str> {
        self.ban_list.as_deref()
    }

    /// The path of the grid-mapfile, as the policy has it. The caller reads it.
    pub fn grid_mapfile(&self) -> Option<&str> {
        self.grid_mapfile.as_deref()
    }

    /// Whether a peer may do business with us by its role. `chosen` says that we dialled it by its proven name.
    ///
    /// # Security
    /// Without a list for its role, everybody is let in to whom a private authority gave a certificate of that role,
    /// since that authority is ours. The authorities of a grid give certificates to everybody, so that a peer that one
    /// of them vouches for is let in by a list only, or because we chose it.
    pub fn admission(&self, peer: &VerifiedIdentity, chosen: bool) -> Admission {
        let facts = Facts::of(peer);
        admission::admission(
            &self.allowed_roles,
            &self.denied_roles,
            &self.bans,
            &facts,
            chosen,
        )
    }

    /// Whether somebody may do something, and why. What an `action` is called is the server's choice.
    pub fn decide(&self, who: &VerifiedIdentity, action: &str) -> Decision {
        self.decide_about(&Facts::of(who), action)
    }

    fn decide_about(&self, facts: &Facts<'_>, action: &str) -> Decision {
        if let Some((pattern, source)) = self.bans.about(facts) {
            return Decision::banned(facts, action, pattern, source);
        }
        let about = |rule: &&Rule| rule.is_about(action);
        if let Some(rule) = self
            .deny
            .iter()
            .filter(about)
            .find(|rule| rule.denies(facts))
        {
            return Decision::denied(facts, action, rule);
        }
        match self
            .allow
            .iter()
            .filter(about)
            .find(|rule| rule.allows(facts))
        {
            Some(rule) => Decision::allowed(facts, action, rule),
            None => Decision::unmet(facts, action, &self.allow),
        }
    }

    /// The local account for somebody: by a whole distinguished name, else by the attributes in their owner's order, else
    /// by patterns of names. The policy's own map counts before the grid-mapfile.
    pub fn account(&self, who: &VerifiedIdentity) -> Option<&str> {
        self.account_of(&Facts::of(who))
    }

    fn account_of(&self, facts: &Facts<'_>) -> Option<&str> {
        self.accounts
            .account(facts)
            .or_else(|| self.mapped_by_file.account(facts))
    }
}
