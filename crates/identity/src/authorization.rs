//! Who may do what: the tables `[allow]`, `[deny]` and `[accounts]` of the one policy file, with a site's ban list and
//! grid-mapfile. `docs/policy.md` is the guide to the file.
//!
//! A ban wins over everything, a rule that denies over every rule that allows, and what nothing allows is refused.

mod account_map;
mod admission;
mod bans;
mod build;
mod decision;
mod discover;
mod error;
mod facts;
mod file;
mod name_pattern;
mod pattern;
mod rule;
mod rule_changes;
mod sandbox;
mod site_lists;
#[cfg(test)]
mod tests;
mod tunnel;

use std::collections::HashSet;

use self::account_map::AccountMap;
use self::admission::RoleLists;
use self::bans::Bans;
use self::discover::DiscoverRules;
use self::facts::Facts;
use self::rule::Rule;
use self::sandbox::SandboxRules;
use self::tunnel::TunnelRule;
use crate::verified::VerifiedIdentity;

pub use self::admission::Admission;
pub use self::decision::Decision;
pub use self::discover::DiscoverTable;
pub use self::error::{AuthorizationError, AuthorizationProblem};
pub use self::file::{AccountsTable, AllowTable, AuthorizationTables, DenyTable};
pub use self::name_pattern::PatternProblem;
pub use self::pattern::IdentityPattern;
pub use self::rule::RuleSource;
pub use self::rule_changes::RuleChanges;
pub use self::sandbox::{SandboxNetwork, SandboxTable, SandboxUse};

/// Who may do what at one site.
#[derive(Clone, Debug, Default)]
pub struct Authorization {
    allowed_roles: RoleLists,
    denied_roles: RoleLists,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
    allowed_tunnels: Vec<TunnelRule>,
    denied_tunnels: Vec<TunnelRule>,
    bans: Bans,
    accounts: AccountMap,
    mapped_by_file: AccountMap,
    ban_list: Option<String>,
    grid_mapfile: Option<String>,
    sandbox: SandboxRules,
    discover: Option<DiscoverRules>,
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

    /// Whether a gateway may connect somebody with the node of this name, and why. What nothing allows is refused.
    pub fn tunnel(&self, who: &VerifiedIdentity, node: &str) -> Decision {
        self.tunnel_for(&Facts::of(who), node)
    }

    fn tunnel_for(&self, facts: &Facts<'_>, node: &str) -> Decision {
        let (allow, deny) = (&self.allowed_tunnels, &self.denied_tunnels);
        tunnel::decide(allow, deny, &self.bans, facts, node)
    }

    /// What the code of somebody may use on this host, and why; nothing: all that the account may.
    ///
    /// # Security
    /// The authorities of a grid vouch for everybody: whom only they know is confined unless a list says otherwise, also without a table.
    pub fn sandbox_of(&self, who: &VerifiedIdentity) -> Option<(&SandboxUse, String)> {
        self.sandbox.of(&Facts::of(who))
    }

    /// What code in a sandbox may use on this host, and whether there is a table that says so.
    pub fn sandbox(&self) -> (&SandboxUse, bool) {
        (&self.sandbox.allowed, self.sandbox.line.is_some())
    }

    /// What the table `[sandbox]` lets code use, whosever that is; nothing, where there is none.
    pub fn sandbox_table(&self) -> Option<&SandboxUse> {
        self.sandbox.table()
    }

    /// Whether a worker of this name may be dialled because it was heard; nothing, where no table says so of any name.
    pub fn discovers(&self, name: &str) -> Option<bool> {
        self.discover.as_ref().map(|rules| rules.allow(name))
    }

    /// Whether any rule allows a tunnel. Without one, a gateway connects nobody.
    pub fn allows_some_tunnel(&self) -> bool {
        !self.allowed_tunnels.is_empty()
    }

    /// Whether somebody may do something, and why. What an `action` is called is the server's choice.
    pub fn decide(&self, who: &VerifiedIdentity, action: &str) -> Decision {
        self.decide_about(&Facts::of(who), action)
    }

    /// The actions that rules name, each once, in their order. Rules about any action name none.
    pub fn named_actions(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        let rules = self.allow.iter().chain(&self.deny);
        let named = rules.flat_map(|rule| rule.named_actions());
        named.filter(|action| seen.insert(*action)).collect()
    }

    /// Whether any rule allows this action to somebody.
    pub fn allows_somebody(&self, action: &str) -> bool {
        self.allow.iter().any(|rule| rule.is_about(action))
    }

    /// The line of the rule that denies this action to everybody, if there is one. Then no other rule lets anybody do it.
    pub fn denied_to_everybody(&self, action: &str) -> Option<usize> {
        let rules = self.deny.iter().filter(|rule| rule.is_about(action));
        rules
            .filter(|rule| rule.is_about_everybody())
            .map(|rule| rule.line)
            .next()
    }

    /// The actions that rules name, each with the line of its rule.
    pub fn actions_by_line(&self) -> impl Iterator<Item = (usize, &str)> {
        let rules = self.allow.iter().chain(&self.deny);
        rules.flat_map(|rule| rule.named_actions().map(|action| (rule.line, action)))
    }

    /// The virtual organisations that rules name by `vo`, each with its place.
    pub fn organisations(&self) -> impl Iterator<Item = (RuleSource, &str)> {
        let rules = self.allow.iter().chain(&self.deny);
        rules.flat_map(|rule| {
            let source = RuleSource::Policy { line: rule.line };
            rule.organisations().map(move |name| (source, name))
        })
    }

    /// The patterns of distinguished names and attributes that rules, bans and accounts have, each with its place. In no order.
    pub fn patterns(&self) -> impl Iterator<Item = (RuleSource, &IdentityPattern)> {
        let rules = self.allow.iter().chain(&self.deny).flat_map(|rule| {
            let source = RuleSource::Policy { line: rule.line };
            rule.patterns().map(move |pattern| (source, pattern))
        });
        let accounts = self.accounts.patterns();
        rules
            .chain(self.bans.patterns())
            .chain(accounts.chain(self.mapped_by_file.patterns()))
    }

    /// What these rules say otherwise than those of `before`, a phrase for each: rules with their lines, bans and accounts with their
    /// names.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (table, now, then) in [
            ("[[allow.rule]]", &self.allow, &before.allow),
            ("[[deny.rule]]", &self.deny, &before.deny),
        ] {
            let about = |one: &Rule, other: &Rule| one.actions == other.actions;
            let rules = RuleChanges::between(then, now, Rule::says_the_same_as, about);
            changes.extend(rules.changed.iter().map(|(rule, old)| {
                let line = rule.line;
                format!("the {table} at line {line} has changed: {rule}; it was: {old}")
            }));
            changes.extend(rules.new.iter().map(|rule| {
                let line = rule.line;
                format!("the {table} at line {line} is new: {rule}")
            }));
            changes.extend(rules.gone.iter().map(|rule| {
                let line = rule.line;
                format!("the {table} that was at line {line} is gone: {rule}")
            }));
        }
        for (table, now, then) in [
            (
                "[[allow.tunnel]]",
                &self.allowed_tunnels,
                &before.allowed_tunnels,
            ),
            (
                "[[deny.tunnel]]",
                &self.denied_tunnels,
                &before.denied_tunnels,
            ),
        ] {
            let same = now.len() == then.len()
                && now
                    .iter()
                    .zip(then)
                    .all(|(one, other)| one.says_the_same_as(other));
            changes.extend((!same).then(|| format!("the tables {table} have changed")));
        }
        for (table, now, then) in [
            ("[allow]", &self.allowed_roles, &before.allowed_roles),
            ("[deny]", &self.denied_roles, &before.denied_roles),
        ] {
            changes.extend(
                (now != then).then(|| format!("the lists of roles in {table} have changed")),
            );
        }
        changes.extend(self.bans.changes_since(&before.bans));
        for (table, now, then) in [
            ("[accounts] map", &self.accounts, &before.accounts),
            (
                "the grid-mapfile",
                &self.mapped_by_file,
                &before.mapped_by_file,
            ),
        ] {
            let of_accounts = now.changes_since(then).into_iter();
            changes.extend(of_accounts.map(|change| format!("{table}: {change}")));
        }
        changes
    }

    /// Whether somebody may do what no rule names.
    pub fn allows_unnamed(&self, who: &VerifiedIdentity) -> bool {
        // No word of a policy is empty, so this is about rules for any action alone.
        self.decide(who, "").allowed
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
