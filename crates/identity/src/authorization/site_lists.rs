//! The lists that a site keeps beside its policy: bans, and the grid-mapfile.

use super::account_map::AccountMap;
use super::bans::Bans;
use super::error::{AuthorizationError, AuthorizationProblem};
use super::pattern::IdentityPattern;
use super::rule::RuleSource;
use crate::limits::{SITE_LIST_BYTES_MAX, WORD_BYTES_MAX};

/// Adds a ban list: a pattern a line, with or without quotation marks; `#` before comments.
pub(crate) fn read_bans(text: &str, bans: &mut Bans) -> Result<(), AuthorizationError> {
    if text.is_empty() {
        return Err(AuthorizationProblem::Empty { what: "ban list" }.into());
    }
    for (line, entry) in entries("ban list", text)? {
        let read = |problem| AuthorizationError {
            line: Some(line),
            problem,
        };
        let bad = || AuthorizationProblem::BadBan {
            text: entry.to_owned(),
        };
        let (name, rest) = name(entry).ok_or_else(|| read(bad()))?;
        if !rest.is_empty() {
            return Err(read(bad()));
        }
        let pattern = IdentityPattern::parse(&name).map_err(|problem| {
            read(AuthorizationProblem::Pattern {
                list: "ban list".to_owned(),
                text: name.clone(),
                problem,
            })
        })?;
        bans.add(pattern, RuleSource::BanList { line });
    }
    Ok(())
}

/// Reads a grid-mapfile: a name in quotation marks and its account, or several accounts between commas, of which the
/// first one counts.
pub(crate) fn read_grid_mapfile(text: &str) -> Result<AccountMap, AuthorizationError> {
    let mut accounts = AccountMap::default();
    for (line, entry) in entries("grid-mapfile", text)? {
        let read = |problem| AuthorizationError {
            line: Some(line),
            problem,
        };
        let bad = || {
            read(AuthorizationProblem::BadMapLine {
                text: entry.to_owned(),
            })
        };
        let (name, rest) = name(entry).ok_or_else(bad)?;
        let account = rest.split(',').next().unwrap_or_default().trim();
        if !name.starts_with('/') || account.is_empty() {
            return Err(bad());
        }
        let account = account_name(account).map_err(read)?;
        let pattern = IdentityPattern::parse(&name).map_err(|problem| {
            read(AuthorizationProblem::Pattern {
                list: "grid-mapfile".to_owned(),
                text: name.clone(),
                problem,
            })
        })?;
        accounts.add(pattern, account, RuleSource::GridMapfile { line });
    }
    Ok(accounts)
}

/// The lines that say something, with their numbers from 1.
fn entries<'a>(
    what: &'static str,
    text: &'a str,
) -> Result<impl Iterator<Item = (usize, &'a str)>, AuthorizationError> {
    if text.len() > SITE_LIST_BYTES_MAX {
        return Err(AuthorizationProblem::TooLarge {
            what,
            got: text.len(),
            max: SITE_LIST_BYTES_MAX,
        }
        .into());
    }
    let lines = text.lines().map(str::trim).enumerate();
    Ok(lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| (index + 1, line)))
}

/// The name at the start of a line, and what follows it. Within quotation marks a backslash stands before a quotation
/// mark or a backslash; before anything else it belongs to the name, as in `\xC3`.
fn name(line: &str) -> Option<(String, &str)> {
    let Some(quoted) = line.strip_prefix('"') else {
        let end = line.find(char::is_whitespace).unwrap_or(line.len());
        return Some((line[..end].to_owned(), line[end..].trim()));
    };
    let mut name = String::with_capacity(quoted.len());
    let mut characters = quoted.char_indices().peekable();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => return Some((name, quoted[position + 1..].trim())),
            '\\' => match characters.next_if(|(_, next)| *next == '"' || *next == '\\') {
                Some((_, escaped)) => name.push(escaped),
                None => name.push('\\'),
            },
            other => name.push(other),
        }
    }
    None
}

/// Checks the name of an account.
pub(crate) fn account_name(text: &str) -> Result<String, AuthorizationProblem> {
    let text = text.to_owned();
    if text.starts_with('.') {
        return Err(AuthorizationProblem::PoolAccount { text });
    }
    let starts_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let holds = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if starts_well && holds && text.len() <= WORD_BYTES_MAX {
        Ok(text)
    } else {
        Err(AuthorizationProblem::BadAccount { text })
    }
}
