//! The policy file as it is written: keys, types and spellings, and where in the file they stand.
//! What they mean together is `build`'s.

use std::collections::BTreeMap;

use exoskel_identity::authorization::{
    AccountsTable, AllowTable, AuthorizationError, AuthorizationProblem, DenyTable, DiscoverTable,
    SandboxTable,
};
use exoskel_identity::policy_text::{BYTES_MAX, OneOrMany, syntax};
use serde::Deserialize;
use toml::Spanned;

use super::domain::ResultsFormat;
use super::error::{PolicyError, PolicyProblem};
use crate::Protection;

/// Rules of a policy. Each is compared with those before it, so this bounds the time that reading
/// takes.
pub(crate) const RULES_MAX: usize = 256;

/// Patterns of one rule's `endpoint`. Each is compared with those of the rules before it, and with the name of each link that opens.
pub(crate) const ENDPOINTS_MAX: usize = 64;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    #[serde(default)]
    pub(crate) domain: BTreeMap<Spanned<String>, DomainTable>,
    #[serde(default)]
    pub(crate) rule: Vec<Spanned<RuleTable>>,
    /// Who may do what is `exoskel_identity`'s to read; a file is read once.
    #[serde(default)]
    pub(crate) allow: AllowTable,
    #[serde(default)]
    pub(crate) deny: DenyTable,
    #[serde(default)]
    pub(crate) accounts: AccountsTable,
    pub(crate) sandbox: Option<Spanned<SandboxTable>>,
    pub(crate) discover: Option<DiscoverTable>,
}

/// `[domain.NAME]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainTable {
    #[serde(default)]
    pub(crate) addresses: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) names: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) results: ResultsWord,
}

/// `[[rule]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleTable {
    pub(crate) from: Spanned<OneOrMany<String>>,
    pub(crate) to: Spanned<OneOrMany<String>>,
    pub(crate) class: Option<Spanned<OneOrMany<ClassWord>>>,
    pub(crate) endpoint: Option<Spanned<OneOrMany<String>>>,
    pub(crate) protection: ProtectionWord,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResultsWord {
    #[default]
    #[serde(alias = "restricted")]
    Data,
    Pickle,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClassWord {
    Control,
    Code,
    Data,
    Any,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProtectionWord {
    Plain,
    Integrity,
    Encrypted,
}

// The types that the rest of the program uses don't know how they are written.

impl From<ResultsWord> for ResultsFormat {
    fn from(word: ResultsWord) -> Self {
        match word {
            ResultsWord::Data => Self::Data,
            ResultsWord::Pickle => Self::Pickle,
        }
    }
}

impl From<ProtectionWord> for Protection {
    fn from(word: ProtectionWord) -> Self {
        match word {
            ProtectionWord::Plain => Self::Plain,
            ProtectionWord::Integrity => Self::Integrity,
            ProtectionWord::Encrypted => Self::Encrypted,
        }
    }
}

/// Reads the keys and types of a file.
pub(crate) fn read(text: &str) -> Result<PolicyFile, PolicyError> {
    if text.is_empty() {
        return Err(
            AuthorizationError::from(AuthorizationProblem::Empty { what: "policy" }).into(),
        );
    }
    if text.len() > BYTES_MAX {
        return Err(PolicyError {
            line: None,
            problem: PolicyProblem::TooLarge { bytes: text.len() },
        });
    }
    toml::from_str(text).map_err(|error| {
        let (line, message) = syntax(text, &error);
        PolicyError {
            line,
            problem: PolicyProblem::Syntax { message },
        }
    })
}
