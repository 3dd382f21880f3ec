//! From the tables as written to rules that can be asked: every value checked, and what can't have been meant refused.

use toml::Spanned;

use super::Authorization;
use super::account_map::AccountMap;
use super::admission::{RoleLists, list_name};
use super::bans::Bans;
use super::discover;
use super::error::{AuthorizationError, AuthorizationProblem};
use super::file::{AccountTable, AuthorizationTables, RuleTable, TunnelTable};
use super::pattern::IdentityPattern;
use super::rule::{Actions, EVERYBODY, Rule, RuleSource};
use super::sandbox;
use super::site_lists::account_name;
use super::tunnel::TunnelRule;
use crate::claim::Role;
use crate::limits::{AUTHORIZATION_RULES_MAX, WORD_BYTES_MAX};
use crate::policy_text::{LIST_ENTRIES_MAX, OneOrMany, line_of};

/// The word for every action.
const ANY: &str = "any";

/// Checks the tables. `text` is what they were read from, for the line numbers.
pub(crate) fn build(
    tables: AuthorizationTables,
    text: &str,
) -> Result<Authorization, AuthorizationError> {
    let builder = Builder { text };
    let AuthorizationTables {
        allow,
        deny,
        accounts,
        sandbox,
        discover,
    } = tables;
    Ok(Authorization {
        allowed_roles: builder.role_lists(
            "[allow]",
            [
                allow.managers,
                allow.workers,
                allow.gateways,
                allow.agents,
                allow.peers,
            ],
        )?,
        denied_roles: builder.role_lists(
            "[deny]",
            [
                deny.managers,
                deny.workers,
                deny.gateways,
                deny.agents,
                deny.peers,
            ],
        )?,
        allow: builder.rules("allow.rule", &allow.rule)?,
        deny: builder.rules("deny.rule", &deny.rule)?,
        allowed_tunnels: builder.tunnels("allow.tunnel", &allow.tunnel)?,
        denied_tunnels: builder.tunnels("deny.tunnel", &deny.tunnel)?,
        bans: builder.bans(&deny.banned)?,
        accounts: builder.accounts(&accounts.map)?,
        ban_list: deny.ban_list,
        grid_mapfile: accounts.grid_mapfile,
        mapped_by_file: AccountMap::default(),
        sandbox: sandbox::build(sandbox, text)?,
        discover: discover::build(discover, text)?,
    })
}

struct Builder<'a> {
    text: &'a str,
}

impl Builder<'_> {
    fn line<T>(&self, place: &Spanned<T>) -> usize {
        line_of(self.text, place.span().start)
    }

    fn error<T>(&self, place: &Spanned<T>, problem: AuthorizationProblem) -> AuthorizationError {
        AuthorizationError {
            line: Some(self.line(place)),
            problem,
        }
    }

    fn role_lists(
        &self,
        owner: &str,
        lists: [Option<Vec<Spanned<String>>>; Role::ALL.len()],
    ) -> Result<RoleLists, AuthorizationError> {
        let mut checked = RoleLists::default();
        for (role, entries) in Role::ALL.into_iter().zip(lists) {
            if let Some(entries) = entries {
                self.check_length(list_name(role), &entries)?;
                let list = format!("{owner} {}", list_name(role));
                let patterns = entries
                    .iter()
                    .map(|entry| self.pattern(&list, entry, entry.get_ref()));
                checked.set(role, patterns.collect::<Result<_, _>>()?);
            }
        }
        Ok(checked)
    }

    fn check_length<T>(
        &self,
        list: &'static str,
        entries: &[Spanned<T>],
    ) -> Result<(), AuthorizationError> {
        match entries {
            [first, ..] if entries.len() > LIST_ENTRIES_MAX => {
                let count = entries.len();
                Err(self.error(first, AuthorizationProblem::TooManyEntries { list, count }))
            }
            _ => Ok(()),
        }
    }

    fn pattern<T>(
        &self,
        list: &str,
        place: &Spanned<T>,
        text: &str,
    ) -> Result<IdentityPattern, AuthorizationError> {
        IdentityPattern::parse(text).map_err(|problem| {
            let (list, text) = (list.to_owned(), text.to_owned());
            self.error(
                place,
                AuthorizationProblem::Pattern {
                    list,
                    text,
                    problem,
                },
            )
        })
    }

    fn rules(
        &self,
        list: &'static str,
        tables: &[Spanned<RuleTable>],
    ) -> Result<Vec<Rule>, AuthorizationError> {
        match tables {
            [first, ..] if tables.len() > AUTHORIZATION_RULES_MAX => {
                let count = tables.len();
                Err(self.error(first, AuthorizationProblem::TooManyRules { list, count }))
            }
            _ => tables.iter().map(|table| self.rule(table)).collect(),
        }
    }

    fn rule(&self, table: &Spanned<RuleTable>) -> Result<Rule, AuthorizationError> {
        let written = table.get_ref();
        let has_condition = written.name.is_some()
            || written.dn.is_some()
            || written.vo.is_some()
            || written.fqan.is_some();
        if !has_condition {
            return Err(self.error(table, AuthorizationProblem::NoCondition));
        }
        let names = written.name.as_ref().map(|words| self.names(words));
        let subjects = written.dn.as_ref().map(|words| self.subjects(words));
        let fqans = written.fqan.as_ref().map(|words| self.attributes(words));
        let vos = written.vo.as_ref().map(|words| self.organisations(words));
        Ok(Rule {
            line: self.line(table),
            actions: self.actions(&written.action)?,
            names: names.transpose()?,
            subjects: subjects.transpose()?,
            vos: vos.transpose()?,
            fqans: fqans.transpose()?,
            limited: written.limited,
            independent: written.independent,
        })
    }

    fn tunnels(
        &self,
        list: &'static str,
        tables: &[Spanned<TunnelTable>],
    ) -> Result<Vec<TunnelRule>, AuthorizationError> {
        if let [first, ..] = tables
            && tables.len() > AUTHORIZATION_RULES_MAX
        {
            let count = tables.len();
            return Err(self.error(first, AuthorizationProblem::TooManyRules { list, count }));
        }
        let rule = |table: &Spanned<TunnelTable>| {
            let written = table.get_ref();
            let expected = "the name of a node, like ocean.example.org, or a distinguished name";
            Ok(TunnelRule {
                line: self.line(table),
                from: self.kind("from", &written.from, "", |_, _| true)?,
                to: self.kind("to", &written.to, expected, |_, pattern| {
                    !pattern.is_of_attributes()
                })?,
            })
        };
        tables.iter().map(rule).collect()
    }

    fn actions(&self, words: &Spanned<OneOrMany<String>>) -> Result<Actions, AuthorizationError> {
        let actions = self.words("action", words)?;
        match (actions.iter().any(|word| word == ANY), actions.len()) {
            (false, _) => Ok(Actions::These(actions)),
            (true, 1) => Ok(Actions::Any),
            (true, _) => Err(self.error(words, AuthorizationProblem::AnyAmongActions)),
        }
    }

    fn entries<'a>(
        &self,
        key: &'static str,
        words: &'a Spanned<OneOrMany<String>>,
    ) -> Result<&'a [String], AuthorizationError> {
        let OneOrMany(entries) = words.get_ref();
        match entries.len() {
            0 => Err(self.error(words, AuthorizationProblem::EmptyList { key })),
            count if count > LIST_ENTRIES_MAX => Err(self.error(
                words,
                AuthorizationProblem::TooManyEntries { list: key, count },
            )),
            _ => Ok(entries),
        }
    }

    fn words(
        &self,
        key: &'static str,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<String>, AuthorizationError> {
        let entries = self.entries(key, words)?;
        match entries.iter().find(|word| !is_word(word)) {
            None => Ok(entries.to_vec()),
            Some(word) => {
                let text = word.clone();
                Err(self.error(words, AuthorizationProblem::BadWord { key, text }))
            }
        }
    }

    fn organisations(
        &self,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<String>, AuthorizationError> {
        let organisations = self.words("vo", words)?;
        match organisations.iter().find(|word| word.contains('/')) {
            None => Ok(organisations),
            Some(word) => {
                let problem = AuthorizationProblem::WrongKind {
                    list: "`vo`".to_owned(),
                    text: word.clone(),
                    expected: "the name of a virtual organisation without slashes, like atlas",
                };
                Err(self.error(words, problem))
            }
        }
    }

    /// Names in certificates of a private authority, and host names.
    fn names(
        &self,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<IdentityPattern>, AuthorizationError> {
        let expected = "a name like lab1.example.org or alice@example.org; distinguished names stand in `dn`, attributes in `fqan`";
        self.kind("name", words, expected, |_, pattern| pattern.is_of_names())
    }

    /// Distinguished names, or `*` for everybody.
    fn subjects(
        &self,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<IdentityPattern>, AuthorizationError> {
        let expected = "a distinguished name like /DC=org/CN=Alice, or * for everybody";
        self.kind("dn", words, expected, |text, pattern| {
            pattern.is_of_subjects() || text == EVERYBODY
        })
    }

    fn attributes(
        &self,
        words: &Spanned<OneOrMany<String>>,
    ) -> Result<Vec<IdentityPattern>, AuthorizationError> {
        let expected = "an attribute like /vo/group/Role=production";
        self.kind("fqan", words, expected, |_, pattern| {
            pattern.is_of_attributes()
        })
    }

    fn kind(
        &self,
        key: &'static str,
        words: &Spanned<OneOrMany<String>>,
        expected: &'static str,
        is_kind: impl Fn(&str, &IdentityPattern) -> bool,
    ) -> Result<Vec<IdentityPattern>, AuthorizationError> {
        let list = format!("`{key}`");
        let read = |text: &String| {
            let pattern = self.pattern(&list, words, text)?;
            if is_kind(text, &pattern) {
                return Ok(pattern);
            }
            let (list, text) = (list.clone(), text.clone());
            let problem = AuthorizationProblem::WrongKind {
                list,
                text,
                expected,
            };
            Err(self.error(words, problem))
        };
        self.entries(key, words)?.iter().map(read).collect()
    }

    fn bans(&self, entries: &[Spanned<String>]) -> Result<Bans, AuthorizationError> {
        self.check_length("banned", entries)?;
        let mut bans = Bans::default();
        for entry in entries {
            let pattern = self.pattern("[deny] banned", entry, entry.get_ref())?;
            let line = self.line(entry);
            bans.add(pattern, RuleSource::Policy { line });
        }
        Ok(bans)
    }

    fn accounts(
        &self,
        entries: &[Spanned<AccountTable>],
    ) -> Result<AccountMap, AuthorizationError> {
        self.check_length("map", entries)?;
        let mut accounts = AccountMap::default();
        for entry in entries {
            let written = entry.get_ref();
            let (word, expected, is_kind): (_, _, fn(&IdentityPattern) -> bool) =
                match (&written.dn, &written.fqan) {
                    (Some(dn), None) => (
                        dn,
                        "a distinguished name like /DC=org/CN=Alice",
                        IdentityPattern::is_of_subjects,
                    ),
                    (None, Some(fqan)) => (
                        fqan,
                        "an attribute like /vo/Role=production",
                        IdentityPattern::is_of_attributes,
                    ),
                    _ => return Err(self.error(entry, AuthorizationProblem::MapSubject)),
                };
            let list = "[accounts] map";
            let pattern = self.pattern(list, word, word.get_ref())?;
            if !is_kind(&pattern) {
                let problem = AuthorizationProblem::WrongKind {
                    list: list.to_owned(),
                    text: word.get_ref().clone(),
                    expected,
                };
                return Err(self.error(word, problem));
            }
            let account = account_name(written.account.get_ref())
                .map_err(|problem| self.error(&written.account, problem))?;
            let line = self.line(word);
            accounts.add(pattern, account, RuleSource::Policy { line });
        }
        Ok(accounts)
    }
}

/// The name of an action, as a server's author chose it, or of a virtual organisation.
fn is_word(word: &str) -> bool {
    !word.is_empty()
        && word.len() <= WORD_BYTES_MAX
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:/+".contains(&byte))
}
