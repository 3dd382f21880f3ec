//! Name constraints of authorities (RFC 5280 section 4.2.1.10), read and applied.

use x509_parser::asn1_rs::{Any, Class, FromDer as _, Tag};
use x509_parser::extensions::GeneralName;

use super::alternative_name::AlternativeName;
use crate::distinguished_name::DistinguishedName;
use crate::limits::NAME_SUBTREES_MAX;
use crate::malformed::Malformed;

/// The names that certificates below an authority may and may not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameConstraints {
    permitted: Vec<AlternativeName>,
    excluded: Vec<AlternativeName>,
}

impl NameConstraints {
    pub(super) fn read(value: &[u8]) -> Result<Self, Malformed> {
        let bad = Malformed::BadExtension;
        let (rest, whole) = Any::from_der(value).map_err(|_| bad.clone())?;
        if !rest.is_empty() || whole.tag() != Tag::Sequence {
            return Err(bad);
        }
        let mut constraints = Self::default();
        let mut rest = whole.data;
        let mut seen = 0;
        while !rest.is_empty() {
            let (after, subtrees) = Any::from_der(rest).map_err(|_| bad.clone())?;
            let tag = subtrees.tag().0 + 1;
            if subtrees.class() != Class::ContextSpecific || !(1..=2).contains(&tag) || tag <= seen
            {
                return Err(bad);
            }
            seen = tag;
            let read = read_subtrees(subtrees.data)?;
            if tag == 1 {
                constraints.permitted = read;
            } else {
                constraints.excluded = read;
            }
            rest = after;
        }
        Ok(constraints)
    }

    /// Whether the names of a certificate, its subject and its alternative names if it has any, are all allowed.
    ///
    /// A name in a form that is constrained but that this crate can't compare is not allowed.
    pub(super) fn allow(
        &self,
        subject: &DistinguishedName,
        alternative: Option<&[AlternativeName]>,
    ) -> bool {
        let subject_counts = !subject.is_empty();
        // Before there were alternative names, mail addresses stood in the subject.
        let mail = match alternative {
            Some(names)
                if names
                    .iter()
                    .any(|name| matches!(name, AlternativeName::Mail(_))) =>
            {
                Vec::new()
            }
            _ => subject.mail_addresses(),
        };
        let subject = AlternativeName::Directory(subject.clone());
        subject_counts
            .then_some(&subject)
            .into_iter()
            .chain(alternative.unwrap_or_default())
            .all(|name| self.allow_name(name))
            && mail
                .into_iter()
                .all(|address| self.allow_name(&AlternativeName::Mail(address)))
    }

    fn allow_name(&self, name: &AlternativeName) -> bool {
        let same_form = |tree: &&AlternativeName| form(tree) == form(name);
        let mut permitted = self.permitted.iter().filter(same_form).peekable();
        let is_permitted =
            permitted.peek().is_none() || permitted.any(|tree| within(name, tree) == Some(true));
        is_permitted
            && self
                .excluded
                .iter()
                .filter(same_form)
                .all(|tree| within(name, tree) == Some(false))
    }
}

/// `GeneralSubtree ::= SEQUENCE { base, minimum [0] DEFAULT 0, maximum [1] OPTIONAL }`, where RFC 5280 allows the base
/// only.
fn read_subtrees(mut rest: &[u8]) -> Result<Vec<AlternativeName>, Malformed> {
    let bad = || Malformed::BadExtension;
    let mut trees = Vec::new();
    while !rest.is_empty() {
        let (after, tree) = Any::from_der(rest).map_err(|_| bad())?;
        let (beyond, base) = GeneralName::from_der(tree.data).map_err(|_| bad())?;
        if !beyond.is_empty() || trees.len() == NAME_SUBTREES_MAX {
            return Err(bad());
        }
        trees.push(AlternativeName::read(&base)?);
        rest = after;
    }
    if trees.is_empty() {
        Err(bad())
    } else {
        Ok(trees)
    }
}

fn form(name: &AlternativeName) -> u32 {
    match name {
        AlternativeName::Mail(_) => 1,
        AlternativeName::Dns(_) => 2,
        AlternativeName::Directory(_) => 4,
        AlternativeName::Uri(_) => 6,
        AlternativeName::Address(_) => 7,
        AlternativeName::Other(tag) => *tag,
    }
}

/// Whether a name lies in a subtree of the same form; nothing where that can't be said.
fn within(name: &AlternativeName, tree: &AlternativeName) -> Option<bool> {
    match (name, tree) {
        (AlternativeName::Directory(name), AlternativeName::Directory(tree)) => {
            Some(name.part_keys().starts_with(&tree.part_keys()))
        }
        (AlternativeName::Dns(name), AlternativeName::Dns(tree)) => {
            let tree = tree.strip_prefix('.').unwrap_or(tree);
            Some(host_within(host(name)?, domain(tree)?, true))
        }
        (AlternativeName::Mail(name), AlternativeName::Mail(tree)) => mail_within(name, tree),
        (AlternativeName::Uri(name), AlternativeName::Uri(tree)) => {
            let host = host(uri_host(name)?)?;
            Some(match tree.strip_prefix('.') {
                Some(tree) => host_within(host, domain(tree)?, false),
                None => host.eq_ignore_ascii_case(domain(tree)?),
            })
        }
        (AlternativeName::Address(name), AlternativeName::Address(tree)) => {
            let (address, mask) = tree.split_at_checked(tree.len() / 2)?;
            if name.len() != address.len() || mask.len() != address.len() {
                // An IPv4 address is in no range of IPv6.
                return (name.len() == 4 || name.len() == 16).then_some(false);
            }
            Some(
                name.iter()
                    .zip(address)
                    .zip(mask)
                    .all(|((one, other), mask)| one & mask == other & mask),
            )
        }
        _ => None,
    }
}

/// A host's name as it is compared: a dot at its end, which only says that the name is complete, is not a part of it, else an
/// excluded name could be written so. Nothing for what is no name, such as one with an empty label.
fn host(name: &str) -> Option<&str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label =
        |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_graphic());
    name.split('.').all(is_label).then_some(name)
}

/// As [`host`], where no name at all stands for every host.
fn domain(name: &str) -> Option<&str> {
    if name.is_empty() {
        Some(name)
    } else {
        host(name)
    }
}

/// Whether `host` is below `domain`, or, where that counts, is it.
fn host_within(host: &str, domain: &str, itself_counts: bool) -> bool {
    if domain.is_empty() {
        return true;
    }
    if host.len() == domain.len() {
        return itself_counts && host.eq_ignore_ascii_case(domain);
    }
    let Some(start) = host.len().checked_sub(domain.len()) else {
        return false;
    };
    host.get(start..)
        .is_some_and(|end| end.eq_ignore_ascii_case(domain))
        && host.as_bytes()[..start].ends_with(b".")
}

fn mail_within(name: &str, tree: &str) -> Option<bool> {
    let (local, at) = name.rsplit_once('@')?;
    let at = host(at)?;
    Some(match (tree.rsplit_once('@'), tree.strip_prefix('.')) {
        (Some((tree_local, tree_host)), _) => {
            local == tree_local && at.eq_ignore_ascii_case(domain(tree_host)?)
        }
        (None, Some(tree)) => host_within(at, domain(tree)?, false),
        (None, None) => at.eq_ignore_ascii_case(domain(tree)?),
    })
}

fn uri_host(uri: &str) -> Option<&str> {
    let (_, rest) = uri.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    // RFC 5280 wants a name; an address in a URI can't be compared.
    if host.starts_with('[') {
        return None;
    }
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests;
