//! Rules by path and method: what a request asks for, decided before the server behind sees it.

use std::borrow::Cow;
use std::fmt;

use exoskel_identity::policy_text::line_of;
use http::Method;
use serde::Deserialize;
use toml::Spanned;

use super::headers::is_refused;
use crate::limits::PATH_RULES_MAX;

/// The methods that IANA has registered (RFC 9110 section 16.1). Servers may have others.
pub(crate) const METHODS: [&str; 40] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// `[[path]]`: what a request for these paths needs. The first rule that fits decides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathTable {
    /// The path. The rule is about it and about everything below it: `/jobs` is about `/jobs/7`, and not about `/jobsearch`.
    pub prefix: String,
    /// Which methods, all by default. `GET` includes `HEAD`.
    pub methods: Option<Vec<String>>,
    /// The action that the policy has to allow; none asks for no more than the right to connect.
    pub action: Option<String>,
    /// Whether the client needs a certificate.
    #[serde(default = "needed")]
    pub certificate: bool,
}

fn needed() -> bool {
    true
}

/// A path rule that can't be used. Its administrator must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadPathRule {
    /// Where the rule begins, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: PathRuleProblem,
}

/// What is wrong with a path rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRuleProblem {
    /// Not a path.
    #[error("got prefix {got:?}, expected a path such as \"/jobs\": {reason}")]
    Prefix {
        /// What stood there.
        got: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Not a method.
    #[error("got method {got:?}, expected one in capitals, such as \"POST\"")]
    Method {
        /// What stood there.
        got: String,
    },
    /// A method that the front never passes on.
    #[error(
        "got method {got:?}, for which no rule can ever match: the front refuses CONNECT, TRACE and TRACK; leave it out"
    )]
    RefusedMethod {
        /// What stood there.
        got: String,
    },
    /// A rule about nothing.
    #[error("got an empty list of methods, expected at least one; leave the key out for all")]
    NoMethods,
    /// Who shows no certificate can't be judged.
    #[error(
        "got action {action:?} and certificate = false: without a certificate nobody can be allowed an action, leave one of them out"
    )]
    ActionOfNobody {
        /// The action.
        action: String,
    },
    /// A policy that can't decide.
    #[error("action {action:?}: {reason}")]
    Action {
        /// The action.
        action: String,
        /// Why nobody may ever do it.
        reason: String,
    },
    /// Earlier rules take all that this one is about.
    #[error(
        "the path rule for {prefix:?} can never match: the rule at line {earlier} comes first and fits the same requests; move this one before it, or remove it"
    )]
    Shadowed {
        /// What the rule is about.
        prefix: String,
        /// The last of the earlier rules that take its requests.
        earlier: usize,
    },
    /// More than anybody reads.
    #[error("got {got} path rules, expected at most {PATH_RULES_MAX}")]
    TooMany {
        /// How many there are.
        got: usize,
    },
}

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: anybody may ask, with a certificate or without.
    Nothing,
    /// A client that may connect.
    Client,
    /// A client that the policy allows this action.
    Action(String),
}

impl fmt::Display for Needs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str("no certificate"),
            Self::Client => formatter.write_str("no action"),
            Self::Action(action) => write!(formatter, "the action {action:?}"),
        }
    }
}

#[derive(Clone, Debug)]
struct PathRule {
    line: usize,
    /// Without the slash at its end, so that the root is empty.
    prefix: String,
    /// The same as the most careless server reads it.
    loose: String,
    methods: Option<Vec<Method>>,
    needs: Needs,
}

/// The path rules of a front, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct PathRules {
    rules: Vec<PathRule>,
    /// Whether any prefix has capitals, so that even a path without them can be read in two ways.
    has_capitals: bool,
}

/// Which rule is about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen(usize);

/// Why it can't be said which rule is about a request: servers read its path in different ways. The client must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `%` without two hexadecimal digits, or bytes that are not UTF-8.
    #[error("expected a path in UTF-8 whose % signs begin two hexadecimal digits")]
    Encoding,
    /// A sign that some servers take as a separator, or as the end.
    #[error("expected a path without encoded slashes, backslashes or control characters")]
    Sign,
    /// `%252e`
    #[error("expected a path that is encoded once")]
    EncodedTwice,
    /// `//`, `/./`, `/../`
    #[error("expected a path without empty parts, \".\" and \"..\"")]
    Parts,
    /// Capitals, a dot at the end, `;parameters`: another rule is about what is left without them.
    #[error(
        "this path or method can be read in two ways, for which different rules hold: write it as the service does"
    )]
    TwoRules,
}

impl PathRules {
    /// Takes the rules of a configuration whose text is `source`.
    ///
    /// # Errors
    /// [`BadPathRule`] for the first that can't be used.
    pub(crate) fn new(tables: &[Spanned<PathTable>], source: &str) -> Result<Self, BadPathRule> {
        let mut rules = Self::default();
        for table in tables {
            let line = line_of(source, table.span().start);
            let bad = |problem| BadPathRule { line, problem };
            if rules.rules.len() == PATH_RULES_MAX {
                let got = tables.len();
                return Err(bad(PathRuleProblem::TooMany { got }));
            }
            let rule = PathRule::new(table.get_ref(), line).map_err(bad)?;
            if let Some(earlier) = rules.shadowing(&rule) {
                let prefix = table.get_ref().prefix.clone();
                return Err(bad(PathRuleProblem::Shadowed { prefix, earlier }));
            }
            rules.has_capitals |= rule.prefix != rule.loose;
            rules.rules.push(rule);
        }
        Ok(rules)
    }

    /// The line of the rule that completes what fits every request that `rule` is about.
    fn shadowing(&self, rule: &PathRule) -> Option<usize> {
        let mut left = rule.methods.clone();
        for earlier in &self.rules {
            if !is_at_or_below(&rule.loose, &earlier.loose) {
                continue;
            }
            match (&earlier.methods, &mut left) {
                (None, _) => return Some(earlier.line),
                (Some(_), None) => {}
                (Some(_), Some(left)) => {
                    left.retain(|method| !earlier.is_about_method(method, false));
                    if left.is_empty() {
                        return Some(earlier.line);
                    }
                }
            }
        }
        None
    }

    /// The rules of which an earlier one takes a part, so that less is needed there than a reader of the rule takes it for, or something else:
    /// the line of each, and what is to be said of it.
    ///
    /// An exception that stands before its rule, with a longer path, is no such case, and neither is a rule for all the methods that an
    /// earlier one for the same path leaves over.
    pub(crate) fn hidden_in_part(&self) -> impl Iterator<Item = (usize, String)> {
        self.rules.iter().enumerate().flat_map(move |(place, rule)| {
            let hiding = self.rules[..place].iter().filter(move |earlier| {
                is_at_or_below(&rule.loose, &earlier.loose)
                    && !(rule.loose == earlier.loose && rule.methods.is_none())
                    && rule.needs != earlier.needs
            });
            hiding.filter_map(move |earlier| {
                let methods = rule.methods_of(earlier);
                let path = if rule.prefix.is_empty() { "/" } else { &rule.prefix };
                (!methods.is_empty()).then(|| {
                    let text = format!(
                        "the path rule for {path:?} does not decide about {}: the rule at line {} comes first and needs {}; move this one \
                         before it if that is not meant",
                        methods.join(", "),
                        earlier.line,
                        earlier.needs,
                    );
                    (rule.line, text)
                })
            })
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether anybody may ask for something without a certificate.
    pub(crate) fn serve_anybody(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs == Needs::Nothing)
    }

    /// The actions that rules ask for, with the line of each.
    pub(crate) fn actions(&self) -> impl Iterator<Item = (usize, &str)> {
        self.rules.iter().filter_map(|rule| match &rule.needs {
            Needs::Action(action) => Some((rule.line, action.as_str())),
            _ => None,
        })
    }

    /// The methods of rules that no standard of HTTP has, with the line of each.
    pub(crate) fn unknown_methods(&self) -> impl Iterator<Item = (usize, &str)> {
        self.rules.iter().flat_map(|rule| {
            let methods = rule.methods.iter().flatten().map(Method::as_str);
            let unknown = methods.filter(|method| !METHODS.contains(method));
            unknown.map(|method| (rule.line, method))
        })
    }

    /// Which rule is about a request; nothing if none is.
    ///
    /// # Errors
    /// [`PathError`] when servers could read the request in a way in which another rule is about it.
    pub(crate) fn choose(&self, method: &Method, path: &str) -> Result<Option<Chosen>, PathError> {
        let plain = plain(path)?;
        let loose = loose(&plain)?;
        let place = |path: &str, careful: bool| {
            self.rules
                .iter()
                .position(|rule| rule.is_about(method, path, careful))
        };
        let chosen = place(&plain, true);
        let is_plain =
            matches!(loose, Cow::Borrowed(_)) && is_in_capitals(method) && !self.has_capitals;
        if !is_plain && place(&loose, false) != chosen {
            return Err(PathError::TwoRules);
        }
        Ok(chosen.map(Chosen))
    }

    pub(crate) fn needs(&self, chosen: Chosen) -> &Needs {
        &self.rules[chosen.0].needs
    }
}

impl Chosen {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

impl PathRule {
    fn new(table: &PathTable, line: usize) -> Result<Self, PathRuleProblem> {
        let bad = |reason: String| PathRuleProblem::Prefix {
            got: table.prefix.clone(),
            reason,
        };
        if !table.prefix.starts_with('/') {
            return Err(bad("it begins with a slash".to_owned()));
        }
        if let Some(sign) = table.prefix.chars().find(|sign| "%?#;\\*".contains(*sign)) {
            return Err(bad(format!("{sign:?} has no place in it")));
        }
        let loose = plain(&table.prefix)
            .and_then(|path| loose(&path).map(Cow::into_owned))
            .map_err(|error| bad(error.to_string()))?;
        let methods = table
            .methods
            .as_ref()
            .map(|methods| methods.iter().map(|method| read_method(method)).collect())
            .transpose()?;
        if methods.as_ref().is_some_and(Vec::is_empty) {
            return Err(PathRuleProblem::NoMethods);
        }
        let needs = match (&table.action, table.certificate) {
            (Some(action), false) => {
                let action = action.clone();
                return Err(PathRuleProblem::ActionOfNobody { action });
            }
            (Some(action), true) => Needs::Action(action.clone()),
            (None, true) => Needs::Client,
            (None, false) => Needs::Nothing,
        };
        Ok(Self {
            line,
            prefix: table.prefix.trim_end_matches('/').to_owned(),
            loose: loose.trim_end_matches('/').to_owned(),
            methods,
            needs,
        })
    }

    /// The methods of this rule that an earlier one takes, if the paths fit.
    fn methods_of<'a>(&'a self, earlier: &'a Self) -> Vec<&'a str> {
        match (&self.methods, &earlier.methods) {
            (None, Some(earlier)) => earlier.iter().map(Method::as_str).collect(),
            (Some(own), _) => {
                let taken = own.iter();
                let taken = taken.filter(|method| earlier.is_about_method(method, false));
                taken.map(Method::as_str).collect()
            }
            // The earlier one takes everything, and the configuration is refused.
            (None, None) => Vec::new(),
        }
    }

    /// `careful` says whether capitals count, as they do in servers that follow the standard.
    fn is_about(&self, method: &Method, path: &str, careful: bool) -> bool {
        let prefix = if careful { &self.prefix } else { &self.loose };
        is_at_or_below(path, prefix) && self.is_about_method(method, careful)
    }

    fn is_about_method(&self, method: &Method, careful: bool) -> bool {
        let same = |one: &Method| match careful {
            true => one == method,
            false => one.as_str().eq_ignore_ascii_case(method.as_str()),
        };
        // Servers answer HEAD by what they have for GET (RFC 9110 section 9.3.2).
        let is = |one: &Method| same(one) || *one == Method::GET && same(&Method::HEAD);
        self.methods
            .as_ref()
            .is_none_or(|methods| methods.iter().any(is))
    }
}

fn is_in_capitals(method: &Method) -> bool {
    !method
        .as_str()
        .bytes()
        .any(|byte| byte.is_ascii_lowercase())
}

fn read_method(text: &str) -> Result<Method, PathRuleProblem> {
    let got = || text.to_owned();
    if is_refused(text) {
        return Err(PathRuleProblem::RefusedMethod { got: got() });
    }
    Method::from_bytes(text.as_bytes())
        .ok()
        .filter(is_in_capitals)
        .ok_or_else(|| PathRuleProblem::Method { got: got() })
}

/// Whether a path is the one that the prefix names, or below it. The root's prefix is empty.
fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path as a server that follows the standards reads it.
fn plain(path: &str) -> Result<Cow<'_, str>, PathError> {
    let bytes = path.as_bytes();
    if !bytes.contains(&b'%') {
        return match path.chars().any(is_separator) {
            true => Err(PathError::Sign),
            false => Ok(Cow::Borrowed(path)),
        };
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            plain.push(*first);
            rest = after;
            continue;
        }
        let byte = encoded(after).ok_or(PathError::Encoding)?;
        rest = &after[2..];
        if byte == b'/' {
            return Err(PathError::Sign);
        }
        plain.push(byte);
    }
    // Looked for in what came out: the digits behind the sign can be encoded themselves.
    let is_encoded = |place: usize| plain[place] == b'%' && encoded(&plain[place + 1..]).is_some();
    if (0..plain.len()).any(is_encoded) {
        return Err(PathError::EncodedTwice);
    }
    let plain = String::from_utf8(plain).map_err(|_| PathError::Encoding)?;
    match plain.chars().any(is_separator) {
        true => Err(PathError::Sign),
        false => Ok(Cow::Owned(plain)),
    }
}

/// The byte that two hexadecimal digits say.
fn encoded(text: &[u8]) -> Option<u8> {
    let digit = |place: usize| char::from(*text.get(place)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// What some servers take for a slash or for the end of the path.
fn is_separator(sign: char) -> bool {
    sign == '\\' || sign.is_control()
}

/// The path as the most careless server reads it: without regard to case, parameters, and dots and spaces at the end of names.
fn loose<'a>(plain: &'a str) -> Result<Cow<'a, str>, PathError> {
    let mut is_loose = false;
    let mut parts = plain.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let kept = loose_part(part);
        let is_last = parts.peek().is_none();
        if kept.is_empty() && !(part.is_empty() && is_last) {
            return Err(PathError::Parts);
        }
        is_loose |= kept.len() < part.len() || part.chars().any(|sign| !is_small(sign));
    }
    if !is_loose {
        return Ok(Cow::Borrowed(plain));
    }
    let parts = plain
        .split('/')
        .skip(1)
        .map(|part| without_case(loose_part(part)));
    Ok(Cow::Owned(
        parts.fold(String::new(), |path, part| path + "/" + &part),
    ))
}

/// What is left of a part of a path without what some servers cut off. Nothing, if the part leads elsewhere.
fn loose_part(part: &str) -> &str {
    let end = part.find([';', '?', '#']).unwrap_or(part.len());
    part[..end].trim_end_matches(|sign: char| sign == '.' || sign.is_whitespace())
}

/// A part in which letters are the same that are so in capitals (`ı` and `I`) or in small letters (the sign of Kelvin and
/// `k`): servers compare in either way.
fn without_case(part: &str) -> String {
    part.to_uppercase().to_lowercase()
}

/// Whether a sign has no other in whose place it could stand.
fn is_small(sign: char) -> bool {
    sign.is_ascii() && !sign.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Deserialize)]
    struct File {
        path: Vec<Spanned<PathTable>>,
    }

    fn read(text: &str) -> Result<PathRules, BadPathRule> {
        let file: File = toml::from_str(text).unwrap();
        PathRules::new(&file.path, text)
    }

    fn rules() -> PathRules {
        read(
            "[[path]]\nprefix = \"/health\"\ncertificate = false\n\n\
             [[path]]\nprefix = \"/jobs\"\nmethods = [\"POST\", \"DELETE\"]\naction = \"submit\"\n\n\
             [[path]]\nprefix = \"/admin/\"\naction = \"administer\"\n\n\
             [[path]]\nprefix = \"/\"\nmethods = [\"GET\"]\n",
        )
        .unwrap()
    }

    fn chosen(method: &str, path: &str) -> Result<Option<usize>, PathError> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let chosen = rules().choose(&method, path)?;
        Ok(chosen.map(Chosen::index))
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        assert_eq!(chosen("GET", "/health"), Ok(Some(0)));
        assert_eq!(chosen("GET", "/health/"), Ok(Some(0)));
        assert_eq!(chosen("GET", "/healthy"), Ok(Some(3)));
        assert_eq!(chosen("POST", "/jobs"), Ok(Some(1)));
        assert_eq!(chosen("DELETE", "/jobs/7"), Ok(Some(1)));
        assert_eq!(chosen("GET", "/jobs/7"), Ok(Some(3)));
        assert_eq!(chosen("HEAD", "/jobs/7"), Ok(Some(3)));
        assert_eq!(chosen("POST", "/jobsearch"), Ok(None));
        assert_eq!(chosen("PUT", "/admin"), Ok(Some(2)));
        assert_eq!(chosen("GET", "/%61dmin/%7ex"), Ok(Some(2)));
        assert_eq!(chosen("GET", "/Reports/V1.2/a.b;v=1"), Ok(Some(3)));
        assert_eq!(chosen("GET", "/caf%C3%A9"), Ok(Some(3)));
    }

    #[test]
    fn a_path_with_two_readings_is_refused() {
        for (path, error) in [
            ("//admin", PathError::Parts),
            ("/x//admin", PathError::Parts),
            ("/health/../admin", PathError::Parts),
            ("/./admin", PathError::Parts),
            ("/health/%2e%2e/admin", PathError::Parts),
            ("/health/%2E./admin", PathError::Parts),
            ("/health/..;/admin", PathError::Parts),
            ("/health/..%3B/admin", PathError::Parts),
            ("/health/.../admin", PathError::Parts),
            ("/;x/admin", PathError::Parts),
            ("/health%2f..%2Fadmin", PathError::Sign),
            ("/health\\..\\admin", PathError::Sign),
            ("/health%5Cadmin", PathError::Sign),
            ("/admin%00", PathError::Sign),
            ("/admin%0a", PathError::Sign),
            ("/health/%252e%252e/admin", PathError::EncodedTwice),
            ("/health/%c0%ae%c0%ae/admin", PathError::Encoding),
            ("/%", PathError::Encoding),
            ("/%4", PathError::Encoding),
            ("/%+1", PathError::Encoding),
            ("/health/%25%32%65%25%32%65/admin", PathError::EncodedTwice),
            ("/x%25%32fadmin", PathError::EncodedTwice),
            ("/admin%C2%85", PathError::Sign),
            ("/admin\u{85}", PathError::Sign),
            ("/admin%C2%A0", PathError::TwoRules),
            ("/adm%C4%B1n", PathError::TwoRules),
            ("/Admin", PathError::TwoRules),
            ("/ADMIN/users", PathError::TwoRules),
            ("/admin.", PathError::TwoRules),
            ("/admin%20", PathError::TwoRules),
            ("/admin;x=1/users", PathError::TwoRules),
            ("/admin%3Fx", PathError::TwoRules),
            ("/admin%23x", PathError::TwoRules),
            ("/Health", PathError::TwoRules),
        ] {
            assert_eq!(chosen("GET", path), Err(error), "{path}");
        }
        assert_eq!(chosen("post", "/jobs"), Err(PathError::TwoRules));
    }

    #[test]
    fn a_rule_that_can_never_match_is_named_with_its_line() {
        let fault = |text: &str| read(text).unwrap_err().to_string();
        let hidden = fault(
            "[[path]]\nprefix = \"/\"\naction = \"read\"\n[[path]]\nprefix = \"/jobs\"\naction = \"submit\"\n",
        );
        assert!(hidden.starts_with("line 4: "), "{hidden}");
        assert!(
            hidden.contains("\"/jobs\"") && hidden.contains("line 1"),
            "{hidden}"
        );
        // Together, two rules fit all that the third is about.
        let together = fault(
            "[[path]]\nprefix = \"/a\"\nmethods = [\"GET\"]\n[[path]]\nprefix = \"/\"\nmethods = [\"POST\"]\n\
             [[path]]\nprefix = \"/a/b\"\nmethods = [\"POST\", \"HEAD\"]\n",
        );
        assert!(together.starts_with("line 7: "), "{together}");
        assert!(together.contains("line 4"), "{together}");
        // What differs in case only would be refused by either rule.
        let capitals = fault("[[path]]\nprefix = \"/a\"\n[[path]]\nprefix = \"/A\"\n");
        assert!(capitals.starts_with("line 3: "), "{capitals}");
        assert!(
            read("[[path]]\nprefix = \"/a\"\nmethods = [\"GET\"]\n[[path]]\nprefix = \"/a\"\n[[path]]\nprefix = \"/ab\"\n")
                .is_ok()
        );
    }

    #[test]
    fn a_rule_of_which_an_earlier_one_takes_a_part_is_noted() {
        let notes =
            |text: &str| -> Vec<(usize, String)> { read(text).unwrap().hidden_in_part().collect() };
        let files = "[[path]]\nprefix = \"/files\"\nmethods = [\"GET\"]\naction = \"read\"\n";
        let [(line, secret)] = &notes(&format!(
            "{files}[[path]]\nprefix = \"/files/secret\"\naction = \"admin\"\n"
        ))[..] else {
            panic!()
        };
        assert_eq!(*line, 5);
        assert!(
            secret.contains("\"/files/secret\" does not decide about GET: the rule at line 1 ")
                && secret.contains("needs the action \"read\""),
            "{secret}"
        );
        let [(line, methods)] = &notes(&format!(
            "{files}[[path]]\nprefix = \"/files\"\nmethods = [\"PUT\", \"HEAD\"]\naction = \"write\"\n"
        ))[..] else {
            panic!()
        };
        assert!(*line == 5 && methods.contains("about HEAD:"), "{methods}");
        // What is meant so: an exception before its rule, all that is left over, and the same need.
        for more in [
            "[[path]]\nprefix = \"/\"\n",
            "[[path]]\nprefix = \"/files\"\naction = \"admin\"\n",
            "[[path]]\nprefix = \"/files/open\"\naction = \"read\"\n",
            "[[path]]\nprefix = \"/files/secret\"\nmethods = [\"PUT\"]\naction = \"admin\"\n",
        ] {
            assert_eq!(notes(&format!("{files}{more}")), [], "{more}");
        }
    }

    #[test]
    fn a_rule_that_says_nothing_sensible_is_named_with_its_line() {
        for (table, word) in [
            ("prefix = \"jobs\"", "slash"),
            ("prefix = \"/a%20b\"", "'%'"),
            ("prefix = \"/a/../b\"", "\"..\""),
            ("prefix = \"/a/*\"", "'*'"),
            ("prefix = \"/\"\nmethods = []", "empty list"),
            ("prefix = \"/\"\nmethods = [\"post\"]", "capitals"),
            ("prefix = \"/\"\nmethods = [\"GET\", \"TRACE\"]", "TRACK"),
            (
                "prefix = \"/\"\naction = \"x\"\ncertificate = false",
                "certificate = false",
            ),
        ] {
            let error = read(&format!("\n[[path]]\n{table}\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("line 2: ") && error.contains(word),
                "{error}"
            );
        }
    }

    proptest! {
        /// Whatever a path is dressed up as, a server that undresses it finds what the rule was chosen for.
        #[test]
        fn no_spelling_reaches_what_another_rule_guards(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "/", "admin", "ADMIN", "health", "%61dmin", "%2f", "%2e", ".", "..", ";", "%00", "%20", "\\", "%5c", "%25", "%32", "%65", "x",
                ]),
                1..8,
            ),
        ) {
            let path = format!("/{}", parts.concat());
            let careless = path
                .replace("%25", "%").replace("%32", "2").replace("%65", "e").replace("%2f", "/").replace("%2e", ".").replace("%61", "a").replace("%20", " ")
                .replace("%5c", "\\").replace("%00", "\0").replace('\\', "/").to_lowercase();
            let careless = careless.split('\0').next().unwrap_or_default();
            let mut reached: Vec<&str> = Vec::new();
            for part in careless.split('/') {
                let part = part.split(';').next().unwrap_or_default().trim_end_matches(' ');
                match part {
                    "" | "." => {}
                    ".." => { reached.pop(); }
                    part => reached.push(part.trim_end_matches('.')),
                }
            }
            if reached.first() == Some(&"admin") {
                prop_assert_ne!(chosen("GET", &path), Ok(Some(0)));
                prop_assert_ne!(chosen("GET", &path), Ok(Some(3)));
            }
        }
    }
}
