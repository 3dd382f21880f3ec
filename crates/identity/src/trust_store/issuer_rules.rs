//! What all files of a trust directory together say about the names that each authority may sign.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::authority::Authority;
use super::file::{Content, Kept};
use super::name_space::{IssuerRules, NameStatement};
use crate::slash_name::normal_form;

/// The rules for each issuer, by its name in normal form.
pub(super) fn collect(
    files: &BTreeMap<String, Arc<Kept>>,
    authorities: &[Authority],
) -> HashMap<String, Arc<IssuerRules>> {
    let mut rules: HashMap<String, IssuerRules> = HashMap::new();
    for (name, kept) in files {
        let hash = name.split('.').next().unwrap_or_default();
        let (statements, is_signing_policy) = match &kept.content {
            Content::SigningPolicy(statements) => (statements, true),
            Content::Namespaces(statements) => (statements, false),
            _ => continue,
        };
        for NameStatement { issuer, rule } in statements {
            let issuers = match issuer {
                Some(issuer) => vec![issuer.clone()],
                None => authorities
                    .iter()
                    .filter(|authority| authority.hashes().any(|one| one == hash))
                    .map(|authority| normal_form(&authority.certificate.subject.slash()))
                    .collect(),
            };
            for issuer in issuers {
                let rules = rules.entry(issuer).or_default();
                let rules = if is_signing_policy {
                    &mut rules.signing_policy
                } else {
                    &mut rules.namespaces
                };
                let rules = rules.get_or_insert_default();
                // The old and the new hash name the same file.
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
        .into_iter()
        .map(|(issuer, rules)| (issuer, Arc::new(rules)))
        .collect()
}
