//! What the server behind requires of clients beside actions, and says that somebody lacks.

use exoskel_identity::VerifiedIdentity;
use exoskel_identity::authorization::IdentityPattern;

use crate::audit::subject;
use crate::limits::REQUIREMENT_BYTES_MAX;

/// A requirement that the server behind says is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unmet {
    /// An attribute, as policies write it.
    Fqan(IdentityPattern),
    /// Any attribute of a virtual organisation.
    Vo(String),
    /// A whole distinguished name in slash form.
    Subject(String),
    /// A proxy that is not limited.
    FullProxy,
}

impl Unmet {
    /// Reads the header: a Dictionary of RFC 9651 with one member.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > REQUIREMENT_BYTES_MAX {
            return None;
        }
        let (key, value) = text.split_once('=')?;
        if (key, value) == ("limited", "?0") {
            return Some(Self::FullProxy);
        }
        let value = unquoted(value).filter(|value| !value.is_empty())?;
        match key {
            "fqan" => {
                let pattern = IdentityPattern::parse(&value).ok()?;
                pattern.is_of_attributes().then_some(Self::Fqan(pattern))
            }
            "vo" => Some(Self::Vo(value)),
            "dn" => Some(Self::Subject(value)),
            _ => None,
        }
    }

    /// What the audit trail calls it.
    pub(super) fn action(&self) -> String {
        match self {
            Self::Fqan(fqan) => format!("require {fqan}"),
            Self::Vo(vo) => format!("require organisation {vo}"),
            Self::Subject(subject) => format!("require {subject}"),
            Self::FullProxy => "require a proxy that is not limited".to_owned(),
        }
    }

    /// Why a client does not meet it, as `exoskel.asgi` says it too; nothing for one that does.
    pub(super) fn refusal(&self, who: &VerifiedIdentity) -> Option<String> {
        let fqans: Vec<String> = who.fqans().map(ToString::to_string).collect();
        let shown = match fqans.as_slice() {
            [] => "none".to_owned(),
            fqans => fqans.join(", "),
        };
        match self {
            Self::Fqan(pattern) => {
                let is_met = fqans.iter().any(|fqan| pattern.matches_attribute(fqan));
                (!is_met)
                    .then(|| format!("this needs the attribute {pattern}; you showed: {shown}"))
            }
            Self::Vo(vo) => {
                let is_met = fqans.iter().any(|fqan| fqan.split('/').nth(1) == Some(vo));
                (!is_met).then(|| format!("this needs an attribute of {vo}; you showed: {shown}"))
            }
            Self::Subject(wanted) => {
                let own = subject(who);
                (*wanted != own).then(|| format!("this is for {wanted}; you are {own}"))
            }
            Self::FullProxy => {
                let is_limited = who.proxy().is_some_and(|proxy| proxy.limited);
                is_limited.then(|| "this can't be done with a limited proxy".to_owned())
            }
        }
    }
}

/// The text of a String of RFC 9651 (section 3.3.3).
fn unquoted(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut signs = value.strip_prefix('"')?.strip_suffix('"')?.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => text.push(signs.next().filter(|next| "\"\\".contains(*next))?),
            '"' => return None,
            ' '..='~' => text.push(sign),
            _ => return None,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_requirement_is_read_and_nothing_else() {
        assert_eq!(
            Unmet::parse("vo=\"atlas\""),
            Some(Unmet::Vo("atlas".to_owned()))
        );
        assert_eq!(
            Unmet::parse("dn=\"/CN=a \\\"b\\\"\""),
            Some(Unmet::Subject("/CN=a \"b\"".to_owned()))
        );
        assert_eq!(Unmet::parse("limited=?0"), Some(Unmet::FullProxy));
        assert!(matches!(
            Unmet::parse("fqan=\"/vo/Role=*\""),
            Some(Unmet::Fqan(_))
        ));
        let long = format!("vo=\"{}\"", "a".repeat(REQUIREMENT_BYTES_MAX));
        for other in [
            "",
            "vo",
            "vo=atlas",
            "vo=\"\"",
            "vo=\"a\", dn=\"b\"",
            "limited=?1",
            "fqan=\"/CN=a\"",
            "fqan=\"/*\"",
            "name=\"a\"",
            "vo=\"a\\b\"",
            "vo=\"",
            &long,
        ] {
            assert_eq!(Unmet::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = Unmet::parse(&text);
            let _ = Unmet::parse(&format!("vo=\"{text}\""));
        }

        #[test]
        fn what_is_quoted_comes_back(text in "[ -~]{1,60}") {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            prop_assert_eq!(Unmet::parse(&format!("dn=\"{quoted}\"")), Some(Unmet::Subject(text)));
        }
    }
}
