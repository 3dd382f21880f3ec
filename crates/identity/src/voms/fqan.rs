//! Fully qualified attribute names: `/vo/group/Role=production`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::limits::FQAN_BYTES_MAX;
use crate::peer_text::PeerText;

/// A fully qualified attribute name (GFD.182 section 3.4.1): a group of a virtual organisation, and perhaps a role and a
/// capability that its owner has there.
///
/// VOMS writes an absent role as `Role=NULL` and an absent capability as `Capability=NULL`; both spellings are the same
/// name here, and [`Display`](fmt::Display) leaves them out. Upper and lower case count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fqan {
    group: Box<str>,
    role: Option<Box<str>>,
    capability: Option<Box<str>>,
}

/// A text that is no fully qualified attribute name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "got {got}, expected /VO[/GROUP...][/Role=ROLE][/Capability=CAPABILITY] of letters, digits and . - _ : @ +, {FQAN_BYTES_MAX} bytes at most"
)]
pub struct BadFqan {
    /// What stood there.
    pub got: PeerText,
}

pub(crate) const ROLE: &str = "Role=";
pub(crate) const CAPABILITY: &str = "Capability=";
const NONE: &str = "NULL";

impl Fqan {
    /// The virtual organisation: the first part of the group.
    pub fn vo(&self) -> &str {
        self.group.split('/').nth(1).unwrap_or_default()
    }

    /// The group with its virtual organisation, `/vo/group/subgroup`.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The role in that group.
    pub fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }

    /// The capability. VOMS keeps it for old attribute certificates.
    pub fn capability(&self) -> Option<&str> {
        self.capability.as_deref()
    }
}

impl FromStr for Fqan {
    type Err = BadFqan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| BadFqan {
            got: PeerText::new(text),
        })
    }
}

fn parse(text: &str) -> Option<Fqan> {
    if text.len() > FQAN_BYTES_MAX || !text.starts_with('/') {
        return None;
    }
    let (head, capability) = split_off(text, "/Capability=");
    let (group, role) = split_off(head, "/Role=");
    let parts_hold = group.split('/').skip(1).all(is_part);
    let values_hold = [role, capability].into_iter().flatten().all(is_part);
    let value = |part: Option<&str>| part.filter(|part| *part != NONE).map(Box::from);
    // A group consists of parts, so "" and "/" are none.
    (group.len() > 1 && parts_hold && values_hold).then(|| Fqan {
        group: group.into(),
        role: value(role),
        capability: value(capability),
    })
}

fn split_off<'a>(text: &'a str, mark: &str) -> (&'a str, Option<&'a str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// No `=`, so that a role can't hide in a group; no `*`, so that no name looks like a pattern; no `,` or `"`, which have
/// a meaning where names are listed; not only dots, as accounts and directories are made from groups.
pub(crate) fn is_part(part: &str) -> bool {
    part.bytes().all(is_part_byte) && part.bytes().any(|byte| byte != b'.')
}

pub(crate) fn is_part_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_:@+".contains(&byte)
}

impl fmt::Display for Fqan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.group)?;
        if let Some(role) = &self.role {
            write!(formatter, "/{ROLE}{role}")?;
        }
        if let Some(capability) = &self.capability {
            write!(formatter, "/{CAPABILITY}{capability}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fqan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fqan({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn group_role_and_capability_come_apart() {
        let fqan: Fqan = "/vo.example.org/prod/mc/Role=production/Capability=x"
            .parse()
            .unwrap();
        assert_eq!(fqan.vo(), "vo.example.org");
        assert_eq!(fqan.group(), "/vo.example.org/prod/mc");
        assert_eq!(fqan.role(), Some("production"));
        assert_eq!(fqan.capability(), Some("x"));
        let member: Fqan = "/vo/Role=NULL/Capability=NULL".parse().unwrap();
        assert_eq!(member, "/vo".parse().unwrap());
        assert_eq!(member.to_string(), "/vo");
        assert_eq!((member.role(), member.capability()), (None, None));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("/{}", "a".repeat(FQAN_BYTES_MAX));
        for text in [
            "",
            "/",
            "vo",
            "//",
            "/vo/",
            "/vo//x",
            "/vo/Role=",
            "/Role=x",
            "/vo/Role=a/b",
            "/vo/Capability=x/Role=y",
            "/vo/Role=a/Role=b",
            "/vo/x=y",
            "/vo/*",
            "/vo,/other",
            "/vo\n",
            "/vo/gr\u{fc}n",
            "/..",
            "/vo/.",
            "/vo x",
            &long,
        ] {
            assert!(text.parse::<Fqan>().is_err(), "{text:?}");
        }
        assert!(long[..FQAN_BYTES_MAX].parse::<Fqan>().is_ok());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_back(
            text in "(/[a-z.A-Z0-9_-]{1,4}){1,4}(/Role=[a-zA-Z]{1,5})?(/Capability=[A-Z]{1,5})?"
        ) {
            if let Ok(fqan) = text.parse::<Fqan>() {
                let again: Fqan = fqan.to_string().parse().unwrap();
                prop_assert_eq!(&again, &fqan);
                prop_assert!(text.starts_with(&fqan.to_string()) || text.contains("NULL"));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,64}") {
            if let Ok(fqan) = text.parse::<Fqan>() {
                prop_assert_eq!(fqan.to_string().parse::<Fqan>(), Ok(fqan));
            }
        }
    }
}
