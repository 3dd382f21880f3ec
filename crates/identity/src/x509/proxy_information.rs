//! The `proxyCertInfo` extension: RFC 3820 section 3.8, and the draft that Globus Toolkit 3 wrote.

use x509_parser::asn1_rs::{Any, Class, FromDer as _, Oid, Tag};

use crate::malformed::Malformed;

/// What a proxy certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyInformation {
    /// The form of the draft before RFC 3820.
    pub(crate) is_draft: bool,
    pub(crate) is_critical: bool,
    /// How many proxies may follow below.
    pub(crate) path_length: Option<u64>,
    pub(crate) language: PolicyLanguage,
    /// Whether a text in that language is there.
    pub(crate) has_policy: bool,
}

/// What a proxy inherits from its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyLanguage {
    /// Everything: 1.3.6.1.5.5.7.21.1.
    InheritAll,
    /// Nothing: 1.3.6.1.5.5.7.21.2.
    Independent,
    /// Everything but the right to start jobs, as Globus has it: 1.3.6.1.4.1.3536.1.1.1.9.
    Limited,
    /// Another language, by its dotted object identifier.
    Other(String),
}

impl ProxyInformation {
    /// `SEQUENCE { pCPathLenConstraint INTEGER OPTIONAL, proxyPolicy ProxyPolicy }`
    pub(super) fn read(value: &[u8], is_critical: bool) -> Result<Self, Malformed> {
        read(value, is_critical, false).ok_or(Malformed::BadExtension)
    }

    /// The draft has the length behind the policy, with the tag \[1\]; some of its writers have it in front.
    pub(super) fn read_draft(value: &[u8], is_critical: bool) -> Result<Self, Malformed> {
        read(value, is_critical, true).ok_or(Malformed::BadExtension)
    }
}

fn read(value: &[u8], is_critical: bool, is_draft: bool) -> Option<ProxyInformation> {
    let mut rest = sequence(value)?;
    let mut path_length = None;
    if let Ok((after, first)) = Any::from_der(rest)
        && first.class() == Class::Universal
        && first.tag() == Tag::Integer
    {
        path_length = Some(length(&first)?);
        rest = after;
    }
    let (mut rest, policy) = Any::from_der(rest).ok()?;
    if policy.tag() != Tag::Sequence || policy.class() != Class::Universal {
        return None;
    }
    if is_draft
        && path_length.is_none()
        && let Ok((after, tagged)) = Any::from_der(rest)
        && tagged.class() == Class::ContextSpecific
        && tagged.tag() == Tag(1)
    {
        let (nothing, inner) = Any::from_der(tagged.data).ok()?;
        path_length = Some(length(&inner).filter(|_| nothing.is_empty())?);
        rest = after;
    }
    let (after_language, language) = Oid::from_der(policy.data).ok()?;
    let has_policy = !after_language.is_empty();
    if has_policy {
        let (nothing, text) = Any::from_der(after_language).ok()?;
        if !nothing.is_empty() || text.tag() != Tag::OctetString {
            return None;
        }
    }
    rest.is_empty().then(|| ProxyInformation {
        is_draft,
        is_critical,
        path_length,
        language: PolicyLanguage::read(&language),
        has_policy,
    })
}

fn sequence(value: &[u8]) -> Option<&[u8]> {
    let (rest, whole) = Any::from_der(value).ok()?;
    (rest.is_empty() && whole.class() == Class::Universal && whole.tag() == Tag::Sequence)
        .then_some(whole.data)
}

/// A length is not negative; one beyond eight bytes is as good as none, but no encoder writes it.
fn length(integer: &Any<'_>) -> Option<u64> {
    (integer.class() == Class::Universal)
        .then(|| integer.clone().u64().ok())
        .flatten()
}

impl PolicyLanguage {
    fn read(oid: &Oid<'_>) -> Self {
        match oid.as_bytes() {
            [0x2b, 6, 1, 5, 5, 7, 21, 1] => Self::InheritAll,
            [0x2b, 6, 1, 5, 5, 7, 21, 2] => Self::Independent,
            [0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 1, 1, 9] => Self::Limited,
            _ => Self::Other(oid.to_id_string()),
        }
    }
}

#[cfg(test)]
mod tests;
