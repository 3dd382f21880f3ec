//! What may be wrong with rules that can be used: words that nobody asks for, and names that nobody can have.

use std::collections::BTreeMap;
use std::path::PathBuf;

use exoskel_identity::Authorization;
use exoskel_identity::authorization::IdentityPattern;
use exoskel_trust::Rules;

use crate::limits::NOTES_OF_FILE_MAX;
use crate::renewable::Renewable;

/// Letters of the shortest word of which another one is taken for a slip.
const SLIP_LETTERS_MIN: usize = 4;

/// An action that rules name and that may be a slip of this one, or the other way round, in words that follow others.
pub(crate) fn similar_action(rules: &Authorization, action: &str) -> Option<String> {
    let slip = rules
        .actions_by_line()
        .find(|(_, other)| is_slip(other, action) || is_slip(action, other));
    slip.map(|(line, other)| format!(" (line {line} is about {other:?}: is the same meant?)"))
}

/// The rules, bans and accounts in force that are about names and attributes that nobody can have, with file and line.
pub(crate) fn names_that_nobody_has(rules: &Rules, trust: &dyn Renewable) -> Vec<String> {
    let current = rules.current();
    let organisations = trust.organisations();
    let is_known = |organisation: &str| {
        let known = organisations.as_ref();
        known.is_none_or(|known| known.contains(organisation))
    };
    let by_pattern = current.patterns().filter_map(|(source, pattern)| {
        let is_unknown = |organisation: &&str| !is_known(organisation);
        let problem = match pattern.organisation().filter(is_unknown) {
            Some(organisation) => unknown_organisation(organisation),
            None => impossible_name(pattern, trust)?,
        };
        Some((source, problem))
    });
    let by_organisation = current.organisations();
    let by_organisation = by_organisation.filter(|(_, organisation)| !is_known(organisation));
    let by_organisation =
        by_organisation.map(|(source, organisation)| (source, unknown_organisation(organisation)));
    let mut files: BTreeMap<PathBuf, Vec<(usize, String)>> = BTreeMap::new();
    for (source, problem) in by_pattern.chain(by_organisation) {
        let notes = files.entry(rules.file_of(&current, source)).or_default();
        notes.push((source.line(), problem));
    }
    let mut notes = Vec::new();
    for (file, mut found) in files {
        found.sort();
        let file = file.display();
        let said = found.iter().take(NOTES_OF_FILE_MAX);
        notes.extend(said.map(|(line, problem)| format!("{file}, line {line}: {problem}")));
        let more = found.len().saturating_sub(NOTES_OF_FILE_MAX);
        notes.extend((more > 0).then(|| format!("{file}: {more} other lines like these")));
    }
    notes
}

fn unknown_organisation(organisation: &str) -> String {
    format!(
        "the vomsdir has no file of the virtual organisation {organisation:?} that can be used, so nobody has its attributes"
    )
}

fn impossible_name(pattern: &IdentityPattern, trust: &dyn Renewable) -> Option<String> {
    if !pattern.is_of_subjects() {
        return None;
    }
    if let Some(unknown) = pattern.unknown_type() {
        return Some(format!(
            "\"{pattern}\" has a part \"{unknown}=\", which no distinguished name has, so nobody has such a name"
        ));
    }
    (!trust.may_sign_some(&pattern.to_string())).then(|| {
        format!(
            "no trusted authority may sign a name like \"{pattern}\" (signing_policy, namespaces), so nobody has one"
        )
    })
}

/// Whether a word differs from another by one letter that is wrong, missing or too much, or by two neighbours that changed places.
pub(crate) fn is_slip(word: &str, meant: &str) -> bool {
    let (word, meant) = (word.as_bytes(), meant.as_bytes());
    if word == meant || meant.len() < SLIP_LETTERS_MIN {
        return false;
    }
    let same = word.iter().zip(meant).take_while(|(a, b)| a == b).count();
    let (word, meant) = (&word[same..], &meant[same..]);
    match (word, meant) {
        ([_, word @ ..], meant_whole) if word == meant_whole => true,
        (word_whole, [_, meant @ ..]) if word_whole == meant => true,
        ([_, word @ ..], [_, meant @ ..]) if word == meant => true,
        ([a, b, word @ ..], [c, d, meant @ ..]) => a == d && b == c && word == meant,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_slip;

    #[test]
    fn one_slip_is_known_and_another_word_is_not() {
        for (word, meant) in [
            ("conect", "connect"),
            ("connnect", "connect"),
            ("connact", "connect"),
            ("cnonect", "connect"),
            ("connec", "connect"),
            ("PSOT", "POST"),
        ] {
            assert!(is_slip(word, meant), "{word} {meant}");
        }
        for (word, meant) in [
            ("connect", "connect"),
            ("write", "read"),
            ("connection", "connect"),
            ("PUT", "GET"),
            ("", "read"),
            ("submitter", "submit"),
        ] {
            assert!(!is_slip(word, meant), "{word} {meant}");
        }
    }
}
