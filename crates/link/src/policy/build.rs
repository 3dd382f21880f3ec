//! From the file as written to a policy that can be asked: every value checked, names resolved,
//! and what can't have been meant refused.

use exoskel_identity::Authorization;
use exoskel_identity::authorization::{AuthorizationTables, IdentityPattern};
use exoskel_identity::policy_text::{LIST_ENTRIES_MAX, OneOrMany, line_of};
use toml::Spanned;

use super::domain::{DOMAINS_MAX, Domain, DomainSet, HOST};
use super::endpoint::EndpointPattern;
use super::error::{PolicyError, PolicyProblem};
use super::file::{ClassWord, DomainTable, ENDPOINTS_MAX, PolicyFile, RULES_MAX, RuleTable};
use super::range::AddressRange;
use super::rule::{Classes, Rule, RuleEnd};
use super::verdict::RuleName;
use crate::Protection;

/// The word for everybody, in a rule.
const ANY: &str = "any";

const DOMAIN_NAME_BYTES_MAX: usize = 64;

/// What a file says, checked.
pub(crate) struct Parts {
    pub(crate) domains: Vec<Domain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) authorization: Authorization,
}

/// Checks a file. `text` is what it was read from, for the line numbers.
pub(crate) fn build(file: PolicyFile, text: &str) -> Result<Parts, PolicyError> {
    let builder = Builder { text };
    let domains = builder.domains(file.domain.into_iter().collect())?;
    let rules = builder.rules(&file.rule, &domains)?;
    let tables = AuthorizationTables {
        allow: file.allow,
        deny: file.deny,
        accounts: file.accounts,
        sandbox: file.sandbox,
        discover: file.discover,
    };
    let authorization = Authorization::from_tables(tables, text)?;
    Ok(Parts {
        domains,
        rules,
        authorization,
    })
}

struct Builder<'a> {
    text: &'a str,
}

impl Builder<'_> {
    fn error<T>(&self, place: &Spanned<T>, problem: PolicyProblem) -> PolicyError {
        PolicyError {
            line: Some(line_of(self.text, place.span().start)),
            problem,
        }
    }

    fn domains(
        &self,
        mut tables: Vec<(Spanned<String>, DomainTable)>,
    ) -> Result<Vec<Domain>, PolicyError> {
        if tables.len() >= DOMAINS_MAX {
            let problem = PolicyProblem::TooManyDomains {
                count: tables.len(),
            };
            return Err(PolicyError {
                line: None,
                problem,
            });
        }
        // People find things in the order in which they wrote them.
        tables.sort_by_key(|(name, _)| name.span().start);
        let mut domains = vec![Domain::host()];
        for (name, table) in tables {
            domains.push(self.domain(&name, table)?);
        }
        Ok(domains)
    }

    fn domain(&self, name: &Spanned<String>, table: DomainTable) -> Result<Domain, PolicyError> {
        let domain = name.get_ref().clone();
        match domain.as_str() {
            HOST => return Err(self.error(name, PolicyProblem::HostRedefined)),
            ANY => return Err(self.error(name, PolicyProblem::AnyDefined)),
            _ if !is_domain_name(&domain) => {
                return Err(self.error(name, PolicyProblem::DomainName { name: domain }));
            }
            _ if table.addresses.is_empty() => {
                return Err(self.error(name, PolicyProblem::NoAddresses { domain }));
            }
            _ if table.names.is_empty() => {
                return Err(self.error(name, PolicyProblem::NoNames { domain }));
            }
            _ => {}
        }
        let addresses = self.ranges(&domain, &table.addresses)?;
        let names = self.names(&domain, &table.names)?;
        Ok(Domain {
            name: domain,
            addresses,
            names,
            results: table.results.into(),
        })
    }

    fn ranges(
        &self,
        domain: &str,
        entries: &[Spanned<String>],
    ) -> Result<Vec<AddressRange>, PolicyError> {
        self.check_length("addresses", entries)?;
        let parse = |entry: &Spanned<String>| {
            AddressRange::parse(entry.get_ref()).map_err(|problem| {
                let (domain, text) = (domain.to_owned(), entry.get_ref().clone());
                self.error(
                    entry,
                    PolicyProblem::Address {
                        domain,
                        text,
                        problem,
                    },
                )
            })
        };
        entries.iter().map(parse).collect()
    }

    fn names(
        &self,
        domain: &str,
        entries: &[Spanned<String>],
    ) -> Result<Vec<IdentityPattern>, PolicyError> {
        self.check_length("names", entries)?;
        let parse = |entry: &Spanned<String>| {
            let (domain, text) = (domain.to_owned(), entry.get_ref().clone());
            match IdentityPattern::parse(&text) {
                Ok(pattern) if pattern.is_of_attributes() => {
                    Err(self.error(entry, PolicyProblem::AttributeInDomain { domain, text }))
                }
                Ok(pattern) => Ok(pattern),
                Err(problem) => Err(self.error(
                    entry,
                    PolicyProblem::Pattern {
                        list: format!("domain `{domain}` names"),
                        text,
                        problem,
                    },
                )),
            }
        };
        entries.iter().map(parse).collect()
    }

    fn check_length(
        &self,
        list: &'static str,
        entries: &[Spanned<String>],
    ) -> Result<(), PolicyError> {
        match entries {
            [first, ..] if entries.len() > LIST_ENTRIES_MAX => Err(self.error(
                first,
                PolicyProblem::TooManyEntries {
                    list,
                    count: entries.len(),
                },
            )),
            _ => Ok(()),
        }
    }

    fn rules(
        &self,
        tables: &[Spanned<RuleTable>],
        domains: &[Domain],
    ) -> Result<Vec<Rule>, PolicyError> {
        if tables.len() > RULES_MAX {
            let problem = PolicyProblem::TooManyRules {
                count: tables.len(),
            };
            return Err(PolicyError {
                line: None,
                problem,
            });
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(tables.len() + 1);
        for table in tables {
            let line = line_of(self.text, table.span().start);
            let name = RuleName::Numbered {
                number: rules.len() + 1,
                line,
            };
            let rule = self.rule(name, table, domains)?;
            if let Some(earlier) = rules.iter().find(|earlier| earlier.covers(&rule)) {
                return Err(self.error(table, PolicyProblem::Shadowed { by: earlier.name }));
            }
            rules.push(rule);
        }
        rules.push(Rule::BUILT_IN);
        Ok(rules)
    }

    fn rule(
        &self,
        name: RuleName,
        table: &Spanned<RuleTable>,
        domains: &[Domain],
    ) -> Result<Rule, PolicyError> {
        let written = table.get_ref();
        let from = self.side("from", &written.from, domains)?;
        let to = self.side("to", &written.to, domains)?;
        let endpoints = written.endpoint.as_ref();
        let endpoints = endpoints.map(|words| self.endpoints(words)).transpose()?;
        // Links to endpoints with a name carry data, unless the rule says otherwise.
        let unsaid = match endpoints {
            Some(_) => Classes::DATA,
            None => Classes::ALL,
        };
        let classes = self.classes(written.class.as_ref(), unsaid)?;
        let protection = Protection::from(written.protection);
        let host_at_one_end =
            (from.names_host() && !to.admits_host()) || (to.names_host() && !from.admits_host());
        if host_at_one_end {
            return Err(self.error(table, PolicyProblem::HostAtOneEnd));
        }
        if protection == Protection::Plain && (from == RuleEnd::Any || to == RuleEnd::Any) {
            return Err(self.error(table, PolicyProblem::PlainForAny));
        }
        Ok(Rule {
            name,
            from,
            to,
            classes,
            endpoints,
            protection,
        })
    }

    fn side(
        &self,
        key: &'static str,
        words: &Spanned<OneOrMany<String>>,
        domains: &[Domain],
    ) -> Result<RuleEnd, PolicyError> {
        let OneOrMany(names) = words.get_ref();
        if names.is_empty() {
            return Err(self.error(words, PolicyProblem::EmptyList { key }));
        }
        if names.iter().any(|name| name == ANY) {
            return match names.len() {
                1 => Ok(RuleEnd::Any),
                _ => Err(self.error(words, PolicyProblem::AnyAmongDomains { key })),
            };
        }
        let mut set = DomainSet::default();
        for name in names {
            let Some(index) = domains.iter().position(|domain| domain.name == *name) else {
                let known = known_domains(domains, &[ANY]);
                let name = name.clone();
                return Err(self.error(words, PolicyProblem::UnknownDomain { key, name, known }));
            };
            set.insert(index);
        }
        Ok(RuleEnd::Domains(set))
    }

    fn endpoints(
        &self,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<EndpointPattern>, PolicyError> {
        let OneOrMany(entries) = words.get_ref();
        if entries.is_empty() {
            return Err(self.error(words, PolicyProblem::EmptyList { key: "endpoint" }));
        }
        if entries.len() > ENDPOINTS_MAX {
            let problem = PolicyProblem::TooManyEndpoints {
                count: entries.len(),
            };
            return Err(self.error(words, problem));
        }
        let parse = |text: &String| {
            EndpointPattern::parse(text).map_err(|problem| {
                let text = text.clone();
                self.error(words, PolicyProblem::Endpoint { text, problem })
            })
        };
        entries.iter().map(parse).collect()
    }

    fn classes(
        &self,
        words: Option<&Spanned<OneOrMany<ClassWord>>>,
        unsaid: Classes,
    ) -> Result<Classes, PolicyError> {
        let Some(words) = words else {
            return Ok(unsaid);
        };
        let mut classes = Classes::default();
        for word in &words.get_ref().0 {
            match word {
                ClassWord::Control => classes.control = true,
                ClassWord::Code => classes.code = true,
                ClassWord::Data => classes.data = true,
                ClassWord::Any => classes = Classes::ALL,
            }
        }
        if classes == Classes::default() {
            return Err(self.error(words, PolicyProblem::EmptyList { key: "class" }));
        }
        Ok(classes)
    }
}

/// The domains by name, for messages.
pub(crate) fn known_domains(domains: &[Domain], others: &[&str]) -> String {
    let names = domains.iter().map(|domain| domain.name.as_str());
    names
        .chain(others.iter().copied())
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn is_domain_name(name: &str) -> bool {
    name.len() <= DOMAIN_NAME_BYTES_MAX
        && name.starts_with(|character: char| character.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}
