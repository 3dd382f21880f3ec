//! Distinguished names part by part, from certificates and from the lines of files.

use std::fmt::Write as _;

use super::attribute_types::written_type;
use super::{DistinguishedName, put_type};

/// A name as its parts: of each its attributes, and of each of these type and value.
///
/// The slash form of a name doesn't tell where a part ends: `/O=Hosts/CN=voms.example.org` is what OpenSSL writes of two
/// parts, and of one whose value holds a slash. So a line is taken apart by one rule (a slash with a known type and `=` behind it
/// begins a part), and compared with the parts that the certificate has.
///
/// Letters of ASCII are compared without case (RFC 5280 section 7.1), and the bytes of a value whatever type of text they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameParts(Vec<Vec<Attribute>>);

/// Type, as OpenSSL spells it, and value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Attribute {
    kind: String,
    value: Vec<u8>,
}

impl NameParts {
    /// The parts of a name in a certificate.
    pub(crate) fn of(name: &DistinguishedName) -> Self {
        let name = name.parsed();
        let parts = name.iter().map(|part| {
            let attributes = part.iter().map(|attribute| {
                let mut kind = String::new();
                put_type(&mut kind, attribute);
                Attribute {
                    kind: kind.to_ascii_lowercase(),
                    value: attribute.as_slice().to_ascii_lowercase(),
                }
            });
            as_set(attributes.collect())
        });
        Self(parts.collect())
    }

    /// Takes a line apart; nothing, when it is none of a name. `\xC3` stands for a byte, so that `\x2F` is a slash within a value.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        if line.contains(char::is_control) {
            return None;
        }
        let mut parts: Vec<Vec<Attribute>> = Vec::new();
        let mut rest = line;
        while let Some(begin) = rest.chars().next() {
            let kind = begins(rest)?;
            let (_, value) = rest.split_once('=')?;
            let end = value
                .char_indices()
                .find(|&(at, _)| begins(&value[at..]).is_some())
                .map_or(value.len(), |(at, _)| at);
            let attribute = Attribute {
                kind: kind.to_ascii_lowercase(),
                value: bytes(&value[..end]).to_ascii_lowercase(),
            };
            match (begin, parts.last_mut()) {
                ('+', Some(part)) => part.push(attribute),
                ('+', None) => return None,
                _ => parts.push(vec![attribute]),
            }
            rest = &value[end..];
        }
        (!parts.is_empty()).then(|| Self(parts.into_iter().map(as_set).collect()))
    }
}

impl DistinguishedName {
    /// The slash form that [`NameParts::parse`] takes apart into the parts of this name: what in a value would begin a part is escaped.
    pub(crate) fn slash_by_parts(&self) -> String {
        let name = self.parsed();
        let mut text = String::with_capacity(self.0.len());
        for (before, attribute) in name.iter().flat_map(|part| part.iter().enumerate()) {
            text.push(if before == 0 { '/' } else { '+' });
            put_type(&mut text, attribute);
            text.push('=');
            let value = attribute.as_slice();
            for (at, &byte) in value.iter().enumerate() {
                let rest = || String::from_utf8_lossy(&value[at..]).into_owned();
                let is_mark = match byte {
                    b'/' | b'+' => begins(&rest()).is_some(),
                    b'\\' => escape(&value[at..]).is_some(),
                    byte => !(b' '..=b'~').contains(&byte),
                };
                if is_mark {
                    let _ = write!(text, "\\x{byte:02X}");
                } else {
                    text.push(char::from(byte));
                }
            }
        }
        text
    }
}

/// The type of the attribute that begins here, if one does.
fn begins(text: &str) -> Option<&str> {
    written_type(text.strip_prefix(['/', '+'])?)
}

/// The attributes of one part are a set: their order means nothing.
fn as_set(mut attributes: Vec<Attribute>) -> Vec<Attribute> {
    attributes.sort_unstable();
    attributes
}

/// The bytes of a value as it is written.
fn bytes(value: &str) -> Vec<u8> {
    let mut rest = value.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        match escape(rest) {
            Some((byte, after)) => {
                bytes.push(byte);
                rest = after;
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// The byte that `\xC3` at the beginning stands for, and what follows it.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    match text {
        [b'\\', b'x', high, low, rest @ ..] => {
            let byte = digit(*high)? << 4 | digit(*low)?;
            Some((u8::try_from(byte).ok()?, rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;
    use crate::slash_name::tests::{NO_NAMES, OTHER_NAMES, SAME_NAMES};
    use crate::x509::Certificate;

    fn same(one: &str, other: &str) -> bool {
        NameParts::parse(one).unwrap() == NameParts::parse(other).unwrap()
    }

    /// The name with these parts; the library keeps one of each type.
    fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            parameters
                .distinguished_name
                .push(kind.clone(), (*value).to_owned());
        }
        let made = parameters
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap();
        Certificate::read(made.der()).unwrap().subject
    }

    #[test]
    fn spellings_of_one_name_are_equal() {
        assert!(SAME_NAMES.into_iter().all(|(one, other)| same(one, other)));
        assert!(same("/O=x/CN=a+UID=b", "/O=x/UID=b+CN=a"));
        assert!(same("/1.2.3.4=x/CN=a", "/1.2.3.4=X/CN=a"));
        assert!(!OTHER_NAMES.into_iter().any(|(one, other)| same(one, other)));
        assert!(!same("/CN=a+UID=b", "/CN=a/UID=b"));
    }

    #[test]
    fn a_part_begins_with_a_known_type() {
        assert!(same("/CN=host/a.example.org", "/CN=host\\x2Fa.example.org"));
        assert!(same("/CN=a/b=c", "/CN=a\\x2fb=c"));
        assert!(!same("/CN=a/OU=c", "/CN=a\\x2FOU=c"));
        for other in NO_NAMES.into_iter().chain(["+CN=a"]) {
            assert_eq!(NameParts::parse(other), None, "{other:?}");
        }
    }

    /// Both have the slash form of the first; only the first is meant by it.
    #[test]
    fn names_with_one_slash_form_are_two() {
        let two = name(&[
            (DnType::OrganizationName, "Hosts"),
            (DnType::CommonName, "voms"),
        ]);
        let one = name(&[(DnType::OrganizationName, "Hosts/CN=voms")]);
        assert_eq!(two.slash(), one.slash());
        let line = NameParts::parse(&two.slash()).unwrap();
        assert_eq!(line, NameParts::of(&two));
        assert_ne!(line, NameParts::of(&one));
        assert_eq!(one.slash_by_parts(), "/O=Hosts\\x2FCN=voms");
        let literal = name(&[(DnType::CommonName, "J\\xC3\\xBCrgen")]);
        let letter = name(&[(DnType::CommonName, "J\u{fc}rgen")]);
        assert_eq!(literal.slash(), letter.slash());
        assert_eq!(
            NameParts::parse(&letter.slash()).unwrap(),
            NameParts::of(&letter)
        );
        assert_ne!(NameParts::of(&literal), NameParts::of(&letter));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_name_has_a_line_of_its_own(
            first in "[/+=\\\\A-Za-z0-9\u{e4} ]{1,12}|[A-Z]{1,2}(/|\\+)CN=[a-z]",
            second in "[/+=\\\\xOUCN0-9]{1,12}",
        ) {
            let name = name(&[
                (DnType::OrganizationName, &first),
                (DnType::CommonName, &second),
            ]);
            let line = name.slash_by_parts();
            prop_assert_eq!(NameParts::parse(&line), Some(NameParts::of(&name)), "{}", line);
        }

        #[test]
        fn any_line_is_a_name_or_none(line: String) {
            let _ = NameParts::parse(&line);
        }
    }
}
