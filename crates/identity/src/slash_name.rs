//! Distinguished names as the files of a grid site have them: `/DC=org/DC=grid/CN=Alice`.

use crate::distinguished_name::of_alias;

/// A name in slash form, brought into the one form by which such names are compared.
///
/// `.lsc` files, grid-mapfiles and policies are written by people and by tools of thirty years, so that letters may
/// differ in case (RFC 5280 section 7.1 compares names so), an attribute may have an older name (`Email` and `E` for
/// `emailAddress`, `USERID` for `UID`), and a letter beyond ASCII may stand there itself, where OpenSSL writes `\xC3\xBC`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlashName(Box<str>);

impl SlashName {
    /// Takes a name in; nothing, when it is none: a name starts with a slash and an attribute.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        is_slash_name(text).then(|| Self(normal_form(text).into()))
    }

    /// The form by which names are compared.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a text has the form of a distinguished name rather than of an attribute name, which starts with an
/// organisation: `/DC=...` against `/vo/...`.
pub(crate) fn is_slash_name(text: &str) -> bool {
    let first = text
        .strip_prefix('/')
        .and_then(|rest| rest.split('/').next());
    first.is_some_and(|part| part.find('=').is_some_and(|end| end > 0))
        && !text.contains(char::is_control)
}

/// Brings a name (or a pattern of names) into the form by which names are compared.
pub(crate) fn normal_form(text: &str) -> String {
    use std::fmt::Write as _;
    let mut normal = String::with_capacity(text.len());
    for (index, part) in text.split('/').enumerate() {
        if index > 0 {
            normal.push('/');
        }
        let value = match part.split_once('=') {
            Some((kind, value)) => {
                let kind = of_alias(kind).unwrap_or(kind);
                normal.push_str(&kind.to_ascii_lowercase());
                normal.push('=');
                value
            }
            None => part,
        };
        for byte in value.bytes() {
            if byte.is_ascii() {
                normal.push(char::from(byte.to_ascii_lowercase()));
            } else {
                write!(normal, "\\x{byte:02x}").expect("writing into a string does not fail");
            }
        }
    }
    normal
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two spellings of one name, however names are compared.
    pub(crate) const SAME_NAMES: [(&str, &str); 5] = [
        ("/DC=org/CN=Alice", "/dc=ORG/cn=alice"),
        ("/O=x/Email=a@b", "/O=x/emailAddress=a@b"),
        ("/O=x/E=a@b", "/O=x/emailAddress=a@b"),
        ("/O=x/USERID=ab", "/O=x/UID=ab"),
        ("/CN=J\u{fc}rgen", "/CN=J\\xC3\\xBCrgen"),
    ];

    /// Two names each.
    pub(crate) const OTHER_NAMES: [(&str, &str); 2] =
        [("/O=x/CN=a", "/CN=a/O=x"), ("/CN=a b", "/CN=ab")];

    /// What is no name.
    pub(crate) const NO_NAMES: [&str; 7] =
        ["", "/", "/vo", "/vo/Role=x", "CN=a", "/=x", "/CN=a\nb"];

    fn same(one: &str, other: &str) -> bool {
        SlashName::parse(one).unwrap() == SlashName::parse(other).unwrap()
    }

    #[test]
    fn spellings_of_one_name_are_equal() {
        assert!(SAME_NAMES.into_iter().all(|(one, other)| same(one, other)));
        assert!(same("/CN=host/a.example.org", "/CN=host/A.example.org"));
        assert!(!OTHER_NAMES.into_iter().any(|(one, other)| same(one, other)));
    }

    #[test]
    fn names_and_attributes_are_told_apart() {
        for name in ["/DC=org/CN=a", "/CN=", "/C=DE/O=x/CN=host/a"] {
            assert!(SlashName::parse(name).is_some(), "{name}");
        }
        for other in NO_NAMES.into_iter().chain(["alice"]) {
            assert!(SlashName::parse(other).is_none(), "{other:?}");
        }
    }
}
