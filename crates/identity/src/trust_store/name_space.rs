//! Which names an authority may sign: `signing_policy` files of Globus and `namespaces` files of the EUGridPMA.

use super::bad_file::BadFileReason;
use crate::limits::POLICY_STATEMENTS_MAX;
use crate::peer_text::PeerText;
use crate::slash_name::normal_form;

/// One statement of a file: whether an issuer may sign the names of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameStatement {
    /// The issuer in normal form, or nothing for the authority of the file itself (`SELF`).
    pub(super) issuer: Option<String>,
    pub(super) rule: NameRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameRule {
    permits: bool,
    pattern: Pattern,
}

/// What the two kinds of file say about one issuer; nothing for a kind without a file. A file that speaks of others
/// only has an empty list, which permits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IssuerRules {
    pub(super) signing_policy: Option<Vec<NameRule>>,
    pub(super) namespaces: Option<Vec<NameRule>>,
}

/// Which kind of file a name is not permitted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forbidding {
    SigningPolicy,
    Namespaces,
}

impl IssuerRules {
    pub(crate) fn has_signing_policy(&self) -> bool {
        self.signing_policy.is_some()
    }

    pub(crate) fn has_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Whether some name could be permitted of those that a pattern means, in [`normal_form`] and with `*` for any text.
    pub(super) fn could_permit(&self, pattern: &str) -> bool {
        let could = |rules: &Option<Vec<NameRule>>| {
            let is_met = |rule: &NameRule| rule.permits && rule.pattern.meets(pattern);
            rules.as_ref().is_none_or(|rules| rules.iter().any(is_met))
        };
        could(&self.signing_policy) && could(&self.namespaces)
    }

    /// Whether both kinds, where they say anything, permit the name (in [`normal_form`]). What a statement denies, no
    /// other one permits.
    pub(crate) fn check(&self, name: &str) -> Result<(), Forbidding> {
        let permit = |rules: &Option<Vec<NameRule>>| {
            let mut permits = rules.is_none();
            for rule in rules.iter().flatten() {
                if rule.pattern.matches(name) {
                    if !rule.permits {
                        return false;
                    }
                    permits = true;
                }
            }
            permits
        };
        if !permit(&self.signing_policy) {
            return Err(Forbidding::SigningPolicy);
        }
        if !permit(&self.namespaces) {
            return Err(Forbidding::Namespaces);
        }
        Ok(())
    }
}

/// The two ways of writing patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Of `signing_policy` files, as a shell has them: `*` stands for any text.
    SigningPolicy,
    /// Of `namespaces` files, as regular expressions have them: `.*` stands for any text.
    Namespaces,
}

impl Spelling {
    const fn wildcard(self) -> &'static str {
        match self {
            Self::SigningPolicy => "*",
            Self::Namespaces => ".*",
        }
    }

    /// Something in a pattern that is more than text to other readers of such files: Globus's own comments have `?` in them,
    /// some implementations hand the pattern to a library for regular expressions. Dots, brackets, parentheses and plus
    /// signs by themselves are parts of names in use.
    fn construct(self, pattern: &str) -> Option<&'static str> {
        let texts = pattern.split(self.wildcard());
        let has_range = |text: &str| {
            let mut inside = text
                .split('[')
                .skip(1)
                .filter_map(|rest| rest.split_once(']'));
            inside.any(|(inside, _)| is_range(inside))
        };
        for text in texts {
            for (construct, is_there) in [
                ("the wildcard \"?\"", text.contains('?')),
                ("the wildcard \"*\"", text.contains('*')),
                ("the repetition \".+\"", text.contains(".+")),
                ("the anchor \"^\"", text.contains('^')),
                ("the anchor \"$\"", text.contains('$')),
                ("the alternative \"|\"", text.contains('|')),
                ("a repetition in braces", text.contains(['{', '}'])),
                ("an escape", has_escape(text)),
                ("a range of characters in brackets", has_range(text)),
            ] {
                if is_there {
                    return Some(construct);
                }
            }
        }
        (self == Self::SigningPolicy && pattern.contains(".*")).then_some("the wildcard \".*\"")
    }
}

/// `a-z`, `0-9`: between brackets nothing else is a range, and names hold hyphens with something else around them.
fn is_range(inside: &str) -> bool {
    let bytes = inside.as_bytes();
    !inside.contains(' ')
        && bytes.windows(3).any(|three| match three {
            [start, b'-', end] => [
                u8::is_ascii_digit,
                u8::is_ascii_lowercase,
                u8::is_ascii_uppercase,
            ]
            .iter()
            .any(|is_kind| is_kind(start) && is_kind(end)),
            _ => false,
        })
}

/// Whether there is a backslash that is not one of `\xC3`, by which slash names have bytes beyond ASCII.
fn has_escape(text: &str) -> bool {
    text.split('\\').skip(1).any(|rest| {
        let mut bytes = rest.bytes();
        let is_byte = bytes.next() == Some(b'x')
            && bytes.by_ref().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
        !is_byte
    })
}

/// A name with wildcards that stand for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// The texts between the wildcards; one text is a pattern without any.
    texts: Box<[String]>,
}

impl Pattern {
    fn read(text: &str, spelling: Spelling, line: usize) -> Result<Self, BadFileReason> {
        if let Some(construct) = spelling.construct(text) {
            return Err(BadFileReason::UnknownPattern {
                line,
                construct,
                pattern: PeerText::new(text),
                wildcard: spelling.wildcard(),
            });
        }
        Ok(Self {
            texts: normal_form(text)
                .split(spelling.wildcard())
                .map(str::to_owned)
                .collect(),
        })
    }

    fn meets(&self, other: &str) -> bool {
        have_a_text_in_common(self.texts.join("*").as_bytes(), other.as_bytes())
    }

    fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.texts.split_first() else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else {
            return name == first;
        };
        let Some(mut name) = name
            .strip_prefix(first.as_str())
            .and_then(|name| name.strip_suffix(last.as_str()))
        else {
            return false;
        };
        // The leftmost place for each text leaves the most room for the next one.
        for text in middle {
            match name.find(text.as_str()) {
                Some(start) => name = &name[start + text.len()..],
                None => return false,
            }
        }
        true
    }
}

/// Whether some text is meant by both patterns, in which `*` stands for any text.
fn have_a_text_in_common(one: &[u8], other: &[u8]) -> bool {
    // For each place in `other`: whether the rest of both has one. Filled from the end of `one` to its beginning.
    let ends = |rest: &[u8]| rest.iter().all(|sign| *sign == b'*');
    let mut below: Vec<bool> = (0..=other.len())
        .map(|place| ends(&other[place..]))
        .collect();
    for place in (0..one.len()).rev() {
        let mut row = vec![false; other.len() + 1];
        row[other.len()] = ends(&one[place..]);
        for at in (0..other.len()).rev() {
            row[at] = match (one[place], other[at]) {
                (b'*', _) | (_, b'*') => below[at] || row[at + 1],
                (sign, same) => sign == same && below[at + 1],
            };
        }
        below = row;
    }
    below[0]
}

fn text(content: &[u8]) -> Result<&str, BadFileReason> {
    std::str::from_utf8(content).map_err(|_| BadFileReason::BadLine {
        line: 1,
        reason: "it is no UTF-8",
    })
}

/// Statements in the making.
struct Statements(Vec<NameStatement>);

impl Statements {
    fn push(
        &mut self,
        line: usize,
        issuer: Option<String>,
        rule: NameRule,
    ) -> Result<(), BadFileReason> {
        if self.0.len() == POLICY_STATEMENTS_MAX {
            return Err(BadFileReason::BadLine {
                line,
                reason: "more statements than a file may hold",
            });
        }
        self.0.push(NameStatement { issuer, rule });
        Ok(())
    }

    fn finish(self, reason: &'static str) -> Result<Vec<NameStatement>, BadFileReason> {
        if self.0.is_empty() {
            return Err(BadFileReason::BadLine { line: 1, reason });
        }
        Ok(self.0)
    }
}

/// Reads a `signing_policy` file: blocks of `access_id_CA X509 'NAME'`, `pos_rights globus CA:sign` and
/// `cond_subjects globus '"PATTERN" "PATTERN"'`, where `*` stands for any text. `neg_rights` denies in the place of
/// `pos_rights`. Readers differ in whether the first statement about a name decides or the last one: here what any statement
/// denies is denied, which is less than either would permit. Rights without `cond_subjects` would be for or against every name;
/// they are refused.
pub(super) fn read_signing_policy(content: &[u8]) -> Result<Vec<NameStatement>, BadFileReason> {
    let mut statements = Statements(Vec::new());
    let mut issuer = None;
    let mut permits = None;
    // The line of the rights that no pattern has followed yet.
    let mut bare_rights = None;
    let unfinished = |line| BadFileReason::BadLine {
        line,
        reason: "expected cond_subjects globus after the rights",
    };
    for (number, line) in text(content)?.lines().enumerate() {
        let number = number + 1;
        let bad = |reason| BadFileReason::BadLine {
            line: number,
            reason,
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = split_word(line);
        let (authority, value) = split_word(rest);
        if word != "cond_subjects"
            && let Some(line) = bare_rights
        {
            return Err(unfinished(line));
        }
        match (word, authority) {
            ("access_id_CA", "X509") => {
                let name =
                    unquote(value).ok_or_else(|| bad("expected a name in quotation marks"))?;
                if name.contains('*') {
                    return Err(bad(
                        "got a pattern of authorities, expected the name of one",
                    ));
                }
                issuer = Some(normal_form(name));
                permits = None;
            }
            ("pos_rights" | "neg_rights", "globus") => {
                if value != "CA:sign" || issuer.is_none() {
                    return Err(bad("expected the right CA:sign after access_id_CA"));
                }
                permits = Some(word == "pos_rights");
                bare_rights = Some(number);
            }
            ("cond_subjects", "globus") => {
                let (Some(issuer), Some(permits)) = (&issuer, permits) else {
                    return Err(bad("expected access_id_CA and pos_rights before it"));
                };
                bare_rights = None;
                for pattern in
                    patterns(value).ok_or_else(|| bad("expected names in quotation marks"))?
                {
                    let rule = NameRule {
                        permits,
                        pattern: Pattern::read(pattern, Spelling::SigningPolicy, number)?,
                    };
                    statements.push(number, Some(issuer.clone()), rule)?;
                }
            }
            _ => {
                return Err(bad(
                    "expected access_id_CA X509, pos_rights globus, neg_rights globus or cond_subjects globus",
                ));
            }
        }
    }
    match bare_rights {
        Some(line) => Err(unfinished(line)),
        None => statements.finish("expected access_id_CA, pos_rights and cond_subjects"),
    }
}

fn split_word(line: &str) -> (&str, &str) {
    match line.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (line, ""),
    }
}

fn unquote(text: &str) -> Option<&str> {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote) {
            return inner.strip_suffix(quote).filter(|inner| !inner.is_empty());
        }
    }
    None
}

/// `'"A" "B"'`, or a single name in one pair of quotation marks.
fn patterns(text: &str) -> Option<Vec<&str>> {
    let inner = unquote(text)?.trim();
    if !inner.contains('"') {
        return Some(vec![inner]);
    }
    let mut patterns = Vec::new();
    let mut rest = inner;
    while !rest.is_empty() {
        let (pattern, after) = rest.strip_prefix('"')?.split_once('"')?;
        patterns.push(pattern);
        rest = after.trim_start();
    }
    Some(patterns)
}

/// Reads a `namespaces` file: `TO Issuer "NAME" PERMIT Subject "PATTERN"`, where a backslash goes on in the next line,
/// and `.*` stands for any text. `Issuer SELF` means the authority of the file; `DENY` takes away.
pub(super) fn read_namespaces(content: &[u8]) -> Result<Vec<NameStatement>, BadFileReason> {
    let mut statements = Statements(Vec::new());
    let mut lines = text(content)?.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut whole = line.trim().to_owned();
        if whole.is_empty() || whole.starts_with('#') {
            continue;
        }
        while let Some(start) = whole.strip_suffix('\\') {
            whole = start.to_owned();
            whole.push(' ');
            match lines.next() {
                Some((_, next)) => whole.push_str(next.trim()),
                None => break,
            }
        }
        let (issuer, permits, pattern) = read_namespace(&whole).ok_or(BadFileReason::BadLine {
            line: number + 1,
            reason: "expected TO Issuer \"NAME\" PERMIT Subject \"PATTERN\"",
        })?;
        let rule = NameRule {
            permits,
            pattern: Pattern::read(pattern, Spelling::Namespaces, number + 1)?,
        };
        statements.push(number + 1, issuer, rule)?;
    }
    statements.finish("expected TO Issuer \"NAME\" PERMIT Subject \"PATTERN\"")
}

/// The issuer, whether its names are permitted, and which.
fn read_namespace(line: &str) -> Option<(Option<String>, bool, &str)> {
    let rest = keyword(line, "TO")?;
    let rest = keyword(rest, "Issuer")?;
    let (issuer, rest) = match keyword(rest, "SELF") {
        Some(rest) => (None, rest),
        None => {
            let (issuer, rest) = rest.strip_prefix('"')?.split_once('"')?;
            (Some(normal_form(issuer)), rest.trim_start())
        }
    };
    let (permits, rest) = match keyword(rest, "PERMIT") {
        Some(rest) => (true, rest),
        None => (false, keyword(rest, "DENY")?),
    };
    let rest = keyword(rest, "Subject")?;
    let pattern = rest.strip_prefix('"')?.strip_suffix('"')?;
    (!pattern.contains('"')).then_some((issuer, permits, pattern))
}

fn keyword<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = split_word(line);
    first.eq_ignore_ascii_case(word).then_some(rest)
}

#[cfg(test)]
mod tests;
