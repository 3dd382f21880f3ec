//! The tables of the policy file that say who may do what: `[allow]`, `[deny]` and `[accounts]`. Keys, types and
//! spellings; what they mean together is `build`'s.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::discover::DiscoverTable;
use super::error::{AuthorizationError, AuthorizationProblem};
use super::sandbox::SandboxTable;
use crate::policy_text::{BYTES_MAX, OneOrMany, syntax};

/// The tables about who may do what, for a reader of the whole file to embed.
#[derive(Clone, Debug, Default)]
pub struct AuthorizationTables {
    /// `[allow]`
    pub allow: AllowTable,
    /// `[deny]`
    pub deny: DenyTable,
    /// `[accounts]`
    pub accounts: AccountsTable,
    /// `[sandbox]`
    pub sandbox: Option<Spanned<SandboxTable>>,
    /// `[discover]`
    pub discover: Option<DiscoverTable>,
}

/// `[allow]`: who may do business with us by role, and `[[allow.rule]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowTable {
    pub(crate) managers: Option<Vec<Spanned<String>>>,
    pub(crate) workers: Option<Vec<Spanned<String>>>,
    pub(crate) gateways: Option<Vec<Spanned<String>>>,
    pub(crate) agents: Option<Vec<Spanned<String>>>,
    pub(crate) peers: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(crate) rule: Vec<Spanned<RuleTable>>,
    #[serde(default)]
    pub(crate) tunnel: Vec<Spanned<TunnelTable>>,
}

/// `[deny]`: the same the other way round, and the bans.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenyTable {
    pub(crate) managers: Option<Vec<Spanned<String>>>,
    pub(crate) workers: Option<Vec<Spanned<String>>>,
    pub(crate) gateways: Option<Vec<Spanned<String>>>,
    pub(crate) agents: Option<Vec<Spanned<String>>>,
    pub(crate) peers: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(crate) rule: Vec<Spanned<RuleTable>>,
    #[serde(default)]
    pub(crate) tunnel: Vec<Spanned<TunnelTable>>,
    #[serde(default)]
    pub(crate) banned: Vec<Spanned<String>>,
    pub(crate) ban_list: Option<String>,
}

/// `[accounts]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountsTable {
    #[serde(default)]
    pub(crate) map: Vec<Spanned<AccountTable>>,
    pub(crate) grid_mapfile: Option<String>,
}

/// `[[allow.rule]]` and `[[deny.rule]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleTable {
    pub(crate) action: Spanned<OneOrMany<String>>,
    pub(crate) name: Option<Spanned<OneOrMany<String>>>,
    pub(crate) dn: Option<Spanned<OneOrMany<String>>>,
    pub(crate) vo: Option<Spanned<OneOrMany<String>>>,
    pub(crate) fqan: Option<Spanned<OneOrMany<String>>>,
    pub(crate) limited: Option<bool>,
    pub(crate) independent: Option<bool>,
}

/// `[[allow.tunnel]]` and `[[deny.tunnel]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TunnelTable {
    pub(crate) from: Spanned<OneOrMany<String>>,
    pub(crate) to: Spanned<OneOrMany<String>>,
}

/// An entry of `map`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountTable {
    pub(crate) dn: Option<Spanned<String>>,
    pub(crate) fqan: Option<Spanned<String>>,
    pub(crate) account: Spanned<String>,
}

/// The whole file. The tables about wires are read by those who have wires.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    allow: AllowTable,
    #[serde(default)]
    deny: DenyTable,
    #[serde(default)]
    accounts: AccountsTable,
    sandbox: Option<Spanned<SandboxTable>>,
    discover: Option<DiscoverTable>,
    #[serde(default, rename = "domain")]
    _domain: BTreeMap<String, IgnoredAny>,
    #[serde(default, rename = "rule")]
    _rule: Vec<IgnoredAny>,
}

/// Reads the keys and types of our tables.
pub(crate) fn read(text: &str) -> Result<AuthorizationTables, AuthorizationError> {
    if text.is_empty() {
        return Err(AuthorizationProblem::Empty { what: "policy" }.into());
    }
    if text.len() > BYTES_MAX {
        return Err(AuthorizationProblem::TooLarge {
            what: "policy",
            got: text.len(),
            max: BYTES_MAX,
        }
        .into());
    }
    let file: PolicyFile = toml::from_str(text).map_err(|error| {
        let (line, message) = syntax(text, &error);
        let problem = AuthorizationProblem::Syntax { message };
        AuthorizationError { line, problem }
    })?;
    Ok(AuthorizationTables {
        allow: file.allow,
        deny: file.deny,
        accounts: file.accounts,
        sandbox: file.sandbox,
        discover: file.discover,
    })
}
